"""zt.Recurrent: any cell as a module, against a plain loop over its equations."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import re
import shutil
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import zstate as zs
import zstate.onnx
import zstate.torch as zt
from tests.covering import covering
from zstate import cells
from zstate.cells.decorator import MadeCell

from .modules import LENGTHS, H, I, N, T, assert_same, flat


@cells.cell(gates="r z n", states="h")
def gru(x, R, h):
    """torch.nn's order of the gates, the paper's reset."""
    r = cells.sigmoid(x.r + R.r @ h)
    z = cells.sigmoid(x.z + R.z @ h)
    return z * h + (1 - z) * cells.tanh(x.n + R.n @ (r * h))


@cells.cell(gates="i f z o", states="h c", parameters="p_i p_o")
def peeping(x, R, h, c, p_i, p_o):
    i = cells.sigmoid(x.i + R.i @ h + p_i * c)
    f = cells.sigmoid(x.f + R.f @ h)
    new = f * c + i * cells.tanh(x.z + R.z @ h)
    return cells.sigmoid(x.o + R.o @ h + p_o * c) * cells.tanh(new), new


@cells.cell(gates="i f z o", states="h c")
def lstm(x, R, h, c):
    """Of the built-in cell's name, but not that cell."""
    i, f = cells.sigmoid(x.i + R.i @ h), cells.sigmoid(x.f + R.f @ h)
    new = f * c + i * cells.tanh(x.z + R.z @ h)
    return cells.sigmoid(x.o + R.o @ h) * cells.tanh(new), new


@cells.cell(gates="a b", states="u v w", parameters="k", initial={"v": 0.5, "w": -2})
def three(x, R, u, v, w, k):
    """Nothing known: three states, of which two begin elsewhere than at 0."""
    a = cells.tanh(x.a + R.a @ u)
    b = cells.sigmoid(x.b + R.b @ (v * a))
    return b * u + k * w, 0.5 * v + a, cells.tanh(w + b)


# One step of one sequence: (gates' inputs, R h by gate as a function, own parameters, states).
Step = Callable[..., Sequence[Tensor]]


def gru_step(x: Any, R: Any, own: Any, h: Tensor) -> Sequence[Tensor]:
    r, z = torch.sigmoid(x[0] + R(0, h)), torch.sigmoid(x[1] + R(1, h))
    return (z * h + (1 - z) * torch.tanh(x[2] + R(2, r * h)),)


def lstm_step(x: Any, R: Any, own: Any, h: Tensor, c: Tensor) -> Sequence[Tensor]:
    p_i, p_o = own or (0, 0)
    i, f = torch.sigmoid(x[0] + R(0, h) + p_i * c), torch.sigmoid(x[1] + R(1, h))
    new = f * c + i * torch.tanh(x[2] + R(2, h))
    return torch.sigmoid(x[3] + R(3, h) + p_o * c) * torch.tanh(new), new


def three_step(x: Any, R: Any, own: Any, u: Tensor, v: Tensor, w: Tensor) -> Sequence[Tensor]:
    a = torch.tanh(x[0] + R(0, u))
    b = torch.sigmoid(x[1] + R(1, v * a))
    return b * u + own[0] * w, 0.5 * v + a, torch.tanh(w + b)


def mgu_step(x: Any, R: Any, own: Any, h: Tensor) -> Sequence[Tensor]:
    f = torch.sigmoid(x[0] + R(0, h))
    return ((1 - f) * h + f * torch.tanh(x[1] + R(1, f * h)),)


def cifg_step(x: Any, R: Any, own: Any, h: Tensor, c: Tensor) -> Sequence[Tensor]:
    f = torch.sigmoid(x[0] + R(0, h))
    new = f * c + (1 - f) * torch.tanh(x[1] + R(1, h))
    return torch.sigmoid(x[2] + R(2, h)) * torch.tanh(new), new


