"""A file is converted whole only if its layers are a stack; else by the names of its layers."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file

import zstate as zs
import zstate.convert as zc
from zstate.convert import files
from zstate.convert.keras_config import topology
from zstate.convert.onnx_graph import contents

from .common import (
    ACT,
    H,
    I,
    N,
    T,
    as_list,
    close,
    convert,
    draw,
    ours,
    random_layer,
    random_stack,
    same_layer,
)

pytestmark = pytest.mark.usefixtures("in_folder")


# Keras, from configurations written by hand: the shape of what Keras saves, and no more of it.


def _layer(kind: str, name: str, **config: Any) -> dict[str, Any]:
    options = {"return_sequences": True} if kind in ("LSTM", "GRU") else {}
    return {"class_name": kind, "config": {"name": name, **options, **config}}


def _sequential(*layers: dict[str, Any], name: str = "model") -> dict[str, Any]:
    return {"class_name": "Sequential", "config": {"name": name, "layers": list(layers)}}


def _tensor(name: str, output: int = 0) -> dict[str, Any]:
    return {"class_name": "__keras_tensor__", "config": {"keras_history": [name, 0, output]}}


def _own(kind: str) -> dict[str, Any]:
    """A class that somebody has registered under a name of Keras'."""
    return {**_layer(kind, "own"), "module": None, "registered_name": f"mine>{kind}"}


_CONSTANT = {"class_name": "__tensor__", "config": {"value": [[1.0]], "dtype": "float32"}}


def _functional(
    *layers: tuple[dict[str, Any], list[Any]],
    ends: list[str],
    told: dict[str, dict[str, Any]] | None = None,
    output: int = 0,
) -> dict[str, Any]:
    """Layers with the tensors that each takes; a list of lists for several calls."""
    found = []
    for layer, taken in layers:
        name = layer["config"]["name"]
        calls = taken if taken and isinstance(taken[0], list) else [taken] if taken else []
        options = {"training": False, "mask": None} | (told or {}).get(name, {})
        nodes = [{"args": call, "kwargs": options} for call in calls]
        found.append({**layer, "name": name, "inbound_nodes": nodes})
    outputs = [[end, 0, output] for end in ends]
    config = {"name": "model", "layers": found, "output_layers": outputs}
    return {"class_name": "Functional", "config": config}


_IN = (_layer("InputLayer", "in"), [])
_A = (_layer("LSTM", "a"), [_tensor("in")])
_STACKS = {
    "sequential": _sequential(_layer("InputLayer", "in"), _layer("LSTM", "a"), _layer("GRU", "b")),
    "functional": _functional(_IN, _A, (_layer("GRU", "b"), [_tensor("a")]), ends=["b"]),
    "dropout": _sequential(_layer("LSTM", "a"), _layer("Dropout", "drop"), _layer("GRU", "b")),
    "nested": _sequential(
        _sequential(_layer("LSTM", "a"), name="inner"), _layer("GRU", "b", return_sequences=False)
    ),
    "state": _functional(_IN, _A, (_layer("GRU", "b"), [_tensor("a")]), ends=["b", "b"], output=1),
    "old": {"class_name": "Sequential", "config": [_layer("LSTM", "a"), _layer("GRU", "b")]},
    "keras 2": {
        "class_name": "Model",
        "config": {
            "layers": [
                {**_IN[0], "name": "in", "inbound_nodes": []},
                {**_A[0], "name": "a", "inbound_nodes": [[["in", 0, 0, {}]]]},
                {**_layer("GRU", "b"), "name": "b", "inbound_nodes": [[["a", 0, 0, {}]]]},
            ],
            "output_layers": [["b", 0, 0]],
        },
    },
}


@pytest.mark.parametrize("name", list(_STACKS))
def test_stacks_of_keras(name: str) -> None:
    found = topology(_STACKS[name])
    assert [entry.path[-1] for entry in found.recurrent] == ["a", "b"]
    assert not found.others
    assert not found.wiring
    passive = {"dropout": ["drop (Dropout, nothing outside training)"]}
    last = {
        "nested": ["return_sequences=False of b"],
        "state": ["the states of b among the outputs"],
    }
    assert found.passive == passive.get(name, []) + last.get(name, [])


