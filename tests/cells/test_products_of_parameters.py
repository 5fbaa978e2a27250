"""Products of R with parameters alone, which have no time and no batch, against torch loops."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch

from zstate import cells
from zstate.backends import native

T, N, I, H = 4, 2, 3, 6
BACKENDS = ["reference"] + ["native"] * (native.unavailable() is None)


@cells.cell(gates="r z", parameters="p q")
def some(x, R, h, p, q):
    return cells.sigmoid(x.r + R.r @ p) * h + cells.tanh(x.z + R.z @ (h * q))


@cells.cell(gates="r z", parameters="p q")
def every(x, R, h, p, q):
    return cells.sigmoid(x.r + R.r @ p) * h + cells.tanh(x.z + R.z @ (p * q))


@cells.cell(gates="r z", parameters="p q")
def alone(x, R, h, p, q):
    """Of gate r there is nothing but the product."""
    return q * cells.sigmoid(R.r @ p) * h + cells.tanh(x.z)


@cells.cell(gates="r z", parameters="p q")
def twice(x, R, h, p, q):
    return cells.sigmoid(x.r) * h + cells.tanh(x.z + R.z @ (q * cells.tanh(R.r @ p)))


CELLS = [some, every, alone, twice]


def step(name, x_r, x_z, R_r, R_z, h, p, q):
    if name == "alone":
        return q * (R_r(p)).sigmoid() * h + x_z.tanh()
    if name == "twice":
        return x_r.sigmoid() * h + (x_z + R_z(q * R_r(p).tanh())).tanh()
    return (x_r + R_r(p)).sigmoid() * h + (x_z + R_z((h if name == "some" else p) * q)).tanh()


def drawn(heads):
    d = H // heads
    shapes = {"source": (T, N, I), "input_weight": (2 * H, I), "init_h": (N, H)}
    shapes |= {"recurrent_weight": (2 * H, H) if heads == 1 else (heads, 2 * d, d)}
    rng = np.random.default_rng(heads)
    return {n: rng.normal(size=s) / 2 for n, s in (shapes | {"p": (H,), "q": (H,)}).items()}


def looped(cell, given, heads):
    """h [T,N,H] by torch's operations; ``given`` are tensors."""
    blocks = given["recurrent_weight"].reshape(heads, 2, H // heads, H // heads)

    def times(gate):
        whole = torch.block_diag(*blocks[:, gate])
        return lambda value: value @ whole.T

    h, found = given["init_h"], []
    for x in given["source"] @ given["input_weight"].T:
        x_r, x_z = x.chunk(2, 1)
        h = step(cell.__name__, x_r, x_z, times(0), times(1), h, given["p"], given["q"])
        found.append(h)
    return torch.stack(found)


def tensors_of(given):
    return {name: torch.tensor(value, requires_grad=True) for name, value in given.items()}


@pytest.mark.parametrize("heads", [1, 2, H])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.__name__)
def test_numbers_and_gradients(cell, backend, heads):
    given = drawn(heads)
    tensors = tensors_of(given)
    wanted = looped(cell, tensors, heads)
    incoming = np.random.default_rng(5).normal(size=(T, N, H))
    gradients = torch.autograd.grad(
        wanted, list(tensors.values()), torch.tensor(incoming), materialize_grads=True
    )
    out = cell(**given, training=True, backend=backend, heads=heads)
    np.testing.assert_allclose(out.h, wanted.detach().numpy(), rtol=1e-11, atol=1e-12)
    others = {n: v for n, v in given.items() if n not in ("source", "recurrent_weight")}
    found = cell.gradients(
        given["source"],
        given["recurrent_weight"],
        out,
        {"h": incoming},
        **others,
        backend=backend,
        heads=heads,
    )
    for name, gradient in zip(given, gradients, strict=True):
        np.testing.assert_allclose(getattr(found, name), gradient, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.__name__)
def test_second_derivatives_of_torch(cell):
    tensors = tensors_of(drawn(1))

    def second(h):
        first = torch.autograd.grad(h.sin().sum(), list(tensors.values()), create_graph=True)
        norm = sum(each.square().sum() for each in first)
        return torch.autograd.grad(norm, list(tensors.values()))

    for ours, theirs in zip(
        second(cell(**tensors).h), second(looped(cell, tensors, 1)), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.__name__)
def test_gradients_of_jax(cell):
    given = drawn(2)
    tensors = tensors_of(given)
    looped(cell, tensors, 2).sin().sum().backward()
    with jax.enable_x64(True):
        arrays = {name: jax.numpy.asarray(value) for name, value in given.items()}
        found = jax.grad(lambda a: jax.numpy.sin(cell(**a, heads=2, backend="reference").h).sum())(
            arrays
        )
        for name, tensor in tensors.items():
            np.testing.assert_allclose(found[name], tensor.grad, rtol=1e-10, atol=1e-11)
