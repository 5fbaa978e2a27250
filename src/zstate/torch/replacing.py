"""replace(model): torch.nn's recurrent modules out, ours in, weights kept; restore(model): back.

The parameters are handed over, not copied: an optimiser that was made before goes on working.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from .cells import GRUCell, LSTMCell, RNNCell
from .layers import GRU, LSTM, RNN
from .private import has_hooks, own_children, own_parameters

_PAIRS: dict[type[torch.nn.Module], type[torch.nn.Module]] = {
    torch.nn.RNN: RNN,
    torch.nn.LSTM: LSTM,
    torch.nn.GRU: GRU,
    torch.nn.RNNCell: RNNCell,
    torch.nn.LSTMCell: LSTMCell,
    torch.nn.GRUCell: GRUCell,
}
_BACK = {ours: theirs for theirs, ours in _PAIRS.items()}
_OPTIONS = (
    *("input_size", "hidden_size", "num_layers", "nonlinearity", "bias", "batch_first"),
    *("dropout", "bidirectional", "proj_size"),
)
# What torch.nn's modules have no word for, and the value under which there is nothing to say.
_OURS = {
    "recurrent_dropout": 0.0,
    "peephole": False,
    "peephole_on_new_cell": False,
    "activations": None,
    "return_cells": False,
    "reset_after": True,
}


@dataclass
class Report:
    """What was exchanged, and what was left alone and why; both by the module's path.

    >>> print(Report({"encoder": "LSTM"}, {"head": "a subclass of torch.nn.GRU"}))
    encoder: LSTM
    head: left alone, a subclass of torch.nn.GRU
    """

    changed: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{path or '(the model)'}: {what}" for path, what in self.changed.items()]
        lines += [f"{path or '(the model)'}: left alone, {why}" for path, why in self.left.items()]
        return "\n".join(lines) or "no recurrent modules"


def replace(model: torch.nn.Module) -> tuple[torch.nn.Module, Report]:
    """Swap every torch.nn recurrent module in a model for ours, in place.

    Returns the model (a new module if it is itself recurrent) and a report.

    Example:
        >>> model, report = replace(torch.nn.Sequential(torch.nn.LSTM(4, 8)))
        >>> print(report)
        0: torch.nn.LSTM -> zstate.torch.LSTM
    """
    return _exchange(model, _PAIRS, _why_not_replace)


def restore(model: torch.nn.Module) -> tuple[torch.nn.Module, Report]:
    """The inverse of :func:`replace`: modules with options that torch.nn lacks are left alone."""
    return _exchange(model, _BACK, _why_not_restore)


def _exchange(
    model: torch.nn.Module,
    pairs: dict[type[torch.nn.Module], type[torch.nn.Module]],
    why_not: Callable[[torch.nn.Module], str | None],
) -> tuple[torch.nn.Module, Report]:
    report = Report()
    made: dict[int, torch.nn.Module] = {}  # a module that stands in two places stays one

    def exchanged(module: torch.nn.Module, path: str) -> torch.nn.Module:
        if id(module) in made:
            return made[id(module)]
        reason = why_not(module)
        if reason is not None:
            report.left[path] = reason
            return module
        new = _moved(module, pairs[type(module)])
        made[id(module)] = new
        report.changed[path] = f"{_name(type(module))} -> {_name(type(new))}"
        return new

    kinds: tuple[type[torch.nn.Module], ...] = tuple(pairs)
    if isinstance(model, kinds):
        return exchanged(model, ""), report
    for path, parent in list(model.named_modules()):
        for name, child in list(own_children(parent).items()):
            if child is not None and isinstance(child, kinds):
                where = f"{path}.{name}" if path else name
                setattr(parent, name, exchanged(child, where))
    return model, report


def _why_not_replace(module: torch.nn.Module) -> str | None:
    if type(module) not in _PAIRS:
        return f"{_name(type(module))} is a subclass, which may compute something else"
    return _why_not_move(module)


def _why_not_restore(module: torch.nn.Module) -> str | None:
    if type(module) not in _BACK:
        return f"{_name(type(module))} is a subclass, which may compute something else"
    for option, nothing in _OURS.items():
        # A cell has its peephole as a parameter of that name.
        if option in own_parameters(module) or module.__dict__.get(option, nothing) != nothing:
            return f"torch.nn has no {option}"
    return _why_not_move(module)


def _why_not_move(module: torch.nn.Module) -> str | None:
    if torch.nn.utils.parametrize.is_parametrized(module):
        return "its parameters are parametrized"
    return "it has hooks, which would be lost" if has_hooks(module) else None


def _moved(module: torch.nn.Module, kind: type[torch.nn.Module]) -> torch.nn.Module:
    """A module of the other kind with the same options and the same parameters."""
    options: dict[str, Any] = {
        name: module.__dict__[name] for name in _OPTIONS if name in module.__dict__
    }
    if not options.get("proj_size"):
        options.pop("proj_size", None)
    dropout = options.pop("dropout", 0.0)
    new = kind(**options, device="meta")
    if hasattr(new, "dropout"):
        new.dropout = dropout  # set here: a warning about one layer was given when it was made
    for name, parameter in own_parameters(module).items():
        setattr(new, name, parameter)
    return new.train(module.training)


def _name(kind: type) -> str:
    package = "torch.nn" if kind.__module__.startswith("torch.nn.") else "zstate.torch"
    return f"{package}.{kind.__name__}" if kind in {*_PAIRS, *_BACK} else kind.__name__
