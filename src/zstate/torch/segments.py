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


class Rows(NamedTuple):
    """Where the steps of N sequences lie among the rows of a batch: starts[t] + n."""

    lengths: Tensor  # [N]
    starts: Any  # [T]
    whole: int  # how many rows there are


def padded_rows(lengths: Tensor, steps: int) -> Rows:
    """Of [T,N,…] with its first two axes taken together."""
    batch = len(lengths)
    return Rows(lengths, np.arange(steps) * batch, steps * batch)


def packed_rows(batch_sizes: Tensor) -> Rows:
    """Of a PackedSequence's data; longest first."""
    sizes: Any = batch_sizes.numpy()
    lengths = (sizes[:, None] > np.arange(sizes[0])).sum(0)
    return Rows(torch.from_numpy(lengths), np.cumsum(sizes) - sizes, int(sizes.sum()))


class Plan(NamedTuple):
    """How a batch is cut; M rows are computed."""

    rows: Tensor  # [M]: the row of the batch that each computed row reads
    targets: Tensor  # [M]: the row that gets its result; ``whole`` for one past its sequence's end
    ends: Tensor  # [N]: the computed row of each sequence's last step; 0 for an empty one
    order: Tensor  # [N]: the sequences, longest first
    shapes: list[tuple[int, int]]  # steps and sequences of each segment
    whole: int  # rows of the batch


def cut(batch: Rows, backwards: bool, work: float) -> Plan:
    """A plan; ``work`` is the multiply-adds of one row."""
    known: Any = batch.lengths.numpy()
    order = np.argsort(-known, kind="stable")
    sizes = (known[:, None] > np.arange(int(known.max(initial=0)))).sum(0)  # of the batch, by step
    pieces: list[Any] = []
    shapes = []
    starts = [*_starts(sizes, _SEGMENT + _CALL / work), len(sizes)]
    for start, stop in pairwise(starts):
        sequences = order[: sizes[start]]
        times, long = np.arange(start, stop)[:, None], known[sequences]
        inside = times < long
        read = np.where(inside, long - 1 - times if backwards else times, 0)
        pieces.append(np.where(inside, batch.starts[read] + sequences, batch.whole).ravel())
        shapes.append((stop - start, len(sequences)))
    targets = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
    # A row past the end reads the longest sequence's first step: any numbers that are real will do.
    rows = np.where(targets < batch.whole, targets, order[0] if len(order) else 0)
    ends = _ends(known, order, shapes)
    tensors = [torch.from_numpy(array) for array in (rows, targets, ends, order)]
    return Plan(tensors[0], tensors[1], tensors[2], tensors[3], shapes, batch.whole)


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
    """Rows [.,F] as segments [steps, sequences, F]."""
    parts = source.index_select(0, plan.rows).split([steps * n for steps, n in plan.shapes])
    return [part.view(*shape, -1) for part, shape in zip(parts, plan.shapes, strict=True)]


def put(data: Tensor, plan: Plan) -> Tensor:
    """The computed rows [M,F] as rows of the batch, zero past each sequence's end."""
    padded = data.new_zeros(plan.whole + 1, data.shape[1])
    return padded.index_copy(0, plan.targets, data)[:-1]


def last(data: Tensor, plan: Plan, lengths: Tensor, first: Tensor | None) -> Tensor:
    """The state after each sequence's last step [N,F]; ``first`` (or zero) where it is empty."""
    empty = (lengths == 0)[:, None]
    if not data.shape[0]:
        found = data.new_zeros(len(lengths), data.shape[1])
    else:
        found = data.index_select(0, plan.ends)
    return found.masked_fill(empty, 0) if first is None else torch.where(empty, first, found)
