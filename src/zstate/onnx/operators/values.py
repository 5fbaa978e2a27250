"""Operators that make values of no other values: constants, ranges, shapes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...errors import OptionError, refusal
from ...graph import Tensor
from ...types import Array
from ..node import Node, Row
from ..sizes import Size, sized_node
from .elementwise import cast_to
from .shaping import broadcast

# A constant that a few bytes of a file describe is made only up to this many elements.
_MOST_ELEMENTS = 2**31


def _constant(node: Node) -> list[Array]:
    for name in ("value", "value_float", "value_floats", "value_int", "value_ints"):
        value = node.attribute(name)
        if value is not None:
            kind = np.float32 if "float" in name else np.int64
            return [value if name == "value" else np.array(value, kind)]
    raise OptionError(refusal("Constant", "attributes", "a tensor or numbers", "none of them"))


def _constant_of_shape(node: Node) -> list[Tensor]:
    value = node.attribute("value")
    array = np.zeros((), np.float32) if value is None else np.reshape(value, ())
    sizes = node.sizes(0)
    whole = math.prod(size for size in sizes if not isinstance(size, Size))
    if whole > _MOST_ELEMENTS:
        expected = f"at most {_MOST_ELEMENTS} elements"
        raise OptionError(refusal("ConstantOfShape", "shape", expected, str(whole)))
    return [broadcast(node.graph, node.graph.constant(np.array(array)), sizes)]


def _range(node: Node) -> list[Any]:
    if any(tensor in node.owner.folding.sizes for tensor in node.tensors()):
        return [_range_of_sizes(node)]
    start, limit, step = (np.reshape(node.known(k), ()) for k in range(3))
    count = np.ceil((float(limit) - float(start)) / float(step))
    if not count <= _MOST_ELEMENTS:
        expected = f"at most {_MOST_ELEMENTS} elements"
        raise OptionError(refusal("Range", "limit", expected, str(count)))
    g, sizes = node.graph, [0, max(0, int(count)), 1]
    places = g.cast(sized_node(g, "range_to", None, sizes), start.dtype.name)
    return [places * g.constant(step) + g.constant(start)]


def _range_of_sizes(node: Node) -> Tensor:
    (start,), (limit,), (step,) = (node.sizes(k) for k in range(3))
    found = sized_node(node.graph, "range_to", None, [start, limit, step])
    return cast_to(found, node.tensor(0).dtype)


def _shape(node: Node) -> list[Any]:
    window = slice(node.attribute("start"), node.attribute("end"))
    sizes = np.array(node.shape(node.tensor(0))[window], object)
    return [node.owner.folding.sized(sizes, "int64")]


def _size(node: Node) -> list[Any]:
    whole = np.array(math.prod(node.shape(node.tensor(0))), object)
    return [node.owner.folding.sized(whole, "int64")]


ROWS: dict[str, Row] = {
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Shape": _shape,
    "Size": _size,
}
