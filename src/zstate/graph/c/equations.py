"""A cell's step as C: its one text, printed as loops over the units between products with R."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ...cells.functions import REDUCTIONS
from ...cells.program import Instruction, Leaf, Program
from .words import LABEL, Place, loop, number, refuse

# The functions of equations; @ stands for the model's name. Conditions are 1 or 0.
_WORDS = {
    "none": "{0}",
    "relu": "@_relu({0})",
    "tanh": "tanhf({0})",
    "sigmoid": "@_sigmoid({0})",
    "hard_sigmoid": "@_hard_sigmoid({0})",
    "softplus": "@_softplus({0})",
    "log_sigmoid": "-@_softplus(-{0})",
    "exp": "expf({0})",
    "log": "logf({0})",
    "sqrt": "sqrtf({0})",
    "abs": "fabsf({0})",
    "maximum": "@_maximum({0}, {1})",
    "minimum": "@_minimum({0}, {1})",
    "where": "{0} != 0.0f ? {1} : {2}",
    "add": "{0} + {1}",
    "subtract": "{0} - {1}",
    "multiply": "{0} * {1}",
    "divide": "{0} / {1}",
    "negative": "-{0}",
    "greater": "(float)({0} > {1})",
    "at_least": "(float)({0} >= {1})",
}
_BETWEEN = frozenset({"product"}) | REDUCTIONS  # what needs all units at once


class Surroundings(NamedTuple):
    """What a step's text reads and calls, as C."""

    prefix: str  # of the helpers
    read: Callable[[Leaf], Place]  # a leaf: where its units are
    multiply: Callable[[Sequence[str], Place, Place], list[str]]  # gates, operand, results
    order: Sequence[str]  # of the gates in R
    states: Sequence[Place]  # those that the step replaces
    hidden: int
    helpers: set[str]  # gets the names of those that are used


class Step(NamedTuple):
    lines: list[str]
    work: int  # floats of scratch, from the pointer "work" on


def step(text: Program, around: Surroundings) -> Step:
    """One step: the states are replaced at its end."""
    return _Printer(text, around).printed()


