"""Rows of the softmax and of its cross entropy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...errors import OptionError, ShapeError, refusal
from ...layout import TensorInfo, brackets
from .base import (
    Attributes,
    Gradients,
    Infos,
    Op,
    agree,
    axis_of,
    known,
    only,
    require_float,
    require_same_type,
    single,
    wide,
    widened,
)

if TYPE_CHECKING:
    from ...arrays import Namespace
    from ..graph import Graph
    from ..tensor import Node

REDUCTIONS = ("none", "sum", "mean")


def _softmax_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    require_float(label, "tensor", inputs[0])
    _check_classes(label, "tensor", inputs[0], attributes)
    return only(inputs[0])


def _check_classes(label: str, name: str, info: TensorInfo, attributes: Attributes) -> int:
    """The axis, counted from the front; it must have something to take the largest of."""
    axis = axis_of(label, "axis", attributes["axis"], len(info.shape))
    if info.shape[axis] == 0:
        expected = f"at least one element along axis {axis}"
        raise ShapeError(refusal(label, name, expected, brackets(info.shape)))
    return axis


def _shifted(xp: Namespace, array: Any, axis: int) -> Any:
    """The array minus its largest element along the axis, so that exp cannot overflow."""
    return array - xp.max(array, axis=(axis,), keepdims=True)


def _softmax(xp: Namespace, array: Any, axis: int) -> Any:
    raised = xp.exp(_shifted(xp, array, axis))
    raised /= xp.sum(raised, axis=(axis,), keepdims=True)
    return raised


def _softmax_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    axis = attributes["axis"] % len(inputs[0].shape)
    return widened(xp, inputs[0].dtype, lambda array: _softmax(xp, array, axis))


def _softmax_derivative(g: Graph, node: Node, gradients: Gradients, needs: list[bool]) -> Gradients:
    gradient, (y,) = single(gradients), node.results
    inner = g.reduction_sum(gradient * y, axes=[node.attributes["axis"]])
    return [y * (gradient - inner)]


def _loss_shape(info: TensorInfo, attributes: Attributes, label: str) -> TensorInfo:
    axis = _check_classes(label, "source", info, attributes)
    if attributes["reduction"] not in REDUCTIONS:
        expected = "one of " + ", ".join(REDUCTIONS)
        raise OptionError(refusal(label, "reduction", expected, repr(attributes["reduction"])))
    if attributes["reduction"] != "none":
        return TensorInfo((), info.dtype)
    return TensorInfo((*info.shape[:axis], *info.shape[axis + 1 :]), info.dtype)


def _check_labels(source: TensorInfo, labels: TensorInfo, label: str) -> None:
    require_float(label, "source", source)
    require_same_type(label, ("source", "labels"), [source, labels])
    if not agree(source.shape, labels.shape):
        raise ShapeError(refusal(label, "labels", brackets(source.shape), brackets(labels.shape)))


def _entropy_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    _check_labels(inputs[0], inputs[1], label)
    # The softmax comes with the loss, so that the gradient can start from it.
    return {"loss": _loss_shape(inputs[0], attributes, label), "soft_max": inputs[0]}


def _count(info: TensorInfo, axis: int) -> int:
    shape = known(info.shape)
    assert shape is not None
    return math.prod(size for k, size in enumerate(shape) if k != axis)


def _entropy_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    axis = attributes["axis"] % len(inputs[0].shape)
    reduction, count = attributes["reduction"], _count(inputs[0], axis)
    every = tuple(range(len(inputs[0].shape) - 1))
    is_last = axis == len(inputs[0].shape) - 1
    along, kind = (axis,), wide(xp, inputs[0].dtype) or xp.dtype(inputs[0].dtype)

    def by_position(source: Any, labels: Any) -> tuple[Any, Any]:
        # -Σ labels · log softmax = log Σ exp · Σ labels - Σ labels · source, both shifted
        moved = _shifted(xp, source, axis)
        weight = xp.sum(labels, axis=along, keepdims=False)
        raised = xp.exp(moved)
        total = xp.sum(raised, axis=along, keepdims=True)
        moved *= labels
        loss = xp.log(xp.reshape(total, weight.shape)) * weight
        loss = loss - xp.sum(moved, axis=along, keepdims=False)
        raised /= total
        return loss, raised

    def entropy(source: Any, labels: Any) -> tuple[Any, Any]:
        found = xp.fused("soft_max_cross_entropy", source, labels) if is_last else None
        loss, raised = found or by_position(source, labels)
        if reduction != "none":
            loss = xp.sum(loss, axis=every, keepdims=False)
            loss = loss / count if reduction == "mean" else loss
        # NumPy before 2 turns a float32 scalar combined with a number into float64.
        return xp.astype(loss, kind), raised

    return widened(xp, inputs[0].dtype, entropy)


def _entropy_derivative(g: Graph, node: Node, gradients: Gradients, needs: list[bool]) -> Gradients:
    gradient, through_soft_max = gradients
    (source, labels), a = node.inputs, node.attributes
    assert gradient is not None and through_soft_max is None  # nothing else reads the softmax
    first = second = None
    if needs[0]:
        inputs = (gradient, node.results[1], labels)
        first = g.add_node_named("soft_max_cross_entropy_gradient", inputs, a)
    if needs[1]:
        second = g.add_node_named("soft_max_cross_entropy_labels_gradient", (gradient, source), a)
    return [first, second]


def _gradient_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    gradient, source = inputs[:2]
    require_float(label, "source", source)
    require_same_type(label, ("gradient", "source"), [gradient, source])
    if len(inputs) == 3:
        _check_labels(source, inputs[2], label)
    wanted = _loss_shape(source, attributes, label).shape
    if not agree(wanted, gradient.shape):
        raise ShapeError(refusal(label, "gradient", brackets(wanted), brackets(gradient.shape)))
    return only(source)


def _scaled(xp: Namespace, source: TensorInfo, attributes: Attributes) -> Callable[[Any], Any]:
    """The loss's gradient as a factor of every element of the source."""
    axis, expand = attributes["axis"] % len(source.shape), xp.expand_dims
    if attributes["reduction"] == "none":
        return lambda gradient: expand(gradient, axis=(axis,))
    count = _count(source, axis) if attributes["reduction"] == "mean" else 1
    return lambda gradient: gradient / max(count, 1)


