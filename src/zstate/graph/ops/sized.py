"""Rows whose sizes are computed from the shapes of other tensors.

A model from elsewhere may reshape to (size of axis 0 of x, 2 · size of axis 1 of x) while neither
is known. Such a size is text: products joined by "+", of integers and of "k.a", the size of
axis a of the k-th of the tensors given for their shapes: "2*0.1+-1"; "a|b" is a, or b where a is 0.
Like the rows of like.py these become ordinary nodes as soon as the shapes are known; no program
ever evaluates one.

The rule for a size that is not known yet: what depends on it, a result or a refusal, waits for the
program, which knows them all. ``lower`` gives None until every size that it looks at is known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...errors import OptionError, ShapeError, refusal
from ...layout import TensorInfo, brackets
from ...types import PartialShape
from .base import Attributes, Gradients, Infos, Op, axis_of, broadcast_shapes, known, only, single
from .like import reshape_like, sum_like
from .shaping import split_derivative

if TYPE_CHECKING:
    from ..graph import Graph
    from ..tensor import Node, Tensor

_FACTOR = re.compile(r"-?\d{1,19}|\d{1,9}\.\d{1,9}")
_MOST = 2**63 - 1
_MOST_COUNTED = 2**16  # a longer range is counted by the run


def size_of(text: str, shapes: Sequence[PartialShape], label: str) -> int | None:
    """The size that a text stands for; None while a shape that it needs is unknown."""
    first, _, second = text.partition("|")
    if second:
        found = size_of(first, shapes, label)
        return found if found != 0 else size_of(second, shapes, label)
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
    if abs(total) > _MOST:
        raise ShapeError(refusal(label, "sizes", "a size that fits int64", f"{total:.2e}"))
    return total


def _sizes(attributes: Attributes, likes: Infos, label: str) -> PartialShape:
    shapes = [info.shape for info in likes]
    return tuple(size_of(text, shapes, label) for text in attributes["sizes"])


def _reshape_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    sizes = _sizes(attributes, inputs[1:], label)
    return only(TensorInfo(tuple(None if size == -1 else size for size in sizes), inputs[0].dtype))


def _reshape_lower(
    g: Graph, inputs: Sequence[Tensor], attributes: Attributes
) -> list[Tensor] | None:
    sizes = known(_sizes(attributes, [tensor.info for tensor in inputs[1:]], "sizes"))
    if sizes is not None and -1 in sizes and 0 in sizes:
        expected = "no size of 0 together with -1, which it would leave unknown"
        raise ShapeError(refusal("reshape", "shape", expected, brackets(sizes)))
    return None if sizes is None else [g.reshape(inputs[0], sizes)]


def _reshape_derivative(g: Graph, node: Node, gradients: Gradients, needs: list[bool]) -> Gradients:
    return [reshape_like(g, single(gradients), node.inputs[0]), *[None] * (len(node.inputs) - 1)]


def _broadcast_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    sizes = _sizes(attributes, inputs[1:], label)
    names = ("sizes", "tensor")
    return only(
        TensorInfo(broadcast_shapes(label, names, [sizes, inputs[0].shape]), inputs[0].dtype)
    )


def _broadcast_lower(
    g: Graph, inputs: Sequence[Tensor], attributes: Attributes
) -> list[Tensor] | None:
    """Both ways, as ONNX's Expand: an axis of size 1 in ``sizes`` keeps the tensor's."""
    (tensor, *likes) = inputs
    # An unknown size of the tensor may be one that does not fit.
    if known(tensor.shape) is None:
        return None
    shape = known(_broadcast_infer([t.info for t in inputs], attributes, "broadcast")[""].shape)
    if shape is None or known(_sizes(attributes, [t.info for t in likes], "sizes")) is None:
        return None
    return [tensor if shape == tensor.shape else g.broadcast(tensor, shape)]


def _broadcast_derivative(
    g: Graph, node: Node, gradients: Gradients, needs: list[bool]
) -> Gradients:
    return [sum_like(g, single(gradients), node.inputs[0]), *[None] * (len(node.inputs) - 1)]


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
    count = None if bounds is None else max(0, -((bounds[0] - bounds[1]) // bounds[2]))
    return only(TensorInfo((count,), "int64"))


def _range_lower(g: Graph, inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor] | None:
    sizes = known(_sizes(attributes, [tensor.info for tensor in inputs], "sizes"))
    if sizes is None:
        return None
    start, limit, step = sizes
    count = max(0, -((start - limit) // step))
    if count <= _MOST_COUNTED:
        return [g.constant(np.arange(count) * step + start)]
    steps = g.broadcast(g.constant(np.array(step, np.int64)), (count,))
    return [g.cumulative_sum(steps, axis=0) + (start - step)]


# Slices as ONNX has them: bounds that shapes decide, steps of either sign


def window_of(start: int, end: int, step: int, size: int) -> range:
    """The places that ONNX's Slice takes of an axis: as Python's slice, but that going backwards
    from in front of the first element starts at that element."""
    first, last = (bound + size if bound < 0 else bound for bound in (start, end))
    if step > 0:
        return range(min(max(first, 0), size), min(max(last, 0), size), step)
    return range(min(max(first, 0), size - 1), min(max(last, -1), size - 1), step)


def _places(
    attributes: Attributes, shape: PartialShape, likes: Infos, label: str
) -> list[tuple[int, range | None]]:
    """(axis, its places; None while they are unknown) of every axis that is sliced."""
    bounds = _sizes(attributes, likes, label)  # the starts, and then the ends
    axes, strides = attributes["axes"], attributes["strides"]
    if len(bounds) != 2 * len(axes) or len(strides) != len(axes) or 0 in strides:
        expected = f"starts, ends and strides other than 0 for {len(axes)} axes"
        raise ShapeError(refusal(label, "sizes", expected, f"{bounds} and {strides}"))
    found = []
    for k, step in enumerate(strides):
        axis = axis_of(label, "axes", axes[k], len(shape))
        numbers = known((bounds[k], bounds[k + len(axes)], step, shape[axis]))
        found.append((axis, None if numbers is None else window_of(*numbers)))
    return found


def _slice_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    sizes = list(inputs[0].shape)
    for axis, places in _places(attributes, inputs[0].shape, inputs[1:], label):
        sizes[axis] = None if places is None else len(places)
    return only(TensorInfo(tuple(sizes), inputs[0].dtype))


def _as_slice(
    tensor: Tensor, likes: Sequence[Tensor], attributes: Attributes
) -> tuple[list[int], Attributes] | None:
    """The axes to reverse, and the attributes of the slice of what they give."""
    found = _places(attributes, tensor.shape, [like.info for like in likes], "slice")
    windows: list[tuple[int, int | None, int]] = [(0, None, 1)] * len(tensor.shape)
    backwards = []
    for axis, places in found:
        size = tensor.shape[axis]
        if places is None or size is None:
            return None
        start, stop = places.start, places.stop
        if places.step < 0:
            backwards.append(axis)
            start, stop = size - 1 - start, size - 1 - stop
        windows[axis] = (start, stop, abs(places.step)) if places else (0, 0, 1)
    starts, ends, strides = zip(*windows, strict=True)
    return backwards, {"starts": starts, "ends": ends, "strides": strides}


def _slice_lower(g: Graph, inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor] | None:
    (tensor, *likes) = inputs
    found = _as_slice(tensor, likes, attributes)
    if found is None:
        return None
    backwards, columns = found
    tensor = g.reverse(tensor, axes=backwards) if backwards else tensor
    return [g.add_node_named("slice", (tensor,), columns)]


def _slice_derivative(g: Graph, node: Node, gradients: Gradients, needs: list[bool]) -> Gradients:
    gradient = single(gradients)
    found = g.add_node_named("slice_to_gradient", (gradient, *node.inputs), node.attributes)
    return [found, *[None] * (len(node.inputs) - 1)]


def _slice_gradient_infer(
    inputs: Infos, attributes: Attributes, label: str
) -> dict[str, TensorInfo]:
    _slice_infer(inputs[1:], attributes, label)
    return only(TensorInfo(inputs[1].shape, inputs[0].dtype))


def _slice_gradient_lower(
    g: Graph, inputs: Sequence[Tensor], attributes: Attributes
) -> list[Tensor] | None:
    gradient, tensor, *likes = inputs
    found, shape = _as_slice(tensor, likes, attributes), known(tensor.shape)
    if found is None or shape is None:
        return None
    backwards, columns = found
    whole = g.add_node_named("put_slice", (gradient,), {**columns, "shape": shape})
    return [g.reverse(whole, axes=backwards) if backwards else whole]


# Equal parts of an axis whose size is not known


def _split_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    (info,), count = inputs, attributes["count"]
    axis = axis_of(label, "axis", attributes["axis"], len(info.shape))
    sizes: Sequence[int | None] = [None] * count
    if count < 1 or info.shape[axis] is not None:
        sizes = parts_of(info.shape[axis] or 0, count, attributes["even"], label)
    return {
        str(k): TensorInfo((*info.shape[:axis], size, *info.shape[axis + 1 :]), info.dtype)
        for k, size in enumerate(sizes)
    }


def parts_of(size: int, count: int, even: bool, label: str) -> list[int]:
    """The sizes of ``count`` parts of an axis, the last one smaller unless all must be equal."""
    each = -(-size // count) if count > 0 else 0
    last = size - each * (count - 1)
    if count < 1 or last < 0 or (even and last != each):
        expected = f"{count} {'equal ' if even else ''}parts of its axis"
        raise ShapeError(refusal(label, "tensor", expected, f"a size of {size}"))
    return [each] * (count - 1) + [last]


def _split_lower(g: Graph, inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor] | None:
    axis = attributes["axis"]
    size = inputs[0].shape[axis]
    if size is None:
        return None
    sizes = parts_of(size, attributes["count"], attributes["even"], "split")
    return g.split(inputs[0], sizes, axis=axis)


# A check of a shape


def _expect_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    shape, low = inputs[0].shape, attributes["least"]
    wanted = _sizes(attributes, inputs[1:], label)
    fits = len(shape) == len(wanted) == len(low) and all(
        size is None or (size >= least and (size == other or other in (None, -1)))
        for size, other, least in zip(shape, wanted, low, strict=True)
    )
    if not fits:
        texts = [
            f"≥{least}" if size == -1 else "?" if size is None else str(size)
            for size, least in zip(wanted, low, strict=True)
        ]
        operation, _, name = attributes["what"].partition(" ")
        raise ShapeError(refusal(operation, name, f"[{','.join(texts)}]", brackets(shape)))
    sizes = tuple(b if a is None and b != -1 else a for a, b in zip(shape, wanted, strict=True))
    return only(TensorInfo(sizes, inputs[0].dtype))


def _expect_lower(
    g: Graph, inputs: Sequence[Tensor], attributes: Attributes
) -> list[Tensor] | None:
    infos = [tensor.info for tensor in inputs]
    _expect_infer(infos, attributes, attributes["what"])
    wanted = _sizes(attributes, infos[1:], attributes["what"])
    is_open = any(
        other is None or (size is None and (other != -1 or least > 0))
        for size, other, least in zip(infos[0].shape, wanted, attributes["least"], strict=True)
    )
    return None if is_open else [inputs[0]]


def _expect_derivative(g: Graph, node: Node, gradients: Gradients, needs: list[bool]) -> Gradients:
    return [*gradients, *[None] * (len(node.inputs) - 1)]


_KINDS = {"sizes": "names"}
_SLICE = {"sizes": "names", "axes": "ints", "strides": "ints"}
_LIKES = ("tensor", "tensors")
_PASSIVE = tuple(range(1, 64))
ROWS = (
    Op(
        "reshape_to",
        _reshape_infer,
        None,
        _reshape_derivative,
        _reshape_lower,
        operands=_LIKES,
        kinds=_KINDS,
        passive=_PASSIVE,
    ),
    Op(
        "broadcast_to",
        _broadcast_infer,
        None,
        _broadcast_derivative,
        _broadcast_lower,
        operands=_LIKES,
        kinds=_KINDS,
        passive=_PASSIVE,
    ),
    Op(
        "slice_to",
        _slice_infer,
        None,
        _slice_derivative,
        _slice_lower,
        operands=_LIKES,
        kinds=_SLICE,
        passive=_PASSIVE,
    ),
    Op(
        "slice_to_gradient",
        _slice_gradient_infer,
        lower=_slice_gradient_lower,
        operands=("gradient", *_LIKES),
        kinds=_SLICE,
        passive=_PASSIVE,
    ),
    Op(
        "split_evenly",
        _split_infer,
        None,
        split_derivative,
        _split_lower,
        kinds={"count": "int", "axis": "int", "even": "bool"},
    ),
    Op(
        "expect_sizes",
        _expect_infer,
        None,
        _expect_derivative,
        _expect_lower,
        operands=_LIKES,
        kinds={"sizes": "names", "least": "ints", "what": "str"},
        passive=_PASSIVE,
    ),
    Op("sizes", _values_infer, lower=_values_lower, operands=("tensors",), kinds=_KINDS),
    Op("range_to", _range_infer, lower=_range_lower, operands=("tensors",), kinds=_KINDS),
)
