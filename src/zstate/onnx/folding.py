"""Constants that are computed while a model is loaded or saved, and what keeps a value from it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..graph import Graph, Tensor
from ..graph.ops import CONSTANT, PLACEHOLDER, VARIABLE
from ..graph.ops.base import known
from ..graph.tensor import Node
from ..types import Array
from .shapes import on_sizes
from .sizes import Size, sized_node

# Limits on what is computed while a model is loaded: elements per constant, and elements in all.
# Larger constants are left to the run, because a file of a few bytes may describe any size.
MOST_FOLDED, MOST_FOLDED_IN_ALL = 2**16, 2**22


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
            return on_sizes(node, inputs)
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
