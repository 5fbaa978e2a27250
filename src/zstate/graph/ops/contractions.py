"""Rows that sum: matrix multiplication and the reductions.

float16 and bfloat16 are storage: sums are taken in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...errors import ShapeError, refusal
from ...layout import TensorInfo, brackets
from .base import (
    Attributes,
    Infos,
    Op,
    axes_of,
    axis_of,
    broadcast_shapes,
    known,
    only,
    require_float,
    require_same_type,
    widened,
)
from .like import broadcast_like, mean_like, sum_like

if TYPE_CHECKING:
    from ...arrays import Namespace
    from ..graph import Graph
    from ..tensor import Node, Tensor

_OPERANDS = ("primary", "secondary")


def _matmul_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    require_same_type(label, _OPERANDS, inputs)
    require_float(label, "primary", inputs[0])
    for name, info in zip(_OPERANDS, inputs, strict=True):
        if len(info.shape) < 2:
            raise ShapeError(refusal(label, name, "[…,rows,columns]", brackets(info.shape)))
    (*batch, rows, inner), (*others, same, columns) = inputs[0].shape, inputs[1].shape
    if None not in (inner, same) and inner != same:
        expected = f"[…,{inner},columns] to follow primary {brackets(inputs[0].shape)}"
        raise ShapeError(refusal(label, "secondary", expected, brackets(inputs[1].shape)))
    shape = broadcast_shapes(label, _OPERANDS, [tuple(batch), tuple(others)])
    return only(TensorInfo((*shape, rows, columns), inputs[0].dtype))


def _matmul_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    primary, secondary = known(inputs[0].shape), known(inputs[1].shape)
    assert primary is not None and secondary is not None
    matmul: Callable[..., Any] = xp.matmul
    if len(primary) > 2 and len(secondary) == 2:
        # One product of all rows instead of one per batch entry.
        flat, full = (math.prod(primary[:-1]), primary[-1]), (*primary[:-1], secondary[-1])
        reshape, plain = xp.reshape, xp.matmul
        matmul = lambda a, b: reshape(plain(reshape(a, flat), b), full)  # noqa: E731
    return widened(xp, inputs[0].dtype, matmul)


def _swapped(g: Graph, tensor: Tensor) -> Tensor:
    rank = len(tensor.shape)
    return g.transpose(tensor, [*range(rank - 2), rank - 1, rank - 2])


def _matmul_derivative(
    g: Graph, node: Node, gradients: list[Tensor | None], needs: list[bool]
) -> list[Tensor | None]:
    (gradient,), (a, b) = gradients, node.inputs
    assert gradient is not None
    first = second = None
    if needs[0]:
        first = sum_like(g, g.matrix_multiplication(gradient, _swapped(g, b)), a)
    if needs[1]:
        inner, columns = b.shape[-2:]
        if len(b.shape) == 2 and inner is not None and columns is not None:
            # A weight: one product over all rows instead of a batch of products and a sum.
            a = g.reshape(a, (-1, inner))
            gradient = g.reshape(gradient, (-1, columns))
        second = sum_like(g, g.matrix_multiplication(_swapped(g, a), gradient), b)
    return [first, second]


# reductions: the reduced axes stay, with size 1


def _reduced(info: TensorInfo, attributes: Attributes, label: str) -> TensorInfo:
    axes = axes_of(label, attributes["axes"], len(info.shape))
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(info.shape))
    return TensorInfo(shape, info.dtype)


def _reduce_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    return only(_reduced(inputs[0], attributes, label))


def _mean_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    require_float(label, "tensor", inputs[0])
    return only(_reduced(inputs[0], attributes, label))


def _max_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    axes = axes_of(label, attributes["axes"], len(inputs[0].shape))
    if any(inputs[0].shape[axis] == 0 for axis in axes):
        got = brackets(inputs[0].shape)
        raise ShapeError(refusal(label, "tensor", "at least one element to reduce", got))
    return only(_reduced(inputs[0], attributes, label))


def _sum_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    axes = axes_of("reduction_sum", attributes["axes"], len(inputs[0].shape))
    total, dtype, astype = xp.sum, xp.dtype(inputs[0].dtype), xp.astype
    if inputs[0].dtype.startswith(("int", "uint", "bool")):  # libraries widen these on their own
        return lambda array: astype(total(array, axis=axes, keepdims=True), dtype)
    return widened(xp, inputs[0].dtype, lambda array: total(array, axis=axes, keepdims=True))


def _mean_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    axes = axes_of("mean", attributes["axes"], len(inputs[0].shape))
    shape = known(inputs[0].shape)
    assert shape is not None
    count = math.prod(shape[axis] for axis in axes)
    total = xp.sum
    return widened(
        xp, inputs[0].dtype, lambda array: total(array, axis=axes, keepdims=True) / count
    )


def _max_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    axes = axes_of("reduction_maximum", attributes["axes"], len(inputs[0].shape))
    largest = xp.max
    return lambda array: largest(array, axis=axes, keepdims=True)


def _sum_derivative(
    g: Graph, node: Node, gradients: list[Tensor | None], needs: list[bool]
) -> list[Tensor | None]:
    (gradient,) = gradients
    assert gradient is not None
    return [broadcast_like(g, gradient, node.inputs[0])]


def _mean_derivative(
    g: Graph, node: Node, gradients: list[Tensor | None], needs: list[bool]
) -> list[Tensor | None]:
    (gradient,) = gradients
    assert gradient is not None
    return [mean_like(g, gradient, node.inputs[0])]


def _max_derivative(
    g: Graph, node: Node, gradients: list[Tensor | None], needs: list[bool]
) -> list[Tensor | None]:
    """Equal largest elements share the gradient."""
    (gradient,), (tensor,), (result,) = gradients, node.inputs, node.results
    assert gradient is not None
    largest = g.cast(g.equal(tensor, result), tensor.dtype)
    count = g.reduction_sum(largest, axes=node.attributes["axes"])
    return [largest * (gradient / count)]


def _argmax_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    (info,) = inputs
    axis = axis_of(label, "axis", attributes["axis"], len(info.shape))
    if info.shape[axis] == 0:
        raise ShapeError(refusal(label, "tensor", "at least one element", brackets(info.shape)))
    return only(TensorInfo((*info.shape[:axis], 1, *info.shape[axis + 1 :]), "int32"))


def _argmax_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    axis = axis_of("argmax", "axis", attributes["axis"], len(inputs[0].shape))
    argmax, dtype, astype, expand = xp.argmax, xp.dtype("int32"), xp.astype, xp.expand_dims
    if inputs[0].dtype == "bool":  # torch has no order of bools
        return lambda array: expand(astype(argmax(astype(array, dtype), axis), dtype), axis=(axis,))
    return lambda array: expand(astype(argmax(array, axis), dtype), axis=(axis,))


_AXES = {"axes": "ints?"}
ROWS = (
    Op(
        "matrix_multiplication",
        _matmul_infer,
        _matmul_prepare,
        _matmul_derivative,
        operands=_OPERANDS,
    ),
    Op("reduction_sum", _reduce_infer, _sum_prepare, _sum_derivative, kinds=_AXES),
    Op("mean", _mean_infer, _mean_prepare, _mean_derivative, kinds=_AXES),
    Op("reduction_maximum", _max_infer, _max_prepare, _max_derivative, kinds=_AXES),
    Op("reduction_arg_maximum", _argmax_infer, _argmax_prepare, kinds={"axis": "int"}),
)
