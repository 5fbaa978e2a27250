"""tf-keras (Keras 2) and TensorFlow 1's cells give what zstate's operations give, both ways."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("tf_keras")

import zstate as zs  # noqa: E402
import zstate.convert as zc  # noqa: E402
from zstate.types import Array  # noqa: E402

from .common import (  # noqa: E402
    ACT,
    H,
    I,
    N,
    T,
    close,
    draw,
    halves,
    ours,
    products,
    random_layer,
    states,
    title,
)

_LAYERS = {"single_gate_rnn": "SimpleRNN", "lstm": "LSTM", "gru": "GRU"}
_WORDS = {
    "tanh": ACT.TANH,
    "relu": ACT.RELU,
    "sigmoid": ACT.SIGMOID,
    "hard_sigmoid": ACT.HARD_SIGMOID,
    "linear": ACT.NONE,
}
_DIRECTIONS = ["forward", "go_backwards", "bidirectional"]
_CASES = [
    *products(cell=["single_gate_rnn"], direction=_DIRECTIONS, activation=["tanh", "hard_sigmoid"]),
    *products(
        cell=["lstm"],
        direction=_DIRECTIONS,
        activation=["tanh", "relu"],
        recurrent_activation=["sigmoid", "hard_sigmoid"],
        use_bias=[False, True],
    ),
    *products(
        cell=["gru"],
        direction=_DIRECTIONS,
        activation=["tanh", "linear"],
        recurrent_activation=["sigmoid", "hard_sigmoid"],
        use_bias=[False, True],
        reset_after=[False, True],
    ),
]


def _made(options: dict[str, Any]) -> Any:
    arguments = {k: v for k, v in options.items() if k not in ("cell", "direction")}
    if options["direction"] == "go_backwards":
        arguments["go_backwards"] = True
    layer = getattr(keras.layers, _LAYERS[options["cell"]])(H, return_sequences=True, **arguments)
    if options["direction"] == "bidirectional":
        layer = keras.layers.Bidirectional(layer)
    layer(tf.zeros((N, T, I)))
    return layer


def _run(theirs: Any, layer: zc.Layer, source: Array, initial: dict[str, Array]) -> Array:
    by_name = [halves(layer, array) for array in initial.values()]
    begin = [by_name[k][d] for d in range(layer.directions) for k in range(len(by_name))]
    result = theirs(
        tf.constant(source.swapaxes(0, 1)), initial_state=[tf.constant(array) for array in begin]
    )
    output: Array = result.numpy()
    return output.swapaxes(0, 1)


@pytest.mark.parametrize("options", _CASES, ids=title)
def test_loaded(options: dict[str, Any], rng: np.random.Generator) -> None:
    theirs = _made(options)
    theirs.set_weights([draw(rng, w.shape) for w in theirs.get_weights()])
    facts = {k: v for k, v in options.items() if k not in ("cell", "direction")}
    facts["go_backwards"] = options["direction"] == "go_backwards"
    named = {weight.name: weight for weight in theirs.weights}
    source = draw(rng, (T, N, I))
    for layer in (
        zc.load(theirs, source="tensorflow"),
        zc.load(named, source="tensorflow", cell=options["cell"], **facts),
    ):
        assert isinstance(layer, zc.Layer)
        initial = states(rng, [layer])
        close(ours([layer], source, initial), _run(theirs, layer, source, initial[0]))


@pytest.mark.parametrize("options", _CASES, ids=title)
def test_saved(options: dict[str, Any], rng: np.random.Generator) -> None:
    cell, one = options["cell"], _WORDS[options["activation"]]
    fields: dict[str, Any] = {
        "bidirectional": options["direction"] == "bidirectional",
        "reverse": options["direction"] == "go_backwards",
    }
    if cell == "single_gate_rnn":
        fields["activation"] = one
    else:
        gates = _WORDS[options["recurrent_activation"]]
        names = ["input", "forget", "output"] if cell == "lstm" else ["update", "reset"]
        fields |= {f"{name}_gate_activation": gates for name in names}
        if cell == "lstm":
            fields |= {"cell_gate_activation": one, "activation": one}
        else:
            fields |= {"output_gate_activation": one, "reset_after": options["reset_after"]}
    layer = random_layer(rng, cell, bias=options.get("use_bias", True), **fields)
    facts = zc.facts(layer, target="tensorflow")
    facts.pop("go_backwards", None)
    theirs = _made({"cell": cell, "direction": options["direction"], **facts})
    theirs.set_weights(list(zc.save(layer, target="tensorflow").values()))
    source, initial = draw(rng, (T, N, I)), states(rng, [layer])
    close(_run(theirs, layer, source, initial[0]), ours([layer], source, initial))


def test_a_layer_of_keras_2_is_not_taken_for_keras_3() -> None:
    theirs = _made({"cell": "lstm", "direction": "forward"})
    with pytest.raises(zs.OptionError, match="Keras 3.*Keras 2"):
        zc.load(theirs, source="keras")


_V1 = {"single_gate_rnn": "BasicRNNCell", "lstm": "LSTMCell", "gru": "GRUCell"}
_V1_CASES = list(products(cell=list(_V1), activation=["tanh", "relu", "linear"]))


def _cell(cell: str, facts: dict[str, Any]) -> Any:
    made = getattr(tf.compat.v1.nn.rnn_cell, _V1[cell])(H, **facts)
    begin = tf.zeros((N, H))
    made(tf.zeros((N, I)), (begin, begin) if cell == "lstm" else begin)
    return made


def _steps(theirs: Any, cell: str, source: Array, initial: dict[str, Array]) -> Array:
    """The state of TensorFlow 1's LSTM is (c, h)."""
    state: Any = tf.constant(initial["init_state"])
    if cell == "lstm":
        state = (tf.constant(initial["init_cell"]), state)
    outputs = []
    for step in source:
        output, state = theirs(tf.constant(step), state)
        outputs.append(output.numpy())
    return np.stack(outputs)


