"""Operators that reduce axes: sums, extremes, soft maxima, normalisations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...errors import OptionError, ShapeError, refusal
from ...graph import Graph, Tensor
from ...graph.ops.base import known
from ..loading import Node, Row
from ..reading import type_name
from ..sizes import Size


def _reduction(method: Callable[[Graph, Tensor, list[int]], Tensor]) -> Row:
    def row(node: Node) -> list[Tensor]:
        g, x = node.graph, node.tensor(0)
        axes = node.ints(1) if node.has(1) else node.attribute("axes")
        keep, noop = node.attribute("keepdims", 1), node.attribute("noop_with_empty_axes", 0)
        if not axes:
            if noop:
                return [method(g, x, [])]
            axes = list(range(len(x.shape)))
        found = method(g, x, axes)
        return [found if keep else g.squeeze(found, axes=axes)]

    return row


def _minimum(g: Graph, x: Tensor, axes: list[int]) -> Tensor:
    if x.dtype != "bool" and not x.dtype.startswith("uint"):
        return -g.reduction_maximum(-x, axes=axes)
    if x.dtype != "bool":
        top = g.constant(np.array(np.iinfo(x.dtype).max))
        return top - g.reduction_maximum(top - x, axes=axes)
    no = g.constant(np.array(False))
    return g.equal(g.reduction_maximum(g.equal(x, no), axes=axes), no)


def _product(g: Graph, x: Tensor, axes: list[int]) -> Tensor:
    """Halves multiplied with each other until one element is left; the graph has no such op."""
    for axis in axes:
        size = x.shape[axis]
        if size is None:
            raise ShapeError(refusal("ReduceProd", "data", f"a known size of axis {axis}", str(x)))
        if size == 0:
            whole = [1 if k == axis % len(x.shape) else n for k, n in enumerate(x.shape)]
            ones = known(tuple(whole))
            if ones is None:
                raise ShapeError(refusal("ReduceProd", "data", "a known shape", str(x)))
            x = g.constant(1.0, shape=ones, dtype=x.dtype)
            continue
        while size > 1:
            half = size // 2
            parts = g.split(x, [half, half, size % 2][: 2 + size % 2], axis=axis)
            x = g.multiplication(parts[0], parts[1])
            x = g.concat_tensors([x, *parts[2:]], axis=axis) if parts[2:] else x
            size = half + size % 2
    return x


def _log_sum_exp(g: Graph, x: Tensor, axes: list[int]) -> Tensor:
    top = g.reduction_maximum(x, axes=axes)
    return g.logarithm(g.reduction_sum(g.exponent(x - top), axes=axes)) + top


def _arg_maximum(sign: int) -> Row:
    def row(node: Node) -> list[Tensor]:
        g, x = node.graph, node.tensor(0)
        axis, keep = int(node.attribute("axis", 0)), node.attribute("keepdims", 1)
        x = x if sign > 0 else -x
        if node.attribute("select_last_index", 0):
            size = node.size(x, axis)
            if isinstance(size, Size):
                raise ShapeError(refusal(node.kind, "data", f"a known size of axis {axis}", str(x)))
            found = size - 1 - g.reduction_arg_maximum(g.reverse(x, axes=[axis]), axis=axis)
        else:
            found = g.reduction_arg_maximum(x, axis=axis)
        found = g.cast(found, "int64")
        return [found if keep else g.squeeze(found, axes=[axis])]

    return row


def _soft_max(is_log: bool) -> Row:
    def row(node: Node) -> list[Tensor]:
        g, x = node.graph, node.tensor(0)
        axis = int(node.attribute("axis", -1 if node.opset >= 13 else 1))
        rank = len(x.shape)
        if not -rank <= axis < rank:
            raise ShapeError(refusal(node.kind, "axis", f"an axis of {rank} dimensions", str(axis)))
        # Before opset 13 everything from the axis on is one axis.
        axes = [axis] if node.opset >= 13 else list(range(axis % rank, rank))
        if len(axes) == 1 and not is_log:
            return [g.soft_max(x, axis=axes[0])]
        if is_log:
            return [x - _log_sum_exp(g, x, axes)]
        raised = g.exponent(x - g.reduction_maximum(x, axes=axes))
        return [raised / g.reduction_sum(raised, axes=axes)]

    return row


def _normal_axes(node: Node, x: Tensor) -> list[int]:
    axis, rank = int(node.attribute("axis", -1)), len(x.shape)
    if not -rank <= axis < rank:
        raise ShapeError(refusal(node.kind, "axis", f"an axis of {rank} dimensions", str(axis)))
    return list(range(axis % rank, rank))


def _layer_normalization(node: Node) -> list[Tensor]:
    g, x = node.graph, node.tensor(0)
    axes, epsilon = _normal_axes(node, x), float(node.attribute("epsilon", 1e-5))
    wide = _stash(node, x)
    mean = g.mean(wide, axes=axes)
    away = wide - mean
    scale = g.reciprocal(g.square_root(g.mean(g.square(away), axes=axes) + epsilon))
    found = _cast_to(away * scale, x.dtype) * node.tensor(1)
    bias = node.optional(2)
    return [found if bias is None else found + bias, mean, scale]


def _rms_normalization(node: Node) -> list[Tensor]:
    g, x = node.graph, node.tensor(0)
    axes, epsilon = _normal_axes(node, x), float(node.attribute("epsilon", 1e-5))
    wide = _stash(node, x)
    below = g.square_root(g.mean(g.square(wide), axes=axes) + epsilon)
    return [_cast_to(wide / below, x.dtype) * node.tensor(1)]


def _stash(node: Node, x: Tensor) -> Tensor:
    """The tensor in the type in which a normalisation computes."""
    kind = type_name(int(node.attribute("stash_type", 1)), "stash_type")
    return _cast_to(x, kind) if x.dtype in ("float16", "bfloat16") else x


def _cast_to(tensor: Tensor, dtype: str) -> Tensor:
    return tensor if tensor.dtype == dtype else tensor.graph.cast(tensor, dtype)


def _batch_normalization(node: Node) -> list[Tensor]:
    node.attribute("momentum")
    node.attribute("spatial")
    if node.attribute("training_mode", 0):
        raise OptionError(refusal("BatchNormalization", "training_mode", "0: inference", "1"))
    g, x = node.graph, node.tensor(0)
    epsilon = float(node.attribute("epsilon", 1e-5))
    scale, bias, mean, variance = (
        g.expand_dims(node.tensor(k), axes=list(range(1, len(x.shape) - 1))) for k in range(1, 5)
    )
    return [(x - mean) / g.square_root(variance + epsilon) * scale + bias]


def _global_mean(node: Node) -> list[Tensor]:
    x = node.tensor(0)
    return [node.graph.mean(x, axes=list(range(2, len(x.shape))))]


ROWS: dict[str, Row] = {
    "ArgMax": _arg_maximum(1),
    "ArgMin": _arg_maximum(-1),
    "BatchNormalization": _batch_normalization,
    "GlobalAveragePool": _global_mean,
    "LayerNormalization": _layer_normalization,
    "LogSoftmax": _soft_max(True),
    "RMSNormalization": _rms_normalization,
    "ReduceL1": _reduction(lambda g, x, axes: g.reduction_sum(g.absolute(x), axes=axes)),
    "ReduceL2": _reduction(
        lambda g, x, axes: g.square_root(g.reduction_sum(g.square(x), axes=axes))
    ),
    "ReduceLogSum": _reduction(lambda g, x, axes: g.logarithm(g.reduction_sum(x, axes=axes))),
    "ReduceLogSumExp": _reduction(_log_sum_exp),
    "ReduceMax": _reduction(lambda g, x, axes: g.reduction_maximum(x, axes=axes)),
    "ReduceMean": _reduction(lambda g, x, axes: g.mean(x, axes=axes)),
    "ReduceMin": _reduction(_minimum),
    "ReduceProd": _reduction(_product),
    "ReduceSum": _reduction(lambda g, x, axes: g.reduction_sum(x, axes=axes)),
    "ReduceSumSquare": _reduction(lambda g, x, axes: g.reduction_sum(g.square(x), axes=axes)),
    "Softmax": _soft_max(False),
}
