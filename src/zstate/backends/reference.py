"""The reference backend: the scans in plain NumPy, one step after the other. The oracle.

It is meant to be read beside docs/equations.md and docs/gradients.md, and serves every call: any
of the four float types, any option, any machine.
"""

from __future__ import annotations

import numpy as np

from .. import pipeline
from ..cells import Cell, Direction
from ..cells.cell import StepInputs
from ..layout import Call, Layout
from ..types import Array

name = "reference"
device = "cpu"


def unavailable() -> str | None:
    """Why this machine cannot run the backend: it always can."""
    return None


def refuses(layout: Layout) -> str | None:
    """Why the backend cannot serve such a call: it serves them all."""
    return None


def forward(call: Call) -> dict[str, Array]:
    return pipeline.forward(call, _scan)


def backward(call: Call) -> dict[str, Array]:
    return pipeline.backward(call, _scan_backward)


def _scan(cell: Cell, d: Direction, gates_x: Array, outputs: dict[str, Array]) -> None:
    h, c = d.init_state, d.init_cell
    for t in range(len(gates_x)):
        h, c, saved = cell.forward(d, gates_x[t], d.mask[t], h, c)
        for name, value in (("state", h), ("cell", c), ("training_state", saved)):
            if name in outputs:
                outputs[name][t] = value


def _scan_backward(
    cell: Cell, d: Direction, incoming: pipeline.Incoming, gates: Array
) -> tuple[Array, Array]:
    dtype = gates.dtype
    dh, dc = incoming.last_state_gradient, incoming.last_cell_gradient
    for t in reversed(range(len(gates))):
        dh = dh + incoming.state_gradients[t].astype(dtype, copy=False)
        dc = dc + incoming.cell_gradients[t].astype(dtype, copy=False)
        before = StepInputs(
            d.mask[t],
            _at(incoming.state, t - 1, d.init_state),
            _at(incoming.cell, t - 1, d.init_cell),
            incoming.cell[t].astype(dtype, copy=False),
            incoming.saved[t].astype(dtype, copy=False),
        )
        gates[t], dh, dc = cell.backward(d, before, dh, dc)
    return dh, dc


def _at(steps: Array, t: int, first: Array) -> Array:
    return first if t < 0 else np.asarray(steps[t], dtype=first.dtype)
