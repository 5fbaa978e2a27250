"""Published methods that zstate.pyobjc has not, for the files that call them: (graph, arguments).

What each computes is taken from Apple's pages: a softmax's cross entropy has the gradient
softmax·Σlabels - labels; slices are TensorFlow's strided slices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from zstate import pyobjc

_REDUCTIONS = {0: "none", 1: "sum", 2: "mean"}


def _entropy_gradient(
    graph: Any, d: Any, source: Any, labels: Any, axis: int, reduction: int, name: Any
) -> Any:
    g, x, labelled, gradient = graph._graph, source._tensor, labels._tensor, d._tensor
    whole = g.soft_max(x, axis=axis) * g.reduction_sum(labelled, axes=[axis])
    count = math.prod(size for k, size in enumerate(labelled.shape) if k != axis)
    if _REDUCTIONS[reduction] == "none":
        gradient = g.expand_dims(gradient, axes=[axis])
    scale = 1.0 / count if _REDUCTIONS[reduction] == "mean" else 1.0
    return graph._wrap((whole - labelled) * gradient * scale)


def _masked_slice(
    graph: Any,
    x: Any,
    starts: list[int],
    ends: list[int],
    strides: list[int],
    start_mask: int,
    end_mask: int,
    squeeze_mask: int,
    name: Any,
) -> Any:
    assert start_mask == squeeze_mask == 0
    stops = [None if end_mask >> k & 1 else end for k, end in enumerate(ends)]
    return graph._wrap(graph._graph.strided_slice(x._tensor, starts, stops, strides, name=name))


def _slice_update(
    graph: Any, data: Any, update: Any, starts: Any, ends: Any, strides: Any, name: Any
) -> Any:
    attributes = {"starts": tuple(starts), "ends": tuple(ends), "strides": tuple(strides)}
    store = data._tensor.node.attributes["store"].value
    assert not np.any(store)
    inputs, shape = (update._tensor,), {"shape": tuple(data._tensor.shape)}
    return graph._wrap(graph._graph.add_node_named("put_slice", inputs, {**attributes, **shape}))


class _ShapeOf:
    """Stands for a tensor with a shape, of which the readers below take the shape."""

    def __init__(self, tensor: Any) -> None:
        self.like = tensor._tensor


def _like(op: str) -> Callable[..., Any]:
    def method(graph: Any, x: Any, shape: _ShapeOf, name: Any) -> Any:
        return graph._wrap(graph._graph.add_node_named(op, (x._tensor, shape.like), {}, name))

    return method


_SLICE = "starts:ends:strides:"
METHODS: dict[str, Callable[..., Any]] = {
    "softMaxCrossEntropyGradientWithIncomingGradientTensor:sourceTensor:labelsTensor:axis:"
    "reductionType:name:": _entropy_gradient,
    f"sliceTensor:{_SLICE}startMask:endMask:squeezeMask:name:": _masked_slice,
    f"sliceUpdateDataTensor:updateTensor:{_SLICE}name:": _slice_update,
    "argSortWithTensor:axis:descending:name:": lambda graph, x, axis, falling, name: graph._wrap(
        graph._graph.arg_sort(x._tensor, axis=axis, descending=falling, name=name)
    ),
    "cumulativeSumWithTensor:axis:name:": lambda graph, x, axis, name: graph._wrap(
        graph._graph.cumulative_sum(x._tensor, axis=axis, name=name)
    ),
    "shapeOfTensor:name:": lambda graph, tensor, name: _ShapeOf(tensor),
    "reshapeTensor:withShapeTensor:name:": _like("reshape_like"),
    "broadcastTensor:toShapeTensor:name:": _like("broadcast_like"),
}


def by_its_op(graph: Any, op: str, *arguments: Any) -> Any:
    """A method that the facade has not, by the op of the graph that the table names for it."""
    *values, name = [a._tensor if isinstance(a, pyobjc.MPSGraphTensor) else a for a in arguments]
    *tensors, last = values
    keywords = {"axes": last} if isinstance(last, list) else {"axis": last}
    if not isinstance(last, list | int):
        tensors, keywords = values, {}
    return graph._wrap(getattr(graph._graph, op)(*tensors, **keywords, name=name))
