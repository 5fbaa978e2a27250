"""A step as an engine computes it: stages, each some products with R and then equations.

Forward, a stage multiplies the operands that it was handed and computes up to the operands of the
next one. Backward the same, the products of later stages first; the first stage of a step begins
with the end of the step behind it, which waited for a product. What a stage has and a later one
needs is carried. A mean or a variance over the units of a row needs all of them: the stage that has
its argument gives it, ("reduced", k), and a later one reads the result, ("mean", k).

Leaves beyond those of the step itself (tracing.py, derivation.py): ("product", k), ("back", k),
("recomputed", k) and ("mean", k), numbered as below; ("next_mask",), the mask of the step that is
processed next (backward: of the step behind); ("next_reset",) and ("next_x", gate), likewise;
("outer", state), the gradient of a state from outside; ("last", state), the same of the last
step's state; ("carried", k).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, TypeAlias

from .derivation import Backward
from .expressions import Expression, ordered
from .functions import REDUCTIONS
from .program import Program, program
from .tracing import Trace

Label: TypeAlias = tuple[str, ...]  # what an output is: ("after", state), ("operand", "0"), …


class Reduction(NamedTuple):
    """The mean or the variance over the units of a row, of so many ``values`` together: those that
    were given as ("reduced", first) and after it."""

    op: str
    first: int
    values: int


Reductions: TypeAlias = tuple[tuple[Reduction, ...], ...]  # that each stage begins with


@dataclass(frozen=True)
class Equations:
    """What is computed behind the products of a stage; ``labels`` say what each output is."""

    text: Program
    labels: tuple[Label, ...]


@dataclass(frozen=True)
class Product:
    """R of some gates times one operand; back, the gradients of such products through R."""

    gates: tuple[str, ...]
    operand: int


@dataclass(frozen=True)
class ForwardStages:
    """The equations give ("saved", gate), ("carried", k), ("reduced", k), ("operand", k) of the
    next stage and, in the last stage, ("after", state) and ("operand", k) of the next step.

    The leaf ("product", operand, gate) is what a stage's products gave.
    """

    products: tuple[tuple[Product, ...], ...]  # by stage
    stages: tuple[Equations, ...]
    first: Equations  # ("operand", k) of the first step; the initial states as ("after", state)
    operands: int
    carried: int
    means: Reductions  # numbered through


@dataclass(frozen=True)
class BackwardStages:
    """The equations give ("x", gate), the gradients of the gates; ("product", operand, gate), those
    of the products where they differ; ("own", …), what a step adds to a parameter's gradient;
    ("carried", k) and ("reduced", k).

    ``products[0]`` are of the step behind: its last ones. The leaf ("back", k) is what the k-th of
    all products gave.

    With ``in_registers``, stages[0] and ``end`` also finish the step behind, ("behind", …), and the
    equations give the operands of the products too: ("operand", k), or ("behind", "operand", k).
    """

    products: tuple[tuple[Product, ...], ...]  # by stage
    stages: tuple[Equations, ...]
    begin: Equations  # in place of stages[0], for rows whose last step it is
    end: Equations  # ("before", state): the gradients of the initial states
    recomputed: tuple[Product, ...]  # needed again, of every step: ("recomputed", operand, gate)
    operands: tuple[Equations, ...]  # what R multiplied, ("operand", k), from what is known
    first_state: Equations | None  # ("after", state), where the gradient operation does not take it
    carried: int
    same: frozenset[tuple[str, int]]  # gates and operands whose product has the gradient of x
    means: Reductions  # numbered through


def forward_stages(trace: Trace, x_ahead: bool = False) -> ForwardStages:
    """A step forward by stages; with ``x_ahead`` a step can read the input of the next one."""
    book = trace.book
    operands = list(dict.fromkeys(each.args[0] for each in trace.products))
    early = [each for each in operands if _is_early(each, x_ahead)]
    levels: dict[Expression, int] = {}
    for each in ordered([*trace.states, *trace.saved]):
        inner = max((levels[arg] for arg in each.args), default=0)
        if each.op == "product":
            levels[each] = 0 if each.args[0] in early else inner + 1
        else:
            levels[each] = inner + (each.op in REDUCTIONS)
    means = _Means(levels)
    count = 1 + max(levels.values())

    def leaf(each: Expression, at: int) -> Expression | None:
        if each.op == "leaf":
            return each
        if each.op in REDUCTIONS:
            return means.leaf(each) if levels[each] == at or not x_ahead else None
        number = str(operands.index(each.args[0]))
        return book.leaf("product", number, each.detail) if levels[each] == at else None

    given = {} if x_ahead else means.given()
    cut = _Cut(levels.__getitem__, leaf, True, given, count)
    of_stage: list[dict[Label, Expression]] = [{} for _ in range(count)]
    for gate, each in zip(trace.gates, trace.saved, strict=True):
        of_stage[levels[each]]["saved", gate] = each
    for name, each in zip(trace.names, trace.states, strict=True):
        of_stage[-1]["after", name] = each
    for k, operand in enumerate(operands):
        if operand not in early:
            of_stage[levels[operand]]["operand", str(k)] = operand
    means.reduce_in(of_stage)
    begins: dict[Label, Expression] = {
        ("operand", str(k)): _replaced(operand, _of_next_step(trace))
        for k, operand in enumerate(operands)
        if operand in early
    }
    ends = cut.inside(count - 1, of_stage[-1])
    after = {book.leaf("after", name): ends["after", name] for name in trace.names}
    ends |= {label: _replaced(each, after) for label, each in begins.items()}
    stages = [_equations(ends)]
    for at in reversed(range(count - 1)):
        stages.insert(0, _equations(cut.inside(at, of_stage[at] | cut.wanted(at))))
    products = [
        tuple(
            Product(tuple(e.detail for e in trace.products if e.args[0] is operand), k)
            for k, operand in enumerate(operands)
            if (0 if operand in early else levels[operand] + 1) == at
        )
        for at in range(count)
    ]
    return ForwardStages(
        tuple(products),
        tuple(stages),
        _equations(begins),
        len(operands),
        len(cut.carried),
        means.by_stage(count),
    )


def _is_early(operand: Expression, x_ahead: bool) -> bool:
    """Whether the step before can compute it: unless it needs the step's input, or waits."""
    every = ordered([operand])
    return not any(
        each.op == "product"
        or each.op in REDUCTIONS
        or (each.op == "leaf" and each.detail[0] == "x" and not x_ahead)
        for each in every
    )


