"""Prepared layers with float32 and bfloat16 weights against the functional calls in float64."""

from __future__ import annotations

import numpy as np
import pytest

from tests.prepared import drawn


def rng_of(config: pytest.Config, *more: int) -> np.random.Generator:
    return np.random.default_rng([int(config.option.hypothesis_seed), *more])


@pytest.mark.parametrize("part", range(8))
@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
def test_random_stacks(pytestconfig: pytest.Config, isa: str, weights: str, part: int) -> None:
    """Every cell, option and direction; states, masks and lengths; one to three threads."""
    rng = rng_of(pytestconfig, part, len(weights))
    for _ in range(6):
        drawn.check_random_stack(rng, weights)


@pytest.mark.parametrize("size", [(3, 40, 30, 70), (2, 3, 600, 130), (70, 2, 5, 64)])
@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
def test_larger_stacks(
    pytestconfig: pytest.Config, isa: str, weights: str, size: tuple[int, ...]
) -> None:
    """Several blocks of rows, of inputs and of units; several chunks of steps."""
    drawn.check_random_stack(rng_of(pytestconfig, *size), weights, size)
