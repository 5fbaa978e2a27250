"""zstate.torch's modules against torch.nn's: weights, outputs, gradients, states, packed input."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import zstate as zs
import zstate.torch as zt
from zstate.torch.directions import recurrent_mask
from zstate.torch.sequences import WHOLE

T, N, I, H = 6, 4, 3, 5
LAYERS = ("RNN", "LSTM", "GRU")
CELLS = ("RNNCell", "LSTMCell", "GRUCell")
LENGTHS = torch.tensor([3, 6, 1, 5])
# num_layers, bidirectional, batch_first, bias
OPTIONS = list(product((1, 2), (False, True), (False, True), (True, False)))


def pair(kind: str, *args: Any, seed: int = 0, **options: Any) -> tuple[Any, Any]:
    """torch.nn's module and ours, made from the same seed."""
    torch.manual_seed(seed)
    theirs = getattr(torch.nn, kind)(*args, **options)
    torch.manual_seed(seed)
    return theirs, getattr(zt, kind)(*args, **options)


def states(kind: str, rows: int, wide: int = H, dtype: torch.dtype = torch.float64) -> Any:
    h = torch.randn(rows, N, wide, dtype=dtype)
    return (h, torch.randn(rows, N, H, dtype=dtype)) if kind == "LSTM" else h


def flat(value: Any) -> list[Tensor]:
    if isinstance(value, PackedSequence):
        return [value.data]
    if isinstance(value, Tensor):
        return [value]
    return [tensor for each in value for tensor in flat(each)]


def everything(module: Any, input: Any, hx: Any, leaves: list[Tensor], **more: Any) -> list[Tensor]:
    """The outputs, and the gradients of a loss that looks at all of them."""
    outputs = flat(module(input, hx, **more))
    loss = sum((output * torch.linspace(0.5, 1.5, output.numel(), dtype=output.dtype)
                .view(output.shape)).sin().sum() for output in outputs)  # fmt: skip
    return outputs + list(
        torch.autograd.grad(loss, [*leaves, *module.parameters()], retain_graph=True)
    )


def assert_same(ours: list[Tensor], theirs: list[Tensor], bound: float) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.shape == other.shape and mine.dtype == other.dtype
        torch.testing.assert_close(mine, other, rtol=bound, atol=bound)


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


# Lengths


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", LAYERS)
def test_lengths_like_packed(kind: str, layers: int, both: bool) -> None:
    theirs, ours = pair(kind, I, H, num_layers=layers, bidirectional=both, dtype=torch.float64)
    x = torch.randn(T, N, I, dtype=torch.float64, requires_grad=True)
    hx = states(kind, layers * (2 if both else 1))
    padded = x.detach().clone()
    for n, length in enumerate(LENGTHS):
        padded[length:, n] = torch.nan  # nobody may look at it
    padded.requires_grad_()
    packed = pack_padded_sequence(x, LENGTHS, enforce_sorted=False)
    for hidden in (None, hx):
        output, ends = theirs(packed, hidden)
        whole, _ = torch.nn.utils.rnn.pad_packed_sequence(output)
        wanted = [whole, *flat(ends)]
        found = flat(ours(padded, hidden, lengths=LENGTHS))
        assert_same(found, wanted, 1e-12)
        losses = [sum(t.sin().sum() for t in each) for each in (found, wanted)]
        mine = torch.autograd.grad(losses[0], [padded, *ours.parameters()])
        other = torch.autograd.grad(losses[1], [x, *theirs.parameters()], retain_graph=True)
        assert_same(list(mine), list(other), 1e-12)


@pytest.mark.parametrize("kind", LAYERS)
def test_a_sequence_of_length_zero_keeps_its_state(kind: str) -> None:
    _, ours = pair(kind, I, H, bidirectional=True, dtype=torch.float64)
    hx = states(kind, 2)
    x = torch.randn(T, N, I, dtype=torch.float64)
    output, ends = ours(x, hx, lengths=torch.tensor([0, 2, 6, 0]))
    assert not output[:, 0].any() and not output[2:, 1].any()
    for end, first in zip(flat(ends), flat(hx), strict=True):
        assert torch.equal(end[:, 0], first[:, 0]) and not torch.equal(end[:, 2], first[:, 2])


