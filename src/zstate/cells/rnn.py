"""The single-gate RNN: z[t] = x[t]W^T + (h[t-1]·m[t])R^T + b, h[t] = activation(z[t])."""

from __future__ import annotations

from ..descriptors import SingleGateRNNDescriptor
from .definition import Cell
from .expressions import Expression
from .tracing import Context, Step


def _equations(at: Context, h: Expression) -> Step:
    (activation,) = at.activations
    z = at.x.z + at.R.z @ h
    return Step((activation(z),), saved=(z,))


RNN = Cell(
    "single_gate_rnn",
    gates=("z",),
    descriptor=SingleGateRNNDescriptor,
    equations=_equations,
    short="rnn",
)
