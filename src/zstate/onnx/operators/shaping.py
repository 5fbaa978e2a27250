"""Operators that rearrange a tensor: reshape, slice, join, pad, broadcast."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...errors import OptionError, ShapeError, refusal
from ...graph import Graph, Tensor
from ...graph.ops.base import axis_of
from ...graph.ops.sized import parts_of
from ..node import Node, Row
from ..sizes import Size, expect_sizes, sized_node

_FAR = 2**31 - 1  # what exporters write for "to the end" is at least this
_END = 2**53  # beyond any axis


def _transpose(node: Node) -> list[Tensor]:
    x = node.tensor(0)
    axes = node.attribute("perm") or list(range(len(x.shape)))[::-1]
    return [node.graph.transpose(x, axes)]


def _reshape(node: Node) -> list[Tensor]:
    x = node.tensor(0)
    wanted = node.sizes(1)
    keep = not node.attribute("allowzero", 0)
    sizes = []
    for axis, size in enumerate(wanted):
        if size == 0 and keep:
            if axis >= len(x.shape):
                expected = f"a 0 within {len(x.shape)} dimensions"
                raise ShapeError(refusal("Reshape", "shape", expected, f"axis {axis}"))
            size = node.size(x, axis)
        sizes.append(size)
    return [reshaped(node, x, sizes, keep)]


def reshaped(node: Node, x: Tensor, sizes: list[int | Size], keep: bool = False) -> Tensor:
    """The tensor in another shape; -1 is what is left, resolved where the sizes cancel out. With
    ``keep``, a size that turns out to be 0 is that of the tensor's own axis."""
    own = [node.size(x, axis) for axis in range(len(x.shape)) if keep]
    computed = [
        isinstance(size, Size) and size not in own[k : k + 1] for k, size in enumerate(sizes)
    ]
    whole: Any = math.prod(node.shape(x))
    part: Any = math.prod(size for size in sizes if size != -1)
    if sum(1 for size in sizes if size == -1) == 1 and isinstance(whole, Size) and part != 0:
        left = whole.divided(part)
        used = part.axes() if isinstance(part, Size) else set()
        if left is not None and all(tensor is x for tensor, _ in used):
            sizes = [left if size == -1 else size for size in sizes]
            if used:  # beside a size of 0 nothing says what is left
                least = [int((x, axis) in used) for axis in range(len(x.shape))]
                x = expect_sizes(x, [-1] * len(x.shape), "Reshape data beside -1", least)
    numbers = [-1 if isinstance(size, Size) else size for size in sizes]
    if numbers.count(-1) == 1 and 0 not in numbers and math.prod(sizes) == whole:
        # One size is unknown, and is what is left: for any input, as the others cancel out.
        return node.graph.reshape(x, numbers)
    pairs = [
        (size, own[k]) if k < len(own) and computed[k] else size for k, size in enumerate(sizes)
    ]
    return sized_node(node.graph, "reshape_to", x, pairs)


def _flatten(node: Node) -> list[Tensor]:
    x, axis = node.tensor(0), int(node.attribute("axis", 1))
    rank = len(x.shape)
    if not -rank <= axis <= rank:
        raise ShapeError(refusal("Flatten", "axis", f"within {rank} dimensions", str(axis)))
    axis = axis + rank if axis < 0 else axis
    sizes = node.shape(x)
    return [reshaped(node, x, [math.prod(sizes[:axis]), math.prod(sizes[axis:])])]


def _squeeze(node: Node) -> list[Tensor]:
    x, axes = node.tensor(0), node.axes()
    if axes is not None and x.node.op.name == "expand_dims":
        # The direction of a recurrent node, which most models take away at once.
        added = x.node.attributes["axes"]
        if sorted(axis % len(x.shape) for axis in axes) == sorted(a % len(x.shape) for a in added):
            return [x.node.inputs[0]]
    axes = axes or None  # ONNX Runtime takes no axes for all of them
    if axes is None and None in x.shape:  # the number of dimensions would depend on the run
        raise ShapeError(
            refusal("Squeeze", "axes", "axes, because a size is unknown", f"none for {x}")
        )
    return [node.graph.squeeze(x, axes=axes)]


def _unsqueeze(node: Node) -> list[Tensor]:
    return [node.graph.expand_dims(node.tensor(0), axes=node.axes() or [])]


def _expand(node: Node) -> list[Tensor]:
    return [broadcast(node.graph, node.tensor(0), node.sizes(1))]


def broadcast(g: Graph, x: Tensor, sizes: Sequence[int | Size]) -> Tensor:
    """The tensor and ``sizes`` broadcast with each other."""
    return sized_node(g, "broadcast_to", x, sizes)


def _concat(node: Node) -> list[Tensor]:
    return [node.graph.concat_tensors(node.tensors(), axis=int(node.attribute("axis", 0)))]


