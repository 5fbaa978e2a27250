"""Padded batches with lengths give what packed sequences give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

import zstate as zs
import zstate.torch as zt
from tests.torch.modules import LAYERS, LENGTHS, H, I, N, T, assert_same, flat, pair, states
from zstate import cells


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


@pytest.mark.parametrize("kept", [[0, 0, 0], [0, 3, 2]])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "uint32", "uint64"])
def test_lengths_of_any_integer_type(dtype: str, kept: list[int]) -> None:
    theirs, ours = pair("LSTM", I, H, bidirectional=True, dtype=torch.float64)
    x = torch.randn(T, 3, I, dtype=torch.float64, requires_grad=True)
    h, c = torch.randn(2, 2, 3, H, dtype=torch.float64)
    wanted = torch.zeros((), dtype=torch.float64)
    for n, length in enumerate(kept):
        if length:
            output, ends = theirs(x[:length, n], (h[:, n], c[:, n]))
            wanted = wanted + output.sin().sum() + ends[1].sin().sum()
        else:
            wanted = wanted + c[:, n].sin().sum() + 0 * x.sum()
    lengths = torch.tensor(kept).to(getattr(torch, dtype))

    def loss(x: Tensor) -> Tensor:
        output, ends = ours(x, (h, c), lengths=lengths)
        return output.sin().sum() + ends[1].sin().sum()

    for found in (loss(x), torch.func.vmap(loss)(x[None])[0]):
        torch.testing.assert_close(found, wanted)
        gradients = (torch.autograd.grad(each, x, retain_graph=True)[0] for each in (found, wanted))
        torch.testing.assert_close(*gradients)


@cells.cell(gates="z", states="h", steps="k")
def growing(x: Any, R: Any, h: Any, k: Any) -> Any:
    return k * h + x.z + R.z @ h / 100


def _growing_layer(kind: str, bidirectional: bool) -> Any:
    """A layer whose states grow threefold per step, at least."""
    if kind == "cell":
        return zt.Recurrent(growing, I, H, bidirectional=bidirectional)
    if kind == "rnn":
        layer: Any = zt.RNN(I, H, nonlinearity="relu", bidirectional=bidirectional)
        torch.nn.init.constant_(layer.weight_hh_l0, 30.0)
    else:
        layer = zt.LSTM(I, H, activations=["relu"] * 5, bidirectional=bidirectional)
        torch.nn.init.constant_(layer.bias_ih_l0, 4.0)  # of the forget gate, too
    return layer


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", ["rnn", "lstm", "cell"])
def test_padding_cannot_grow_without_bound(kind: str, bidirectional: bool) -> None:
    """Also in a transform, where lengths cannot be read and so the padding is computed."""
    torch.manual_seed(0)
    layer = _growing_layer(kind, bidirectional)
    x, lengths = torch.randn(400, 2, I), [2, 3]
    more: Any = {"steps": {"k": torch.full((1, 1), 3.0)}} if kind == "cell" else {}
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def run(given: tuple[Tensor, ...], *args: Any, **options: Any) -> Tensor:
        named = dict(zip(names, given, strict=True))
        output, ends = torch.func.functional_call(layer, named, args, options | more)
        return sum(each.sum() for each in (output, *flat(ends)))

    def padded(given: tuple[Tensor, ...]) -> Tensor:
        return run(given, x, lengths=torch.tensor(lengths))

    each = [run(parameters, x[:length, n]) for n, length in enumerate(lengths)]
    wanted = torch.autograd.grad(sum(each), parameters)
    found = torch.autograd.grad(padded(parameters), parameters)
    assert_same(list(found), list(wanted), 1e-4)
    assert_same(list(torch.func.grad(padded)(parameters)), list(wanted), 1e-4)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (torch.tensor([1, 2]), r"\[GRU\] lengths: expected \[N\] = \[4\], got \[2\]"),
        (torch.tensor([1, 2, 3, 7]), r"lengths: expected 0 to T = 6, got 7"),
        (torch.tensor([1, 2, 3, -1]), r"lengths: expected 0 to T = 6, got -1"),
        (torch.tensor([1.0, 2, 3, 4]), r"lengths: expected integers, got torch.float32"),
    ],
)
def test_wrong_lengths(lengths: Tensor, message: str) -> None:
    with pytest.raises(zs.ZStateError, match=message):
        zt.GRU(I, H)(torch.randn(T, N, I), lengths=lengths)
