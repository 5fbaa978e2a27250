"""Sizes while some of them are unknown: the nodes that read them, and what ops make of them.

A value stays an array of Size through the few ops that exporters use on shapes; any other node
reads it as a tensor that the graph fills in when it is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..graph.ops.base import axes_of, known
from ..graph.tensor import Node as GraphNode
from .node import Node
from .sizes import Size

_MOST_SIZES = 256  # in one array; more of them, which no shape has, are computed by the run


def shape(node: Node) -> list[Any]:
    """Shape: a constant where all sizes are known."""
    x = node.tensor(0)
    window = slice(node.attribute("start"), node.attribute("end"))
    return [node.owner.folding.sized(np.array(node.shape(x)[window], object), "int64")]


def size(node: Node) -> list[Any]:
    """Size: the number of elements."""
    whole = np.array(math.prod(node.shape(node.tensor(0))), object)
    return [node.owner.folding.sized(whole, "int64")]


def on_sizes(node: GraphNode, arrays: Sequence[Any]) -> list[Any] | None:
    """The results of a node of the graph, of arrays of sizes; None leaves them to the run."""
    tensors = (*node.inputs, *node.results)
    if node.op.name not in _ON_SIZES or any(t.dtype not in ("int32", "int64") for t in tensors):
        return None
    shapes = (known(tensor.shape) for tensor in tensors)
    if sum(math.prod(shape or ()) for shape in shapes) > _MOST_SIZES:
        return None
    found = _ON_SIZES[node.op.name](node, *arrays)
    return None if found is None else [np.asarray(each, object) for each in found]


def _of_objects(node: GraphNode, *arrays: Any) -> list[Any]:
    """NumPy computes with objects as with numbers, but for a type that is asked for."""
    return node.evaluated(arrays)


def _gather(node: GraphNode, values: Any, indices: Any) -> list[Any] | None:
    if indices.dtype == object:
        return None
    (places,) = node.evaluated([np.arange(values.size).reshape(values.shape), indices])
    return [np.ravel(values)[places]]


def _product(node: GraphNode, values: Any) -> list[Any]:
    axes = axes_of("reduction_product", node.attributes["axes"], values.ndim)
    return [np.prod(values, axis=axes, keepdims=True)]


def _division(node: GraphNode, a: Any, b: Any) -> list[Any] | None:
    found = np.asarray(np.frompyfunc(_quotient, 2, 1)(a, b), object)
    return None if any(each is None for each in found.flat) else [found]


def _quotient(a: Any, b: Any) -> Any:
    """a / b without its fraction, where the sizes do not decide it."""
    if isinstance(b, Size):  # which may be 0: the run looks
        found = a.divided(b) if isinstance(a, Size) else None
        return found.beside(b.axes(), "Div B") if isinstance(found, Size) else None
    if isinstance(a, Size):
        return a.divided(b)
    return abs(a) // abs(b) * (1 if a * b > 0 else -1)


_ON_SIZES: dict[str, Callable[..., list[Any] | None]] = {
    **dict.fromkeys(("addition", "subtraction", "multiplication"), _of_objects),
    **dict.fromkeys(("concat_tensors", "expand_dims", "reshape", "squeeze"), _of_objects),
    **dict.fromkeys(("slice", "reverse"), _of_objects),
    "cast": lambda node, values: [values],
    "gather": _gather,
    "integer_division": _division,
    "reduction_product": _product,
}
