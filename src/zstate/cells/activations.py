"""The activations, each beside its derivative: the one table of what Python knows about them.

A derivative is a function of the activation's *output*: that is what zState keeps. At the kinks
relu'(0) = 0 and hardSigmoid' = 0 where the output is exactly 0 or 1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ..descriptors import Activation
from ..types import Value

if TYPE_CHECKING:
    from ..arrays import Namespace


class Function(NamedTuple):
    """An activation ``y = apply(x)`` and its derivative ``dy/dx = slope(y)``, on some library."""

    apply: Callable[[Value], Value]
    slope: Callable[[Value], Value]


class Kind(NamedTuple):
    """One row of the table: the activation over an array namespace, and facts about it."""

    apply: Callable[[Namespace, Value], Value]
    slope: Callable[[Namespace, Value], Value]
    bounded: bool  # whether its values lie between two numbers
    smooth: bool  # whether it has a derivative everywhere
    compiled: bool = False  # whether csrc/equations/activations.h has it, for the CPU and for CUDA

    def on(self, xp: Namespace) -> Function:
        """The activation on the arrays of one library."""
        return Function(partial(self.apply, xp), partial(self.slope, xp))


def _none(xp: Namespace, x: Value) -> Value:
    return x


def _none_slope(xp: Namespace, y: Value) -> Value:
    return xp.ones_like(y)


def _relu(xp: Namespace, x: Value) -> Value:
    return xp.relu(x)


def _relu_slope(xp: Namespace, y: Value) -> Value:
    return xp.astype(y > 0, y.dtype)


def _tanh(xp: Namespace, x: Value) -> Value:
    return xp.tanh(x)


def _tanh_slope(xp: Namespace, y: Value) -> Value:
    return (1 - y) * (1 + y)


def _sigmoid(xp: Namespace, x: Value) -> Value:
    return xp.sigmoid(x)


def _sigmoid_slope(xp: Namespace, y: Value) -> Value:
    return y * (1 - y)


def _hard_sigmoid(xp: Namespace, x: Value) -> Value:
    y = x * 0.2 + 0.5
    # Chosen, not clipped: a library that differentiates clip() may have a slope at its ends.
    return xp.where(y <= 0, 0.0, xp.where(y >= 1, 1.0, y))


def _hard_sigmoid_slope(xp: Namespace, y: Value) -> Value:
    return xp.astype((y > 0) & (y < 1), y.dtype) * 0.2


ACTIVATIONS: dict[Activation, Kind] = {
    Activation.NONE: Kind(_none, _none_slope, bounded=False, smooth=True, compiled=True),
    Activation.RELU: Kind(_relu, _relu_slope, bounded=False, smooth=False, compiled=True),
    Activation.TANH: Kind(_tanh, _tanh_slope, bounded=True, smooth=True, compiled=True),
    Activation.SIGMOID: Kind(_sigmoid, _sigmoid_slope, bounded=True, smooth=True, compiled=True),
    Activation.HARD_SIGMOID: Kind(
        _hard_sigmoid, _hard_sigmoid_slope, bounded=True, smooth=False, compiled=True
    ),
}
