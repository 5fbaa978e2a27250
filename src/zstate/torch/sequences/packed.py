"""Sequences of different lengths without their padding, on the CPU: rows as in a PackedSequence.

N sequences, longest first. Their rows are all first steps, then all second ones, and so on; M rows
in all, batch_sizes[t] of them for step t. The native engine computes them in one call. What it
cannot (gradients of gradients), the operators compute sequence by sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...backends import native
from ...descriptors import AnyDescriptor
from ...layout import Layout, batch_axes
from ...operations import OPERATIONS, Operation, operations_of
from .. import dispatch, operators
from ..autograd import Recorded
from ..descriptor_text import trained
from ..dispatch import (
    Results,
    Route,
    Tensors,
    cast,
    engine_gives_gradients,
    values_are_hidden,
)
from ..gradient_pairs import pair_of
from ..tensors import compute_packed


class Packed:
    """How N sequences, longest first, lie in M rows."""

    is_whole = False
    both_at_once = True

    def __init__(self, sizes: tuple[int, ...], resets: Tensor | None = None) -> None:
        self.sizes = sizes  # [T], of the batch
        self.resets = resets  # [M,D]
        self.values: Mapping[str, Tensor] = {}  # [M,F]
        # How many steps each sequence has, [N], and the first row of each step, [T].
        self._lengths: Any = (np.array(sizes)[:, None] > np.arange(sizes[0])).sum(0)
        self._starts: Any = np.cumsum(sizes) - sizes

    @property
    def lengths(self) -> Tensor:
        """[N]"""
        return torch.from_numpy(self._lengths)

    def size(self, source: Tensor) -> tuple[int, int]:
        """T and N."""
        return len(self.sizes), self.sizes[0]

    @cached_property
    def _ends(self) -> Tensor:
        """The row of each sequence's last step, [N]."""
        rows = self._starts[self._lengths - 1] + np.arange(self.sizes[0])
        return torch.from_numpy(rows)

    @cached_property
    def _turned(self) -> Tensor:
        """The row that takes each row's place when every sequence is reversed, [M]."""
        steps = np.repeat(np.arange(len(self.sizes)), self.sizes)
        places = np.arange(len(steps)) - self._starts[steps]  # which sequence
        return torch.from_numpy(self._starts[self._lengths[places] - 1 - steps] + places)

    def run(self, operation: Operation, tensors: Tensors, descriptor: AnyDescriptor) -> Any:
        """The operation's results, at least those asked for; source, state and cell [M,·]."""
        tensors = cast(tensors)
        route = dispatch.choose("packed", tensors)
        if route is Route.ENGINE:
            return compute_packed(operation, tensors, descriptor, self.sizes)
        step = PackedStep(operation, descriptor, self.sizes)
        if route is Route.RECORDED:
            return Recorded.apply(step, *tensors)
        return step.differentiable(*tensors)

    def turn(self, rows: Tensor) -> Tensor:
        """Each sequence turned round."""
        return rows.index_select(0, self._turned)

    def last(self, rows: Tensor, first: Tensor | None) -> Tensor:
        """The state after each sequence's last step, [N,F]."""
        return rows.index_select(0, self._ends)


class Order(NamedTuple):
    """Where sequences of a padded batch [T,N,…] lie in the packed one, which has no empty ones."""

    sequences: Tensor  # [N'], longest first
    rows: Tensor  # [M], of the padded batch with its first two axes taken together


def serves(operation: Operation, descriptor: AnyDescriptor, resets: bool, *tensors: Tensor) -> bool:
    """Whether the engine can take them, and their lengths can be read, now."""
    if values_are_hidden() or native.unavailable() is not None:
        return False
    if not all(tensor.device.type == "cpu" for tensor in tensors):
        return False
    return operation.key in OPERATIONS or _engine_has(operation, trained(descriptor), resets)


@lru_cache(maxsize=256)
def _engine_has(operation: Operation, descriptor: AnyDescriptor, resets: bool) -> bool:
    """Whether the engine computes a cell from equations, and its gradients."""
    without = {"mask"} if resets else {"mask", "resets"}
    layouts = [
        Layout(
            each, descriptor, "float64", dict.fromkeys("TNIH", 1), frozenset(each.inputs) - without
        )
        for each in operations_of(operation.cell)
    ]
    return all(native.refuses(layout) is None for layout in layouts)


def from_lengths(lengths: Tensor, resets: Tensor | None = None) -> tuple[Packed, Order] | None:
    """Of lengths [N] in any order, and resets [T,N,D]; None if there is not a single step."""
    known: Any = lengths.numpy()
    order = np.argsort(-known, kind="stable")[: np.count_nonzero(known)]
    if not len(order):
        return None
    there = np.arange(known[order[0]])[:, None] < known[order]  # [T,N']
    steps, places = np.nonzero(there)
    rows = torch.from_numpy(steps * len(known) + order[places])
    own = None if resets is None else resets.flatten(0, 1).index_select(0, rows)
    return Packed(tuple(there.sum(1).tolist()), own), Order(torch.from_numpy(order), rows)


@dataclass(slots=True, eq=False)
class PackedStep:
    """A packed call as a step of autograd."""

    operation: Operation
    descriptor: AnyDescriptor
    sizes: tuple[int, ...]

    def compute(self, tensors: Tensors) -> tuple[Results, list[Tensor | None]]:
        results = compute_packed(self.operation, tensors, trained(self.descriptor), self.sizes)
        return operators.complete(results), pair_of(self.operation).kept(results)

    def serves(self, needed: Sequence[bool], incoming: Tensors) -> bool:
        return engine_gives_gradients(incoming)

    def gradients(self, tensors: Tensors, kept: Tensors, incoming: Tensors) -> list[Tensor | None]:
        """By the gradient operation."""
        pair = pair_of(self.operation)
        inputs = pair.inputs(tensors, kept, incoming)
        gradients = compute_packed(pair.gradient, inputs, self.descriptor, self.sizes)
        return pair.by_input(gradients, len(tensors))

    def differentiable(self, *tensors: Tensor | None) -> Tensors:
        """Sequence by sequence: what packing means, and differentiable to any order."""
        operation = self.operation
        starts = [0, *accumulate(self.sizes)]
        order: list[int] = []
        each: list[Any] = []
        for n in range(self.sizes[0]):
            rows = [start + n for start, size in zip(starts, self.sizes, strict=False) if n < size]
            order += rows
            own = [
                _of_sequence(operation, name, tensor, n, rows)
                for name, tensor in zip(operation.inputs, tensors, strict=True)
            ]
            each.append(operators.run(operation, tuple(own), self.descriptor, None))
        back = torch.tensor(order).argsort()
        joined: list[Tensor | None] = []
        for parts in zip(*each, strict=True):
            there = [part.squeeze(1) for part in parts if part is not None]
            joined.append(torch.cat(there).index_select(0, back) if there else None)
        return tuple(joined)


def _of_sequence(
    operation: Operation, name: str, tensor: Tensor | None, n: int, rows: list[int]
) -> Tensor | None:
    """One sequence's part of an input."""
    if tensor is None:
        return None
    if name in ("source", "resets"):
        return tensor.index_select(0, torch.tensor(rows)).unsqueeze(1)
    if name == "mask":
        return tensor[: len(rows), n : n + 1]
    return tensor[n : n + 1] if batch_axes(operation).get(name) == 0 else tensor
