"""Rows that move elements without computing: transpose, reshape, concat, slice and others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import ShapeError, refusal
from ...layout import TensorInfo, brackets
from .base import (
    Attributes,
    Gradients,
    Infos,
    Op,
    agree,
    axes_of,
    axis_of,
    broadcast_shapes,
    known,
    only,
    require_same_type,
    single,
)
from .like import concat_gradient, reshape_like, slice_gradient, sliced, sum_like, windows

if TYPE_CHECKING:
    from ...arrays import Namespace
    from ..graph import Graph
    from ..tensor import Node, Tensor


# transpose


def _transpose_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    (info,), axes = inputs, attributes["permutation"]
    if sorted(axes) != list(range(len(info.shape))):
        expected = f"a permutation of {len(info.shape)} axes"
        raise ShapeError(refusal(label, "permutation", expected, brackets(axes)))
    return only(TensorInfo(tuple(info.shape[axis] for axis in axes), info.dtype))


def _transpose_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    axes, permute = attributes["permutation"], xp.permute_dims
    return lambda array: permute(array, axes)


def _transpose_derivative(
    g: Graph, node: Node, gradients: Gradients, needs: list[bool]
) -> Gradients:
    axes = node.attributes["permutation"]
    back = sorted(range(len(axes)), key=axes.__getitem__)
    return [g.transpose(single(gradients), back)]


def _transpose_lower(
    g: Graph, inputs: Sequence[Tensor], attributes: Attributes
) -> list[Tensor] | None:
    """Two transpositions become one, and one that changes nothing becomes none."""
    (tensor,), axes = inputs, attributes["permutation"]
    if list(axes) == sorted(axes):
        return [tensor]
    if tensor.node.op is TRANSPOSE:
        first = tensor.node.attributes["permutation"]
        return [g.transpose(tensor.node.inputs[0], [first[axis] for axis in axes])]
    return None


# reshape, expand_dims, squeeze


def _reshape_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    (info,), wanted = inputs, attributes["shape"]
    sizes: list[int | None] = list(wanted)
    whole = known(info.shape)
    fixed = math.prod(size for size in wanted if size != -1)
    expected = f"sizes with as many elements as {brackets(info.shape)}, at most one of them -1"
    if sizes.count(-1) > 1 or any(size < -1 for size in wanted):
        raise ShapeError(refusal(label, "shape", expected, brackets(wanted)))
    if -1 in sizes:
        filled = None
        if whole is not None:
            filled = math.prod(whole) // fixed if fixed else 0
            if filled * fixed != math.prod(whole):
                raise ShapeError(refusal(label, "shape", expected, brackets(wanted)))
        sizes[sizes.index(-1)] = filled
    elif whole is not None and math.prod(whole) != fixed:
        raise ShapeError(refusal(label, "shape", expected, brackets(wanted)))
    return only(TensorInfo(tuple(sizes), info.dtype))


def _reshape_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    (shape,) = (_reshape_infer(inputs, attributes, "reshape")[""].shape,)
    reshape = xp.reshape
    return lambda array: reshape(array, shape)


def _reshape_derivative(g: Graph, node: Node, gradients: Gradients, needs: list[bool]) -> Gradients:
    return [reshape_like(g, single(gradients), node.inputs[0])]


def _reshape_lower(
    g: Graph, inputs: Sequence[Tensor], attributes: Attributes
) -> list[Tensor] | None:
    """A reshape of a reshape is one, and one that changes nothing is none."""
    (tensor,) = inputs
    if tensor.shape == attributes["shape"]:
        return [tensor]
    if tensor.node.op is RESHAPE and -1 not in attributes["shape"]:
        return [g.reshape(tensor.node.inputs[0], attributes["shape"])]
    return None


def _expand_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    (info,), axes = inputs, attributes["axes"]
    rank = len(info.shape) + len(axes)
    placed = axes_of(label, axes, rank)
    sizes = iter(info.shape)
    shape = tuple(1 if axis in placed else next(sizes) for axis in range(rank))
    return only(TensorInfo(shape, info.dtype))


def _expand_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    axes = axes_of(
        "expand_dims", attributes["axes"], len(inputs[0].shape) + len(attributes["axes"])
    )
    expand = xp.expand_dims
    return lambda array: expand(array, axis=axes)


def _squeeze_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    (info,) = inputs
    axes = axes_of(label, attributes["axes"], len(info.shape))
    for axis in axes:
        if info.shape[axis] not in (1, None):
            expected = "axes of size 1"
            got = f"axis {axis} of {brackets(info.shape)}"
            raise ShapeError(refusal(label, "axes", expected, got))
    shape = tuple(size for axis, size in enumerate(info.shape) if axis not in axes)
    return only(TensorInfo(shape, info.dtype))


def _squeeze_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    shape = _squeeze_infer(inputs, attributes, "squeeze")[""].shape
    reshape = xp.reshape
    return lambda array: reshape(array, shape)


# broadcast


def _broadcast_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    (info,), wanted = inputs, attributes["shape"]
    if any(size < 0 for size in wanted):
        raise ShapeError(refusal(label, "shape", "sizes of at least 0", brackets(wanted)))
    found = broadcast_shapes(label, ("shape", "tensor"), [wanted, info.shape])
    # An unknown size broadcast to 1 has to be 1; the program checks it.
    if len(found) != len(wanted) or any(
        a not in (None, b) for a, b in zip(found, wanted, strict=True)
    ):
        expected = f"a shape that broadcasts to {brackets(wanted)}"
        raise ShapeError(refusal(label, "tensor", expected, brackets(info.shape)))
    return only(TensorInfo(wanted, info.dtype))


def _broadcast_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    shape, broadcast = attributes["shape"], xp.broadcast_to
    return lambda array: broadcast(array, shape)


def _broadcast_derivative(
    g: Graph, node: Node, gradients: Gradients, needs: list[bool]
) -> Gradients:
    return [sum_like(g, single(gradients), node.inputs[0])]


# concat, stack, split


def _concat_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    first = inputs[0]
    require_same_type(label, [f"tensors[{k}]" for k in range(len(inputs))], inputs)
    axis = axis_of(label, "axis", attributes["axis"], len(first.shape))
    sizes: list[int | None] = list(first.shape)
    total: int | None = 0
    for k, info in enumerate(inputs):
        fits = len(info.shape) == len(sizes) and all(
            a is None or b is None or a == b or place == axis
            for place, (a, b) in enumerate(zip(info.shape, sizes, strict=True))
        )
        if not fits:
            expected = f"{brackets(first.shape)} outside axis {axis}"
            raise ShapeError(refusal(label, f"tensors[{k}]", expected, brackets(info.shape)))
        sizes = [b if a is None else a for a, b in zip(info.shape, sizes, strict=True)]
        piece = info.shape[axis]
        total = None if total is None or piece is None else total + piece
    sizes[axis] = total
    return only(TensorInfo(tuple(sizes), first.dtype))


def _concat_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    axis, concat = attributes["axis"], xp.concat
    return lambda *arrays: concat(arrays, axis=axis)


def _concat_derivative(g: Graph, node: Node, gradients: Gradients, needs: list[bool]) -> Gradients:
    axis = axis_of("concat", "axis", node.attributes["axis"], len(node.inputs[0].shape))
    return [*concat_gradient(g, single(gradients), node.inputs, axis)]


def _stack_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    first = inputs[0]
    require_same_type(label, [f"tensors[{k}]" for k in range(len(inputs))], inputs)
    sizes: list[int | None] = list(first.shape)
    for k, info in enumerate(inputs):
        if not agree(info.shape, tuple(sizes)):
            name = f"tensors[{k}]"
            raise ShapeError(refusal(label, name, brackets(first.shape), brackets(info.shape)))
        sizes = [b if a is None else a for a, b in zip(info.shape, sizes, strict=True)]
    axis = axis_of(label, "axis", attributes["axis"], len(sizes) + 1)
    sizes.insert(axis, len(inputs))
    return only(TensorInfo(tuple(sizes), first.dtype))


def _stack_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    axis, stack = attributes["axis"], xp.stack
    return lambda *arrays: stack(arrays, axis)


def _stack_derivative(g: Graph, node: Node, gradients: Gradients, needs: list[bool]) -> Gradients:
    axis = node.attributes["axis"]
    parts = g.split(single(gradients), [1] * len(node.inputs), axis=axis)
    return [g.squeeze(part, axes=[axis]) for part in parts]


def _split_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    (info,), sizes = inputs, attributes["sizes"]
    axis = axis_of(label, "axis", attributes["axis"], len(info.shape))
    wrong = not sizes or any(size < 0 for size in sizes)
    if wrong or info.shape[axis] not in (None, sum(sizes)):
        whole = "the size of the axis" if info.shape[axis] is None else info.shape[axis]
        expected = f"sizes that sum to {whole}"
        raise ShapeError(refusal(label, "split_sizes", expected, brackets(sizes)))
    return {
        str(k): TensorInfo((*info.shape[:axis], size, *info.shape[axis + 1 :]), info.dtype)
        for k, size in enumerate(sizes)
    }


def _split_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    axis = axis_of("split", "axis", attributes["axis"], len(inputs[0].shape))
    places, start = [], 0
    for size in attributes["sizes"]:
        places.append((slice(None),) * axis + (slice(start, start + size),))
        start += size
    return lambda array: tuple(array[place] for place in places)


def split_derivative(g: Graph, node: Node, gradients: Gradients, needs: list[bool]) -> Gradients:
    """The pieces' gradients joined; zeros for a piece that nothing reads."""
    from .like import zeros_like

    pieces = [
        zeros_like(g, result) if gradient is None else gradient
        for result, gradient in zip(node.results, gradients, strict=True)
    ]
    return [g.concat_tensors(pieces, axis=node.attributes["axis"])]


