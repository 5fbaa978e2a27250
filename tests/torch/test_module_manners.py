"""Being a module: copies, pickles, parametrizations, empty batches, warnings and refusals."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from typing import Any

import pytest
import torch

import zstate as zs
import zstate.torch as zt
from tests.torch.modules import CELLS, LAYERS, H, I, N, T, assert_same, flat, states


def test_no_sequence_at_all() -> None:
    for kind in LAYERS:
        layer = getattr(zt, kind)(I, H, bidirectional=True, num_layers=2)
        hx = states(kind, 4, dtype=torch.float32)
        output, ends = layer(torch.randn(0, N, I), hx)
        assert output.shape == (0, N, 2 * H)
        for end, first in zip(flat(ends), flat(hx), strict=True):
            assert torch.equal(end, first)
        assert layer(torch.randn(T, 0, I))[0].shape == (T, 0, 2 * H)


def test_no_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer = zt.LSTM(I, H, num_layers=2, dropout=0.1)
        layer.flatten_parameters()
        layer.double().float()
        layer(torch.randn(T, N, I))[0].sum().backward()
    with pytest.warns(UserWarning, match="has no effect with num_layers=1"):
        zt.LSTM(I, H, dropout=0.1)


def test_a_replica_of_data_parallel() -> None:
    """Its weights are tensors in place of parameters; the original keeps its own."""
    for layer in (zt.LSTM(I, H, peephole=True), zt.nn.GRU(I, H)):
        replica: Any = layer._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
        for name, value in layer.named_parameters():
            setattr(replica, name, value * 1)
        x = torch.randn(T, N, I)
        assert_same(flat(replica(x)), flat(layer(x)), 0.0)
        flat(replica(x))[0].sum().backward()
        assert layer.weight_hh_l0.grad is not None


@pytest.mark.parametrize("kind", [*LAYERS, *CELLS])
def test_copies_pickles_and_moves(kind: str) -> None:
    module = getattr(zt, kind)(I, H)
    x = torch.randn(N, I) if kind in CELLS else torch.randn(T, N, I)
    wanted = flat(module(x))
    saved = io.BytesIO()
    torch.save(module, saved)
    saved.seek(0)
    loaded = torch.load(saved, weights_only=False)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), loaded):
        assert_same(flat(other(x)), wanted, 0.0)
    wide = copy.deepcopy(module).double()
    assert flat(wide(x.double()))[0].dtype == torch.float64
    assert flat(module.to("meta")(x.to("meta")))[0].is_meta


def test_results_are_not_views_of_each_other() -> None:
    layer = zt.LSTM(I, H)
    with torch.no_grad():
        output, (h_n, c_n) = layer(torch.randn(T, N, I))
        kept = output.clone()
        h_n.zero_()
        c_n.zero_()
    assert torch.equal(output, kept)


def test_weights_may_be_parametrized_and_swapped() -> None:
    layer = zt.GRU(I, H)
    torch.nn.utils.parametrizations.weight_norm(layer, "weight_hh_l0")
    x = torch.randn(T, N, I)
    layer(x)[0].sum().backward()
    assert layer.parametrizations.weight_hh_l0.original1.grad is not None
    plain = zt.GRU(I, H)
    zeros = {name: torch.zeros_like(value) for name, value in plain.named_parameters()}
    assert not torch.func.functional_call(plain, zeros, (x,))[0].any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: zt.LSTM(I, 0), r"\[LSTM\] hidden_size: expected at least 1, got 0"),
        (
            lambda: zt.LSTM(I, H, proj_size=H),
            r"proj_size: expected 0 to hidden_size - 1 = 4, got 5",
        ),
        (
            lambda: zt.LSTM(I, H, proj_size=2, recurrent_dropout=0.5),
            "recurrent_dropout: expected 0",
        ),
        (lambda: zt.GRU(I, H, dropout=2), "dropout: expected a number from 0 to 1, got 2"),
        (lambda: zt.RNN(I, H, nonlinearity="gelu"), "nonlinearity: expected 'tanh' or 'relu'"),
        (lambda: zt.RNNCell(I, H, nonlinearity="gelu"), "nonlinearity: expected 'tanh' or 'relu'"),
        (lambda: zt.LSTM(I, H, activations=["tanh"]), "activations: expected 5 activations"),
        (lambda: zt.GRU(I, H, activations=["tanh", "tanh", "gelu"]), "expected one of none, relu"),
        (lambda: zt.RNN(I, H)(torch.zeros(T, N, I + 1)), r"\[RNN\] input: expected 3 features"),
        (lambda: zt.RNN(I, H)(torch.zeros(T)), r"\[RNN\] input: expected 2 axes"),
        (
            lambda: zt.LSTM(I, H)(torch.zeros(T, N, I), (torch.zeros(1, 1, H),) * 2),
            r"\[LSTM\] h_0: expected \[D·L,N,5\] = \[1,4,5\], got \[1,1,5\]",
        ),
        (
            lambda: zt.GRU(I, H)(torch.zeros(T, I), torch.zeros(1, 1, H)),
            r"\[GRU\] h_0: expected \[D·L,5\] = \[1,5\], got \[1,1,5\]",
        ),
        (lambda: zt.GRU(I, H, bidirectional=1), r"\[GRU\] bidirectional: expected a bool, got 1"),
        (lambda: zt.GRUCell(I, H)(torch.zeros(1, 1, I)), r"\[GRUCell\] input: expected 1 axis"),
    ],
)
def test_refusals(make: Any, message: str) -> None:
    with pytest.raises(zs.ZStateError, match=message):
        make()
