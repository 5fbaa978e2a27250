"""Values per step of cells in a graph, against loops of torch operations."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor

import zstate as zs
import zstate.onnx as zo
from zstate import cells

T, N, I, H = 4, 3, 2, 5


@cells.cell(gates="f z", states="h", parameters="p", steps="k q")
def leaky(x: Any, R: Any, h: Any, p: Any, k: Any, q: Any) -> Any:
    f = cells.sigmoid(x.f + R.f @ h + k * p)
    return k * h + (1 - k) * f * cells.tanh(x.z + R.z @ (f * h) + q)


def shapes(directions: int) -> dict[str, tuple[int, ...]]:
    D = directions
    return {
        "source": (T, N, I),
        "recurrent_weight": (2, 2 * H, H)[2 - D :],
        "input_weight": (D * 2 * H, I),
        "bias": (D * 2 * H,),
        "init_h": (N, D * H),
        "p": (D * H,),
        "k": (T, N, D * H),
        "q": (N, 1),
    }


def plain(given: dict[str, Tensor], directions: int, backwards: bool = False) -> Tensor:
    """h [T,N,D·H]; ``backwards``: the one direction reads from the end, and so do its steps lie."""
    both = []
    for d in range(directions):
        half = slice(d * H, (d + 1) * H)
        R = given["recurrent_weight"]
        R_f, R_z = (R if directions == 1 else R[d]).chunk(2)
        W, b = (given[name].chunk(directions)[d] for name in ("input_weight", "bias"))
        h, p, k = given["init_h"][:, half], given["p"][half], given["k"][..., half]
        steps: dict[int, Tensor] = {}
        for t in range(T)[:: -1 if d or backwards else 1]:
            x_f, x_z = (given["source"][t] @ W.T + b).chunk(2, 1)
            f = (x_f + h @ R_f.T + k[t] * p).sigmoid()
            h = k[t] * h + (1 - k[t]) * f * (x_z + (f * h) @ R_z.T + given["q"]).tanh()
            steps[t] = h
        order = reversed(range(T)) if backwards else range(T)
        both.append(torch.stack([steps[t] for t in order]))
    return torch.cat(both, -1)


def drawn(directions: int, dtype: Any = np.float64) -> dict[str, Any]:
    rng = np.random.default_rng(directions)
    return {n: (rng.normal(size=s) / 2).astype(dtype) for n, s in shapes(directions).items()}


def built(given: dict[str, Any], unknown: bool = False, **options: Any) -> Any:
    """The graph, the placeholders by name, and h."""
    g = zs.Graph()
    fed = {
        name: g.placeholder(
            shape=(None, None, value.shape[2])
            if unknown and name in ("source", "k")
            else value.shape,
            dtype=value.dtype.name,
            name=name,
        )
        for name, value in given.items()
    }
    (h,) = g.recurrent(leaky, **fed, **options)
    return g, fed, h


@pytest.mark.parametrize("unknown", [False, True], ids=["known", "unknown"])
@pytest.mark.parametrize("way", ["forward", "reverse", "bidirectional"])
def test_numbers_and_gradients(way: str, unknown: bool) -> None:
    options = {} if way == "forward" else {way: True}
    D = 2 if way == "bidirectional" else 1
    given = drawn(D)
    g, fed, h = built(given, unknown, **options)
    loss = g.reduction_sum(g.sin(h))
    gradients = g.gradients(loss, list(fed.values()))
    feeds = {fed[name]: given[name] for name in given}
    found = g.run(feeds, [h, *gradients.values()])
    tensors = {name: torch.tensor(value, requires_grad=True) for name, value in given.items()}
    wanted = plain(tensors, D, way == "reverse")
    np.testing.assert_allclose(found[h], wanted.detach().numpy(), rtol=1e-11, atol=1e-12)
    wanted.sin().sum().backward()
    for name, tensor in fed.items():
        array = found[gradients[tensor]]
        assert array.shape == given[name].shape
        np.testing.assert_allclose(array, tensors[name].grad.numpy(), rtol=1e-10, atol=1e-11)


def test_without_weights_and_with_numbers_that_are_the_same_everywhere() -> None:
    given = drawn(1)
    gates = given["source"] @ given["input_weight"].T + given["bias"]
    some = {n: v for n, v in given.items() if n not in ("source", "input_weight", "bias", "k")}
    some |= {"source": gates, "k": np.array(0.25)}
    g, fed, h = built(some)
    found = g.run({fed[name]: some[name] for name in some}, [h])[h]
    every = {**given, "k": np.full((T, N, H), 0.25)}
    wanted = plain({name: torch.tensor(value) for name, value in every.items()}, 1)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_other_types(dtype: str) -> None:
    given = drawn(2, dtype)
    g, fed, h = built(given, bidirectional=True)
    found = g.run({fed[name]: given[name] for name in given}, [h])[h]
    assert found.dtype == dtype and h.dtype == dtype
    wanted = plain({n: torch.tensor(v.astype(np.float64)) for n, v in given.items()}, 2).numpy()
    bound = 16 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=bound, atol=bound)


def test_heads_and_resets() -> None:
    """As the cell's own call has them."""
    given = drawn(1)
    given |= {"recurrent_weight": np.random.default_rng(0).normal(size=(H, 2, 1))}
    given |= {"resets": np.array([[0, 0, 1], [0, 1, 0], [0, 0, 0], [1, 0, 0]], np.float64)}
    g, fed, h = built(given, heads=H)
    found = g.run({fed[name]: given[name] for name in given}, [h])[h]
    np.testing.assert_allclose(found, leaky(**given, heads=H).h, rtol=1e-12, atol=1e-13)


