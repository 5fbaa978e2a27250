"""Loaded models with packed weights, against onnxruntime and the model that was loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import zstate as zs
import zstate.onnx as zo
from tests.onnx.common import Drawn, close, one_node, runtime
from tests.onnx.test_quantised import errors, layer_model
from zstate import cells
from zstate.types import Array


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    return np.random.default_rng(int(request.config.option.hypothesis_seed))


def test_random_nodes(rng: np.random.Generator) -> None:
    """What is prepared gives onnxruntime's results; what is refused says why."""
    served: set[Any] = set()
    for number in range(300):
        drawn = Drawn(rng)
        model, feeds = drawn.model()
        loaded = zo.load(model)
        has_lengths = any("gather" in node.op.name for node in loaded.graph.nodes)
        cannot = {"R", "P"} & set(drawn.fed)
        if cannot or (drawn.kind == "LSTM" and has_lengths):
            with pytest.raises(zs.OptionError, match=r"\[prepare\] node 'the_node"):
                loaded.prepare()
            continue
        small = loaded.prepare()
        assert not any(node.op.name in ("lstm", "gru") for node in small.graph.nodes)
        close(small.run(feeds), runtime(model, feeds), f"{number}: {drawn.attributes}")
        served.add((drawn.kind, drawn.attributes["direction"], has_lengths))
    assert len(served) >= 15 and ("LSTM", "bidirectional", False) in served


@pytest.mark.parametrize("way", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_fewer_bits(way: str, weights: str) -> None:
    """Off by no more than these bits are worth, and not by nothing."""
    model, feeds = layer_model(np.random.default_rng(8), way, (12, 3, 20, 24))
    exact = runtime(model, feeds)
    found = zo.load(model).prepare(weights).run(feeds)
    assert {name: a.shape for name, a in found.items()} == {n: a.shape for n, a in exact.items()}
    bits = {"bfloat16": 8, "int8": 7}[weights]
    assert 0 < errors(found, exact) < 2.0**-bits


def two_layers(rng: np.random.Generator) -> Any:
    """A product, two LSTM layers that take and give their states, a score: a detector's form."""

    def weight(name: str, *shape: int) -> Any:
        return numpy_helper.from_array((rng.normal(size=shape) * 0.3).astype(np.float32), name)

    tensors = [weight("front", 9, 16), weight("out", 24, 1)]
    tensors.append(numpy_helper.from_array(np.array([1]), "one"))
    nodes = [
        helper.make_node("MatMul", ["x", "front"], ["f"]),
        helper.make_node("Relu", ["f"], ["y"]),
    ]
    states = []
    for number, size in ((0, 16), (1, 24)):
        tensors += [weight(f"W{number}", 1, 96, size), weight(f"R{number}", 1, 96, 24)]
        names = ["y", f"W{number}", f"R{number}", "", "", f"h{number}", f"c{number}"]
        ends = [f"next_h{number}", f"next_c{number}"]
        nodes.append(helper.make_node("LSTM", names, ["Y", *ends], f"lstm{number}", hidden_size=24))
        nodes.append(helper.make_node("Squeeze", ["Y", "one"], ["y"]))
        for node in nodes[-2:]:  # each name once
            node.output[0] += str(number)
        nodes[-1].input[0] = nodes[-2].output[0]
        if number:
            nodes[-2].input[0] = "y0"
        states += names[5:]
    nodes.append(helper.make_node("MatMul", ["y1", "out"], ["score"]))
    real = onnx.TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info("x", real, ["T", 1, 9])]
    inputs += [helper.make_tensor_value_info(name, real, [1, 1, 24]) for name in states]
    results = ["score", *(f"next_{name}" for name in states)]
    outputs = [helper.make_tensor_value_info(name, real, None) for name in results]
    graph = helper.make_graph(nodes, "detector", inputs, outputs, tensors)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_a_detector_in_chunks(weights: str) -> None:
    """Chunks that hand on the states, as onnxruntime computes them; every parameter but those of
    the layers stays one."""
    rng = np.random.default_rng(1)
    model = two_layers(rng)
    small = zo.load(model).prepare(weights)
    assert set(small.parameters) == {"front", "out"} and "x" in small.inputs
    theirs = ours = {name: np.zeros((1, 1, 24), np.float32) for name in ("h0", "c0", "h1", "c1")}
    for steps in (4, 1, 4):
        x = rng.normal(size=(steps, 1, 9)).astype(np.float32)
        wanted, found = runtime(model, {"x": x, **theirs}), small.run({"x": x, **ours})
        assert found["score"].shape == (steps, 1, 1)
        if weights == "float32":
            close(found, wanted)
        assert errors(found, wanted) < 0.02
        theirs, ours = ({name: each[f"next_{name}"] for name in theirs} for each in (wanted, found))