_KERAS_2_STATES = {
    **_layer("LSTM", "b"),
    "name": "b",
    "inbound_nodes": [[["in", 0, 0, {}], ["a", 0, 1, {}], ["a", 0, 2, {}]]],
}
_NO_STACKS: dict[str, tuple[dict[str, Any], str]] = {
    "side by side": (
        _functional(
            _IN,
            _A,
            (_layer("LSTM", "b"), [_tensor("in")]),
            (_layer("Concatenate", "join"), [_tensor("a"), _tensor("b")]),
            ends=["join"],
        ),
        "join (Concatenate); b takes in, not a alone; join takes a and b, not b alone",
    ),
    "dense between": (
        _sequential(_layer("LSTM", "a"), _layer("Dense", "d"), _layer("LSTM", "b")),
        "d (Dense)",
    ),
    "around": (
        _sequential(_layer("Embedding", "e"), _layer("LSTM", "a"), _layer("Dense", "d")),
        "e (Embedding), d (Dense)",
    ),
    "masking": (_sequential(_layer("Masking", "m"), _layer("LSTM", "a")), "m (Masking)"),
    "wrapped": (
        _sequential(_layer("LSTM", "a"), _layer("TimeDistributed", "each")),
        "each (TimeDistributed)",
    ),
    "shared": (
        _functional(_IN, (_A[0], [[_tensor("in")], [_tensor("a")]]), ends=["a"]),
        "a is called 2 times",
    ),
    "decoder": (
        _functional(
            _IN,
            _A,
            (_layer("LSTM", "b"), [_tensor("in"), _tensor("a", 1), _tensor("a", 2)]),
            ends=["b"],
        ),
        "b takes in and a, not a alone",
    ),
    "decoder of keras 2": (
        {
            "class_name": "Functional",
            "config": {
                "layers": [
                    {**_IN[0], "name": "in", "inbound_nodes": []},
                    {**_A[0], "name": "a", "inbound_nodes": [[["in", 0, 0, {}]]]},
                    _KERAS_2_STATES,
                ],
                "output_layers": [["b", 0, 0]],
            },
        },
        "b takes in and a, not a alone",
    ),
    "a state": (
        _functional(_IN, _A, (_layer("LSTM", "b"), [_tensor("a", 1)]), ends=["b"]),
        "b takes a state of a",
    ),
    "two outputs": (
        _functional(_IN, _A, (_layer("LSTM", "b"), [_tensor("a")]), ends=["b", "a"]),
        "the outputs are those of b and a",
    ),
    "two inputs": (_functional(_IN, (_layer("InputLayer", "x"), []), ends=["x"]), "x is one more"),
    "last step": (
        _sequential(_layer("LSTM", "a", return_sequences=False), _layer("LSTM", "b")),
        "a gives its last step only",
    ),
    "several cells": (
        _sequential(_layer("RNN", "r", cell=_layer("StackedRNNCells", "cells"))),
        "r (RNN of StackedRNNCells)",
    ),
    "own cell": (
        _sequential(_layer("RNN", "r", cell=_own("LSTMCell"))),
        "r (RNN of mine>LSTMCell)",
    ),
    "own layer in both directions": (
        _sequential(_layer("Bidirectional", "b", layer=_own("LSTM"))),
        "b (Bidirectional of mine>LSTM)",
    ),
    "own layer backward": (
        _sequential(
            _layer("Bidirectional", "b", layer=_layer("LSTM", "l"), backward_layer=_own("LSTM"))
        ),
        "b (Bidirectional of mine>LSTM)",
    ),
    "the steps and the states": (
        _functional(_IN, _A, (_layer("LSTM", "b"), [_tensor("a"), _tensor("a", 1)]), ends=["b"]),
        "b takes a state of a",
    ),
    "the steps twice": (
        _functional(_IN, _A, (_layer("LSTM", "b"), [_tensor("a"), _tensor("a")]), ends=["b"]),
        "b takes a 2 times",
    ),
    "a constant state": (
        _functional(_IN, _A, ends=["a"], told={"a": {"initial_state": [_CONSTANT, _CONSTANT]}}),
        "a is called with initial_state",
    ),
    "a constant mask": (
        _functional(_IN, _A, ends=["a"], told={"a": {"mask": _CONSTANT}}),
        "a is called with mask",
    ),
    "dropout that always drops": (
        _functional(
            _IN,
            _A,
            (_layer("Dropout", "d"), [_tensor("a")]),
            ends=["d"],
            told={"d": {"training": True}},
        ),
        "d is called with training=True",
    ),
    "dropout that always drops in keras 2": (
        {
            "class_name": "Functional",
            "config": {
                "layers": [
                    {**_IN[0], "name": "in", "inbound_nodes": []},
                    {
                        **_layer("Dropout", "d"),
                        "name": "d",
                        "inbound_nodes": [[["in", 0, 0, {"training": True}]]],
                    },
                    {**_A[0], "name": "a", "inbound_nodes": [[["d", 0, 0, {"training": False}]]]},
                ],
                "output_layers": [["a", 0, 0]],
            },
        },
        "d is called with training=True",
    ),
    "own class": (
        {**_sequential(_layer("LSTM", "a")), "class_name": "Mine", "module": "mine"},
        "a custom model class (mine.Mine)",
    ),
    "own layer": (
        _sequential({**_layer("LSTM", "a"), "module": "mine", "registered_name": "mine>LSTM"}),
        "a (mine.LSTM)",
    ),
}


