"""torch.vmap over an operation: one more batch axis.

A forward operation whose weights are shared takes the new axis into N, in one call. If each
member of the batch has its own weights, or needs its own weight gradients, there is one call per
member: no engine computes several layers at once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..batching import fold
from ..descriptors import AnyDescriptor
from ..layout import batch_axes
from ..operations import Operation
from ..types import Shape
from .dispatch import Results, Tensors

Axes = tuple[int | None, ...]


def batched_call(
    operation: Operation,
    descriptor: AnyDescriptor,
    call: Callable[..., Results],
    size: int,
    axes: Axes,
    tensors: Tensors,
) -> tuple[Results, Axes]:
    """The results of ``call`` on tensors with a new axis of ``size`` where ``axes`` says so.

    Returns the results and where each has the new axis.
    """
    moved = [
        tensor if tensor is None or axis is None else tensor.movedim(axis, 0)
        for tensor, axis in zip(tensors, axes, strict=True)
    ]
    batched = [axis is not None for axis in axes]
    names = [name for name, there in zip(operation.inputs, batched, strict=True) if there]
    if not operation.is_gradient and set(names) <= set(batch_axes(operation)):
        given = dict(zip(operation.inputs, moved, strict=True))
        mask = _mask_shape(given, descriptor)
        results = call(*fold(operation, given, names, size, mask))
        return tuple(_unfolded(result, size, mask[1]) for result in results), tuple(
            1 if result.ndim == 3 else None for result in results
        )
    # Without members, one of zeros has the results' shapes.
    each = [
        call(*(_member(t, b, index) for t, b in zip(moved, batched, strict=True)))
        for index in range(max(size, 1))
    ]
    stacked = tuple(torch.stack(parts)[:size] for parts in zip(*each, strict=True))
    return stacked, (0,) * len(stacked)


def _member(tensor: Tensor | None, batched: bool, index: int) -> Tensor | None:
    if tensor is None or not batched:
        return tensor
    return tensor[index] if len(tensor) else tensor.new_zeros(tensor.shape[1:])


def _mask_shape(given: dict[str, Tensor | None], descriptor: AnyDescriptor) -> Shape:
    """[T,N,D·H] of one member."""
    source, weight = given["source"], given["recurrent_weight"]
    assert source is not None and weight is not None
    directions = 2 if descriptor.bidirectional else 1
    return (*source.shape[-3:-1], directions * descriptor.heads * weight.shape[-1])


def _unfolded(result: Tensor, size: int, batch: int) -> Tensor:
    """[T,B·N,X] to [T,B,N,X]; a result that was not produced stays as it is."""
    if result.ndim != 3:
        return result
    return result.reshape(result.shape[0], size, batch, result.shape[2])
