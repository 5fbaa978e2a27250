"""onnxruntime's RNN, LSTM and GRU nodes and zstate's operations give the same, both ways."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper

import zstate as zs
import zstate.convert as zc
from zstate.types import Array

from .common import (
    ACT,
    H,
    I,
    N,
    T,
    as_list,
    close,
    draw,
    halves,
    ours,
    products,
    random_layer,
    states,
    title,
)

_OPS = {"single_gate_rnn": "RNN", "lstm": "LSTM", "gru": "GRU"}
_GATES = {"single_gate_rnn": 1, "lstm": 4, "gru": 3}
_WORDS = {
    "Relu": ACT.RELU,
    "Tanh": ACT.TANH,
    "Sigmoid": ACT.SIGMOID,
    "HardSigmoid": ACT.HARD_SIGMOID,
    "Affine": ACT.NONE,
}
# The word for the gates, for the candidate, for the output of the cell.
_ACTIVATIONS = [
    ("Sigmoid", "Tanh", "Tanh"),
    ("HardSigmoid", "Relu", "Affine"),
    ("Tanh", "Affine", "HardSigmoid"),
]
_COUNTS = {"single_gate_rnn": 1, "lstm": 3, "gru": 2}
_CASES = [
    *products(
        cell=["single_gate_rnn", "lstm"],
        bidirectional=[False, True],
        bias=[False, True],
        words=_ACTIVATIONS,
        layout=[0],
    ),
    *products(
        cell=["lstm"],
        bidirectional=[False, True],
        bias=[True],
        words=_ACTIVATIONS[:1],
        peephole=[True],
    ),
    *products(
        cell=["gru"],
        bidirectional=[False, True],
        bias=[False, True],
        words=_ACTIVATIONS,
        layout=[0],
        after=[False, True],
    ),
]


def _model(cell: str, arrays: dict[str, Array], attributes: dict[str, Any]) -> onnx.ModelProto:
    """One node with its weights as initialisers; the initial states are inputs."""
    names = ["X", "W", "R", "B" if "B" in arrays else "", "", "initial_h"]
    names += ["initial_c"] if cell == "lstm" else []
    names += ["P"] if "P" in arrays else []
    node = helper.make_node(_OPS[cell], names, ["Y"], name="recurrent", **attributes)
    given = ["X", "initial_h"] + (["initial_c"] if cell == "lstm" else [])
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in given],
        [helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _run(
    model: onnx.ModelProto, layer: zc.Layer, source: Array, initial: dict[str, Array]
) -> Array:
    """[T,N,D·H] from ONNX's [T,D,N,H]."""
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = {"init_state": "initial_h", "init_cell": "initial_c"}
    feeds = {names[name]: np.stack(halves(layer, array)) for name, array in initial.items()}
    (output,) = session.run(None, {"X": source, **feeds})
    result: Array = output.transpose(0, 2, 1, 3).reshape(T, N, -1)
    return result


def _attributes(options: dict[str, Any]) -> dict[str, Any]:
    """A node's attributes, written out by hand."""
    twice = 2 if options["bidirectional"] else 1
    words = list(options["words"][: _COUNTS[options["cell"]]]) * twice
    values = {"HardSigmoid": (0.2, 0.5), "Affine": (1.0, 0.0)}
    pairs = [values[word] for word in words if word in values]
    found: dict[str, Any] = {"hidden_size": H, "activations": words}
    if twice == 2:
        found["direction"] = "bidirectional"
    if pairs:
        found |= {
            "activation_alpha": [alpha for alpha, _ in pairs],
            "activation_beta": [beta for _, beta in pairs],
        }
    if options["cell"] == "gru":
        found["linear_before_reset"] = int(options["after"])
    return found


@pytest.mark.parametrize("options", _CASES, ids=title)
def test_loaded(options: dict[str, Any], rng: np.random.Generator) -> None:
    cell = options["cell"]
    twice, rows = (2 if options["bidirectional"] else 1), _GATES[cell] * H
    arrays = {"W": draw(rng, (twice, rows, I)), "R": draw(rng, (twice, rows, H))}
    if options["bias"]:
        arrays["B"] = draw(rng, (twice, 2 * rows))
    if options.get("peephole"):
        arrays["P"] = draw(rng, (twice, 3 * H))
    attributes = _attributes(options)
    model = _model(cell, arrays, attributes)
    source = draw(rng, (T, N, I))
    for weights, facts in ((model, {}), (arrays, attributes)):
        layer = zc.load(weights, source="onnx", cell=cell, **facts)
        assert isinstance(layer, zc.Layer)
        initial = states(rng, [layer])
        expected = _run(model, layer, source, initial[0])
        close(ours([layer], source, initial), expected)


