"""Values per step in zt.Recurrent, against a loop of torch operations and the cell's own call."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import zstate as zs
import zstate.torch as zt
from zstate import cells

from .modules import LENGTHS, H, I, N, T, assert_same, flat


@cells.cell(gates="f z", states="h c", parameters="p", steps="k q")
def timed(x, R, h, c, p, k, q):
    """k decays c as time that has passed does; it is divided by, so 0 must not come up."""
    f = cells.sigmoid(x.f + R.f @ h + p * q)
    new = c / (1 + k) + f * cells.tanh(x.z + R.z @ (f * h)) / k
    return cells.tanh(new) + q * h, new


def step(p: dict[str, Tensor], x: Tensor, h: Tensor, c: Tensor, k: Tensor, q: Tensor) -> Any:
    x_f, x_z = (p["weight_ih"] @ x + p["bias"]).chunk(2)
    R_f, R_z = p["weight_hh"].chunk(2)
    f = (x_f + R_f @ h + p["p"] * q).sigmoid()
    new = c / (1 + k) + f * (x_z + R_z @ (f * h)).tanh() / k
    return new.tanh() + q * h, new


def plain(
    layer: Any, x: Tensor, states: Any, k: Tensor, q: Tensor, lengths: Sequence[int]
) -> list[Tensor]:
    """Output and last states, sequence by sequence; k and q [T,N,·]."""
    outputs, ends = [], []
    for n, length in enumerate(lengths):
        source, last = [x[t, n] for t in range(length)], []
        for row in range(layer.num_layers):
            both = []
            for d in range(layer.directions):
                suffix = f"_l{row}" + "_reverse" * d
                own = {
                    name.removesuffix(suffix): value
                    for name, value in layer.named_parameters()
                    if name.endswith(suffix)
                }
                h, c = (each[row * layer.directions + d, n] for each in states)
                steps = [x.new_zeros(0)] * length
                for t in range(length)[:: -1 if d else 1]:
                    h, c = step(own, source[t], h, c, k[t, n], q[t, n])
                    steps[t] = h
                both.append(steps)
                last.append([h, c])
            source = [torch.cat(parts) for parts in zip(*both, strict=True)]
        padding = [x.new_zeros(layer.directions * H)] * (T - length)
        outputs.append(torch.stack([*source, *padding]))
        ends.append(last)
    found = [torch.stack(outputs, 1)]
    for place in range(2):
        found.append(torch.stack([torch.stack([r[place] for r in last]) for last in ends], 1))
    return found


def made(**options: Any) -> Any:
    torch.manual_seed(3)
    layer = zt.Recurrent(timed, I, H, **{"dtype": torch.float64, **options})
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.6)
    return layer


class Given:
    """Inputs of a call, with gradients."""

    def __init__(self, layer: Any) -> None:
        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, dtype=torch.float64).requires_grad_()

        rows = layer.num_layers * layer.directions
        self.x, self.states = draw(T, N, I), (draw(rows, N, H), draw(rows, N, H))
        self.k = (torch.rand(T, N, H, dtype=torch.float64) + 0.5).requires_grad_()
        self.q = draw(N, 1)
        self.steps = {"k": self.k, "q": self.q}

    def compare(self, layer: Any, found: Any, lengths: Sequence[int] = (T,) * N) -> None:
        q = self.q.expand(T, N, 1)
        wanted = plain(layer, self.x, self.states, self.k, q, lengths)
        assert_same(flat(found), wanted, 1e-11)
        inputs = [self.x, *self.states, self.k, self.q, *layer.parameters()]
        pairs = [
            torch.autograd.grad(sum((r * (j + 1)).sin().sum() for j, r in enumerate(each)), inputs)
            for each in (flat(found), wanted)
        ]
        assert_same(list(pairs[0]), list(pairs[1]), 1e-10)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"bidirectional": True},
    {"num_layers": 2},
    {"num_layers": 3, "bidirectional": True},
]
EACH = pytest.mark.parametrize("options", OPTIONS, ids=str)


@EACH
def test_whole_sequences(options: dict[str, Any]) -> None:
    layer = made(**options)
    given = Given(layer)
    given.compare(layer, layer(given.x, given.states, steps=given.steps))


@pytest.mark.parametrize("lengths", [LENGTHS.tolist(), [0, 2, T, 0]], ids=str)
@EACH
def test_lengths(options: dict[str, Any], lengths: list[int]) -> None:
    """What stands past a sequence's end is not read, in the values either."""
    check_lengths(options, lengths, lambda layer: layer)


