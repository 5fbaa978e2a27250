"""The LSTM, with peepholes that all look at c[t-1].

[i,f,z,o] = f((h[t-1]·m[t])R^T + x[t]W^T + b + p·c[t-1]); c[t] = f·c[t-1] + i·z; h[t] = o·g(c[t]).
"""

from __future__ import annotations

import numpy as np

from ..types import Array
from .cell import Cell, Direction, Step, StepGradients, StepInputs, Trace, outer_sum, total


def _forward(d: Direction, x: Array, m: Array, h: Array, c: Array) -> Step:
    *gate_activations, g = d.activations
    recurrent = (h * m) @ d.recurrent_weight.reshape(-1, h.shape[-1]).T  # [N,4H]
    before = x + recurrent.reshape(x.shape) + d.peephole * c[:, None]  # [N,4,H]
    saved = np.empty_like(before)
    for slot, activation in zip(d.slots, gate_activations, strict=True):
        saved[:, slot] = activation.apply(before[:, slot])
    i, f, z, o = (saved[:, slot] for slot in d.slots)
    c = f * c + i * z
    return Step(o * g.apply(c), c, saved)


def _backward(d: Direction, at: StepInputs, dh: Array, dc: Array) -> StepGradients:
    *gate_activations, g = d.activations
    i, f, z, o = gates = [at.saved[:, slot] for slot in d.slots]
    g_of_c = g.apply(at.cell)
    dc = dc + dh * o * g.slope(g_of_c)
    after = (dc * z, dc * at.cell_before, dc * i, dh * g_of_c)  # gradients of i, f, z, o
    before = np.empty_like(at.saved)  # [N,4,H]
    for slot, activation, gate, gradient in zip(
        d.slots, gate_activations, gates, after, strict=True
    ):
        before[:, slot] = gradient * activation.slope(gate)
    batch, _, hidden = before.shape
    dh_masked = before.reshape(batch, 4 * hidden) @ d.recurrent_weight.reshape(4 * hidden, hidden)
    dc_before = dc * f + (before * d.peephole).sum(axis=1)
    return StepGradients(before, dh_masked * at.mask, dc_before)


def _outputs(d: Direction, saved: Array, c: Array) -> Array:
    return saved[:, :, d.slots[3]] * d.activations[4].apply(c)


def _parameters(d: Direction, trace: Trace) -> dict[str, Array]:
    return {
        "recurrent_weight": outer_sum(trace.gates, trace.state_before * d.mask),
        "peephole": total(trace.gates * trace.cell_before[:, :, None]),
    }


LSTM = Cell("lstm", ("i", "f", "z", "o"), True, _forward, _backward, _outputs, _parameters)
