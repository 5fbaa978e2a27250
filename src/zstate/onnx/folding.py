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


def constant_value(tensor: Tensor) -> Array | None:
    """The array of a constant."""
    return tensor.node.attributes["store"].value if tensor.node.op is CONSTANT else None


class Folding:
    """The constants of a model that is loaded."""

    def __init__(self) -> None:
        self._count = 0  # elements computed so far

    def settled(self, results: Sequence[Any], nodes: Iterable[Node]) -> Sequence[Any]:
        """Results as arrays if all that these nodes read is constant and they are small."""
        values: dict[Tensor, Array] = {}
        for node in nodes:
            found = self._computed(node, values)
            if found is None:
                return results
            values.update(zip(node.results, found, strict=True))
        return [values.get(each, each) if isinstance(each, Tensor) else each for each in results]

    def _computed(self, node: Node, values: Mapping[Tensor, Array]) -> Sequence[Array] | None:
        """The arrays of a node; None if its inputs are unknown, or they too large."""
        if node.op is CONSTANT:
            return [node.attributes["store"].value]
        inputs = [values.get(each, constant_value(each)) for each in node.inputs]
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
