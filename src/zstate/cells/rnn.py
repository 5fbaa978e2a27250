"""The single-gate RNN: z[t] = x[t]W^T + (h[t-1]·m[t])R^T + b, h[t] = activation(z[t])."""

from __future__ import annotations

from ..descriptors import SingleGateRNNDescriptor
from ..types import Value
from .cell import Cell, Direction, States, Step, StepGradients, Steps, masked, outer_sum


def _forward(d: Direction, x: Value, m: Value | None, before: States) -> Step:
    (h,), (activation,) = before, d.activations
    z = x[:, 0] + masked(h, m) @ d.recurrent_weight[0].T  # [N,H]
    return Step((activation.apply(z),), z[:, None])


def _backward(d: Direction, at: Steps, gradients: States) -> StepGradients:
    (dh,), (activation,) = gradients, d.activations
    dz = dh * activation.slope(activation.apply(at.saved[:, 0]))  # [N,H]
    return StepGradients(dz[:, None], (masked(dz @ d.recurrent_weight[0], at.mask),))


def _outputs(d: Direction, saved: Value, others: States) -> Value:
    (activation,) = d.activations
    return activation.apply(saved[:, :, 0])


def _parameters(d: Direction, at: Steps, gates: Value) -> dict[str, Value]:
    return {"recurrent_weight": outer_sum(gates, masked(at.before[0], at.mask))}


RNN = Cell(
    "single_gate_rnn",
    gates=("z",),
    descriptor=SingleGateRNNDescriptor,
    forward=_forward,
    backward=_backward,
    parameters=_parameters,
    outputs=_outputs,
    short="rnn",
)