class _Printer:
    def __init__(self, text: Program, around: Surroundings) -> None:
        self._text, self._around = text, around
        self._makers = {place: each for each in text.instructions for place in each.results}
        self._levels = _levels(text)
        self._last = max([0, *self._levels.values()])
        self._stored = self._needed_elsewhere()
        self._names: dict[int, Place] = {}  # of values between loops
        self._work = 0

    def printed(self) -> Step:
        lines: list[str] = []
        for level in range(self._last + 1):
            for each in self._text.instructions:
                if each.op in _BETWEEN and self._levels[each.results[0]] == level:
                    lines += self._between(each)
            lines += self._loop(level)
        return Step(lines, self._work)

    def _loop(self, level: int) -> list[str]:
        """Everything of a level that is computed unit by unit."""
        body = []
        for each in self._text.instructions:
            place = each.results[0]
            if each.op in _BETWEEN or each.op == "number" or self._levels[place] != level:
                continue
            body.append(f"const float v{place} = {self._value(each)};")
        stored = sorted(place for place in self._stored if self._levels[place] == level)
        for place in stored:
            value = self._read(place, local=True)
            self._names[place] = self._reserve(1)
            body.append(f"{self._names[place]['j']} = {value};")
        if level == self._last:
            body += self._replace_states()
        return loop(self._around.hidden, *body, index="j") if body else []

    def _replace_states(self) -> list[str]:
        """All are read before one is written."""
        values = [self._read(place) for place in self._text.outputs]
        lines = []
        for k, value in enumerate(values):
            if "[" in value:
                lines.append(f"const float new{k} = {value};")
                values[k] = f"new{k}"
        pairs = zip(self._around.states, values, strict=True)
        return lines + [f"{state['j']} = {value};" for state, value in pairs]

    def _between(self, each: Instruction) -> list[str]:
        if each.op in REDUCTIONS:
            return self._reduction(each)
        operand = self._pointer(each.args[0])
        result = self._reserve(len(each.results))
        order = self._around.order.index
        pairs = sorted(zip(each.detail, each.results, strict=True), key=lambda p: order(p[0]))
        for k, (_, place) in enumerate(pairs):
            self._names[place] = result + k * self._around.hidden
        return self._around.multiply([gate for gate, _ in pairs], operand, result)

    def _reduction(self, each: Instruction) -> list[str]:
        """The mean or the variance of several values: the mean of theirs, around one middle."""
        (place,) = each.results
        operands = list(map(self._pointer, each.args))

        def mean_of(helper: str, between: str = "") -> str:
            self._around.helpers.add(helper)
            name, count = f"{self._around.prefix}_{helper}", self._around.hidden
            calls = [f"{name}({operand}{between}, {count})" for operand in operands]
            return calls[0] if len(calls) == 1 else f"({' + '.join(calls)}) / {len(calls)}.0f"

        if each.op == "mean":
            return [f"const float v{place} = {mean_of('mean')};"]
        return [
            f"const float middle{place} = {mean_of('mean')};",
            f"const float v{place} = {mean_of('spread', f', middle{place}')};",
        ]

    def _reserve(self, vectors: int) -> Place:
        """A place in the scratch memory for this many values per unit."""
        place = self._work
        self._work += vectors * self._around.hidden
        return Place("work", place)

    def _value(self, each: Instruction) -> str:
        word = _WORDS.get(each.op)
        if word is None:
            raise refuse(LABEL, "equations", "functions that C has", each.op)
        called = word.partition("@_")[2].partition("(")[0]
        if called:
            self._around.helpers.add(called)
        given = [self._read(arg) for arg in each.args]
        return word.format(*given).replace("@", self._around.prefix)

    def _read(self, place: int, local: bool = False) -> str:
        """The value of unit j."""
        maker = self._makers.get(place)
        if maker is None:
            return self._around.read(self._text.inputs[place])["j"]
        if maker.op == "number":
            text = number(maker.detail)
            return f"({text})" if text.startswith("-") else text
        if place in self._names and not local:
            return self._names[place]["j"]
        return f"v{place}"

    def _pointer(self, place: int) -> Place:
        if place in self._makers:
            return self._names[place]
        return self._around.read(self._text.inputs[place])

    def _needed_elsewhere(self) -> set[int]:
        """The values that a loop leaves for a later one, or for what needs all units."""
        found: set[int] = set()
        for each in self._text.instructions:
            for arg in each.args:
                maker = self._makers.get(arg)
                if maker is None or maker.op == "product":
                    continue
                between = maker.op not in ("number", *REDUCTIONS) and (
                    self._levels[arg] != self._levels[each.results[0]]
                )
                if each.op in _BETWEEN or between:
                    found.add(arg)
        for arg in self._text.outputs:
            maker = self._makers.get(arg)
            if maker and maker.op not in (*_BETWEEN, "number") and self._levels[arg] < self._last:
                found.add(arg)
        return found


def _levels(text: Program) -> dict[int, int]:
    """The loop in which each value is computed: as late as what reads it allows."""
    earliest: dict[int, int] = {}
    for each in text.instructions:
        base = max((earliest.get(arg, 0) for arg in each.args), default=0)
        earliest.update(dict.fromkeys(each.results, base + (each.op in _BETWEEN)))
    last = max([0, *earliest.values()])
    wanted: dict[int, list[int]] = {place: [last] for place in text.outputs}
    found: dict[int, int] = {}
    for each in reversed(text.instructions):
        level = earliest[each.results[0]]
        if each.op not in _BETWEEN:
            level = min(_wanted(wanted, each.results), default=level)
        found.update(dict.fromkeys(each.results, level))
        for arg in each.args:
            wanted.setdefault(arg, []).append(level - (each.op in _BETWEEN))
    return found


def _wanted(wanted: dict[int, list[int]], results: Iterable[int]) -> list[int]:
    return [level for place in results for level in wanted.get(place, ())]
