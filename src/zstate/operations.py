"""The table of the operations: which tensors each takes and gives, in the published order.

The functional interface, the graph, the PyObjC facade and the command line all read this table.

No member of a result is typed as optional: a type checker cannot see from the descriptor and the
arguments which are there. One that was not produced, or whose input was not passed, is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

from .cells import GRU, LSTM, RNN, Cell
from .errors import DTypeError, refusal

# A NumPy array or a torch tensor, and results of the same library: no type says so without torch.
AnyArray: TypeAlias = Any


class RNNResult(NamedTuple):
    """Result of :func:`zstate.single_gate_rnn`."""

    state: AnyArray
    training_state: AnyArray


class LSTMResult(NamedTuple):
    """Result of :func:`zstate.lstm`."""

    state: AnyArray
    cell: AnyArray
    training_state: AnyArray


class GRUResult(NamedTuple):
    """Result of :func:`zstate.gru`."""

    state: AnyArray
    training_state: AnyArray


class RNNGradients(NamedTuple):
    """Result of :func:`zstate.single_gate_rnn_gradients`, in the published order."""

    source: AnyArray
    recurrent_weight: AnyArray
    input_weight: AnyArray
    bias: AnyArray
    init_state: AnyArray


class LSTMGradients(NamedTuple):
    """Result of :func:`zstate.lstm_gradients`, in the published order."""

    source: AnyArray
    recurrent_weight: AnyArray
    input_weight: AnyArray
    bias: AnyArray
    peephole: AnyArray
    init_state: AnyArray
    init_cell: AnyArray


class GRUGradients(NamedTuple):
    """Result of :func:`zstate.gru_gradients`, in the published order."""

    source: AnyArray
    recurrent_weight: AnyArray
    input_weight: AnyArray
    bias: AnyArray
    init_state: AnyArray
    secondary_bias: AnyArray


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


def check_saved(operation: Operation, name: str, tensor: object, label: str | None = None) -> None:
    """Refuse None in the place of what the forward operation saves, and say how it is made."""
    if tensor is None and operation.is_gradient and name in operation.cell.fed_back:
        expected = f"the {operation.cell.fed_back[name]} of the forward operation"
        advice = "; run the forward operation with training=True in its descriptor"
        raise DTypeError(refusal(label or operation.name, name, expected, "None") + advice)
