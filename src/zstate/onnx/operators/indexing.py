"""Operators that look elements up by their indices."""

from __future__ import annotations

import numpy as np

from ...errors import OptionError, ShapeError, refusal
from ...graph import Graph, Tensor
from ...graph.ops.base import axis_of
from ...graph.ops.like import broadcast_like
from ..node import Node, Row
from ..sizes import Size, expect_sizes, sized_node
from .elementwise import cast_to


def _positive(node: Node, index: int, size: int | Size) -> Tensor:
    """Indices with negative ones, which count from the end, replaced by positive ones."""
    g, name = node.graph, node.inputs[index]
    if isinstance(size, int) and name in node.owner.arrays:
        array = node.owner.arrays[name]
        if array.dtype.kind not in "iu":
            raise OptionError(refusal(node.kind, "indices", "integers", str(array.dtype)))
        return g.constant(np.where(array < 0, array + size, array).astype(np.int64))
    indices = cast_to(node.tensor(index), "int64")
    if isinstance(size, int):
        whole = g.constant(np.array(size, np.int64))
    else:
        whole = g.reshape(sized_node(g, "sizes", None, [size]), ())
    return g.select(g.less_than(indices, 0), indices + whole, indices)


def _gather(node: Node) -> list[Tensor]:
    x, axis = node.tensor(0), int(node.attribute("axis", 0))
    return [node.graph.gather(x, _positive(node, 1, node.size(x, axis)), axis=axis)]


def _gather_elements(node: Node) -> list[Tensor]:
    g, x, axis = node.graph, node.tensor(0), int(node.attribute("axis", 0))
    indices = _positive(node, 1, node.size(x, axis))
    # Indices may have fewer places along the other axes: those are the first ones.
    ends = [
        None if axis % len(x.shape) == k or size == b else b
        for k, (size, b) in enumerate(zip(x.shape, indices.shape, strict=True))
    ]
    if any(end is not None for end in ends):
        x = g.strided_slice(x, [0] * len(ends), ends)
    return [g.gather_along_axis(x, indices, axis)]


def _one_hot(node: Node) -> list[Tensor]:
    g, indices = node.graph, node.tensor(0)
    (depth,) = node.ints(1)
    axis = int(node.attribute("axis", -1))
    rank = len(indices.shape) + 1
    if rank == 1:
        raise ShapeError(refusal("OneHot", "indices", "at least one dimension", "none"))
    axis = axis_of("OneHot", "axis", axis, rank)
    whole = g.expand_dims(cast_to(indices, "int64"), axes=[axis])
    whole = g.select(g.less_than(whole, 0), whole + depth, whole)
    places = sized_node(g, "range_to", None, [0, depth, 1])
    places = g.reshape(places, [-1] + [1] * (rank - 1 - axis))
    off, on = g.split(node.tensor(2), [1, 1], axis=0)
    return [g.select(g.equal(whole, places), g.reshape(on, ()), g.reshape(off, ()))]


def within_steps(node: Node, lengths: Tensor, tensor: Tensor) -> Tensor:
    """The lengths as int64; the run rejects any outside 0 to T of [T,N,…]."""
    g = node.graph
    checked = g.add_node_named("expect_lengths", (lengths, tensor), {"what": node.kind})
    return cast_to(checked, "int64")


def within_lengths(g: Graph, tensor: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Whether a step of [T,N,…] lies within its sequence's length, and which one it is backwards.

    Both [T,N]. Behind a length the steps stay as they are, so going backwards is its own inverse.
    """
    size = tensor.shape[0]
    count = Size.axis(tensor, 0) if size is None else size
    steps = g.expand_dims(sized_node(g, "range_to", None, [0, count, 1]), axes=[1])  # [T,1]
    inside = g.less_than(steps, lengths)
    return inside, g.select(inside, lengths - 1 - steps, steps)


def steps_at(g: Graph, tensor: Tensor, places: Tensor) -> Tensor:
    """The steps of [T,N,…] at these places [T,N]."""
    whole = g.expand_dims(places, axes=list(range(2, len(tensor.shape))))
    return g.gather_along_axis(tensor, broadcast_like(g, whole, tensor), 0)


def _are_whole(node: Node, lengths: Tensor, x: Tensor, time: int, batch: int) -> bool:
    """Whether the lengths are one for each sequence, and all of them the number of steps."""
    source, fits = lengths.node, lengths.shape == x.shape[batch : batch + 1] != (None,)
    if source.op.name in ("broadcast", "broadcast_to"):
        to_batch = source.attributes.get("sizes") == (f"1*0.{batch}",)
        fits = fits or (to_batch and source.inputs[1:] == (x,))
        lengths = source.inputs[0]
    values = node.owner.folding.value(lengths)
    return fits and values is not None and all(each == node.size(x, time) for each in values.flat)


def _reverse_sequence(node: Node) -> list[Tensor]:
    g, x = node.graph, node.tensor(0)
    batch, time = int(node.attribute("batch_axis", 1)), int(node.attribute("time_axis", 0))
    if {batch, time} != {0, 1}:
        got = f"batch_axis={batch}, time_axis={time}"
        raise OptionError(refusal("ReverseSequence", "axes", "0 and 1", got))
    if len(x.shape) > 1 and _are_whole(node, node.tensor(1), x, time, batch):
        # A plain reversal, as tf2onnx writes it.
        return [g.reverse(x, axes=[time])]
    axes = [time, batch, *range(2, len(x.shape))]  # its own inverse
    x = x if time == 0 else g.transpose(x, axes)
    lengths = expect_sizes(node.tensor(1), [node.size(x, 1)], "ReverseSequence sequence_lens")
    lengths = within_steps(node, lengths, x)
    _, places = within_lengths(g, x, lengths)
    found = steps_at(g, x, places)
    return [found if time == 0 else g.transpose(found, axes)]


ROWS: dict[str, Row] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "OneHot": _one_hot,
    "ReverseSequence": _reverse_sequence,
}
