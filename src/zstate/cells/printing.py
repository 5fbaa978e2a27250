"""A cell's equations as text: as people write them, or so that they can be read back (text.py).

``print(cell)`` and the documentation show the first: ``o = tanh(x_o + R_o (r·h))``. Files have the
second, ``o = tanh(x.o + R.o @ (r * h))``, in which every operation keeps its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from .expressions import OPERATORS, Expression, ordered
from .tracing import Trace

_TIGHT = 9  # what needs no parentheses anywhere
_MOST_NESTED = 16  # in one line that is read back; what is deeper gets a name


class Spelling(NamedTuple):
    """How equations are written."""

    signs: Mapping[str, str]  # with the spaces around them
    of_gate: str  # between a tensor and its gate
    times: str  # between R of a gate and what it multiplies
    exact: bool  # whether a sum of sums keeps its parentheses


_LOOSE = ("add", "subtract", "greater", "at_least")
PEOPLE = Spelling(
    {op: f" {sign} " if op in _LOOSE else sign for op, (sign, _) in OPERATORS.items()},
    of_gate="_",
    times=" ",
    exact=False,
)
FILES = Spelling(
    {**PEOPLE.signs, "multiply": " * ", "divide": " / ", "at_least": " >= "},
    of_gate=".",
    times=" @ ",
    exact=True,
)


def equations(trace: Trace, symbols: Mapping[str, str], spelling: Spelling = PEOPLE) -> str:
    """One line per equation; ``symbols`` are the letters of states and parameters by name."""
    lines = _Lines(trace, symbols, spelling)
    return "\n".join(lines.written())


class _Lines:
    def __init__(self, trace: Trace, symbols: Mapping[str, str], spelling: Spelling) -> None:
        self._trace, self._symbols, self._spelling = trace, symbols, spelling
        self._taken = {*symbols.values(), "x", "R", "inf", "nan"}
        states = zip(trace.names, trace.states, strict=True)
        # A state that is another value too, or another state, keeps the first name.
        self._names = {each: f"{symbols.get(name, name)}'" for name, each in reversed(list(states))}
        every = ordered([*trace.states, *trace.saved])
        uses = Counter(arg for each in every for arg in each.args)
        locals_ = set(trace.local_names.values())
        nested: dict[Expression, int] = {}
        for each in every:
            depth = 1 + max((nested[arg] for arg in each.args), default=-1)
            if each.args and each not in self._names and each in trace.local_names:
                self._name(each, trace.local_names[each])
            elif each not in self._names and (
                (uses[each] > 1 and not _is_short(each))
                or (spelling.exact and depth > _MOST_NESTED)
            ):
                self._name(each, f"v{len(self._names)}", locals_)
            nested[each] = 0 if each in self._names else depth

    def _name(self, each: Expression, wanted: str, others: Collection[str] = ()) -> None:
        """A name that no other value has: a text may call a new value like a state."""
        name, number = wanted, 1
        while name in self._taken or name in others:
            number += 1
            name = f"{wanted}_{number}"
        self._taken.add(name)
        self._names[each] = name

    def written(self) -> list[str]:
        lines = []
        for each in self._trace.book.as_made(ordered(self._trace.states)):
            if each in self._names:
                lines.append(f"{self._names[each]} = {self._text(each, top=True)[0]}")
        for name, each in zip(self._trace.names, self._trace.states, strict=True):
            symbol = f"{self._symbols.get(name, name)}'"
            if self._names[each] != symbol:
                lines.append(f"{symbol} = {self._names[each]}")
        return lines

    def _text(self, each: Expression, top: bool = False) -> tuple[str, int]:
        """The value, and how tightly its outermost sign binds."""
        if each in self._names and not top:
            return self._names[each], _TIGHT
        if each.op == "leaf":
            return self._leaf(each.detail), _TIGHT
        if each.op == "number":
            return repr(each.detail).removesuffix(".0"), _TIGHT if each.detail >= 0 else 0
        if each.op == "product":
            text, bound = self._text(each.args[0])
            plain = bound == _TIGHT and (self._spelling.exact or "(" not in text)
            inner = text if plain else f"({text})"
            return f"R{self._spelling.of_gate}{each.detail}{self._spelling.times}{inner}", 2
        if each.op in OPERATORS:
            return self._signed(each)
        inner = ", ".join(self._text(arg)[0] for arg in each.args)
        return f"{each.op}({inner})", _TIGHT

    def _signed(self, each: Expression) -> tuple[str, int]:
        bound = OPERATORS[each.op][1]
        parts = []
        for k, arg in enumerate(each.args):
            text, inner = self._text(arg)
            # a - (b - c), a / (b·c): on the right of these, the same strength needs parentheses.
            strict = k > 0 and (self._spelling.exact or each.op in ("subtract", "divide"))
            parts.append(f"({text})" if inner < bound + strict else text)
        sign = self._spelling.signs[each.op]
        return sign.join(parts) if len(parts) > 1 else f"{sign}{parts[0]}", bound

    def _leaf(self, detail: tuple[str, ...]) -> str:
        kind, *names = detail
        if kind == "mask":
            return "m"
        if kind == "x":
            return self._symbols.get(f"x.{names[0]}", f"x{self._spelling.of_gate}{names[0]}")
        symbol = self._symbols.get(names[0], names[0])
        return self._spelling.of_gate.join([symbol, *names[1:]])


def _is_short(each: Expression) -> bool:
    """A leaf, or an operation on leaves, which is written again where it is used again."""
    return all(not arg.args for arg in each.args)
