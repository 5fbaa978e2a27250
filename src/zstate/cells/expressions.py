"""The values of a step as symbols: what a cell's text computes with when it is read.

A symbol stands for one number per row and unit, [N,H], and remembers how it came about. Equal
symbols of one text are one object, so that nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any, NoReturn, TypeAlias

from ..errors import EquationError

Number: TypeAlias = int | float


class Expression:
    """A value of a step: an operation on other values, or a leaf.

    ``op`` is "leaf" (``detail``: which input), "number", an operation of ``OPERATORS``, the name of
    a function (functions.py), "slope" (of the function ``detail`` where it gave the argument),
    "product" (the argument times R of gate ``detail``) or "back" (the gradients of products of the
    gates ``detail``, back through R).
    """

    __slots__ = ("args", "book", "detail", "op")

    def __init__(self, book: Book, op: str, args: tuple[Expression, ...], detail: Any) -> None:
        self.book, self.op, self.args, self.detail = book, op, args, detail

    def __add__(self, other: Operand) -> Expression:
        return self.book.operation("add", self, other)

    def __radd__(self, other: Operand) -> Expression:
        return self.book.operation("add", other, self)

    def __sub__(self, other: Operand) -> Expression:
        return self.book.operation("subtract", self, other)

    def __rsub__(self, other: Operand) -> Expression:
        return self.book.operation("subtract", other, self)

    def __mul__(self, other: Operand) -> Expression:
        return self.book.operation("multiply", self, other)

    def __rmul__(self, other: Operand) -> Expression:
        return self.book.operation("multiply", other, self)

    def __truediv__(self, other: Operand) -> Expression:
        return self.book.operation("divide", self, other)

    def __rtruediv__(self, other: Operand) -> Expression:
        return self.book.operation("divide", other, self)

    def __neg__(self) -> Expression:
        return self.book.operation("negative", self)

    def __gt__(self, other: Operand) -> Expression:
        return self.book.operation("greater", self, other)

    def __lt__(self, other: Operand) -> Expression:
        return self.book.operation("greater", other, self)

    def __ge__(self, other: Operand) -> Expression:
        return self.book.operation("at_least", self, other)

    def __le__(self, other: Operand) -> Expression:
        return self.book.operation("at_least", other, self)

    def __eq__(self, other: object) -> bool:
        """Whether they are one object. A text that compares numbers so would always hear no."""
        if self.book.is_read and self is not other:
            raise EquationError(
                "expected equations that are the same for every value, got == or != on a value of "
                "the step; use >, >=, < or <= in where(condition, a, b)"
            )
        return self is other

    __hash__ = object.__hash__

    def __bool__(self) -> NoReturn:
        raise EquationError(
            "expected equations that are the same for every value, got an if, and, or, not or "
            "loop on a value of the step; use where(condition, a, b) to choose element by element"
        )

    def __float__(self) -> NoReturn:
        raise EquationError("expected a function of this library, got a value used as a number")

    __int__ = __index__ = __iter__ = __float__
    __array_ufunc__ = None  # makes NumPy leave arithmetic with its scalars to us

    @property
    def is_condition(self) -> bool:
        """Whether it is true or false, and so only for ``where``."""
        return self.op in CONDITIONS

    def __repr__(self) -> str:
        inner = ", ".join(map(repr, self.args))
        return (
            f"{self.op}[{self.detail}]({inner})"
            if self.detail is not None
            else f"{self.op}({inner})"
        )


Operand: TypeAlias = Expression | Number

# Operators, as people write them in equations, and how tightly they bind.
OPERATORS: Mapping[str, tuple[str, int]] = {
    "add": ("+", 1),
    "subtract": ("-", 1),
    "multiply": ("·", 2),
    "divide": ("/", 2),
    "negative": ("-", 3),
    "greater": (">", 0),
    "at_least": ("≥", 0),
}
CONDITIONS = frozenset({"greater", "at_least"})


class Book:
    """The symbols of one text, each once."""

    is_read = False  # while the function that somebody wrote runs

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], Expression] = {}

    def make(self, op: str, args: tuple[Expression, ...] = (), detail: Any = None) -> Expression:
        """The symbol of an operation, whatever it is."""
        key = (op, detail, *map(id, args))
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = Expression(self, op, args, detail)
        return found

    def as_made(self, values: Iterable[Expression]) -> list[Expression]:
        """Values in the order in which the text came to them."""
        wanted = set(values)
        return [each for each in self._made.values() if each in wanted]

    def leaf(self, *detail: str) -> Expression:
        return self.make("leaf", (), detail)

    def number(self, value: Number | Real) -> Expression:
        return self.make("number", (), float(value))

    def value(self, given: object) -> Expression:
        """A symbol of this text, or a number as one."""
        if isinstance(given, Expression):
            if given.book is not self:
                raise EquationError("expected values of this step, got one from another cell")
            return given
        if isinstance(given, Real) and not isinstance(given, bool):  # NumPy's numbers too
            return self.number(given)
        raise EquationError(f"expected a value of the step or a number, got {type(given).__name__}")

    def operation(self, op: str, *given: Operand) -> Expression:
        """An operation on values and numbers, without what changes nothing."""
        args = tuple(map(self.value, given))
        for arg in args[1:] if op == "where" else args:
            if arg.is_condition:
                raise EquationError(
                    f"[{op}] expected a value, got a comparison; only where() takes comparisons"
                )
        neutral = {"add": 0, "multiply": 1}.get(op)
        for arg, other in zip(args, reversed(args), strict=True):
            if neutral is not None and arg.op == "number" and arg.detail == neutral:
                return other
        return self.again(op, args)

    def again(self, op: str, args: tuple[Expression, ...], detail: Any = None) -> Expression:
        """An operation as it is. The mean of (v - mean(v))² is the variance, however written: the
        engines have a function for that."""
        if op == "mean" and all(map(_is_square, args)):
            roots = [each.args[0] for each in args]
            if all(each.op == "subtract" for each in roots):
                values = tuple(each.args[0] for each in roots)
                middle = self.make("mean", values)
                if all(each.args[1] is middle for each in roots):
                    return self.make("variance", values)
        return self.make(op, args, detail)


def _is_square(value: Expression) -> bool:
    return value.op == "multiply" and value.args[0] is value.args[1]


def ordered(roots: Iterable[Expression], known: Iterable[Expression] = ()) -> list[Expression]:
    """All that the roots need, each after its arguments; what is ``known`` needs nothing."""
    known = set(known)
    seen: set[Expression] = set()
    order: list[Expression] = []
    # Not recursive: a text may be long.
    stack = [(root, False) for root in reversed(list(roots))]
    while stack:
        each, ready = stack.pop()
        if ready:
            order.append(each)
        elif each not in seen:
            seen.add(each)
            stack.append((each, True))
            if each not in known:
                stack.extend((arg, False) for arg in reversed(each.args))
    return order
