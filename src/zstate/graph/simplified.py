"""A graph in which every shape is known, and which lowers, merges and folds what is added to it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..arrays import NUMPY
from ..layout import TensorInfo
from .graph import Graph
from .ops import CONSTANT, PLACEHOLDER, VARIABLE, Op
from .ops.base import known
from .ops.recurrent import FORWARD, normal
from .tensor import Store, Tensor

# A folded constant may be larger than what it is made from, but not by more than this: a broadcast
# zero costs nothing to make and a lot to keep.
_FOLD_BYTES = 1 << 16
_MERGE_BYTES = 1 << 12  # constants up to this size are compared by value


class Simplified(Graph):
    """A graph that lowers, merges and folds what is added to it."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[Any, list[Tensor]] = {}

    def add_node(
        self,
        op: Op,
        inputs: tuple[Tensor, ...],
        attributes: Mapping[str, Any],
        name: str | None = None,
    ) -> list[Tensor]:
        if op.lower is not None:
            lowered = op.lower(self, inputs, attributes)
            if lowered is not None:
                return lowered
        if op.name in FORWARD:
            attributes = normal(attributes)
        key = _key(op, inputs, attributes)
        if key is not None and key in self._known:
            return self._known[key]
        found = super().add_node(op, inputs, attributes, name)
        if inputs and all(tensor.node.op is CONSTANT for tensor in inputs):
            found = self._folded(found)
        if key is not None:
            self._known[key] = found
        return found

    def _folded(self, results: list[Tensor]) -> list[Tensor]:
        node = results[0].node
        inputs = [tensor.info for tensor in node.inputs]
        if _bytes([t.info for t in results]) > _bytes(inputs) + _FOLD_BYTES:
            return results
        arrays = node.evaluated([each.node.attributes["store"].value for each in node.inputs])
        self.nodes.pop()  # the node itself: nothing reads it
        return [self.constant(array) for array in arrays]


def _key(op: Op, inputs: tuple[Tensor, ...], attributes: Mapping[str, Any]) -> Any:
    """Equal keys, equal results. None: a node that is never merged."""
    if op is PLACEHOLDER:
        return None
    if op is VARIABLE:
        return op, id(attributes["store"])
    if op is CONSTANT:
        store: Store = attributes["store"]
        if store.value.nbytes > _MERGE_BYTES:
            return op, id(store)
        return op, store.value.dtype.name, store.value.shape, store.value.tobytes()
    return op, inputs, tuple(sorted(attributes.items()))


def _bytes(infos: Sequence[TensorInfo]) -> int:
    total = 0
    for info in infos:
        shape = known(info.shape)
        assert shape is not None
        total += math.prod(shape) * NUMPY.dtype(info.dtype).itemsize
    return total
