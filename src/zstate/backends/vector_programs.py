"""One program of vector instructions, as the native engine takes it: numbers.

The engine says which instructions and places it has (csrc/engine/opcodes.h); both are looked up by
name, so that the two cannot drift apart. csrc/runtime/cell_tables.cpp reads the numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from ..cells.expressions import Expression, ordered
from ..cells.functions import REDUCTIONS

Place: TypeAlias = tuple[str, int]  # a kind of place, and which of them
Words: TypeAlias = list[int]


class UnsupportedError(Exception):
    """What the engine lacks for a cell, in words."""


@dataclass(frozen=True, eq=False)
class Tables:
    """What the engine has: numbers by the names of instructions and places, and its limits."""

    opcodes: dict[str, int]
    places: dict[str, int]
    limits: dict[str, int]

    @classmethod
    def of(cls, module: Any) -> Tables:
        opcodes, places = (
            {name: number for number, name in enumerate(names)}
            for names in (module.opcodes(), module.places())
        )
        return cls(opcodes, places, dict(module.limits()))


class Output(NamedTuple):
    """A value and where it goes; ``late``: what only a next step needs."""

    place: Place
    value: Expression
    late: bool


class _Step(NamedTuple):
    """An instruction: its name, what it computes, and of what."""

    op: str
    result: Expression
    args: tuple[Expression, ...]


_SUMMED = frozenset({"relu", "tanh", "sigmoid", "hard_sigmoid"})  # functions that take sums, slopes


def _is_zero(each: Expression) -> bool:
    return each.op == "number" and each.detail == 0


class ProgramText:
    """One program: instructions in order, several operations to one where the engine has such."""

    def __init__(
        self,
        tables: Tables,
        numbers: list[float],
        outputs: Sequence[Output],
        aliases: Mapping[str, str],
    ) -> None:
        self._tables, self._numbers, self._aliases = tables, numbers, aliases
        self._outputs = self._settled(outputs)
        self._uses: dict[Expression, int] = {}
        roots = [each.value for each in self._outputs]
        for each in ordered(roots):
            for arg in each.args:
                self._uses[arg] = self._uses.get(arg, 0) + 1
        for root in roots:
            self._uses[root] = self._uses.get(root, 0) + 1
        self._instructions: dict[Expression, tuple[str, tuple[Expression, ...]]] = {}
        for each in ordered(roots):  # those of the arguments first, which decide
            self._instructions[each] = self._instruction(each)
        core = [each.value for each in self._outputs if not each.late]
        self._steps: list[_Step] = []
        self._emit(core)
        self._core = len(self._steps)
        self._emit(roots)

    def _memory(self, place: Place) -> Place:
        return self._aliases.get(place[0], place[0]), place[1]

    def _settled(self, outputs: Sequence[Output]) -> list[Output]:
        """Core first; inputs that are results too, and that others overwrite, are copied first."""
        changed = {
            self._memory(each.place)
            for each in outputs
            if not (each.value.op == "leaf" and each.value.detail == each.place)
        }
        found = []
        for place, value, late in sorted(outputs, key=lambda each: each.late):
            if value.op == "leaf":
                if value.detail == place:
                    continue
                if self._memory(value.detail) in changed:
                    value = value.book.make("copy", (value,))
            found.append(Output(place, value, late))
        return found

    def _emit(self, roots: Iterable[Expression]) -> None:
        done = {each.result for each in self._steps}
        stack = [(root, False) for root in reversed(list(roots))]
        while stack:
            each, ready = stack.pop()
            if each in done or each.op in ("leaf", "number"):
                continue
            op, args = self._instructions[each]
            if ready:
                done.add(each)
                self._steps.append(_Step(op, each, args))
            else:
                stack.append((each, True))
                stack.extend((arg, False) for arg in reversed(args))

    # ---- which instruction computes a value ----

    def _alone(self, each: Expression, op: str) -> bool:
        """Whether it is such an operation that nothing else needs."""
        return each.op == op and self._uses[each] == 1

    def _scaled(self, each: Expression) -> bool:
        """Whether it is a product with a slope, which is one instruction itself."""
        return any(self._slope(arg) for arg in each.args)

    def _slope(self, each: Expression) -> bool:
        return self._alone(each, "slope") and each.detail in _SUMMED

    def _product(self, each: Expression) -> bool:
        return self._alone(each, "multiply") and not self._scaled(each)

    def _instruction(self, each: Expression) -> tuple[str, tuple[Expression, ...]]:
        op, args = each.op, each.args
        if op in _SUMMED and self._alone(args[0], "add"):
            inner, terms = self._instructions[args[0]]
            if inner in ("add", "add_add"):
                return f"{inner}_{op}", terms
        elif op == "add":
            return self._sum(args)
        elif op == "subtract":
            a, b = args
            if self._product(a):
                return "multiply_subtract", (*a.args, b)
            if self._product(b):
                return "subtract_product", (*b.args, a)
        elif op == "multiply":
            return self._times(args)
        elif op == "slope":
            return f"slope_{each.detail}", args
        elif op == "where" and _is_zero(args[1]) and args[0].op == "greater":
            given, bound = args[0].args
            if _is_zero(bound):
                return "unless_positive", (given, args[2])
        return op, args

    def _sum(self, args: tuple[Expression, ...]) -> tuple[str, tuple[Expression, ...]]:
        if all(map(self._product, args)) and args[0] is not args[1]:
            return "product_sum", args[0].args + args[1].args
        for one, other in (args[::-1], args):
            if self._product(one):
                return "multiply_add", (*one.args, other)
        for one, other in (args[::-1], args):
            if self._alone(one, "negative"):
                return "subtract", (other, one.args[0])
        for one, other in (args, args[::-1]):
            if self._alone(one, "add") and self._instructions[one][0] == "add":
                return "add_add", (*one.args, other)
        return "add", args

    def _times(self, args: tuple[Expression, ...]) -> tuple[str, tuple[Expression, ...]]:
        for one, other in (args[::-1], args):
            if self._slope(one):
                if self._product(other):
                    return f"multiply_multiply_slope_{one.detail}", (*other.args, one.args[0])
                return f"multiply_slope_{one.detail}", (other, one.args[0])
        for one, other in (args, args[::-1]):
            if self._product(one):
                return "multiply_multiply", (*one.args, other)
        for one, other in (args[::-1], args):
            if self._alone(one, "tanh") and self._instructions[one][0] == "tanh":
                return "multiply_tanh", (other, *one.args)
        return "multiply", args

    # ---- where values lie ----

    def _in_place(self) -> dict[Expression, Place]:
        """The values that are computed where they go: unless a later instruction reads there."""
        made = {each.result: k for k, each in enumerate(self._steps)}
        read = {
            self._memory(arg.detail): k
            for k, each in enumerate(self._steps)
            for arg in each.args
            if arg.op == "leaf"
        }
        found: dict[Expression, Place] = {}
        for place, value, _ in self._outputs:
            free = value in made and value not in found
            if free and read.get(self._memory(place), -1) <= made[value]:
                found[value] = place
        return found

    def words(self) -> Words:
        leaves = [arg.detail for each in self._steps for arg in each.args if arg.op == "leaf"] + [
            each.value.detail for each in self._outputs if each.value.op == "leaf"
        ]
        read = set(leaves)
        places = list(dict.fromkeys([*leaves, *(each.place for each in self._outputs)]))
        places.sort(key=lambda place: place[0] != "product")  # which the engine computes otherwise
        every = [arg for each in self._steps for arg in each.args]
        every += [each.value for each in self._outputs]
        numbers = list(dict.fromkeys(each.detail for each in every if each.op == "number"))
        at: dict[Expression, int] = {}
        for each in every:
            if each.op == "leaf":
                at[each] = places.index(each.detail)
            elif each.op == "number":
                at[each] = len(places) + numbers.index(each.detail)
        at |= {value: places.index(place) for value, place in self._in_place().items()}
        temporary = self._allocate(at, len(places) + len(numbers))
        count = len(places) + len(numbers) + temporary
        if count > self._tables.limits["values"]:
            most = self._tables.limits["values"]
            raise UnsupportedError(f"it has room for {most} values in a program, not {count}")
        words = [len(places)]
        for place in places:
            words += [self._tables.places[place[0]], place[1], int(place in read)]
        words += [
            len(numbers),
            *map(self._number, numbers),
            temporary,
            len(self._steps),
            self._core,
        ]
        for op, result, args in self._steps:
            if op in REDUCTIONS:
                raise UnsupportedError(
                    "its gradient cannot contain a mean in a value that R multiplies"
                )
            if op not in self._tables.opcodes:
                raise UnsupportedError(f"it has no function {op!r}")
            words += [self._tables.opcodes[op], at[result], *(at[arg] for arg in args)]
        words.append(len(self._outputs))
        for place, value, _ in self._outputs:
            words += [places.index(place), at[value]]
        return [*words, sum(not each.late for each in self._outputs)]

    def _number(self, value: float) -> int:
        if value not in self._numbers:
            self._numbers.append(value)
        return self._numbers.index(value)

    def _allocate(self, at: dict[Expression, int], first: int) -> int:
        """Places for all other values, used again when a value is no longer needed."""
        last = {arg: k for k, each in enumerate(self._steps) for arg in each.args}
        last |= {each.value: len(self._steps) for each in self._outputs}
        free: list[int] = []
        count = 0
        mine: set[Expression] = set()
        for k, each in enumerate(self._steps):
            for arg in dict.fromkeys(each.args):
                if arg in mine and last[arg] == k:
                    free.append(at[arg])
            if each.result not in at:
                if not free:
                    free.append(first + count)
                    count += 1
                at[each.result] = free.pop()
                mine.add(each.result)
        return count