@pytest.mark.parametrize("name", list(_NO_STACKS))
def test_what_is_no_stack_of_keras(name: str) -> None:
    model, message = _NO_STACKS[name]
    found = topology(json.loads(json.dumps(model)))
    assert message in "; ".join([", ".join(found.others), *found.wiring])


# Keras itself.


def _keras() -> Any:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras", minversion="3.0")
    pytest.importorskip("h5py")
    return keras


@pytest.mark.parametrize("end", ["keras", "h5"])
def test_layers_side_by_side_in_keras(
    end: str, capsys: pytest.CaptureFixture[str], rng: np.random.Generator
) -> None:
    keras = _keras()
    x = keras.Input((T, I), name="in")
    a = keras.layers.LSTM(H, name="backward_a", return_sequences=True)(x)
    b = keras.layers.Bidirectional(keras.layers.GRU(H, return_sequences=True), name="b")(x)
    joined = keras.layers.Concatenate(name="join")([a, b])
    model = keras.Model(x, keras.layers.Dense(2, name="dense")(joined))
    model.set_weights([draw(rng, weight.shape) for weight in model.get_weights()])
    model.save(f"model.{end}")
    to = ("--from", "keras", "--to", "keras")
    assert convert(f"model.{end}", "out.safetensors", *to) == 2
    refused = capsys.readouterr().err
    assert "got join (Concatenate), dense (Dense); b takes in" in refused
    assert "with --only (backward_a, b). To load a whole model, use zstate.onnx" in refused
    assert not Path("out.safetensors").exists()
    only = ("--only", "b", "--only", "backward_a")
    assert convert(f"model.{end}", "out.safetensors", *to, *only) == 0
    printed = capsys.readouterr().out
    assert "layer b: gru" in printed
    assert "left out: join (Concatenate), dense (Dense)" in printed
    names = set(load_file("out.safetensors"))
    assert {"backward_a/kernel", "b/forward_layer/kernel", "b/backward_layer/bias"} < names
    stacks = files.read("out.safetensors", "keras", ["backward_a", "b"]).stacks
    for name, pieces in stacks.items():
        (layer,) = as_list(zc.load(pieces, source="keras"))
        same_layer(layer, as_list(zc.load(model.get_layer(name), source="keras"))[0])


@pytest.mark.parametrize("end", ["keras", "h5"])
def test_models_inside_models_of_keras(end: str, rng: np.random.Generator) -> None:
    """The layers have the same name inside and outside."""
    keras = _keras()
    inner = keras.Sequential(
        [keras.Input((T, I)), keras.layers.LSTM(H, return_sequences=True, name="lstm")],
        name="inner",
    )
    last = keras.layers.LSTM(H, return_sequences=True, name="lstm")
    model = keras.Sequential([keras.Input((T, I)), inner, keras.layers.Dropout(0.5), last])
    model.set_weights([draw(rng, weight.shape) for weight in model.get_weights()])
    model.save(f"model.{end}")
    chosen = files.read(f"model.{end}", "keras")
    assert "nothing outside training" in chosen.left_out[0]
    stack = as_list(zc.load(chosen.stacks[""], source="keras"))
    source = draw(rng, (T, N, I))
    expected = np.asarray(model.predict(source.swapaxes(0, 1), verbose=0)).swapaxes(0, 1)
    close(ours(stack, source, [{}, {}]), expected)
    assert list(files.read(f"model.{end}", "keras", ["inner"]).stacks) == ["inner/lstm"]