class _Means:
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

    def leaf(self, mean: Expression) -> Expression:
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


def backward_stages(
    back: Backward,
    outer: frozenset[str],
    last: frozenset[str],
    in_registers: bool = False,
) -> BackwardStages:
    """A step backward by stages; of the states ``outer`` a gradient comes from outside at every
    step, of ``last`` one at the last.

    Every stage reads what it needs; with ``in_registers`` only the first does, and what a later one
    needs is carried, but for the mask and the own parameters. No stage is without products then.
    """
    trace, book = back.trace, back.trace.book
    gradients = _Gradients(trace, back, in_registers)
    count = gradients.stages
    given = {} if in_registers else gradients.means.given()
    cut = _Cut(gradients.level, gradients.leaf, False, given, count)
    if in_registers:
        cut.carry_leaves([*back.inputs.values(), *back.products.values()])
    of_stage: list[dict[Label, Expression]] = [{} for _ in range(count)]
    behind: dict[Label, Expression] = {
        leaf: each for leaf, each in back.inputs.items() if leaf[0] == "before"
    }
    for label, each in gradients.outputs():
        if gradients.level(each) < count:
            of_stage[gradients.level(each)][label] = each
        else:
            behind[("behind", *label)] = each
    gradients.means.reduce_in(of_stage)
    for k, operand in enumerate(back.operands if in_registers else ()):
        if gradients.only_of_step_before(operand):
            behind["behind", "operand", str(k)] = operand
        else:
            of_stage[0]["operand", str(k)] = operand
    ends = {
        label: _replaced(each, _of_next_step(trace))
        for label, each in cut.inside(count, behind).items()
    }
    stages: list[Equations] = []
    for at in reversed(range(1, count)):
        stages.insert(0, _equations(cut.inside(at, of_stage[at] | cut.wanted(at))))
    starts = cut.inside(0, of_stage[0] | cut.wanted(0))

    def first_stage(
        arriving: Callable[[str], Expression], behind: Mapping[Label, Expression]
    ) -> Equations:
        """With what arrives at each state from behind, and from outside."""
        found = {}
        for name in trace.names:
            inner = arriving(name)
            here = inner + book.leaf("outer", name) if name in outer else inner
            found[book.leaf("gradient", name)] = here
        own = {label: _replaced(each, found) for label, each in starts.items()}
        return _equations({**behind, **own})

    zero = book.number(0)
    known = ends
    if in_registers and back.first_state is not None:
        first = {book.leaf("after", trace.names[0]): back.first_state}
        known = {label: _replaced(each, first) for label, each in ends.items()}
    return BackwardStages(
        products=gradients.products(),
        stages=(
            first_stage(
                lambda name: known.get(("before", name), zero),
                {label: each for label, each in known.items() if label[0] == "behind"},
            ),
            *stages,
        ),
        begin=first_stage(lambda name: book.leaf("last", name) if name in last else zero, {}),
        end=_equations(ends),
        recomputed=gradients.recomputed(),
        operands=tuple(
            _equations({("operand", str(k)): gradients.known(each)})
            for k, each in enumerate(gradients.operands)
        ),
        first_state=None
        if back.first_state is None
        else _equations({("after", trace.names[0]): back.first_state}),
        carried=len(cut.carried),
        same=gradients.same,
        means=gradients.means.by_stage(count),
    )


