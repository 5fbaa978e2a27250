"""A cell as text, and back: what files and pickles carry.

    cell: mgu
    gates: f z
    states: h
    f = sigmoid(x.f + R.f @ h)
    h' = (1 - f) * h + f * tanh(x.z + R.z @ (f * h))

One line per equation; ``h'`` is the state h after the step. A text may come from anywhere, so it
never runs as Python: a parser for this language computes with symbols, just as a function does
under ``@cells.cell``. The cell that is read has the same key, and so the same bits, as the one
written.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from operator import add, ge, gt, le, lt, mul, sub, truediv
from typing import Any, NoReturn
from weakref import WeakValueDictionary

from ..errors import EquationError, visible
from . import language
from .decorator import MadeCell
from .expressions import Expression, Operand
from .functions import REDUCTIONS
from .printing import FILES, equations
from .tracing import Step, Trace

LONGEST = 1 << 16  # characters of a text
_MOST_NESTED = 50  # nested parentheses, arguments and signs
_HEADS = ("cell", "gates", "states", "parameters", "steps", "initial")
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)|(?P<name>[^\W\d]\w*'?)"
    r"|(?P<sign>[<>]=|[-+*/@().,=<>]))"
)
_FUNCTIONS = {
    name: value
    for name, value in vars(language).items()
    if inspect.isfunction(value) and not name.startswith("_") and name != "layer_norm"
}  # layer_norm is written as what it is made of
_COMPARISONS: dict[str, Callable[..., Any]] = {">": gt, "<": lt, ">=": ge, "<=": le}
_SUMS: dict[str, Callable[..., Any]] = {"+": add, "-": sub}
_TERMS: dict[str, Callable[..., Any]] = {"*": mul, "/": truediv}
_known: WeakValueDictionary[str, MadeCell] = WeakValueDictionary()  # by text: one cell each


def write_cell(cell: MadeCell) -> str:
    """The cell as text, which :func:`read_cell` turns back into the same cell."""
    known: str | None = cell.__dict__.get("_text")
    if known is not None:
        return known
    definition = cell.definition
    trace = definition.forward(definition.usual, definition.needed, False)
    own = [each.name for each in definition.own]
    text = text_of(cell.__name__, trace, own, cell.steps, cell.initial)
    if read_cell(text).definition.key != definition.key:
        raise EquationError(f"[{cell.__name__}] expected equations that can be written as text")
    cell.__dict__["_text"] = text
    return text


def text_of(
    label: str,
    trace: Trace,
    own: Sequence[str],
    steps: Sequence[str] = (),
    initial: Mapping[str, float] | None = None,
) -> str:
    """Equations as text, with the names of their parameters and values per step."""
    starts = (f"{name} = {value!r}" for name, value in (initial or {}).items())
    gates = [gate for gate in trace.gates if gate not in steps]
    heads = (label, *map(" ".join, (gates, trace.names, own, steps)), ", ".join(starts))
    lines = [f"{head}: {said}" for head, said in zip(_HEADS, heads, strict=True) if said]
    symbols = {name: name for name in (*trace.names, *own)}
    symbols |= {f"x.{name}": name for name in steps}
    return "\n".join([*lines, equations(trace, symbols, FILES)])


def read_cell(text: str) -> MadeCell:
    """The cell that a text describes; the same object while it lives. Rejects any other text."""
    if not isinstance(text, str) or len(text) > LONGEST:
        got = f"{len(text)}" if isinstance(text, str) else type(text).__name__
        raise EquationError(f"[cell] expected a text of at most {LONGEST} characters, got {got}")
    found = _known.get(text)
    if found is None:
        found = _known[text] = _read(text)
    return found


def _read(text: str) -> MadeCell:
    lines = text.splitlines()
    first, said = 0, dict.fromkeys(_HEADS, "")
    for head in _HEADS:
        line = lines[first] if first < len(lines) else ""
        if line.startswith(f"{head}:"):
            said[head] = line.partition(":")[2].strip()
            first += 1
        elif head in _HEADS[:3]:
            got = visible(line[:60])
            raise EquationError(f"[cell] line {first + 1}: expected “{head}: …”, got {got!r}")
    name, gates, states, parameters, steps, initial = said.values()
    others = [*parameters.split(), *steps.split()]
    body = _Equations(name, states.split(), others, lines[first:], first + 1)
    return MadeCell(body, gates, states, parameters, steps, _initial(name, initial))


def _initial(label: str, said: str) -> dict[str, float]:
    """``m = -inf, n = 1.0``."""
    found = {}
    for pair in said.split(",") if said else ():
        state, _, value = pair.partition("=")
        try:
            found[state.strip()] = float(value)
        except ValueError:
            got = visible(pair.strip()[:60])
            raise EquationError(
                f"[{label}] initial: expected “state = number”, got {got!r}"
            ) from None
    return found


class _Equations:
    """The function of a cell that was read: it computes the lines on the symbols it is given."""

    def __init__(
        self,
        name: str,
        states: Sequence[str],
        others: Sequence[str],  # parameters and values per step
        lines: Sequence[str],
        first: int,
    ) -> None:
        self.__name__ = self.__qualname__ = name
        self.__doc__ = None
        self._states, self._lines, self._first = states, lines, first
        self._arguments = ("x", "R", *states, *others)
        kind = inspect.Parameter.POSITIONAL_ONLY
        try:
            listed = [inspect.Parameter(each, kind) for each in self._arguments]
            self.__signature__ = inspect.Signature(listed)
        except ValueError:  # Python's own names, or a name used twice: the cell itself reports them
            self.__signature__ = inspect.Signature()

    def __call__(self, *given: Any) -> Step:
        values = dict(zip(self._arguments, given, strict=True))
        for number, line in enumerate(self._lines, self._first):
            if line.strip():
                try:
                    _Line(line, values, self._states).compute()
                except EquationError as error:
                    raise EquationError(f"line {number}: {error}") from None
        missing = [name for name in self._states if f"{name}'" not in values]
        if missing:
            raise EquationError(f"expected an equation {missing[0]}' = …, got none")
        names = {
            value: name
            for name, value in values.items()
            if name not in self._arguments and not name.endswith("'")
        }
        return Step(tuple(values[f"{name}'"] for name in self._states), None, names, in_order=True)


class _Line:
    """One equation: reads it from left to right, and computes as it reads."""

    def __init__(self, line: str, values: dict[str, Any], states: Sequence[str]) -> None:
        self._values, self._states = values, states
        self._tokens: list[tuple[str, str]] = []  # (kind, text)
        self._next = self._depth = 0
        place = 0
        line = line.rstrip()
        while place < len(line):
            found = _TOKEN.match(line, place)
            if found is None:
                self._refuse("names, numbers and signs", line[place:].strip()[:1])
            self._tokens.append((str(found.lastgroup), found[str(found.lastgroup)]))
            place = found.end()
        self._tokens.append(("end", "the end of the line"))

    def compute(self) -> None:
        name = self._take("name")
        is_other = name.endswith("'") and name[:-1] not in self._states
        if is_other or name in self._values or name in ("inf", "nan"):
            self._refuse("a new name, or a state followed by '", name)
        self._take("=")
        value = self._comparison()
        self._take("end")
        if not isinstance(value, Expression):
            self._refuse("a value of the step", "a number")
        self._values[name] = value

    def _comparison(self) -> Any:
        return self._chain(_COMPARISONS, self._sum, once=True)

    def _sum(self) -> Any:
        return self._chain(_SUMS, self._term)

    def _term(self) -> Any:
        return self._chain(_TERMS, self._factor)

    def _chain(
        self, signs: Mapping[str, Callable[..., Any]], part: Callable[[], Any], once: bool = False
    ) -> Any:
        """Parts with signs between them, from left to right."""
        value = part()
        while self._peek()[1] in signs:
            sign = self._take()
            other = part()
            if not (isinstance(value, Expression) or isinstance(other, Expression)):
                self._refuse(f"a value of the step next to {sign}", "two numbers")
            value = signs[sign](value, other)
            if once:
                break
        return value

    def _factor(self) -> Any:
        """All nesting comes through here."""
        self._depth += 1
        if self._depth > _MOST_NESTED:
            self._refuse(f"at most {_MOST_NESTED} nested operations", "more")
        if self._peek()[1] == "-":
            self._take()
            value = -self._factor()
        else:
            value = self._value()
        self._depth -= 1
        return value

    def _value(self) -> Any:
        kind, text = self._peek()
        if kind == "number":
            return float(self._take())
        if text == "(":
            values = self._in_parentheses()
            return values[0] if len(values) == 1 else self._refuse("one value in ( )", "several")
        name = self._take("name")
        if self._peek()[1] == "(":
            return self._called(name)
        if name in ("x", "R"):
            self._take(".")
            tensor = self._values[name][self._take("name")]
            if name == "x":
                return tensor
            self._take("@")
            return tensor @ self._factor()
        if name in self._values:
            return self._values[name]
        if name in ("inf", "nan"):
            return float(name)
        return self._refuse("a value from an earlier line, a state or a parameter", name)

    def _called(self, name: str) -> Any:
        if name not in _FUNCTIONS:
            self._refuse(f"one of {', '.join(_FUNCTIONS)}", f"{name}(…)")
        arguments = self._in_parentheses()
        wanted = len(inspect.signature(_FUNCTIONS[name]).parameters)
        if len(arguments) != wanted and name not in REDUCTIONS:
            plural = "s" * (wanted != 1)
            self._refuse(f"{wanted} argument{plural} for {name}", str(len(arguments)))
        return _FUNCTIONS[name](*arguments)

    def _in_parentheses(self) -> list[Operand]:
        self._take("(")
        values = [self._comparison()]
        while self._peek()[1] == ",":
            self._take()
            values.append(self._comparison())
        self._take(")")
        return values

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._next]

    def _take(self, wanted: str | None = None) -> str:
        kind, text = self._peek()
        if wanted is not None and wanted != (text if kind == "sign" else kind):
            expected = {"name": "a name", "end": "the end of the line"}.get(wanted, wanted)
            self._refuse(expected, text)
        self._next += kind != "end"
        return text

    def _refuse(self, expected: str, got: str) -> NoReturn:
        shown = visible(got[:60])
        raise EquationError(f"expected {expected}, got {shown!r}")
