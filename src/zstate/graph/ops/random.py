"""Rows that draw numbers: pure functions of a generator's state, which is a tensor like any other.

The generator is Philox, as in MPSGraph. Its state is int64 [6]: the key (2 words) and the counter
(4 words). The counter's highest word counts the draws, so every draw has its own stream, and the
same seed gives the same numbers in every array library. Numbers are drawn by NumPy; on a GPU, a
kernel draws the same uniform numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import OptionError, ShapeError, refusal
from ...layout import TensorInfo, brackets
from ...types import Array
from .base import Attributes, Infos, Op, require_float

if TYPE_CHECKING:
    from ...arrays import Namespace

DISTRIBUTIONS = ("uniform", "normal")


def first_state(seed: int) -> Array:
    """The state of a generator that has drawn nothing yet."""
    key = np.random.SeedSequence(seed).generate_state(2, np.uint64)
    return np.concatenate([key, np.zeros(4, np.uint64)]).view(np.int64)


def draw(state: Array, shape: tuple[int, ...], attributes: Attributes) -> tuple[Array, Array]:
    """Numbers of one distribution, and the state after them."""
    words = np.ascontiguousarray(state).view(np.uint64)
    generator = np.random.Generator(np.random.Philox(key=words[:2], counter=words[2:]))
    low, high = attributes["first"], attributes["second"]
    width = np.float64 if attributes["dtype"] == "float64" else np.float32
    if attributes["distribution"] == "uniform":
        values = width(low) + generator.random(shape, width) * width(high - low)
    else:
        values = width(low) + generator.standard_normal(shape, width) * width(high)
    after = state.copy()
    after[-1] += 1
    return np.asarray(values, width), after


def _infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    (state,) = inputs
    if state != TensorInfo((6,), "int64"):
        got = f"{state.dtype}{brackets(state.shape)}"
        raise ShapeError(refusal(label, "state", "int64[6] of random_philox_state", got))
    if attributes["distribution"] not in DISTRIBUTIONS:
        expected, got = "one of " + ", ".join(DISTRIBUTIONS), repr(attributes["distribution"])
        raise OptionError(refusal(label, "distribution", expected, got))
    info = TensorInfo(attributes["shape"], attributes["dtype"])
    require_float(label, "dtype", info)
    if any(size < 0 for size in attributes["shape"]):
        raise ShapeError(refusal(label, "shape", "known sizes", brackets(attributes["shape"])))
    if not all(math.isfinite(attributes[name]) for name in ("first", "second")):
        raise OptionError(refusal(label, "distribution", "finite numbers", "another"))
    return {"values": info, "state": state}


def _prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    shape, dtype = attributes["shape"], xp.dtype(attributes["dtype"])
    low, high = attributes["first"], attributes["second"]
    is_uniform = attributes["distribution"] == "uniform"

    def evaluate(state: Any) -> tuple[Any, Any]:
        found: tuple[Any, Any] | None = None
        if is_uniform:
            found = xp.uniform(state, shape, dtype, low, high)
        if found is not None:
            return found
        values, after = draw(xp.to_numpy(state), shape, attributes)
        return xp.astype(xp.asarray(values), dtype), xp.asarray(after)

    return evaluate


ROWS = (
    Op(
        "random_tensor",
        _infer,
        _prepare,
        operands=("state",),
        kinds={
            "shape": "ints",
            "distribution": "str",
            "first": "float",
            "second": "float",
            "dtype": "dtype",
        },
    ),
)
