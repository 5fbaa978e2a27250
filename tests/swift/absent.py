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


METHODS: dict[str, Callable[..., Any]] = {
    "sliceUpdateDataTensor:updateTensor:starts:ends:strides:name:": _slice_update,
}
