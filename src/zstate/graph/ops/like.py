"""Rows that read no more than the shape of their last input.

Derivatives need them while a size is unknown: to sum over broadcast axes, to spread a sum, to
put a slice back. As soon as the shapes are known they become ordinary nodes (``lower``), when the
node is made or when the graph is compiled; no program ever evaluates one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...layout import TensorInfo
from .base import Attributes, Infos, Op, known, only

if TYPE_CHECKING:
    from ..graph import Graph
    from ..tensor import Tensor


def _as_like(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    return only(TensorInfo(inputs[-1].shape, inputs[0].dtype))


def _build(
    g: Graph, op: Op, inputs: Sequence[Tensor], attributes: Attributes | None = None
) -> list[Tensor]:
    """The lowered nodes if the shapes are known by now, else the row itself."""
    assert op.lower is not None
    found = op.lower(g, inputs, attributes or {})
    return found if found is not None else g.add_node(op, tuple(inputs), attributes or {}, None)


def sum_like(g: Graph, tensor: Tensor, like: Tensor) -> Tensor:
    """The tensor summed over the axes along which ``like`` broadcasts to it."""
    return _build(g, SUM_LIKE, (tensor, like))[0]


def broadcast_like(g: Graph, tensor: Tensor, like: Tensor) -> Tensor:
    return _build(g, BROADCAST_LIKE, (tensor, like))[0]


def reshape_like(g: Graph, tensor: Tensor, like: Tensor) -> Tensor:
    return _build(g, RESHAPE_LIKE, (tensor, like))[0]


def mean_like(g: Graph, tensor: Tensor, like: Tensor) -> Tensor:
    """The gradient of a mean spread over what it is the mean of."""
    return _build(g, MEAN_LIKE, (tensor, like))[0]


def zeros_like(g: Graph, like: Tensor) -> Tensor:
    return broadcast_like(g, g.constant(0.0, dtype=like.dtype), like)


def ones_like(g: Graph, like: Tensor) -> Tensor:
    return broadcast_like(g, g.constant(1.0, dtype=like.dtype), like)


def _lower_sum(g: Graph, inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor] | None:
    tensor, like = inputs
    if tensor.shape == like.shape and None not in tensor.shape:
        return [tensor]
    target, shape = known(like.shape), known(tensor.shape)
    if target is None or shape is None:
        return None
    padded = (1,) * (len(shape) - len(target)) + target
    axes = [k for k, size in enumerate(padded) if size == 1 and shape[k] != 1]
    found = g.reduction_sum(tensor, axes=axes) if axes else tensor
    return [g.reshape(found, target) if found.shape != target else found]


def _lower_broadcast(
    g: Graph, inputs: Sequence[Tensor], attributes: Attributes
) -> list[Tensor] | None:
    tensor, like = inputs
    target = known(like.shape)
    if target is None:
        return None
    return [tensor if tensor.shape == target else g.broadcast(tensor, target)]


def _lower_reshape(
    g: Graph, inputs: Sequence[Tensor], attributes: Attributes
) -> list[Tensor] | None:
    tensor, like = inputs
    target = known(like.shape)
    return None if target is None else [g.reshape(tensor, target)]


def _lower_mean(g: Graph, inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor] | None:
    tensor, like = inputs
    whole, part = known(like.shape), known(tensor.shape)
    if whole is None or part is None:
        return None
    count = math.prod(whole) // max(math.prod(part), 1)
    return [g.broadcast(tensor * (1.0 / max(count, 1)), whole)]


def _lower_slice(g: Graph, inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor] | None:
    tensor, like = inputs
    whole = known(like.shape)
    if whole is None:
        return None
    starts, ends, strides = (attributes[name] for name in ("starts", "ends", "strides"))
    windows = [
        slice(*bounds).indices(size)
        for *bounds, size in zip(starts, ends, strides, whole, strict=True)
    ]
    if all(step == 1 for _, _, step in windows):
        left = [start for start, _, _ in windows]
        right = [
            size - max(stop, start) for (start, stop, _), size in zip(windows, whole, strict=True)
        ]
        return [g.pad_tensor(tensor, left, right)]
    return [g.add_node_named("put_slice", (tensor,), {**attributes, "shape": whole})]


def _concat_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    gradient, *parts = inputs
    return {str(k): TensorInfo(part.shape, gradient.dtype) for k, part in enumerate(parts)}


def _lower_concat(
    g: Graph, inputs: Sequence[Tensor], attributes: Attributes
) -> list[Tensor] | None:
    gradient, *parts = inputs
    axis = attributes["axis"]
    sizes = known(tuple(part.shape[axis] for part in parts))
    return None if sizes is None else g.split(gradient, sizes, axis=axis)


def slice_gradient(g: Graph, gradient: Tensor, like: Tensor, attributes: Attributes) -> Tensor:
    """The gradient of a slice, in zeros of the shape of what was sliced."""
    return _build(g, SLICE_GRADIENT, (gradient, like), attributes)[0]


def concat_gradient(g: Graph, gradient: Tensor, parts: Sequence[Tensor], axis: int) -> list[Tensor]:
    """The gradient of a concatenation, cut as its inputs were."""
    return _build(g, CONCAT_GRADIENT, (gradient, *parts), {"axis": axis})


_OPERANDS = ("tensor", "like")
SUM_LIKE = Op("sum_like", _as_like, lower=_lower_sum, operands=_OPERANDS, passive=(1,))
BROADCAST_LIKE = Op(
    "broadcast_like", _as_like, lower=_lower_broadcast, operands=_OPERANDS, passive=(1,)
)
RESHAPE_LIKE = Op("reshape_like", _as_like, lower=_lower_reshape, operands=_OPERANDS, passive=(1,))
MEAN_LIKE = Op("mean_like", _as_like, lower=_lower_mean, operands=_OPERANDS, passive=(1,))
SLICE_GRADIENT = Op(
    "slice_gradient",
    _as_like,
    lower=_lower_slice,
    operands=_OPERANDS,
    passive=(1,),
    kinds={"starts": "ints", "ends": "bounds", "strides": "ints"},
)
CONCAT_GRADIENT = Op(
    "concat_gradient",
    _concat_infer,
    lower=_lower_concat,
    operands=("gradient", "tensors"),
    kinds={"axis": "int"},
)
ROWS = (SUM_LIKE, BROADCAST_LIKE, RESHAPE_LIKE, MEAN_LIKE, SLICE_GRADIENT, CONCAT_GRADIENT)
