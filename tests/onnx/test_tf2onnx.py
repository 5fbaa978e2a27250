"""Models that tf2onnx exports from Keras give what onnxruntime gives; where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import zstate as zs
import zstate.onnx as zo

tf = pytest.importorskip("tensorflow")
tf2onnx = pytest.importorskip("tf2onnx")

from tests.onnx.common import close, runtime  # noqa: E402

layers, Input = tf.keras.layers, tf.keras.Input
WORDS = 30


def tagger() -> Any:
    words = Input((None,), dtype="int32", name="words")
    h = layers.Embedding(WORDS, 8)(words)
    h = layers.Bidirectional(layers.LSTM(6, return_sequences=True))(h)
    return tf.keras.Model(words, layers.Dense(5, activation="softmax")(h))


def language_model() -> Any:
    words = Input((None,), dtype="int32", name="words")
    h = layers.GRU(7, return_sequences=True)(layers.Embedding(WORDS, 8)(words))
    h = layers.LayerNormalization()(h)
    h = layers.Dropout(0.3)(layers.LSTM(6, return_sequences=True)(h))
    return tf.keras.Model(words, layers.Dense(WORDS)(h))


def classifier() -> Any:
    x = Input((None, 4), name="x")
    h = layers.LSTM(6)(layers.LSTM(7, return_sequences=True, go_backwards=True)(x))
    return tf.keras.Model(x, layers.Dense(3, activation="relu")(h))


def speech_encoder() -> Any:
    x = Input((9, 12), name="x")
    h = layers.Conv1D(8, 3, padding="same", activation="relu")(x)
    once = layers.LSTM(6, return_sequences=True)
    h = layers.Bidirectional(layers.GRU(5, return_sequences=True))(layers.Bidirectional(once)(h))
    return tf.keras.Model(x, layers.Dense(3)(layers.BatchNormalization()(h)))


def loops() -> Any:
    """Keras 3's GRU and SimpleRNN, which tf2onnx writes as Loops."""
    x = Input((None, 4), name="x")
    h = layers.Bidirectional(layers.GRU(6, return_sequences=True))(x)
    h = layers.GRU(5, return_sequences=True, reset_after=False)(h)
    return tf.keras.Model(x, layers.Dense(3)(layers.SimpleRNN(6, go_backwards=True)(h)))


def masked() -> Any:
    words = Input((None,), dtype="int32", name="words")
    h = layers.LSTM(6)(layers.Embedding(WORDS, 8, mask_zero=True)(words))
    return tf.keras.Model(words, layers.Dense(5)(h))


def exported(build: Callable[[], Any], rng: np.random.Generator) -> tuple[Any, dict[str, Any]]:
    """A model with random weights as ONNX, and inputs for it: 3 sequences of 9 steps."""
    model = build()
    for weight in model.weights:
        weight.assign(np.abs(rng.normal(size=weight.shape) * 0.3))
    (given,) = model.inputs
    signature = [tf.TensorSpec(given.shape, given.dtype, name=given.name)]
    proto, _ = tf2onnx.convert.from_keras(model, input_signature=signature, opset=17)
    shape = (3, 9, *given.shape[2:])
    if given.dtype == tf.int32:
        return proto, {given.name: rng.integers(0, WORDS, shape).astype(np.int32)}
    return proto, {given.name: rng.normal(size=shape).astype(np.float32)}


@pytest.mark.parametrize("build", [tagger, language_model, classifier, speech_encoder])
def test_exported_models(build: Callable[[], Any]) -> None:
    proto, feeds = exported(build, np.random.default_rng(4))
    kinds = [node.op_type for node in proto.graph.node if node.op_type in ("LSTM", "GRU")]
    assert kinds
    loaded = zo.load(proto)
    found = [n for n in loaded.graph.nodes if n.op.name in ("lstm", "gru")]
    assert len(found) >= len(kinds)
    close(loaded.run(feeds), runtime(proto, feeds))


def test_layers_that_are_loops() -> None:
    proto, feeds = exported(loops, np.random.default_rng(6))
    loaded = zo.load(proto)
    found = [n.op.name for n in loaded.graph.nodes if n.op.name in ("gru", "single_gate_rnn")]
    assert sorted(found) == ["gru", "gru", "gru", "single_gate_rnn"]
    close(loaded.run(feeds), runtime(proto, feeds))


def test_a_mask_becomes_a_loop_which_is_refused_by_name() -> None:
    proto, _ = exported(masked, np.random.default_rng(5))
    with pytest.raises(zs.OptionError, match=r"node '.*loop.*' \(Loop\)"):
        zo.load(proto)
