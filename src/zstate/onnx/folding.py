"""Constants that are computed while a model is loaded or saved, and what keeps a value from it.

Sizes that are not known yet are constants too: a value stays an array of Size through the few ops
that exporters use on shapes, and is a tensor that the run fills in for any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..graph import Graph, Tensor
from ..graph.ops import CONSTANT, PLACEHOLDER, VARIABLE
from ..graph.ops.base import axes_of, known
from ..graph.tensor import Node
from ..types import Array
from .sizes import Size, sized_node

# Limits on what is computed while a model is loaded: elements per constant, and elements in all.
# Larger constants are left to the run, because a file of a few bytes may describe any size.
MOST_FOLDED, MOST_FOLDED_IN_ALL = 2**16, 2**22
_MOST_SIZES = 256  # in one array; more of them, which no shape has, are computed by the run


def evaluated(node: Node, arrays: Sequence[Array | None], most: int) -> list[Array] | None:
    """The results of a node, from the arrays of its inputs; None if it has no inputs, one of them
    is unknown, or the results have more elements than ``most``."""
    shapes = [known(tensor.shape) for tensor in node.results]
    if not arrays or node.op.prepare is None or None in shapes:
        return None
    if any(array is None for array in arrays):
        return None
    count = sum(math.prod(shape) for shape in shapes if shape is not None)
    return None if count > most else node.evaluated(arrays)


class Folding:
    """The constants of a model that is loaded, and the sizes that its tensors hold."""

    def __init__(self, graph: Graph) -> None:
        self.sizes: dict[Tensor, Any] = {}  # tensors whose elements are sizes: arrays of these
        self._graph = graph
        self._count = 0  # elements computed so far

    def settled(self, results: Sequence[Any], nodes: Iterable[Node]) -> Sequence[Any]:
        """Results as arrays, or arrays of sizes, if these nodes read nothing else and are small."""
        values: dict[Tensor, Any] = {}
        for node in nodes:
            found = self._computed(node, values)
            if found is None:
                return results
            values.update(zip(node.results, found, strict=True))
        return [self._result(each, values) for each in results]

    def _result(self, result: Any, values: Mapping[Tensor, Any]) -> Any:
        if not isinstance(result, Tensor) or result in self.sizes:
            return result
        found = values[result] if result in values else self.value(result)
        if found is None:
            return result
        return self.sized(found, result.dtype) if found.dtype == object else found

    def sized(self, values: Any, dtype: str) -> Array | Tensor:
        """An array of sizes: of numbers if all are known, else a tensor that the run fills in."""
        if not any(isinstance(value, Size) for value in values.flat):
            array: Array = values.astype(dtype)
            return array
        found = sized_node(self._graph, "sizes", None, [*values.flat])
        self.sizes[found] = np.ravel(values)
        if values.ndim != 1:
            found = self._graph.reshape(found, values.shape)
        if dtype != found.dtype:
            found = self._graph.cast(found, dtype)
        self.sizes[found] = values
        return found

    def value(self, tensor: Tensor) -> Any:
        """The array of a constant, or the sizes that a tensor holds; None if the run tells."""
        if tensor.node.op is CONSTANT:
            return tensor.node.attributes["store"].value
        return self.sizes.get(tensor)

    def _computed(self, node: Node, values: Mapping[Tensor, Any]) -> Sequence[Any] | None:
        """The arrays of a node; None if its inputs are unknown, or they too large."""
        if all(tensor in self.sizes or node.op is CONSTANT for tensor in node.results):
            return [self.value(tensor) for tensor in node.results]
        inputs = [values[t] if t in values else self.value(t) for t in node.inputs]
        if any(array is None for array in inputs):
            return None
        if any(array.dtype == object for array in inputs):
            return _on_sizes(node, inputs)
        found = evaluated(node, inputs, min(MOST_FOLDED, MOST_FOLDED_IN_ALL - self._count))
        self._count += sum(array.size for array in found or ())
        return found


def roots(tensor: Tensor) -> list[str]:
    """What keeps a value from being known: inputs, parameters, nodes, and sizes left open."""
    found: dict[str, None] = {}
    waiting = [tensor.node]
    seen = dict.fromkeys(waiting)
    for node in waiting:
        if node.op.name in ("sizes", "range_to"):  # they read shapes, not values
            found["sizes that are open"] = None
            continue
        if node.op in (PLACEHOLDER, VARIABLE) or (node.op.prepare is None and node.inputs):
            found[node.name] = None
        new = dict.fromkeys(each.node for each in node.inputs if each.node not in seen)
        seen.update(new)
        waiting.extend(new)
    return [*found]


def _on_sizes(node: Node, arrays: Sequence[Any]) -> list[Any] | None:
    """The results of a node of the graph, of arrays of sizes; None leaves them to the run."""
    tensors = (*node.inputs, *node.results)
    if node.op.name not in _ON_SIZES or any(t.dtype not in ("int32", "int64") for t in tensors):
        return None
    shapes = (known(tensor.shape) for tensor in tensors)
    if sum(math.prod(shape or ()) for shape in shapes) > _MOST_SIZES:
        return None
    found = _ON_SIZES[node.op.name](node, *arrays)
    return None if found is None else [np.asarray(each, object) for each in found]


def _of_objects(node: Node, *arrays: Any) -> list[Any]:
    """NumPy computes with objects as with numbers, but for a type that is asked for."""
    return node.evaluated(arrays)


def _gather(node: Node, values: Any, indices: Any) -> list[Any] | None:
    if indices.dtype == object:
        return None
    (places,) = node.evaluated([np.arange(values.size).reshape(values.shape), indices])
    return [np.ravel(values)[places]]


def _product(node: Node, values: Any) -> list[Any]:
    axes = axes_of("reduction_product", node.attributes["axes"], values.ndim)
    return [np.prod(values, axis=axes, keepdims=True)]


def _division(node: Node, a: Any, b: Any) -> list[Any] | None:
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
