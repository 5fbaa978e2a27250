"""The LSTM, with peepholes that all look at c[t-1].

[i,f,z,o] = f((h[t-1]·m[t])R^T + x[t]W^T + b + p·c[t-1]); c[t] = f·c[t-1] + i·z; h[t] = o·g(c[t]).
With ``peephole_on_new_cell`` the one of o looks at c[t] instead.
"""

from __future__ import annotations

from ..descriptors import LSTMDescriptor
from .definition import HIDDEN, Cell, Parameter, state
from .expressions import Expression
from .tracing import Context, Step


def _equations(at: Context, h: Expression, c: Expression) -> Step:
    x, R, peephole = at.x, at.R, at.own.get("peephole")
    f_i, f_f, f_z, f_o, g = at.activations

    def looking(gate: str, seen: Expression) -> Expression:
        a: Expression = x[gate] + R[gate] @ h
        return a if peephole is None else a + seen * peephole[gate]

    i, f, z = f_i(looking("i", c)), f_f(looking("f", c)), f_z(looking("z", c))
    new = f * c + i * z
    o = f_o(looking("o", new if at.options.peephole_on_new_cell else c))
    return Step((o * g(new), new), saved=(i, f, z, o))


LSTM = Cell(
    "lstm",
    gates=("i", "f", "z", "o"),
    descriptor=LSTMDescriptor,
    equations=_equations,
    states=(HIDDEN, state("cell", "c")),
    own=(Parameter("peephole", by_gate=True, letter="p"),),
    other_order=("forget_gate_last", ("i", "z", "f", "o")),
    keeps_states="produce_cell",
)
