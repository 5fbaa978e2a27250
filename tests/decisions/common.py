"""What the tests of decisions share: cases with everything in them, and how they are run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import oracle
from tests.cases import (
    CELLS,
    DIRECTIONS,
    Array,
    Arrays,
    Case,
    assert_close,
    make_cotangents,
    make_tensors,
    run_forward,
    run_gradients,
)

cells = pytest.mark.parametrize("cell", CELLS)
directions = pytest.mark.parametrize("direction", DIRECTIONS)


def setup(case: Case) -> tuple[Arrays, Arrays, Any, Any]:
    tensors, cotangents = make_tensors(case), make_cotangents(case)
    result = run_forward(case, tensors, training=True)
    return tensors, cotangents, result, run_gradients(case, tensors, cotangents, result)


def assert_same(a: Any, b: Any) -> None:
    """Two named tuples of arrays with the same numbers."""
    assert a._fields == b._fields
    for name, x, y in zip(a._fields, a, b, strict=True):
        assert (x is None) == (y is None), name
        if x is not None:
            assert_close(x, y, name)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def one(value: float, *shape: int) -> Array:
    return np.full(shape or (1, 1, 1), float(value))


def smooth(cell: str) -> tuple[int, ...]:
    """Activations without a kink or a flat side, where the defaults have one."""
    return (oracle.TANH,) if cell == "rnn" else ()


def put_last(case: Case, per_step: Array, last: Array) -> None:
    """Add [N,DH] at the last processed step, which is t = 0 for the reverse half."""
    per_step[-1, :, : case.H] += last[:, : case.H]
    if case.D == 2:
        per_step[0, :, case.H :] += last[:, case.H :]
