"""The cells' forms by name, and what the CUDA backend is asked of them."""

from __future__ import annotations

from zstate import GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor
from zstate.backends.cuda.passes import Options, pass_of, training
from zstate.backends.cuda.phases import Form
from zstate.backends.cuda.placement import Scan
from zstate.cells import GRU, LSTM, RNN, Cell
from zstate.descriptors import AnyDescriptor

FORMS: dict[str, tuple[Cell, AnyDescriptor]] = {
    "single_gate_rnn": (RNN, SingleGateRNNDescriptor()),
    "lstm": (LSTM, LSTMDescriptor(forget_gate_last=True, forget_gate_activation="hard_sigmoid")),
    "gru": (GRU, GRUDescriptor(reset_gate_first=True, flip_z=True)),
    "gru after": (GRU, GRUDescriptor(reset_gate_first=True, reset_after=True)),
}


def form(name: str, backward: bool) -> Form:
    return pass_of(plain(name, backward)).form


def scan(
    name: str,
    backward: bool,
    kind: str,
    hidden: int,
    batch: int,
    directions: int,
    optional: int = 0,
) -> Scan:
    return Scan(form(name, backward), kind, hidden, batch, directions, optional)


def plain(name: str, backward: bool) -> Options:
    """A call that trains, without anything optional."""
    return training(*FORMS[name], backward)


def everything(cell: Cell, descriptor: AnyDescriptor, backward: bool) -> Options:
    """All inputs of a call at once."""
    states = frozenset(each.name for each in cell.states)
    own = {each.name for each in cell.own if not each.only_with}
    own |= {e.name for e in cell.own if e.only_with and getattr(descriptor, e.only_with)}
    given = training(cell, descriptor, backward)._replace(
        own=frozenset(own), mask=True, mask_pairs=len(cell.gates) > 1, initial=states
    )
    return (
        given._replace(outer=states, last=frozenset({cell.states[0].name})) if backward else given
    )