@pytest.mark.parametrize("old", [False, True])
def test_a_layer_called_forward_is_no_direction(old: bool, rng: np.random.Generator) -> None:
    """Two layers of a file of weights alone, by name and as the old format lists them."""
    h5py = pytest.importorskip("h5py")
    shapes = {"kernel": (I, 4 * H), "recurrent_kernel": (H, 4 * H), "bias": (4 * H,)}
    with h5py.File("model.weights.h5", "w") as file:
        for number, name in enumerate(["forward_lstm", "backward_lstm"]):
            group = file.create_group(name if old else f"layers/lstm_{number}")
            if not old:
                group.create_group("vars").attrs["name"] = name
            listed = {f"{name}/lstm_cell/{word}:0": shape for word, shape in shapes.items()}
            numbered = {f"cell/vars/{k}": shape for k, shape in enumerate(shapes.values())}
            for path, shape in (listed if old else numbered).items():
                group[path] = draw(rng, shape)
            if old:
                group.attrs["weight_names"] = [path.encode() for path in listed]
    with pytest.raises(zs.OptionError, match="how they are connected"):
        files.read("model.weights.h5", "keras")
    (pieces,) = files.read("model.weights.h5", "keras", ["backward_lstm"]).stacks.values()
    (layer,) = as_list(zc.load(pieces, source="keras"))
    assert (layer.directions, layer.hidden) == (1, H)


# ONNX.


def _nodes(*nodes: onnx.NodeProto, ends: tuple[str, ...] = ("Y",)) -> Any:
    """A graph with X [T,N,I] and S [1,N,H] as inputs, and the weights of any GRU of H units."""
    weights = {"W": np.ones((1, 3 * H, I)), "R": np.ones((1, 3 * H, H))}
    arrays = {name: array.astype("float32") for name, array in weights.items()}
    arrays["Wh"] = np.ones((1, 3 * H, H), "float32")
    arrays |= {"axes": np.array([1]), "flat": np.array([0, 0, -1]), "zero": np.zeros(1, "float32")}
    arrays |= {"one": np.ones(1, "float32"), "static": np.array([T, N, H])}
    info = helper.make_tensor_value_info
    return helper.make_graph(
        list(nodes),
        "test",
        [info("X", TensorProto.FLOAT, [T, N, I]), info("S", TensorProto.FLOAT, [1, N, H])],
        [info(end, TensorProto.FLOAT, None) for end in ends],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )


def _gru(name: str, source: str, result: str, weight: str = "Wh", state: str = "") -> Any:
    inputs = [source, weight, "R", "", "", state] if state else [source, weight, "R"]
    return helper.make_node("GRU", inputs, [result, f"{result}_h"], name=name, hidden_size=H)


def _node(op: str, inputs: list[str], output: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs, [output], name=output, **attributes)


