"""Rows that read no more than the shape of their last input.

Derivatives need them while a size is unknown: to sum over broadcast axes, to spread a sum, to
put a slice back. As soon as the shapes are known they become ordinary nodes (``lower``), when the
node is made or when the graph is compiled; no program ever evaluates one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...errors import ShapeError, refusal
from ...layout import TensorInfo, brackets
from ...types import PartialShape
from .base import Attributes, Infos, Op, agree, axis_of, known, only, require_float

if TYPE_CHECKING:
    from ..graph import Graph
    from ..tensor import Tensor


def _sum_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    tensor, like = inputs
    _check_broadcast(label, "like", like.shape, tensor.shape)
    return only(TensorInfo(like.shape, tensor.dtype))


def _broadcast_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    tensor, like = inputs
    _check_broadcast(label, "tensor", tensor.shape, like.shape)
    return only(TensorInfo(like.shape, tensor.dtype))


def _mean_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    require_float(label, "tensor", inputs[0])
    return _broadcast_infer(inputs, attributes, label)


def _reshape_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    tensor, like = inputs
    shape, target = known(tensor.shape), known(like.shape)
    if shape is not None and target is not None and math.prod(shape) != math.prod(target):
        expected = f"as many elements as {brackets(target)}"
        raise ShapeError(refusal(label, "tensor", expected, brackets(shape)))
    return only(TensorInfo(like.shape, tensor.dtype))


def _slice_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    tensor, like = inputs
    wanted = sliced(like.shape, attributes, label)
    if not agree(tensor.shape, wanted):
        raise ShapeError(refusal(label, "tensor", brackets(wanted), brackets(tensor.shape)))
    return only(TensorInfo(like.shape, tensor.dtype))


def _check_broadcast(label: str, name: str, small: PartialShape, large: PartialShape) -> None:
    """Whether the one shape broadcasts to the other, as far as their sizes are known."""
    fits = len(small) <= len(large) and all(
        a in (None, 1) or b in (None, a)
        for a, b in zip(reversed(small), reversed(large), strict=False)
    )
    if not fits:
        expected = f"a shape that broadcasts to {brackets(large)}"
        raise ShapeError(refusal(label, name, expected, brackets(small)))


def windows(attributes: Attributes) -> list[slice]:
    """The slice of each dimension."""
    names = ("starts", "ends", "strides")
    return [slice(*bounds) for bounds in zip(*(attributes[n] for n in names), strict=True)]


def sliced(shape: PartialShape, attributes: Attributes, label: str) -> PartialShape:
    """The shape of a slice, its bounds checked."""
    for name in ("starts", "ends", "strides"):
        if len(attributes[name]) != len(shape):
            expected = f"one number for each of {len(shape)} dimensions"
            raise ShapeError(refusal(label, name, expected, brackets(attributes[name])))
    if any(step < 1 for step in attributes["strides"]):
        raise ShapeError(refusal(label, "strides", "at least 1", brackets(attributes["strides"])))
    return tuple(
        _unknown_length(window) if size is None else len(range(*window.indices(size)))
        for size, window in zip(shape, windows(attributes), strict=True)
    )


def _unknown_length(window: slice) -> int | None:
    """The length of a slice of an unknown size, where the bounds tell it for any that fits."""
    start, stop, step = window.start, window.stop, window.step
    if (stop is not None and (start >= 0) == (stop >= 0)) or (stop is None and start < 0):
        return len(range(start, 0 if stop is None else stop, step))
    return None


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
    bounds = [window.indices(size) for window, size in zip(windows(attributes), whole, strict=True)]
    if all(step == 1 for _, _, step in bounds):
        left = [start for start, _, _ in bounds]
        right = [
            size - max(stop, start) for (start, stop, _), size in zip(bounds, whole, strict=True)
        ]
        return [g.pad_tensor(tensor, left, right)]
    return [g.add_node_named("put_slice", (tensor,), {**attributes, "shape": whole})]


def _concat_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    gradient, *parts = inputs
    axis = axis_of(label, "axis", attributes["axis"], len(gradient.shape))
    lengths = known(tuple(part.shape[axis] if part.shape else None for part in parts))
    for k, part in enumerate(parts):
        wanted = (*gradient.shape[:axis], None, *gradient.shape[axis + 1 :])
        if not agree(part.shape, wanted):
            expected, got = brackets(wanted), brackets(part.shape)
            raise ShapeError(refusal(label, f"tensors[{k}]", expected, got))
    if lengths is not None and gradient.shape[axis] not in (None, sum(lengths)):
        expected = f"{sum(lengths)} along axis {axis}"
        raise ShapeError(refusal(label, "gradient", expected, brackets(gradient.shape)))
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
SUM_LIKE = Op("sum_like", _sum_infer, lower=_lower_sum, operands=_OPERANDS, passive=(1,))
BROADCAST_LIKE = Op(
    "broadcast_like", _broadcast_infer, lower=_lower_broadcast, operands=_OPERANDS, passive=(1,)
)
RESHAPE_LIKE = Op(
    "reshape_like", _reshape_infer, lower=_lower_reshape, operands=_OPERANDS, passive=(1,)
)
MEAN_LIKE = Op("mean_like", _mean_infer, lower=_lower_mean, operands=_OPERANDS, passive=(1,))
SLICE_GRADIENT = Op(
    "slice_gradient",
    _slice_infer,
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