# slice and its inverse, reverse


def _slice_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    (info,) = inputs
    return only(TensorInfo(sliced(info.shape, attributes, label), info.dtype))


def _slice_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    places = tuple(windows(attributes))
    return lambda array: array[places]


def _slice_derivative(g: Graph, node: Node, gradients: Gradients, needs: list[bool]) -> Gradients:
    return [slice_gradient(g, single(gradients), node.inputs[0], node.attributes)]


def _put_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    if any(size < 0 for size in attributes["shape"]):
        got = brackets(attributes["shape"])
        raise ShapeError(refusal(label, "shape", "sizes of at least 0", got))
    whole = TensorInfo(attributes["shape"], inputs[0].dtype)
    hole = _slice_infer([whole], attributes, label)[""].shape
    if not agree(inputs[0].shape, hole):
        raise ShapeError(refusal(label, "tensor", brackets(hole), brackets(inputs[0].shape)))
    return only(whole)


def _put_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    shape, places = attributes["shape"], tuple(windows(attributes))
    zeros, dtype = xp.zeros, xp.dtype(inputs[0].dtype)

    def put(array: Any) -> Any:
        whole = zeros(shape, dtype)
        whole[places] = array
        return whole

    return put


def _put_derivative(g: Graph, node: Node, gradients: Gradients, needs: list[bool]) -> Gradients:
    a = node.attributes
    return [g.strided_slice(single(gradients), a["starts"], a["ends"], a["strides"])]