def _split(node: Node) -> list[Tensor]:
    g, x, axis = node.graph, node.tensor(0), int(node.attribute("axis", 0))
    sizes = node.ints(1) if node.has(1) else node.attribute("split")
    count = int(node.attribute("num_outputs", len(node.outputs)))
    if count != len(node.outputs):
        raise OptionError(refusal("Split", "num_outputs", str(len(node.outputs)), str(count)))
    if sizes is not None:
        return g.split(x, sizes, axis=axis)
    # Before opset 18 the parts are equal; since, the last one may be smaller.
    axis, even = axis_of("Split", "axis", axis, len(x.shape)), node.opset < 18
    size = x.shape[axis]
    if size is not None:
        return g.split(x, parts_of(size, count, even, "Split"), axis=axis)
    return g.apply_many("split_evenly", (x,), {"count": count, "axis": axis, "even": even})


def _slice(node: Node) -> list[Tensor]:
    g, x = node.graph, node.tensor(0)
    starts: list[int | Size]
    ends: list[int | Size]
    if node.opset < 10:
        starts, ends = node.attribute("starts"), node.attribute("ends")
        axes = node.attribute("axes") or list(range(len(starts)))
        steps = [1] * len(starts)
    else:
        starts, ends = node.sizes(1), node.sizes(2)
        axes = node.ints(3) if node.has(3) else list(range(len(starts)))
        steps = node.ints(4) if node.has(4) else [1] * len(starts)
    rank = len(x.shape)
    places = [axis_of("Slice", "axes", axis, rank) for axis in axes]
    if len({*places}) != len(places) or not len(starts) == len(ends) == len(axes) == len(steps):
        expected = "a start, an end and a step for every axis once"
        raise ShapeError(refusal("Slice", "axes", expected, str(axes)))
    parts = [*zip(places, starts, ends, steps, strict=True)]
    parts = [(a, s, _END if e == node.size(x, a) else e, k) for a, s, e, k in parts]
    parts = [part for part in parts if not (part[1] == 0 and _is_far(part[2]) and part[3] == 1)]
    if not parts:
        return [x]
    axes, starts, ends, steps = (list(column) for column in zip(*parts, strict=True))
    bounds = [_near(bound) for bound in starts + ends]
    return [sized_node(g, "slice_to", x, bounds, axes=tuple(axes), strides=tuple(steps))]


def _is_far(bound: int | Size) -> bool:
    return isinstance(bound, int) and bound >= _FAR


def _near(bound: int | Size) -> int | Size:
    """A bound that a text holds; no axis is longer."""
    return bound if isinstance(bound, Size) else max(-_END, min(bound, _END))


def _tile(node: Node) -> list[Tensor]:
    g, x = node.graph, node.tensor(0)
    counts = node.sizes(1)
    sizes = [size * count for size, count in zip(node.shape(x), counts, strict=True)]
    axes = [axis for axis, count in enumerate(counts) if count != 1]
    if not axes:
        return [x]
    # Every repeated axis behind one of its own, which is broadcast and merged with it.
    whole = g.expand_dims(x, axes=[axis + place for place, axis in enumerate(axes)])
    ones: list[int | Size] = [1] * len(whole.shape)
    for place, axis in enumerate(axes):
        ones[axis + place] = counts[axis]
    return [reshaped(node, broadcast(g, whole, ones), sizes)]


def _pad(node: Node) -> list[Tensor]:
    g, x = node.graph, node.tensor(0)
    rank = len(x.shape)
    mode = node.attribute("mode", "constant")
    pads = node.attribute("pads") if node.opset < 11 else node.ints(1)
    value: Any = node.attribute("value", 0.0) if node.opset < 11 else 0
    if node.has(2):
        value = node.known(2).item()
        value = int(value) if isinstance(value, bool) else value
    axes = [axis_of("Pad", "axes", a, rank) for a in (node.ints(3) if node.has(3) else range(rank))]
    if len({*axes}) != len(axes) or len(pads) != 2 * len(axes):
        expected = f"two for each of the axes {axes}, each axis once"
        raise ShapeError(refusal("Pad", "pads", expected, str(len(pads))))
    left, right = [0] * rank, [0] * rank
    for place, axis in enumerate(axes):
        left[axis], right[axis] = pads[place], pads[place + len(axes)]
    modes = {"constant": "constant", "reflect": "reflect", "edge": "clamp_to_edge"}
    if mode not in modes or min(left + right, default=0) < 0:
        expected = f"{', '.join(modes)} with pads of at least 0"
        raise OptionError(refusal("Pad", "mode", expected, f"{mode} with {pads}"))
    return [g.pad_tensor(x, left, right, padding_mode=modes[mode], constant_value=value)]


ROWS: dict[str, Row] = {
    "Concat": _concat,
    "Expand": _expand,
    "Flatten": _flatten,
    "Pad": _pad,
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
