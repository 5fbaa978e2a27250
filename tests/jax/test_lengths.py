"""Lengths in zstate.jax beyond what test_transforms.py draws."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zstate as zs
import zstate.jax as zj
from zstate.operations import OPERATIONS


def test_both_forms_of_a_peephole() -> None:
    """[2,4H] and [8H] mean the same, with lengths too."""
    rng = np.random.default_rng(0)
    x, R = rng.normal(size=(4, 2, 24)), rng.normal(size=(2, 12, 3)) / 2
    peephole, lengths = rng.normal(size=(2, 12)), np.array([4, 2])
    both = zs.LSTMDescriptor(bidirectional=True)
    found = [
        zj.lstm(x, R, peephole=each, descriptor=both, lengths=lengths).state
        for each in (peephole, peephole.reshape(-1))
    ]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("way", [{}, {"reverse": True}, {"bidirectional": True}])
@pytest.mark.parametrize("name", ["single_gate_rnn", "lstm", "gru"])
def test_composed_of_operations(name: str, way: dict[str, bool]) -> None:
    """As without the engine: every sequence by itself, cut off where it ends."""
    rng = np.random.default_rng(1)
    operation = OPERATIONS[name]
    gates, both = len(operation.cell.gates), 2 if "bidirectional" in way else 1
    descriptor = operation.cell.descriptor(**way)
    R = rng.normal(size=((2,) if both == 2 else ()) + (gates * 3, 3)) / 2
    W, b = rng.normal(size=(both * gates * 3, 5)) / 2, rng.normal(size=both * gates * 3)
    x, h, lengths = rng.normal(size=(6, 3, 5)), rng.normal(size=(3, both * 3)), [4, 6, 1]
    mask = rng.normal(size=(6, 3, both * 3))

    def run(function: Any, n: slice, end: int, **more: Any) -> Any:
        given = {"input_weight": W, "bias": b, "init_state": h[n], "mask": mask[:end, n]}
        return function(x[:end, n], R, descriptor=descriptor, **given, **more).state

    whole = slice(None)
    found = run(getattr(zj, name), whole, 6, lengths=np.array(lengths), backend="reference")
    for n, end in enumerate(lengths):
        wanted = run(getattr(zs, name), slice(n, n + 1), end, backend="reference")
        np.testing.assert_allclose(found[:end, n : n + 1], wanted, rtol=2e-5, atol=2e-6)
        assert not np.asarray(found[end:, n]).any()


@pytest.mark.parametrize("backend", [None, "reference"])
@pytest.mark.parametrize("way", [{}, {"reverse": True}, {"bidirectional": True}])
def test_padding_cannot_grow_without_bound(way: dict[str, bool], backend: str | None) -> None:
    """Every sequence by itself has finite gradients, and so has the padded batch."""
    rng = np.random.default_rng(2)
    descriptor = zs.SingleGateRNNDescriptor(activation="relu", **way)
    count = 2 if "bidirectional" in way else 1
    x = rng.normal(size=(200, 2, 5)).astype(np.float32)
    R = np.full((3, 3) if count == 1 else (2, 3, 3), 30, np.float32)
    W, lengths = rng.normal(size=(count * 3, 5)).astype(np.float32), np.array([2, 3])
    resets = np.zeros((200, 2), bool)
    resets[1, 1] = True

    def loss(R: Any, x: Any, resets: Any, lengths: Any = None) -> Any:
        given = {"input_weight": W, "resets": resets, "lengths": lengths, "backend": backend}
        return zj.single_gate_rnn(x, R, descriptor=descriptor, **given).state.sum()

    ends = enumerate(lengths)
    wanted = sum(jax.grad(loss)(R, x[:end, n : n + 1], resets[:end, n : n + 1]) for n, end in ends)
    found = jax.jit(jax.grad(loss))(R, x, resets, jnp.asarray(lengths))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