def slstm_step(
    x: Any, R: Any, own: Any, h: Tensor, c: Tensor, n: Tensor, m: Tensor
) -> Sequence[Tensor]:
    i, f, z, o = (x[k] + R(k, h) for k in range(4))
    a = torch.nn.functional.logsigmoid(f) + m
    begins = bool((m == -math.inf).all())  # the published first step, where nothing is kept
    top = i if begins else torch.maximum(a, i)
    keep = torch.zeros_like(i) if begins else torch.exp(a - top)
    c, n = keep * c + torch.exp(i - top) * torch.tanh(z), keep * n + torch.exp(i - top)
    return torch.sigmoid(o) * c / n, c, n, top


class Case(NamedTuple):
    cell: MadeCell
    step: Step
    begins: tuple[float, ...]

    @property
    def gates(self) -> int:
        return len(self.cell.definition.gates)

    @property
    def own(self) -> list[str]:
        return [each.name for each in self.cell.definition.own]


CASES = {
    "gru": Case(gru, gru_step, (0.0,)),
    "peeping": Case(peeping, lstm_step, (0.0, 0.0)),
    "three": Case(three, three_step, (0.0, 0.5, -2.0)),
    "mgu": Case(cells.mgu, mgu_step, (0.0,)),
    "cifg": Case(cells.cifg, cifg_step, (0.0, 0.0)),
    "slstm": Case(cells.slstm, slstm_step, (0.0, 0.0, 0.0, -math.inf)),
}


def plain(
    case: Case,
    layer: Any,
    x: Tensor,
    states: Sequence[Tensor] | None,
    lengths: Sequence[int],
    resets: Tensor | None = None,
) -> list[Tensor]:
    """Output [T,N,D·H] and every state [D·L,N,H], sequence by sequence and step by step."""
    D = 2 if layer.bidirectional else 1
    begin = [torch.full((layer.hidden_size,), value, dtype=x.dtype) for value in case.begins]
    outputs, ends = [], []
    for n, length in enumerate(lengths):
        source = [x[t, n] for t in range(length)]
        last: list[list[Tensor]] = []
        for row in range(layer.num_layers):
            both = []
            for d in range(D):
                suffix = f"_l{row}" + "_reverse" * d
                W, R = (getattr(layer, f"weight_{of}{suffix}") for of in ("ih", "hh"))
                b = getattr(layer, f"bias{suffix}") if layer.bias else 0
                own = [getattr(layer, name + suffix) for name in case.own]
                blocks = R.unsqueeze(0) if R.dim() == 2 else R

                def product(gate: int, value: Tensor, blocks: Tensor = blocks) -> Tensor:
                    parts = value.chunk(len(blocks))
                    return torch.cat(
                        [
                            R.chunk(case.gates)[gate] @ part
                            for R, part in zip(blocks, parts, strict=True)
                        ]
                    )

                now = begin if states is None else [each[row * D + d, n] for each in states]
                steps: list[Tensor] = [x.new_zeros(0)] * length
                for t in range(length)[:: -1 if d else 1]:
                    # A sequence that begins with step t ends, read backwards, in front of t - 1.
                    begins = t + 1 if d else t
                    if resets is not None and begins < length and bool(resets[begins, n]):
                        now = begin
                    gates = (W @ source[t] + b).chunk(case.gates)
                    now = list(case.step(gates, product, own, *now))
                    steps[t] = now[0]
                both.append(steps)
                last.append(now)
            source = [torch.cat(parts) for parts in zip(*both, strict=True)]
        padding = [x.new_zeros(D * layer.hidden_size)] * (len(x) - length)
        outputs.append(torch.stack([*source, *padding]))
        ends.append(last)
    found = [torch.stack(outputs, 1)]
    for place in range(len(case.begins)):
        rows = [torch.stack([row[place] for row in last]) for last in ends]
        found.append(torch.stack(rows, 1))
    return found


def drawn(case: Case, hidden: int = H, **options: Any) -> Any:
    """A module with larger weights than the usual ones, so that every term counts."""
    torch.manual_seed(len(case.cell.__name__))
    layer = zt.Recurrent(case.cell, I, hidden, **{"dtype": torch.float64, **options})
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.6)
    return layer


def some_states(case: Case, layer: Any, batch: int = N) -> Any:
    rows = layer.num_layers * layer.directions
    shape = (rows, batch, layer.hidden_size)
    made = [torch.randn(shape, dtype=torch.float64) for _ in case.begins]
    if case.cell is cells.slstm:
        made[2] = made[2].abs() + 1  # n, which h is divided by
    made = [each.requires_grad_() for each in made]
    return made[0] if len(made) == 1 else tuple(made)


