"""Keras 3's layers and zstate's operations give the same with the same weights, both ways."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", minversion="3.0")

import zstate as zs  # noqa: E402
import zstate.convert as zc  # noqa: E402
from zstate.types import Array  # noqa: E402

from .common import (  # noqa: E402
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

_LAYERS = {"single_gate_rnn": "SimpleRNN", "lstm": "LSTM", "gru": "GRU"}
_WORDS = {"linear": ACT.NONE, "relu": ACT.RELU, "tanh": ACT.TANH, "sigmoid": ACT.SIGMOID}
_DIRECTIONS = ["forward", "go_backwards", "bidirectional"]
_CASES = [
    *products(
        cell=["single_gate_rnn"],
        direction=_DIRECTIONS,
        use_bias=[False, True],
        activation=list(_WORDS),
    ),
    *products(
        cell=["lstm"],
        direction=_DIRECTIONS,
        use_bias=[False, True],
        activation=["tanh", "relu"],
        recurrent_activation=["sigmoid", "linear"],
    ),
    *products(
        cell=["gru"],
        direction=_DIRECTIONS,
        use_bias=[False, True],
        reset_after=[False, True],
        activation=["tanh", "linear"],
        recurrent_activation=["sigmoid", "tanh"],
    ),
]


def _made(options: dict[str, Any], hidden: int = H, inputs: int = I) -> Any:
    """A built layer. In float32: ops.matmul of Keras rounds float64 on some backends."""
    arguments = {k: v for k, v in options.items() if k not in ("cell", "direction")}
    layer = getattr(keras.layers, _LAYERS[options["cell"]])(
        hidden, return_sequences=True, **arguments
    )
    if options["direction"] == "bidirectional":
        layer = keras.layers.Bidirectional(layer)
    layer.build((None, None, inputs))
    return layer


def _run(keras_layer: Any, layer: zc.Layer, source: Array, initial: dict[str, Array]) -> Array:
    """[T,N,D·H]: Keras is batch-major, and lists the states by direction."""
    by_name = [halves(layer, array) for array in initial.values()]
    begin = [by_name[k][d] for d in range(layer.directions) for k in range(len(by_name))]
    batch_first = np.ascontiguousarray(source.swapaxes(0, 1))
    result = keras_layer(
        keras.ops.convert_to_tensor(batch_first),
        initial_state=[keras.ops.convert_to_tensor(np.ascontiguousarray(a)) for a in begin],
    )
    output: Array = keras.ops.convert_to_numpy(result)
    return output.swapaxes(0, 1)


@pytest.mark.parametrize("options", _CASES, ids=title)
def test_loaded(options: dict[str, Any], rng: np.random.Generator) -> None:
    if options["direction"] == "go_backwards":
        options = options | {"go_backwards": True}
    theirs = _made(options)
    theirs.set_weights([draw(rng, w.shape) for w in theirs.get_weights()])
    layer = zc.load(theirs, source="keras")
    assert isinstance(layer, zc.Layer)
    assert layer.cell == options["cell"]
    named = {weight.path: weight.numpy() for weight in theirs.weights}
    facts = {k: v for k, v in options.items() if k not in ("cell", "direction")}
    again = zc.load(named, source="keras", cell=options["cell"], **facts)
    source, initial = draw(rng, (T, N, I)), states(rng, [layer])
    expected = _run(theirs, layer, source, initial[0])
    for each in (layer, again):
        close(ours(as_list(each), source, initial), expected)


@pytest.mark.parametrize("options", _CASES, ids=title)
def test_saved(options: dict[str, Any], rng: np.random.Generator) -> None:
    cell = options["cell"]
    direction = options["direction"]
    one = _WORDS[options["activation"]]
    fields: dict[str, Any] = {
        "bidirectional": direction == "bidirectional",
        "reverse": direction == "go_backwards",
    }
    if cell == "single_gate_rnn":
        fields |= {"activation": one}
    else:
        gates = _WORDS[options["recurrent_activation"]]
        names = ["input", "forget", "output"] if cell == "lstm" else ["update", "reset"]
        fields |= {f"{name}_gate_activation": gates for name in names}
        if cell == "lstm":
            fields |= {"cell_gate_activation": one, "activation": one}
        else:
            fields |= {"output_gate_activation": one, "reset_after": options["reset_after"]}
    layer = random_layer(rng, cell, bias=options["use_bias"], **fields)
    facts = zc.facts(layer, target="keras")
    theirs = _made({"cell": cell, "direction": direction, **facts})
    weights = zc.save(layer, target="keras")
    theirs.set_weights(list(weights.values()))
    source, initial = draw(rng, (T, N, I)), states(rng, [layer])
    close(_run(theirs, layer, source, initial[0]), ours([layer], source, initial))


def test_a_stack_of_layers(rng: np.random.Generator) -> None:
    cells = ["lstm", "gru", "single_gate_rnn"]
    stack = [
        random_layer(rng, "lstm", bidirectional=True),
        random_layer(rng, "gru", inputs=2 * H, reset_after=True),
        random_layer(rng, "single_gate_rnn", inputs=H, hidden=2),
    ]
    model = keras.Sequential(
        [
            _made({"cell": "lstm", "direction": "bidirectional"}),
            _made({"cell": "gru", "direction": "forward"}, inputs=2 * H),
            _made({"cell": "single_gate_rnn", "direction": "forward", "activation": "relu"}, 2, H),
        ]
    )
    model.build((None, None, I))
    model.set_weights(list(zc.save(stack, target="keras").values()))
    source = draw(rng, (T, N, I))
    output = keras.ops.convert_to_numpy(model(source.swapaxes(0, 1))).swapaxes(0, 1)
    close(output, ours(stack, source, [{}, {}, {}]))
    back = as_list(zc.load(list(model.layers), source="keras"))
    assert [layer.cell for layer in back] == cells
    close(ours(back, source, [{}, {}, {}]), output)


@pytest.mark.parametrize("name", ["SimpleRNNCell", "LSTMCell", "GRUCell"])
def test_cells(name: str, rng: np.random.Generator) -> None:
    wrapped = keras.layers.RNN(getattr(keras.layers, name)(H), return_sequences=True)
    source = draw(rng, (N, T, I))
    wrapped(source)
    wrapped.set_weights([draw(rng, w.shape) for w in wrapped.get_weights()])
    for each in (wrapped, wrapped.cell):
        layers = as_list(zc.load(each, source="keras"))
        output = keras.ops.convert_to_numpy(wrapped(source)).swapaxes(0, 1)
        close(ours(layers, source.swapaxes(0, 1), [{}]), output)


def test_the_hard_sigmoid_of_keras_3_is_refused() -> None:
    theirs = _made({"cell": "lstm", "direction": "forward", "recurrent_activation": "hard_sigmoid"})
    with pytest.raises(zs.OptionError, match="hard_sigmoid.*slope is 1/6"):
        zc.load(theirs, source="keras")


def test_other_merges_and_unlike_directions_are_refused() -> None:
    theirs = keras.layers.Bidirectional(keras.layers.LSTM(2), merge_mode="sum")
    theirs.build((None, None, 3))
    with pytest.raises(zs.OptionError, match="merge_mode='sum'"):
        zc.load(theirs, source="keras")
    theirs = keras.layers.Bidirectional(
        keras.layers.LSTM(2),
        backward_layer=keras.layers.LSTM(2, activation="relu", go_backwards=True),
    )
    theirs.build((None, None, 3))
    with pytest.raises(zs.OptionError, match="backward_layer"):
        zc.load(theirs, source="keras")
    # Its forward layer runs backward and the other one forward.
    theirs = keras.layers.Bidirectional(
        keras.layers.LSTM(2, go_backwards=True), backward_layer=keras.layers.LSTM(2)
    )
    theirs.build((None, None, 3))
    with pytest.raises(zs.OptionError, match="a forward layer that runs forward"):
        zc.load(theirs, source="keras")


def test_a_layer_of_keras_3_is_not_taken_for_keras_2() -> None:
    with pytest.raises(zs.OptionError, match="Keras 2.*Keras 3"):
        zc.load(_made({"cell": "lstm", "direction": "forward"}), source="tensorflow")


def test_what_is_not_recurrent_or_not_built_is_refused() -> None:
    dense = keras.layers.Dense(2)
    dense.build((None, 3))
    with pytest.raises(zs.OptionError, match="Dense"):
        zc.load(dense, source="keras")
    with pytest.raises(zs.OptionError, match="built"):
        zc.load(keras.layers.LSTM(2), source="keras")
