"""Rows that sum: matrix multiplication and the reductions.

float16 and bfloat16 are storage: sums are taken in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...errors import DTypeError, ShapeError, refusal
from ...layout import TensorInfo, brackets
from .base import (
    Attributes,
    Gradients,
    Infos,
    Op,
    Prepare,
    axes_of,
    axis_of,
    broadcast_shapes,
    known,
    only,
    require_float,
    require_number,
    require_same_type,
    single,
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
    return matmul if xp.adds_widely else widened(xp, inputs[0].dtype, matmul)


def _swapped(g: Graph, tensor: Tensor) -> Tensor:
    rank = len(tensor.shape)
    return g.transpose(tensor, [*range(rank - 2), rank - 1, rank - 2])


def _matmul_derivative(g: Graph, node: Node, gradients: Gradients, needs: list[bool]) -> Gradients:
    gradient, (a, b) = single(gradients), node.inputs
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


# reductions: the reduced axes keep size 1


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


def _extreme_prepare(name: str) -> Prepare:
    def prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
        axes = axes_of("axes", attributes["axes"], len(inputs[0].shape))
        extreme = getattr(xp, name)
        return lambda array: extreme(array, axis=axes, keepdims=True)

    return prepare


def _product_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    require_number(label, "tensor", inputs[0])
    return only(_reduced(inputs[0], attributes, label))


def _product_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    axes = axes_of("axes", attributes["axes"], len(inputs[0].shape))
    product, dtype, astype = xp.prod, xp.dtype(inputs[0].dtype), xp.astype
    if inputs[0].dtype.startswith(("int", "uint")):  # libraries widen these on their own
        return lambda array: astype(product(array, axis=axes, keepdims=True), dtype)
    return widened(xp, inputs[0].dtype, lambda array: product(array, axis=axes, keepdims=True))


def _bool_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    if inputs[0].dtype != "bool":
        expected = "bool (graph.not_equal(tensor, 0) makes it)"
        raise DTypeError(refusal(label, "tensor", expected, inputs[0].dtype))
    return only(_reduced(inputs[0], attributes, label))


def _sum_derivative(g: Graph, node: Node, gradients: Gradients, needs: list[bool]) -> Gradients:
    return [broadcast_like(g, single(gradients), node.inputs[0])]


def _mean_derivative(g: Graph, node: Node, gradients: Gradients, needs: list[bool]) -> Gradients:
    return [mean_like(g, single(gradients), node.inputs[0])]


def _max_derivative(g: Graph, node: Node, gradients: Gradients, needs: list[bool]) -> Gradients:
    """Equal largest, or smallest, elements share the gradient."""
    gradient, (tensor,), (result,) = single(gradients), node.inputs, node.results
    largest = g.cast(g.equal(tensor, result), tensor.dtype)
    count = g.reduction_sum(largest, axes=node.attributes["axes"])
    return [largest * (gradient / count)]


def _product_derivative(g: Graph, node: Node, gradients: Gradients, needs: list[bool]) -> Gradients:
    """The product of the others, also where one of them, or the element itself, is 0."""
    gradient, (tensor,), axes = single(gradients), node.inputs, node.attributes["axes"]
    is_zero = g.equal(tensor, 0.0)
    zeros = g.reduction_sum(g.cast(is_zero, tensor.dtype), axes=axes)
    safe = g.select(is_zero, 1.0, tensor)
    rest = gradient * g.reduction_product(safe, axes=axes)
    alone = g.select(g.equal(zeros, 1.0), rest, 0.0)
    return [g.select(is_zero, alone, g.select(g.equal(zeros, 0.0), rest, 0.0) / safe)]


def _argmax_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    (info,) = inputs
    axis = axis_of(label, "axis", attributes["axis"], len(info.shape))
    if info.shape[axis] == 0:
        raise ShapeError(refusal(label, "tensor", "at least one element", brackets(info.shape)))
    return only(TensorInfo((*info.shape[:axis], 1, *info.shape[axis + 1 :]), "int32"))


def _place_prepare(name: str) -> Prepare:
    def prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
        axis = axis_of("axis", "axis", attributes["axis"], len(inputs[0].shape))
        place, dtype, astype, expand = (
            getattr(xp, name),
            xp.dtype("int32"),
            xp.astype,
            xp.expand_dims,
        )
        if inputs[0].dtype == "bool":  # torch does not order bools
            return lambda array: expand(
                astype(place(astype(array, dtype), axis), dtype), axis=(axis,)
            )
        return lambda array: expand(astype(place(array, axis), dtype), axis=(axis,))

    return prepare


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
    Op("reduction_maximum", _max_infer, _extreme_prepare("max"), _max_derivative, kinds=_AXES),
    Op("reduction_minimum", _max_infer, _extreme_prepare("min"), _max_derivative, kinds=_AXES),
    Op("reduction_product", _product_infer, _product_prepare, _product_derivative, kinds=_AXES),
    Op("reduction_and", _bool_infer, _extreme_prepare("all"), kinds=_AXES),
    Op("reduction_or", _bool_infer, _extreme_prepare("any"), kinds=_AXES),
    Op("reduction_arg_maximum", _argmax_infer, _place_prepare("argmax"), kinds={"axis": "int"}),
    Op("reduction_arg_minimum", _argmax_infer, _place_prepare("argmin"), kinds={"axis": "int"}),
)
