"""zstate.torch's modules against torch.nn's: weights, outputs, gradients, states, packed input."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

from tests.torch.modules import CELLS, LAYERS, LENGTHS, H, I, N, T, assert_same, flat, pair, states

# num_layers, bidirectional, batch_first, bias
OPTIONS = list(product((1, 2), (False, True), (False, True), (True, False)))


def everything(module: Any, input: Any, hx: Any, leaves: list[Tensor], **more: Any) -> list[Tensor]:
    """The outputs, and the gradients of a loss that looks at all of them."""
    outputs = flat(module(input, hx, **more))
    loss = sum((output * torch.linspace(0.5, 1.5, output.numel(), dtype=output.dtype)
                .view(output.shape)).sin().sum() for output in outputs)  # fmt: skip
    return outputs + list(
        torch.autograd.grad(loss, [*leaves, *module.parameters()], retain_graph=True)
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("layers", "both", "batch_first", "bias"), OPTIONS)
@pytest.mark.parametrize("kind", LAYERS)
def test_layers_like_torch_nn(
    kind: str, layers: int, both: bool, batch_first: bool, bias: bool, dtype: torch.dtype
) -> None:
    """The same seed gives the same weights, outputs and gradients; padded, packed, one sequence."""
    bound = 1e-12 if dtype == torch.float64 else 1e-5
    theirs, ours = pair(
        kind,
        *(I, H),
        num_layers=layers,
        bidirectional=both,
        batch_first=batch_first,
        bias=bias,
        dtype=dtype,
    )
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other)
    assert repr(ours) == repr(theirs)
    hx = states(kind, layers * (2 if both else 1), dtype=dtype)
    x = torch.randn((N, T, I) if batch_first else (T, N, I), dtype=dtype, requires_grad=True)
    packed = pack_padded_sequence(x, LENGTHS, batch_first, enforce_sorted=False)
    for input in (x, packed):
        for hidden in (None, hx):
            found = everything(ours, input, hidden, [x])
            assert_same(found, everything(theirs, input, hidden, [x]), bound)
    one = x[0] if batch_first else x[:, 0]
    alone = (hx[0][:, 0], hx[1][:, 0]) if kind == "LSTM" else hx[:, 0]
    for hidden in (None, alone):
        found = everything(ours, one, hidden, [x])
        assert_same(found, everything(theirs, one, hidden, [x]), bound)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_projections_like_torch_nn(layers: int, both: bool, bias: bool) -> None:
    options = {"num_layers": layers, "bidirectional": both, "bias": bias, "proj_size": 2}
    theirs, ours = pair("LSTM", I, H, **options, dtype=torch.float64)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    x = torch.randn(T, N, I, dtype=torch.float64, requires_grad=True)
    packed = pack_padded_sequence(x, LENGTHS, enforce_sorted=False)
    hx = states("LSTM", layers * (2 if both else 1), wide=2)
    for input in (x, packed):
        for hidden in (None, hx):
            found = everything(ours, input, hidden, [x])
            assert_same(found, everything(theirs, input, hidden, [x]), 1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", CELLS)
def test_cells_like_torch_nn(kind: str, bias: bool, dtype: torch.dtype) -> None:
    theirs, ours = pair(kind, I, H, bias=bias, dtype=dtype)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert repr(ours) == repr(theirs)
    x = torch.randn(N, I, dtype=dtype, requires_grad=True)
    h = torch.randn(N, H, dtype=dtype)
    hx: Any = (h, h.flip(0)) if kind == "LSTMCell" else h
    bound = 1e-12 if dtype == torch.float64 else 1e-5
    for hidden in (None, hx):
        assert_same(everything(ours, x, hidden, [x]), everything(theirs, x, hidden, [x]), bound)
    alone: Any = (h[0], h[1]) if kind == "LSTMCell" else h[0]
    found = everything(ours, x[0], alone, [x])
    assert_same(found, everything(theirs, x[0], alone, [x]), bound)


@pytest.mark.parametrize("kind", [*LAYERS, *CELLS])
def test_state_dicts_go_both_ways(kind: str) -> None:
    more = {"num_layers": 2, "bidirectional": True} if kind in LAYERS else {}
    theirs, ours = pair(kind, I, H, **more)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    ours.load_state_dict(theirs.state_dict())
    back = type(theirs)(I, H, **more)
    back.load_state_dict(ours.state_dict())
    for name, value in back.state_dict().items():
        assert torch.equal(value, theirs.state_dict()[name])


@pytest.mark.parametrize("kind", LAYERS)
def test_dropout_between_layers_like_torch_nn(kind: str) -> None:
    theirs, ours = pair(kind, I, H, num_layers=3, dropout=0.5)
    x = torch.randn(T, N, I)
    torch.manual_seed(5)
    wanted = theirs(x)[0]
    torch.manual_seed(5)
    torch.testing.assert_close(ours(x)[0], wanted)
    packed = pack_padded_sequence(x, LENGTHS, enforce_sorted=False)
    torch.manual_seed(5)
    wanted = theirs(packed)[0].data
    torch.manual_seed(5)
    torch.testing.assert_close(ours(packed)[0].data, wanted)
    torch.testing.assert_close(ours.eval()(x)[0], theirs.eval()(x)[0])
