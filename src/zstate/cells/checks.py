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
_OTHERS = ("resets", "x", "R", "z_state", "source_gradient", "descriptor", "inf", "nan")
_RESERVED = frozenset({*_NAMES, *OPTIONS, *_OTHERS})
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


def check_arguments(label: str, function: Any, names: tuple[str, ...]) -> None:
    if not callable(function):
        raise EquationError(f"[{label}] expected a function, got {type(function).__name__}")
    if len(set(names)) < len(names):
        raise EquationError(f"[{label}] expected parameters whose names differ from the states'")
    wanted = ("x", "R", *names)
    parameters = list(inspect.signature(function).parameters.values())
    found = tuple(each.name for each in parameters)
    rest = parameters[-1:] and parameters[-1].kind is inspect.Parameter.VAR_POSITIONAL
    if found != wanted and not (rest and found[:-1] == wanted[: len(found) - 1]):
        raise EquationError(
            f"[{label}] expected the arguments ({', '.join(wanted)}), got ({', '.join(found)})"
        )


def checked_initial(
    label: str, initial: Mapping[str, float], states: tuple[str, ...]
) -> dict[str, float]:
    for name, value in initial.items():
        if name not in states:
            raise EquationError(
                f"[{label}] initial: expected names of {', '.join(states)}, got {name!r}"
            )
        if isinstance(value, bool) or not isinstance(value, Real) or math.isnan(value):
            raise EquationError(f"[{label}] initial: expected a number for {name}, got {value!r}")
    return {name: float(value) for name, value in initial.items() if value}


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
    return EquationError(f"[{label}] {said}\n  {code.co_filename}:{line}: {text}")
