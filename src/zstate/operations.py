"""The table of the operations: which tensors each takes and gives, in the published order.

The functional interface, the graph, the PyObjC facade and the command line all read this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from .cells import GRU, LSTM, RNN, Cell
from .types import Array


class RNNResult(NamedTuple):
    """Result of :func:`zstate.single_gate_rnn`."""

    state: Array
    training_state: Array | None


class LSTMResult(NamedTuple):
    """Result of :func:`zstate.lstm`."""

    state: Array
    cell: Array | None
    training_state: Array | None


class GRUResult(NamedTuple):
    """Result of :func:`zstate.gru`."""

    state: Array
    training_state: Array | None


class RNNGradients(NamedTuple):
    """Result of :func:`zstate.single_gate_rnn_gradients`, in the published order."""

    source: Array
    recurrent_weight: Array
    input_weight: Array | None
    bias: Array | None
    init_state: Array | None


class LSTMGradients(NamedTuple):
    """Result of :func:`zstate.lstm_gradients`, in the published order."""

    source: Array
    recurrent_weight: Array
    input_weight: Array | None
    bias: Array | None
    peephole: Array | None
    init_state: Array | None
    init_cell: Array | None


class GRUGradients(NamedTuple):
    """Result of :func:`zstate.gru_gradients`, in the published order."""

    source: Array
    recurrent_weight: Array
    input_weight: Array | None
    bias: Array | None
    init_state: Array | None
    secondary_bias: Array | None


AnyResult = RNNResult | LSTMResult | GRUResult | RNNGradients | LSTMGradients | GRUGradients


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation of a cell: the forward operation, or its gradients.

    ``required`` and ``optional`` name its input tensors in the order of the functional interface;
    ``result`` names its outputs in the published order.
    """

    name: str
    cell: Cell
    required: tuple[str, ...]
    optional: tuple[str, ...]
    result: type[AnyResult]

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        return self.required + self.optional

    @cached_property
    def is_gradient(self) -> bool:
        return "source_gradient" in self.required


def _forward(cell: Cell, result: type[AnyResult]) -> Operation:
    """A cell's forward operation; its inputs follow from the cell."""
    initial = tuple(state.initial for state in cell.states)
    own = tuple(parameter.name for parameter in cell.own)
    optional = ("input_weight", "bias", *initial, "mask", *own)
    return Operation(cell.name, cell, ("source", "recurrent_weight"), optional, result)


def _backward(forward: Operation, result: type[AnyResult]) -> Operation:
    """The gradient operation of a forward operation; its inputs follow as well."""
    cell = forward.cell
    required = (*forward.required, "source_gradient", *cell.fed_back)
    last = tuple(state.last_gradient for state in cell.states)
    return Operation(f"{cell.name}_gradients", cell, required, (*last, *forward.optional), result)


SINGLE_GATE_RNN = _forward(RNN, RNNResult)
SINGLE_GATE_RNN_GRADIENTS = _backward(SINGLE_GATE_RNN, RNNGradients)
LSTM_FORWARD = _forward(LSTM, LSTMResult)
LSTM_GRADIENTS = _backward(LSTM_FORWARD, LSTMGradients)
GRU_FORWARD = _forward(GRU, GRUResult)
GRU_GRADIENTS = _backward(GRU_FORWARD, GRUGradients)

OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        SINGLE_GATE_RNN,
        SINGLE_GATE_RNN_GRADIENTS,
        LSTM_FORWARD,
        LSTM_GRADIENTS,
        GRU_FORWARD,
        GRU_GRADIENTS,
    )
}
