"""The functions that equations may use: ``cells.sigmoid(x.z + R.z @ h)``.

Each is a row of functions.py, or made from such rows; here it takes and returns values of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import EquationError
from .expressions import Expression, Operand


def _apply(name: str, *given: Operand) -> Expression:
    values = [each for each in given if isinstance(each, Expression)]
    if not values:
        kinds = ", ".join(type(each).__name__ for each in given) or "nothing"
        raise EquationError(f"{name}(): expected a value of the step, got {kinds}")
    return values[0].book.operation(name, *given)


def relu(value: Operand) -> Expression:
    """max(value, 0); its derivative at 0 is 0."""
    return _apply("relu", value)


def tanh(value: Operand) -> Expression:
    """The hyperbolic tangent."""
    return _apply("tanh", value)


def sigmoid(value: Operand) -> Expression:
    """1 / (1 + exp(-value))."""
    return _apply("sigmoid", value)


def hard_sigmoid(value: Operand) -> Expression:
    """0.2·value + 0.5, at least 0 and at most 1."""
    return _apply("hard_sigmoid", value)


def softplus(value: Operand) -> Expression:
    """log(1 + exp(value)), without overflow."""
    return _apply("softplus", value)


def log_sigmoid(value: Operand) -> Expression:
    """log(sigmoid(value)), without overflow."""
    return _apply("log_sigmoid", value)


def exp(value: Operand) -> Expression:
    """e to the power of the value."""
    return _apply("exp", value)


def log(value: Operand) -> Expression:
    """The natural logarithm."""
    return _apply("log", value)


def sqrt(value: Operand) -> Expression:
    """The square root."""
    return _apply("sqrt", value)


def abs(value: Operand) -> Expression:
    """The absolute value; its derivative at 0 is 0."""
    return _apply("abs", value)


def maximum(a: Operand, b: Operand) -> Expression:
    """The larger of two values; if they are equal, the first gets the gradient."""
    return _apply("maximum", a, b)


def minimum(a: Operand, b: Operand) -> Expression:
    """The smaller of two values; if they are equal, the first gets the gradient."""
    return _apply("minimum", a, b)


def where(condition: Expression, a: Operand, b: Operand) -> Expression:
    """a where a comparison of values holds, otherwise b."""
    if not (isinstance(condition, Expression) and condition.is_condition):
        kind = type(condition).__name__
        got = "a value" if isinstance(condition, Expression) else kind
        raise EquationError(f"where(): expected a comparison of values first, got {got}")
    return _apply("where", condition, a, b)


def mean(*values: Operand) -> Expression:
    """The mean over the units of a row, for each of its units; of several values together."""
    return _apply("mean", *values)


def variance(*values: Operand) -> Expression:
    """The biased variance over the units of a row, for each of its units; likewise."""
    return _apply("variance", *values)


def layer_norm(
    values: Expression | Sequence[Expression],
    scale: Any = None,
    shift: Any = None,
    epsilon: float = 1e-5,
) -> Any:
    """A value normalised to mean 0 and variance 1 over the units of a row, times scale, plus shift.

    Several values are normalised together, over all their units, and returned as a list; ``scale``
    and ``shift`` are then lists of as many parameters, or None.
    """
    several = not isinstance(values, Expression)
    given = [values] if isinstance(values, Expression) else list(values)
    if not given or not all(isinstance(each, Expression) for each in given):
        raise EquationError("layer_norm(): expected a value of the step, or several")
    scales, shifts = (_one_each(what, several, len(given)) for what in (scale, shift))
    middle, inverse = mean(*given), 1 / sqrt(variance(*given) + epsilon)
    centred = [each - middle for each in given]
    found = [each * inverse for each in centred]
    found = [each if by is None else each * by for each, by in zip(found, scales, strict=True)]
    found = [each if by is None else each + by for each, by in zip(found, shifts, strict=True)]
    return tuple(found) if several else found[0]


def _one_each(given: Any, several: bool, count: int) -> list[Any]:
    if given is None or not several:
        return [given] * count
    if isinstance(given, Expression) or len(given) != count:
        raise EquationError(f"layer_norm(): expected {count} parameters, one per value")
    return list(given)
