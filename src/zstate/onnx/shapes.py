"""Nodes that compute with sizes while some of these are unknown: arrays of Size, not tensors.

A value stays such an array through the few operators that exporters use on shapes; any other node
reads it as a tensor that the graph fills in when it is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..graph import Tensor
from ..graph.ops.sized import window_of
from .node import Node
from .reading import type_name
from .sizes import Size, Sizes, sized_node

_MOST_SIZES = 256  # in one array; more of them, which no shape has, are computed by the run


def translate(node: Node) -> list[Any] | None:
    """The results of a node on sizes, or None if it is not one."""
    symbols = node.owner.symbols
    if node.kind not in ROWS or not any(name in symbols for name in node.inputs):
        return None
    dtypes, values = [], []
    for name in filter(None, node.inputs):
        if name in symbols:
            value, dtype = symbols[name]
        else:
            value = node.owner.arrays.get(name)
            if value is None or value.dtype.kind not in "iu":
                return None
            dtype = value.dtype.name
        values.append(value)
        dtypes.append(dtype)
    if sum(np.size(value) for value in values) > _MOST_SIZES:
        return None
    to = type_name(node.attribute("to", 0), "to") if node.kind == "Cast" else dtypes[0]
    found = ROWS[node.kind](node, *values) if to in ("int32", "int64") else None
    if isinstance(found, Tensor):
        return [found if found.dtype == to else node.graph.cast(found, to)]
    return None if found is None else [_settled(found, to)]


def shape(node: Node) -> list[Any]:
    """Shape: a constant where all sizes are known."""
    x = node.tensor(0)
    window = slice(node.attribute("start"), node.attribute("end"))
    return [_settled(_objects(node.shape(x)[window]), "int64")]


def size(node: Node) -> list[Any]:
    """Size: the number of elements."""
    x = node.tensor(0)
    found: Any = math.prod(node.shape(x))
    whole = np.empty((), object)
    whole[()] = found
    return [_settled(whole, "int64")]


def _objects(values: list[Any]) -> Any:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _settled(values: Any, dtype: str) -> Any:
    """Numbers, if nothing in it is unknown any more."""
    if any(isinstance(value, Size) for value in values.flat):
        return Sizes(values, dtype)
    return values.astype(dtype)


def _arithmetic(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """``function`` element by element, of plain integers and sizes; None is for the run."""

    def row(node: Node, a: Any, b: Any) -> Any:
        if math.prod(np.broadcast_shapes(np.shape(a), np.shape(b))) > _MOST_SIZES:
            return None
        a, b = (np.asarray(each).astype(object) for each in (a, b))
        found = np.frompyfunc(function, 2, 1)(a, b)
        whole = np.empty(np.shape(found), object)
        whole[...] = found
        return None if any(each is None for each in whole.flat) else whole

    return row


def _quotient(a: Any, b: Any) -> Any:
    """a / b without its fraction, where the sizes do not decide it."""
    if isinstance(b, Size):  # which may be 0: the run looks
        found = a.divided(b) if isinstance(a, Size) else None
        return found.beside(b.axes(), "Div B") if isinstance(found, Size) else None
    if isinstance(a, Size):
        return a.divided(b)
    return abs(a) // abs(b) * (1 if a * b > 0 else -1)


def _gather(node: Node, values: Any, indices: Any) -> Any:
    if np.asarray(indices).dtype == object:
        return None
    found = np.take(values, indices, axis=int(node.attribute("axis", 0)))
    whole = np.empty(np.shape(found), object)
    whole[...] = found
    return whole


def _slice(node: Node, values: Any, *bounds: Any) -> Any:
    if not all(node.inputs):
        return None
    if node.opset < 10:
        bounds = (node.attribute("starts"), node.attribute("ends"))
    if values.ndim != 1 or any(np.asarray(each).dtype == object for each in bounds):
        return None
    (start,), (end,) = bounds[0], bounds[1]
    step = int(bounds[3][0]) if len(bounds) > 3 else 1
    node.attribute("axes")
    return values[[*window_of(int(start), int(end), step, len(values))]]


def _range(node: Node, start: Any, limit: Any, step: Any) -> Any:
    return sized_node(node.graph, "range_to", None, [np.ravel(x)[0] for x in (start, limit, step)])


def _cast(node: Node, values: Any) -> Any:
    node.attribute("saturate")  # of float8
    return values


def _unsqueeze(node: Node, values: Any, axes: Any = None) -> Any:
    axes = node.attribute("axes") if axes is None else axes
    return np.expand_dims(values, tuple(int(axis) for axis in axes))


def _squeeze(node: Node, values: Any, axes: Any = None) -> Any:
    axes = node.attribute("axes") if axes is None else axes
    return np.squeeze(values, None if axes is None else tuple(int(axis) for axis in axes))


def _reshape(node: Node, values: Any, wanted: Any) -> Any:
    if np.asarray(wanted).dtype == object or values.dtype != object:
        return None
    is_copy = not node.attribute("allowzero", 0)
    sizes = [values.shape[k] if is_copy and not n else int(n) for k, n in enumerate(wanted)]
    return values.reshape(sizes)


def _concat(node: Node, *values: Any) -> Any:
    axis = int(node.attribute("axis", 0))
    return np.concatenate([np.asarray(each).astype(object) for each in values], axis=axis)


def _product(node: Node, values: Any, axes: Any = None) -> Any:
    axes = node.attribute("axes") if axes is None else axes
    is_none = axes is None or not len(axes)
    if values.ndim != 1 or (node.attribute("noop_with_empty_axes", 0) and is_none):
        return None
    whole = np.empty((1,), object)
    whole[0] = math.prod(values.tolist())
    return whole if node.attribute("keepdims", 1) else whole.reshape(())


ROWS: dict[str, Callable[..., Any]] = {
    "Add": _arithmetic(lambda a, b: a + b),
    "Cast": _cast,
    "Concat": _concat,
    "Div": _arithmetic(_quotient),
    "Gather": _gather,
    "Identity": lambda node, values: values,
    "Mul": _arithmetic(lambda a, b: a * b),
    "Range": _range,
    "ReduceProd": _product,
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Sub": _arithmetic(lambda a, b: a - b),
    "Unsqueeze": _unsqueeze,
}