def test_padding_cannot_grow_without_bound() -> None:
    torch.manual_seed(0)
    layer = zt.RNN(I, H, nonlinearity="relu")
    with torch.no_grad():
        layer.weight_hh_l0.fill_(30.0)
    x = torch.randn(80, 2, I)
    output, h_n = layer(x, lengths=torch.tensor([2, 3]))
    (output.sum() + h_n.sum()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (torch.tensor([1, 2]), r"\[GRU\] lengths: expected \[N\] = \[4\], got \[2\]"),
        (torch.tensor([1, 2, 3, 7]), r"lengths: expected 0 to T = 6, got 7"),
        (torch.tensor([1, 2, 3, -1]), r"lengths: expected 0 to T = 6, got -1"),
        (torch.tensor([1.0, 2, 3, 4]), r"lengths: expected whole numbers, got torch.float32"),
    ],
)
def test_wrong_lengths(lengths: Tensor, message: str) -> None:
    with pytest.raises(zs.ZStateError, match=message):
        zt.GRU(I, H)(torch.randn(T, N, I), lengths=lengths)


# What torch.nn does not have


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


# Being a module


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
        (lambda: zt.GRU(I, H, dropout=2), "dropout: expected a number from 0 to 1, got 2.0"),
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
        (lambda: zt.GRUCell(I, H)(torch.zeros(1, 1, I)), r"\[GRUCell\] input: expected 1 axis"),
    ],
)
def test_refusals(make: Any, message: str) -> None:
    with pytest.raises(zs.ZStateError, match=message):
        make()


# replace and restore


class Tagger(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(20, I)
        self.layer = torch.nn.LSTM(I, H, num_layers=2, bidirectional=True, batch_first=True)
        self.cells = torch.nn.ModuleList([torch.nn.GRUCell(2 * H, H), torch.nn.RNNCell(H, H)])
        self.again = self.layer

    def forward(self, words: Tensor) -> Tensor:
        output, _ = self.layer(self.embedding(words))
        return torch.as_tensor(self.cells[1](self.cells[0](output[:, -1])))


def test_replace_and_restore() -> None:
    class Own(torch.nn.LSTM):
        pass

    model = Tagger()
    model.own = Own(I, H)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    words = torch.randint(20, (N, T))
    wanted = model(words)
    same, report = zt.replace(model)
    assert same is model and model.again is model.layer
    assert isinstance(model.layer, zt.LSTM) and isinstance(model.cells[0], zt.GRUCell)
    assert set(report.changed) == {"layer", "cells.0", "cells.1"}
    assert report.left == {"own": "Own is a subclass, which may compute something else"}
    assert "own: left alone" in str(report)
    torch.testing.assert_close(model(words), wanted)
    model(words).sum().backward()
    optimiser.step()  # it still holds the parameters that the model computes with
    changed = model(words)
    assert not torch.allclose(changed, wanted)
    _, back = zt.restore(model)
    assert type(model.layer) is torch.nn.LSTM and model.again is model.layer
    assert set(back.changed) == {"layer", "cells.0", "cells.1"} and not back.left
    torch.testing.assert_close(model(words), changed)


def test_replace_says_why_not() -> None:
    hooked, parametrized = torch.nn.GRU(I, H), torch.nn.GRU(I, H)
    hooked.register_forward_hook(lambda *_: None)
    torch.nn.utils.parametrizations.weight_norm(parametrized, "weight_hh_l0")
    model = torch.nn.ModuleDict({"hooked": hooked, "parametrized": parametrized})
    _, report = zt.replace(model)
    assert report.left["hooked"] == "it has hooks, which would be lost"
    assert "parametrized" in report.left and not report.changed
    ours = torch.nn.ModuleList(
        [zt.LSTM(I, H, peephole=True), zt.GRU(I, H, reset_after=False), zt.RNN(I, H),
         zt.LSTMCell(I, H, peephole=True)]
    )  # fmt: skip
    _, report = zt.restore(ours)
    assert report.left == {
        "0": "torch.nn has no peephole",
        "1": "torch.nn has no reset_after",
        "3": "torch.nn has no peephole",
    }
    alone, _ = zt.replace(torch.nn.LSTM(I, H, num_layers=2, proj_size=2, dropout=0.5))
    assert type(alone) is zt.LSTM and alone.dropout == 0.5 and alone.proj_size == 2
