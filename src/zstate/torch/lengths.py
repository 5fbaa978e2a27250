"""Sequences of different lengths in one padded batch [T,N,…].

Nothing but finite padding reaches a scan, no gradient comes back from it, and the state after a
sequence's last step is taken where it stands: so the padded run gives what each sequence alone
would give. The reverse direction reads each sequence turned round within its own length.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import DTypeError, ShapeError, refusal
from .operators import is_transformed

_MODERATE = 1e15


def check_lengths(module: str, lengths: Tensor, steps: int, batch: int) -> None:
    """Refuse lengths that do not fit the batch; their values only where that costs no waiting."""
    if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
        raise DTypeError(refusal(module, "lengths", "whole numbers", str(lengths.dtype)))
    if lengths.shape != (batch,):
        found = ",".join(map(str, lengths.shape))
        raise ShapeError(refusal(module, "lengths", f"[N] = [{batch}]", f"[{found}]"))
    if lengths.device.type != "cpu" or torch.compiler.is_compiling() or not batch:
        return
    least, most = (int(value) for value in torch.aminmax(lengths))
    if least < 0 or most > steps:
        raise ShapeError(
            refusal(module, "lengths", f"0 to T = {steps}", f"{least if least < 0 else most}")
        )


def inside(lengths: Tensor, steps: int) -> Tensor:
    """Which steps belong to a sequence, [T,N,1]."""
    times = torch.arange(steps, device=lengths.device)
    return (times[:, None] < lengths)[:, :, None]


def cleaned(source: Tensor, within: Tensor, bounded: bool) -> Tensor:
    """[T,N,F] with padding that a scan can read: zeros, or the numbers that are there.

    Padding of any moderate size does no harm to a ``bounded`` cell, so that the common case costs
    one look.
    """
    in_reach = source.device.type == "cpu" and not torch.compiler.is_compiling()
    if not in_reach or is_transformed():
        return source.masked_fill(~within, 0)
    if bounded and torch.linalg.vector_norm(source.detach()).item() < _MODERATE:
        return source
    rows = (~within).flatten().nonzero().squeeze(1)
    return source.flatten(0, 1).index_fill(0, rows, 0).view(source.shape)


def only_inside(steps: Tensor, within: Tensor) -> Tensor:
    """A scan's results [T,N,F] with zeros past each sequence's end."""
    return steps * within.to(steps.dtype)


def last_step(steps: Tensor, lengths: Tensor, first: Tensor | None) -> Tensor:
    """The state after each sequence's last step, [N,F]; ``first`` (or zero) where it is empty."""
    batch, width = steps.shape[1:]
    if steps.shape[0] == 0:
        return steps.new_zeros(batch, width) if first is None else first
    places = (lengths - 1).clamp(min=0).view(1, batch, 1).expand(1, batch, width)
    last = steps.gather(0, places)[0]
    empty = (lengths == 0)[:, None]
    return last.masked_fill(empty, 0) if first is None else torch.where(empty, first, last)


def turn(steps: Tensor, lengths: Tensor) -> Tensor:
    """Each sequence of [T,N,F] turned round within its length; the padding stays where it is."""
    count, batch, width = steps.shape
    times = torch.arange(count, device=steps.device)[:, None]
    turned = torch.where(times < lengths, lengths - 1 - times, times)  # [T,N]
    rows = (turned * batch + torch.arange(batch, device=steps.device)).flatten()
    flat = steps.reshape(count * batch, width)
    if torch.compiler.is_compiling() or is_transformed():
        return flat.index_select(0, rows).view(count, batch, width)
    permuted: Tensor = _Permuted.apply(flat, rows)
    return permuted.view(count, batch, width)


class _Permuted(torch.autograd.Function):
    """Rows in another order, by a permutation that undoes itself: so does its gradient.

    index_select's own gradient adds into zeros, which takes several times as long.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor) -> Tensor:
        ctx.save_for_backward(order)
        return rows.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (order,) = ctx.saved_tensors
        return _Permuted.apply(gradient, order), None
