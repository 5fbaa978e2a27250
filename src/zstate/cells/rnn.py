"""The single-gate RNN: z[t] = x[t]W^T + (h[t-1]·m[t])R^T + b, h[t] = activation(z[t])."""

from __future__ import annotations

from ..types import Array
from .cell import Cell, Direction, Step, StepGradients, StepInputs, Trace, outer_sum


def _forward(d: Direction, x: Array, m: Array, h: Array, c: Array) -> Step:
    (activation,) = d.activations
    z = x[:, 0] + (h * m) @ d.recurrent_weight[0].T  # [N,H]
    return Step(activation.apply(z), c, z[:, None])


def _backward(d: Direction, at: StepInputs, dh: Array, dc: Array) -> StepGradients:
    (activation,) = d.activations
    dz = dh * activation.slope(activation.apply(at.saved[:, 0]))  # [N,H]
    return StepGradients(dz[:, None], (dz @ d.recurrent_weight[0]) * at.mask, dc)


def _outputs(d: Direction, saved: Array, c: Array) -> Array:
    (activation,) = d.activations
    return activation.apply(saved[:, :, 0])


def _parameters(d: Direction, trace: Trace) -> dict[str, Array]:
    return {"recurrent_weight": outer_sum(trace.gates, trace.state_before * d.mask)}


RNN = Cell("single_gate_rnn", ("z",), False, _forward, _backward, _outputs, _parameters)
