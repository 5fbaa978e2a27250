"""Lengths in zstate.jax beyond what test_transforms.py draws."""

from __future__ import annotations

import numpy as np

import zstate as zs
import zstate.jax as zj


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
