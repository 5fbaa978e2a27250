"""A gradient operation that is passed the None of a forward operation without training says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import zstate as zs

ADVICE = "; run the forward operation with training=True in its descriptor"
CASES = [
    ("single_gate_rnn", 1, "z_state", "training_state"),
    ("lstm", 4, "z_state", "training_state"),
    ("lstm", 4, "cell_output_fwd", "cell"),
    ("gru", 3, "z_state", "training_state"),
    ("gru", 3, "output_fwd", "state"),
]
cases = pytest.mark.parametrize(("name", "gates", "missing", "result"), CASES)


def tensors(name: str, gates: int) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    T, N, H = 3, 2, 4
    shapes = {
        "source": (T, N, gates * H),
        "recurrent_weight": (gates * H, H),
        "source_gradient": (T, N, H),
        "z_state": (T, N, gates * H),
    }
    if name == "lstm":
        shapes["cell_output_fwd"] = (T, N, H)
    if name == "gru":
        shapes["output_fwd"] = (T, N, H)
    return {key: rng.normal(size=shape) for key, shape in shapes.items()}


def wanted(name: str, missing: str, result: str) -> str:
    expected = f"the {result} of the forward operation"
    return rf"^\[{name}_gradients\] {missing}: expected {expected}, got None{ADVICE}$"


@cases
@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_on_arrays(
    name: str, gates: int, missing: str, result: str, convert: Callable[[Any], Any]
) -> None:
    passed = {key: convert(array) for key, array in tensors(name, gates).items()}
    passed[missing] = None
    with pytest.raises(zs.DTypeError, match=wanted(name, missing, result)):
        getattr(zs, f"{name}_gradients")(**passed)


@cases
def test_in_a_graph(name: str, gates: int, missing: str, result: str) -> None:
    g = zs.Graph()
    passed: dict[str, Any] = {
        key: g.placeholder(shape=array.shape, dtype="float64")
        for key, array in tensors(name, gates).items()
    }
    passed[missing] = None
    with pytest.raises(zs.DTypeError, match=wanted(name, missing, result)):
        getattr(g, f"{name}_gradients")(**passed)
