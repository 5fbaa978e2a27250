"""The step backward, from the step forward and the table of derivatives (functions.py).

What the gradient operation knows of a step are the states before and after it and what was saved;
all else that a derivative needs is computed again from these.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..errors import EquationError
from .expressions import Expression, ordered
from .functions import FUNCTIONS
from .program import Leaf
from .tracing import Trace


@dataclass(frozen=True, eq=False)
class Backward:
    """The gradients of a step as symbols; a gradient that is zero is not there.

    The leaves are ("before", state), ("after", state), ("saved", gate), ("own", …), ("mask",) and
    ("reset",) of the step forward, and ("gradient", state): all that reaches the state after the
    step, from later steps and from outside.
    """

    trace: Trace  # the step forward that it is of: symbols of two readings do not mix
    inputs: dict[Leaf, Expression]  # by the step's inputs: x, own parameters, states before it
    products: dict[tuple[str, Expression], Expression]  # by gate and operand
    first_state: Expression | None  # after the step, where the gradient operation does not take it

    @cached_property
    def operands(self) -> list[Expression]:
        """What R multiplied, each once."""
        return list(dict.fromkeys(operand for _, operand in self.products))


def derive(forward: Trace, fed: tuple[str, ...]) -> Backward:
    """The step backward of a cell whose gradient operation takes the states ``fed``."""
    gradients = _gradients(forward)
    known = _Known(forward, fed)
    return Backward(
        forward,
        {e.detail: known.resolved(d) for e, d in gradients.items() if e.op == "leaf"},
        {
            (e.detail, known.resolved(e.args[0])): known.resolved(gradients[e])
            for e in forward.products
            if e in gradients
        },
        None if forward.names[0] in fed else known.resolved(forward.states[0]),
    )


def _gradients(forward: Trace) -> dict[Expression, Expression]:
    """Of every value that the states after the step depend on."""
    book = forward.book
    found: dict[Expression, Expression] = {}
    through: dict[Expression, dict[str, Expression]] = {}  # by operand: gradients of its products

    def add(value: Expression, gradient: Expression | None) -> None:
        if gradient is not None and value.op != "number":
            found[value] = _sum(found[value], gradient) if value in found else gradient

    for name, state in zip(forward.names, forward.states, strict=True):
        add(state, book.leaf("gradient", name))
    for each in reversed(ordered(forward.states)):
        if each in through:  # all products of this operand have been met
            gates = tuple(gate for gate in forward.gates if gate in through[each])
            add(each, book.make("back", tuple(through[each][gate] for gate in gates), gates))
        if each not in found or not each.args:
            continue
        if each.op == "product":
            through.setdefault(each.args[0], {})[each.detail] = found[each]
        else:
            parts = FUNCTIONS[each.op].gradient(each.args, each, found[each])
            for arg, part in zip(each.args, parts, strict=True):
                add(arg, part)
    return found


def _sum(a: Expression, b: Expression) -> Expression:
    """a + b; d·u + d·v as d·(u + v), and d·u - d·v as d·(u - v), which rounds less."""
    for first, second in ((a, b), (b, a)):
        minus = second.op == "negative"
        inner = second.args[0] if minus else second
        if first.op == inner.op == "multiply" and first.args[0] is inner.args[0]:
            d, u, v = first.args[0], first.args[1], inner.args[1]
            return d * (u - v if minus else u + v)
    return a + b


class _Known:
    """What the gradient operation can read of a step, and how the rest follows from it."""

    def __init__(self, forward: Trace, fed: tuple[str, ...]) -> None:
        self._forward, self._book = forward, forward.book
        saved = zip(forward.saved, forward.gates, strict=True)
        self._found = {value: self._book.leaf("saved", gate) for value, gate in saved}
        for name, value in zip(forward.names, forward.states, strict=True):
            if name in fed:
                self._found.setdefault(value, self._book.leaf("after", name))
        self._open: set[Expression] = set()

    def resolved(self, value: Expression) -> Expression:
        """The same value as an expression in what is known."""
        for each in ordered([value], self._found):
            if each in self._open:
                expected = "expected a cell that saves what its gradient needs"
                raise EquationError(f"{expected}, got one whose product needs x of its own gate")
            if each in self._found:  # since then
                continue
            if each.op == "leaf":
                self._open.add(each)
                self._found[each] = self._alone(each) if each.detail[0] == "x" else each
                self._open.discard(each)
            else:
                args = tuple(self._found[arg] for arg in each.args)
                self._found[each] = self._book.make(each.op, args, each.detail)
        return self._found[value]

    def _alone(self, x: Expression) -> Expression:
        """x of a gate, from the sum with its products that was saved."""
        gate = x.detail[1]
        products = [each for each in self._forward.products if each.detail == gate]
        sum_of_all = sum(products, x)
        if sum_of_all not in self._found or not products:
            raise EquationError(
                f"expected a cell that saves what its gradient needs, got one that needs x.{gate}"
            )
        return self._found[sum_of_all] - self.resolved(sum(products[1:], products[0]))
