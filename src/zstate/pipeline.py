"""The three stages of every recurrent operation: project → scan → contract.

Only the scan is sequential, and only the scan differs between backends: it comes in as a function.
Everything here is the same for every cell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .cells import Cell, Direction
from .cells.activations import FUNCTIONS
from .cells.cell import Trace, total
from .layout import Call
from .types import Array, compute_dtype

# (cell, direction, projected input [T,N,G,H], outputs to fill by name in processing order)
Scan = Callable[[Cell, Direction, Array, dict[str, Array]], None]
# (cell, direction, forward results and incoming gradients, gate gradients [T,N,G,H] to fill)
# -> gradients of the initial state and cell, [N,H] each
ScanBackward = Callable[[Cell, Direction, "Incoming", Array], tuple[Array, Array]]


class Incoming:
    """What the backward scan of one direction reads, in processing order."""

    def __init__(self, call: Call, index: int, direction: Direction) -> None:
        layout = call.layout
        steps, batch, _, hidden = layout.size
        gates = len(layout.cell_kind.gates)

        def view(name: str) -> Array:
            return layout.direction(name, call.required(name), index)

        dtype = direction.recurrent_weight.dtype
        none = np.broadcast_to(dtype.type(0), (steps, batch, hidden))
        self.saved = view("z_state").reshape(steps, batch, gates, hidden)
        self.cell = view("cell_output_fwd") if layout.cell_kind.has_cell else none
        if layout.cell_kind.outputs is None:
            self.state = view("output_fwd")
        else:
            self.state = layout.cell_kind.outputs(
                direction, self.saved.astype(dtype), self.cell.astype(dtype)
            )
        self.state_gradients = view("source_gradient")  # [T,N,H]
        self.last_state_gradient = _last(call, "state_gradient", index, (batch, hidden), dtype)
        self.cell_gradients = none  # [T,N,H]
        self.last_cell_gradient = np.zeros((batch, hidden), dtype)
        cell_gradient = call.tensors.get("cell_gradient")
        if (
            cell_gradient is not None
            and cell_gradient.ndim == 3
            and cell_gradient.shape[0] == steps
        ):
            self.cell_gradients = layout.direction("cell_gradient", cell_gradient, index)
        else:
            self.last_cell_gradient = _last(call, "cell_gradient", index, (batch, hidden), dtype)


def _last(call: Call, name: str, index: int, shape: tuple[int, int], dtype: np.dtype[Any]) -> Array:
    """The gradient of the last state or cell, [N,H]; zeros if it was not passed."""
    array = call.tensors.get(name)
    if array is None:
        return np.zeros(shape, dtype)
    flat = array[0] if array.ndim == 3 else array
    return call.layout.direction(name, flat, index).astype(dtype)


def settle(call: Call, index: int) -> Direction:
    """One direction's inputs, in the type of the arithmetic, what is missing filled in."""
    layout = call.layout
    steps, batch, _, hidden = layout.size
    gates = len(layout.cell_kind.gates)
    dtype = compute_dtype(call.required("source").dtype)

    def take(name: str, shape: tuple[int, ...], missing: float) -> Array:
        array = call.tensors.get(name)
        if array is None:
            return np.broadcast_to(dtype.type(missing), shape)
        if name == "mask":
            array = np.broadcast_to(array, layout.shape("mask"))
        if name == "peephole":
            array = array.reshape(layout.shape("peephole"))  # [8H] is [2,4H]
        return layout.direction(name, array, index).astype(dtype, copy=False).reshape(shape)

    return Direction(
        recurrent_weight=take("recurrent_weight", (gates, hidden, hidden), 0),
        mask=take("mask", (steps, batch, hidden), 1),
        peephole=take("peephole", (gates, hidden), 0),
        secondary_bias=take("secondary_bias", (hidden,), 0),
        init_state=take("init_state", (batch, hidden), 0),
        init_cell=take("init_cell", (batch, hidden), 0),
        slots=layout.slots,
        activations=tuple(FUNCTIONS[kind] for kind in layout.descriptor.activations),
        reset_after=getattr(layout.descriptor, "reset_after", False),
        flip_z=getattr(layout.descriptor, "flip_z", False),
    )