def test_programs_and_files(tmp_path: Path) -> None:
    given = drawn(2)
    g, fed, h = built(given, unknown=True, bidirectional=True)
    (gradient,) = g.gradients(g.reduction_sum(h), [fed["k"]]).values()
    feeds = {fed[name]: given[name] for name in given}
    wanted = g.run(feeds, [h, gradient])
    path = tmp_path / "graph.safetensors"
    g.save(path)
    other = zs.Graph.load(path)
    loaded = {each.name: each for node in other.nodes for each in node.results}
    again = {loaded[name]: given[name] for name in given}
    for tensor in (h, gradient):
        same = loaded[tensor.name]
        np.testing.assert_array_equal(other.run(again, [same])[same], wanted[tensor])
    shapes_of = {fed[name]: (given[name].shape, "float64") for name in given}
    g.compile(shapes_of, [h, gradient]).save(tmp_path / "program")
    program = zs.Executable.load(tmp_path / "program")
    found = program.run([given[name] for name in given])
    for tensor, array in zip((h, gradient), found, strict=True):
        np.testing.assert_allclose(array, wanted[tensor], rtol=1e-12, atol=1e-13)


def test_onnx(tmp_path: Path) -> None:
    given = drawn(1, np.float32)
    g, _, h = built(given)
    path = tmp_path / "model.onnx"
    zo.save(g, outputs={"h": h}, path=path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {name: given[name] for name in given})
    wanted = plain({name: torch.tensor(value) for name, value in given.items()}, 1)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-5, atol=1e-6)


def changed(**others: Any) -> Callable[[], Any]:
    given = {name: np.zeros(shape) for name, shape in shapes(1).items()} | others
    return lambda: built({name: value for name, value in given.items() if value is not None})


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "missing": (changed(k=None), "[recurrent] k: expected a Tensor of this graph, got None"),
    "too wide": (
        changed(k=np.zeros((T, N, H + 1))),
        "[recurrent] k: expected a shape that broadcasts to [T,N,H] = [4,3,5], got [4,3,6]",
    ),
    "too many axes": (changed(q=np.zeros((1, 1, 1, 1))), "[recurrent] q: expected a shape that"),
    "another type": (
        changed(q=np.zeros(1, np.float32)),
        "[recurrent] q: expected float64 like source, got float32",
    ),
    "another name": (changed(r=np.zeros(1)), "[recurrent] r: expected one of source,"),
    "bias": (changed(bias=np.zeros(H)), "[recurrent] bias: expected [2H] = [10], got [5]"),
    "source": (
        changed(input_weight=None),
        "[recurrent] source: expected [T,N,2H] = [T,N,10], got [4,3,2]",
    ),
    "weight": (
        changed(input_weight=np.zeros((H, I))),
        "[recurrent] input_weight: expected [2H,I] = [10,2], got [5,2]",
    ),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refusals(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(zs.ZStateError, match=re.escape(message)):
        call()


def test_the_gradient_node_by_hand_is_refused() -> None:
    g, fed, h = built(drawn(1))
    more = {name: tensor for name, tensor in fed.items() if name != "source"}
    with pytest.raises(zs.ZStateError, match="or graph.gradients, which has theirs too"):
        g.recurrent_gradients(leaky, fed["source"], **more, source_gradient=h, z_state=h)
