"""The library's cells against the loops that people know, forward and gradients by autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import zstate.cells as cells
from zstate.errors import EquationError

T, N, I, H = 5, 3, 4, 6


def _drawn(cell, gates, heads=1):
    """Inputs of a call by name, none of them zero."""
    units = H // heads
    blocks = (gates * units, units) if heads == 1 else (heads, gates * units, units)
    shapes = {"source": (T, N, I), "recurrent_weight": blocks, "input_weight": (gates * H, I)}
    shapes |= {each.initial: (N, H) for each in cell.definition.states}
    shapes |= {each.name: (H,) for each in cell.definition.own}
    return {
        name: torch.randn(*shape, dtype=torch.double).mul(0.6).requires_grad_()
        for name, shape in shapes.items()
    }


def _same(cell, given, wanted, **options):
    """The states, and the gradients of a random loss on all of them."""
    found = cell(**given, **options)[: len(wanted)]
    weights = [torch.randn_like(each) for each in wanted]
    losses = [
        sum((value * weight).sum() for value, weight in zip(values, weights, strict=True))
        for values in (found, wanted)
    ]
    ours, theirs = (torch.autograd.grad(loss, list(given.values())) for loss in losses)
    for value, other in zip((*found, *ours), (*wanted, *theirs), strict=True):
        torch.testing.assert_close(value, other, rtol=1e-10, atol=1e-11)
    # The gradient operation itself, on NumPy arrays.
    arrays = {name: value.detach().numpy() for name, value in given.items()}
    out = cell(**arrays, training=True, **options)
    states = [each.name for each in cell.definition.states]
    incoming = {name: weight.numpy() for name, weight in zip(states, weights, strict=True)}
    source, weight = arrays.pop("source"), arrays.pop("recurrent_weight")
    gradients = cell.gradients(source, weight, out, incoming, **arrays, **options)
    for name, value in zip(given, theirs, strict=True):
        np.testing.assert_allclose(getattr(gradients, name), value.numpy(), rtol=1e-9, atol=1e-10)


def _loop(given, step, *states):
    """The states after every step of a plain loop."""
    now = tuple(given[f"init_{name}"] for name in states)
    found = []
    for t in range(T):
        now = step(given["source"][t] @ given["input_weight"].T, *now)
        found.append(now)
    return [torch.stack(each) for each in zip(*found, strict=True)]


def _norm(value, given, of, gates, eps=1e-5):
    scale, shift = (
        torch.cat([given[f"{what}_{of}{gate}"] for gate in gates]) for what in ("scale", "shift")
    )
    return torch.nn.functional.layer_norm(value, (value.shape[-1],), scale, shift, eps)


def test_layer_norm_lstm():
    given = _drawn(cells.layer_norm_lstm, 4)

    def step(x, h, c):
        of_h = _norm(h @ given["recurrent_weight"].T, given, "h_", "ifzo")
        i, f, z, o = (_norm(x, given, "x_", "ifzo") + of_h).chunk(4, 1)
        c = _norm(f.sigmoid() * c + i.sigmoid() * z.tanh(), given, "c", [""])
        return o.sigmoid() * c.tanh(), c

    _same(cells.layer_norm_lstm, given, _loop(given, step, "h", "c"))


def test_layer_norm_gru():
    given = _drawn(cells.layer_norm_gru, 3)

    def step(x, h):
        a = _norm(x, given, "x_", "zro").chunk(3, 1)
        b = _norm(h @ given["recurrent_weight"].T, given, "h_", "zro").chunk(3, 1)
        z, r = (a[0] + b[0]).sigmoid(), (a[1] + b[1]).sigmoid()
        return (z * h + (1 - z) * (a[2] + r * b[2]).tanh(),)

    _same(cells.layer_norm_gru, given, _loop(given, step, "h"))


@pytest.mark.parametrize("heads", [1, 2, 6])
def test_block_gru(heads):
    given = _drawn(cells.block_gru, 3, heads)

    def step(x, h):
        blocks = given["recurrent_weight"].reshape(heads, 3, H // heads, H // heads)
        product = torch.einsum("njd,jgud->ngju", h.reshape(N, heads, H // heads), blocks)
        sums = _norm(x + product.reshape(N, 3 * H), given, "x_", "roz", 1e-3)
        r, o, z = sums.chunk(3, 1)
        update = (z - 1).sigmoid()
        return (update * (r.sigmoid() * o).tanh() + (1 - update) * h,)

    _same(cells.block_gru, given, _loop(given, step, "h"), heads=heads)


def test_diagonal_cells():
    given = _drawn(cells.indrnn, 1, H)
    u = given["recurrent_weight"].reshape(H)
    _same(cells.indrnn, given, _loop(given, lambda x, h: ((x + u * h).relu(),), "h"), heads=H)

    given = _drawn(cells.diagonal_gru, 3, H)
    u_z, u_r, u_o = given["recurrent_weight"].reshape(H, 3).unbind(1)

    def step(x, h):
        x_z, x_r, x_o = x.chunk(3, 1)
        z, r = (x_z + u_z * h).sigmoid(), (x_r + u_r * h).sigmoid()
        return (z * h + (1 - z) * (x_o + u_o * r * h).tanh(),)

    _same(cells.diagonal_gru, given, _loop(given, step, "h"), heads=H)


@cells.cell(gates="f z", states="h", parameters="p", steps="k q")
def leaky(x, R, h, p, k, q):
    f = cells.sigmoid(x.f + R.f @ h + k * p)
    return k * h + (1 - k) * f * cells.tanh(x.z + R.z @ (f * h) + q)


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("projected", [False, True])
def test_values_per_step(backend, projected):
    given = _drawn(leaky, 2)
    given["k"] = torch.randn(T, N, H, dtype=torch.double, requires_grad=True)
    given["q"] = torch.randn(N, 1, dtype=torch.double, requires_grad=True)
    given["bias"] = torch.randn(2 * H, dtype=torch.double, requires_grad=True)
    if projected:
        del given["input_weight"]
        given["source"] = torch.randn(T, N, 2 * H, dtype=torch.double, requires_grad=True)
    weight, h, found = given["recurrent_weight"], given["init_h"], []
    for t in range(T):
        x = given["source"][t] if projected else given["source"][t] @ given["input_weight"].T
        x_f, x_z = (x + given["bias"]).chunk(2, 1)
        k, p = given["k"][t], given["p"]
        f = (x_f + h @ weight[:H].T + k * p).sigmoid()
        h = k * h + (1 - k) * f * (x_z + (f * h) @ weight[H:].T + given["q"]).tanh()
        found.append(h)
    _same(leaky, given, [torch.stack(found)], backend=backend)


def test_values_per_step_of_both_directions_and_in_16_bits():
    shapes = {"source": (T, N, I), "recurrent_weight": (2, 2 * H, H), "input_weight": (4 * H, I)}
    shapes |= {"init_h": (N, 2 * H), "p": (2 * H,), "k": (T, N, 2 * H), "q": (1,)}
    given = {name: np.random.default_rng(5).standard_normal(s) for name, s in shapes.items()}
    both = leaky(**given, bidirectional=True).h
    for d in range(2):
        half = slice(d * H, (d + 1) * H)
        one = {**given, "recurrent_weight": given["recurrent_weight"][d]}
        one["input_weight"] = given["input_weight"].reshape(2, 2 * H, I)[d]
        one |= {name: given[name][..., half] for name in ("init_h", "p", "k")}
        found = leaky(**one, reverse=d == 1).h
        np.testing.assert_allclose(found[::-1] if d else found, both[..., half], rtol=1e-12)
    small = {name: torch.tensor(value).to(torch.bfloat16) for name, value in given.items()}
    wide = {name: value.double() for name, value in small.items()}
    found, wanted = leaky(**small, bidirectional=True).h, leaky(**wide, bidirectional=True).h
    assert found.dtype is torch.bfloat16
    assert (found.double() - wanted).abs().max() < 2**-7 * (1 + wanted.abs().max())


def test_refusals():
    given = {"source": np.zeros((T, N, 2 * H)), "recurrent_weight": np.zeros((2 * H, H))}
    given |= {"p": np.zeros(H), "q": np.zeros(1)}
    with pytest.raises(TypeError, match=r"\[leaky\] k: expected an array that broadcasts to"):
        leaky(**given)
    with pytest.raises(ValueError, match=r"\[leaky\] k: expected .* = \[5,3,6\], got \[7\]"):
        leaky(**given, k=np.zeros(7))
    with pytest.raises(EquationError, match=r"layer_norm\(\): expected 2 parameters"):

        @cells.cell(gates="a b", parameters="p")
        def wrong(x, R, h, p):
            a, b = cells.layer_norm([x.a + R.a @ h, x.b], p)
            return a * b

    with pytest.raises(EquationError, match=r"x\.k: expected one of f, z"):

        @cells.cell(gates="f z", steps="k")
        def reaching(x, R, h, k):
            return x.f + x.z + x.k * h
