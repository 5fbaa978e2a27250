"""Rows whose sizes are computed from the shapes of other tensors.

A model from elsewhere may reshape to (size of axis 0 of x, 2 · size of axis 1 of x) while neither
is known. Such a size is text: products joined by "+", of whole numbers and of "k.a", the size of
axis a of the k-th of the tensors given for their shapes: "2*0.1+-1". Like the rows of like.py these
become ordinary nodes as soon as the shapes are known; no program ever evaluates one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...errors import OptionError, ShapeError, refusal
from ...layout import TensorInfo
from ...types import PartialShape
from .base import Attributes, Infos, Op, broadcast_shapes, known, only
from .like import reshape_like, sum_like

if TYPE_CHECKING:
    from ..graph import Graph
    from ..tensor import Node, Tensor

_FACTOR = re.compile(r"-?\d{1,18}|\d{1,9}\.\d{1,9}")


def size_of(text: str, shapes: Sequence[PartialShape], label: str) -> int | None:
    """The size that a text stands for; None while a shape that it needs is unknown."""
    total = 0
    for term in text.split("+"):
        product = 1
        for factor in term.split("*"):
            if not _FACTOR.fullmatch(factor):
                raise OptionError(refusal(label, "sizes", "numbers and axes", repr(text)))
            if "." not in factor:
                product *= int(factor)
                continue
            place, axis = map(int, factor.split("."))
            if place >= len(shapes) or axis >= len(shapes[place]):
                raise ShapeError(refusal(label, "sizes", "axes of the tensors", repr(text)))
            size = shapes[place][axis]
            if size is None:
                return None
            product *= size
        total += product
    return total


def _sizes(attributes: Attributes, likes: Infos, label: str) -> PartialShape:
    shapes = [info.shape for info in likes]
    return tuple(size_of(text, shapes, label) for text in attributes["sizes"])


def _lower(
    method: Callable[[Graph, Tensor, Sequence[int]], Tensor],
) -> Callable[[Graph, Sequence[Tensor], Attributes], list[Tensor] | None]:
    def lower(g: Graph, inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor] | None:
        sizes = known(_sizes(attributes, [tensor.info for tensor in inputs[1:]], "sizes"))
        return None if sizes is None else [method(g, inputs[0], sizes)]

    return lower


def _reshape_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    sizes = _sizes(attributes, inputs[1:], label)
    return only(TensorInfo(tuple(None if size == -1 else size for size in sizes), inputs[0].dtype))


def _reshape_derivative(
    g: Graph, node: Node, gradients: list[Tensor | None], needs: list[bool]
) -> list[Tensor | None]:
    (gradient,) = gradients
    assert gradient is not None
    return [reshape_like(g, gradient, node.inputs[0]), *[None] * (len(node.inputs) - 1)]


def _broadcast_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    sizes = _sizes(attributes, inputs[1:], label)
    names = ("sizes", "tensor")
    return only(
        TensorInfo(broadcast_shapes(label, names, [sizes, inputs[0].shape]), inputs[0].dtype)
    )


def _broadcast(g: Graph, tensor: Tensor, sizes: Sequence[int]) -> Tensor:
    """Both ways, as ONNX's Expand: an axis of size 1 in ``sizes`` keeps the tensor's."""
    shape = known(broadcast_shapes("broadcast", ("sizes", "tensor"), [tuple(sizes), tensor.shape]))
    if shape is None or shape == tensor.shape:
        return tensor
    return g.broadcast(tensor, shape)


def _broadcast_derivative(
    g: Graph, node: Node, gradients: list[Tensor | None], needs: list[bool]
) -> list[Tensor | None]:
    (gradient,) = gradients
    assert gradient is not None
    return [sum_like(g, gradient, node.inputs[0]), *[None] * (len(node.inputs) - 1)]


def _values_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    _sizes(attributes, inputs, label)
    return only(TensorInfo((len(attributes["sizes"]),), "int64"))


def _values_lower(
    g: Graph, inputs: Sequence[Tensor], attributes: Attributes
) -> list[Tensor] | None:
    sizes = known(_sizes(attributes, [tensor.info for tensor in inputs], "sizes"))
    return None if sizes is None else [g.constant(np.array(sizes, np.int64))]


def _range_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    sizes = _sizes(attributes, inputs, label)
    if len(sizes) != 3 or sizes[2] == 0:
        raise OptionError(refusal(label, "sizes", "start, limit and step", str(sizes)))
    bounds = known(sizes)
    count = None if bounds is None else max(0, math.ceil((bounds[1] - bounds[0]) / bounds[2]))
    return only(TensorInfo((count,), "int64"))


def _range_lower(g: Graph, inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor] | None:
    sizes = known(_sizes(attributes, [tensor.info for tensor in inputs], "sizes"))
    return None if sizes is None else [g.constant(np.arange(*sizes, dtype=np.int64))]


_KINDS = {"sizes": "names"}
_LIKES = ("tensor", "tensors")
_PASSIVE = tuple(range(1, 64))
ROWS = (
    Op(
        "reshape_to",
        _reshape_infer,
        None,
        _reshape_derivative,
        _lower(lambda g, tensor, sizes: g.reshape(tensor, sizes)),
        operands=_LIKES,
        kinds=_KINDS,
        passive=_PASSIVE,
    ),
    Op(
        "broadcast_to",
        _broadcast_infer,
        None,
        _broadcast_derivative,
        _lower(_broadcast),
        operands=_LIKES,
        kinds=_KINDS,
        passive=_PASSIVE,
    ),
    Op("sizes", _values_infer, lower=_values_lower, operands=("tensors",), kinds=_KINDS),
    Op("range_to", _range_infer, lower=_range_lower, operands=("tensors",), kinds=_KINDS),
)
