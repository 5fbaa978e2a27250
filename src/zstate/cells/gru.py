"""The GRU in both forms.

z, r = f((h[t-1]·m)R^T + xW^T + b); o = fo(u + xWo^T + bo) with u = (h[t-1]·r·m)Ro^T, or, with
resetAfter, u = ((h[t-1]·m)Ro^T + b2)·r; h[t] = z·h[t-1] + (1-z)·o, with flipZ the other way round.
"""

from __future__ import annotations

from ..descriptors import GRUDescriptor
from ..types import Value
from .cell import Cell, Direction, Parameter, States, Step, StepGradients, Steps, masked, outer_sum


def _unreset(d: Direction, h_masked: Value, w_o: Value) -> Value:
    """(h[t-1]·m)Ro^T + b2, what r multiplies with reset_after; not in zState."""
    u = h_masked @ w_o.T
    return u + d.own["secondary_bias"] if "secondary_bias" in d.own else u


def _forward(d: Direction, x: Value, m: Value | None, before: States) -> Step:
    (h,), (f_z, f_r, f_o) = before, d.activations
    x_z, x_r, x_o = d.gates(x)
    w_z, w_r, w_o = (d.recurrent_weight[slot] for slot in d.slots)
    h_masked = masked(h, m)
    z = f_z.apply(x_z + h_masked @ w_z.T)
    r = f_r.apply(x_r + h_masked @ w_r.T)
    after = d.options.reset_after
    u = _unreset(d, h_masked, w_o) * r if after else masked(h * r, m) @ w_o.T
    o = f_o.apply(u + x_o)
    keep = 1 - z if d.options.flip_z else z
    return Step((keep * h + (1 - keep) * o,), d.stack((z, r, o)))


def _backward(d: Direction, at: Steps, gradients: States) -> StepGradients:
    (dh,), (h,), m = gradients, at.before, at.mask
    f_z, f_r, f_o = d.activations
    z, r, o = d.gates(at.saved)
    w_z, w_r, w_o = (d.recurrent_weight[slot] for slot in d.slots)
    keep = 1 - z if d.options.flip_z else z
    dkeep = dh * (h - o)
    dz = (-dkeep if d.options.flip_z else dkeep) * f_z.slope(z)
    du = dh * (1 - keep) * f_o.slope(o)
    if d.options.reset_after:
        dr = du * _unreset(d, masked(h, m), w_o)
        dh_before = dh * keep + masked((du * r) @ w_o, m)
    else:
        dreset = du @ w_o  # gradient of h[t-1]·r·m
        dr = masked(dreset * h, m)
        dh_before = dh * keep + masked(dreset * r, m)
    dr = dr * f_r.slope(r)
    dh_before = dh_before + masked(dz @ w_z + dr @ w_r, m)
    return StepGradients(d.stack((dz, dr, du)), (dh_before,))


def _parameters(d: Direction, at: Steps, gates: Value) -> dict[str, Value]:
    dz, dr, du = d.gates(gates)
    _, r, _ = d.gates(at.saved)
    h_masked = masked(at.before[0], at.mask)
    last = (du * r, h_masked) if d.options.reset_after else (du, h_masked * r)
    pairs = ((dz, h_masked), (dr, h_masked), last)
    found = {"recurrent_weight": d.stack([outer_sum(*pair) for pair in pairs], 0)}
    if "secondary_bias" in d.own:
        found["secondary_bias"] = d.xp.total(du * r, (0, 1))
    return found


GRU = Cell(
    "gru",
    gates=("z", "r", "o"),
    descriptor=GRUDescriptor,
    forward=_forward,
    backward=_backward,
    parameters=_parameters,
    own=(Parameter("secondary_bias", only_with="reset_after"),),
    other_order=("reset_gate_first", ("r", "z", "o")),
)