_FIRST = (_gru("a", "X", "a1", "W"), _node("Squeeze", ["a1", "axes"], "a2"))
_GRAPHS: dict[str, tuple[Any, str]] = {
    "squeeze": (_nodes(*_FIRST, _gru("b", "a2", "Y")), ""),
    "reshape": (
        _nodes(
            _gru("a", "X", "a1", "W"),
            _node("Transpose", ["a1"], "a2", perm=[0, 2, 1, 3]),
            _node("Reshape", ["a2", "flat"], "a3"),
            _gru("b", "a3", "Y"),
        ),
        "",
    ),
    "static reshape": (
        _nodes(
            _gru("a", "X", "a1", "W"),
            _node("Reshape", ["a1", "static"], "a2"),
            _gru("b", "a2", "Y"),
        ),
        "",
    ),
    "a wrong reshape": (
        _nodes(
            _gru("a", "X", "a1", "W"), _node("Reshape", ["a1", "flat"], "a2"), _gru("b", "a2", "Y")
        ),
        "a2 (Reshape); b takes a2, not a",
    ),
    "turned": (
        _nodes(*_FIRST, _node("Transpose", ["a2"], "a3", perm=[1, 0, 2]), _gru("b", "a3", "Y")),
        "b takes a in another order of its axes",
    ),
    "dropout": (_nodes(*_FIRST, _node("Dropout", ["a2"], "a3"), _gru("b", "a3", "Y")), ""),
    "states": (
        _nodes(
            _gru("a", "X", "a1", "W", "S"),
            _node("Squeeze", ["a1", "axes"], "a2"),
            _gru("b", "a2", "Y"),
            _node("Concat", ["a1_h", "Y_h"], "ends", axis=0),
            ends=("Y", "ends"),
        ),
        "",
    ),
    "zeros": (
        _nodes(
            _node("Shape", ["X"], "size"),
            _node("Expand", ["zero", "size"], "zeros"),
            _gru("a", "X", "Y", "W", "zeros"),
        ),
        "",
    ),
    "ones": (
        _nodes(
            _node("Shape", ["X"], "size"),
            _node("Expand", ["one", "size"], "ones"),
            _gru("a", "X", "Y", "W", "ones"),
        ),
        "a takes its initial_h from what is computed from sizes",
    ),
    "side by side": (
        _nodes(*_FIRST, _gru("b", "X", "b1", "W"), _node("Add", ["a1", "b1"], "Y")),
        "Y (Add); b takes X, not a",
    ),
    "two outputs": (
        _nodes(*_FIRST, _gru("b", "a2", "Y"), ends=("Y", "a2")),
        "output a2 comes from a",
    ),
    "one feeds two": (
        _nodes(*_FIRST, _gru("b", "a2", "b1"), _gru("c", "a2", "c1"), ends=("b1", "c1")),
        "c takes a, not b; output b1 comes from b",
    ),
    "between": (
        _nodes(*_FIRST, _node("Relu", ["a2"], "a3"), _gru("b", "a3", "Y")),
        "a3 (Relu); b takes a3, not a",
    ),
    "behind": (_nodes(*_FIRST, _node("Relu", ["a2"], "Y")), "Y (Relu)"),
    "decoder": (
        _nodes(*_FIRST, _gru("b", "a2", "Y", "Wh", "a1_h")),
        "b takes its initial_h from the last state of a layer",
    ),
    "scaled": (
        _nodes(*_FIRST, _node("Mul", ["one", "a2"], "a3"), _gru("b", "a3", "Y")),
        "a3 (Mul); b takes a3, not a",
    ),
}


@pytest.mark.parametrize("name", list(_GRAPHS))
def test_graphs_of_onnx(name: str) -> None:
    graph, message = _GRAPHS[name]
    found = contents(graph, lambda _, tensor: numpy_helper.to_array(tensor))
    assert "; ".join(filter(None, [", ".join(found.others), *found.wiring])) == message


def test_a_last_state_as_the_result_of_onnx() -> None:
    def array_of(_: str, tensor: Any) -> Any:
        return numpy_helper.to_array(tensor)

    found = contents(_nodes(*_FIRST, _gru("b", "a2", "Y"), ends=("Y_h",)), array_of)
    assert found.passive == ["Y_h as the model's result, which is a last state"]
    assert not contents(_nodes(*_FIRST, _gru("b", "a2", "Y"), ends=("Y", "Y_h")), array_of).passive


def test_weights_of_onnx_that_layers_share() -> None:
    graph = _nodes(_node("Identity", ["W"], "again"), _gru("a", "X", "Y", "again"))
    found = contents(graph, lambda _, tensor: numpy_helper.to_array(tensor))
    assert not found.others and not found.wiring
    (piece,) = found.layers["a"]()
    assert np.array_equal(piece.weights["W"], np.ones((1, 3 * H, I)))


