"""The scripts in examples/mac: every line is one that PyObjC takes, and the numbers are right."""

from __future__ import annotations

import ast
import inspect
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from zstate import pyobjc
from zstate.mpsgraph import published
from zstate.pyobjc import executable, graph, metal, ndarrays

FOLDER = Path(__file__).parents[2] / "examples" / "mac"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
OFFERED: dict[str, set[int]] = {}
for _row in published.methods():
    if _row.kind == "offered":
        OFFERED.setdefault(_row.pyobjc, set()).add(_row.arguments)


def test_every_script_is_tested() -> None:
    assert NAMES == ["encoder", "language_model", "streaming"]


@pytest.mark.parametrize("name", NAMES)
def test_scripts_spell_what_is_published(name: str) -> None:
    """Every selector is in the table, with as many arguments; every name of the module is too."""
    seen = 0
    for node in ast.walk(ast.parse((FOLDER / f"{name}.py").read_text())):
        call = node.func if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "mps":
            is_class = bool(published.methods_of(node.attr))
            is_constant = isinstance(getattr(pyobjc, node.attr), int)
            assert is_class or is_constant or node.attr == "MTLCreateSystemDefaultDevice"
        if isinstance(call, ast.Attribute) and call.attr.endswith("_"):
            assert len(node.args) in OFFERED[call.attr] and not node.keywords, call.attr
            seen += 1
    assert seen > 10


PLAIN: dict[str, tuple[type, ...]] = {
    "Int": (int,),
    "Double": (int, float),
    "Float": (int, float),
    "Bool": (bool,),
    "String": (str,),
    "Data": (pyobjc.NSData,),
    "UnsafeRawPointer": (bytes,),
    "UnsafeMutableRawPointer": (np.ndarray,),
}


def fits(kind: str, value: object) -> bool:
    """Whether a value is surely one for a parameter of this Swift type; NumPy's numbers are not."""
    if kind in PLAIN:
        is_array = isinstance(value, np.ndarray)
        return type(value) in PLAIN[kind] and (not is_array or value.flags.c_contiguous)
    if kind.startswith("["):
        key, _, member = kind[1:-1].replace("NSNumber", "Int").partition(" : ")
        if member:
            pairs = value.items() if isinstance(value, dict) else [(None, None)]
            return all(fits(key, k) and fits(member, v) for k, v in pairs)
        return isinstance(value, list | tuple) and all(fits(key, item) for item in value)
    name = kind.removeprefix("any ").removeprefix("@escaping ")
    if name.endswith("Handler"):
        return callable(value)
    found = getattr(pyobjc, name, None) or getattr(metal, name, None)
    return isinstance(value, found) if isinstance(found, type) else type(value) is int  # an enum


def checked(row: published.Method, method: Any) -> Any:
    kinds = row.parameters
    if row.is_property and row.arguments:
        kinds = (published.Parameter("", row.returns.removesuffix("?"), row.returns[-1] == "?"),)

    def call(self: Any, *arguments: Any) -> Any:
        for kind, value in zip(kinds, arguments, strict=True):
            is_nil = value is None and kind.optional
            assert is_nil or fits(kind.type, value), (row.selector, kind, value)
        return method(self, *arguments)

    return call


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The facade without what PyObjC does not have: arrays as feeds, results as arrays; and with
    every argument of the type that is published, nil only where it may be."""
    for row in published.methods():
        kind: Any = getattr(pyobjc, row.owner, None) or getattr(metal, row.owner, None)
        if row.kind == "offered" and row.swift and row.arguments:
            method = inspect.getattr_static(kind, row.pyobjc)
            if isinstance(method, classmethod):
                replaced: Any = classmethod(checked(row, method.__func__))
            else:
                replaced = checked(row, method)
            monkeypatch.setattr(kind, row.pyobjc, replaced)

    def fed(value: Any) -> Any:
        assert isinstance(value, pyobjc.MPSGraphTensorData)
        return value._array

    monkeypatch.setattr(sys, "platform", "linux")  # on a Mac too, it is the facade that is tested
    monkeypatch.setattr(graph, "fed", fed)
    monkeypatch.setattr(executable, "fed", fed)
    monkeypatch.delattr(ndarrays.Values, "__array__")


def run(name: str) -> dict[str, Any]:
    return runpy.run_path(str(FOLDER / f"{name}.py"))


def lstm(x: Any, W: Any, R: Any, b: Any, h: Any, c: Any, mask: Any = None, p: Any = 0.0) -> Any:
    """[T,N,H]: MPSGraph's equations in torch, all peepholes on the cell before."""
    states = []
    for t in range(x.shape[0]):
        seen = h if mask is None else h * mask[t]
        gates = x[t] @ W.T + seen @ R.T + b + p * c.repeat(1, 4)
        i, f, z, o = gates.chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(z)
        h = torch.sigmoid(o) * torch.tanh(c)
        states.append(h)
    return torch.stack(states), h, c


