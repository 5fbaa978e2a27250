"""Nodes that compute with sizes while some of these are unknown: arrays of Size, not tensors.

A value stays such an array through the few operators that exporters use on shapes; any other node
reads it as a tensor that the graph fills in when it is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .loading import NeedsValueError, Node
from .sizes import Size, sized_node


def translate(node: Node) -> list[Any] | None:
    """The results of a node on sizes, or None if it is not one."""
    symbols = node.owner.symbols
    if node.kind not in ROWS or not any(name in symbols for name in node.inputs):
        return None
    values = []
    for name in filter(None, node.inputs):
        if name in symbols:
            values.append(symbols[name])
        else:
            try:
                value = node.owner.known(name)
            except NeedsValueError:
                return None
            if value.dtype.kind not in "iu":
                return None
            values.append(value)
    found = ROWS[node.kind](node, *values)
    return None if found is None else [_settled(found)]


def shape(node: Node) -> list[Any]:
    """Shape: a constant where all sizes are known."""
    x = node.tensor(0)
    window = slice(node.attribute("start"), node.attribute("end"))
    return [_settled(_objects(node.shape(x)[window]))]


def size(node: Node) -> list[Any]:
    """Size: the number of elements."""
    x = node.tensor(0)
    found: Any = math.prod(node.shape(x))
    whole = np.empty((), object)
    whole[()] = found
    return [_settled(whole)]


def _objects(values: list[Any]) -> Any:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _settled(values: Any) -> Any:
    """Numbers, if nothing in it is unknown any more."""
    if isinstance(values, np.ndarray) and values.dtype == object:
        if any(isinstance(value, Size) for value in values.flat):
            return values
        return values.astype(np.int64)
    return values


def _arithmetic(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """``function`` element by element, of plain integers and sizes."""

    def row(node: Node, a: Any, b: Any) -> Any:
        a, b = (np.asarray(each).astype(object) for each in (a, b))
        found = np.frompyfunc(function, 2, 1)(a, b)
        whole = np.empty(np.shape(found), object)
        whole[...] = found
        return whole

    return row


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
    return values[int(start) : int(end) : step]


def _range(node: Node, start: Any, limit: Any, step: Any) -> Any:
    return sized_node(node.graph, "range_to", None, [np.ravel(x)[0] for x in (start, limit, step)])


def _cast(node: Node, values: Any) -> Any:
    from .reading import type_name

    kind = type_name(node.attribute("to", 0), "to")
    if kind in ("int32", "int64"):
        return values
    return node.graph.cast(node.tensor(0), kind)


def _unsqueeze(node: Node, values: Any, axes: Any = None) -> Any:
    axes = node.attribute("axes") if axes is None else axes
    return np.expand_dims(values, tuple(int(axis) for axis in axes))


def _squeeze(node: Node, values: Any, axes: Any = None) -> Any:
    axes = node.attribute("axes") if axes is None else axes
    return np.squeeze(values, None if axes is None else tuple(int(axis) for axis in axes))


def _reshape(node: Node, values: Any, wanted: Any) -> Any:
    if np.asarray(wanted).dtype == object or values.dtype != object:
        return None
    return values.reshape([int(size) for size in wanted])


def _concat(node: Node, *values: Any) -> Any:
    axis = int(node.attribute("axis", 0))
    return np.concatenate([np.asarray(each).astype(object) for each in values], axis=axis)


def _product(node: Node, values: Any, axes: Any = None) -> Any:
    if values.ndim != 1:
        return None
    node.attribute("axes")
    whole = np.empty((1,), object)
    whole[0] = math.prod(values.tolist())
    return whole if node.attribute("keepdims", 1) else whole.reshape(())


ROWS: dict[str, Callable[..., Any]] = {
    "Add": _arithmetic(lambda a, b: a + b),
    "Cast": _cast,
    "Concat": _concat,
    "Div": _arithmetic(lambda a, b: a // b),
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
