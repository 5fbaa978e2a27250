"""The options that torch.nn does not have, and the derivatives of every option."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import zstate as zs
import zstate.torch as zt
from tests.torch.modules import LAYERS, H, I, N, T, assert_same, flat
from zstate.torch.one_call import recurrent_mask
from zstate.torch.sequences.whole import WHOLE


def test_peepholes() -> None:
    """Every gate sees c[t-1]; without peepholes the same seed gives torch.nn's weights."""
    torch.manual_seed(0)
    layer = zt.LSTM(I, H, bidirectional=True, peephole=True, return_cells=True)
    torch.manual_seed(0)
    plain = torch.nn.LSTM(I, H, bidirectional=True)
    for name, value in plain.state_dict().items():
        assert torch.equal(layer.state_dict()[name], value)
    assert layer.peephole_l0_reverse.shape == (4 * H,)
    x = torch.randn(T, N, I)
    output, (h_n, c_n), cells = layer(x)
    wanted = zs.lstm(
        x,
        torch.stack([layer.weight_hh_l0, layer.weight_hh_l0_reverse]),
        input_weight=torch.cat([layer.weight_ih_l0, layer.weight_ih_l0_reverse]),
        bias=torch.cat(
            [
                layer.bias_ih_l0 + layer.bias_hh_l0,
                layer.bias_ih_l0_reverse + layer.bias_hh_l0_reverse,
            ]
        ),
        peephole=torch.stack([layer.peephole_l0, layer.peephole_l0_reverse]),
        descriptor=zs.LSTMDescriptor(bidirectional=True, produce_cell=True),
    )
    assert torch.equal(output, wanted.state) and torch.equal(cells, wanted.cell)
    assert torch.equal(c_n[0], cells[-1, :, :H]) and torch.equal(c_n[1], cells[0, :, H:])
    (found,) = torch.autograd.grad(cells.sum() + h_n.sum(), layer.peephole_l0)
    assert found.abs().sum() > 0
    limited = layer(x, lengths=torch.full((N,), T))
    assert_same(flat(limited), flat((output, (h_n, c_n), cells)), 1e-6)


def test_peepholes_on_the_new_cell() -> None:
    """A layer and a cell are the operation with that option; the weights do not change."""
    options = {"peephole": True, "peephole_on_new_cell": True}
    layer = zt.LSTM(I, H, **options)
    assert repr(layer) == f"LSTM({I}, {H}, peephole=True, peephole_on_new_cell=True)"
    x = torch.randn(T, N, I)
    wanted = zs.lstm(
        x,
        layer.weight_hh_l0,
        input_weight=layer.weight_ih_l0,
        bias=layer.bias_ih_l0 + layer.bias_hh_l0,
        peephole=layer.peephole_l0,
        descriptor=zs.LSTMDescriptor(peephole_on_new_cell=True),
    ).state
    assert torch.equal(layer(x)[0], wanted)
    old = zt.LSTM(I, H, peephole=True)
    old.load_state_dict(layer.state_dict())
    assert not torch.allclose(old(x)[0], wanted)
    cell = zt.LSTMCell(I, H, **options)
    assert repr(cell) == f"LSTMCell({I}, {H}, peephole=True, peephole_on_new_cell=True)"
    cell.load_state_dict({k.removesuffix("_l0"): v for k, v in layer.state_dict().items()})
    state = None
    for t in range(T):
        state = cell(x[t], state)
        torch.testing.assert_close(state[0], wanted[t])


@pytest.mark.parametrize("per_step", [False, True])
@pytest.mark.parametrize("kind", LAYERS)
def test_recurrent_dropout(kind: str, per_step: bool) -> None:
    options = {"recurrent_dropout": 0.5, "recurrent_dropout_per_step": per_step}
    layer = getattr(zt, kind)(I, 16, num_layers=2, bidirectional=True, **options)
    plain = getattr(torch.nn, kind)(I, 16, num_layers=2, bidirectional=True)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(T, N, I)
    torch.testing.assert_close(layer.eval()(x)[0], plain(x)[0])
    layer.train()
    torch.manual_seed(3)
    first = layer(x)[0]
    assert not torch.equal(layer(x)[0], first)
    torch.manual_seed(3)
    assert torch.equal(layer(x)[0], first)
    assert not torch.allclose(first, plain(x)[0])
    mask = recurrent_mask(layer, x, WHOLE, 1)
    assert mask is not None and mask.shape == (T if per_step else 1, N, 16)
    assert set(mask.unique().tolist()) == {0.0, 2.0}