def project(call: Call) -> Array:
    """gates_x = x W^T + b for all steps and directions, [T,N,D·G·H], in the arithmetic's type."""
    source = call.required("source")
    dtype = compute_dtype(source.dtype)
    weight, bias = call.tensors["input_weight"], call.tensors["bias"]
    gates = source.astype(dtype, copy=False)
    if weight is not None:
        gates = gates @ weight.astype(dtype, copy=False).T
    if bias is not None:
        gates = gates + bias.astype(dtype, copy=False)
    return gates


def forward(call: Call, scan: Scan) -> dict[str, Array]:
    """The forward operation: its results by name."""
    layout = call.layout
    cell = layout.cell_kind
    steps, batch, _, hidden = layout.size
    storage = call.required("source").dtype
    gates = project(call)  # [T,N,D·G·H]
    results = {name: np.empty(layout.shape(name), storage) for name in layout.result_names()}
    for index in range(layout.directions):
        views = {name: layout.direction(name, array, index) for name, array in results.items()}
        if "training_state" in views:
            by_gate = (steps, batch, len(cell.gates), hidden)
            views["training_state"] = views["training_state"].reshape(by_gate)
        gates_x = layout.direction("gates", gates, index)
        gates_x = gates_x.reshape(steps, batch, len(cell.gates), hidden)
        scan(cell, settle(call, index), gates_x, views)
    return results


def backward(call: Call, scan: ScanBackward) -> dict[str, Array]:
    """The gradient operation: the gradient of every input that was passed, by name."""
    layout = call.layout
    cell = layout.cell_kind
    steps, batch, _, hidden = layout.size
    dtype = compute_dtype(call.required("source").dtype)
    gates = np.empty(layout.shape("gates"), dtype)  # [T,N,D·G·H]
    by_direction: list[dict[str, Array]] = []
    for index in range(layout.directions):
        direction = settle(call, index)
        incoming = Incoming(call, index, direction)
        view = layout.direction("gates", gates, index)
        view = view.reshape(steps, batch, len(cell.gates), hidden)
        init_state, init_cell = scan(cell, direction, incoming, view)
        trace = Trace(
            _shifted(direction.init_state, incoming.state),
            _shifted(direction.init_cell, incoming.cell),
            incoming.saved.astype(dtype, copy=False),
            view,
        )
        parts = cell.parameters(direction, trace)
        by_direction.append({**parts, "init_state": init_state, "init_cell": init_cell})
    return contract(call, gates, by_direction)


def _shifted(first: Array, steps: Array) -> Array:
    """What stood before each step: first, steps[0], …, steps[T-2]."""
    rest = steps[:-1].astype(first.dtype, copy=False)
    return np.concatenate([first[None], rest])[: len(steps)]


def contract(call: Call, gates: Array, by_direction: list[dict[str, Array]]) -> dict[str, Array]:
    """From the gates' gradient [T,N,D·G·H] to the gradients of the inputs, in the storage type."""
    layout = call.layout
    _, _, inputs, _ = layout.size
    rows = gates.reshape(-1, gates.shape[-1]) if gates.size else gates.reshape(0, gates.shape[-1])
    found: dict[str, Array] = {"source": gates}
    source, weight = call.required("source"), call.tensors["input_weight"]
    if weight is not None:
        flat = source.astype(gates.dtype, copy=False).reshape(len(rows), inputs)
        found["source"] = gates @ weight.astype(gates.dtype, copy=False)
        found["input_weight"] = rows.T @ flat
    found["bias"] = total(gates)
    for name in by_direction[0]:
        parts = [part[name] for part in by_direction]
        # Initial states put the directions side by side, parameters one above the other.
        found[name] = np.concatenate(parts, axis=1) if name.startswith("init_") else np.stack(parts)
    storage = source.dtype
    return {
        name: found[name].astype(storage, copy=False).reshape(call.required(name).shape)
        for name in layout.result_names()
    }