class _Two(torch.nn.Module):
    """Two layers side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.GRU(I, H)
        self.b = torch.nn.GRU(I, H)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x)[0] + self.b(x)[0]


def test_a_graph_without_layers_names_the_other_way_in(capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(helper.make_model(_nodes(_node("Tanh", ["X"], "Y"))), "t.onnx")
    assert convert("t.onnx", "out.npz", "--from=onnx", "--to=torch") == 2
    message = capsys.readouterr().err
    assert "expected recurrent layers, got" in message
    assert "zstate.onnx.load reads this file" in message


def test_layers_side_by_side_in_onnx(capsys: pytest.CaptureFixture[str]) -> None:
    module = _Two()
    torch.onnx.export(module, (torch.zeros(T, N, I),), "in.onnx", dynamo=False)
    to = ("--from", "onnx", "--to", "onnx")
    assert convert("in.onnx", "out.onnx", *to) == 2
    assert "/b/GRU takes" in capsys.readouterr().err
    assert convert("in.onnx", "out.onnx", *to, "--only", "/b", "--only", "/a/GRU") == 0
    assert [node.name for node in onnx.load("out.onnx").graph.node if node.name] == [
        "/b/GRU",
        "/a/GRU",
    ]
    onnx.checker.check_model(onnx.load("out.onnx"), full_check=True)
    assert convert("out.onnx", "again.npz", *to) == 2  # still side by side
    for name, theirs in (("/a/GRU", module.a), ("/b/GRU", module.b)):
        (pieces,) = files.read("out.onnx", "onnx", [name]).stacks.values()
        same_layer(
            as_list(zc.load(pieces, source="onnx"))[0],
            as_list(zc.load(theirs, source="torch"))[0],
        )


# Arrays by name.


def test_state_dicts(capsys: pytest.CaptureFixture[str]) -> None:
    """Of one module it is known how its layers are connected, of several it is not."""
    model = torch.nn.ModuleDict({"a": torch.nn.LSTM(I, H, 2), "b": torch.nn.LSTM(H, H)})
    to = ("--from", "torch", "--to", "torch")
    torch.save(model["a"].state_dict(), "one.pt")
    assert convert("one.pt", "one.npz", *to) == 0
    assert zc.load(dict(np.load("one.npz")), source="torch")[1].hidden == H  # type: ignore[index]
    torch.save(model.state_dict(), "two.pth")
    assert convert("two.pth", "two.npz", *to) == 2
    assert "got arrays alone do not say how these are connected" in capsys.readouterr().err
    assert convert("two.pth", "two.npz", *to, "--only", "a", "--only", "b") == 0
    assert set(np.load("two.npz")) == set(model.state_dict())
    assert "layer a 1: lstm" in capsys.readouterr().out
    assert convert("two.npz", "o.keras", "--from", "torch", "--to", "keras", "--only", "x") == 2
    assert "--only: expected one of a, b, got 'x'" in capsys.readouterr().err


def test_a_layer_without_a_path_is_called_by_a_dot(capsys: pytest.CaptureFixture[str]) -> None:
    class Model(torch.nn.LSTM):
        def __init__(self) -> None:
            super().__init__(I, H)
            self.head = torch.nn.Linear(H, 1)

    torch.save(Model().state_dict(), "in.pt")
    to = ("--from", "torch", "--to", "keras")
    assert convert("in.pt", "out.npz", *to) == 2
    assert "with --only (.). To load a whole" in capsys.readouterr().err
    assert convert("in.pt", "out.npz", *to, "--only", "head") == 2
    wanted = "--only: expected one of . (. is the layer without a name), got 'head'"
    assert wanted in capsys.readouterr().err
    assert convert("in.pt", "out.npz", *to, "--only", ".") == 0
    assert set(np.load("out.npz")) == {"kernel", "recurrent_kernel", "bias"}


_ODD = 'a "q" {x} %s [red]b <i>\n\x1b[2J«TARGETS»'


@pytest.mark.parametrize("name", ["out.safetensors", "out.npz", "out.onnx", "out.keras", "out.h5"])
def test_names_of_any_characters(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("h5py")
    module = torch.nn.GRU(I, H)
    torch.save({f"{_ODD}.{key}": value for key, value in module.state_dict().items()}, "in.pt")
    target = {"out.onnx": "onnx"}.get(name, "keras")
    assert convert("in.pt", name, "--from=torch", f"--to={target}", "--only", _ODD) == 0
    assert "b <i>\\n\\x1b[2J«" in capsys.readouterr().out
    stacks = files.read(name, target, [_ODD]).stacks
    (layer,) = as_list(zc.load(stacks[_ODD], source=target))
    same_layer(layer, as_list(zc.load(module, source="torch"))[0])


@pytest.mark.parametrize("name", ["out.safetensors", "out.npz", "out.onnx", "out.keras", "out.h5"])
@pytest.mark.parametrize("odd", ["a\udc80", "a\0"])
def test_names_that_are_no_text(name: str, odd: str, capsys: pytest.CaptureFixture[str]) -> None:
    weights = torch.nn.GRU(I, H).state_dict()
    torch.save({f"{odd}.{key}": value for key, value in weights.items()}, "in.pt")
    target = {"out.onnx": "onnx"}.get(name, "keras")
    assert convert("in.pt", name, "--from=torch", f"--to={target}", "--only", odd) == 2
    assert "layer's name: expected Unicode text without NUL, got 'a\\" in capsys.readouterr().err
    assert not Path(name).exists()


def test_a_layer_called_dot_in_keras() -> None:
    pytest.importorskip("h5py")
    weights = torch.nn.GRU(I, H).state_dict()
    torch.save({f"..{key}": value for key, value in weights.items()}, "in.pt")
    assert convert("in.pt", "out.h5", "--from=torch", "--to=keras", "--only", ".") == 0
    assert list(files.read("out.h5", "keras", ["_"]).stacks) == ["_"]


def test_checkpoints_and_modules(capsys: pytest.CaptureFixture[str]) -> None:
    module = torch.nn.GRU(I, H)
    torch.save({"epoch": 3, "state_dict": {"rnn": module.state_dict()}}, "in.pt")
    to = ("--from", "torch", "--to", "onnx")
    assert convert("in.pt", "out.npz", *to) == 2
    assert "got epoch" in capsys.readouterr().err
    assert convert("in.pt", "out.npz", *to, "--only", "state_dict") == 0
    # The archive's comment holds the facts: an ONNX GRU needs them.
    (pieces,) = files.read("out.npz", "onnx", ["state_dict.rnn"]).stacks.values()
    same_layer(
        as_list(zc.load(pieces, source="onnx"))[0], as_list(zc.load(module, source="torch"))[0]
    )
    capsys.readouterr()
    torch.save(module, "module.pt")
    assert convert("module.pt", "out.npz", *to) == 2
    assert "does not load pickled modules, because they can run any code" in capsys.readouterr().err
    torch.save([1, 2], "list.pt")
    assert convert("list.pt", "out.npz", *to) == 2
    assert "expected a state dict, got list" in capsys.readouterr().err


def test_several_layers_are_no_model_of_keras(
    capsys: pytest.CaptureFixture[str], rng: np.random.Generator
) -> None:
    layers = {name: [random_layer(rng, "lstm")] for name in ("a", "b")}
    with pytest.raises(zs.OptionError, match=r"one --only for a \.h5 file"):
        files.write("out.h5", layers, "keras")
    wrong = {"": [random_layer(rng, "lstm"), random_layer(rng, "lstm")]}
    with pytest.raises(zs.OptionError, match=f"layer 1: expected {H} inputs.*got {I}"):
        files.write("out.npz", wrong, "keras")


def test_layers_whose_names_collide_are_not_written(rng: np.random.Generator) -> None:
    """MLX numbers the layers of "a" a.0 and a.1, and the other layer has the first of these."""
    stacks = {"a": random_stack(rng, "lstm", 2), "a.0": random_stack(rng, "lstm", 1)}
    for order in (stacks, dict(reversed(stacks.items()))):
        with pytest.raises(zs.OptionError, match="layers 'a.* both have an array 'a.0"):
            files.write("out.npz", order, "mlx")
    nested = {"a": stacks["a.0"], "a.b": random_stack(rng, "gru", 1, reset_after=True)}
    files.write("out.npz", nested, "mlx")
    found = files.read("out.npz", "mlx", ["a"]).stacks  # and what is inside of it
    assert found.keys() == nested.keys()
    for name, (piece,) in found.items():
        same_layer(as_list(zc.load(piece, source="mlx"))[0], nested[name][0])


def test_facts_that_a_npz_has_no_room_for(rng: np.random.Generator) -> None:
    """Without them relu would be read as tanh."""
    relu = [random_layer(rng, "single_gate_rnn", activation=ACT.RELU)]
    stacks = {f"{number}{'x' * 250}": relu for number in range(150)}
    with pytest.raises(zs.OptionError, match=r"at most 65535 bytes of facts in a \.npz file"):
        files.write("out.npz", stacks, "keras")
    assert not Path("out.npz").exists()


def test_an_array_twice_in_a_npz() -> None:
    np.savez("in.npz", weight_ih=np.ones((8, 3)), weight_hh=np.ones((8, 2)))
    with zipfile.ZipFile("in.npz", "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("weight_hh.npy", archive.read("weight_hh.npy"))
    with pytest.raises(zs.OptionError, match=r"duplicate array 'weight_hh.npy'"):
        files.read("in.npz", "torch")
