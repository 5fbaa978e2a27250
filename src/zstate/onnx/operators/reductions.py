"""Operators that reduce axes: sums, extremes, soft maxima, normalisations."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import OptionError, ShapeError, refusal
from ...graph import Graph, Tensor
from ...graph.ops.base import axis_of
from ...types import FLOAT_NAMES
from ..node import Node, Row
from ..reading import type_name
from ..sizes import Size, expect_sizes, sized_node
from .elementwise import cast_to, fitted, in_float32


def _reduction(method: Callable[..., Tensor]) -> Row:
    def row(node: Node) -> list[Tensor]:
        g, x = node.graph, node.tensor(0)
        axes, keep = node.axes(), node.attribute("keepdims", 1)
        noop = node.attribute("noop_with_empty_axes", 0)
        if not axes:
            if noop:
                return [method(g, x, [])]
            axes = list(range(len(x.shape)))
        found = method(g, x, axes)
        return [found if keep else g.squeeze(found, axes=axes)]

    return row


def _wide(method: Callable[..., Tensor]) -> Row:
    return _reduction(in_float32(method))


def _extreme(name: str, of_bools: str) -> Row:
    """The largest or the smallest; of bools, any or all."""
    return _reduction(
        lambda g, x, axes: getattr(g, of_bools if x.dtype == "bool" else name)(x, axes=axes)
    )


def _mean(g: Graph, x: Tensor, axes: list[int]) -> Tensor:
    if x.dtype in FLOAT_NAMES:
        return g.mean(x, axes=axes)
    found = g.mean(g.cast(x, "float64"), axes=axes)
    found = g.select(g.equal(found, found), found, 0.0)  # no integer says that there were none
    return g.cast(found, x.dtype)  # rounded towards 0


def _top_k(node: Node) -> list[Tensor]:
    g, x = node.graph, node.tensor(0)
    axis, largest = int(node.attribute("axis", -1)), bool(node.attribute("largest", 1))
    node.attribute("sorted")  # an order is one of those that 0 allows
    (count,) = node.sizes(1) if node.opset >= 10 else [int(node.attribute("k", 0))]
    size = node.size(x, axis)
    if isinstance(count, Size) and count != size:
        raise OptionError(refusal("TopK", "K", "a known number", repr(count)))
    places = g.arg_sort(x, axis=axis, descending=largest)
    if not isinstance(count, Size):
        if not count >= 0 or (isinstance(size, int) and count > size):
            raise ShapeError(refusal("TopK", "K", f"0 to the size of axis {axis}", str(count)))
        places = g.slice_tensor(places, axis, 0, count)
    return [g.gather_along_axis(x, places, axis), g.cast(places, "int64")]


def _cumulative_sum(node: Node) -> list[Tensor]:
    (axis,) = node.ints(1)
    exclusive, reverse = (bool(node.attribute(name, 0)) for name in ("exclusive", "reverse"))
    g, x = node.graph, node.tensor(0)
    return [g.cumulative_sum(x, axis=axis, exclusive=exclusive, reverse=reverse)]


def _log_sum_exp(g: Graph, x: Tensor, axes: list[int]) -> Tensor:
    top = g.reduction_maximum(x, axes=axes)
    top = g.select(g.is_finite(top), top, 0.0)  # infinity less itself would be no number
    return g.logarithm(g.reduction_sum(g.exponent(x - top), axes=axes)) + top


def _place(name: str) -> Row:
    def row(node: Node) -> list[Tensor]:
        g, x = node.graph, node.tensor(0)
        axis, keep = int(node.attribute("axis", 0)), node.attribute("keepdims", 1)
        is_last = node.attribute("select_last_index", 0)
        turned = g.reverse(x, axes=[axis]) if is_last else x
        found = g.cast(getattr(g, name)(turned, axis=axis), "int64")
        if is_last:
            size = g.reshape(sized_node(g, "sizes", None, [node.size(x, axis)]), ())
            found = size - 1 - found
        return [found if keep else g.squeeze(found, axes=[axis])]

    return row


def _soft_max(is_log: bool) -> Row:
    def row(node: Node) -> list[Tensor]:
        g, x = node.graph, node.tensor(0)
        axis = int(node.attribute("axis", -1 if node.opset >= 13 else 1))
        axis = axis_of(node.kind, "axis", axis, len(x.shape))
        # Before opset 13 everything from the axis on is one axis.
        axes = [axis] if node.opset >= 13 else list(range(axis, len(x.shape)))
        if len(axes) == 1 and not is_log:
            return [g.soft_max(x, axis=axes[0])]
        return [in_float32(_log_soft_max if is_log else _wide_soft_max)(g, x, axes)]

    return row


def _log_soft_max(g: Graph, x: Tensor, axes: list[int]) -> Tensor:
    below = x - g.reduction_maximum(x, axes=axes)
    return below - g.logarithm(g.reduction_sum(g.exponent(below), axes=axes))


def _wide_soft_max(g: Graph, x: Tensor, axes: list[int]) -> Tensor:
    raised = g.exponent(x - g.reduction_maximum(x, axes=axes))
    return raised / g.reduction_sum(raised, axes=axes)


def _normalising(node: Node) -> tuple[Tensor, list[int], float, str]:
    """x in the type that a normalisation computes in, its axes, epsilon and stash type."""
    x = node.tensor(0)
    axis = axis_of(node.kind, "axis", int(node.attribute("axis", -1)), len(x.shape))
    kind = type_name(int(node.attribute("stash_type", 1)), "stash_type")
    wide = cast_to(x, kind) if x.dtype in ("float16", "bfloat16") else x
    return wide, list(range(axis, len(x.shape))), node.attribute("epsilon", 1e-5), kind


def _layer_normalization(node: Node) -> list[Tensor]:
    g, x = node.graph, node.tensor(0)
    wide, axes, epsilon, kind = _normalising(node)
    mean = g.mean(wide, axes=axes)
    away = wide - mean
    scale = g.reciprocal(g.square_root(g.mean(g.square(away), axes=axes) + epsilon))
    found = away * scale * cast_to(fitted(node.tensor(1), x), wide.dtype)
    if node.has(2):
        found = found + cast_to(fitted(node.tensor(2), x), wide.dtype)
    return [cast_to(found, x.dtype), cast_to(mean, kind), cast_to(scale, kind)]


def _rms_normalization(node: Node) -> list[Tensor]:
    g, x = node.graph, node.tensor(0)
    wide, axes, epsilon, _ = _normalising(node)
    below = g.square_root(g.mean(g.square(wide), axes=axes) + epsilon)
    found = wide / below * cast_to(fitted(node.tensor(1), x), wide.dtype)
    return [cast_to(found, x.dtype)]


def _batch_normalization(node: Node) -> list[Tensor]:
    node.attribute("momentum")
    is_spatial = bool(node.attribute("spatial", 1))  # until opset 8
    if node.attribute("training_mode", 0):
        raise OptionError(refusal("BatchNormalization", "training_mode", "0: inference", "1"))
    g, x = node.graph, node.tensor(0)
    epsilon = node.attribute("epsilon", 1e-5)
    if len(x.shape) < 2:
        raise ShapeError(refusal("BatchNormalization", "X", "[N,C,…]", str(x)))
    sizes = node.shape(x)[1:2] if is_spatial else node.shape(x)[1:]
    parts = []
    for k, name in enumerate(("scale", "B", "mean", "var"), 1):
        part = expect_sizes(node.tensor(k), sizes, f"BatchNormalization {name}")
        behind = list(range(1, len(x.shape) - 1)) if is_spatial else []
        parts.append(g.expand_dims(part, axes=behind) if behind else part)

    def normalised(g: Graph, x: Tensor, *parts: Tensor) -> Tensor:
        scale, bias, mean, variance = parts
        return (x - mean) / g.square_root(variance + epsilon) * scale + bias

    return [in_float32(normalised)(g, x, *parts)]


def _global_mean(node: Node) -> list[Tensor]:
    x = node.tensor(0)
    return [node.graph.mean(x, axes=list(range(2, len(x.shape))))]


ROWS: dict[str, Row] = {
    "ArgMax": _place("reduction_arg_maximum"),
    "ArgMin": _place("reduction_arg_minimum"),
    "BatchNormalization": _batch_normalization,
    "CumSum": _cumulative_sum,
    "GlobalAveragePool": _global_mean,
    "LayerNormalization": _layer_normalization,
    "LogSoftmax": _soft_max(True),
    "RMSNormalization": _rms_normalization,
    "ReduceL1": _wide(lambda g, x, axes: g.reduction_sum(g.absolute(x), axes=axes)),
    "ReduceL2": _wide(lambda g, x, axes: g.square_root(g.reduction_sum(g.square(x), axes=axes))),
    "ReduceLogSum": _wide(lambda g, x, axes: g.logarithm(g.reduction_sum(x, axes=axes))),
    "ReduceLogSumExp": _wide(_log_sum_exp),
    "ReduceMax": _extreme("reduction_maximum", "reduction_or"),
    "ReduceMean": _reduction(_mean),
    "ReduceMin": _extreme("reduction_minimum", "reduction_and"),
    "ReduceProd": _reduction(lambda g, x, axes: g.reduction_product(x, axes=axes)),
    "ReduceSum": _reduction(lambda g, x, axes: g.reduction_sum(x, axes=axes)),
    "ReduceSumSquare": _wide(lambda g, x, axes: g.reduction_sum(g.square(x), axes=axes)),
    "Softmax": _soft_max(False),
    "TopK": _top_k,
}
