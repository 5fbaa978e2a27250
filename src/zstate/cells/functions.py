"""The functions of equations, each with its derivative.

The five activations of the descriptors are among them. A derivative is written through the
function's *output* wherever that is enough: the training state keeps outputs. At the kinks
relu'(0) = 0, hard_sigmoid' = 0 where the output is exactly 0 or 1, abs'(0) = 0, and maximum and
minimum of equal values pass the gradient to the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..descriptors import Activation
from ..types import Value
from .expressions import Expression

if TYPE_CHECKING:
    from ..arrays import Namespace

# (arguments, result, gradient of the result) -> gradients of the arguments
Rule: TypeAlias = Callable[
    [tuple[Expression, ...], Expression, Expression], tuple[Expression | None, ...]
]


class Function(NamedTuple):
    """One row: a function of arrays, and its derivative as symbols."""

    apply: Callable[..., Value]  # (namespace, *arguments)
    gradient: Rule
    slope: Callable[[Namespace, Value], Value] | None = None  # dy/dx as a function of y
    bounded: bool = False  # whether its values lie between two numbers
    smooth: bool = True  # whether it has a derivative everywhere
    compiled: bool = False  # whether csrc/equations/activations.h has it, for the CPU and for CUDA


def _by_slope(args: tuple[Expression, ...], y: Expression, d: Expression) -> tuple[Expression, ...]:
    return (d * y.book.make("slope", (y,), y.op),)


def _none_slope(xp: Namespace, y: Value) -> Value:
    return xp.ones_like(y)


def _relu_slope(xp: Namespace, y: Value) -> Value:
    return xp.astype(y > 0, y.dtype)


def _tanh_slope(xp: Namespace, y: Value) -> Value:
    return (1 - y) * (1 + y)


def _sigmoid_slope(xp: Namespace, y: Value) -> Value:
    return y * (1 - y)


def _hard_sigmoid(xp: Namespace, x: Value) -> Value:
    y = x * 0.2 + 0.5
    # where(), not clip(): a library's derivative of clip() may have a slope at the ends.
    return xp.where(y <= 0, 0.0, xp.where(y >= 1, 1.0, y))


def _hard_sigmoid_slope(xp: Namespace, y: Value) -> Value:
    return xp.astype((y > 0) & (y < 1), y.dtype) * 0.2


def _softplus(xp: Namespace, x: Value) -> Value:
    return xp.relu(x) + xp.log1p(xp.exp(-abs(x)))  # the argument of exp is never positive


def _softplus_slope(xp: Namespace, y: Value) -> Value:
    return -xp.expm1(-y)


def _log_sigmoid(xp: Namespace, x: Value) -> Value:
    return -_softplus(xp, -x)


def _log_sigmoid_slope(xp: Namespace, y: Value) -> Value:
    return -xp.expm1(y)


def _maximum(xp: Namespace, a: Value, b: Value) -> Value:
    # where(), so that a library gives the gradient of equal values to the first; NaN stays NaN.
    return xp.where((b > a) | (b != b), b, a)


def _minimum(xp: Namespace, a: Value, b: Value) -> Value:
    return xp.where((b < a) | (b != b), b, a)


def _mean(xp: Namespace, *values: Value) -> Value:
    """Of all values over the units of a row, for each of them."""
    x = reduce(add, values)
    mean = xp.total(x, (x.ndim - 1,)) / (x.shape[-1] * len(values))
    return xp.broadcast_to(mean[..., None], x.shape)


def _mean_gradient(
    args: tuple[Expression, ...], y: Expression, d: Expression
) -> tuple[Expression, ...]:
    return (d.book.operation("mean", d) * (1 / len(args)),) * len(args)


def _variance(xp: Namespace, *values: Value) -> Value:
    middle = _mean(xp, *values)
    return _mean(xp, *((each - middle) ** 2 for each in values))


def _variance_gradient(
    args: tuple[Expression, ...], y: Expression, d: Expression
) -> tuple[Expression, ...]:
    middle = d.book.operation("mean", *args)
    share = d.book.operation("mean", d) * (2 / len(args))
    return tuple((each - middle) * share for each in args)


def _where(
    args: tuple[Expression, ...], y: Expression, d: Expression
) -> tuple[Expression | None, ...]:
    return (None, *_chosen(args[0], d))


def _chosen(condition: Expression, d: Expression) -> tuple[Expression, Expression]:
    """The gradient of what was taken where the condition holds, and of what was taken elsewhere."""
    where = d.book.operation
    return where("where", condition, d, 0), where("where", condition, 0, d)


def _abs(args: tuple[Expression, ...], y: Expression, d: Expression) -> tuple[Expression, ...]:
    book, (x,) = d.book, args
    below = book.operation("where", x < 0, -d, 0)
    return (book.operation("where", x > 0, d, below),)


FUNCTIONS: dict[str, Function] = {
    "none": Function(lambda xp, x: x, _by_slope, _none_slope, compiled=True),
    "relu": Function(lambda xp, x: xp.relu(x), _by_slope, _relu_slope, smooth=False, compiled=True),
    "tanh": Function(lambda xp, x: xp.tanh(x), _by_slope, _tanh_slope, bounded=True, compiled=True),
    "sigmoid": Function(
        lambda xp, x: xp.sigmoid(x), _by_slope, _sigmoid_slope, bounded=True, compiled=True
    ),
    "hard_sigmoid": Function(
        _hard_sigmoid, _by_slope, _hard_sigmoid_slope, bounded=True, smooth=False, compiled=True
    ),
    "softplus": Function(_softplus, _by_slope, _softplus_slope),
    "log_sigmoid": Function(_log_sigmoid, _by_slope, _log_sigmoid_slope),
    "exp": Function(lambda xp, x: xp.exp(x), lambda args, y, d: (d * y,)),
    "log": Function(lambda xp, x: xp.log(x), lambda args, y, d: (d / args[0],)),
    "sqrt": Function(lambda xp, x: xp.sqrt(x), lambda args, y, d: (0.5 * d / y,)),
    "abs": Function(lambda xp, x: abs(x), _abs, smooth=False),
    "maximum": Function(_maximum, lambda args, y, d: _chosen(args[0] >= args[1], d), smooth=False),
    "minimum": Function(_minimum, lambda args, y, d: _chosen(args[0] <= args[1], d), smooth=False),
    "mean": Function(_mean, _mean_gradient),
    "variance": Function(_variance, _variance_gradient),
    "where": Function(lambda xp, c, a, b: xp.where(c, a, b), _where, smooth=False),
    "add": Function(lambda xp, a, b: a + b, lambda args, y, d: (d, d)),
    "subtract": Function(lambda xp, a, b: a - b, lambda args, y, d: (d, -d)),
    "multiply": Function(lambda xp, a, b: a * b, lambda args, y, d: (d * args[1], d * args[0])),
    "divide": Function(
        lambda xp, a, b: a / b, lambda args, y, d: (d / args[1], -(d * y / args[1]))
    ),
    "negative": Function(lambda xp, x: -x, lambda args, y, d: (-d,)),
    "greater": Function(lambda xp, a, b: a > b, lambda args, y, d: (None, None)),
    "at_least": Function(lambda xp, a, b: a >= b, lambda args, y, d: (None, None)),
}

# Functions of all units of a row at once, of one value or several: an engine has to wait for each.
REDUCTIONS = frozenset({"mean", "variance"})

ACTIVATIONS: dict[Activation, Function] = {
    kind: FUNCTIONS[kind.name.lower()] for kind in Activation
}


def may_grow(activations: Sequence[Activation]) -> bool:
    """Whether a descriptor's activations let a state grow without bound; of a cell from equations,
    which has none, nothing is known."""
    return not activations or not all(ACTIVATIONS[kind].bounded for kind in activations)


def activated(kind: Activation, value: Expression) -> Expression:
    """An activation of a descriptor, as a symbol."""
    return value if kind is Activation.NONE else value.book.operation(kind.name.lower(), value)
