"""replace(model): swap torch.nn's recurrent modules for ours, keeping weights; restore(model)
undoes it.

The parameters are passed on, not copied, so an existing optimiser keeps working.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from ..errors import DTypeError, refusal
from ..layout import describe
from . import nn
from .any_cell import Recurrent
from .as_torch_nn import beyond_torch_nn
from .base import Layers
from .cells import GRUCell, LSTMCell, RecurrentCell, RNNCell
from .layers import GRU, LSTM, RNN
from .private import has_hooks, own_buffers, own_children, own_parameters

Pairs: TypeAlias = dict[type[torch.nn.Module], type[torch.nn.Module]]

_PAIRS: Pairs = {
    torch.nn.RNN: RNN,
    torch.nn.LSTM: LSTM,
    torch.nn.GRU: GRU,
    torch.nn.RNNCell: RNNCell,
    torch.nn.LSTMCell: LSTMCell,
    torch.nn.GRUCell: GRUCell,
}
# Ours that are torch.nn's as well.
BOTH: Pairs = {theirs: getattr(nn, theirs.__name__) for theirs in _PAIRS}
_BACK: Pairs = {ours: theirs for pairs in (_PAIRS, BOTH) for theirs, ours in pairs.items()}
_OPTIONS = (
    "input_size hidden_size num_layers nonlinearity bias batch_first dropout bidirectional "
    "proj_size"
).split()


@dataclass
class Report:
    """What was swapped, and what was left alone and why, each by the module's path.

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


def replace(model: torch.nn.Module, *, as_torch_nn: bool = False) -> tuple[torch.nn.Module, Report]:
    """Swap every torch.nn recurrent module in a model for ours, in place.

    Args:
        model: any module; submodules that may compute something else are left alone.
        as_torch_nn: make the new modules instances of torch.nn's too (those of zstate.torch.nn),
            for code that asks isinstance(m, torch.nn.LSTM); torch.compile breaks its graph there.

    Returns the model (a new module if it is itself recurrent) and a report.

    Example:
        >>> model, report = replace(torch.nn.Sequential(torch.nn.LSTM(4, 8)))
        >>> print(report)
        0: torch.nn.LSTM -> zstate.torch.LSTM
    """
    pairs = BOTH if as_torch_nn else _PAIRS
    return exchange("replace", model, (*pairs,), _why_not_replace, _mover(pairs))


def restore(model: torch.nn.Module) -> tuple[torch.nn.Module, Report]:
    """Undo :func:`replace`; modules with options that torch.nn lacks are left alone."""
    kinds = (*_BACK, Recurrent)
    return exchange("restore", model, kinds, _why_not_restore, _mover(_BACK))


def _mover(pairs: Pairs) -> Callable[[torch.nn.Module], torch.nn.Module]:
    return lambda module: _moved(module, pairs[type(module)])


def exchange(
    label: str,
    model: torch.nn.Module,
    kinds: tuple[type[torch.nn.Module], ...],
    why_not: Callable[[torch.nn.Module], str | None],
    made_of: Callable[[torch.nn.Module], torch.nn.Module],
) -> tuple[torch.nn.Module, Report]:
    """Swap the modules of these kinds, except where there is a reason not to."""
    if not isinstance(model, torch.nn.Module):
        raise DTypeError(refusal(label, "model", "a torch.nn.Module", describe(model)))
    report = Report()
    made: dict[int, torch.nn.Module] = {}  # a module used in two places stays one

    def exchanged(module: torch.nn.Module, path: str) -> torch.nn.Module:
        if id(module) in made:
            return made[id(module)]
        reason = why_not(module)
        if reason is not None:
            report.left[path] = reason
            return module
        new = made_of(module)
        made[id(module)] = new
        report.changed[path] = f"{_name(type(module))} -> {_name(type(new))}"
        return new

    if isinstance(model, kinds):
        return exchanged(model, ""), report
    for path, parent in list(model.named_modules()):
        for name, child in list(own_children(parent).items()):
            if child is not None and isinstance(child, kinds):
                where = f"{path}.{name}" if path else name
                setattr(parent, name, exchanged(child, where))
    return model, report


def _why_not_replace(module: torch.nn.Module) -> str | None:
    if isinstance(module, Layers | RecurrentCell):  # and torch.nn's
        return f"{_name(type(module))} is a module of zstate already"
    return subclass_of(module, _PAIRS) or _why_not_move(module)


def _why_not_restore(module: torch.nn.Module) -> str | None:
    if isinstance(module, Recurrent):
        return f"torch.nn has no cell {module.cell.__name__}"
    option = beyond_torch_nn(module)
    lacking = None if option is None else f"torch.nn has no {option}"
    return subclass_of(module, _BACK) or lacking or _why_not_move(module)


def subclass_of(module: torch.nn.Module, kinds: Collection[type[torch.nn.Module]]) -> str | None:
    if type(module) in kinds:
        return None
    return f"{_name(type(module))} is a subclass, which may compute something else"


def _why_not_move(module: torch.nn.Module) -> str | None:
    """What a new module with the same options would lack, and which may change the results."""
    if torch.nn.utils.parametrize.is_parametrized(module):
        return "its parameters are parametrized"
    if has_hooks(module):
        return "it has hooks, which would be lost"
    plain = _made(type(module), module)
    parameters = own_parameters(module)
    for name, parameter in own_parameters(plain).items():
        if parameter is not None and not isinstance(parameters.get(name), torch.nn.Parameter):
            return f"its {name} is not a parameter"
    more = {**parameters, **own_buffers(module), **own_children(module)}.keys()
    others = [name for name in more if name not in own_parameters(plain)]
    others += [name for name, value in _added(module, plain).items() if not _is_data(value)]
    return f"it has a {others[0]} of its own" if others else None


def _added(module: torch.nn.Module, plain: torch.nn.Module) -> dict[str, Any]:
    """The attributes that were set on the module after it was made."""
    return {name: value for name, value in vars(module).items() if name not in vars(plain)}


def _is_data(value: Any) -> bool:
    """A mark, such as Hugging Face sets: nothing that could take part in the computation."""
    return isinstance(value, bool | int | float | str | None)


def _made(kind: type[torch.nn.Module], like: torch.nn.Module) -> torch.nn.Module:
    """A module with the options of another, without memory."""
    options: dict[str, Any] = {
        name: like.__dict__[name] for name in _OPTIONS if name in like.__dict__
    }
    if not options.get("proj_size"):
        options.pop("proj_size", None)
    dropout = options.pop("dropout", 0.0)
    new = kind(**options, device="meta")
    if hasattr(new, "dropout"):
        new.dropout = dropout  # set here: a warning about one layer was given when it was made
    return new


def _moved(module: torch.nn.Module, kind: type[torch.nn.Module]) -> torch.nn.Module:
    """A module of the other kind with the same options, marks and parameters."""
    new = _made(kind, module)
    for name, value in _added(module, _made(type(module), module)).items():
        setattr(new, name, value)
    for name, parameter in own_parameters(module).items():
        setattr(new, name, parameter)
    return new.train(module.training)


def _name(kind: type) -> str:
    if kind in BOTH.values():
        return f"zstate.torch.nn.{kind.__name__}"
    package = "torch.nn" if kind.__module__.startswith("torch.nn.") else "zstate.torch"
    return f"{package}.{kind.__name__}" if kind in {*_PAIRS, *_BACK} else kind.__name__
