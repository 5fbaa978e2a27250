"""Rows that pad a tensor: with a constant, or with elements of the tensor itself.

Padding with elements of the tensor is a gather along each padded axis, its gradient a scatter-add:
both become those rows as soon as the sizes are known, and each is the derivative of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import OptionError, ShapeError, refusal
from ...layout import TensorInfo, brackets
from ...types import Array, PartialShape
from .base import Attributes, Gradients, Infos, Op, check_number, known, only, require_float, single

if TYPE_CHECKING:
    from ...arrays import Namespace
    from ..graph import Graph
    from ..tensor import Node, Tensor


def _check_sizes(attributes: Attributes, rank: int, label: str) -> None:
    for name in ("left", "right"):
        sizes = attributes[name]
        if len(sizes) != rank or any(size < 0 for size in sizes):
            expected = f"{rank} sizes of at least 0"
            raise ShapeError(refusal(label, f"{name}_padding", expected, brackets(sizes)))


def _resized(shape: PartialShape, attributes: Attributes, sign: int) -> PartialShape:
    """The shape with the padding, or (-1) without it."""
    both = zip(shape, attributes["left"], attributes["right"], strict=True)
    return tuple(None if size is None else size + sign * (a + b) for size, a, b in both)


# With a constant


def _pad_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    (info,) = inputs
    _check_sizes(attributes, len(info.shape), label)
    check_number(label, "constant_value", attributes["value"], info.dtype)
    return only(TensorInfo(_resized(info.shape, attributes, 1), info.dtype))


def _pad_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    shape = known(_pad_infer(inputs, attributes, "pad")[""].shape)
    inner = known(inputs[0].shape)
    assert shape is not None and inner is not None
    window = tuple(
        slice(left, left + size) for left, size in zip(attributes["left"], inner, strict=True)
    )
    value, zeros, dtype = attributes["value"], xp.zeros, xp.dtype(inputs[0].dtype)

    def pad(array: Any) -> Any:
        whole = zeros(shape, dtype)
        if value:
            whole[...] = value
        whole[window] = array
        return whole

    return pad


def _pad_derivative(g: Graph, node: Node, gradients: Gradients, needs: list[bool]) -> Gradients:
    left, right = node.attributes["left"], node.attributes["right"]
    ends = [-size if size else None for size in right]
    return [g.strided_slice(single(gradients), left, ends, [1] * len(left))]


# Padding with elements of the tensor: which one is at index i of an axis of a size, i from -left to
# size + right - 1, and how much padding that many elements allow.


def _reflected(i: Array, size: int) -> Array:
    return size - 1 - abs(size - 1 - abs(i))


def _symmetric(i: Array, size: int) -> Array:
    return np.where(i < 0, -1 - i, np.where(i < size, i, 2 * size - 1 - i))


def _clamped(i: Array, size: int) -> Array:
    return i.clip(0, size - 1)


_PLACES: dict[str, Callable[[Array, int], Array]] = {
    "reflect": _reflected,
    "symmetric": _symmetric,
    "clamp_to_edge": _clamped,
}
PADDING_MODES = ("constant", "zero", *_PLACES)


def _check_mode(shape: Sequence[int | None], attributes: Attributes, label: str) -> None:
    """``shape`` is that without the padding."""
    mode = attributes["mode"]
    if not isinstance(mode, str) or mode not in _PLACES:
        raise OptionError(
            refusal(label, "padding_mode", f"one of {', '.join(PADDING_MODES)}", repr(mode))
        )
    _check_sizes(attributes, len(shape), label)
    for axis, size in enumerate(shape):
        if size is None:
            continue
        most = {"reflect": max(size - 1, 0), "symmetric": size}.get(mode)
        for name in ("left", "right"):
            asked = attributes[name][axis]
            if asked and (size == 0 or (most is not None and asked > most)):
                expected = (
                    f"at most {most or 0} with {mode} beside axis {axis} of {brackets(shape)}"
                )
                raise ShapeError(refusal(label, f"{name}_padding", expected, str(asked)))


def _around_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    (info,) = inputs
    _check_mode(info.shape, attributes, label)
    return only(TensorInfo(_resized(info.shape, attributes, 1), info.dtype))


def _gradient_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    (info,) = inputs
    require_float(label, "gradient", info)
    _check_sizes(attributes, len(info.shape), label)
    shape = _resized(info.shape, attributes, -1)
    if any(size is not None and size < 0 for size in shape):
        expected = "at least the padding in every dimension"
        raise ShapeError(refusal(label, "gradient", expected, brackets(info.shape)))
    _check_mode(shape, attributes, label)
    return only(TensorInfo(shape, info.dtype))


def _places(attributes: Attributes, shape: Sequence[int]) -> list[tuple[int, int, Array]]:
    """(axis, its size, the place that each element of the padded axis comes from)."""
    _check_mode(shape, attributes, "pad_tensor")  # a size may have been unknown before
    found = []
    for axis, size in enumerate(shape):
        left, right = attributes["left"][axis], attributes["right"][axis]
        if left or right:
            all_places = np.arange(-left, size + right)
            found.append((axis, size, _PLACES[attributes["mode"]](all_places, size)))
    return found


def _around_lower(
    g: Graph, inputs: Sequence[Tensor], attributes: Attributes
) -> list[Tensor] | None:
    (tensor,) = inputs
    shape = known(tensor.shape)
    if shape is None:
        return None
    for axis, _, places in _places(attributes, shape):
        tensor = g.gather(tensor, g.constant(places), axis=axis)
    return [tensor]


def _gradient_lower(
    g: Graph, inputs: Sequence[Tensor], attributes: Attributes
) -> list[Tensor] | None:
    (tensor,) = inputs
    shape = known(_resized(tensor.shape, attributes, -1))
    if shape is None:
        return None
    for axis, size, places in _places(attributes, shape):
        tensor = g.scatter(tensor, g.constant(places), size, axis)
    return [tensor]


def _derivative(g: Graph, node: Node, gradients: Gradients, needs: list[bool]) -> Gradients:
    other = _GRADIENT if node.op is _AROUND else _AROUND
    return [g.add_node_named(other.name, (single(gradients),), node.attributes)]


_KINDS = {"left": "ints", "right": "ints", "mode": "str"}
_AROUND = Op("pad_around", _around_infer, derivative=_derivative, lower=_around_lower, kinds=_KINDS)
_GRADIENT = Op(
    "pad_around_gradient",
    _gradient_infer,
    derivative=_derivative,
    lower=_gradient_lower,
    operands=("gradient",),
    kinds=_KINDS,
)
ROWS = (
    Op(
        "pad_tensor",
        _pad_infer,
        _pad_prepare,
        _pad_derivative,
        kinds={"left": "ints", "right": "ints", "value": "number"},
    ),
    _AROUND,
    _GRADIENT,
)
