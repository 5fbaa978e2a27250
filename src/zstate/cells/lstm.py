"""The LSTM, with peepholes that all look at c[t-1].

[i,f,z,o] = f((h[t-1]·m[t])R^T + x[t]W^T + b + p·c[t-1]); c[t] = f·c[t-1] + i·z; h[t] = o·g(c[t]).
"""

from __future__ import annotations

from ..descriptors import LSTMDescriptor
from ..types import Value
from .cell import (
    HIDDEN,
    Cell,
    Direction,
    Parameter,
    States,
    Step,
    StepGradients,
    Steps,
    masked,
    outer_sum,
    state,
)


def _forward(d: Direction, x: Value, m: Value | None, before: States) -> Step:
    h, c = before
    *gate_activations, g = d.activations
    recurrent = masked(h, m) @ d.recurrent_weight.reshape(-1, h.shape[-1]).T  # [N,4H]
    inner = x + recurrent.reshape(x.shape)  # [N,4,H]
    if "peephole" in d.own:
        inner = inner + d.own["peephole"] * c[:, None]
    pairs = zip(gate_activations, d.gates(inner), strict=True)
    i, f, z, o = gates = [activation.apply(gate) for activation, gate in pairs]
    c = f * c + i * z
    return Step((o * g.apply(c), c), d.stack(gates))


def _backward(d: Direction, at: Steps, gradients: States) -> StepGradients:
    (dh, dc), (_, c_before), (_, c) = gradients, at.before, at.after
    *gate_activations, g = d.activations
    i, f, z, o = gates = d.gates(at.saved)
    g_of_c = g.apply(c)
    dc = dc + dh * o * g.slope(g_of_c)
    outer = (dc * z, dc * c_before, dc * i, dh * g_of_c)  # gradients of i, f, z, o
    triples = zip(outer, gate_activations, gates, strict=True)
    inner = d.stack([da * activation.slope(gate) for da, activation, gate in triples])  # [N,4,H]
    batch, _, hidden = inner.shape
    dh_masked = inner.reshape(batch, 4 * hidden) @ d.recurrent_weight.reshape(4 * hidden, hidden)
    dc_before = dc * f
    if "peephole" in d.own:
        dc_before = dc_before + (inner * d.own["peephole"]).sum(axis=1)
    return StepGradients(inner, (masked(dh_masked, at.mask), dc_before))


def _outputs(d: Direction, saved: Value, others: States) -> Value:
    (c,) = others
    return d.gates(saved)[3] * d.activations[4].apply(c)


def _parameters(d: Direction, at: Steps, gates: Value) -> dict[str, Value]:
    h_before, c_before = at.before
    found = {"recurrent_weight": outer_sum(gates, masked(h_before, at.mask))}
    if "peephole" in d.own:
        found["peephole"] = d.xp.total(gates * c_before[:, :, None], (0, 1))
    return found


LSTM = Cell(
    "lstm",
    gates=("i", "f", "z", "o"),
    descriptor=LSTMDescriptor,
    forward=_forward,
    backward=_backward,
    parameters=_parameters,
    outputs=_outputs,
    states=(HIDDEN, state("cell")),
    own=(Parameter("peephole"),),
    other_order=("forget_gate_last", ("i", "z", "f", "o")),
    keeps_states="produce_cell",
)
