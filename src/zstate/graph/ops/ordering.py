"""Rows along one axis: the order of its elements, and their running sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...layout import TensorInfo
from .base import Attributes, Gradients, Infos, Op, axis_of, only, require_number, single, widened

if TYPE_CHECKING:
    from ...arrays import Namespace
    from ..graph import Graph
    from ..tensor import Node


def _order_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    require_number(label, "tensor", inputs[0])
    axis_of(label, "axis", attributes["axis"], len(inputs[0].shape))
    return only(TensorInfo(inputs[0].shape, "int32"))


def _order_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    axis = axis_of("arg_sort", "axis", attributes["axis"], len(inputs[0].shape))
    last = (inputs[0].shape[axis] or 0) - 1
    order, dtype, astype, flip = xp.argsort, xp.dtype("int32"), xp.astype, xp.flip
    if not attributes["descending"]:
        return lambda array: astype(order(array, axis), dtype)
    # Reversed before and after, so that equal elements keep their order.
    turn = (axis,)
    return lambda array: astype(last - flip(order(flip(array, turn), axis), turn), dtype)


def _sum_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    require_number(label, "tensor", inputs[0])
    axis_of(label, "axis", attributes["axis"], len(inputs[0].shape))
    return only(inputs[0])


def _sum_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    dtype = inputs[0].dtype
    axis = axis_of("cumulative_sum", "axis", attributes["axis"], len(inputs[0].shape))
    total, kind, astype = xp.cumsum, xp.dtype(dtype), xp.astype
    if dtype.startswith(("int", "uint")):  # libraries widen these on their own
        return lambda array: astype(total(array, axis), kind)
    return widened(xp, dtype, lambda array: total(array, axis))


def _sum_derivative(g: Graph, node: Node, gradients: Gradients, needs: list[bool]) -> Gradients:
    return [g.cumulative_sum(single(gradients), axis=node.attributes["axis"], reverse=True)]


ROWS = (
    Op("arg_sort", _order_infer, _order_prepare, kinds={"axis": "int", "descending": "bool"}),
    Op(
        "cumulative_sum",
        _sum_infer,
        _sum_prepare,
        _sum_derivative,
        kinds={"axis": "int"},
    ),
)
