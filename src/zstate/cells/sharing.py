"""What the stages of a step share: values that a later one needs are carried, computed again or
read where they lie; and means over the units of a row, each between two stages."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from .expressions import Expression, ordered
from .functions import REDUCTIONS
from .program import Program, program
from .tracing import Trace

Label: TypeAlias = tuple[str, ...]  # what an output is: ("after", state), ("operand", "0"), …


class Reduction(NamedTuple):
    """The mean or the variance over the units of a row, of ``values`` values together: ("reduced",
    first) and the ones after it."""

    op: str
    first: int
    values: int


Reductions: TypeAlias = tuple[tuple[Reduction, ...], ...]  # that each stage begins with


@dataclass(frozen=True)
class Equations:
    """What is computed behind the products of a stage; ``labels`` say what each output is."""

    text: Program
    labels: tuple[Label, ...]


class Means:
    """The means and variances of a step, by the stages that can read them."""

    def __init__(self, levels: Mapping[Expression, int]) -> None:
        self._levels = levels
        found = [each for each in levels if each.op in REDUCTIONS]
        self.all = sorted(found, key=levels.__getitem__)
        self.places: dict[Expression, int] = {}  # of the first of each one's arguments
        self.count = 0  # of places
        taken: dict[tuple[Expression, ...], int] = {}
        for each in self.all:
            if each.args not in taken:
                taken[each.args] = self.count
                self.count += len(each.args)
            self.places[each] = taken[each.args]

    def leaf(self, mean: Expression, at: int, ends: Container[int]) -> Expression | None:
        """What a stage reads: the one that begins with the mean, and those after it up to one of
        ``ends``. Products are ends: other threads may compute the rows from there on."""
        begin = self._levels[mean]
        if at < begin or any(stage in ends for stage in range(begin + 1, at + 1)):
            return None
        return mean.book.leaf("mean", str(self.all.index(mean)))

    def reduce_in(self, of_stage: list[dict[Label, Expression]]) -> None:
        """Lets the stage before give what each reduces."""
        for each, first in self.places.items():
            for k, arg in enumerate(each.args, first):
                of_stage[self._levels[each] - 1]["reduced", str(k)] = arg

    def given(self) -> dict[Expression, tuple[int, int]]:
        """What is reduced, where it lies, and from which stage on it can be read there."""
        return {
            arg: (k, self._levels[each])
            for each, first in self.places.items()
            for k, arg in enumerate(each.args, first)
        }

    def by_stage(self, count: int) -> Reductions:
        found = {e: Reduction(e.op, first, len(e.args)) for e, first in self.places.items()}
        return tuple(
            tuple(one for e, one in found.items() if self._levels[e] == at) for at in range(count)
        )


def equations_of(outputs: Mapping[Label, Expression]) -> Equations:
    return Equations(program(outputs.values()), tuple(outputs))


def of_next_step(trace: Trace) -> dict[Expression, Expression]:
    """What the next step, or the step behind, calls before is after this one."""
    leaf = trace.book.leaf
    found = {leaf("mask"): leaf("next_mask"), leaf("reset"): leaf("next_reset")}
    found |= {leaf("before", name): leaf("after", name) for name in trace.names}
    return found | {leaf("x", gate): leaf("next_x", gate) for gate in trace.gates}


def replaced(value: Expression, new: Mapping[Expression, Expression]) -> Expression:
    """The same expression of other leaves."""
    found: dict[Expression, Expression] = {}
    for each in ordered([value]):
        args = tuple(found[arg] for arg in each.args)
        again = value.book.operation if each.op in _CHEAP else None
        found[each] = (
            new[each]
            if each in new
            else again(each.op, *args)
            if again
            else value.book.make(each.op, args, each.detail)
        )
    return found[value]


_CHEAP = frozenset({"add", "subtract", "multiply", "negative"})
_DEPTH = 1  # of cheap operations that one of many stages computes again rather than read
AT_ANY_TIME = ("own", "mask", "reset")  # inputs that are read wherever they are needed
# What is read, or a stage begins with.
SOURCES = frozenset({"leaf", "product", "back"}) | REDUCTIONS


class Cut:
    """Shares expressions out among stages, and carries what crosses from one to a later one."""

    def __init__(
        self,
        level: Callable[[Expression], int],  # the stage that can compute a value first
        leaf: Callable[[Expression, int], Expression | None],  # what a stage reads; None: it cannot
        recompute_cheap: bool,  # rather than to carry it
        # What lies in memory to be reduced: its place, and the stage from which on it does. There
        # are many stages then, and reading is cheaper than most else.
        given: Mapping[Expression, tuple[int, int]],
        stages: int,  # of a step
    ) -> None:
        self._level, self._leaf = level, leaf
        self._recompute_cheap, self._given, self._stages = recompute_cheap, given, stages
        self.carried: dict[Expression, int] = {}
        self._carried_leaves: set[Expression] = set()

    def carry_leaves(self, roots: Iterable[Expression]) -> None:
        """Note the leaves that later stages need; what is cheap to recompute is not carried."""
        for each in ordered(roots):
            at = self._level(each)
            leaves = [arg for arg in each.args if arg.op == "leaf"] if at > 0 else []
            self._carried_leaves.update(arg for arg in leaves if self._leaf(arg, at) is None)

    def wanted(self, at: int) -> dict[Label, Expression]:
        """What later stages, which were asked for before, need of this one."""
        return {
            ("carried", str(k)): each for each, k in self.carried.items() if self._level(each) == at
        }

    def inside(self, at: int, outputs: Mapping[Label, Expression]) -> dict[Label, Expression]:
        """The outputs of a stage in terms of what it can read."""
        done: dict[Expression, Expression] = {}
        return {label: self._inside(at, each, done) for label, each in outputs.items()}

    def _inside(self, at: int, root: Expression, done: dict[Expression, Expression]) -> Expression:
        stack = [(root, False)]  # not recursive, as in ordered()
        while stack:
            each, ready = stack.pop()
            if each in done:
                continue
            if ready:
                args = tuple(done[arg] for arg in each.args)
                done[each] = each.book.make(each.op, args, each.detail)
            elif each.op in SOURCES:
                leaf = self._leaf(each, at)
                done[each] = self._carry(each, at) if leaf is None else leaf
            elif self._level(each) < at and not self._computed_again(each, at):
                done[each] = self._carry(each, at)
            else:
                stack.append((each, True))
                stack.extend((arg, False) for arg in reversed(each.args))
        return done[root]

    def _computed_again(self, each: Expression, at: int) -> bool:
        if self._given:
            return self._is_near(each, at, _DEPTH)
        if each.op == "number" or (self._recompute_cheap and each.op in _CHEAP):
            return True
        every = ordered([each])
        cheap = all(one.op in SOURCES or one.op in _CHEAP or one.op == "slope" for one in every)
        return all(
            self._leaf(one, at) is not None or (cheap and one in self._carried_leaves)
            for one in every
            if one.op in SOURCES
        )

    def _is_near(self, each: Expression, at: int, depth: int) -> bool:
        """Whether this many cheap operations in a row make it of what a stage reads."""
        if each.op in SOURCES:
            return self._leaf(each, at) is not None
        if each.op == "number":
            return True
        cheap = each.op in _CHEAP and depth > 0
        return cheap and all(self._is_near(arg, at, depth - 1) for arg in each.args)

    def _carry(self, each: Expression, at: int) -> Expression:
        place, since = self._given.get(each, (0, self._stages))
        if since <= at < self._stages:
            return each.book.leaf("reduced", str(place))
        k = self.carried.setdefault(each, len(self.carried))
        return each.book.leaf("carried", str(k))
