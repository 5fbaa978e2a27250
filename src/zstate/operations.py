"""The table of the six operations: which tensors each takes and gives, in the published order.

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
    """One operation family.

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


_FORWARD = ("source", "recurrent_weight")
_BACKWARD = (*_FORWARD, "source_gradient", "z_state")
_RNN = ("input_weight", "bias", "init_state", "mask")
_LSTM = ("input_weight", "bias", "init_state", "init_cell", "mask", "peephole")
_GRU = ("input_weight", "bias", "init_state", "mask", "secondary_bias")

SINGLE_GATE_RNN = Operation("single_gate_rnn", RNN, _FORWARD, _RNN, RNNResult)
SINGLE_GATE_RNN_GRADIENTS = Operation(
    "single_gate_rnn_gradients", RNN, _BACKWARD, ("state_gradient", *_RNN), RNNGradients
)
LSTM_FORWARD = Operation("lstm", LSTM, _FORWARD, _LSTM, LSTMResult)
LSTM_GRADIENTS = Operation(
    "lstm_gradients",
    LSTM,
    (*_BACKWARD, "cell_output_fwd"),
    ("state_gradient", "cell_gradient", *_LSTM),
    LSTMGradients,
)
GRU_FORWARD = Operation("gru", GRU, _FORWARD, _GRU, GRUResult)
GRU_GRADIENTS = Operation(
    "gru_gradients", GRU, (*_BACKWARD, "output_fwd"), ("state_gradient", *_GRU), GRUGradients
)

# An input of a gradient operation that is a result of the forward operation.
SAVED = {"z_state": "training_state", "cell_output_fwd": "cell", "output_fwd": "state"}


def check_saved(operation: str, name: str, tensor: object) -> None:
    """Refuse None in the place of what the forward operation saves, and say how it is made."""
    if tensor is None and name in SAVED:
        expected = f"the {SAVED[name]} of the forward operation"
        advice = "; run the forward operation with training=True in its descriptor"
        raise DTypeError(refusal(operation, name, expected, "None") + advice)


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