def saved_cell(folder: Path, used: str) -> zo.Model:
    """A Scan of a cell with two states, of which one is an output at every step."""
    rng = np.random.default_rng(2)
    g = zs.Graph()
    x = g.placeholder(shape=(None, 2, 5), name="x")
    R, W = (rng.normal(size=(32, k)).astype(np.float32) * np.float32(0.3) for k in (8, 5))
    h, c = g.recurrent(
        cells.cifg, x, recurrent_weight=g.variable(R[:24]), input_weight=g.variable(W[:24])
    )
    zo.save(g, {"y": {"h": h, "c": c}[used]}, folder / "cell.onnx")
    return zo.load(folder / "cell.onnx")


def test_a_cell_from_equations(tmp_path: Path) -> None:
    loaded = saved_cell(tmp_path, "h")
    x = np.random.default_rng(3).normal(size=(7, 2, 5)).astype(np.float32)
    small = loaded.prepare()
    assert [node.op.name for node in small.graph.nodes].count("prepared") == 1
    close(small.run({"x": x}), runtime(tmp_path / "cell.onnx", {"x": x}))
    again = small.run({"x": np.zeros((0, 2, 5), np.float32)})
    assert again["y"].shape == (0, 2, 8)


def test_what_cannot_be_prepared(tmp_path: Path) -> None:
    with pytest.raises(
        zs.OptionError, match=r"\[prepare\] node .*: expected a use of only its last step"
    ):
        saved_cell(tmp_path, "c").prepare()
    model, _ = layer_model(np.random.default_rng(4), "forward", (3, 1, 4, 5))
    loaded = zo.load(model)
    with pytest.raises(zs.OptionError, match="one of 'float32', 'bfloat16', 'int8', got 'int4'"):
        loaded.prepare("int4")
    arrays: dict[str, Array] = {
        "X": np.ones((3, 1, 2), np.float32),
        "W": np.ones((1, 4, 2), np.float32),
    }
    arrays["R"] = np.ones((1, 4, 4), np.float32)
    fed, _ = one_node("RNN", arrays, ["Y"], fed=("X", "R"), hidden_size=4)
    with pytest.raises(
        zs.OptionError, match="'the_node' .*recurrent_weight: expected one that is known.*on R"
    ):
        zo.load(fed).prepare("int8")
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    double, _ = one_node("RNN", wide, ["Y"], hidden_size=4)
    double.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    with pytest.raises(zs.OptionError, match="'the_node' .*source: expected float32, got float64"):
        zo.load(double).prepare()
    other, _ = one_node("Relu", {"X": arrays["X"]}, ["Y"])
    with pytest.raises(
        zs.OptionError, match="model: expected one with a recurrent layer, got none"
    ):
        zo.load(other).prepare()


def test_what_a_prepared_model_refuses(tmp_path: Path) -> None:
    """It is for inference, and has weights that no file holds."""
    model, _ = layer_model(np.random.default_rng(4), "forward", (3, 1, 4, 5))
    small = zo.load(model).prepare("int8")
    Y = small.outputs["Y"]
    for refused in (
        lambda: small.graph.save(tmp_path / "a.zs"),
        lambda: zo.save(small.graph, small.outputs, tmp_path / "a.onnx"),
        lambda: small.graph.gradients(of=Y, with_respect_to=[small.inputs["X"]]),
        lambda: small.graph.to_swift("Model"),
        lambda: small.prepare(),
    ):
        with pytest.raises(zs.ZStateError) as error:
            refused()
        assert "prepared" in str(error.value) or "recurrent layer" in str(error.value)