# One layer and several, one direction and both, each with both sets of lengths.
@pytest.mark.parametrize(
    ("options", "lengths"),
    zip(OPTIONS, ([0, 2, T, 0], LENGTHS.tolist(), LENGTHS.tolist(), [0, 2, T, 0]), strict=True),
    ids=str,
)
def test_lengths_in_a_compiled_graph(options: dict[str, Any], lengths: list[int]) -> None:
    torch._dynamo.reset()
    check_lengths(options, lengths, partial(torch.compile, fullgraph=True, backend="aot_eager"))


def check_lengths(
    options: dict[str, Any], lengths: list[int], way: Callable[[Any], Callable[..., Any]]
) -> None:
    layer = made(**options)
    given = Given(layer)
    past = torch.arange(T)[:, None] >= torch.tensor(lengths)
    steps = {**given.steps, "k": given.k.masked_fill(past[:, :, None], torch.nan)}
    found = way(layer)(given.x, given.states, torch.tensor(lengths), steps=steps)
    given.compare(layer, found, lengths)


@pytest.mark.parametrize("batch_first", [False, True])
@EACH
def test_packed_sequences(options: dict[str, Any], batch_first: bool) -> None:
    layer = made(**options, batch_first=batch_first)
    given = Given(layer)
    packed = pack_padded_sequence(given.x, LENGTHS, enforce_sorted=False)
    steps = given.steps
    if batch_first:
        steps = {"k": given.k.transpose(0, 1), "q": given.q.unsqueeze(1)}
    output, ends = layer(packed, given.states, steps=steps)
    found = pad_packed_sequence(output, total_length=T)[0]
    given.compare(layer, (found, ends), LENGTHS.tolist())