def wide(values: dict[str, Any], grad: bool = False) -> dict[str, Any]:
    return {
        name: torch.tensor(value, dtype=torch.float64, requires_grad=grad)
        for name, value in values.items()
    }


@pytest.mark.usefixtures("strict")
def test_the_language_model_takes_adams_steps(capsys: pytest.CaptureFixture[str]) -> None:
    found = run("language_model")
    assert "loss" in capsys.readouterr().out
    parameters = wide(found["initial"], grad=True)
    moments = {name: [torch.zeros_like(p), torch.zeros_like(p)] for name, p in parameters.items()}
    zeros = torch.zeros(found["N"], found["H"], dtype=torch.float64)
    wanted = []
    for step in range(8):  # of which the last four are the executable's
        tokens, targets = (torch.tensor(array).long() for array in found["batch"](step))
        weights = [parameters[name] for name in ("W", "R", "b")]
        h, _, _ = lstm(parameters["table"][tokens], *weights, zeros, zeros)
        logits = (h @ parameters["P"]).reshape(-1, found["V"])
        loss = torch.nn.functional.cross_entropy(logits, targets.reshape(-1))
        wanted.append(loss.item())
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        rate = 0.02 * (1 - 0.99 ** (step + 1)) ** 0.5 / (1 - 0.9 ** (step + 1))
        with torch.no_grad():
            for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
                m, v = moments[name]
                m.mul_(0.9).add_(0.1 * gradient)
                v.mul_(0.99).add_(0.01 * gradient**2)
                parameter -= rate * m / (v.sqrt() + 1e-8)
    np.testing.assert_allclose(found["losses"][:8], wanted, rtol=2e-4)
    assert len(found["losses"]) == 64 and found["losses"][-1] < 0.3 * found["losses"][0]


@pytest.mark.usefixtures("strict")
def test_streaming_through_buffers_is_one_long_run() -> None:
    found = run("streaming")
    weights, stream, states = wide(found["weights"]), found["stream"], found["states"]
    whole = torch.tensor(stream.reshape(-1, *stream.shape[2:]), dtype=torch.float64)
    h, c = torch.tensor(states, dtype=torch.float64)
    h, last, _ = lstm(whole, weights["W"], weights["R"], weights["b"], h, c)
    wanted = torch.sigmoid(h @ torch.tensor(found["projection"], dtype=torch.float64))
    np.testing.assert_allclose(
        found["outputs"].reshape(-1), wanted.reshape(-1), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(found["final"], last, rtol=1e-5, atol=1e-6)
    assert found["finished"] == [pyobjc.MTLCommandBufferStatusCompleted] * 3


@pytest.mark.usefixtures("strict")
def test_the_encoder_stops_at_the_end_of_a_sentence() -> None:
    found = run("encoder")
    (x,) = wide({"x": found["sentences"]}, grad=True).values()
    w = wide(found["weights"], grad=True)
    lengths = torch.tensor(found["LENGTHS"])
    valid = (torch.arange(found["T"])[:, None] < lengths)[..., None].double()
    h, _, _ = lstm(x, w["W"], w["R"], w["b"], w["h0"], w["c0"], valid, w["p"])
    pooled = (h * valid).sum(0) / lengths[:, None]
    scale, shift = w["gamma"][0], w["beta"][0]
    code = torch.nn.functional.layer_norm(pooled, (found["H"],), scale, shift, 1e-3)
    scores, who = torch.topk(code @ code.T, 2)
    dp, dx = torch.autograd.grad((code**2).sum(), [w["p"], x])
    close = {"rtol": 2e-4, "atol": 2e-5}
    np.testing.assert_allclose(found["codes"], code.detach(), **close)
    np.testing.assert_allclose(found["scores"], scores.detach(), **close)
    np.testing.assert_array_equal(found["matches"], who)
    np.testing.assert_allclose(found["peephole_gradient"], dp, **close)
    np.testing.assert_allclose(found["source_gradient"], dx, **close)
    assert not dx[3:, 1].any() and found["done"] == [None]


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize(
    "line",
    [
        "graph.squareWithTensor_name_(None, None)",
        "graph.squareWithTensor_name_(x, 3)",
        "graph.reshapeTensor_withShape_name_(x, [np.int64(3), 2], None)",
        "graph.leakyReLUWithTensor_alpha_name_(x, np.float32(0.1), None)",
        "graph.runWithFeeds_targetTensors_targetOperations_({x: np.ones((2, 3))}, [x], None)",
        "graph.runWithFeeds_targetTensors_targetOperations_({}, None, None)",
        "mps.MPSGraphLSTMDescriptor.descriptor().setTraining_(1)",
        "mps.MPSGraphDevice.deviceWithMTLDevice_(None)",
    ],
)
def test_the_check_of_scripts_tells(line: str) -> None:
    graph_ = pyobjc.MPSGraph.alloc().init()
    x = graph_.placeholderWithShape_dataType_name_([2, 3], pyobjc.MPSDataTypeFloat32, "x")
    with pytest.raises(AssertionError):
        eval(line, {"graph": graph_, "mps": pyobjc, "np": np, "x": x})
