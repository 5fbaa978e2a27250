"""Random numbers of the graph come from their seed, and dropout from them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch

import zstate as zs
from zstate.types import Array


def test_random_numbers_come_from_the_seed() -> None:
    def numbers(seed: int, runs: int, convert: Any = None) -> list[Array]:
        g = zs.Graph()
        state = g.random_philox_state(seed=seed)
        uniform, after = g.random_uniform((2000,), state, minimum=-1.0, maximum=3.0)
        gauss, after = g.random_normal((2000,), after, mean=5.0, standard_deviation=2.0)
        done = g.assign(state, after)
        one = g.placeholder(shape=(), dtype="float32")
        found = []
        for _ in range(runs):
            fed = (convert or np.asarray)(np.float32(1))
            out = g.run({one: fed}, [uniform * one, gauss * one], operations=[done])
            found += [np.asarray(array) for array in out.values()]
        return found

    first = numbers(7, 2)
    for a, b in zip(first, numbers(7, 2), strict=True):
        assert (a == b).all()
    for a, b in zip(first, numbers(7, 2, torch.tensor), strict=True):
        assert (a == b).all()
    different = [first[0], first[2], numbers(8, 1)[0]]
    assert not any((a == b).any() for a, b in pairwise(different))
    assert first[0].dtype == np.float32
    assert -1 <= first[0].min() < -0.99 and 2.99 < first[0].max() < 3
    assert abs(first[0].mean() - 1) < 0.1 and abs(first[1].mean() - 5) < 0.2
    assert abs(first[1].std() - 2) < 0.15


def test_without_assigning_the_state_the_numbers_repeat() -> None:
    g = zs.Graph()
    drawn, _ = g.random_uniform((5,), g.random_philox_state(seed=1), dtype="float64")
    assert (g.run({}, [drawn])[drawn] == g.run({}, [drawn])[drawn]).all()


def test_dropout_keeps_the_mean_and_its_mask() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(100, 100), dtype="float64")
    y, _ = g.dropout(x, 0.25, g.random_philox_state(seed=3))
    d = g.gradients(g.reduction_sum(y * 3.0), [x])[x]
    found = g.run({x: np.full((100, 100), 2.0)}, [y, d])
    kept = found[y] != 0
    assert abs(kept.mean() - 0.75) < 0.02
    np.testing.assert_allclose(found[y][kept], 2 / 0.75)
    np.testing.assert_allclose(found[d], np.where(kept, 3 / 0.75, 0))