def _equations(outputs: Mapping[Label, Expression]) -> Equations:
    return Equations(program(outputs.values()), tuple(outputs))


def _of_next_step(trace: Trace) -> dict[Expression, Expression]:
    """What the next step, or the step behind, calls before is after this one."""
    leaf = trace.book.leaf
    found = {leaf("mask"): leaf("next_mask"), leaf("reset"): leaf("next_reset")}
    found |= {leaf("before", name): leaf("after", name) for name in trace.names}
    return found | {leaf("x", gate): leaf("next_x", gate) for gate in trace.gates}


def _replaced(value: Expression, new: Mapping[Expression, Expression]) -> Expression:
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
_AT_ANY_TIME = ("own", "mask", "reset")  # inputs that are read wherever they are needed
# What is read, or a stage begins with.
_SOURCES = frozenset({"leaf", "product", "back"}) | REDUCTIONS


class _Cut:
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
        """Notes what later stages need as it is: what follows from it cheaply is not carried."""
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

    def _inside(self, at: int, each: Expression, done: dict[Expression, Expression]) -> Expression:
        if each not in done:
            if each.op in _SOURCES:
                leaf = self._leaf(each, at)
                done[each] = self._carry(each, at) if leaf is None else leaf
            elif self._level(each) < at and not self._computed_again(each, at):
                done[each] = self._carry(each, at)
            else:
                args = tuple(self._inside(at, arg, done) for arg in each.args)
                done[each] = each.book.make(each.op, args, each.detail)
        return done[each]

    def _computed_again(self, each: Expression, at: int) -> bool:
        if self._given:
            return self._depth(each, at) <= _DEPTH
        if each.op == "number" or (self._recompute_cheap and each.op in _CHEAP):
            return True
        every = ordered([each])
        cheap = all(one.op in _SOURCES or one.op in _CHEAP or one.op == "slope" for one in every)
        return all(
            self._leaf(one, at) is not None or (cheap and one in self._carried_leaves)
            for one in every
            if one.op in _SOURCES
        )

    def _depth(self, each: Expression, at: int) -> float:
        """How many cheap operations in a row make a value of what a stage reads."""
        if each.op == "number":
            return 0
        if each.op in _SOURCES:
            return 0 if self._leaf(each, at) is not None else inf
        if each.op not in _CHEAP:
            return inf
        return 1 + max(self._depth(arg, at) for arg in each.args)

    def _carry(self, each: Expression, at: int) -> Expression:
        place, since = self._given.get(each, (0, self._stages))
        if since <= at < self._stages:
            return each.book.leaf("reduced", str(place))
        k = self.carried.setdefault(each, len(self.carried))
        return each.book.leaf("carried", str(k))