@pytest.mark.parametrize("options", _CASES, ids=title)
def test_saved(options: dict[str, Any], rng: np.random.Generator) -> None:
    cell = options["cell"]
    gates, other, end = (_WORDS[word] for word in options["words"])
    fields: dict[str, Any] = {"activation": gates}
    if cell == "lstm":
        names = ("input", "forget", "output")
        fields = {f"{name}_gate_activation": gates for name in names}
        fields |= {"cell_gate_activation": other, "activation": end}
    elif cell == "gru":
        fields = {"update_gate_activation": gates, "reset_gate_activation": gates}
        fields |= {"output_gate_activation": other, "reset_after": options["after"]}
    layer = random_layer(
        rng, cell, bias=options["bias"], bidirectional=options["bidirectional"], **fields
    )
    if options.get("peephole"):
        peephole = draw(rng, (2, 4 * H) if options["bidirectional"] else (4 * H,))
        peephole[..., 2 * H : 3 * H] = 0  # ONNX's cell gate has none
        descriptor = replace(layer.descriptor, peephole_on_new_cell=True)
        layer = zc.Layer(cell, descriptor, {**layer.tensors, "peephole": peephole})
    model = _model(cell, zc.save(layer, target="onnx"), zc.facts(layer, target="onnx"))
    source, initial = draw(rng, (T, N, I)), states(rng, [layer])
    close(_run(model, layer, source, initial[0]), ours([layer], source, initial))


@pytest.mark.parametrize("dtype", ["float32"])
@pytest.mark.parametrize("layout", [0, 1])
def test_initial_states_that_are_initialisers(
    layout: int, dtype: str, rng: np.random.Generator
) -> None:
    begin = {name: draw(rng, (2, N, H), dtype) for name in ("initial_h", "initial_c")}
    arrays = {"W": draw(rng, (2, 4 * H, I)), "R": draw(rng, (2, 4 * H, H))}
    turned = {name: array.swapaxes(0, 1) if layout else array for name, array in begin.items()}
    layer = zc.load({**arrays, **turned}, source="onnx", layout=layout)
    assert isinstance(layer, zc.Layer)
    for name, ours_name in (("initial_h", "init_state"), ("initial_c", "init_cell")):
        expected = np.concatenate(list(begin[name]), axis=1)
        assert np.array_equal(layer.tensors[ours_name], expected)
    back = zc.save(layer, target="onnx")
    assert all(np.array_equal(back[name], begin[name]) for name in begin)
    # Zeros are no initial state at all.
    zeros = {name: np.zeros_like(array) for name, array in begin.items()}
    plain = zc.load({**arrays, **zeros}, source="onnx")
    assert isinstance(plain, zc.Layer)
    assert set(plain.tensors) == {"recurrent_weight", "input_weight"}
    # Of another size they tell of a wrong model, such as torch's export of an LSTM with proj_size.
    wide = {"initial_c": np.zeros((2, N, H + 1), dtype)}
    with pytest.raises(zs.ShapeError, match=f"initial_c: expected .* with H = {H} as in R"):
        zc.load({**arrays, **wide}, source="onnx")


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_models_that_torch_exports(kind: str, tmp_path: Any, rng: np.random.Generator) -> None:
    module = getattr(torch.nn, kind)(I, H, num_layers=2, bidirectional=True)
    path = tmp_path / "model.onnx"
    torch.onnx.export(module, (torch.zeros(T, N, I),), str(path), dynamo=False)
    layers = as_list(zc.load(onnx.load(path), source="onnx"))
    assert len(layers) == 2
    source = draw(rng, (T, N, I))
    with torch.no_grad():
        expected = module(torch.from_numpy(source))[0].numpy()
    close(ours(layers, source, [{}, {}]), expected)
    # And back into torch, through ONNX's order of the gates.
    weights = zc.save(layers, target="torch")
    again = getattr(torch.nn, kind)(I, H, num_layers=2, bidirectional=True)
    again.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    with torch.no_grad():
        close(again(torch.from_numpy(source))[0].numpy(), expected)