def test_batch_first_and_one_sequence_alone() -> None:
    layer = made(batch_first=True, bidirectional=True)
    given = Given(layer)
    steps = {"k": given.k.transpose(0, 1), "q": given.q.unsqueeze(1)}
    output, ends = layer(given.x.transpose(0, 1), given.states, LENGTHS, steps=steps)
    given.compare(layer, (output.transpose(0, 1), ends), LENGTHS.tolist())
    with torch.no_grad():
        steps = {"k": given.k[:, 1], "q": given.q[1]}
        alone, _ = layer(given.x[:, 1], tuple(s[:, 1] for s in given.states), 6, steps=steps)
        torch.testing.assert_close(alone, output[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_like_a_call_of_the_cell(bidirectional: bool) -> None:
    """On NumPy arrays, where the directions lie beside each other."""
    layer = made(bidirectional=bidirectional)
    given = Given(layer)
    D = layer.directions
    suffixes = ["_l0", "_l0_reverse"][:D]

    def joined(name: str, join: Callable[..., Tensor] = torch.cat) -> Any:
        parts = [getattr(layer, name + suffix).detach() for suffix in suffixes]
        return (parts[0] if D == 1 else join(parts)).numpy()

    arrays = {name: state.detach() for name, state in zip("hc", given.states, strict=True)}
    out = timed(
        given.x.detach().numpy(),
        joined("weight_hh", torch.stack),
        input_weight=joined("weight_ih"),
        bias=joined("bias"),
        p=joined("p"),
        **{f"init_{n}": torch.cat(list(a), -1).numpy() for n, a in arrays.items()},
        k=torch.cat([given.k.detach()] * D, -1).numpy(),
        q=given.q.detach().numpy(),
        bidirectional=bidirectional,
    )
    found, _ = layer(given.x, given.states, steps=given.steps)
    torch.testing.assert_close(found.detach(), torch.from_numpy(out.h), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("heads", [2, 6])
def test_heads_and_resets(heads: int) -> None:
    layer = zt.Recurrent(timed, I, 6, heads=heads, dtype=torch.float64)
    x = torch.randn(T, N, I, dtype=torch.float64)
    k = torch.rand(T, N, 1, dtype=torch.float64) + 0.5
    resets = torch.zeros(T, N, dtype=torch.bool)
    resets[3] = True
    whole = layer(x, resets=resets, steps={"k": k, "q": torch.ones(1)})[0]
    for part in (slice(0, 3), slice(3, T)):
        alone = layer(x[part], steps={"k": k[part], "q": torch.ones(1)})[0]
        torch.testing.assert_close(whole[part], alone, rtol=1e-12, atol=1e-12)


def test_with_zoneout() -> None:
    layer = made(zoneout={"c": 0.25}).eval()
    given = Given(layer)
    h, c = (each[0] for each in given.states)
    own = {name.removesuffix("_l0"): value for name, value in layer.named_parameters()}
    outputs = []
    for t in range(T):
        rows = [step(own, given.x[t, n], h[n], c[n], given.k[t, n], given.q[n]) for n in range(N)]
        h, new = (torch.stack(each) for each in zip(*rows, strict=True))
        c = 0.25 * c + 0.75 * new
        outputs.append(h)
    found = layer(given.x, given.states, steps=given.steps)
    assert_same(flat(found), [torch.stack(outputs), h[None], c[None]], 1e-12)
    layer.train()
    assert not torch.equal(layer(given.x, given.states, steps=given.steps)[0], found[0])


def test_whole_numbers_and_other_types() -> None:
    layer = made().float()
    x, k = torch.randn(T, N, I), torch.randint(1, 4, (T, N, 1))
    wanted = layer(x, steps={"k": k.float(), "q": torch.ones(1)})[0]
    found = layer(x, lengths=[T] * N, steps={"k": k, "q": torch.ones(1, dtype=torch.bool)})[0]
    torch.testing.assert_close(found, wanted)
    assert layer.bfloat16()(x.bfloat16(), steps={"k": k, "q": k})[0].dtype is torch.bfloat16


def test_derivatives_of_any_order() -> None:
    layer = made(bidirectional=True)
    x = torch.randn(3, 2, I, dtype=torch.float64, requires_grad=True)
    k = (torch.rand(3, 2, H, dtype=torch.float64) + 0.5).requires_grad_()
    q = torch.randn(1, dtype=torch.float64, requires_grad=True)

    def function(x: Tensor, k: Tensor, q: Tensor) -> Any:
        return layer(x, steps={"k": k, "q": q})[0]

    assert torch.autograd.gradcheck(function, (x, k, q), fast_mode=True)
    assert torch.autograd.gradgradcheck(function, (x, k, q), fast_mode=True)


X = torch.randn(T, N, I)
ONE = torch.ones(1)
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "none": (
        lambda: zt.Recurrent(timed, I, H)(X),
        "[Recurrent] steps['k']: expected a tensor that broadcasts to [T,N,H], a value per step, "
        "got None",
    ),
    "complex": (
        lambda: zt.Recurrent(timed, I, H)(X, steps={"k": ONE + 1j, "q": ONE}),
        "[Recurrent] steps['k']: expected real numbers, got complex64",
    ),
    "one of two": (
        lambda: zt.Recurrent(timed, I, H)(X, steps={"k": ONE}),
        "[Recurrent] steps['q']: expected a tensor that broadcasts to",
    ),
    "no mapping": (
        lambda: zt.Recurrent(timed, I, H)(X, steps=ONE),
        "[Recurrent] steps: expected tensors by name, got torch.Tensor",
    ),
    "no tensor": (
        lambda: zt.Recurrent(timed, I, H)(X, steps={"k": 1.0, "q": ONE}),
        "[Recurrent] steps['k']: expected a torch tensor, got float",
    ),
    "another name": (
        lambda: zt.Recurrent(timed, I, H)(X, steps={"k": ONE, "q": ONE, "r": ONE}),
        "[Recurrent] steps: expected names among k, q, got 'r'",
    ),
    "a cell without": (
        lambda: zt.Recurrent(cells.mgu, I, H)(X, steps={"k": ONE}),
        "[Recurrent] steps: expected none: the cell has none, got 'k'",
    ),
    "both directions": (
        lambda: zt.Recurrent(timed, I, H, bidirectional=True)(
            X, steps={"k": torch.ones(T, N, 2 * H), "q": ONE}
        ),
        "[Recurrent] steps['k']: expected a shape that broadcasts to [T,N,H] = [6,4,5], got "
        "[6,4,10]",
    ),
    "batch first": (
        lambda: zt.Recurrent(timed, I, H, batch_first=True)(
            X.transpose(0, 1), steps={"k": torch.ones(T, N, 1), "q": ONE}
        ),
        "expected a shape that broadcasts to [N,T,H] = [4,6,5], got [6,4,1]",
    ),
    "another device": (
        lambda: zt.Recurrent(timed, I, H)(X, steps={"k": ONE.to("meta"), "q": ONE}),
        "[Recurrent] steps['k']: expected a tensor on cpu like source, got one on meta",
    ),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refusals(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(zs.ZStateError, match=re.escape(message)):
        call()
