"""Sequences of different lengths without their padding, on the CPU: rows as in a PackedSequence.

N sequences, longest first. Their rows are all first steps, then all second ones, and so on; M rows
in all, of which batch_sizes[t] belong to step t. The native engine computes them in one call. What
it does not give (gradients of gradients) comes sequence by sequence from the operators.
"""

from __future__ import annotations

from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..backends import native
from ..descriptors import AnyDescriptor
from ..operations import Operation
from . import operators
from .dispatch import (
    Results,
    Tensors,
    are_plain,
    cast,
    is_batched,
    is_plain,
    is_transformed,
    is_watched,
    needs_gradient,
)
from .options import decode, text_of
from .routes import ROUTES, pulled
from .tensors import compute_packed, pack_rows, unpack_rows


class Packed:
    """How N sequences, longest first, lie in M rows."""

    joint = True  # one call for both directions of a layer

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes  # [T], of the batch
        # How many steps each sequence has, [N], and the first row of each step, [T].
        self._lengths: Any = (np.array(sizes)[:, None] > np.arange(sizes[0])).sum(0)
        self._starts: Any = np.cumsum(sizes) - sizes

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
        """The row that comes in each row's place when every sequence is turned round, [M]."""
        steps = np.repeat(np.arange(len(self.sizes)), self.sizes)
        places = np.arange(len(steps)) - self._starts[steps]  # which sequence
        return torch.from_numpy(self._starts[self._lengths[places] - 1 - steps] + places)

    def run(self, operation: Operation, tensors: Tensors, descriptor: AnyDescriptor) -> Any:
        """The operation's results, at least those asked for; source, state and cell [M,·]."""
        tensors = cast(tensors)
        if not is_plain(tensors):
            return one_by_one(operation, tensors, descriptor, self.sizes)
        if not needs_gradient(tensors):
            return compute_packed(operation, tensors, descriptor, self.sizes)
        return _Recorded.apply(operation, descriptor, self.sizes, *tensors)

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


def serves(*tensors: Tensor) -> bool:
    """Whether the engine can take them, and their lengths can be looked at, now."""
    if native.unavailable() is not None or torch.compiler.is_compiling():
        return False
    return not is_transformed() and all(tensor.device.type == "cpu" for tensor in tensors)


def from_lengths(lengths: Tensor) -> tuple[Packed, Order] | None:
    """Of lengths [N] in any order; None if there is not a single step."""
    known: Any = lengths.numpy()
    order = np.argsort(-known, kind="stable")[: np.count_nonzero(known)]
    if not len(order):
        return None
    there = np.arange(known[order[0]])[:, None] < known[order]  # [T,N']
    steps, places = np.nonzero(there)
    return Packed(tuple(there.sum(1).tolist())), Order(
        torch.from_numpy(order), torch.from_numpy(steps * len(known) + order[places])
    )


def pack(padded: Tensor, order: Order) -> Tensor:
    """[M,F] from [T,N,F]."""
    found: Tensor = _Pack.apply(padded, order.rows)
    return found


def unpack(data: Tensor, order: Order, steps: int, batch: int) -> Tensor:
    """[T,N,F] from [M,F], with zeros in the padding."""
    found: Tensor = _Unpack.apply(data, order.rows, steps, batch)
    return found


def _take(padded: Tensor, rows: Tensor) -> Tensor:
    if _is_ours(padded):
        return pack_rows(padded, rows)
    steps, batch, width = padded.shape
    return padded.reshape(steps * batch, width).index_select(0, rows)


def _put(data: Tensor, rows: Tensor, steps: int, batch: int) -> Tensor:
    if _is_ours(data):
        return unpack_rows(data, rows, steps, batch)
    zeros = data.new_zeros(steps * batch, data.shape[1])
    return zeros.index_copy(0, rows, data).view(steps, batch, data.shape[1])


def _is_ours(tensor: Tensor) -> bool:
    """Whether nobody wants to see how rows are moved: to differentiate it, or several at once."""
    plain = not torch.is_grad_enabled() and not is_watched() and are_plain((tensor,))
    return plain and not is_batched(tensor)


