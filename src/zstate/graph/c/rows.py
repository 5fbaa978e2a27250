"""Operations other than recurrent ones: one row per op, as a C expression or as lines."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container
from typing import TYPE_CHECKING

import numpy as np

from ...arrays import NUMPY
from ...layout import TensorInfo, brackets
from ...types import Array
from ..tensor import Node, Tensor
from .matrices import Rows
from .words import LABEL, Place, broadcast_index, loop, refuse

if TYPE_CHECKING:
    from .writer import Writer

_MOST_RUNS = 64  # of values that a node moves; a loop is written for each

# Element by element, of numbers of any type; then of floats alone.
_OF_NUMBERS = {
    "addition": "{0} + {1}",
    "subtraction": "{0} - {1}",
    "multiplication": "{0} * {1}",
    "equal": "{0} == {1}",
    "not_equal": "{0} != {1}",
    "less_than": "{0} < {1}",
    "less_than_or_equal_to": "{0} <= {1}",
    "greater_than": "{0} > {1}",
    "greater_than_or_equal_to": "{0} >= {1}",
    "select": "{0} ? {1} : {2}",
    "negative": "-{0}",
    "square": "{0} * {0}",
    "logical_and": "{0} && {1}",
    "logical_or": "{0} || {1}",
    "logical_xor": "(!{0}) != (!{1})",
    "logical_not": "!{0}",
}
_OF_FLOATS = {
    "division": "{0} / {1}",
    "power": "powf({0}, {1})",
    "modulo": "fmodf({0}, {1})",
    "maximum": "@_maximum({0}, {1})",
    "minimum": "@_minimum({0}, {1})",
    "absolute": "fabsf({0})",
    "sign": "{0} != {0} ? {0} : (float)(({0} > 0.0f) - ({0} < 0.0f))",
    "exponent": "expf({0})",
    "exponent_base2": "exp2f({0})",
    "logarithm": "logf({0})",
    "logarithm_base2": "log2f({0})",
    "logarithm_base10": "log10f({0})",
    "square_root": "sqrtf({0})",
    "reciprocal": "1.0f / {0}",
    "relu": "@_relu({0})",
    "sigmoid": "@_sigmoid({0})",
    "is_nan": "{0} != {0}",
    "is_finite": "fabsf({0}) <= FLT_MAX",
    "is_infinite": "fabsf({0}) > FLT_MAX",
    "floor": "floorf({0})",
    "ceil": "ceilf({0})",
    "truncate": "truncf({0})",
    "rint": "rintf({0})",
}
_SAME = ("tanh", "sin", "cos", "tan", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh")
_OF_FLOATS |= {name: f"{name}f({{0}})" for name in (*_SAME, "atanh")}
# What a name of the caller's must not hide.
CALLED = tuple(re.findall(r"\b\w+f(?=\()", " ".join(_OF_FLOATS.values())))
_VIEWS = ("identity", "reshape", "squeeze", "expand_dims")
_MOVES = (*_VIEWS, "transpose", "slice", "split", "broadcast", "concat_tensors", "stack")


def write(writer: Writer, node: Node) -> None:
    """The lines of a node; one that has no row is refused by name."""
    name = node.op.name
    if name in _MOVES:
        _move(writer, node)
    elif name in _OF_NUMBERS or name in _OF_FLOATS:
        _elementwise(writer, node)
    elif name in _ROWS:
        _ROWS[name](writer, node)
    else:
        expected = "recurrent layers, projections, embeddings and elementwise operations"
        raise refuse(LABEL, "operation", expected, name)


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    return tuple(size or 0 for size in tensor.shape)


def size_of(tensor: Tensor) -> int:
    return math.prod(shape_of(tensor))


def _elementwise(writer: Writer, node: Node) -> None:
    text = _OF_NUMBERS.get(node.op.name) or _OF_FLOATS[node.op.name]
    if node.op.name in _OF_FLOATS and node.inputs[0].dtype != "float32":
        got = f"{node.op.name} of {node.inputs[0].dtype}"
        raise refuse(LABEL, "tensor", "float32", got)
    if node.inputs[0].dtype == "bool" and node.op.name in ("addition", "multiplication"):
        raise refuse(LABEL, "tensor", "numbers", f"{node.op.name} of bool")
    called = text.partition("@_")[2].partition("(")[0]
    if called:
        writer.helpers.add(called)
    (result,) = node.results
    shape = shape_of(result)
    given = [writer.pointer(each)[broadcast_index(shape_of(each), shape)] for each in node.inputs]
    value = text.format(*given).replace("@", writer.prefix)
    writer.fill(result, value)


def _cast(writer: Writer, node: Node) -> None:
    (result,) = node.results
    given = writer.pointer(node.inputs[0])["i"]
    if node.inputs[0].dtype == result.dtype:
        writer.alias(result, writer.pointer(node.inputs[0]))
    elif result.dtype == "bool":
        writer.fill(result, f"{given} != 0")
    else:
        writer.fill(result, f"({writer.type_of(result)}){given}")


def _move(writer: Writer, node: Node) -> None:
    """What only moves values: where they come from is asked of the op itself."""
    ends = np.cumsum([0, *(size_of(each) for each in node.inputs)])
    places = [
        np.arange(start, start + size_of(each), dtype=np.int64).reshape(shape_of(each))
        for start, each in zip(ends, node.inputs, strict=False)
    ]
    infos = [TensorInfo(each.shape, "int64") for each in places]
    assert node.op.prepare is not None
    found = node.op.prepare(NUMPY, infos, node.attributes)(*places)
    moved = found if isinstance(found, tuple | list) else (found,)
    for result, array in zip(node.results, moved, strict=True):
        _moved(writer, node, result, np.asarray(array).reshape(-1), ends)


def _moved(writer: Writer, node: Node, result: Tensor, places: Array, ends: Array) -> None:
    runs = _runs(places, ends)
    if len(runs) > _MOST_RUNS:
        expected = f"values that stay contiguous, or move in at most {_MOST_RUNS} runs"
        raise refuse(LABEL, "tensor", expected, f"{node.op.name} in {len(runs)}")

    def source(first: int) -> Place:
        owner = int(np.searchsorted(ends, first, side="right")) - 1
        return writer.pointer(node.inputs[owner]) + (first - int(ends[owner]))

    if len(runs) == 1 and runs[0][1] == 1:
        writer.alias(result, source(runs[0][0]))
        return
    target, start = writer.room(result), 0
    for first, stride, length in runs:
        there = "i" if stride == 1 else f"{stride} * i"
        writer.lines += loop(length, f"{(target + start)['i']} = {source(first)[there]};")
        start += length


def _runs(places: Array, ends: Array) -> list[tuple[int, int, int]]:
    """(first, stride, length) of values at equal distances in one input."""
    found: list[tuple[int, int, int]] = []
    owners = np.searchsorted(ends, places, side="right")
    k, count = 0, len(places)
    while k < count:
        stride, length = 1, 1
        if k + 1 < count and owners[k] == owners[k + 1]:
            stride = int(places[k + 1] - places[k])
        while (
            k + length < count
            and owners[k + length] == owners[k]
            and places[k + length] - places[k + length - 1] == stride
        ):
            length += 1
        found.append((int(places[k]), stride, length))
        k += length
    return found


def _projection(writer: Writer, node: Node) -> None:
    primary, secondary = node.inputs
    weight = writer.known.get(secondary)
    if weight is None or math.prod(weight.shape[:-2]) != 1:
        got = "one that is computed" if weight is None else brackets(weight.shape)
        raise refuse(LABEL, "secondary", "a stored weight [K,V]", got)
    (result,) = node.results
    rows = np.ascontiguousarray(weight.reshape(weight.shape[-2:]).T)  # a row per output
    target, given = writer.room(result), writer.pointer(primary)
    times = size_of(primary) // rows.shape[1]
    matrix = writer.matrix(f"{node.name} weight", secondary.name, rows)
    if times == 1:
        writer.lines += matrix.lines(given, [Rows(0, len(rows), target)])
        return
    inputs = f"{given} + i * {rows.shape[1]}"
    outputs = Place(f"{target} + i * {rows.shape[0]}")
    lines = matrix.lines(inputs, [Rows(0, len(rows), outputs)])
    writer.lines += [f"for (int i = 0; i < {times}; ++i) {{", *(f"  {x}" for x in lines), "}"]


def _embedding(writer: Writer, node: Node) -> None:
    table, indices = node.inputs
    (result,) = node.results
    axis = node.attributes["axis"] % len(table.shape)
    if axis != 0:
        _taken(writer, node, axis)
        return
    count, width = shape_of(table)[0], math.prod(shape_of(table)[1:])
    read = writer.table(node.name, table, count, width)
    target, given = writer.room(result), writer.pointer(indices)
    writer.lines += loop(
        size_of(indices),
        f"const {writer.type_of(indices)} asked = {given['i']};",
        f"const int row = asked < 0 ? 0 : asked >= {count} ? {count - 1} : (int)asked;",
        f"for (int j = 0; j < {width}; ++j) {target[f'i * {width} + j']} = {read};",
    )


def _taken(writer: Writer, node: Node, axis: int) -> None:
    """Values along another axis than the first, by stored indices: the windows of a convolution."""
    tensor, indices = node.inputs
    shape, (result,) = shape_of(tensor), node.results
    places = writer.known.get(indices)
    if places is None or not ((places >= 0) & (places < shape[axis])).all():
        raise refuse(LABEL, "indices", f"stored ones of 0 to {shape[axis] - 1}", f"axis {axis}")
    before, behind = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    target, given, where = writer.room(result), writer.pointer(tensor), writer.pointer(indices)
    to = f"(k * {places.size} + i) * {behind} + j"
    source = f"(k * {shape[axis]} + {where['i']}) * {behind} + j"
    writer.lines += [
        f"for (int k = 0; k < {before}; ++k)",
        f"  for (int i = 0; i < {places.size}; ++i)",
        f"    for (int j = 0; j < {behind}; ++j) {target[to]} = {given[source]};",
    ]


def _soft_max(writer: Writer, node: Node) -> None:
    (tensor,), (result,) = node.inputs, node.results
    shape = shape_of(tensor)
    axis = node.attributes["axis"] % len(shape)
    if math.prod(shape[axis + 1 :]) != 1 or tensor.dtype != "float32":
        got = f"axis {axis} of {tensor.dtype}{brackets(shape)}"
        raise refuse(LABEL, "axis", "the last axis, in float32", got)
    writer.helpers.add("soft_max")
    target, given = writer.room(result), writer.pointer(tensor)
    rows = size_of(tensor) // shape[axis]
    writer.lines.append(f"{writer.prefix}_soft_max({given}, {rows}, {shape[axis]}, {target});")


_ROWS: dict[str, Callable[[Writer, Node], None]] = {
    "cast": _cast,
    "matrix_multiplication": _projection,
    "gather": _embedding,
    "soft_max": _soft_max,
}


def is_static(node: Node, known: Container[Tensor]) -> bool:
    """Whether a node gives the same on every step."""
    return bool(node.inputs) and all(each in known for each in node.inputs)
