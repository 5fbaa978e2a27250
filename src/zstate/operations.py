"""The table of operations: which tensors each takes and returns, in the published order.

The functional interface, the graph, the PyObjC facade and the command line all read this table.

No member of a result is typed as optional: a type checker cannot tell from the descriptor and the
arguments which members exist. One that was not produced, or whose input was not passed, is None.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, cast, get_args

from .cells import CELLS, GRU, LSTM, RNN, Cell
from .cells.decorator import tell_of_cells
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


def _by_place(result: tuple[Any, ...], key: Any) -> Any:
    """``result[0]``; a name is refused with the way to say it."""
    if isinstance(key, str):
        names = ", ".join(f"result.{name}" for name in getattr(result, "_fields", ()))
        expected = f"an index, or one of {names}"
        raise DTypeError(refusal(type(result).__name__, "result[…]", expected, repr(key)))
    return tuple.__getitem__(result, key)


AnyResult = RNNResult | LSTMResult | GRUResult | RNNGradients | LSTMGradients | GRUGradients
for _kind in get_args(AnyResult):
    _kind.__getitem__ = _by_place


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
    fed_back: Mapping[str, str]  # inputs of the gradients that are forward results, and which ones
    # From the others, at once: torch.compile cannot take the lock of a cached property.
    inputs: tuple[str, ...] = field(init=False)
    is_gradient: bool = field(init=False)
    key: str = field(init=False)  # of no operation with other equations; ``name`` is for messages

    def __post_init__(self) -> None:
        is_gradient = "source_gradient" in self.required
        object.__setattr__(self, "inputs", self.required + self.optional)
        object.__setattr__(self, "is_gradient", is_gradient)
        object.__setattr__(self, "key", self.cell.key + "_gradients" * is_gradient)

    def __repr__(self) -> str:
        return self.key


def operations_of(cell: Cell) -> tuple[Operation, Operation]:
    """A cell's forward operation and its gradient operation: the same objects each time."""
    found: tuple[Operation, Operation] | None = cell.__dict__.get("_operations")
    if found is None:  # kept with the cell, which may be made at run time and forgotten again
        found = cell.__dict__.setdefault("_operations", _operations(cell))
    return found


def _operations(cell: Cell) -> tuple[Operation, Operation]:
    first = ("source", "recurrent_weight")
    own = tuple(parameter.name for parameter in cell.own)
    initial = tuple(state.initial for state in cell.states)
    optional = ("input_weight", "bias", *initial, "mask", *own, "resets")
    result, gradients = _results(cell)
    required = (*first, "source_gradient", *cell.fed_back)
    last = tuple(state.last_gradient for state in cell.states)
    return (
        Operation(cell.name, cell, first, optional, result, {}),
        Operation(
            f"{cell.name}_gradients", cell, required, (*last, *optional), gradients, cell.fed_back
        ),
    )


def calls_of(cell: Cell) -> tuple[Operation, Operation]:
    """The same two as a caller passes tensors to them, which is what a call is checked against.

    Values per step have names of their own: they are no gates of the source, the weights and the
    bias. A cell without products needs no recurrent weight.
    """
    found: tuple[Operation, Operation] | None = cell.__dict__.get("_calls")
    if found is None:
        forward, backward = operations_of(cell)
        gates = tuple(gate for gate in cell.gates if gate not in cell.values)
        outside = replace(cell, gates=gates)
        found = (_call(forward, outside), _call(backward, outside))
        found = cell.__dict__.setdefault("_calls", found)
    return found


def _call(operation: Operation, outside: Cell) -> Operation:
    cell = operation.cell
    required, optional = (*operation.required, *cell.values), operation.optional
    if not cell.forward(cell.usual, cell.needed, False).products:
        required = tuple(name for name in required if name != "recurrent_weight")
        optional = ("recurrent_weight", *optional)
    return replace(operation, cell=outside, required=required, optional=optional)


def _results(cell: Cell) -> tuple[type[Any], type[Any]]:
    """The result types: those above, or types made from the cell."""
    if cell.key in _PUBLISHED:
        return _PUBLISHED[cell.key]
    title = cell.name.title().replace("_", "")
    title = title if title.isidentifier() else f"Cell{title}"  # of a name such as _1
    own = [parameter.name for parameter in cell.own]
    weights = ("source", "recurrent_weight", "input_weight", "bias", *own)
    states = (state.name for state in cell.states)
    initial = (state.initial for state in cell.states)
    return (
        _made(f"{title}Result", (*states, "training_state")),
        _made(f"{title}Gradients", (*weights, *initial)),
    )


@lru_cache(maxsize=1024)
def _made(name: str, fields: tuple[str, ...]) -> Any:
    """The same type each time, so that pickle and jax.export can identify it by these two."""
    made = cast(Any, namedtuple(name, fields))
    made.__getitem__ = _by_place
    made.__reduce__ = lambda result: (_remade, (name, fields, tuple(result)))
    return made


def _remade(name: str, fields: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return _made(name, fields)(*values)


_PUBLISHED: dict[str, tuple[type[Any], type[Any]]] = {
    "single_gate_rnn": (RNNResult, RNNGradients),
    "lstm": (LSTMResult, LSTMGradients),
    "gru": (GRUResult, GRUGradients),
}

SINGLE_GATE_RNN, SINGLE_GATE_RNN_GRADIENTS = operations_of(RNN)
LSTM_FORWARD, LSTM_GRADIENTS = operations_of(LSTM)
GRU_FORWARD, GRU_GRADIENTS = operations_of(GRU)
tell_of_cells(calls_of)  # not in a cell's first call, which torch.compile may be reading

OPERATIONS: dict[str, Operation] = {
    operation.name: operation for cell in CELLS for operation in operations_of(cell)
}


def check_saved(operation: Operation, name: str, tensor: object, label: str | None = None) -> None:
    """Reject None in place of what the forward operation saves, and say how to get it."""
    if tensor is None and name in operation.fed_back:
        expected = f"the {operation.fed_back[name]} of the forward operation"
        advice = "; run the forward operation with training=True in its descriptor"
        raise DTypeError(refusal(label or operation.name, name, expected, "None") + advice)
