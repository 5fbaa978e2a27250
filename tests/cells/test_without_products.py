"""Cells without products take None as their recurrent weight; against loops of torch operations."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import numpy as np
import onnxruntime
import pytest
import torch

import zstate as zs
import zstate.onnx as zo
import zstate.torch as zt
from zstate import cells
from zstate.backends import native

T, N, I, H = 4, 3, 2, 5
BACKENDS = [None, "reference"] + ["native"] * (native.unavailable() is None)


@cells.cell(gates="f z", parameters="u", initial={"h": 0.5})
def diagonal(x, R, h, u):
    f = cells.sigmoid(x.f + u * h)
    return f * h + (1 - f) * cells.tanh(x.z)


@cells.cell(gates="f z", parameters="u", steps="k", initial={"h": 0.5})
def timed(x, R, h, u, k):
    f = k * cells.sigmoid(x.f + u * h)
    return f * h + (1 - f) * cells.tanh(x.z)


def drawn(directions=1, projected=False, with_values=False):
    width = directions * 2 * H
    shapes = {"source": (T, N, width if projected else I), "bias": (width,), "u": (directions * H,)}
    if not projected:
        shapes["input_weight"] = (width, I)
    if with_values:
        shapes["k"] = (T, N, directions * H)
    rng = np.random.default_rng(directions)
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


def looped(given, directions=1, resets=None):
    """h [T,N,D·H] by torch's operations; ``given`` are tensors."""
    gates = given["source"]
    if "input_weight" in given:
        gates = gates @ given["input_weight"].T
    gates, both = gates + given["bias"], []
    for d in range(directions):
        u = given["u"].chunk(directions)[d]
        h = begin = given.get("init_h", torch.full((N, directions * H), 0.5).double())
        h = begin = h.chunk(directions, 1)[d]
        found = [begin] * T
        for t in range(T)[:: -1 if d else 1]:
            if resets is not None:
                h = torch.where(torch.tensor(resets[t])[:, None], 0.5, h)
            x_f, x_z = gates[t].chunk(directions, 1)[d].chunk(2, 1)
            f = (x_f + u * h).sigmoid()
            if "k" in given:
                f = f * given["k"][t].chunk(directions, 1)[d]
            h = found[t] = f * h + (1 - f) * x_z.tanh()
        both.append(torch.stack(found))
    return torch.cat(both, -1)


def tensors_of(given):
    return {name: torch.tensor(value, requires_grad=True) for name, value in given.items()}


@pytest.mark.parametrize("projected", [False, True])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cell", [diagonal, timed], ids=["diagonal", "timed"])
def test_numbers_and_gradients(cell, backend, directions, projected):
    given = drawn(directions, projected, cell is timed)
    tensors = tensors_of(given)
    wanted = looped(tensors, directions)
    incoming = np.random.default_rng(5).normal(size=wanted.shape)
    gradients = torch.autograd.grad(wanted, list(tensors.values()), torch.tensor(incoming))
    options = {"bidirectional": directions == 2, "backend": backend}
    for _ in range(2):  # the second time as a known call
        out = cell(recurrent_weight=None, **given, **options, training=True)
        np.testing.assert_allclose(out.h, wanted.detach().numpy(), rtol=1e-12)
        others = {name: value for name, value in given.items() if name != "source"}
        found = cell.gradients(given["source"], None, out, {"h": incoming}, **others, **options)
        assert found.recurrent_weight is None and found.init_h is None
        for name, gradient in zip(given, gradients, strict=True):
            np.testing.assert_allclose(getattr(found, name), gradient, rtol=1e-10, atol=1e-12)
    # On tensors, by autograd.
    ours = cell(recurrent_weight=None, **tensors, **options).h
    found = torch.autograd.grad(ours, list(tensors.values()), torch.tensor(incoming))
    for mine, gradient in zip(found, gradients, strict=True):
        torch.testing.assert_close(mine, gradient, rtol=1e-10, atol=1e-12)


def test_resets_and_an_initial_state():
    given = drawn() | {"init_h": np.random.default_rng(3).normal(size=(N, H))}
    resets = np.random.default_rng(4).random((T, N)) < 0.4
    wanted = looped({name: torch.tensor(value) for name, value in given.items()}, 1, resets)
    found = diagonal(recurrent_weight=None, resets=resets, **given).h
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-12)


def test_a_weight_that_nothing_reads_may_be_passed():
    given = drawn()
    wanted = diagonal(recurrent_weight=None, **given).h
    np.testing.assert_array_equal(diagonal(recurrent_weight=np.ones((2 * H, H)), **given).h, wanted)


