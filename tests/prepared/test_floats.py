"""Prepared layers with float32 and bfloat16 weights against the functional calls in float64."""

from __future__ import annotations

import numpy as np
import pytest

import zstate as zs
import zstate.convert as zc
from tests.prepared import drawn


def rng_of(config: pytest.Config, *more: int) -> np.random.Generator:
    return np.random.default_rng([int(config.option.hypothesis_seed), *more])


@pytest.mark.parametrize("part", range(8))
@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
def test_random_stacks(pytestconfig: pytest.Config, isa: str, weights: str, part: int) -> None:
    """Every cell, option and direction; states, masks and lengths; one to three threads."""
    rng = rng_of(pytestconfig, part, len(weights), *isa.encode())  # others for each
    for _ in range(4):
        drawn.check_random_stack(rng, weights)


@pytest.mark.parametrize("size", [(3, 40, 30, 70), (2, 3, 600, 130), (70, 2, 5, 64)])
@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
def test_larger_stacks(
    pytestconfig: pytest.Config, isa: str, weights: str, size: tuple[int, ...]
) -> None:
    """Several blocks of rows, of inputs and of units; several chunks of steps."""
    drawn.check_random_stack(rng_of(pytestconfig, *size), weights, size)


@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_a_weight_that_is_not_finite_shows_at_once(isa: str, weights: str, odd: float) -> None:
    """Also where the first step has zeros to multiply."""
    layer = drawn.layer(np.random.default_rng(0), "lstm", 5, 20)
    tensors = {name: array.copy() for name, array in layer.tensors.items()}
    tensors["recurrent_weight"][7, 11] = odd  # of unit 7, gate i
    model = zs.prepare(zc.Layer("lstm", layer.descriptor, tensors), weights, backend="native")
    for rows in (1, 9):
        output, _ = model(np.ones((1, rows, 5), np.float32))
        assert (np.isnan(output).nonzero()[-1] == 7).all() and np.isnan(output[..., 7]).all()
