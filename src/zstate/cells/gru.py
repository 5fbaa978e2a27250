"""The GRU in both forms.

z, r = f((h[t-1]·m)R^T + xW^T + b); o = fo(u + xWo^T + bo) with u = (h[t-1]·r·m)Ro^T, or, with
resetAfter, u = ((h[t-1]·m)Ro^T + b2)·r; h[t] = z·h[t-1] + (1-z)·o, with flipZ the other way round.
"""

from __future__ import annotations

from ..descriptors import GRUDescriptor
from .definition import Cell, Parameter
from .expressions import Expression
from .tracing import Context, Step


def _equations(at: Context, h: Expression) -> Step:
    x, R, options = at.x, at.R, at.options
    f_z, f_r, f_o = at.activations
    z, r = f_z(x.z + R.z @ h), f_r(x.r + R.r @ h)
    if options.reset_after:
        u = R.o @ h
        if "secondary_bias" in at.own:
            u = u + at.own["secondary_bias"]
        o = f_o(x.o + u * r)
    else:
        o = f_o(x.o + R.o @ (h * r))
    keep, renew = (1 - z, z) if options.flip_z else (z, 1 - z)
    return Step((keep * h + renew * o,), saved=(z, r, o))


GRU = Cell(
    "gru",
    gates=("z", "r", "o"),
    descriptor=GRUDescriptor,
    equations=_equations,
    own=(Parameter("secondary_bias", only_with="reset_after", letter="b2"),),
    other_order=("reset_gate_first", ("r", "z", "o")),
)