@pytest.mark.parametrize("cell", [diagonal, timed], ids=["diagonal", "timed"])
def test_torch_compile_and_jax(cell):
    given = drawn(2, with_values=cell is timed)
    tensors = tensors_of(given)
    wanted = looped(tensors, 2)
    wanted.sin().sum().backward()

    def call(arrays):
        return cell(recurrent_weight=None, bidirectional=True, **arrays).h

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(tensors), wanted)
    with jax.enable_x64(True):
        arrays = {name: jax.numpy.asarray(value) for name, value in given.items()}
        found = jax.jit(jax.grad(lambda a: jax.numpy.sin(call(a)).sum()))(arrays)
        for name, tensor in tensors.items():
            np.testing.assert_allclose(found[name], tensor.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("cell", [diagonal, timed], ids=["diagonal", "timed"])
def test_in_a_graph(cell, tmp_path: Path):
    given = drawn(2, with_values=cell is timed)
    g = zs.Graph()
    fed = {
        name: g.placeholder(
            shape=(None, None, I) if name == "source" else value.shape, dtype="float64", name=name
        )
        for name, value in given.items()
    }
    (h,) = g.recurrent(cell, recurrent_weight=None, bidirectional=True, **fed)
    gradients = g.gradients(g.reduction_sum(g.sin(h)), list(fed.values()))
    feeds = {fed[name]: given[name] for name in given}
    found = g.run(feeds, [h, *gradients.values()])
    tensors = tensors_of(given)
    wanted = looped(tensors, 2)
    np.testing.assert_allclose(found[h], wanted.detach().numpy(), rtol=1e-12)
    wanted.sin().sum().backward()
    for name, tensor in fed.items():
        np.testing.assert_allclose(found[gradients[tensor]], tensors[name].grad, rtol=1e-10)
    g.save(tmp_path / "graph.safetensors")
    other = zs.Graph.load(tmp_path / "graph.safetensors")
    loaded = {each.name: each for node in other.nodes for each in node.results}
    same = loaded[h.name]
    again = other.run({loaded[name]: given[name] for name in given}, [same])[same]
    np.testing.assert_array_equal(again, found[h])


def test_the_gradient_node_by_hand():
    given = drawn()
    g = zs.Graph()
    fed = {n: g.placeholder(shape=v.shape, dtype="float64", name=n) for n, v in given.items()}
    source = fed.pop("source")
    h, z = g.recurrent(diagonal, source, recurrent_weight=None, training=True, **fed)
    found = g.recurrent_gradients(
        diagonal, source, recurrent_weight=None, source_gradient=h, z_state=z, h_output_fwd=h, **fed
    )
    assert [each.name.split(":")[1] for each in found] == ["source", "input_weight", "bias", "u"]
    values = g.run({source: given["source"], **{fed[n]: given[n] for n in fed}}, found)
    out = diagonal(recurrent_weight=None, training=True, **given)
    wanted = diagonal.gradients(given.pop("source"), None, out, {"h": out.h}, **given)
    for tensor in found:
        np.testing.assert_array_equal(values[tensor], getattr(wanted, tensor.name.split(":")[1]))


def test_onnx(tmp_path: Path):
    given = {name: value.astype(np.float32) for name, value in drawn().items()}
    g = zs.Graph()
    fed = {n: g.placeholder(shape=v.shape, dtype="float32", name=n) for n, v in given.items()}
    (h,) = g.recurrent(diagonal, recurrent_weight=None, **fed)
    path = tmp_path / "model.onnx"
    zo.save(g, outputs={"h": h}, path=path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, given)
    wanted = diagonal(recurrent_weight=None, **given).h
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_as_a_module():
    layer = zt.Recurrent(diagonal, I, H, bidirectional=True, dtype=torch.double)
    names = {"weight_ih_l0", "bias_l0", "u_l0"}
    assert set(layer.state_dict()) == names | {f"{name}_reverse" for name in names}
    source = torch.randn(T, N, I, dtype=torch.double)
    output, last = layer(source)
    own = {
        n: torch.cat([getattr(layer, f"{of}_l0"), getattr(layer, f"{of}_l0_reverse")])
        for n, of in (("input_weight", "weight_ih"), ("bias", "bias"), ("u", "u"))
    }
    wanted = looped({"source": source, **own}, 2)
    torch.testing.assert_close(output, wanted)
    torch.testing.assert_close(last, torch.stack([wanted[-1, :, :H], wanted[0, :, H:]]))
    parameters = list(layer.parameters())
    ours = torch.autograd.grad(output.sin().sum(), parameters)
    theirs = torch.autograd.grad(wanted.sin().sum(), parameters)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)
    short, _ = layer(source, lengths=[T, 2, 1])
    torch.testing.assert_close(short[:2, 1], layer(source[:2, 1])[0])


REFUSED = {
    "heads": ({"heads": 5}, "heads: expected 1 without recurrent_weight, got 5"),
    "no units": (
        {"source": np.ones((T, N, 0)), "input_weight": None},
        "source: expected [T,N,2H] with H of at least 1, got [4,3,0]",
    ),
    "odd source": (
        {"source": np.ones((T, N, 7)), "input_weight": None},
        "source: expected [T,N,2H], got [4,3,7]",
    ),
    "odd weight": (
        {"input_weight": np.ones((7, I))},
        "input_weight: expected [2H,I] = [2H,2], got [7,2]",
    ),
    "bias": ({"bias": np.ones(3)}, "bias: expected [2H] = [10], got [3]"),
}


@pytest.mark.parametrize(("wrong", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refusals(wrong, message):
    with pytest.raises(zs.ZStateError, match=re.escape(f"[diagonal] {message}")):
        diagonal(recurrent_weight=None, **drawn() | wrong)


def test_cells_with_products_need_a_weight():
    with pytest.raises(zs.DTypeError, match=r"\[mgu\] recurrent_weight: expected a NumPy array"):
        cells.mgu(np.ones((T, N, 2 * H)), None)
    g = zs.Graph()
    with pytest.raises(zs.ZStateError, match="recurrent_weight: expected a Tensor of this graph"):
        g.recurrent(cells.mgu, g.placeholder(shape=(T, N, 2 * H)), recurrent_weight=None)
    with pytest.raises(zs.OptionError, match=r"\[Recurrent\] heads: expected 1, as the cell has"):
        zt.Recurrent(diagonal, I, 4, heads=2)