class _Pack(torch.autograd.Function):
    """Rows of padded sequences. torch's own derivative adds where setting is enough."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, rows: Tensor) -> Tensor:
        ctx.rows, ctx.size = rows, padded.shape[:2]
        return _take(padded, rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _put(gradient, ctx.rows, *ctx.size), None


class _Unpack(torch.autograd.Function):
    """The same the other way round. torch's own derivative copies what is set before it is set."""

    @staticmethod
    def forward(ctx: Any, data: Tensor, rows: Tensor, steps: int, batch: int) -> Tensor:
        ctx.rows = rows
        return _put(data, rows, steps, batch)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _take(gradient, ctx.rows), None, None, None


class _Recorded(torch.autograd.Function):
    """An operation that autograd records."""

    @staticmethod
    def forward(
        ctx: Any,
        operation: Operation,
        descriptor: AnyDescriptor,
        sizes: tuple[int, ...],
        *tensors: Tensor | None,
    ) -> Results:
        trained = decode(operation, text_of(descriptor, True))
        results = operators.complete(compute_packed(operation, tensors, trained, sizes))
        ctx.operation, ctx.descriptor, ctx.sizes = operation, descriptor, sizes
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *ROUTES[operation.name].kept(results))
        return results

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        operation: Operation = ctx.operation
        count = len(operation.inputs)
        saved = ctx.saved_tensors  # once: a checkpoint computes them again
        tensors, results = saved[:count], saved[count:]
        needed = ctx.needs_input_grad[3:]
        if all(gradient is None for gradient in incoming):
            return (None,) * (count + 3)
        # Somebody wants gradients of these gradients, or several of them at once.
        if torch.is_grad_enabled() or any(map(is_batched, incoming)):

            def function(*moved: Tensor | None) -> tuple[Tensor | None, ...]:
                return one_by_one(operation, moved, ctx.descriptor, ctx.sizes)

            found = pulled(function, tensors, needed, incoming)
        else:
            found = _gradients(ctx, tensors, results, incoming)
        kept = [gradient if need else None for gradient, need in zip(found, needed, strict=True)]
        return None, None, None, *kept


def _gradients(
    ctx: Any, tensors: Tensors, results: Tensors, incoming: Tensors
) -> list[Tensor | None]:
    """By the engine."""
    route = ROUTES[ctx.operation.name]
    inputs = route.inputs(tensors, results, incoming)
    found = compute_packed(route.gradient, inputs, ctx.descriptor, ctx.sizes)
    return route.by_input(found, len(tensors))


def one_by_one(
    operation: Operation, tensors: Tensors, descriptor: AnyDescriptor, sizes: tuple[int, ...]
) -> tuple[Tensor | None, ...]:
    """The same sequence by sequence: what packing means, and differentiable to any order."""
    starts = [0, *accumulate(sizes)]
    order: list[int] = []
    found: list[Any] = []
    for n in range(sizes[0]):
        rows = [start + n for start, size in zip(starts, sizes, strict=False) if n < size]
        order += rows
        own = [
            _of_sequence(name, tensor, n, rows)
            for name, tensor in zip(operation.inputs, tensors, strict=True)
        ]
        found.append(operators.run(operation, tuple(own), descriptor, None))
    back = torch.tensor(order).argsort()
    joined: list[Tensor | None] = []
    for parts in zip(*found, strict=True):
        there = [part.squeeze(1) for part in parts if part is not None]
        joined.append(torch.cat(there).index_select(0, back) if there else None)
    return tuple(joined)


def _of_sequence(name: str, tensor: Tensor | None, n: int, rows: list[int]) -> Tensor | None:
    """One sequence's part of an input."""
    if tensor is None:
        return None
    if name == "source":
        return tensor.index_select(0, torch.tensor(rows)).unsqueeze(1)
    if name in ("init_state", "init_cell"):
        return tensor[n : n + 1]
    if name == "mask":
        return tensor[: len(rows), n : n + 1]
    return tensor
