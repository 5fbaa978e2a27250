"""NaN and infinity in weights, masks and gradients reach the results as they do in torch.nn: 0·NaN
is NaN, also where an engine could leave a product with zeros out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import zstate as zs
import zstate.torch as zt
from tests.covering import covering
from zstate.backends import native

pytestmark = pytest.mark.skipif(
    native.unavailable() is not None, reason="built without a C++ compiler"
)
KINDS = {
    "rnn": (zt.RNN, torch.nn.RNN),
    "lstm": (zt.LSTM, torch.nn.LSTM),
    "gru": (zt.GRU, torch.nn.GRU),
}
# Weights read where they are, packed, and packed for x too.
SIZES = [(1, 1), (1, 2), (3, 1), (5, 2), (1, 9), (4, 9)]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("steps", "batch"), SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_recurrent_weight_that_is_not_finite(
    kind: str, steps: int, batch: int, dtype: torch.dtype, value: float
) -> None:
    torch.manual_seed(1)
    mine, theirs = KINDS[kind]
    ours = mine(3, 19, bidirectional=True).to(dtype)
    other = theirs(3, 19, bidirectional=True).to(dtype)
    with torch.no_grad():
        ours.weight_hh_l0[4, 2] = ours.weight_hh_l0_reverse[18, 18] = value
        for (_, a), (_, b) in zip(
            sorted(ours.named_parameters()), sorted(other.named_parameters()), strict=True
        ):
            b.copy_(a)
    x = torch.randn(steps, batch, 3, dtype=dtype)
    for record in (False, True):
        with torch.set_grad_enabled(record):
            found, wanted = ours(x)[0], other(x)[0]
        assert torch.isnan(wanted[0]).any()
        torch.testing.assert_close(found, wanted, equal_nan=True)
    found.sum().backward()
    wanted.sum().backward()
    for (name, a), (_, b) in zip(
        sorted(ours.named_parameters()), sorted(other.named_parameters()), strict=True
    ):
        assert a.grad is not None and b.grad is not None
        assert torch.equal(torch.isnan(a.grad), torch.isnan(b.grad)), name


@pytest.mark.parametrize("batch", [1, 2, 9])
@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_that_is_not_finite_reaches_a_weight_without_history(
    kind: str, batch: int
) -> None:
    """One step from zeros: dR = dgates·0."""
    torch.manual_seed(2)
    mine, theirs = KINDS[kind]
    ours, other = mine(3, 19), theirs(3, 19)
    other.load_state_dict(ours.state_dict())
    x, dy = torch.randn(1, batch, 3), torch.randn(1, batch, 19)
    dy[0, 0, 5] = float("inf")
    ours(x)[0].backward(dy)
    other(x)[0].backward(dy)
    a, b = ours.weight_hh_l0.grad, other.weight_hh_l0.grad
    assert a is not None and b is not None and torch.isnan(b).any() and not torch.isnan(b).all()
    torch.testing.assert_close(a, b, equal_nan=True)


CALLS: dict[str, tuple[Any, Any, int]] = {
    "rnn": (zs.single_gate_rnn, zs.SingleGateRNNDescriptor(), 1),
    "lstm": (zs.lstm, zs.LSTMDescriptor(), 4),
    "gru after": (zs.gru, zs.GRUDescriptor(reset_after=True), 3),
    "gru before": (zs.gru, zs.GRUDescriptor(reset_after=False), 3),
}


@pytest.mark.parametrize(
    ("call", "size", "where", "dtype"),
    covering(CALLS, SIZES, ("recurrent_weight", "mask", "bias"), ("f2", "f4", "f8"), strength=3),
)
def test_the_reference_agrees(
    isa: str, call: str, size: tuple[int, int], where: str, dtype: str
) -> None:
    (function, descriptor, gates), (steps, batch) = CALLS[call], size
    r = np.random.default_rng(0)
    shapes = {
        "recurrent_weight": (gates * 20, 20),
        "mask": (steps, batch, 20),
        "bias": (gates * 20,),
        "source": (steps, batch, gates * 20),
    }
    arrays = {name: (0.3 * r.normal(size=shape)).astype(dtype) for name, shape in shapes.items()}
    arrays[where].reshape(-1)[23 % arrays[where].size] = np.nan
    if where != "mask":
        del arrays["mask"]
    with np.errstate(invalid="ignore"):
        found = function(**arrays, descriptor=descriptor, backend="native").state
        wanted = function(**arrays, descriptor=descriptor, backend="reference").state
    assert np.isnan(wanted).any()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
