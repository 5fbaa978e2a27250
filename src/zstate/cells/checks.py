"""What the definition of a cell from equations may say: its names, arguments and initial values,
each refused with the cell's name; an error in the equations with their line.
"""

from __future__ import annotations

import inspect
import keyword
import linecache
import math
from collections.abc import Callable, Mapping
from numbers import Real
from types import CodeType, TracebackType
from typing import Any, cast
from unicodedata import normalize

from ..errors import EquationError, visible

_NAMES = ("source", "recurrent_weight", "input_weight", "bias", "mask", "training_state")
OPTIONS = ("reverse", "bidirectional", "training", "backend", "heads")
DIAGONAL = "recurrent_diagonal"  # R of heads of one unit, where it is a parameter (heads.py)
_OTHERS = ("resets", "x", "R", "z_state", "source_gradient", "gates", DIAGONAL, "descriptor")
_OF_STATES = ("gradient", "output_fwd")  # what the gradients' tensors are called after a state
_RESERVED = frozenset({*_NAMES, *OPTIONS, *_OTHERS, "inf", "nan"})
_KEYWORDS = frozenset({"self", "cell", "out", "state_gradients", "name"})  # of calls, beside these


def checked_label(name: str) -> str:
    if name == "<lambda>":
        return "cell"
    if not name.isidentifier():
        expected = "expected a name made of letters, digits and _"
        raise EquationError(f"[cell] {expected}, got {visible(name[:60])!r}")
    return name


def names_in(label: str, what: str, text: object) -> tuple[str, ...]:
    """Names as ``"i f z o"`` has them."""
    if not isinstance(text, str):
        raise EquationError(f"[{label}] {what}: expected names in one string, got {text!r:.60}")
    names = tuple(text.split())
    if not names and what in ("gates", "states"):
        raise EquationError(f"[{label}] {what}: expected at least one name, got none")
    for name in names:
        is_name = name.isidentifier() and name == normalize("NFKC", name)  # as Python reads it
        if not is_name or name.startswith("_") or keyword.iskeyword(name):
            expected = "expected names made of letters, digits and _, not Python keywords"
            raise EquationError(f"[{label}] {what}: {expected}, got {visible(name[:60])!r}")
        taken = _RESERVED | _KEYWORDS if what == "parameters" else _RESERVED
        if what != "gates" and (name in taken or name.startswith("init_")):
            raise EquationError(f"[{label}] {what}: {name!r} already means another tensor")
    if len(set(names)) < len(names):
        raise EquationError(f"[{label}] {what}: expected different names, got {text!r}")
    return names


def check_arguments(
    label: str, function: Any, states: tuple[str, ...], others: tuple[str, ...]
) -> None:
    """``others``: the parameters and the values per step."""
    names = (*states, *others)
    if not callable(function):
        raise EquationError(f"[{label}] expected a function, got {type(function).__name__}")
    if len(set(names)) < len(names):
        raise EquationError(f"[{label}] expected parameters whose names differ from the states'")
    for name in names:
        if any(name == f"{each}_{end}" for each in states for end in _OF_STATES):
            raise EquationError(f"[{label}] {name!r} already means another tensor")
    wanted = ("x", "R", *names)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # some of Python's own functions
        raise EquationError(f"[{label}] expected a function written in Python") from None
    found = tuple(each.name for each in parameters)
    rest = parameters[-1:] and parameters[-1].kind is inspect.Parameter.VAR_POSITIONAL
    if found != wanted and not (rest and found[:-1] == wanted[: len(found) - 1]):
        raise EquationError(
            f"[{label}] expected the arguments ({', '.join(wanted)}), got ({', '.join(found)})"
        )


def checked_initial(
    label: str, initial: Mapping[str, float], states: tuple[str, ...]
) -> dict[str, float]:
    if not isinstance(initial, Mapping):
        got = type(initial).__name__
        raise EquationError(f"[{label}] initial: expected a mapping from states, got {got}")
    found = {}
    for name, value in initial.items():
        if name not in states:
            raise EquationError(
                f"[{label}] initial: expected names of {', '.join(states)}, got {name!r}"
            )
        try:
            is_number = isinstance(value, Real) and not isinstance(value, bool)
            found[name] = float(value) if is_number else math.nan
        except OverflowError:
            found[name] = math.nan
        if math.isnan(found[name]):
            got = f"{value!r:.60}"
            raise EquationError(f"[{label}] initial: expected a number for {name}, got {got}")
    return {name: value for name, value in found.items() if value}


def with_line(
    label: str, said: str, error: Exception, function: Callable[..., Any]
) -> EquationError:
    """An error with the line of the source that it is about."""
    code = cast(CodeType, getattr(function, "__code__", None))
    if code is None:
        return EquationError(f"[{label}] {said}")
    line = code.co_firstlineno
    step: TracebackType | None = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code is code:
            line = step.tb_lineno
        step = step.tb_next
    text = linecache.getline(code.co_filename, line).strip()
    shown = f": {text}" if text else ""  # a text run by exec() has no lines to show
    return EquationError(f"[{label}] {said}\n  {code.co_filename}:{line}{shown}")
