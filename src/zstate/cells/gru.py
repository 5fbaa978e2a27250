"""The GRU in both forms.

z, r = f((h[t-1]·m)R^T + xW^T + b); o = fo(u + xWo^T + bo) with u = (h[t-1]·r·m)Ro^T, or, with
resetAfter, u = ((h[t-1]·m)Ro^T + b2)·r; h[t] = z·h[t-1] + (1-z)·o, with flipZ the other way round.
"""

from __future__ import annotations

import numpy as np

from ..types import Array
from .cell import Cell, Direction, Step, StepGradients, StepInputs, Trace, outer_sum, total


def _forward(d: Direction, x: Array, m: Array, h: Array, c: Array) -> Step:
    at_z, at_r, at_o = d.slots
    f_z, f_r, f_o = d.activations
    weight = d.recurrent_weight
    saved = np.empty_like(x)  # [N,3,H]
    z = saved[:, at_z] = f_z.apply(x[:, at_z] + (h * m) @ weight[at_z].T)
    r = saved[:, at_r] = f_r.apply(x[:, at_r] + (h * m) @ weight[at_r].T)
    if d.reset_after:
        u = ((h * m) @ weight[at_o].T + d.secondary_bias) * r
    else:
        u = (h * r * m) @ weight[at_o].T
    o = saved[:, at_o] = f_o.apply(u + x[:, at_o])
    keep = 1 - z if d.flip_z else z
    return Step(keep * h + (1 - keep) * o, c, saved)


def _backward(d: Direction, at: StepInputs, dh: Array, dc: Array) -> StepGradients:
    at_z, at_r, at_o = d.slots
    f_z, f_r, f_o = d.activations
    weight, h, m = d.recurrent_weight, at.state_before, at.mask
    z, r, o = (at.saved[:, slot] for slot in d.slots)
    keep = 1 - z if d.flip_z else z
    dkeep = dh * (h - o)
    before = np.empty_like(at.saved)  # [N,3,H]
    dz = before[:, at_z] = (-dkeep if d.flip_z else dkeep) * f_z.slope(z)
    du = before[:, at_o] = dh * (1 - keep) * f_o.slope(o)
    if d.reset_after:
        unreset = (h * m) @ weight[at_o].T + d.secondary_bias  # not in zState: computed again
        dr = du * unreset
        dh_before = dh * keep + ((du * r) @ weight[at_o]) * m
    else:
        dreset = du @ weight[at_o]  # gradient of h[t-1]·r·m
        dr = dreset * h * m
        dh_before = dh * keep + dreset * r * m
    dr = before[:, at_r] = dr * f_r.slope(r)
    dh_before = dh_before + (dz @ weight[at_z] + dr @ weight[at_r]) * m
    return StepGradients(before, dh_before, dc)


def _parameters(d: Direction, trace: Trace) -> dict[str, Array]:
    at_z, at_r, at_o = d.slots
    r = trace.saved[:, :, at_r]
    masked = trace.state_before * d.mask
    du = trace.gates[:, :, at_o]
    weight = np.empty_like(d.recurrent_weight)  # [3,H,H]
    weight[at_z] = outer_sum(trace.gates[:, :, at_z], masked)
    weight[at_r] = outer_sum(trace.gates[:, :, at_r], masked)
    weight[at_o] = outer_sum(du * r, masked) if d.reset_after else outer_sum(du, masked * r)
    return {"recurrent_weight": weight, "secondary_bias": total(du * r)}


GRU = Cell("gru", ("z", "r", "o"), False, _forward, _backward, None, _parameters)
