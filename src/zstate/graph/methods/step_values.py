"""Values per step of cells from equations, as nodes: further gates of x that no weight reaches.

What zstate/step_values.py does to arrays is done here by nodes of the graph, in front of the cell's
own; symbolic gradients, programs and files follow from those.
T time, N batch, H hidden units, G gates, K values per step, D directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...cells import Cell
from ...errors import ShapeError, refusal
from ...extensions import has_head_axis, resets_info
from ...layout import TensorInfo, brackets, check
from ...operations import Operation, check_saved
from ...types import PartialShape, Shape
from ..ops.base import known
from ..ops.like import zeros_like
from ..tensor import Tensor


def accepted(
    g: Any, label: str, call: Operation, passed: Mapping[str, Tensor], descriptor: Any
) -> dict[str, Tensor]:
    """The tensors of a call as its caller passes them (``calls_of``), after all checks.

    A recurrent weight that nobody needs to pass is zeros.
    """
    given: dict[str, Tensor] = {}
    for name in call.inputs:
        check_saved(call, name, passed.get(name), label)
        if name in passed or name in call.required:
            given[name] = g.own(label, name, passed.get(name))
    infos = {name: TensorInfo(tensor.shape, tensor.dtype) for name, tensor in given.items()}
    if "resets" in infos:
        infos["resets"] = resets_info(label, infos["resets"], infos["source"], descriptor)
    if has_head_axis(call, given.get("recurrent_weight"), descriptor):
        *lead, _, rows, units = infos["recurrent_weight"].shape
        infos["recurrent_weight"] = infos["recurrent_weight"]._replace(shape=(*lead, rows, units))
    layout = check(call, infos, descriptor, label)
    if "recurrent_weight" not in given:
        shape = _known_weight(label, layout.partial_shape("recurrent_weight"))
        given["recurrent_weight"] = g.constant(0.0, shape=shape, dtype=layout.dtype)
    return given


def _known_weight(label: str, sizes: PartialShape) -> Shape:
    shape = known(sizes)
    if shape is None:
        raise ShapeError(refusal(label, "recurrent_weight", "a known shape", brackets(sizes)))
    return shape


def with_step_values(
    g: Any, label: str, cell: Cell, given: Mapping[str, Tensor], descriptor: Any
) -> dict[str, Tensor]:
    """The inputs of the cell with further gates; the tensors were accepted."""
    inner = {name: _wide(g, tensor) for name, tensor in given.items()}
    directions = 2 if descriptor.bidirectional else 1
    weight, count = inner["recurrent_weight"], len(cell.gates) - len(cell.values)
    *lead, _, units = _known_weight(label, weight.shape)
    hidden = units * descriptor.heads
    gates = _projected(g, inner)
    width = directions * hidden
    values = [_whole(g, inner.pop(name), gates, width) for name in cell.values]
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


def _projected(g: Any, inner: dict[str, Tensor]) -> Tensor:
    """[T,N,D·G·H], from the source and what is taken out here: the input weight and the bias."""
    gates: Tensor = inner["source"]
    if "input_weight" in inner:
        gates = g.matrix_multiplication(gates, g.transpose(inner.pop("input_weight"), (1, 0)))
    return gates + inner.pop("bias") if "bias" in inner else gates


def _columns(tensor: Tensor, first: int, count: int) -> Tensor:
    """Some of the last axis."""
    return tensor[:, :, first : first + count] if tensor.shape[-1] != count else tensor


def _whole(g: Any, value: Tensor, gates: Tensor, width: int) -> Tensor:
    """[T,N,D·H]."""
    shape = (*gates.shape[:2], width)
    if value.shape == shape and known(shape) is not None:
        return value
    # Added to zeros, which has a derivative even while sizes are unknown.
    return value + zeros_like(g, _columns(gates, 0, width))
