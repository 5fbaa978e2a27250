"""Rows that take and put by index: one_hot, gather, scatter-add, and both along an axis.

An index outside its axis is refused when the program runs, in every array library alike; on a
device without waiting for it, once the device has said so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...errors import ShapeError, refusal
from ...layout import TensorInfo, brackets
from .base import (
    Attributes,
    Gradients,
    Infos,
    Op,
    agree,
    axis_of,
    check_number,
    known,
    only,
    require_float,
    require_integer,
    single,
)

if TYPE_CHECKING:
    from ...arrays import Namespace
    from ..graph import Graph
    from ..tensor import Node, Tensor


def _lengths_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    lengths, tensor = inputs
    require_integer(label, "lengths", lengths)
    axis_of(label, "tensor", 0, len(tensor.shape))
    return only(lengths)


def _lengths_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    size, what = inputs[1].shape[0], attributes["what"]
    assert size is not None
    return lambda lengths, tensor: xp.within(lengths, size + 1, what, "sequence_lens")


def _one_hot_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    (info,) = inputs
    require_integer(label, "indices", info)
    if attributes["depth"] < 1:
        raise ShapeError(refusal(label, "depth", "at least 1", str(attributes["depth"])))
    for name in ("on_value", "off_value"):
        check_number(label, name, attributes[name], attributes["dtype"])
    axis = axis_of(label, "axis", attributes["axis"], len(info.shape) + 1)
    shape = (*info.shape[:axis], attributes["depth"], *info.shape[axis:])
    return only(TensorInfo(shape, attributes["dtype"]))


def _one_hot_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    depth, rank = attributes["depth"], len(inputs[0].shape)
    axis = attributes["axis"] % (rank + 1)
    flat = known(inputs[0].shape)
    assert flat is not None
    dtype, integer = xp.dtype(attributes["dtype"]), xp.dtype("int64")
    order = (*range(axis), rank, *range(axis, rank))
    on, off = attributes["on_value"], attributes["off_value"]

    def one_hot(indices: Any) -> Any:
        found = xp.zeros((*flat, depth), dtype)
        if off:
            found[...] = off
        rows = found.reshape(-1, depth)
        picked = xp.reshape(xp.within(indices, depth, "one_hot", "indices"), (-1,))
        xp.put_ones(rows, xp.astype(picked, integer), on)
        return xp.permute_dims(found, order) if axis != rank else found

    return one_hot


def _gather_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    updates, indices = inputs
    require_integer(label, "indices", indices)
    axis = axis_of(label, "axis", attributes["axis"], len(updates.shape))
    shape = (*updates.shape[:axis], *indices.shape, *updates.shape[axis + 1 :])
    return only(TensorInfo(shape, updates.dtype))


def _gather_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    axis = attributes["axis"] % len(inputs[0].shape)
    size = inputs[0].shape[axis]
    assert size is not None
    take = xp.take
    return lambda updates, indices: take(
        updates, xp.within(indices, size, "gather", "indices"), axis
    )


def _scatter_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    updates, indices = inputs
    require_float(label, "updates", updates)
    require_integer(label, "indices", indices)
    _check_extent(label, attributes)
    count, axis = len(indices.shape), attributes["axis"]
    rank = len(updates.shape) - count + 1
    axis = axis_of(label, "axis", axis, rank) if rank > 0 else 0
    window = updates.shape[axis : axis + count]
    if rank < 1 or not agree(window, indices.shape):
        expected = f"{brackets(indices.shape)} of the indices at axis {axis}"
        raise ShapeError(refusal(label, "updates", expected, brackets(updates.shape)))
    shape = (*updates.shape[:axis], attributes["size"], *updates.shape[axis + count :])
    return only(TensorInfo(shape, updates.dtype))


def _scatter_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    shape = known(_scatter_infer(inputs, attributes, "scatter")[""].shape)
    assert shape is not None
    count = len(inputs[1].shape)
    axis = attributes["axis"] % (len(inputs[0].shape) - count + 1)
    rest = shape[:axis] + shape[axis + 1 :]
    size, integer = attributes["size"], xp.dtype("int64")
    forth = (
        *range(axis, axis + count),
        *range(axis),
        *range(axis + count, len(inputs[0].shape)),
    )
    back = (*range(1, axis + 1), 0, *range(axis + 1, len(shape)))

    def scatter(updates: Any, indices: Any) -> Any:
        flat = xp.reshape(xp.within(indices, size, "scatter", "indices"), (-1,))
        rows = xp.reshape(xp.permute_dims(updates, forth), (len(flat), *rest))
        total = xp.scatter_add((size, *rest), xp.astype(flat, integer), rows)
        return xp.permute_dims(total, back) if axis else total

    return scatter


def _scatter_derivative(g: Graph, node: Node, gradients: Gradients, needs: list[bool]) -> Gradients:
    gradient, (_, indices) = single(gradients), node.inputs
    gather = getattr(g, node.op.name.replace("scatter", "gather"))
    return [gather(gradient, indices, axis=node.attributes["axis"]), None]


def _check_extent(label: str, attributes: Attributes) -> None:
    if attributes["size"] < 0:
        raise ShapeError(refusal(label, "size", "at least 0", str(attributes["size"])))


def _along_shape(label: str, outer: TensorInfo | None, indices: TensorInfo, axis: int) -> int:
    require_integer(label, "indices", indices)
    axis = axis_of(label, "axis", axis, len(indices.shape))
    if outer is not None:
        fits = len(outer.shape) == len(indices.shape) and all(
            k == axis or a is None or b is None or a == b
            for k, (a, b) in enumerate(zip(outer.shape, indices.shape, strict=True))
        )
        if not fits:
            expected = f"{brackets(outer.shape)} outside axis {axis}"
            raise ShapeError(refusal(label, "indices", expected, brackets(indices.shape)))
    return axis


def _gather_along_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    updates, indices = inputs
    _along_shape(label, updates, indices, attributes["axis"])
    return only(TensorInfo(indices.shape, updates.dtype))


def _gather_along_prepare(
    xp: Namespace, inputs: Infos, attributes: Attributes
) -> Callable[..., Any]:
    axis = attributes["axis"] % len(inputs[0].shape)
    size = inputs[0].shape[axis]
    assert size is not None
    take, integer, astype = xp.take_along_axis, xp.dtype("int64"), xp.astype
    return lambda updates, indices: take(
        updates, astype(xp.within(indices, size, "gather_along_axis", "indices"), integer), axis
    )


def _scatter_along_infer(
    inputs: Infos, attributes: Attributes, label: str
) -> dict[str, TensorInfo]:
    updates, indices = inputs
    require_float(label, "updates", updates)
    axis = _along_shape(label, None, indices, attributes["axis"])
    _check_extent(label, attributes)
    if not agree(updates.shape, indices.shape):
        expected, got = brackets(indices.shape), brackets(updates.shape)
        raise ShapeError(refusal(label, "updates", expected, got))
    shape = (*updates.shape[:axis], attributes["size"], *updates.shape[axis + 1 :])
    return only(TensorInfo(shape, updates.dtype))


def _scatter_along_prepare(
    xp: Namespace, inputs: Infos, attributes: Attributes
) -> Callable[..., Any]:
    axis = attributes["axis"] % len(inputs[0].shape)
    shape = known(_scatter_along_infer(inputs, attributes, "scatter_along_axis")[""].shape)
    assert shape is not None
    size, integer = attributes["size"], xp.dtype("int64")
    return lambda updates, indices: xp.scatter_along(
        shape,
        axis,
        xp.astype(xp.within(indices, size, "scatter_along_axis", "indices"), integer),
        updates,
    )


_UPDATES = ("updates", "indices")
_AXIS = {"axis": "int"}


def _gathers(
    name: str, infer: Callable[..., dict[str, TensorInfo]], prepare: Callable[..., Any]
) -> tuple[Op, Op]:
    """A row that takes by index, and the row of its gradient, which is a scatter."""

    def derivative(g: Graph, node: Node, gradients: Gradients, needs: list[bool]) -> Gradients:
        gradient, (updates, indices) = single(gradients), node.inputs
        axis = node.attributes["axis"] % len(updates.shape)
        inputs = (gradient, indices, updates)
        return [g.add_node_named(f"{name}_gradient", inputs, {"axis": axis}), None]

    def gradient_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
        gradient, indices, like = inputs
        require_float(label, "gradient", gradient)
        wanted = infer((like, indices), attributes, label)[""].shape
        if not agree(gradient.shape, wanted):
            raise ShapeError(refusal(label, "gradient", brackets(wanted), brackets(gradient.shape)))
        return only(TensorInfo(like.shape, gradient.dtype))

    def lower(g: Graph, inputs: Any, attributes: Attributes) -> list[Tensor] | None:
        gradient, indices, updates = inputs
        size = updates.shape[attributes["axis"]]
        scatter = getattr(g, name.replace("gather", "scatter"))
        return None if size is None else [scatter(gradient, indices, size, attributes["axis"])]

    like = ("gradient", "indices", "like")
    return (
        Op(name, infer, prepare, derivative, operands=_UPDATES, kinds=_AXIS),
        Op(f"{name}_gradient", gradient_infer, lower=lower, operands=like, kinds=_AXIS),
    )


ROWS = (
    # The lengths, if all are within the first axis of the tensor [T,…].
    Op(
        "expect_lengths",
        _lengths_infer,
        _lengths_prepare,
        operands=("lengths", "tensor"),
        kinds={"what": "str"},
        view=True,
        passive=(1,),
    ),
    Op(
        "one_hot",
        _one_hot_infer,
        _one_hot_prepare,
        operands=("indices",),
        kinds={
            "depth": "int",
            "axis": "int",
            "dtype": "dtype",
            "on_value": "number",
            "off_value": "number",
        },
    ),
    *_gathers("gather", _gather_infer, _gather_prepare),
    Op(
        "scatter",
        _scatter_infer,
        _scatter_prepare,
        _scatter_derivative,
        operands=_UPDATES,
        kinds={"size": "int", "axis": "int"},
    ),
    *_gathers("gather_along_axis", _gather_along_infer, _gather_along_prepare),
    Op(
        "scatter_along_axis",
        _scatter_along_infer,
        _scatter_along_prepare,
        _scatter_derivative,
        operands=_UPDATES,
        kinds={"size": "int", "axis": "int"},
    ),
)