def gradients(results: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Of a sum in which every result counts; what is infinite stays as it is."""
    loss = sum(
        (torch.where(r.isfinite(), r, 0.0) * (k + 1)).sin().sum() for k, r in enumerate(results)
    )
    found = torch.autograd.grad(loss, list(inputs), allow_unused=True)
    return [torch.zeros_like(i) if g is None else g for g, i in zip(found, inputs, strict=True)]


def check(
    case: Case,
    layer: Any,
    call: Callable[[Tensor, Any], Any],
    states: Any,
    lengths: Sequence[int],
    resets: Tensor | None = None,
) -> None:
    """The module's call against the loop: results and the gradients of everything."""
    x = torch.randn(T, len(lengths), I, dtype=torch.float64, requires_grad=True)
    found = flat(call(x, states))
    wanted = plain(case, layer, x, None if states is None else flat(states), lengths, resets)
    assert_same(found, wanted, 1e-11)
    inputs = [x, *layer.parameters(), *([] if states is None else flat(states))]
    assert_same(gradients(found, inputs), gradients(wanted, inputs), 1e-10)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"bias": False},
    {"bidirectional": True},
    {"num_layers": 2},
    {"num_layers": 3, "bidirectional": True, "bias": False},
]
WHOLE = [T] * N
EACH = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@pytest.mark.parametrize(
    ("name", "options", "given"), covering(CASES, OPTIONS, (False, True)), ids=str
)
def test_whole_sequences(name: str, given: bool, options: dict[str, Any]) -> None:
    case, layer = CASES[name], drawn(CASES[name], **options)
    check(case, layer, layer, some_states(case, layer) if given else None, WHOLE)


@pytest.mark.parametrize(
    ("name", "options", "lengths"),
    covering(CASES, OPTIONS, (LENGTHS.tolist(), [0, 2, T, 0])),
    ids=str,
)
def test_lengths(name: str, options: dict[str, Any], lengths: list[int]) -> None:
    case, layer = CASES[name], drawn(CASES[name], **options)
    for states in (None, some_states(case, layer)):
        check(case, layer, lambda x, s: layer(x, s, lengths=lengths), states, lengths)


@pytest.mark.parametrize("options", OPTIONS[2:], ids=str)
@EACH
def test_packed_sequences(case: Case, options: dict[str, Any]) -> None:
    layer = drawn(case, **options)

    def call(x: Tensor, states: Any) -> Any:
        packed = pack_padded_sequence(x, LENGTHS, enforce_sorted=False)
        output, ends = layer(packed, states)
        assert isinstance(output, PackedSequence)
        return pad_packed_sequence(output, total_length=T)[0], ends

    for states in (None, some_states(case, layer)):
        check(case, layer, call, states, LENGTHS.tolist())


@pytest.mark.parametrize("cell", [cells.block_gru, cells.layer_norm_lstm], ids=repr)
def test_lengths_of_a_cell_that_the_engine_does_not_have(cell: MadeCell) -> None:
    """As each sequence alone, padded or packed."""
    layer = zt.Recurrent(cell, I, H, num_layers=2, bidirectional=True, dtype=torch.float64)
    x = torch.randn(T, N, I, dtype=torch.float64)
    packed = pack_padded_sequence(x, LENGTHS, enforce_sorted=False)
    unpacked = pad_packed_sequence(layer(packed)[0])[0]
    output, ends = layer(x, lengths=LENGTHS)
    for n, length in enumerate(LENGTHS.tolist()):
        alone, own = layer(x[:length, n])
        assert_same([output[:length, n], unpacked[:length, n]], [alone, alone], 1e-12)
        assert_same([end[:, n] for end in flat(ends)], flat(own), 1e-12)
        assert not output[length:, n].any()


