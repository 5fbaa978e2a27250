"""One direction's arrays, gate by gate: from a framework's order, orientation and biases to
zstate's, and back. Everything that differs comes from the framework's row of the table.

The roles of a framework's arrays: input [G·H,I], recurrent [G·H,H], joint [G·H,I+H], bias [G·H],
second (a bias that is added, [G·H], or that the reset gate multiplies, [H]), peephole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..descriptors import AnyDescriptor
from ..errors import ShapeError, refusal
from ..layout import brackets, gate_order
from ..types import Array
from .layer import Layer
from .table import Framework


def decode(
    row: Framework, cell: str, arrays: Mapping[str, Array], descriptor: AnyDescriptor, label: str
) -> dict[str, Array]:
    """One direction's tensors of the functional call from a framework's arrays by role."""
    order, ours = row.gates[cell], gate_order(descriptor)
    kernel, recurrent = _kernels(row, cell, arrays, label)
    hidden = recurrent.shape[1]

    def turned(name: str, array: Array, gates: str, target: tuple[str, ...]) -> Array:
        if array.shape[0] != len(gates) * hidden:
            expected = f"{len(gates)} blocks of H = {hidden} along the gates"
            if len(gates) == 1:
                expected = f"[H] = [{hidden}]"
            raise ShapeError(refusal(label, name, expected, brackets(array.shape)))
        return _reordered(array, gates, target)

    tensors = {
        "recurrent_weight": turned("recurrent kernel", recurrent, order, ours),
        "input_weight": turned("kernel", kernel, order, ours),
    }
    reset_after = bool(getattr(descriptor, "reset_after", False))
    bias, second = arrays.get("bias"), arrays.get("second")
    if bias is not None:
        bias = turned("bias", bias, order, ours)
    if second is not None and row.bias[cell] == "candidate":
        tensors["secondary_bias"], second = turned("second bias", second, "o", ("o",)), None
    if second is not None:
        second = turned("second bias", second, order, ours)
        if reset_after:
            place = ours.index("o")
            blocks = np.split(second, len(ours))
            tensors["secondary_bias"] = blocks[place]
            blocks[place] = np.zeros_like(blocks[place])
            second = np.concatenate(blocks)
        assert bias is not None
        bias = _added(bias, second)
    if bias is not None:
        tensors["bias"] = bias
    if "peephole" in arrays:
        tensors["peephole"] = turned("peephole", arrays["peephole"], row.peephole, ours)
    return tensors


def encode(
    row: Framework, cell: str, tensors: Mapping[str, Array], descriptor: AnyDescriptor
) -> dict[str, Array]:
    """The inverse of ``decode``: a framework's arrays by role from one direction's tensors."""
    order, ours = tuple(row.gates[cell]), gate_order(descriptor)
    side = "".join(ours)
    kernel = _reordered(tensors["input_weight"], side, order)
    recurrent = _reordered(tensors["recurrent_weight"], side, order)
    if "joint" in row.names[cell]:
        arrays = {"joint": _oriented(row, np.concatenate([kernel, recurrent], axis=1))}
    else:
        arrays = {"input": _oriented(row, kernel), "recurrent": _oriented(row, recurrent)}
    bias, secondary = tensors.get("bias"), tensors.get("secondary_bias")
    hidden = tensors["recurrent_weight"].shape[1]
    if bias is None and (secondary is not None or row.always_bias):
        bias = np.zeros(len(order) * hidden, tensors["recurrent_weight"].dtype)
    if bias is not None:
        arrays["bias"] = _reordered(bias, side, order)
        second = np.zeros_like(bias)
        if secondary is not None:
            place = order.index("o") * hidden
            second[place : place + hidden] = secondary
        kind = row.bias[cell]
        if kind in ("two", "joined") or (
            kind == "rows" and getattr(descriptor, "reset_after", False)
        ):
            arrays["second"] = second
        elif kind == "candidate":
            arrays["second"] = np.zeros_like(bias[:hidden]) if secondary is None else secondary
    if "peephole" in tensors:
        arrays["peephole"] = _reordered(tensors["peephole"], side, tuple(row.peephole))
    return arrays


def peephole_options(row: Framework) -> dict[str, Any]:
    """The descriptor's option for a format's peephole."""
    return {"peephole_on_new_cell": row.peephole_cell == "c[t]"}


def _kernels(
    row: Framework, cell: str, arrays: Mapping[str, Array], label: str
) -> tuple[Array, Array]:
    """The two kernels with the gates along the first axis."""
    for role in ("joint", "input", "recurrent"):
        if role in arrays and arrays[role].ndim != 2:
            expected = "two axes"
            raise ShapeError(refusal(label, role, expected, brackets(arrays[role].shape)))
    if "joint" in row.names[cell]:
        both = _oriented(row, arrays["joint"])
        hidden = both.shape[0] // len(row.gates[cell])
        return both[:, : both.shape[1] - hidden], both[:, both.shape[1] - hidden :]
    return _oriented(row, arrays["input"]), _oriented(row, arrays["recurrent"])


def _oriented(row: Framework, array: Array) -> Array:
    return np.ascontiguousarray(array.T) if row.transposed else array


def _reordered(array: Array, order: str, target: tuple[str, ...]) -> Array:
    """Blocks of gates along the first axis in another order; a gate that is missing is zero."""
    blocks = dict(zip(order, np.split(array, len(order)), strict=True))
    empty = np.zeros_like(blocks[order[0]])
    return np.concatenate([blocks.get(gate, empty) for gate in target])


def _added(first: Array, second: Array) -> Array:
    """Their sum; where the second is zero the first as it is, to the sign of its zeros."""
    total: Array = np.where(second == 0, first, first + second)
    return total.astype(first.dtype, copy=False)


def gate(layer: Layer, name: str, index: int, letter: str) -> Array:
    """One gate's block of one direction of a tensor."""
    array = layer.direction(name, index)
    assert array is not None
    order = gate_order(layer.descriptor)
    return np.split(array, len(order))[order.index(letter)]
