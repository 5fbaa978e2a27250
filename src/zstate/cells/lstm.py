"""The LSTM, with peepholes that all look at c[t-1].

[i,f,z,o] = f((h[t-1]·m[t])R^T + x[t]W^T + b + p·c[t-1]); c[t] = f·c[t-1] + i·z; h[t] = o·g(c[t]).
With ``peephole_on_new_cell`` the one of o looks at c[t] instead.
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
    inner = d.gates(x + recurrent.reshape(x.shape))  # [N,H] each

    def gate(k: int, seen: Value) -> Value:
        """Of a gate whose peephole looks at ``seen``."""
        total = inner[k] if peepholes is None else inner[k] + peepholes[k] * seen
        return gate_activations[k].apply(total)

    peepholes = d.gates(d.own["peephole"]) if "peephole" in d.own else None  # [H] each
    i, f, z = gate(0, c), gate(1, c), gate(2, c)
    new_c = f * c + i * z
    o = gate(3, new_c if d.options.peephole_on_new_cell else c)
    return Step((o * g.apply(new_c), new_c), d.stack([i, f, z, o]))


def _backward(d: Direction, at: Steps, gradients: States) -> StepGradients:
    (dh, dc), (_, c_before), (_, c) = gradients, at.before, at.after
    f_i, f_f, f_z, f_o, g = d.activations
    i, f, z, o = d.gates(at.saved)
    peepholes = d.gates(d.own["peephole"]) if "peephole" in d.own else []  # [H] each
    g_of_c = g.apply(c)
    da_o = dh * g_of_c * f_o.slope(o)
    dc = dc + dh * o * g.slope(g_of_c)
    if peepholes and d.options.peephole_on_new_cell:
        dc = dc + da_o * peepholes.pop()
    gates = [dc * z * f_i.slope(i), dc * c_before * f_f.slope(f), dc * i * f_z.slope(z), da_o]
    inner = d.stack(gates)  # [N,4,H]
    batch, _, hidden = inner.shape
    dh_masked = inner.reshape(batch, 4 * hidden) @ d.recurrent_weight.reshape(4 * hidden, hidden)
    dc_before = dc * f
    for da, peephole in zip(gates, peepholes, strict=False):  # those that look at c[t-1]
        dc_before = dc_before + da * peephole
    return StepGradients(inner, (masked(dh_masked, at.mask), dc_before))


def _outputs(d: Direction, saved: Value, others: States) -> Value:
    (c,) = others
    return d.gates(saved)[3] * d.activations[4].apply(c)


def _parameters(d: Direction, at: Steps, gates: Value) -> dict[str, Value]:
    h_before, c_before = at.before
    found = {"recurrent_weight": outer_sum(gates, masked(h_before, at.mask))}
    if "peephole" in d.own:
        seen = c_before[:, :, None]  # [T,N,1,H]
        if d.options.peephole_on_new_cell:
            seen = d.stack([c_before, c_before, c_before, at.after[1]])  # [T,N,4,H]
        found["peephole"] = d.xp.total(gates * seen, (0, 1))
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