def _gradient_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    axis = attributes["axis"] % len(inputs[1].shape)
    is_last = axis == len(inputs[1].shape) - 1
    scaled = _scaled(xp, inputs[1], attributes)

    def back(gradient: Any, soft_max: Any, labels: Any) -> Any:
        factor = scaled(gradient)
        if is_last:
            found = xp.fused("soft_max_cross_entropy_gradient", factor, soft_max, labels)
            if found is not None:
                return found
        found = soft_max * xp.sum(labels, axis=(axis,), keepdims=True)
        found -= labels
        found *= factor
        return found

    return widened(xp, inputs[1].dtype, back)


def _labels_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    axis = attributes["axis"] % len(inputs[1].shape)
    scaled = _scaled(xp, inputs[1], attributes)

    def back(gradient: Any, source: Any) -> Any:
        moved = _shifted(xp, source, axis)
        log = xp.log(xp.sum(xp.exp(moved), axis=(axis,), keepdims=True))
        return (log - moved) * scaled(gradient)

    return widened(xp, inputs[1].dtype, back)


_KINDS = {"axis": "int", "reduction": "str"}
ROWS = (
    Op(
        "soft_max",
        _softmax_infer,
        _softmax_prepare,
        _softmax_derivative,
        kinds={"axis": "int"},
    ),
    Op(
        "soft_max_cross_entropy",
        _entropy_infer,
        _entropy_prepare,
        _entropy_derivative,
        operands=("source", "labels"),
        kinds=_KINDS,
    ),
    Op(
        "soft_max_cross_entropy_gradient",
        _gradient_infer,
        _gradient_prepare,
        operands=("gradient", "soft_max", "labels"),
        kinds=_KINDS,
    ),
    Op(
        "soft_max_cross_entropy_labels_gradient",
        _gradient_infer,
        _labels_prepare,
        operands=("gradient", "source"),
        kinds=_KINDS,
    ),
)