def _reverse_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    axes_of(label, attributes["axes"], len(inputs[0].shape))
    return only(inputs[0])


def _reverse_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    axes = axes_of("reverse", attributes["axes"], len(inputs[0].shape))
    flip = xp.flip
    return lambda array: flip(array, axes)


def _reverse_derivative(g: Graph, node: Node, gradients: Gradients, needs: list[bool]) -> Gradients:
    return [g.reverse(single(gradients), axes=node.attributes["axes"])]


_SLICE = {"starts": "ints", "ends": "bounds", "strides": "ints"}
TRANSPOSE = Op(
    "transpose",
    _transpose_infer,
    _transpose_prepare,
    _transpose_derivative,
    _transpose_lower,
    kinds={"permutation": "ints"},
    view=True,
)
RESHAPE = Op(
    "reshape",
    _reshape_infer,
    _reshape_prepare,
    _reshape_derivative,
    _reshape_lower,
    kinds={"shape": "ints"},
    view=True,
)
ROWS = (
    TRANSPOSE,
    RESHAPE,
    Op(
        "expand_dims",
        _expand_infer,
        _expand_prepare,
        _reshape_derivative,
        kinds={"axes": "ints"},
        view=True,
    ),
    Op(
        "squeeze",
        _squeeze_infer,
        _squeeze_prepare,
        _reshape_derivative,
        kinds={"axes": "ints?"},
        view=True,
    ),
    Op(
        "broadcast",
        _broadcast_infer,
        _broadcast_prepare,
        _broadcast_derivative,
        kinds={"shape": "ints"},
        view=True,
    ),
    Op(
        "concat_tensors",
        _concat_infer,
        _concat_prepare,
        _concat_derivative,
        operands=("tensors",),
        kinds={"axis": "int"},
    ),
    Op(
        "stack",
        _stack_infer,
        _stack_prepare,
        _stack_derivative,
        operands=("tensors",),
        kinds={"axis": "int"},
    ),
    Op(
        "split",
        _split_infer,
        _split_prepare,
        split_derivative,
        kinds={"sizes": "ints", "axis": "int"},
        view=True,
    ),
    Op("slice", _slice_infer, _slice_prepare, _slice_derivative, kinds=_SLICE, view=True),
    Op("put_slice", _put_infer, _put_prepare, _put_derivative, kinds={**_SLICE, "shape": "ints"}),
    Op(
        "reverse",
        _reverse_infer,
        _reverse_prepare,
        _reverse_derivative,
        kinds={"axes": "ints?"},
        view=True,
    ),
)
