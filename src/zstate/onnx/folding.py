"""Constants that are computed while a model is loaded or saved, and what keeps a value from it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..graph import Tensor
from ..graph.ops import CONSTANT, PLACEHOLDER, VARIABLE
from ..graph.ops.base import known
from ..graph.tensor import Node
from ..types import Array
from .shapes import on_sizes, settled

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

    def __init__(self) -> None:
        self.sizes: dict[Tensor, Any] = {}  # tensors whose elements are sizes: arrays of these
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
        if not isinstance(result, Tensor):
            return result
        found = self._value(result, values)
        if found is None:
            return result
        return settled(found, result.dtype) if found.dtype == object else found

    def _value(self, tensor: Tensor, values: Mapping[Tensor, Any]) -> Any:
        if tensor in values:
            return values[tensor]
        if tensor.node.op is CONSTANT:
            return tensor.node.attributes["store"].value
        return self.sizes.get(tensor)

    def _computed(self, node: Node, values: Mapping[Tensor, Any]) -> Sequence[Any] | None:
        """The arrays of a node; None if its inputs are unknown, or they too large."""
        if all(tensor in self.sizes or node.op is CONSTANT for tensor in node.results):
            return [self._value(tensor, values) for tensor in node.results]
        inputs = [self._value(each, values) for each in node.inputs]
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
