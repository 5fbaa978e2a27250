"""Reads a cell's text: its equations run once on symbols, and what they compute is kept.

T time, N batch, H hidden units. The mask multiplies the operand of every product with R.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

from ..errors import EquationError
from .expressions import Book, Expression, ordered
from .functions import REDUCTIONS, activated

MOST_PHASES = 2  # products whose operands need products


class Named:
    """Values by name: ``x.i``, or ``x["i"]``."""

    def __init__(self, what: str, values: Mapping[str, Any]) -> None:
        self._what, self._values = what, values

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            known = ", ".join(self._values)
            raise EquationError(f"{self._what}.{name}: expected one of {known}")
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        return self[name]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values.values())

    def without(self, what: str, names: Sequence[str]) -> Named:
        """The others."""
        kept = {name: value for name, value in self._values.items() if name not in names}
        return Named(what, kept)


class Weight:
    """R of one gate; ``weight @ value`` is the product (value·m)R^T."""

    def __init__(self, gate: str, mask: Expression | None) -> None:
        self._gate, self._mask = gate, mask

    def __matmul__(self, value: Expression) -> Expression:
        operand = self.operand(value)
        return operand.book.make("product", (operand,), self._gate)

    def operand(self, value: Expression) -> Expression:
        """What R multiplies: the value, masked if there is a mask."""
        if not isinstance(value, Expression):
            kind = type(value).__name__
            raise EquationError(f"R.{self._gate} @: expected a value of the step, got {kind}")
        return value if self._mask is None else value * self._mask


class Context(NamedTuple):
    """What a text reads beside the states before the step."""

    x: Named  # the projected input by gate, with the bias
    R: Named  # the recurrent weight by gate
    activations: tuple[Callable[[Expression], Expression], ...]  # of the descriptor, in its order
    options: Any  # the descriptor
    own: Mapping[str, Any]  # those of the cell's own parameters that were passed; by gate: Named


class Step(NamedTuple):
    """What a text gives: the states after the step, and what it saves, a value per gate."""

    states: tuple[Expression, ...]
    saved: tuple[Expression, ...] | None = None  # None: the gates before their activation
    names: Mapping[Expression, str] | None = None  # of its values; None: its local variables
    in_order: bool = False  # whether its sums are already as _regrouped leaves them


@dataclass(frozen=True, eq=False)
class Trace:
    """The equations of a step as symbols.

    The leaves: ("x", gate), ("before", state), ("own", parameter) or ("own", parameter, gate), and
    ("mask",) and ("reset",), above 0 where the step begins a new sequence.
    """

    book: Book
    gates: tuple[str, ...]
    names: tuple[str, ...]  # of the states
    states: tuple[Expression, ...]  # after the step
    saved: tuple[Expression, ...]  # in the order of the gates
    local_names: Mapping[Expression, str]  # the text's own names for values

    @cached_property
    def products(self) -> list[Expression]:
        """The products with R, each after those that it needs, gate by gate among equals."""
        every = [each for each in ordered([*self.states, *self.saved]) if each.op == "product"]
        return sorted(every, key=lambda e: (self.phase[e], self.gates.index(e.detail)))

    @cached_property
    def phase(self) -> dict[Expression, int]:
        """How many products a value waits for, one after the other."""
        found: dict[Expression, int] = {}
        for each in ordered([*self.states, *self.saved]):
            inner = max((found[arg] for arg in each.args), default=0)
            found[each] = inner + (each.op == "product")
        return found

    @cached_property
    def has_means(self) -> bool:
        """Whether a unit needs the others of its row other than through R."""
        return any(each.op in REDUCTIONS for each in ordered([*self.states, *self.saved]))

    @property
    def gives_first_state(self) -> bool:
        """Whether what is saved and the other states determine the first one."""
        known = {*self.saved, *self.states[1:]}
        needed = [each for each in ordered(self.states[:1], known) if each not in known]
        return not any(each.op == "product" or _comes_from_outside(each) for each in needed)


def _comes_from_outside(each: Expression) -> bool:
    """A leaf that another step or the source gives."""
    return each.op == "leaf" and each.detail[0] in ("x", "before")


def trace(
    equations: Callable[..., Any],
    gates: tuple[str, ...],
    states: tuple[str, ...],
    parameters: Mapping[str, bool],  # by name, and whether there is one per gate
    options: Any,
    has_mask: bool,
    restarts: Mapping[str, float] | None = None,  # with resets: the states that they set
) -> Trace:
    """The equations on symbols; what an engine could not compute is refused."""
    book = Book()
    mask = book.leaf("mask") if has_mask else None
    own: dict[str, Any] = {
        name: Named(name, {gate: book.leaf("own", name, gate) for gate in gates})
        if by_gate
        else book.leaf("own", name)
        for name, by_gate in parameters.items()
    }
    context = Context(
        x=Named("x", {gate: book.leaf("x", gate) for gate in gates}),
        R=Named("R", {gate: Weight(gate, mask) for gate in gates}),
        activations=tuple(partial(activated, kind) for kind in options.activations),
        options=options,
        own=own,
    )
    before = [book.leaf("before", name) for name in states]
    if restarts is not None:
        begins = book.leaf("reset") > 0
        before = [
            book.operation("where", begins, restarts[name], each)
            for name, each in zip(states, before, strict=True)
        ]
    given, local_names = _called(equations, context, *before)
    found = as_step(given)
    after, saved = _checked_states(book, found.states, states), found.saved
    if saved is None:
        after = after if found.in_order else _regrouped(after)
        saved = _before_activation(gates, ordered(after))
    names = local_names if found.names is None else found.names
    result = Trace(book, gates, states, after, saved, names)
    _check_products(result)
    return result


def replayed(read: Trace) -> Callable[..., Step]:
    """Equations that compute what a text said when it was read, without a mask or resets. The text
    itself may say something else by now: it may use a variable that has changed."""

    def equations(at: Context, *before: Expression) -> Step:
        leaves: dict[str, Any] = {"x": at.x, "own": at.own}
        leaves["before"] = dict(zip(read.names, before, strict=True))
        new: dict[Expression, Expression] = {}
        for each in read.book.as_made(ordered(read.states)):
            if each.op == "leaf":
                kind, name = each.detail
                new[each] = leaves[kind][name]
            elif each.op == "product":
                new[each] = at.R[each.detail] @ new[each.args[0]]
            else:
                args = tuple(new[arg] for arg in each.args)
                new[each] = before[0].book.make(each.op, args, each.detail)
        names = {new[value]: name for value, name in read.local_names.items() if value in new}
        return Step(tuple(new[state] for state in read.states), None, names, in_order=True)

    return equations


def _called(text: Callable[..., Any], *args: Any) -> tuple[Any, dict[Expression, str]]:
    """What a text gives, and the names that it has for values: its local variables at its end."""
    names: dict[Expression, str] = {}
    code = getattr(inspect.unwrap(text), "__code__", None)

    def watch(frame: Any, event: str, _: Any) -> None:
        if event == "return" and frame.f_code is code:
            for name, value in frame.f_locals.items():
                if isinstance(value, Expression):
                    names.setdefault(value, name)

    if sys.getprofile() is not None:  # one of C cannot be put back
        return text(*args), names
    sys.setprofile(watch)
    try:
        return text(*args), names
    finally:
        sys.setprofile(None)


def as_step(given: Any) -> Step:
    """What a text returned, as a step."""
    if isinstance(given, Step):
        return given
    return Step(tuple(given) if isinstance(given, tuple | list) else (given,))


def _checked_states(
    book: Book, given: Sequence[Any], names: tuple[str, ...]
) -> tuple[Expression, ...]:
    if len(given) != len(names):
        raise EquationError(
            f"expected {len(names)} values, the new {', '.join(names)}, got {len(given)}"
        )
    for name, each in zip(names, given, strict=True):
        if not isinstance(each, Expression) or each.op == "number" or each.is_condition:
            got = (
                "a comparison" if isinstance(each, Expression) and each.is_condition else repr(each)
            )
            raise EquationError(f"state {name}: expected a value of the step, got {got}")
        if not any(map(_comes_from_outside, ordered([each]))):
            raise EquationError(f"state {name}: expected a value that depends on x or on a state")
    return tuple(map(book.value, given))


def _check_products(found: Trace) -> None:
    depth = max((found.phase[each] for each in found.products), default=0)
    if depth > MOST_PHASES:
        raise EquationError(
            f"expected products with R at most {MOST_PHASES} deep, got {depth}: a product depends "
            "on a product that depends on a product"
        )
    every = ordered([*found.states, *found.saved])
    used = {each.detail[1] for each in every if each.op == "leaf" and each.detail[0] == "x"}
    used |= {each.detail for each in found.products}
    for gate in found.gates:
        if gate not in used:
            raise EquationError(f"gate {gate}: expected x.{gate} or R.{gate} in the equations")


def _before_activation(
    gates: tuple[str, ...], every: Sequence[Expression]
) -> tuple[Expression, ...]:
    """Of every gate, x_g and its products added up; what of them the text has."""
    terms: dict[str | None, list[Expression]] = {gate: [] for gate in gates}
    for each in sorted(every, key=_x_first):
        terms.get(_gate_of(each), []).append(each)
    for gate in gates:
        if not terms[gate]:
            raise EquationError(f"gate {gate}: expected x.{gate} or R.{gate} in the equations")
    return tuple(sum(terms[gate][1:], terms[gate][0]) for gate in gates)


def _regrouped(roots: tuple[Expression, ...]) -> tuple[Expression, ...]:
    """The same sums, each beginning with x_g and the products of its gate, which are saved.

    a + x + R h becomes (x + R h) + a: then nothing has to be computed again backward.
    """
    every = ordered(roots)
    book = roots[0].book
    uses: dict[Expression, int] = dict.fromkeys(roots, 2)  # a result keeps its own sum
    for each in every:
        for arg in each.args:
            uses[arg] = uses.get(arg, 0) + 1
    new: dict[Expression, Expression] = {}

    def terms(whole: Expression) -> list[Expression]:
        found, stack = [], [whole]
        while stack:
            each = stack.pop()
            if each.op == "add" and (each is whole or uses[each] == 1):
                stack.extend(reversed(each.args))
            else:
                found.append(new[each])
        return found

    for each in every:
        if each.op != "add":
            new[each] = book.again(each.op, tuple(new[arg] for arg in each.args), each.detail)
        else:
            found = terms(each)
            gates = {term.detail for term in found if term.op == "product"}
            first = [term for term in found if _gate_of(term) in gates]
            new[each] = _added(first, [term for term in found if term not in first])
    return tuple(new[root] for root in roots)


def _gate_of(term: Expression) -> str | None:
    """The gate of an x_g or of a product."""
    if term.op == "product":
        return str(term.detail)
    return term.detail[1] if term.op == "leaf" and term.detail[0] == "x" else None


def _added(first: list[Expression], rest: list[Expression]) -> Expression:
    """Gate by gate, x before products; then the rest."""
    gates = list(dict.fromkeys(_gate_of(term) for term in first))
    by_gate = [sorted((t for t in first if _gate_of(t) == gate), key=_x_first) for gate in gates]
    sums = [sum(each[1:], each[0]) for each in by_gate] + rest
    return sum(sums[1:], sums[0])


def _x_first(term: Expression) -> bool:
    return term.op == "product"
