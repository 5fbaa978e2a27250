"""Sequences of different lengths in one padded batch [T,N,…], padding and all.

For graphs and devices where nobody can look at the lengths now; where one can, segments.py leaves
the padding out. Nothing but finite padding reaches a scan, no gradient comes back from it, and the
state after a sequence's last step is taken where it stands: so the padded run gives what each
sequence alone would give. The reverse direction reads each sequence turned round within its length.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import DTypeError, ShapeError, refusal
from .operators import is_transformed


def in_reach(tensor: Tensor) -> bool:
    """Whether its lengths can be looked at now, without waiting and outside of a graph."""
    cpu = tensor.device.type == "cpu"
    return cpu and not torch.compiler.is_compiling() and not is_transformed()


def check_lengths(module: str, lengths: Tensor, steps: int, batch: int) -> None:
    """Refuse lengths that do not fit the batch; their values only where that costs no waiting."""
    if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
        raise DTypeError(refusal(module, "lengths", "whole numbers", str(lengths.dtype)))
    if lengths.shape != (batch,):
        found = ",".join(map(str, lengths.shape))
        raise ShapeError(refusal(module, "lengths", f"[N] = [{batch}]", f"[{found}]"))
    if not in_reach(lengths) or not batch:
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


def only_inside(steps: Tensor, within: Tensor) -> Tensor:
    """[T,N,F] with zeros past each sequence's end."""
    return steps.masked_fill(~within, 0)


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
    return steps.reshape(count * batch, width).index_select(0, rows).view(steps.shape)
