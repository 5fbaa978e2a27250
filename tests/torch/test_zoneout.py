"""zoneout and clip of the layers, against a loop of torch operations that is written out here."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import dropout
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import zstate as zs
import zstate.convert as zc
import zstate.onnx
import zstate.torch as zt
from tests.covering import covering
from zstate import cells
from zstate.torch import one_call, step_values

from .modules import LENGTHS, H, I, N, T, assert_same, flat

Cut = Callable[[str, Tensor], Tensor]  # a state's new value within its bounds


def lstm_step(p: dict[str, Tensor], x: Tensor, h: Tensor, m: Tensor, s: Any, cut: Cut) -> Any:
    a = p["weight_ih"] @ x + p["bias_ih"] + p["weight_hh"] @ (h * m) + p["bias_hh"]
    i, f, z, o = a.chunk(4)
    p_i, p_f, p_z, p_o = p.get("peephole", torch.zeros_like(a)).chunk(4)
    c = s["c"]
    inner = f.sigmoid() if not p_f.any() else (f + p_f * c).sigmoid()
    new = cut("c", inner * c + (i + p_i * c).sigmoid() * (z + p_z * c).tanh())
    seen = new if "on_new_cell" in p else c
    return {"h": cut("h", (o + p_o * seen).sigmoid() * new.tanh()), "c": new}


def gru_step(p: dict[str, Tensor], x: Tensor, h: Tensor, m: Tensor, s: Any, cut: Cut) -> Any:
    x_r, x_z, x_n = (p["weight_ih"] @ x + p["bias_ih"]).chunk(3)
    R_r, R_z, R_n = p["weight_hh"].chunk(3)
    b_r, b_z, b_n = p["bias_hh"].chunk(3)
    r, z = (x_r + R_r @ (h * m) + b_r).sigmoid(), (x_z + R_z @ (h * m) + b_z).sigmoid()
    if "reset_before" in p:
        n = (x_n + R_n @ (r * h * m) + b_n).tanh()
    else:
        n = (x_n + r * (R_n @ (h * m) + b_n)).tanh()
    return {"h": cut("h", z * h + (1 - z) * n)}


def rnn_step(p: dict[str, Tensor], x: Tensor, h: Tensor, m: Tensor, s: Any, cut: Cut) -> Any:
    a = p["weight_ih"] @ x + p["bias_ih"] + p["weight_hh"] @ (h * m) + p["bias_hh"]
    return {"h": cut("h", a.tanh())}


def cifg_step(p: dict[str, Tensor], x: Tensor, h: Tensor, m: Tensor, s: Any, cut: Cut) -> Any:
    f, z, o = (p["weight_ih"] @ x + p["bias"] + p["weight_hh"] @ h).chunk(3)
    new = cut("c", f.sigmoid() * s["c"] + (1 - f.sigmoid()) * z.tanh())
    return {"h": cut("h", o.sigmoid() * new.tanh()), "c": new}


@cells.cell(gates="a b", states="u v", parameters="k", initial={"v": 0.5})
def two(x, R, u, v, k):
    """A state that becomes another's old value, and one whose new value the other reads."""
    new = k * u + cells.tanh(x.a + R.a @ u)
    return new * cells.sigmoid(x.b + R.b @ (v * new)), u


def two_step(p: dict[str, Tensor], x: Tensor, h: Tensor, m: Tensor, s: Any, cut: Cut) -> Any:
    x_a, x_b = (p["weight_ih"] @ x + p["bias"]).chunk(2)
    R_a, R_b = p["weight_hh"].chunk(2)
    new = p["k"] * h + (x_a + R_a @ h).tanh()
    return {"u": cut("u", new * (x_b + R_b @ (s["v"] * new)).sigmoid()), "v": cut("v", h)}


class Kind(NamedTuple):
    make: Callable[..., Any]
    step: Callable[..., Any]
    begins: dict[str, float]  # by state


