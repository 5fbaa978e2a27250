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

from collections.abc import Container
from dataclasses import dataclass

from .expressions import Expression, ordered
from .functions import REDUCTIONS
from .sharing import Cut, Equations, Label, Means, Reductions, equations_of, of_next_step, replaced
from .tracing import Trace


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
    means = Means(levels)
    count = 1 + max(levels.values())
    multiplying = {levels[each] for each in trace.products}
    means_end: Container[int] = range(count) if x_ahead else multiplying

    def leaf(each: Expression, at: int) -> Expression | None:
        if each.op == "leaf":
            return each
        if each.op in REDUCTIONS:
            return means.leaf(each, at, means_end)
        number = str(operands.index(each.args[0]))
        return book.leaf("product", number, each.detail) if levels[each] == at else None

    given = {} if x_ahead else means.given()
    cut = Cut(levels.__getitem__, leaf, True, given, count)
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
        ("operand", str(k)): replaced(operand, of_next_step(trace))
        for k, operand in enumerate(operands)
        if operand in early
    }
    ends = cut.inside(count - 1, of_stage[-1])
    after = {book.leaf("after", name): ends["after", name] for name in trace.names}
    ends |= {label: replaced(each, after) for label, each in begins.items()}
    stages = [equations_of(ends)]
    for at in reversed(range(count - 1)):
        stages.insert(0, equations_of(cut.inside(at, of_stage[at] | cut.wanted(at))))
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
        equations_of(begins),
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
