"""Sequences of different lengths without computing the padding: longest first, in segments.

With the sequences sorted by length, the steps fall into segments of a constant batch: the whole
batch up to about the end of the shortest sequence, then without it, and so on. A segment costs a
call and one look at the weights, so there are few of them, and each carries a little padding. Which
row of the input a step reads is an index; the reverse direction is another index.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

# What a segment costs beside its rows, in rows: packing the weights, adding up their gradients.
_SEGMENT = 24.0
# And the time of a call, in multiply-adds of the engine.
_CALL = 1e6


class Plan(NamedTuple):
    """How a padded batch [T,N,…] is cut; M rows are computed."""

    rows: Tensor  # [M]: the row of [T·N,…] that each computed row reads
    targets: Tensor  # [M]: the row that gets its result; T·N for one past its sequence's end
    ends: Tensor  # [N]: the computed row of each sequence's last step; 0 for an empty one
    order: Tensor  # [N]: the sequences, longest first
    shapes: list[tuple[int, int]]  # steps and sequences of each segment


def cut(lengths: Tensor, steps: int, backwards: bool, work: float) -> Plan:
    """A plan; ``work`` is the multiply-adds of one row."""
    known: Any = lengths.numpy()
    batch = len(known)
    order = np.argsort(-known, kind="stable")
    sizes = (known[:, None] > np.arange(int(known.max(initial=0)))).sum(0)  # of the batch, by step
    pieces: list[Any] = []
    shapes = []
    starts = [*_starts(sizes, _SEGMENT + _CALL / work), len(sizes)]
    for start, stop in pairwise(starts):
        sequences = order[: sizes[start]]
        times, long = np.arange(start, stop)[:, None], known[sequences]
        places = (long - 1 - times if backwards else times) * batch + sequences
        pieces.append(np.where(times < long, places, steps * batch).ravel())
        shapes.append((stop - start, len(sequences)))
    targets = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
    # A row past the end reads the longest sequence's first step: any numbers that are real will do.
    rows = np.where(targets < steps * batch, targets, order[0] if batch else 0)
    ends = _ends(known, order, shapes)
    tensors = [torch.from_numpy(array) for array in (rows, targets, ends, order)]
    return Plan(tensors[0], tensors[1], tensors[2], tensors[3], shapes)


def _starts(sizes: Any, cost: float) -> list[int]:
    """Where segments begin: anew when the padding of one would cost more than another segment."""
    starts, padding = [0] if len(sizes) else [], 0.0
    for step, size in enumerate(sizes):
        padding += sizes[starts[-1]] - size
        if padding > cost:
            starts.append(step)
            padding = 0.0
    return starts


def _ends(lengths: Any, order: Any, shapes: list[tuple[int, int]]) -> Any:
    """The computed row of each sequence's last step."""
    ends = np.zeros(len(lengths), np.int64)
    place = {int(sequence): k for k, sequence in enumerate(order)}
    step, row = 0, 0
    for count, batch in shapes:
        inside = (lengths > step) & (lengths <= step + count)
        for sequence in np.flatnonzero(inside):
            ends[sequence] = row + (lengths[sequence] - 1 - step) * batch + place[int(sequence)]
        step, row = step + count, row + count * batch
    return ends


def take(source: Tensor, plan: Plan) -> list[Tensor]:
    """[T,N,F] as segments [steps, sequences, F]."""
    data = source.flatten(0, 1).index_select(0, plan.rows)
    parts = data.split([steps * batch for steps, batch in plan.shapes])
    return [part.view(*shape, -1) for part, shape in zip(parts, plan.shapes, strict=True)]


def put(data: Tensor, plan: Plan, steps: int, batch: int) -> Tensor:
    """The computed rows [M,F] as [T,N,F], zero past each sequence's end."""
    padded = data.new_zeros(steps * batch + 1, data.shape[1])
    return padded.index_copy(0, plan.targets, data)[:-1].view(steps, batch, -1)


def last(data: Tensor, plan: Plan, lengths: Tensor, first: Tensor | None) -> Tensor:
    """The state after each sequence's last step [N,F]; ``first`` (or zero) where it is empty."""
    empty = (lengths == 0)[:, None]
    if not data.shape[0]:
        found = data.new_zeros(len(lengths), data.shape[1])
    else:
        found = data.index_select(0, plan.ends)
    return found.masked_fill(empty, 0) if first is None else torch.where(empty, first, found)