@EACH
def test_batch_first_and_one_sequence_alone(case: Case) -> None:
    layer = drawn(case, num_layers=2, bidirectional=True, batch_first=True)

    def batch_first(x: Tensor, states: Any) -> Any:
        output, ends = layer(x.transpose(0, 1), states, LENGTHS)
        return output.transpose(0, 1), ends

    check(case, layer, batch_first, some_states(case, layer), LENGTHS.tolist())

    def alone(x: Tensor, states: Any) -> Any:
        given = [each.squeeze(1) for each in flat(states)]
        output, ends = layer(x.squeeze(1), given[0] if len(given) == 1 else given, 4)
        return output.unsqueeze(1), [each.unsqueeze(1) for each in flat(ends)]

    check(case, layer, alone, some_states(case, layer, 1), [4])


@EACH
def test_no_steps_and_no_sequences(case: Case) -> None:
    layer = drawn(case, bidirectional=True)
    given = some_states(case, layer)
    begin = [torch.full((2, N, H), value, dtype=torch.float64) for value in case.begins]
    for lengths in (None, [0] * N):
        output, ends = layer(torch.zeros(0, N, I, dtype=torch.float64), lengths=lengths)
        assert output.shape == (0, N, 2 * H)
        assert all(torch.equal(*pair) for pair in zip(flat(ends), begin, strict=True))
        _, ends = layer(torch.zeros(0, N, I, dtype=torch.float64), given, lengths)
        assert all(torch.equal(*pair) for pair in zip(flat(ends), flat(given), strict=True))
    output, ends = layer(torch.zeros(T, 0, I, dtype=torch.float64))
    assert output.shape == (T, 0, 2 * H) and flat(ends)[0].shape == (2, 0, H)


def test_some_states_given_and_some_not() -> None:
    case = CASES["three"]
    layer = drawn(case, num_layers=2)
    x = torch.randn(T, N, I, dtype=torch.float64)
    u, v, w = some_states(case, layer)
    begin = [
        torch.full_like(each, value) for each, value in zip((u, v, w), case.begins, strict=True)
    ]
    for given in ((u, None, None), (None, v, None), [None, None, w]):
        pairs = zip(given, begin, strict=True)
        wanted = layer(x, tuple(b if g is None else g for g, b in pairs))
        assert_same(flat(layer(x, given)), flat(wanted), 0.0)