def test_recurrent_dropout_of_everything_leaves_the_input() -> None:
    layer = zt.RNN(I, H, recurrent_dropout=1.0)
    x = torch.randn(T, N, I)
    wanted = torch.tanh(
        torch.nn.functional.linear(x, layer.weight_ih_l0, layer.bias_ih_l0 + layer.bias_hh_l0)
    )
    torch.testing.assert_close(layer(x)[0], wanted)


def test_activations_by_name_and_by_position() -> None:
    x = torch.randn(T, N, I)
    torch.manual_seed(0)
    by_name = zt.LSTM(I, H, activations={"activation": "relu", "cell_gate_activation": "none"})
    torch.manual_seed(0)
    by_place = zt.LSTM(
        I, H, activations=("sigmoid", "sigmoid", zs.Activation.NONE, "sigmoid", "relu")
    )
    torch.manual_seed(0)
    usual = zt.LSTM(I, H)
    assert torch.equal(by_name(x)[0], by_place(x)[0])
    assert not torch.equal(by_name(x)[0], usual(x)[0])
    torch.manual_seed(0)
    relu = zt.RNN(I, H, activations=["relu"])
    torch.manual_seed(0)
    assert torch.equal(relu(x)[0], zt.RNN(I, H, nonlinearity="relu")(x)[0])


def test_reset_in_front_of_the_product() -> None:
    layer = zt.GRU(I, H, reset_after=False, dtype=torch.float64)
    x = torch.randn(T, N, I, dtype=torch.float64)
    h = torch.zeros(N, H, dtype=torch.float64)
    p = dict(layer.named_parameters())
    for t in range(T):
        gx = x[t] @ p["weight_ih_l0"].T + p["bias_ih_l0"] + p["bias_hh_l0"]
        r, z = (
            torch.sigmoid(gx[:, k * H : (k + 1) * H] + h @ p["weight_hh_l0"][k * H : (k + 1) * H].T)
            for k in range(2)
        )
        n = torch.tanh(gx[:, 2 * H :] + (h * r) @ p["weight_hh_l0"][2 * H :].T)
        h = z * h + (1 - z) * n
    torch.testing.assert_close(layer(x)[0][-1], h)


VARIANTS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("RNN", {}, {}),
    ("RNN", {"num_layers": 2, "bidirectional": True, "bias": False}, {}),
    ("RNN", {"activations": ["sigmoid"]}, {"lengths": torch.tensor([3, 1])}),
    ("LSTM", {}, {}),
    ("LSTM", {"peephole": True, "return_cells": True}, {}),
    ("LSTM", {"bidirectional": True, "peephole": True}, {"lengths": torch.tensor([2, 3])}),
    ("LSTM", {"peephole": True, "peephole_on_new_cell": True, "return_cells": True}, {}),
    (
        "LSTM",
        {"bidirectional": True, "peephole": True, "peephole_on_new_cell": True},
        {"lengths": torch.tensor([3, 2])},
    ),
    ("LSTM", {"proj_size": 1, "num_layers": 2}, {}),
    ("LSTM", {"proj_size": 1, "bidirectional": True}, {"lengths": torch.tensor([1, 3])}),
    ("LSTM", {"activations": {"activation": "sigmoid"}, "batch_first": True}, {}),
    ("GRU", {}, {}),
    ("GRU", {"num_layers": 2, "bidirectional": True}, {"lengths": torch.tensor([3, 2])}),
    ("GRU", {"reset_after": False, "bidirectional": True}, {}),
]


@pytest.mark.parametrize(("kind", "options", "call"), VARIANTS)
def test_derivatives_of_every_option(
    kind: str, options: dict[str, Any], call: dict[str, Any]
) -> None:
    torch.manual_seed(2)
    layer = getattr(zt, kind)(2, 2, **options, dtype=torch.float64)
    names = [name for name, _ in layer.named_parameters()]
    shape = (2, 3, 2) if options.get("batch_first") else (3, 2, 2)
    rows = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    h = torch.randn(rows, 2, options.get("proj_size", 2), dtype=torch.float64, requires_grad=True)
    c = torch.randn(rows, 2, 2, dtype=torch.float64, requires_grad=True)

    def function(x: Tensor, h: Tensor, c: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(names, parameters, strict=True))
        hx = (h, c) if kind == "LSTM" else h
        return tuple(flat(torch.func.functional_call(layer, named, (x, hx), call)))

    inputs = (x, h, c if kind == "LSTM" else c.detach(), *layer.parameters())
    assert gradcheck(function, inputs, fast_mode=True)
    assert gradgradcheck(function, inputs, fast_mode=True)