KINDS = {
    "LSTM": Kind(zt.LSTM, lstm_step, {"h": 0.0, "c": 0.0}),
    "GRU": Kind(zt.GRU, gru_step, {"h": 0.0}),
    "RNN": Kind(zt.RNN, rnn_step, {"h": 0.0}),
    "cifg": Kind(lambda *a, **o: zt.Recurrent(cells.cifg, *a, **o), cifg_step, {"h": 0, "c": 0}),
    "two": Kind(lambda *a, **o: zt.Recurrent(two, *a, **o), two_step, {"u": 0.0, "v": 0.5}),
}
EACH = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


def made(kind: Kind, **options: Any) -> Any:
    """A module with larger weights than the usual ones, so that every term counts."""
    torch.manual_seed(7)
    layer = kind.make(I, H, **{"dtype": torch.float64, **options})
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.7)
    return layer


def parameters(layer: Any, suffix: str) -> dict[str, Tensor]:
    """Of one direction, without its suffix, and marks for options that change the equations."""
    found = {
        name.removesuffix(suffix): value
        for name, value in layer.named_parameters()
        if name.endswith(suffix)
    }
    if getattr(layer, "peephole_on_new_cell", False):
        found["on_new_cell"] = torch.ones(1)
    if isinstance(layer, zt.GRU) and not layer.reset_after:
        found["reset_before"] = torch.ones(1)
    return found


Keep = Callable[[str, int, int, int, int], Any]  # state, layer, direction, step, sequence


def plain(
    kind: Kind,
    layer: Any,
    x: Tensor,
    states: Sequence[Tensor],
    keep: Keep,
    lengths: Sequence[int] = (T,) * N,
    bounds: dict[str, float] | None = None,
    resets: Tensor | None = None,
    mask: Callable[[int, int, int], Tensor] | None = None,
) -> list[Tensor]:
    """Output and last states, sequence by sequence and step by step.

    ``keep`` is 1 where a unit keeps its old value, 0 where it takes the new one, or between them.
    """
    D = layer.directions

    def cut(symbol: str, value: Tensor) -> Tensor:
        bound = (bounds or {}).get(symbol)
        return value if bound is None else value.clamp(-bound, bound)

    outputs, ends = [], []
    for n, length in enumerate(lengths):
        source, last = [x[t, n] for t in range(length)], []
        for row in range(layer.num_layers):
            both = []
            for d in range(D):
                own = parameters(layer, f"_l{row}" + "_reverse" * d)
                project = own.get("weight_hr")
                now = {s: states[k][row * D + d, n] for k, s in enumerate(kind.begins)}
                first = next(iter(now))
                steps = [x.new_zeros(0)] * length
                for t in range(length)[:: -1 if d else 1]:
                    begins = t + 1 if d else t
                    if resets is not None and begins < length and bool(resets[begins, n]):
                        sizes = {s: value.shape for s, value in now.items()}
                        now = {s: x.new_full(sizes[s], b) for s, b in kind.begins.items()}
                    m = torch.ones(1) if mask is None else mask(row, d, n)
                    new = kind.step(own, source[t], now[first], m, now, cut)
                    if project is not None:
                        new[first] = project @ new[first]
                    kept = {s: keep(s, row, d, t, n) for s in now}
                    now = {s: kept[s] * now[s] + (1 - kept[s]) * new[s] for s in now}
                    steps[t] = now[first]
                both.append(steps)
                last.append(list(now.values()))
            source = [torch.cat(parts) for parts in zip(*both, strict=True)]
        width = D * (layer.proj_size or layer.hidden_size)
        outputs.append(torch.stack([*source, *[x.new_zeros(width)] * (len(x) - length)]))
        ends.append(last)
    found = [torch.stack(outputs, 1)]
    for place in range(len(kind.begins)):
        found.append(torch.stack([torch.stack([r[place] for r in last]) for last in ends], 1))
    return found


def some_states(kind: Kind, layer: Any) -> tuple[Tensor, ...]:
    rows, widths = layer.num_layers * layer.directions, [layer.hidden_size] * len(kind.begins)
    widths[0] = layer.proj_size or widths[0]
    made = [torch.randn(rows, N, width, dtype=torch.float64) for width in widths]
    return tuple(each.requires_grad_() for each in made)


