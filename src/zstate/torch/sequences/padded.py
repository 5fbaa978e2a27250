"""Sequences of different lengths in one padded batch [T,N,…], padding and all.

For graphs and devices where reading the lengths would force a sync; elsewhere packed.py leaves the
padding out. Only finite padding reaches a scan, no gradient comes back from it, and the state after
a sequence's last step is taken at that step: so the padded run gives what each sequence alone would
give. The reverse direction reads each sequence turned round within its length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...cells.functions import may_grow
from ...descriptors import AnyDescriptor
from ...operations import Operation
from .. import operators
from ..dispatch import Tensors


class Padded:
    """N sequences of different lengths, each with T steps."""

    is_whole = False
    both_at_once = False  # the second direction turns the sequences round: a call of its own

    def __init__(self, lengths: Tensor, steps: int, resets: Tensor | None = None) -> None:
        self.resets = resets
        self.values: Mapping[str, Tensor] = {}
        times = torch.arange(steps, device=lengths.device)
        self._lengths = lengths  # [N]
        self._inside = (times[:, None] < lengths)[:, :, None]  # [T,N,1]

    def size(self, source: Tensor) -> tuple[int, int]:
        """T and N."""
        return source.shape[0], source.shape[1]

    def run(self, operation: Operation, tensors: Tensors, descriptor: AnyDescriptor) -> Any:
        """The operation's results."""
        if may_grow(descriptor.activations):
            # Not in the padding: there every step is a sequence of its own.
            *others, resets = tensors
            source = tensors[0]
            assert source is not None
            outside = (~self._inside).to(source.dtype)
            tensors = (*others, outside if resets is None else resets.maximum(outside))
        return operators.run(operation, tensors, descriptor, None)

    def only_inside(self, steps: Tensor) -> Tensor:
        """[T,N,F] with zeros past each sequence's end."""
        return steps.masked_fill(~self._inside, 0)

    def held(self, steps: Tensor) -> Tensor:
        """[T,N,F] with each sequence's last step in its padding, or 1 if it has no step: values
        per step that a cell can compute with."""
        times = torch.arange(steps.shape[0], device=steps.device)[:, None]
        places = times.minimum((self._lengths - 1).clamp(min=0))[:, :, None].expand(steps.shape)
        return steps.gather(0, places).masked_fill((self._lengths <= 0)[:, None], 1)

    def turn(self, steps: Tensor) -> Tensor:
        """Each sequence of [T,N,F] turned round within its length; the padding stays in place."""
        count, batch, width = steps.shape
        times = torch.arange(count, device=steps.device)[:, None]
        turned = torch.where(times < self._lengths, self._lengths - 1 - times, times)  # [T,N]
        rows = (turned * batch + torch.arange(batch, device=steps.device)).flatten()
        return steps.reshape(count * batch, width).index_select(0, rows).view(steps.shape)

    def last(self, steps: Tensor, first: Tensor | None) -> Tensor:
        """The state after each sequence's last step, [N,F]; ``first`` (or zero) of an empty one."""
        batch, width = steps.shape[1:]
        if steps.shape[0] == 0:
            return steps.new_zeros(batch, width) if first is None else first.clone()
        places = (self._lengths - 1).clamp(min=0).view(1, batch, 1).expand(1, batch, width)
        last = steps.gather(0, places)[0]
        empty = (self._lengths <= 0)[:, None]  # in a graph, a negative one was not refused
        return last.masked_fill(empty, 0) if first is None else torch.where(empty, first, last)