@pytest.mark.parametrize("options", _V1_CASES, ids=title)
@pytest.mark.parametrize("forget_bias", [None, 0.25])
def test_cells_of_tensorflow_1(
    options: dict[str, Any], forget_bias: float | None, rng: np.random.Generator
) -> None:
    cell = options["cell"]
    facts: dict[str, Any] = {"activation": options["activation"]}
    if cell == "lstm" and forget_bias is not None:
        facts["forget_bias"] = forget_bias
    theirs = _cell(cell, facts)
    theirs.set_weights([draw(rng, w.shape) for w in theirs.get_weights()])
    layer = zc.load({w.name: w for w in theirs.weights}, "tensorflow1", cell=cell, **facts)
    assert isinstance(layer, zc.Layer)
    source, initial = draw(rng, (T, N, I)), states(rng, [layer])
    close(ours([layer], source, initial), _steps(theirs, cell, source, initial[0]))
    # And back, without an addition to the forget gate.
    told = zc.facts(layer, target="tensorflow1")
    assert told.pop("cell") == cell  # which the arrays do not say
    again = _cell(cell, told)
    weights = zc.save(layer, target="tensorflow1")
    again.set_weights([weights[w.name.split("/", 1)[1].split(":")[0]] for w in again.weights])
    close(_steps(again, cell, source, initial[0]), ours([layer], source, initial))


def test_the_block_cell(rng: np.random.Generator) -> None:
    """LSTMBlockCell has the order of the gates and the forget bias of LSTMCell."""
    weights = {"kernel": draw(rng, (I + H, 4 * H)), "bias": draw(rng, (4 * H,))}
    layer = zc.load(weights, source="tensorflow1", cell="lstm")
    assert isinstance(layer, zc.Layer)
    source, initial = draw(rng, (T, N, I)), states(rng, [layer])
    h, c = initial[0]["init_state"], initial[0]["init_cell"]
    result = ours([layer], source, initial)
    none = tf.zeros(H)
    for step, expected in zip(source, result, strict=True):
        found = tf.raw_ops.LSTMBlockCell(
            x=step,
            cs_prev=c,
            h_prev=h,
            w=weights["kernel"],
            b=weights["bias"],
            wci=none,
            wcf=none,
            wco=none,
            forget_bias=1.0,
        )
        h, c = found.h, found.cs
        close(h.numpy(), expected)


def test_peepholes_of_tensorflow_1(rng: np.random.Generator) -> None:
    theirs = _cell("lstm", {"use_peepholes": True})
    theirs.set_weights([draw(rng, w.shape) for w in theirs.get_weights()])
    named = {w.name: w for w in theirs.weights}
    assert len(named) == 5
    layer = zc.load(named, source="tensorflow1", cell="lstm")
    assert isinstance(layer, zc.Layer) and layer.descriptor.peephole_on_new_cell
    source, initial = draw(rng, (T, N, I)), states(rng, [layer])
    close(ours([layer], source, initial), _steps(theirs, "lstm", source, initial[0]))
    again = _cell("lstm", {"use_peepholes": True, "forget_bias": 0.0})
    weights = zc.save(layer, target="tensorflow1")
    again.set_weights([weights[w.name.split("/", 1)[1].split(":")[0]] for w in again.weights])
    close(_steps(again, "lstm", source, initial[0]), ours([layer], source, initial))


def test_the_block_cell_with_peepholes(rng: np.random.Generator) -> None:
    shapes = {"kernel": (I + H, 4 * H), "bias": (4 * H,)}
    shapes |= dict.fromkeys(("w_i_diag", "w_f_diag", "w_o_diag"), (H,))
    weights = {name: draw(rng, shape) for name, shape in shapes.items()}
    layer = zc.load(weights, source="tensorflow1", cell="lstm")
    assert isinstance(layer, zc.Layer)
    source, initial = draw(rng, (T, N, I)), states(rng, [layer])
    h, c = initial[0]["init_state"], initial[0]["init_cell"]
    for step, expected in zip(source, ours([layer], source, initial), strict=True):
        found = tf.raw_ops.LSTMBlockCell(
            x=step,
            cs_prev=c,
            h_prev=h,
            w=weights["kernel"],
            b=weights["bias"],
            wci=weights["w_i_diag"],
            wcf=weights["w_f_diag"],
            wco=weights["w_o_diag"],
            forget_bias=1.0,
            use_peephole=True,
        )
        h, c = found.h, found.cs
        close(h.numpy(), expected)