def gradients(results: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    loss = sum((each * (k + 1)).sin().sum() for k, each in enumerate(results))
    return list(torch.autograd.grad(loss, list(inputs), materialize_grads=True, allow_unused=True))


def compare(layer: Any, x: Tensor, states: Any, found: Any, wanted: list[Tensor]) -> None:
    assert_same(flat(found), wanted, 1e-11)
    inputs = [x, *states, *layer.parameters()]
    assert_same(gradients(flat(found), inputs), gradients(wanted, inputs), 1e-10)


def as_given(states: tuple[Tensor, ...]) -> Any:
    return states[0] if len(states) == 1 else states


class Recorder:
    """Stands in for dropout: lets torch draw, and remembers what came."""

    def __init__(self) -> None:
        self.draws: list[Tensor] = []

    def __call__(self, ones: Tensor, p: float) -> Tensor:
        self.draws.append(dropout(ones, p))
        return self.draws[-1]

    def keep(self, kind: Kind, layer: Any, lengths: Sequence[int] | None = None) -> Keep:
        """Draws come layer by layer and state by state, both directions beside each other; rows of
        sequences of different lengths as in a PackedSequence."""
        states = [s for s, _ in layer.changes.zoneout]
        assert len(self.draws) == layer.num_layers * len(states)
        place = {}
        if lengths is not None:
            order = sorted(range(N), key=lambda n: -lengths[n])
            rows = [(t, n) for t in range(max(lengths)) for n in order if t < lengths[n]]
            place = {where: row for row, where in enumerate(rows)}

        def keep(state: str, row: int, d: int, t: int, n: int) -> Any:
            if state not in states:
                return 0.0
            draw = self.draws[row * len(states) + states.index(state)]
            unit = draw[t, n] if lengths is None else draw[place[t, n]]
            return (unit.chunk(layer.directions)[d] == 0).to(unit.dtype)

        return keep


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    found = Recorder()
    monkeypatch.setattr(step_values, "dropout", found)
    return found


def source(batch: int = N) -> Tensor:
    return torch.randn(T, batch, I, dtype=torch.float64, requires_grad=True)


OPTIONS: list[dict[str, Any]] = [{}, {"num_layers": 2}, {"num_layers": 2, "bidirectional": True}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@EACH
def test_training(kind: Kind, options: dict[str, Any], recorder: Recorder) -> None:
    layer = made(kind, zoneout=0.4, **options)
    x, states = source(), some_states(kind, layer)
    found = layer(x, as_given(states))
    kept = torch.cat([draw.flatten() == 0 for draw in recorder.draws])
    assert kept.any() and not kept.all()
    compare(layer, x, states, found, plain(kind, layer, x, states, recorder.keep(kind, layer)))


@pytest.mark.parametrize("lengths", [LENGTHS.tolist(), [2, T, 4, 4]], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@EACH
def test_lengths_and_packed_sequences(
    kind: Kind, options: dict[str, Any], lengths: list[int], recorder: Recorder
) -> None:
    layer = made(kind, zoneout=0.4, **options)
    x, states = source(), some_states(kind, layer)
    found = layer(x, as_given(states), lengths)
    keep = recorder.keep(kind, layer, lengths)
    compare(layer, x, states, found, plain(kind, layer, x, states, keep, lengths))
    recorder.draws.clear()
    packed = pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False)
    output, ends = layer(packed, as_given(states))
    keep = recorder.keep(kind, layer, lengths)
    unpacked = pad_packed_sequence(output, total_length=T)[0]
    compare(layer, x, states, (unpacked, ends), plain(kind, layer, x, states, keep, lengths))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@EACH
def test_evaluation_takes_the_expectation(kind: Kind, options: dict[str, Any]) -> None:
    chances = dict(zip(kind.begins, (0.3, 0.6), strict=False))
    layer = made(kind, zoneout=chances, **options).eval()
    x, states = source(), some_states(kind, layer)
    for lengths in ([T] * N, LENGTHS.tolist()):
        found = layer(x, as_given(states), lengths)
        wanted = plain(kind, layer, x, states, lambda s, *_: chances[s], lengths)
        compare(layer, x, states, found, wanted)


@EACH
def test_some_states_alone(kind: Kind, recorder: Recorder) -> None:
    last = list(kind.begins)[-1]
    layer = made(kind, zoneout={last: 0.5}, bidirectional=True)
    x, states = source(), some_states(kind, layer)
    found = layer(x, as_given(states))
    compare(layer, x, states, found, plain(kind, layer, x, states, recorder.keep(kind, layer)))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@EACH
def test_clipping(kind: Kind, options: dict[str, Any], training: bool, recorder: Recorder) -> None:
    """With a bound that cuts many values, whose gradient ends there."""
    bound = 0.25
    layer = made(kind, clip=bound, **options).train(training)
    clipped = "c" if "c" in kind.begins else next(iter(kind.begins))
    x, states = source(), some_states(kind, layer)
    wanted = plain(kind, layer, x, states, lambda *_: 0.0, bounds={clipped: bound})
    ends = wanted[1 + list(kind.begins).index(clipped)]
    assert 0 < int((ends.abs() == bound).sum()) < ends.numel()
    compare(layer, x, states, layer(x, as_given(states)), wanted)
    assert not recorder.draws
    every = {symbol: 0.2 + 0.1 * k for k, symbol in enumerate(kind.begins)}
    layer.clip = every
    for lengths in ([T] * N, LENGTHS.tolist()):
        wanted = plain(kind, layer, x, states, lambda *_: 0.0, lengths, every)
        compare(layer, x, states, layer(x, as_given(states), lengths), wanted)


def test_a_clipped_value_has_no_gradient() -> None:
    layer = zt.RNN(1, 1, activations=["none"], clip=2.0, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(1.0)
    for value, output, slope in ((5.0, 2.0, 0.0), (-9.0, -2.0, 0.0), (-1.5, 0.5, 1.0)):
        x = torch.full((1, 1, 1), value, dtype=torch.float64, requires_grad=True)
        found = layer(x)[0]
        (gradient,) = torch.autograd.grad(found.sum(), x)
        assert (float(found.detach()), float(gradient)) == (output, slope)


MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "peepholes": ("LSTM", {"peephole": True, "bidirectional": True}),
    "peephole on the new cell": ("LSTM", {"peephole": True, "peephole_on_new_cell": True}),
    "reset before": ("GRU", {"reset_after": False, "bidirectional": True}),
    "a cell from equations": ("cifg", {"bidirectional": True}),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", MORE)
def test_with_other_options(name: str, training: bool, recorder: Recorder) -> None:
    kind, options = KINDS[MORE[name][0]], MORE[name][1]
    layer = made(kind, zoneout=0.4, clip=0.3, num_layers=2, **options).train(training)
    x, states = source(), some_states(kind, layer)
    resets = torch.rand(T, N) < 0.3
    bounds = {"c" if "c" in kind.begins else "h": 0.3}
    for lengths in ([T] * N, LENGTHS.tolist()):
        recorder.draws.clear()
        given = None if lengths[0] == T else lengths
        found = layer(x, as_given(states), given, resets)
        keep = recorder.keep(kind, layer, given) if training else lambda *_: 0.4
        wanted = plain(kind, layer, x, states, keep, lengths, bounds, resets)
        compare(layer, x, states, found, wanted)


def test_activations_and_all_cells() -> None:
    """Of the state's own activation: relu in place of tanh, by an LSTM of one unit by hand."""
    layer = zt.LSTM(1, 1, activations={"activation": "relu"}, clip=0.6, return_cells=True)
    layer = layer.double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(0.5)
    x = torch.tensor([[[2.0]], [[3.0]]], dtype=torch.float64)
    h = c = torch.zeros(1, dtype=torch.float64)
    hs, cs = [], []
    for t in range(2):
        a = 0.5 * x[t, 0] + 0.5 * h + 1.0
        c = (a.sigmoid() * c + a.sigmoid() * a.tanh()).clamp(-0.6, 0.6)
        h = a.sigmoid() * c.relu()
        hs, cs = [*hs, h], [*cs, c]
    output, _, every = layer(x)
    assert_same([output[:, 0], every[:, 0]], [torch.stack(hs), torch.stack(cs)], 1e-12)
    assert float(every.detach().max()) == 0.6


def test_with_recurrent_dropout(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    masks = Recorder()
    monkeypatch.setattr(one_call, "dropout", masks)
    kind = KINDS["LSTM"]
    layer = made(kind, zoneout=0.3, recurrent_dropout=0.5, bidirectional=True, num_layers=2)
    x, states = source(), some_states(kind, layer)
    for lengths in (None, LENGTHS.tolist()):
        recorder.draws.clear()
        masks.draws.clear()
        found = layer(x, states, lengths)

        order = sorted(range(N), key=lambda n: -(lengths or [T] * N)[n])

        def mask(row: int, d: int, n: int, order: Sequence[int] = order) -> Tensor:
            return masks.draws[row][0, order.index(n)].chunk(2)[d]

        keep = recorder.keep(kind, layer, lengths)
        wanted = plain(kind, layer, x, states, keep, lengths or [T] * N, mask=mask)
        compare(layer, x, states, found, wanted)


@pytest.mark.parametrize("training", [False, True])
def test_with_projections(training: bool, recorder: Recorder) -> None:
    """c alone: the projected h is not there while the steps run."""
    kind = KINDS["LSTM"]
    layer = made(kind, zoneout={"c": 0.4}, clip=0.3, proj_size=2).train(training)
    x, states = source(), some_states(kind, layer)
    found = layer(x, states)
    keep = recorder.keep(kind, layer) if training else lambda s, *_: 0.4 if s == "c" else 0.0
    compare(layer, x, states, found, plain(kind, layer, x, states, keep, bounds={"c": 0.3}))
    for option in ({"zoneout": 0.1}, {"zoneout": {"h": 0.1}}, {"clip": {"h": 1.0}}):
        with pytest.raises(zs.ZStateError, match=r"\[LSTM\] (zoneout|clip): expected no h with"):
            zt.LSTM(I, H, proj_size=2, **option)


def test_heads(recorder: Recorder) -> None:
    for heads in (2, 6):
        layer = zt.Recurrent(cells.mgu, I, 6, heads=heads, zoneout=0.4, dtype=torch.float64)
        x = source()
        output, _ = layer(x)
        (draw,) = recorder.draws
        recorder.draws.clear()
        h, found = torch.zeros(N, 6, dtype=torch.float64), []
        for t in range(T):
            x_f, x_z = (x[t] @ layer.weight_ih_l0.T + layer.bias_l0).chunk(2, 1)
            R = layer.weight_hh_l0.unflatten(1, (2, -1))  # [heads,G,d,d]

            def by_head(value: Tensor, g: int, R: Tensor = R) -> Tensor:
                split = value.unflatten(1, (len(R), -1))
                return torch.einsum("nkd,ked->nke", split, R[:, g]).flatten(1)

            f = (x_f + by_head(h, 0)).sigmoid()
            new = (1 - f) * h + f * (x_z + by_head(f * h, 1)).tanh()
            h = torch.where(draw[t] == 0, h, new)
            found.append(h)
        inputs = [x, *layer.parameters()]
        assert_same([output], [torch.stack(found)], 1e-12)
        assert_same(gradients([output], inputs), gradients([torch.stack(found)], inputs), 1e-11)


def test_draws(recorder: Recorder) -> None:
    """One per step, row, unit, direction and state, with their probabilities; new in every call."""
    chances = {"h": 0.15, "c": 0.6}
    layer = zt.LSTM(2, 64, bidirectional=True, zoneout=chances)
    for _ in range(2):
        layer(torch.randn(40, 16, 2))
    kept = [draw == 0 for draw in recorder.draws]
    assert [tuple(each.shape) for each in kept] == [(40, 16, 128)] * 4
    for each, p in zip(kept, [0.15, 0.6] * 2, strict=True):
        size = each.numel()
        assert abs(float(each.double().mean()) - p) < 5 * (p * (1 - p) / size) ** 0.5
        for axis in range(3):  # no axis along which all are the same
            assert (each != each.roll(1, axis)).any()
    assert not torch.equal(kept[0], kept[2]) and not torch.equal(kept[1], kept[3])


@EACH
def test_a_seed_repeats_them(kind: Kind) -> None:
    layer = made(kind, zoneout=0.5, num_layers=2)
    x = source()
    results = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        results.append(layer(x)[0])
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])
    state = torch.get_rng_state()
    layer.eval()(x)
    assert torch.equal(torch.get_rng_state(), state)


def test_defaults_leave_everything_as_it_is() -> None:
    for kind in KINDS.values():
        plain_layer = made(kind, num_layers=2)
        nothing = dict.fromkeys(kind.begins, 0.0)
        for options in ({"zoneout": 0}, {"zoneout": {}}, {"clip": {}}, {"zoneout": nothing}):
            layer = made(kind, num_layers=2, **options)
            assert layer.computed is plain_layer.operation is plain_layer.computed
            x = source()
            torch.manual_seed(0)
            state = torch.get_rng_state()
            assert_same(flat(layer(x)), flat(plain_layer(x)), 0.0)
            assert torch.equal(torch.get_rng_state(), state)


@EACH
def test_copies_pickles_and_weights(kind: Kind) -> None:
    layer = made(kind, zoneout=0.3, clip=0.4, bidirectional=True)
    plain_layer = made(kind, bidirectional=True)
    assert list(layer.state_dict()) == list(plain_layer.state_dict())
    x = source()
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        for training in (True, False):
            torch.manual_seed(1)
            wanted = flat(layer.train(training)(x, lengths=LENGTHS))
            torch.manual_seed(1)
            assert_same(flat(other.train(training)(x, lengths=LENGTHS)), wanted, 0.0)
        assert repr(other) == repr(layer) and "zoneout=0.3, clip=0.4" in repr(layer)


def test_options_set_later() -> None:
    layer = made(KINDS["LSTM"]).eval()
    x = source()
    before = layer(x)[0]
    layer.zoneout = {"c": 0.5}
    other = made(KINDS["LSTM"], zoneout={"c": 0.5}).eval()
    assert torch.equal(layer(x)[0], other(x)[0]) and not torch.equal(layer(x)[0], before)
    with pytest.raises(zs.ZStateError, match=r"\[LSTM\] zoneout: expected a number"):
        layer.zoneout = 1.5
    assert layer.zoneout == {"c": 0.5} and torch.equal(layer(x)[0], other(x)[0])
    layer.zoneout = 0.0
    assert torch.equal(layer(x)[0], before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@EACH
def test_types(kind: Kind, dtype: torch.dtype, recorder: Recorder) -> None:
    layer = made(kind, zoneout=0.4, clip=0.5, num_layers=2).to(dtype)
    x = source().detach().to(dtype)
    found = flat(layer(x))
    assert all(each.dtype is dtype for each in found)
    wide = copy.deepcopy(layer).double()
    states = tuple(
        torch.full((2, N, H), begin, dtype=torch.float64) for begin in kind.begins.values()
    )
    bounds = {"c" if "c" in kind.begins else next(iter(kind.begins)): 0.5}
    keep = recorder.keep(kind, layer)
    wanted = plain(kind, wide, x.double(), states, lambda *w: keep(*w).double(), bounds=bounds)
    bound = 64 * torch.finfo(dtype).eps
    assert_same([each.double() for each in found], wanted, bound)


@EACH
def test_autocast(kind: Kind) -> None:
    layer = made(kind, zoneout=0.4, clip=0.5, num_layers=2, bidirectional=True).float()
    x = torch.randn(T, N, I)
    for lengths in (None, LENGTHS):
        torch.manual_seed(2)
        exact = layer(x, lengths=lengths)[0]
        torch.manual_seed(2)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            short = layer(x, lengths=lengths)[0]
        assert short.dtype is torch.bfloat16
        torch.testing.assert_close(short.float(), exact, rtol=0.05, atol=0.05)
        short.float().sum().backward()
        assert layer.weight_hh_l0.grad.isfinite().all()


@pytest.mark.parametrize(
    ("kind", "training", "lengths"), covering(KINDS, (False, True), (None, LENGTHS))
)
def test_one_compiled_graph(kind: str, training: bool, lengths: Tensor | None) -> None:
    torch._dynamo.reset()
    layer = made(KINDS[kind], zoneout=0.4, clip=0.5, num_layers=2, bidirectional=True)
    compiled = torch.compile(layer.train(training), fullgraph=True, backend="aot_eager")
    x, states = source(), some_states(KINDS[kind], layer)
    torch.manual_seed(4)
    found = flat(compiled(x, as_given(states), lengths))
    if training and lengths is not None:  # padding is drawn for as well: other draws
        assert all(each.isfinite().all() for each in found)
        return
    torch.manual_seed(4)
    wanted = flat(layer(x, as_given(states), lengths))
    compare(layer, x, states, found, wanted)


def test_the_graph_of_a_pickled_layer() -> None:
    """Its cell's variants have to be there before torch.compile reads it."""
    torch._dynamo.reset()
    layer = pickle.loads(pickle.dumps(made(KINDS["GRU"], zoneout=0.125).eval()))
    x = source()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert_same(flat(compiled(x)), flat(layer(x)), 1e-12)


def test_vmap() -> None:
    layer = made(KINDS["LSTM"], zoneout=0.5)
    x = source().detach()
    same = x.expand(3, *x.shape)
    with pytest.raises(RuntimeError, match="randomness"):
        torch.func.vmap(layer)(same)
    output = torch.func.vmap(layer, randomness="same")(same)[0]
    assert torch.equal(output[0], output[1]) and torch.equal(output[0], output[2])
    output = torch.func.vmap(layer, randomness="different")(same)[0]
    assert not torch.equal(output[0], output[1])
    layer.eval()
    xs = torch.randn(3, *x.shape, dtype=torch.float64)
    wanted = torch.stack([layer(each)[0] for each in xs])
    assert_same([torch.func.vmap(layer)(xs)[0]], [wanted], 1e-12)


@EACH
def test_derivatives_of_any_order(kind: Kind) -> None:
    layer = made(kind, zoneout=0.4, clip=0.6)
    names = [name for name, _ in layer.named_parameters()]
    x = torch.randn(3, 2, I, dtype=torch.float64, requires_grad=True)

    def function(x: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        torch.manual_seed(6)  # the same draws every time
        named = dict(zip(names, tensors, strict=True))
        return tuple(flat(torch.func.functional_call(layer, named, (x,))))

    inputs = (x, *layer.parameters())
    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


def test_torch_nn_classes_and_the_way_back() -> None:
    for kind in ("LSTM", "GRU", "RNN"):
        for options in ({"zoneout": 0.2}, {"clip": 0.4}):
            torch.manual_seed(0)
            layer = getattr(zt.nn, kind)(I, H, **options)
            torch.manual_seed(0)
            mine = getattr(zt, kind)(I, H, **options).eval()
            assert isinstance(layer, getattr(torch.nn, kind))
            x = torch.randn(T, N, I)
            assert torch.equal(layer.eval()(x)[0], mine(x)[0])
            model = torch.nn.Sequential(layer)
            (option,) = options
            for exchange, why in ((zt.restore, f"torch.nn has no {option}"), (zt.replace, "zst")):
                model, report = exchange(model)
                assert model[0] is layer and report.left["0"].startswith(why)
            with pytest.raises(zs.ZStateError, match=f"got a layer with {option}"):
                _ = layer._flat_weights
            with pytest.raises(zs.ZStateError, match="expected layers without zoneout and clip"):
                zc.load(layer, source="torch")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("LSTM", {"clip": 0.05}),
        ("LSTM", {"zoneout": 0.3, "num_layers": 2, "bidirectional": True}),
        ("GRU", {"zoneout": 0.4, "clip": 0.1}),
    ],
    ids=str,
)
def test_onnx_has_it_as_a_scan(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    layer, x = getattr(zt, kind)(I, H, **options).eval(), torch.randn(T, N, I)
    wanted = layer(x)[0].detach().numpy()
    path, table = tmp_path / "layer.onnx", zstate.onnx.torch_translations()
    torch.onnx.export(layer, (x,), path, dynamo=True, custom_translation_table=table)
    session = runtime.InferenceSession(path)
    (found, *_) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_onnx_without_the_table_refuses_it() -> None:
    pytest.importorskip("onnxscript")
    layer, x = zt.LSTM(I, H, clip=0.05).eval(), torch.randn(T, N, I)
    with pytest.raises(Exception, match=r"custom_translation_table=zstate.onnx.torch_translations"):
        torch.onnx.export(layer, (x,), dynamo=True)


def test_trace_and_export() -> None:
    layer = zt.GRU(I, H, zoneout=0.3, clip=0.5).eval()
    x, more = torch.randn(T, N, I), torch.randn(T + 2, N + 1, I)
    with torch.no_grad():
        traced = torch.jit.trace(layer, x)
        assert_same(flat(traced(more)), flat(layer(more)), 1e-6)
    sizes = {0: torch.export.Dim("T", min=2), 1: torch.export.Dim("N", min=2)}
    exported = torch.export.export(layer, (x,), dynamic_shapes=(sizes,))
    assert_same(flat(exported.module()(more)), flat(layer(more)), 1e-6)


@cells.cell(gates="z", states="h g")
def twice(x, R, h, g):
    new = cells.tanh(x.z + R.z @ h)
    return new, new


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "certain": (
        lambda: zt.LSTM(I, H, zoneout=1.0),
        "[LSTM] zoneout: expected a number from 0 to below 1, or such numbers by state, got 1.0",
    ),
    "negative": (lambda: zt.GRU(I, H, zoneout=-0.1), "[GRU] zoneout: expected a number from 0"),
    "not a number": (lambda: zt.GRU(I, H, zoneout=float("nan")), "to below 1, or such numbers"),
    "a bool": (lambda: zt.GRU(I, H, zoneout=True), "[GRU] zoneout: expected a number from 0"),
    "a text": (lambda: zt.RNN(I, H, zoneout="h"), "[RNN] zoneout: expected a number from 0"),
    "no such state": (
        lambda: zt.GRU(I, H, zoneout={"c": 0.1}),
        "[GRU] zoneout: expected states among h, got 'c'",
    ),
    "the operation's name": (
        lambda: zt.LSTM(I, H, clip={"cell": 1.0}),
        "[LSTM] clip: expected states among h, c, got 'cell'",
    ),
    "no bound": (
        lambda: zt.LSTM(I, H, clip=0.0),
        "[LSTM] clip: expected a finite number above 0, or such numbers by state, got 0.0",
    ),
    "an infinite bound": (lambda: zt.LSTM(I, H, clip=float("inf")), "above 0, or such numbers"),
    "None for a state": (lambda: zt.LSTM(I, H, clip={"c": None}), "above 0, or such numbers"),
    "a state that begins at -inf": (
        lambda: zt.Recurrent(cells.slstm, I, H, zoneout=0.1),
        "[Recurrent] zoneout: expected states by name, without m, which begins with -inf, got 0.1",
    ),
    "two bounds for one value": (
        lambda: zt.Recurrent(twice, I, H, clip={"h": 1.0, "g": 2.0}),
        "[twice] clip: expected one bound for the states that share the value of g, got two",
    ),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refusals(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(zs.ZStateError, match=re.escape(message)):
        call()


def test_a_cell_with_a_state_that_begins_at_minus_infinity(recorder: Recorder) -> None:
    """Of its other states, one that is kept stays what it was."""
    layer = zt.Recurrent(cells.slstm, I, H, zoneout={"h": 0.5}, dtype=torch.float64)
    output, ends = layer(source())
    (draw,) = recorder.draws
    kept = draw == 0
    before = torch.cat([torch.zeros_like(output[:1]), output[:-1]])
    assert torch.equal(output == before, kept)
    assert all(each.isfinite().all() for each in ends)


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("both", [False, True])
def test_an_empty_batch_has_gradients(kind: str, both: bool) -> None:
    layer = getattr(zt, kind)(I, H, bidirectional=both, clip=0.5)
    x = torch.randn(T, 0, I, requires_grad=True)
    for result in flat(layer(x)):
        inputs = [x, *layer.parameters()]
        found = torch.autograd.grad(result.sum(), inputs, retain_graph=True)
        assert found[0].shape == x.shape and not any(each.any() for each in found[1:])