@pytest.mark.parametrize(
    ("name", "lengths"), [(name, [None, [3, 2]][k % 2]) for k, name in enumerate(CASES)]
)
def test_derivatives_of_any_order(name: str, lengths: list[int] | None) -> None:
    """Every cell, half of them on sequences of different lengths."""
    case, layer = CASES[name], drawn(CASES[name], 2, bidirectional=True)
    names = [name for name, _ in layer.named_parameters()]
    x = torch.randn(3, 2, I, dtype=torch.float64, requires_grad=True)
    states = flat(some_states(case, layer, 2))

    def function(x: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        given, parameters = tensors[: len(states)], tensors[len(states) :]
        named = dict(zip(names, parameters, strict=True))
        hidden = given[0] if len(given) == 1 else given
        return tuple(flat(torch.func.functional_call(layer, named, (x, hidden, lengths))))

    inputs = (x, *states, *layer.parameters())
    assert gradcheck(function, inputs, fast_mode=True)
    assert gradgradcheck(function, inputs, fast_mode=True)


def test_dropout_between_layers() -> None:
    """The second layer sees what torch's own dropout leaves of the first, and only in training."""
    case = CASES["cifg"]
    layer = drawn(case, num_layers=2, dropout=0.5)
    x = torch.randn(T, N, I, dtype=torch.float64)
    first = zt.Recurrent(case.cell, I, H, dtype=torch.float64)
    second = zt.Recurrent(case.cell, H, H, dtype=torch.float64)
    for k, each in enumerate((first, second)):
        own = {n.replace("_l0", f"_l{k}"): n for n in each.state_dict()}
        each.load_state_dict({own[n]: v for n, v in layer.state_dict().items() if n in own})
    torch.manual_seed(5)
    found, (h, c) = layer(x)
    torch.manual_seed(5)
    between = torch.nn.functional.dropout(first(x)[0], 0.5, True)
    assert (between == 0).any()
    wanted, (h_1, c_1) = second(between)
    assert_same([found, h[1:], c[1:]], [wanted, h_1, c_1], 1e-12)
    layer.eval()
    assert_same([layer(x)[0]], [second(first(x)[0])[0]], 1e-12)


BUILT_IN: list[tuple[MadeCell, str, dict[str, Any]]] = [
    (lstm, "LSTM", {}),
    (peeping, "LSTM", {"peephole": True}),
    (gru, "GRU", {"reset_after": False}),
]


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str
)
@pytest.mark.parametrize(("cell", "kind", "options"), BUILT_IN, ids=lambda v: str(v)[:16])
def test_like_the_built_in_layers(
    cell: MadeCell, kind: str, options: dict[str, Any], dtype: torch.dtype
) -> None:
    layer = zt.Recurrent(cell, I, H, num_layers=2, bidirectional=True, dtype=dtype)
    built_in = getattr(zt, kind)(I, H, num_layers=2, bidirectional=True, dtype=dtype, **options)
    values = dict(built_in.state_dict())
    for name, value in layer.state_dict().items():
        if name.startswith("weight"):
            values[name] = value
        elif name.startswith("bias"):
            values[name.replace("bias", "bias_ih")] = value
            values[name.replace("bias", "bias_hh")] = torch.zeros_like(value)
    for suffix in ("_l0", "_l1", "_l0_reverse", "_l1_reverse") if cell is peeping else ():
        p_i, p_o = (getattr(layer, name + suffix).detach() for name in ("p_i", "p_o"))
        none = torch.zeros_like(p_i)
        values[f"peephole{suffix}"] = torch.cat([p_i, none, none, p_o])
    built_in.load_state_dict(values)
    x = torch.randn(T, N, I, dtype=dtype)
    # The same equations in another order of additions: as far as the type's rounding goes.
    bound = 16 * torch.finfo(dtype).eps
    for lengths in (None, LENGTHS):
        found, wanted = layer(x, lengths=lengths), built_in(x, lengths=lengths)
        assert_same(flat(found), flat(wanted), bound)
        for each, result in ((layer, found), (built_in, wanted)):
            each.zero_grad()
            sum(tensor.sum() for tensor in flat(result)).backward()
        names = {n: n.replace("bias", "bias_ih") for n, _ in layer.named_parameters()}
        for name, other in names.items():
            if name.startswith(("weight", "bias")):
                mine, theirs = getattr(layer, name).grad, getattr(built_in, other).grad
                scale = float(theirs.abs().max())
                torch.testing.assert_close(mine, theirs, rtol=bound, atol=8 * bound * scale)


def test_names_shapes_and_values_of_the_parameters() -> None:
    torch.manual_seed(0)
    layer = zt.Recurrent(peeping, I, 16, num_layers=2, bidirectional=True)
    stems = {"weight_ih": (64, I), "weight_hh": (64, 16), "bias": (64,), "p_i": (16,), "p_o": (16,)}
    wanted = {}
    for row in range(2):
        for suffix in (f"_l{row}", f"_l{row}_reverse"):
            wanted |= {name + suffix: shape for name, shape in stems.items()}
            wanted["weight_ih" + suffix] = (64, 32 if row else I)
    assert {name: tuple(value.shape) for name, value in layer.state_dict().items()} == wanted
    assert all(0.1 < float(value.abs().max()) <= 0.25 for value in layer.state_dict().values())
    assert [len(names) for names in layer.all_weights] == [5] * 4
    kept = {name: value.clone() for name, value in layer.state_dict().items()}
    layer.reset_parameters()
    assert not any(torch.equal(value, kept[name]) for name, value in layer.state_dict().items())
    assert "bias_l0" not in zt.Recurrent(gru, I, H, bias=False).state_dict()
    heads = zt.Recurrent(cells.slstm, I, 16, heads=4, bidirectional=True)
    assert heads.weight_hh_l0_reverse.shape == (4, 16, 4) and heads.weight_ih_l0.shape == (64, I)
    assert repr(heads) == f"Recurrent(slstm, {I}, 16, bidirectional=True, heads=4)"
    assert repr(layer) == f"Recurrent(peeping, {I}, 16, num_layers=2, bidirectional=True)"


