"""Heads: R in blocks gives what one R with zeros between its blocks gives."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import zstate as zs
import zstate.cells as cells
import zstate.torch as zt
from tests.cells import made_up
from tests.cells.test_resets import _call, _rng, _run
from zstate import functional
from zstate.cells import GRU, LSTM, RNN
from zstate.descriptors import Descriptor
from zstate.errors import BackendError, OptionError, ShapeError
from zstate.operations import operations_of


def _spread(weight, gates):
    """[…,heads,G·d,d] as […,G·H,H], block by block."""
    *lead, heads, _, units = weight.shape
    hidden = heads * units
    found = np.zeros((*lead, gates * hidden, hidden))
    for head in range(heads):
        for gate in range(gates):
            row, column = gate * hidden + head * units, head * units
            block = weight[..., head, gate * units : (gate + 1) * units, :]
            found[..., row : row + units, column : column + units] = block
    return found


MEANS = [each.definition for each in (cells.layer_norm_lstm, cells.layer_norm_gru, cells.block_gru)]


def drawn(rng):
    every = [RNN, LSTM, GRU, cells.slstm.definition, cells.cifg.definition, *MEANS]
    cell = every[rng.integers(len(every))]
    options = {"reverse": bool(rng.random() < 0.3), "bidirectional": bool(rng.random() < 0.4)}
    if cell is GRU:
        options["reset_after"] = bool(rng.random() < 0.5)
    steps, batch = int(rng.integers(0, 6)), int(rng.integers(1, 4))
    heads, units = int(rng.integers(2, 5)), int(rng.choice([1, 2, 5, 16]))
    hidden = heads * units
    given = _call(rng, cell, steps, batch, hidden, 3, **options)
    lead = (2,) * options["bidirectional"]
    shape = (*lead, heads, len(cell.gates) * units, units)
    given["recurrent_weight"] = rng.standard_normal(shape) * 0.5
    if rng.random() < 0.3:
        del given["input_weight"]
        both = 2 if options["bidirectional"] else 1
        given["source"] = rng.standard_normal((steps, batch, both * len(cell.gates) * hidden))
    if rng.random() < 0.5:
        given["mask"] = given["mask"][:, :, :1] if rng.random() < 0.5 else given["mask"][:1, :1]
    if rng.random() < 0.4:
        given["resets"] = rng.random((steps, batch)) < 0.3
    both = 2 if options["bidirectional"] else 1
    gradients = {s.name: rng.standard_normal((steps, batch, both * hidden)) for s in cell.states}
    return cell, given, options, heads, gradients


@pytest.mark.parametrize("part", range(4))
def test_as_one_weight_with_zeros(pytestconfig, part: int) -> None:
    rng = _rng(pytestconfig, part)
    for _ in range(15):
        cell, given, options, heads, gradients = drawn(rng)
        gates = len(cell.gates)
        dense = {**given, "recurrent_weight": _spread(given["recurrent_weight"], gates)}
        wanted, totals = _run(cell, dense, options, gradients, "reference")
        for backend in ("reference", "native"):
            found, grads = _run(cell, given, {**options, "heads": heads}, gradients, backend)
            for state in cell.states:
                np.testing.assert_allclose(found[state.name], wanted[state.name], atol=1e-10)
            for name, value in totals.items():
                if value is None:
                    continue
                mine = grads[name]
                if name == "recurrent_weight":
                    there = _spread(np.ones_like(mine), gates)
                    mine, value = _spread(mine, gates), value * there
                scale = 1 + abs(value).max(initial=0)
                np.testing.assert_allclose(mine, value, rtol=1e-8, atol=1e-9 * scale)


def test_heads_do_not_see_each_other() -> None:
    rng = np.random.default_rng(3)
    x, R = rng.standard_normal((3, 2, 4 * 8)), rng.standard_normal((2, 16, 4))
    x.reshape(3, 2, 4, 2, 4)[0, :, :, 0] = np.nan
    for backend in ("reference", "native"):
        h = zs.lstm(x, R, heads=2, backend=backend).state
        assert np.isnan(h[..., :4]).all() and np.isfinite(h[..., 4:]).all()


@pytest.mark.parametrize("heads", [2, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_types_by_torch(dtype, heads) -> None:
    torch.manual_seed(1)
    x, R = torch.randn(5, 3, 6), torch.randn(heads, 32 // heads, 8 // heads) * 0.4
    W, h0 = torch.randn(32, 6) * 0.4, torch.randn(3, 8)
    small = [each.to(dtype).requires_grad_() for each in (x, R, W, h0)]
    wide = [each.detach().double().requires_grad_() for each in small]
    found, wanted = (
        zs.lstm(x, R, input_weight=W, init_state=h0, heads=heads).state
        for x, R, W, h0 in (small, wide)
    )
    unit = torch.finfo(dtype).eps
    assert found.dtype is dtype
    assert (found.double() - wanted).abs().max() < 4 * unit
    weight = torch.randn_like(wanted)
    ours = torch.autograd.grad((found.double() * weight).sum(), small)
    theirs = torch.autograd.grad((wanted * weight).sum(), wide)
    for mine, exact in zip(ours, theirs, strict=True):
        assert (mine.double() - exact).abs().max() < 30 * unit * (1 + exact.abs().max())


def test_what_a_diagonal_weight_saves(pytestconfig) -> None:
    """The training state of one backend serves the gradient operation of another."""
    rng = _rng(pytestconfig)
    for cell in (GRU, LSTM, cells.slstm.definition, cells.mgu.definition):
        given = _call(rng, cell, 4, 2, 5, 3)
        given.pop("secondary_bias", None)
        given["recurrent_weight"] = rng.standard_normal((5, len(cell.gates), 1))
        saved = [
            _run(cell, given, {"heads": 5}, backend=backend)["training_state"]
            for backend in ("reference", "native")
        ]
        np.testing.assert_allclose(*saved, rtol=1e-10, atol=1e-11)


@dataclass(frozen=True, eq=True, unsafe_hash=False)
class WithoutHeads(Descriptor):
    reverse: bool = False
    bidirectional: bool = False
    training: bool = False

    __hash__ = Descriptor.__hash__


def test_more_parameters_than_the_engine_has_room_for() -> None:
    """A diagonal R is one more parameter."""
    names = [f"p{k}" for k in range(24)]

    @cells.cell(gates="f", states="h", parameters=" ".join(names))
    def many(x, R, h, *own):
        return cells.tanh(x.f + R.f @ h + sum(own))

    rng = np.random.default_rng(5)
    own = dict(zip(names, rng.standard_normal((24, 4)) * 0.2, strict=True))
    x, R = rng.standard_normal((3, 2, 4)), rng.standard_normal((4, 1, 1))
    init = rng.standard_normal((2, 4))
    found = many(x, R, heads=4, init_h=init, training=True, **own)
    h = init
    for t in range(3):
        h = np.tanh(x[t] + R.reshape(4) * h + sum(own.values()))
        np.testing.assert_allclose(found.h[t], h, atol=1e-12)
    given = {"state_gradients": {"h": found.h}, "heads": 4, "init_h": init, **own}
    assert many.gradients(x, R, found, **given).recurrent_weight.shape == R.shape
    with pytest.raises(BackendError, match="24 parameters, not 25"):
        many(x, R, heads=4, backend="native", **own)


def test_refusals() -> None:
    x = np.zeros((3, 2, 32))
    with pytest.raises(ShapeError, match=r"expected \[2,4d,d\] = \[2,32,8\], got \[32,8\]"):
        zs.lstm(x, np.zeros((32, 8)), heads=2)
    for heads in (0, -1, 2.0, "2", None):
        with pytest.raises(OptionError, match="heads: expected a number of heads, at least 1"):
            zs.lstm(x, np.zeros((2, 16, 4)), heads=heads)
    cell = replace(made_up.make(np.random.default_rng(0)), descriptor=WithoutHeads)
    with pytest.raises(OptionError, match="heads: expected 1: the cell has no heads, got 2"):
        functional.run(operations_of(cell)[0], (x, x, *[None] * 20), None, None, heads=2)


def _jax_lstm(x, R, heads):
    pytest.importorskip("jax")
    import zstate.jax

    return zstate.jax.lstm(x, R, heads=heads)


def _with_heads(heads):
    """The output of every kind of call with this many heads, of which R has one or two."""
    rng = np.random.default_rng(8)
    many = 1 if np.shape(heads) else int(heads)
    units = 4 // many
    shape = (16, 4) if many == 1 else (many, 4 * units, units)
    x, R = rng.normal(size=(3, 2, 16)), rng.normal(size=shape)

    def in_graph():
        g = zs.Graph()
        source = g.placeholder(shape=x.shape, dtype="float64", name="x")
        (h, *_) = g.lstm(source, recurrent_weight=g.variable(R), heads=heads)
        return g.run({source: x}, [h])[h]

    def module():
        torch.manual_seed(0)
        return zt.Recurrent(cells.mgu, 3, 4, heads=heads)(torch.ones(2, 1, 3))[0].detach().numpy()

    return {
        "zs.lstm": lambda: zs.lstm(x, R, heads=heads).state,
        "tensors": lambda: zs.lstm(torch.tensor(x), torch.tensor(R), heads=heads).state.numpy(),
        "a descriptor": lambda: zs.lstm(x, R, descriptor=zs.LSTMDescriptor(heads=heads)).state,
        "zj.lstm": lambda: np.asarray(_jax_lstm(x, R, heads=heads).state),
        "a cell": lambda: cells.slstm(x, R, heads=heads).h,
        "a graph": in_graph,
        "a module": module,
    }


KINDS = tuple(_with_heads(1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2])
def test_any_integer_is_a_number_of_heads(kind, count) -> None:
    wanted = _with_heads(count)[kind]()
    for heads in (np.int64(count), np.uint8(count), np.array(count)):
        for _ in range(2):  # a known call too
            np.testing.assert_array_equal(_with_heads(heads)[kind](), wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heads", [True, np.True_, 1.0, np.float32(1), np.array([1, 1])], ids=repr)
def test_nothing_else_is(kind, heads) -> None:
    for good in (1, 1):
        _with_heads(good)[kind]()
    with pytest.raises(zs.ZStateError, match=r"heads: expected (a number of heads|an integer)"):
        _with_heads(heads)[kind]()
