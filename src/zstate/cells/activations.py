"""The five activations, each beside its derivative.

A derivative is a function of the activation's *output*: that is what zState keeps. At the kinks
relu'(0) = 0 and hardSigmoid' = 0 where the output is exactly 0 or 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..descriptors import Activation
from ..types import Array


class Function(NamedTuple):
    """An activation ``y = apply(x)`` and its derivative ``dy/dx = slope(y)``."""

    apply: Callable[[Array], Array]
    slope: Callable[[Array], Array]


def _none(x: Array) -> Array:
    return x


def _none_slope(y: Array) -> Array:
    return np.ones_like(y)


def _relu(x: Array) -> Array:
    return np.maximum(x, 0)


def _relu_slope(y: Array) -> Array:
    return (y > 0).astype(y.dtype)


def _tanh_slope(y: Array) -> Array:
    slope: Array = (1 - y) * (1 + y)
    return slope


def _sigmoid(x: Array) -> Array:
    # exp of a negative number only: it cannot overflow, and both tails keep their accuracy.
    e = np.exp(-np.abs(x))
    y: Array = np.where(x < 0, e, np.ones_like(e)) / (1 + e)
    return y


def _sigmoid_slope(y: Array) -> Array:
    slope: Array = y * (1 - y)
    return slope


def _hard_sigmoid(x: Array) -> Array:
    y: Array = np.clip(x * x.dtype.type(0.2) + x.dtype.type(0.5), 0, 1)
    return y


def _hard_sigmoid_slope(y: Array) -> Array:
    slope: Array = ((y > 0) & (y < 1)).astype(y.dtype) * y.dtype.type(0.2)
    return slope


FUNCTIONS: dict[Activation, Function] = {
    Activation.NONE: Function(_none, _none_slope),
    Activation.RELU: Function(_relu, _relu_slope),
    Activation.TANH: Function(np.tanh, _tanh_slope),
    Activation.SIGMOID: Function(_sigmoid, _sigmoid_slope),
    Activation.HARD_SIGMOID: Function(_hard_sigmoid, _hard_sigmoid_slope),
}