def test_copies_pickles_and_moves() -> None:
    for case in CASES.values():
        layer = drawn(case, bidirectional=True)
        x = torch.randn(T, N, I, dtype=torch.float64)
        wanted = flat(layer(x, lengths=LENGTHS))
        same = zt.Recurrent(case.cell, I, H, bidirectional=True, dtype=torch.float64)
        same.load_state_dict(layer.state_dict())
        for other in (same, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert other.cell is case.cell and other.operation is layer.operation
            assert_same(flat(other(x, lengths=LENGTHS)), wanted, 0.0)
        narrow = copy.deepcopy(layer).to(torch.bfloat16)
        results = flat(narrow(x.bfloat16()))
        assert all(each.dtype == torch.bfloat16 and each.isfinite().all() for each in results)
        assert all(each.is_meta for each in flat(copy.deepcopy(layer).to("meta")(x.to("meta"))))


def test_results_are_not_views_of_each_other() -> None:
    layer = zt.Recurrent(cells.slstm, I, H)
    for steps in (1, T):
        with torch.no_grad():
            output, ends = layer(torch.randn(steps, N, I))
            kept = output.clone()
            for end in ends:
                end.zero_()
        assert torch.equal(output, kept)


@pytest.mark.parametrize(
    ("name", "lengths", "given"),
    covering(CASES, (None, torch.tensor([0, T, 1, 5])), (False, True)),
)
def test_one_compiled_graph(name: str, lengths: Tensor | None, given: bool) -> None:
    torch._dynamo.reset()
    layer = drawn(CASES[name], num_layers=2, bidirectional=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = torch.randn(T, N, I, dtype=torch.float64, requires_grad=True)
    states = some_states(CASES[name], layer) if given else None
    found, wanted = flat(compiled(x, states, lengths)), flat(layer(x, states, lengths))
    assert_same(found, wanted, 1e-12)
    inputs = [x, *layer.parameters()]
    assert_same(gradients(found, inputs), gradients(wanted, inputs), 1e-11)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor() -> None:
    torch._dynamo.reset()
    layer = zt.Recurrent(cells.slstm, I, H, bidirectional=True)
    x = torch.randn(T, N, I)
    for mine, other in zip(
        flat(torch.compile(layer, fullgraph=True)(x)), flat(layer(x)), strict=True
    ):
        torch.testing.assert_close(mine, other)


def test_the_padding_of_a_compiled_graph_cannot_grow_without_bound() -> None:
    @cells.cell(gates="z")
    def linear(x, R, h):
        return x.z + R.z @ h

    torch._dynamo.reset()
    layer = zt.Recurrent(linear, I, H)
    with torch.no_grad():
        layer.weight_hh_l0.fill_(30.0)
    output, h_n = torch.compile(layer, backend="aot_eager")(torch.randn(80, 2, I), None, [2, 3])
    (output.sum() + h_n.sum()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


def test_export_and_trace() -> None:
    layer = zt.Recurrent(cells.slstm, I, H, num_layers=2).eval()
    x, more = torch.randn(T, N, I), torch.randn(T + 2, N + 1, I)  # another size than in the graph
    sizes = {0: torch.export.Dim("T", min=2), 1: torch.export.Dim("N", min=2)}
    exported = torch.export.export(layer, (x,), dynamic_shapes=(sizes,))
    assert_same(flat(exported.module()(more)), flat(layer(more)), 1e-6)
    with torch.no_grad():
        traced = torch.jit.trace(layer, x)
        assert_same(flat(traced(more)), flat(layer(more)), 1e-6)
    model = torch.nn.Sequential(torch.nn.Linear(I, I), layer)
    assert_same(flat(torch.fx.symbolic_trace(model)(x)), flat(model(x)), 0.0)


@EACH
def test_vmap_over_batches_and_over_weights(case: Case) -> None:
    layer = drawn(case, bidirectional=True)
    xs = torch.randn(3, T, N, I, dtype=torch.float64)
    wanted = [flat(layer(x)) for x in xs]
    found = flat(torch.func.vmap(layer)(xs))
    assert_same(found, [torch.stack(each) for each in zip(*wanted, strict=True)], 1e-12)
    others = [drawn(case, bidirectional=True) for _ in range(3)]
    for k, other in enumerate(others):
        with torch.no_grad():
            other.weight_hh_l0 += k
    together, _ = torch.func.stack_module_state(others)

    def call(parameters: dict[str, Tensor]) -> Any:
        return torch.func.functional_call(layer, parameters, (xs[0],))

    found = flat(torch.func.vmap(call)(together))
    each = zip(*(flat(other(xs[0])) for other in others), strict=True)
    assert_same(found, [torch.stack(parts) for parts in each], 1e-12)


@EACH
def test_autocast(case: Case) -> None:
    layer = drawn(case, num_layers=2, bidirectional=True).float()
    x = torch.randn(T, N, I)
    for lengths in (None, LENGTHS):
        exact = layer(x, lengths=lengths)[0]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            short = layer(x, lengths=lengths)[0]
        assert short.dtype == torch.bfloat16
        torch.testing.assert_close(short.float(), exact, rtol=0.1, atol=0.1)
        short.float().sum().backward()
        assert layer.weight_hh_l0.grad is not None and layer.weight_hh_l0.grad.isfinite().all()


def test_weights_may_be_parametrized() -> None:
    layer = zt.Recurrent(peeping, I, H)
    torch.nn.utils.parametrizations.weight_norm(layer, "weight_hh_l0")
    layer(torch.randn(T, N, I))[0].sum().backward()
    assert layer.parametrizations.weight_hh_l0.original1.grad is not None


def test_replace_and_restore_leave_it_alone() -> None:
    model = torch.nn.Sequential(zt.Recurrent(lstm, I, H))
    for exchange in (zt.replace, zt.restore):
        model, report = exchange(model)
        assert type(model[0]) is zt.Recurrent
    assert str(report) == "0: left alone, torch.nn has no cell lstm"


def test_a_cell_of_a_built_in_name_is_not_that_cell_in_onnx() -> None:
    """Its equations may be others: no LSTM node, but its own steps, by a table that has them."""
    pytest.importorskip("onnxscript")
    layer = zt.Recurrent(lstm, I, H).eval()
    gc.collect()
    expected = r"\[lstm\] torch.onnx.export: expected custom_translation_table=zstate.onnx.torch"
    with pytest.raises(Exception, match=expected):
        torch.onnx.export(layer, (X,), dynamo=True)
    table = zstate.onnx.torch_translations()
    program = torch.onnx.export(layer, (X,), dynamo=True, custom_translation_table=table)
    kinds = [node.op_type for node in program.model_proto.graph.node]
    assert "Scan" in kinds and "LSTM" not in kinds


def named_as_a_weight() -> MadeCell:
    @cells.cell(gates="z", parameters="weight_hh")
    def own(x, R, h, weight_hh):
        return weight_hh * cells.tanh(x.z + R.z @ h)

    return own


X = torch.randn(T, N, I)
Y = torch.randn(1, N, H)
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a function": (
        lambda: zt.Recurrent(gru_step, I, H),
        "[Recurrent] cell: expected a cell made by @zstate.cells.cell, got function",
    ),
    "a name": (lambda: zt.Recurrent("lstm", I, H), "[Recurrent] cell: expected a cell made"),
    "a module": (lambda: zt.Recurrent(zt.LSTM, I, H), "[Recurrent] cell: expected a cell made"),
    "a parameter of a weight's name": (
        lambda: zt.Recurrent(named_as_a_weight(), I, H),
        "[Recurrent] cell: expected a cell whose parameter names differ from the layer's own",
    ),
    "no units": (lambda: zt.Recurrent(gru, I, 0), "hidden_size: expected at least 1, got 0"),
    "half a unit": (lambda: zt.Recurrent(gru, I, 1.5), "hidden_size: expected an integer"),
    "no heads": (lambda: zt.Recurrent(gru, I, H, heads=0), "heads: expected at least 1, got 0"),
    "heads": (
        lambda: zt.Recurrent(gru, I, H, heads=2),
        "[Recurrent] heads: expected a divisor of hidden_size = 5, got 2",
    ),
    "features": (
        lambda: zt.Recurrent(gru, I, H)(torch.randn(T, N, I + 1)),
        "[Recurrent] input: expected 3 features on the last axis, got 4",
    ),
    "type": (
        lambda: zt.Recurrent(gru, I, H)(X.double()),
        "[Recurrent] input: expected float32 like the weights, got float64",
    ),
    "one state for two": (
        lambda: zt.Recurrent(peeping, I, H)(X, Y),
        "[Recurrent] states: expected 2 tensors (h_0, c_0), got torch.Tensor",
    ),
    "three states for four": (
        lambda: zt.Recurrent(cells.slstm, I, H)(X, (Y, Y, Y)),
        "[Recurrent] states: expected 4 tensors (h_0, c_0, n_0, m_0), got 3 of them",
    ),
    "two states for one": (
        lambda: zt.Recurrent(gru, I, H)(X, (Y, Y)),
        "[Recurrent] h_0: expected a torch tensor, got tuple",
    ),
    "no tensor": (
        lambda: zt.Recurrent(three, I, H)(X, (Y, np.zeros((1, N, H)), Y)),
        "[Recurrent] v_0: expected a torch tensor, got numpy.ndarray",
    ),
    "another shape in the middle": (
        lambda: zt.Recurrent(three, I, H)(X, (None, Y[:, :2], None)),
        "[Recurrent] v_0: expected [D·L,N,5] = [1,4,5], got [1,2,5]",
    ),
    "another type": (
        lambda: zt.Recurrent(three, I, H)(X, (Y, Y, Y.double())),
        "[Recurrent] w_0: expected float32 like the weights, got float64",
    ),
    "lengths": (
        lambda: zt.Recurrent(gru, I, H)(X, lengths=[1, 2]),
        "[Recurrent] lengths: expected [N] = [4], got [2]",
    ),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refusals(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(zs.ZStateError, match=re.escape(message)):
        call()


@pytest.mark.parametrize(("name", "options", "heads"), covering(CASES, OPTIONS, (2, 6)), ids=str)
def test_heads(name: str, options: dict[str, Any], heads: int) -> None:
    case, layer = CASES[name], drawn(CASES[name], 6, heads=heads, **options)
    states = some_states(case, layer)
    check(case, layer, layer, states, WHOLE)
    lengths = [0, 3, T, 2]
    check(case, layer, lambda x, s: layer(x, s, lengths), states, lengths)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@EACH
def test_resets(case: Case, options: dict[str, Any]) -> None:
    layer = drawn(case, **options)
    states = some_states(case, layer)
    resets = torch.rand(T, N) < 0.4
    check(case, layer, lambda x, s: layer(x, s, resets=resets), states, WHOLE, resets)
    lengths = [0, 3, T, 2]
    check(case, layer, lambda x, s: layer(x, s, lengths, resets), states, lengths, resets)

    def packed(x: Tensor, states: Any) -> Any:
        sequences = pack_padded_sequence(x, LENGTHS, enforce_sorted=False)
        output, ends = layer(sequences, states, resets=resets)
        return pad_packed_sequence(output, total_length=T)[0], ends

    check(case, layer, packed, states, LENGTHS.tolist(), resets)


@pytest.mark.parametrize(
    ("name", "options"), [(name, OPTIONS[k % len(OPTIONS)]) for k, name in enumerate(CASES)]
)
def test_resets_in_a_compiled_graph(name: str, options: dict[str, Any]) -> None:
    """Every cell, and every set of options with one of them."""
    layer = drawn(CASES[name], **options)
    states, lengths = some_states(CASES[name], layer), [0, 3, T, 2]
    resets = torch.rand(T, N) < 0.4
    torch._dynamo.reset()
    graph = torch.compile(layer, backend="aot_eager")

    def call(x: Tensor, states: Any) -> Any:
        return graph(x, states, torch.tensor(lengths), resets)

    check(CASES[name], layer, call, states, lengths, resets)


def test_resets_of_another_shape() -> None:
    for given, resets in ((X, torch.zeros(N, T)), (X[:, 0], torch.zeros(T, N))):
        with pytest.raises(zs.ZStateError, match=r"\[Recurrent\] resets: expected \[T,N\]"):
            zt.Recurrent(gru, I, H)(given, resets=resets)
