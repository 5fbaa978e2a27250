"""flax.nnx's arrays by name, made by hand: no Flax needed. test_flax.py compares the results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import zstate as zs
import zstate.convert as zc

from .common import H, I, N, T, draw


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def test_the_optimised_lstm(rng: np.random.Generator) -> None:
    kernel, recurrent = draw(rng, (I, 4 * H), "float64"), draw(rng, (H, 4 * H), "float64")
    bias, source = draw(rng, (4 * H,), "float64"), draw(rng, (T, N, I), "float64")
    state = {
        "cell": {"dense_i": {"kernel": kernel}, "dense_h": {"kernel": recurrent, "bias": bias}},
        "rngs": {"count": np.uint32(3)},
    }
    layer = zc.load(state, source="flax")
    assert isinstance(layer, zc.Layer)
    h = c = np.zeros((N, H))
    expected = []
    for x in source:
        i, f, g, o = np.split(x @ kernel + h @ recurrent + bias, 4, axis=1)
        c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
        h = _sigmoid(o) * np.tanh(c)
        expected.append(h)
    found = zs.lstm(source, **layer.tensors, descriptor=layer.descriptor, backend="reference")
    assert np.allclose(found.state, expected, rtol=0, atol=1e-13)


def test_the_gru(rng: np.random.Generator) -> None:
    kernel, recurrent = draw(rng, (I, 3 * H), "float64"), draw(rng, (H, 3 * H), "float64")
    bias, source = draw(rng, (3 * H,), "float64"), draw(rng, (T, N, I), "float64")
    state = {"dense_i/kernel": kernel, "dense_i/bias": bias, "dense_h/kernel": recurrent}
    layer = zc.load(state, source="flax")
    assert isinstance(layer, zc.Layer)
    h = np.zeros((N, H))
    expected = []
    for x in source:
        x_r, x_z, x_n = np.split(x @ kernel + bias, 3, axis=1)
        h_r, h_z, h_n = np.split(h @ recurrent, 3, axis=1)
        r, z = _sigmoid(x_r + h_r), _sigmoid(x_z + h_z)
        h = (1 - z) * np.tanh(x_n + r * h_n) + z * h
        expected.append(h)
    found = zs.gru(source, **layer.tensors, descriptor=layer.descriptor, backend="reference")
    assert np.allclose(found.state, expected, rtol=0, atol=1e-13)


def test_the_others_by_their_names(rng: np.random.Generator) -> None:
    simple = {"dense_i/kernel": draw(rng, (I, H)), "dense_h/kernel": draw(rng, (H, H))}
    layer = zc.load(simple, source="flax")
    assert isinstance(layer, zc.Layer)
    assert layer.cell == "single_gate_rnn"
    gates = {f"i{gate}/kernel": draw(rng, (I, H)) for gate in ("i", "f_", "g", "o")}
    gates |= {f"h{gate}/kernel": draw(rng, (H, H)) for gate in "ifgo"}
    lstm = zc.load(gates, source="flax")
    assert isinstance(lstm, zc.Layer)
    ours = np.split(lstm.tensors["input_weight"], 4)
    for gate, array in zip(("i", "f_", "g", "o"), ours, strict=True):
        assert np.array_equal(array, gates[f"i{gate}/kernel"].T)
    with pytest.raises(zs.OptionError):  # names of two kinds of cells
        zc.load(gates | simple, source="flax")
