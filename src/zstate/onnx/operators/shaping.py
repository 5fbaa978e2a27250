"""Operators that rearrange a tensor: reshape, slice, join, pad, broadcast."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...errors import OptionError, ShapeError, refusal
from ...graph import Graph, Tensor
from ..loading import Node, Row
from ..sizes import Size, sized_node

_FAR = 2**31 - 1  # what exporters write for "to the end" is at least this


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
    return [reshaped(node, x, sizes)]


def reshaped(node: Node, x: Tensor, sizes: list[int | Size]) -> Tensor:
    """The tensor in another shape; -1 is what is left, resolved where the sizes cancel out."""
    if sum(1 for size in sizes if size == -1) == 1:
        whole: Any = math.prod(node.shape(x))
        part: Any = math.prod(size for size in sizes if size != -1)
        if isinstance(whole, Size):
            left = whole.divided(part)
            if left is not None:
                sizes = [left if size == -1 else size for size in sizes]
    if sum(1 for size in sizes if isinstance(size, Size)) == 1 and -1 not in sizes:
        sizes = [-1 if isinstance(size, Size) else size for size in sizes]
    numbers = [size for size in sizes if not isinstance(size, Size)]
    if len(numbers) == len(sizes):
        return node.graph.reshape(x, numbers)
    return sized_node(node.graph, "reshape_to", x, sizes)


def _flatten(node: Node) -> list[Tensor]:
    x, axis = node.tensor(0), int(node.attribute("axis", 1))
    rank = len(x.shape)
    if not -rank <= axis <= rank:
        raise ShapeError(refusal("Flatten", "axis", f"within {rank} dimensions", str(axis)))
    axis = axis + rank if axis < 0 else axis
    sizes = node.shape(x)
    return [reshaped(node, x, [math.prod(sizes[:axis]), math.prod(sizes[axis:])])]


def _axes(node: Node, index: int = 1) -> list[int] | None:
    """Axes: an attribute in older opsets, an input since."""
    if node.has(index):
        return node.ints(index)
    found: list[int] | None = node.attribute("axes")
    return found


def _squeeze(node: Node) -> list[Tensor]:
    x, axes = node.tensor(0), _axes(node)
    if axes is not None and x.node.op.name == "expand_dims":
        # The direction of a recurrent node, which most models take away at once.
        added = x.node.attributes["axes"]
        if sorted(axis % len(x.shape) for axis in axes) == sorted(a % len(x.shape) for a in added):
            return [x.node.inputs[0]]
    return [node.graph.squeeze(x, axes=axes)]


def _unsqueeze(node: Node) -> list[Tensor]:
    return [node.graph.expand_dims(node.tensor(0), axes=_axes(node) or [])]


def _expand(node: Node) -> list[Tensor]:
    return [broadcast(node.graph, node.tensor(0), node.sizes(1))]


def broadcast(g: Graph, x: Tensor, sizes: Sequence[int | Size]) -> Tensor:
    """The tensor and ``sizes`` broadcast with each other."""
    return sized_node(g, "broadcast_to", x, sizes)


def _concat(node: Node) -> list[Tensor]:
    tensors = [node.tensor(k) for k in range(len(node.inputs))]
    return [node.graph.concat_tensors(tensors, axis=int(node.attribute("axis", 0)))]


def _split(node: Node) -> list[Tensor]:
    g, x, axis = node.graph, node.tensor(0), int(node.attribute("axis", 0))
    sizes = node.ints(1) if node.has(1) else node.attribute("split")
    count = int(node.attribute("num_outputs", len(node.outputs)))
    if sizes is None:
        size = node.size(x, axis)
        if isinstance(size, Size):
            raise ShapeError(refusal("Split", "input", f"a known size of axis {axis}", str(x)))
        each = -(-size // count)
        sizes = [each] * (count - 1) + [size - each * (count - 1)]
    return g.split(x, sizes, axis=axis)


def _slice(node: Node) -> list[Tensor]:
    g, x = node.graph, node.tensor(0)
    if node.opset < 10:
        starts, ends = node.attribute("starts"), node.attribute("ends")
        axes = node.attribute("axes") or list(range(len(starts)))
        steps = [1] * len(starts)
    else:
        starts, ends = node.ints(1), _ends(node, x)
        axes = node.ints(3) if node.has(3) else list(range(len(starts)))
        steps = node.ints(4) if node.has(4) else [1] * len(starts)
    rank = len(x.shape)
    windows: list[tuple[int, int | None, int]] = [(0, None, 1)] * rank
    backwards = []
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if not -rank <= axis < rank:
            raise ShapeError(refusal("Slice", "axes", f"axes of {rank} dimensions", str(axis)))
        axis %= rank
        if step < 0:
            backwards.append(axis)
            start, end, step = _mirrored(node, x, axis, start, end, step)
        windows[axis] = (start, None if end is None or end >= _FAR else end, step)
    if backwards:
        x = g.reverse(x, axes=backwards)
    if all(window == (0, None, 1) for window in windows):
        return [x]
    return [g.strided_slice(x, *([*column] for column in zip(*windows, strict=True)))]


def _ends(node: Node, x: Tensor) -> list[int | None]:
    """The ends of a slice; the size of the very axis is its end."""
    axes = node.ints(3) if node.has(3) else list(range(len(x.shape)))
    found: list[int | None] = []
    for end, axis in zip(node.sizes(2), axes, strict=False):
        if not isinstance(end, Size):
            found.append(end)
        elif -len(x.shape) <= axis < len(x.shape) and end == node.size(x, axis):
            found.append(None)
        else:
            raise OptionError(refusal("Slice", "ends", "known bounds", repr(end)))
    return found


def _mirrored(
    node: Node, x: Tensor, axis: int, start: int, end: int | None, step: int
) -> tuple[int, int | None, int]:
    """The window of the reversed axis that a slice with a negative step is."""
    size = x.shape[axis]
    if size is not None:
        first, last, step = slice(start, end, step).indices(size)
        return size - 1 - first, size - 1 - last, -step
    if (0 <= start < _FAR) or end is None or end >= 0:
        expected = "bounds from the back, as the size is unknown"
        raise OptionError(refusal("Slice", "starts and ends", expected, f"{start} and {end}"))
    first = 0 if start >= _FAR else -start - 1
    return first, None if end <= -_FAR else -end - 1, -step


def _tile(node: Node) -> list[Tensor]:
    g, x = node.graph, node.tensor(0)
    for axis, count in enumerate(node.ints(1)):
        if count < 1:
            raise OptionError(refusal("Tile", "repeats", "at least 1", str(count)))
        x = g.concat_tensors([x] * count, axis=axis) if count > 1 else x
    return [x]


def _pad(node: Node) -> list[Tensor]:
    g, x = node.graph, node.tensor(0)
    rank = len(x.shape)
    mode = node.attribute("mode", "constant")
    pads = node.attribute("pads") if node.opset < 11 else node.ints(1)
    value: Any = node.attribute("value", 0.0) if node.opset < 11 else 0.0
    if node.has(2):
        value = node.known(2).item()
    axes = node.ints(3) if node.has(3) else list(range(rank))
    left, right = [0] * rank, [0] * rank
    for place, axis in enumerate(axes):
        left[axis], right[axis] = pads[place], pads[place + len(axes)]
    modes = {"constant": "constant", "reflect": "reflect", "edge": "clamp_to_edge"}
    if mode not in modes or min(left + right, default=0) < 0:
        expected = f"{', '.join(modes)} with pads of at least 0"
        raise OptionError(refusal("Pad", "mode", expected, f"{mode} with {pads}"))
    return [g.pad_tensor(x, left, right, padding_mode=modes[mode], constant_value=float(value))]


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