_LSTM = {"W": np.ones((1, 8, 3)), "R": np.ones((1, 8, 2))}
_GRU = {"W": np.ones((1, 6, 3)), "R": np.ones((1, 6, 2))}
_TWICE = {"W": np.ones((2, 8, 3)), "R": np.ones((2, 8, 2))}


@pytest.mark.parametrize(
    ("arrays", "facts", "message"),
    [
        (_LSTM, {"clip": 3.0}, "clip=3.0: zstate does not clip"),
        (_LSTM, {"input_forget": 1}, "input_forget=1"),
        (_LSTM, {"hidden_size": 3}, "hidden_size: expected 2"),
        (_LSTM, {"direction": "reverse"}, "order of the input"),
        (_LSTM, {"direction": "bidirectional"}, "direction: expected 'forward'"),
        (_LSTM, {"activations": ["Elu", "Tanh", "Tanh"]}, "f: expected one of Affine.*'Elu'"),
        (_LSTM, {"activations": ["Sigmoid", "Tanh"]}, "activations: expected 3"),
        (
            _LSTM,
            {
                "activations": ["HardSigmoid", "Tanh", "Tanh"],
                "activation_alpha": [0.25],
                "activation_beta": [0.5],
            },
            "HardSigmoid: expected alpha=0.2, beta=0.5, got alpha=0.25",
        ),
        (_LSTM, {"activations": ["Affine", "Tanh", "Tanh"]}, "Affine: expected alpha=1.0"),
        (_LSTM, {"activation_alpha": [0.1]}, "activation_alpha: expected at most as many values"),
        (_TWICE, {"activations": ["Sigmoid", "Tanh", "Tanh", "Tanh", "Tanh", "Tanh"]}, "both"),
        (_LSTM, {"linear_before_reset": 1}, "facts: expected those of ONNX.*linear_before_reset"),
        (_GRU, {"reset_after": True}, "facts.*got reset_after"),
        ({**_LSTM, "P": np.ones((1, 8))}, {}, "peephole: expected 3 blocks"),
        ({**_LSTM, "sequence_lens": np.ones(3)}, {}, "sequence_lens: the lengths"),
        ({**_LSTM, "B": np.ones((1, 15))}, {}, "B: expected"),
        ({**_LSTM, "B": np.ones((2, 16))}, {}, "B: expected"),
        ({"W": np.ones((3, 8, 3)), "R": np.ones((3, 8, 2))}, {}, "W: expected"),
    ],
)
def test_refused(arrays: dict[str, Array], facts: dict[str, Any], message: str) -> None:
    with pytest.raises(zs.ZStateError, match=message):
        zc.load(arrays, source="onnx", **facts)


def test_a_node_without_the_form_of_a_gru_has_the_default() -> None:
    arrays = {name: array.astype("float32") for name, array in _GRU.items()}
    layer = zc.load(_model("gru", arrays, {"hidden_size": 2}), source="onnx")
    assert isinstance(layer, zc.Layer)
    assert layer.descriptor == zs.GRUDescriptor()
    with pytest.raises(zs.OptionError, match="linear_before_reset: expected 0 or 1"):
        zc.load(arrays, source="onnx")


def test_weights_that_are_computed_are_refused() -> None:
    arrays = {name: array.astype("float32") for name, array in _LSTM.items()}
    model = _model("lstm", {"R": arrays["R"]}, {"hidden_size": 2})
    with pytest.raises(zs.OptionError, match="W: expected an initialiser for node 'recurrent'"):
        zc.load(model, source="onnx")
    model = _model("lstm", arrays, {"hidden_size": 2})
    model.graph.initializer[0].data_location = onnx.TensorProto.EXTERNAL
    with pytest.raises(zs.OptionError, match="external data"):
        zc.load(model, source="onnx")
    inner = helper.make_graph([model.graph.node[0]], "body", [], [])
    outer = helper.make_node("If", ["yes"], ["Y"], name="choice", then_branch=inner)
    with pytest.raises(zs.OptionError, match="one inside If 'choice'"):
        zc.load(helper.make_graph([outer], "outer", [], []), source="onnx")
    del model.graph.node[:]
    with pytest.raises(zs.OptionError, match="RNN, LSTM or GRU nodes"):
        zc.load(model, source="onnx")
