"""A step backward by stages: which values wait for which products; see stages.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from .derivation import Backward
from .expressions import Expression, ordered
from .functions import REDUCTIONS
from .sharing import (
    AT_ANY_TIME,
    SOURCES,
    Cut,
    Equations,
    Label,
    Means,
    Reductions,
    equations_of,
    of_next_step,
    replaced,
)
from .stages import Product
from .tracing import Trace


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
    cut = Cut(gradients.level, gradients.leaf, False, given, count)
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
        label: replaced(each, of_next_step(trace))
        for label, each in cut.inside(count, behind).items()
    }
    stages: list[Equations] = []
    for at in reversed(range(1, count)):
        stages.insert(0, equations_of(cut.inside(at, of_stage[at] | cut.wanted(at))))
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
        own = {label: replaced(each, found) for label, each in starts.items()}
        return equations_of({**behind, **own})

    zero = book.number(0)
    known = ends
    if in_registers and back.first_state is not None:
        first = {book.leaf("after", trace.names[0]): back.first_state}
        known = {label: replaced(each, first) for label, each in ends.items()}
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
        end=equations_of(ends),
        recomputed=gradients.recomputed(),
        operands=tuple(
            equations_of({("operand", str(k)): gradients.known(each)})
            for k, each in enumerate(gradients.operands)
        ),
        first_state=None
        if back.first_state is None
        else equations_of({("after", trace.names[0]): back.first_state}),
        carried=len(cut.carried),
        same=gradients.same,
        means=gradients.means.by_stage(count),
    )


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
        self.means = Means(self._levels)
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
        self._multiplying = {self.stages, *(self._levels[each] for each in self._backs)}

    def level(self, each: Expression) -> int:
        return self._levels[each]

    def leaf(self, each: Expression, at: int) -> Expression | None:
        """What a value is read as in a stage; ``at`` the number of stages: behind the step."""
        if each.op == "back":
            number = str(self._operand_of(each))
            return self._book.leaf("back", number) if self._levels[each] == at else None
        if each.op in REDUCTIONS:
            ends = range(self.stages + 1) if self._in_registers else self._multiplying
            return self.means.leaf(each, at, ends)
        if at == self.stages:
            return (
                each if each.op == "leaf" and each.detail[0] in (*AT_ANY_TIME, "before") else None
            )
        if at > 0 and self._in_registers:
            return each if each.op == "leaf" and each.detail[0] in AT_ANY_TIME else None
        if each.op == "product":  # its gradient may go where it lies
            return self.known(each) if at <= self._ends.get(each, at) else None
        return None if at > 0 and each.detail[0] == "gradient" else each

    def only_of_step_before(self, operand: Expression) -> bool:
        """Whether it needs no more than the first state before the step, which is not taken: it
        is known when the step before is read."""
        leaves = {each.detail for each in ordered([operand]) if each.op in SOURCES}
        others = {leaf for leaf in leaves if leaf[0] not in AT_ANY_TIME}
        return self._back.first_state is not None and others == {("before", self._first)}

    def known(self, value: Expression) -> Expression:
        """Products that are computed again, as leaves."""
        number = self.operands.index
        again = {
            each: self._book.leaf("recomputed", str(number(each.args[0])), each.detail)
            for each in self._needed_again
        }
        return replaced(value, again)

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