class _Gradients:
    """The step backward: which values wait for which products."""

    def __init__(self, trace: Trace, back: Backward, in_registers: bool) -> None:
        self._book, self._back, self._in_registers = trace.book, back, in_registers
        self._first = trace.names[0]
        self.operands = list(back.operands)
        every = ordered([*back.inputs.values(), *back.products.values(), *self.operands])
        for each in every:  # of products that the gradient needs again
            if each.op == "product" and each.args[0] not in self.operands:
                self.operands.append(each.args[0])
        self._levels: dict[Expression, int] = {}
        for each in every:
            inner = max((self._levels[arg] for arg in each.args), default=0)
            self._levels[each] = inner + (each.op == "back" or each.op in REDUCTIONS)
        self.means = _Means(self._levels)
        self._backs = [each for each in every if each.op == "back"]
        self._needed_again = [each for each in every if each.op == "product"]
        self.same = frozenset(
            (gate, self.operands.index(operand))
            for (gate, operand), e in back.products.items()
            if back.inputs.get(("x", gate)) is e
        )
        self._ends = {  # when the gradient of a product that is needed again is written
            each: self._levels[back.products[each.detail, each.args[0]]]
            for each in self._needed_again
            if (each.detail, each.args[0]) in back.products
        }
        # What waits for the last products is left to the step in front, if it is only that step
        # which needs it.
        outputs = [each for _, each in self.outputs()]
        depth = max((self._levels[each] for each in self._backs), default=0)
        inside = [*self.means.all] if in_registers else [*outputs, *self.means.all]
        self.stages = max([depth, *(self._levels[each] + 1 for each in inside), 1])

    def level(self, each: Expression) -> int:
        return self._levels[each]

    def leaf(self, each: Expression, at: int) -> Expression | None:
        """What a value is read as in a stage; ``at`` the number of stages: behind the step."""
        if each.op == "back":
            number = str(self._operand_of(each))
            return self._book.leaf("back", number) if self._levels[each] == at else None
        if each.op in REDUCTIONS:
            here = self._levels[each] == at if self._in_registers else at < self.stages
            return self.means.leaf(each) if here else None
        if at == self.stages:
            return (
                each if each.op == "leaf" and each.detail[0] in (*_AT_ANY_TIME, "before") else None
            )
        if at > 0 and self._in_registers:
            return each if each.op == "leaf" and each.detail[0] in _AT_ANY_TIME else None
        if each.op == "product":  # its gradient may go where it lies
            return self.known(each) if at <= self._ends.get(each, at) else None
        return None if at > 0 and each.detail[0] == "gradient" else each

    def only_of_step_before(self, operand: Expression) -> bool:
        """Whether it needs no more than the first state before the step, which is not taken: it
        is known when the step before is read."""
        leaves = {each.detail for each in ordered([operand]) if each.op in _SOURCES}
        others = {leaf for leaf in leaves if leaf[0] not in _AT_ANY_TIME}
        return self._back.first_state is not None and others == {("before", self._first)}

    def known(self, value: Expression) -> Expression:
        """Products that are computed again, as leaves."""
        number = self.operands.index
        again = {
            each: self._book.leaf("recomputed", str(number(each.args[0])), each.detail)
            for each in self._needed_again
        }
        return _replaced(value, again)

    def outputs(self) -> Iterable[tuple[Label, Expression]]:
        for leaf, each in self._back.inputs.items():
            if leaf[0] in ("x", "own"):
                yield leaf, each
        for (gate, operand), each in self._back.products.items():
            k = self.operands.index(operand)
            if (gate, k) not in self.same:
                yield ("product", str(k), gate), each

    def products(self) -> tuple[tuple[Product, ...], ...]:
        """By stage; those that the end of the step waits for are multiplied in the next one."""
        by_stage: list[list[Product]] = [[] for _ in range(self.stages)]
        for each in self._backs:
            found = Product(each.detail, self._operand_of(each))
            by_stage[self._levels[each] % self.stages].append(found)
        return tuple(map(tuple, by_stage))

    def recomputed(self) -> tuple[Product, ...]:
        number = self.operands.index
        return tuple(Product((e.detail,), number(e.args[0])) for e in self._needed_again)

    def _operand_of(self, back: Expression) -> int:
        """The operand whose gradient it is."""
        pairs = dict(zip(back.detail, back.args, strict=True))
        for k, operand in enumerate(self.operands):
            if {g: d for (g, o), d in self._back.products.items() if o is operand} == pairs:
                return k
        raise AssertionError("a product's gradient without an operand")
