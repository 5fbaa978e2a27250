"""Names from elsewhere: what is missing names what is meant, and autocompletion shows what is
public."""

from __future__ import annotations

import copy
import importlib
import re
from pathlib import Path

import numpy as np
import pytest

import zstate as zs
from zstate.hints import ELSEWHERE


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("rnn", "; did you mean 'single_gate_rnn'?"),
        ("RNNDescriptor", "; did you mean 'SingleGateRNNDescriptor'?"),
        ("lstmGradients", "; did you mean 'lstm_gradients'?"),
        ("lstm_grad", "; did you mean 'lstm_gradients'?"),
        ("LSTM", ": zstate.torch has LSTM"),
        ("train_on_batch", ""),
    ],
)
def test_the_package(name: str, hint: str) -> None:
    with pytest.raises(AttributeError) as raised:
        getattr(zs, name)
    assert str(raised.value) == f"zstate has no attribute {name!r}{hint}"
    assert not hasattr(zs, name) and getattr(zs, name, 3) == 3


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("matmul", "; did you mean 'matrix_multiplication'?"),
        ("softMax", "; did you mean 'soft_max'?"),
        ("reduce_sum", "; did you mean 'reduction_sum'?"),
        ("to_onnx", ": zstate.onnx.save writes a graph as ONNX"),
        ("reLU", "; did you mean 'relu'?"),
        ("tahn", "; did you mean 'tanh'?"),
        ("gelu", ""),
        ("foo", ""),
    ],
)
def test_a_graph(name: str, hint: str) -> None:
    with pytest.raises(AttributeError) as raised:
        getattr(zs.Graph(), name)
    assert str(raised.value) == f"Graph has no attribute {name!r}{hint}"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("T", "; did you mean 'graph.transpose'?"),
        ("sum", "; did you mean 'graph.reduction_sum'?"),
        ("reshape", "; did you mean 'graph.reshape'?"),
        ("numpy", "; did you mean 'graph.run'?"),
        ("requires_grad_", ""),
    ],
)
def test_a_tensor_points_to_its_graph(name: str, hint: str) -> None:
    x = zs.Graph().placeholder(shape=(2,))
    with pytest.raises(AttributeError) as raised:
        getattr(x, name)
    assert str(raised.value) == f"Tensor has no attribute {name!r}{hint}"
    assert not hasattr(x, "__array_interface__")


@pytest.mark.parametrize("name", ["fit", "train", "backward"])
def test_training_points_to_its_page(name: str) -> None:
    with pytest.raises(AttributeError, match=r"graph\.compile\(.*docs/graph\.md"):
        getattr(zs.Graph(), name)


def test_the_tables_name_what_is_there_and_hide_nothing() -> None:
    for owner, thing in (("zstate", zs), ("Graph", zs.Graph())):
        for name, meant in ELSEWHERE[owner].items():
            module = meant.startswith("it is a module")
            assert module or not hasattr(thing, name), name
            assert " " in meant or hasattr(thing, meant), meant
            if module:
                importlib.import_module(f"zstate.{name}")
                assert name in dir(zs)
    assert copy.deepcopy(zs.Graph()).nodes == []


def test_autocompletion() -> None:
    names = [name for name in dir(zs) if not name.startswith("__")]
    assert set(zs.__all__) <= set(names) <= {*zs.__all__, *ELSEWHERE["zstate"]}
    for name in (
        *("cells", "convert", "coreml", "graph", "jax", "onnx", "pyobjc", "torch", "train"),
    ):
        module = importlib.import_module(f"zstate.{name}")
        beside = ["nn"] if name == "torch" else []  # not for `import *`, but to be found
        assert dir(module) == sorted([*module.__all__, *beside])
    g = zs.Graph()
    x = g.placeholder(shape=(2,))
    program = g.compile({x: ((2,), "float32")}, [g.tanh(x)])
    for thing, hidden, shown in (
        (g, {"add_node", "apply", "own", "_stored", "check_fit"}, {"lstm", "run", "nodes"}),
        (program, {"run_checked", "saved_nodes", "_plan"}, {"run", "feeds", "memory", "to_swift"}),
    ):
        assert shown <= set(dir(thing)) and not hidden & set(dir(thing))
    # The API pages hide what autocompletion hides.
    text = (Path(__file__).parents[2] / "tools" / "mkdocs_hooks.py").read_text(encoding="utf-8")
    internal = re.search(r"^INTERNAL = (\{.*?^\})", text, re.DOTALL | re.MULTILINE)
    assert internal is not None
    for thing in (g, program):
        public = {name for name in dir(type(thing)) if not name.startswith("_")}
        assert public - set(dir(thing)) <= eval(internal[1])


def test_results_by_name() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(2,), name="x")
    y = g.tanh(x, name="p")
    results = g.run({x: np.ones(2, np.float32)}, [y])
    for error in (KeyError, zs.GraphError):
        with pytest.raises(error, match=r"\[run\] results: expected one of the targets: \[p float"):
            results["p"]  # type: ignore[index]
    assert results.get(x) is None and list(results) == [y] and isinstance(results, dict)
    found = zs.single_gate_rnn(np.ones((2, 1, 3)), np.eye(3))
    message = r"\[RNNResult\] result\[…\]: expected an index, or one of result.state, result."
    with pytest.raises(TypeError, match=message):
        found["state"]  # type: ignore[call-overload]
    np.testing.assert_array_equal(found[0], found.state)
    assert found[-1] is None and len(found[:1]) == 1


@pytest.mark.parametrize("name", ["gelu", "elu", "selu", "prelu", "relu6", "silu", "hard_tanh"])
def test_other_activations_are_not_taken_for_misspellings(name: str) -> None:
    with pytest.raises(zs.DescriptorError) as raised:
        zs.LSTMDescriptor(activation=name)
    assert "one of none, relu, tanh, sigmoid, hard_sigmoid, got" in str(raised.value)
    assert "did you mean" not in str(raised.value)
