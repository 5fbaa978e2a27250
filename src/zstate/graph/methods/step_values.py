"""Values per step of cells from equations, as nodes: further gates of x that no weight reaches.

What zstate/step_values.py does to arrays is done here by nodes of the graph, in front of the cell's
own; symbolic gradients, programs and files follow from those.
T time, N batch, H hidden units, G gates, K values per step, D directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...cells import Cell
from ...errors import DTypeError, ShapeError, refusal
from ...layout import brackets
from ..ops.base import known
from ..ops.like import zeros_like
from ..tensor import Tensor


def with_step_values(
    g: Any, label: str, cell: Cell, given: Mapping[str, Tensor], descriptor: Any
) -> dict[str, Tensor]:
    """The inputs of the cell with further gates; all that are given are tensors of the graph."""
    dtype = given["source"].dtype
    for name, tensor in given.items():
        if name != "resets" and tensor.dtype != dtype:
            raise DTypeError(refusal(label, name, f"{dtype} like source", tensor.dtype))
    inner = {name: _wide(g, tensor) for name, tensor in given.items()}
    directions = 2 if descriptor.bidirectional else 1
    weight, count = inner["recurrent_weight"], len(cell.gates) - len(cell.values)
    shape = known(weight.shape)
    if shape is None or len(shape) < 2:
        expected = "a known shape beside values per step"
        raise ShapeError(refusal(label, "recurrent_weight", expected, brackets(weight.shape)))
    *lead, _, units = shape
    hidden = units * descriptor.heads
    gates = _projected(g, label, inner, directions * count * hidden)
    width = directions * hidden
    values = [_whole(g, label, name, inner.pop(name), gates, width) for name in cell.values]
    parts = []
    for d in range(directions):
        parts.append(_columns(gates, d * count * hidden, count * hidden))
        parts += [_columns(value, d * hidden, hidden) for value in values]
    inner["source"] = g.concat_tensors(parts, axis=-1)
    zeros = g.constant(0.0, shape=(*lead, len(values) * units, units), dtype=weight.dtype)
    inner["recurrent_weight"] = g.concat_tensors([weight, zeros], axis=-2)
    return inner


def in_type_of(g: Any, tensors: list[Tensor], source: Tensor) -> list[Tensor]:
    """Results in the type of the caller's source."""
    return [each if each.dtype == source.dtype else g.cast(each, source.dtype) for each in tensors]


def _wide(g: Any, tensor: Tensor) -> Tensor:
    """In the type of the arithmetic, float32 at least."""
    return g.cast(tensor, "float32") if tensor.dtype in ("float16", "bfloat16") else tensor


def _projected(g: Any, label: str, inner: dict[str, Tensor], width: int) -> Tensor:
    """[T,N,D·G·H], from the source and what is taken out here: the input weight and the bias."""
    forms = {"source": ("T", "N", "I"), "input_weight": (width, "I"), "bias": (width,)}
    if "input_weight" not in inner:
        forms["source"] = ("T", "N", width)
    for name, form in forms.items():
        shape = inner[name].shape if name in inner else form
        pairs = zip(shape, form, strict=False)
        wrong = any(isinstance(b, int) and a not in (None, b) for a, b in pairs)
        if wrong or len(shape) != len(form):
            expected = f"{brackets(form)} with D·G·H = {width}"
            raise ShapeError(refusal(label, name, expected, brackets(shape)))
    gates: Tensor = inner["source"]
    if "input_weight" in inner:
        gates = g.matrix_multiplication(gates, g.transpose(inner.pop("input_weight"), (1, 0)))
    return gates + inner.pop("bias") if "bias" in inner else gates


def _columns(tensor: Tensor, first: int, count: int) -> Tensor:
    """Some of the last axis."""
    return tensor[:, :, first : first + count] if tensor.shape[-1] != count else tensor


def _whole(g: Any, label: str, name: str, value: Tensor, gates: Tensor, width: int) -> Tensor:
    """[T,N,D·H]."""
    shape = (*gates.shape[:2], width)
    pairs = zip(reversed(value.shape), reversed(shape), strict=False)
    if len(value.shape) > 3 or any(a not in (None, 1) and b not in (None, a) for a, b in pairs):
        expected = f"a shape that broadcasts to [T,N,D·H] = {brackets(shape)}"
        raise ShapeError(refusal(label, name, expected, brackets(value.shape)))
    if value.shape == shape and known(shape) is not None:
        return value
    # Added to zeros, which has a derivative even while sizes are unknown.
    return value + zeros_like(g, _columns(gates, 0, width))
