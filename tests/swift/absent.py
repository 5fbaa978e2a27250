"""Published methods that zstate.pyobjc lacks, for files that call them: (graph, arguments)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def _slice_update(
    graph: Any, data: Any, update: Any, starts: Any, ends: Any, strides: Any, name: Any
) -> Any:
    """The update in a slice of the data, which a file only ever fills with zeros."""
    assert not np.any(data._tensor.node.attributes["store"].value)
    attributes = {"starts": tuple(starts), "ends": tuple(ends), "strides": tuple(strides)}
    attributes["shape"] = tuple(data._tensor.shape)
    return graph._wrap(graph._graph.add_node_named("put_slice", (update._tensor,), attributes))


def _with_shape(method: str) -> Callable[..., Any]:
    """A method of a tensor and of another with its shape, which shapeOf has made."""

    def built(graph: Any, x: Any, shape: Any, name: Any) -> Any:
        g, node = graph._graph, shape._tensor.node
        while node.op.name not in ("sizes", "constant"):
            node = node.inputs[0].node
        if node.op.name == "constant":  # the shape is known
            sizes = [int(size) for size in node.attributes["store"].value]
            return graph._wrap(getattr(g, method)(x._tensor, sizes, name=name))
        inputs = (x._tensor, node.inputs[0])
        return graph._wrap(g.add_node_named(f"{method}_like", inputs, {}, name))

    return built


METHODS: dict[str, Callable[..., Any]] = {
    "sliceUpdateDataTensor:updateTensor:starts:ends:strides:name:": _slice_update,
    "reshapeTensor:withShapeTensor:name:": _with_shape("reshape"),
    "broadcastTensor:toShapeTensor:name:": _with_shape("broadcast"),
}
