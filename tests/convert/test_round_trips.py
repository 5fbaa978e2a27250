"""Out of zstate and back, and in and out again: the same arrays, to the bit."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import zstate as zs
import zstate.convert as zc
from zstate.convert import blocks
from zstate.convert.objects import keras_facts
from zstate.types import Array, float_dtype

from .common import ACT, H, I, as_list, draw, random_layer, random_stack, same_layer

_TYPES = ["float16", "bfloat16", "float32", "float64"]
_RNN, _LSTM, _GRU = "single_gate_rnn", "lstm", "gru"
_TANH = {"activation": ACT.TANH}


def _gates(kind: zs.Activation) -> dict[str, Any]:
    return {f"{name}_gate_activation": kind for name in ("input", "forget", "output")}


# What every framework can express, and what only some can.
_EVERYWHERE = [(_RNN, _TANH), (_LSTM, {})]
_AFTER, _BEFORE = (_GRU, {"reset_after": True}), (_GRU, {})
_LAYERS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "torch": [_AFTER, (_RNN, {"activation": ACT.RELU})],
    "keras": [_AFTER, _BEFORE, (_LSTM, {"reverse": True}), (_LSTM, _gates(ACT.NONE))],
    "onnx": [_AFTER, _BEFORE, (_LSTM, _gates(ACT.HARD_SIGMOID) | {"activation": ACT.NONE})],
    "flax": [_AFTER, (_LSTM, {"reverse": True}), (_RNN, {"activation": ACT.SIGMOID})],
    "mlx": [_AFTER, (_RNN, {"activation": ACT.RELU})],
    "coreml": [_BEFORE, (_LSTM, {"cell_gate_activation": ACT.RELU}), (_RNN, {})],
    "tensorflow": [_AFTER, _BEFORE, (_LSTM, _gates(ACT.HARD_SIGMOID))],
    "tensorflow1": [_BEFORE, (_RNN, {"activation": ACT.NONE})],
}
_CASES = [
    (target, cell, options | {"bidirectional": twice})
    for target, more in _LAYERS.items()
    for cell, options in _EVERYWHERE + more
    for twice in (False, True)
    if not (twice and (options.get("reverse") or cell not in zc.FRAMEWORKS[target].bidirectional))
]


def _with_odd_values(layer: zc.Layer) -> zc.Layer:
    """Negative zeros, denormals and infinities survive as well."""
    tensors = {name: array.copy() for name, array in layer.tensors.items()}
    for array in tensors.values():
        array.reshape(-1)[:4] = [-0.0, 0.0, np.finfo(np.float16).tiny / 2, -np.inf]
    return zc.Layer(layer.cell, layer.descriptor, tensors)


def test_there_is_a_case_for_every_framework() -> None:
    assert set(_LAYERS) == set(zc.FRAMEWORKS)


@pytest.mark.parametrize("dtype", _TYPES)
@pytest.mark.parametrize(("target", "cell", "options"), _CASES)
def test_out_and_back(
    target: str, cell: str, options: dict[str, Any], dtype: str, rng: np.random.Generator
) -> None:
    drawn = random_layer(rng, cell, **options)
    tensors = {name: array.astype(float_dtype(dtype)) for name, array in drawn.tensors.items()}
    layer = _with_odd_values(zc.Layer(cell, drawn.descriptor, tensors))
    weights = zc.save(layer, target=target)
    assert all(array.flags.c_contiguous for array in weights.values())
    back = zc.load(weights, source=target, **zc.facts(layer, target=target))
    assert isinstance(back, zc.Layer)
    same_layer(back, layer)


@pytest.mark.parametrize(("target", "cell", "options"), _CASES)
def test_what_save_gives_tells_its_facts(
    target: str, cell: str, options: dict[str, Any], rng: np.random.Generator
) -> None:
    layer = random_layer(rng, cell, **options)
    weights = zc.save(layer, target=target)
    assert weights.facts == zc.facts(layer, target=target)
    for each in (weights, weights.copy(), pickle.loads(pickle.dumps(weights))):
        back = zc.load(each, source=target)
        assert isinstance(back, zc.Layer)
        same_layer(back, layer)
    stack = [layer, random_layer(rng, cell, inputs=H * layer.directions, **options)]
    both = zc.save(stack, target=target)
    assert both.facts == [zc.facts(each, target=target) for each in stack]
    for one, other in zip(as_list(zc.load(both, source=target)), stack, strict=True):
        same_layer(one, other)


def test_what_save_gave_is_read_as_what_it_is(rng: np.random.Generator) -> None:
    gru = random_layer(rng, _GRU, reset_after=True)
    weights = zc.save(gru, target="onnx")
    with pytest.raises(zs.OptionError, match="source: expected weights of 'onnx'.*got 'torch'"):
        zc.load(weights, source="torch")
    both = zc.save([gru, random_layer(rng, _LSTM, inputs=H)], target="onnx")
    both["2/W"] = both["0/W"]
    with pytest.raises(zs.OptionError, match="expected the names that save gave them, got '2/W'"):
        zc.load(both, source="onnx")


@pytest.mark.parametrize(
    ("source", "bias", "fact"),
    [
        ("onnx", True, "linear_before_reset"),
        ("keras", False, "reset_after"),
        ("tensorflow", False, "reset_after"),
    ],
)
def test_a_gru_whose_form_cannot_be_seen(
    source: str, bias: bool, fact: str, rng: np.random.Generator
) -> None:
    """The arrays are the same for both forms; which one it is has to be told."""
    for after in (False, True):
        layer = random_layer(rng, _GRU, bias=bias, reset_after=after)
        plain = dict(zc.save(layer, target=source))
        with pytest.raises(zs.OptionError, match=f"{fact}: .* you must say which"):
            zc.load(plain, source=source)
        back = zc.load(plain, source=source, **{fact: after})
        assert isinstance(back, zc.Layer)
        assert back.descriptor == layer.descriptor


@pytest.mark.parametrize("target", list(_LAYERS))
def test_without_biases(target: str, rng: np.random.Generator) -> None:
    layer = random_layer(rng, "lstm", bias=False)
    facts = zc.facts(layer, target=target)
    back = zc.load(zc.save(layer, target=target), source=target, **facts)
    assert isinstance(back, zc.Layer)
    if zc.FRAMEWORKS[target].always_bias:
        zeros = np.zeros(4 * H, np.float32)
        layer = zc.Layer("lstm", layer.descriptor, {**layer.tensors, "bias": zeros})
    same_layer(back, layer)


@pytest.mark.parametrize("target", list(_LAYERS))
@pytest.mark.parametrize("twice", [False, True])
def test_stacks(target: str, twice: bool, rng: np.random.Generator) -> None:
    twice = twice and target != "mlx"
    stack = random_stack(rng, "lstm", 12, bidirectional=twice)
    facts = zc.facts(stack[0], target=target)
    back = as_list(zc.load(zc.save(stack, target=target), source=target, **facts))
    for one, other in zip(back, stack, strict=True):
        same_layer(one, other)


@pytest.mark.parametrize("source", ["keras", "flax", "mlx", "coreml", "tensorflow", "tensorflow1"])
@pytest.mark.parametrize("cell", [_RNN, _LSTM, _GRU])
def test_in_and_out(source: str, cell: str, rng: np.random.Generator) -> None:
    """Formats with one bias; with two, their sum comes out in the first."""
    options: dict[str, Any] = {"reset_after": zc.FRAMEWORKS[source].reset_after[0]}
    made = random_layer(rng, cell, **(options if cell == _GRU else {}) | _only_tanh(cell))
    weights = {k: draw(rng, v.shape) for k, v in zc.save(made, target=source).items()}
    if cell == _GRU and weights.get("bias", np.ones(1)).ndim == 2:
        weights["bias"][1, : 2 * H] = 0
    facts = zc.facts(made, target=source)
    layer = zc.load(weights, source=source, **facts)
    back = zc.save(layer, target=source)
    assert list(back) == list(weights)
    for name, array in weights.items():
        assert back[name].tobytes() == array.tobytes(), name


def _only_tanh(cell: str) -> dict[str, Any]:
    return _TANH if cell == _RNN else {}


@pytest.mark.parametrize("cell", [_RNN, _LSTM, _GRU])
def test_two_biases_are_added(cell: str, rng: np.random.Generator) -> None:
    gates = {_RNN: 1, _LSTM: 4, _GRU: 3}[cell]
    weights = {
        "weight_ih_l0": draw(rng, (gates * H, I)),
        "weight_hh_l0": draw(rng, (gates * H, H)),
        "bias_ih_l0": draw(rng, (gates * H,)),
        "bias_hh_l0": draw(rng, (gates * H,)),
    }
    back = zc.save(zc.load(weights, source="torch"), target="torch")
    total = weights["bias_ih_l0"] + weights["bias_hh_l0"]
    second = np.zeros_like(total)
    if cell == _GRU:
        total[2 * H :] = weights["bias_ih_l0"][2 * H :]
        second[2 * H :] = weights["bias_hh_l0"][2 * H :]
    assert np.array_equal(back["bias_ih_l0"], total)
    assert np.array_equal(back["bias_hh_l0"], second)
    assert np.array_equal(back["weight_ih_l0"], weights["weight_ih_l0"])


def test_no_framework_is_imported() -> None:
    code = """
import sys, numpy as np, zstate.convert as zc
weights = {"kernel": np.ones((3, 8)), "recurrent_kernel": np.ones((2, 8))}
layer = zc.load(weights, source="keras")
for target in zc.FRAMEWORKS:
    zc.load(zc.save(layer, target=target), source=target, **zc.facts(layer, target))
others = {"torch", "keras", "onnx", "flax", "jax", "mlx", "coremltools", "tensorflow"}
print(*others & {*sys.modules})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_from_one_framework_to_another_by_way_of_all(rng: np.random.Generator) -> None:
    """An LSTM through every format in turn ends where it began."""
    first = random_layer(rng, "lstm")
    layer: Any = first
    for target in zc.FRAMEWORKS:
        facts = zc.facts(layer, target=target)
        layer = zc.load(zc.save(layer, target=target), source=target, **facts)
    same_layer(layer, first)


@pytest.mark.parametrize("framework", ["onnx", "coreml", "tensorflow1"])
def test_peepholes_by_gate(framework: str, rng: np.random.Generator) -> None:
    """Three of the four gates have one, each format in its own order."""
    row = zc.FRAMEWORKS[framework]
    layer = random_layer(rng, "lstm")
    arrays = blocks.encode(row, "lstm", layer.tensors, layer.descriptor)
    peephole: Array = draw(rng, (3 * H,))
    tensors = blocks.decode(row, "lstm", {**arrays, "peephole": peephole}, layer.descriptor, "test")
    by_gate = dict(zip(row.peephole, np.split(peephole, 3), strict=True))
    expected = [by_gate.get(gate, np.zeros(H)) for gate in "ifzo"]
    assert np.array_equal(tensors["peephole"], np.concatenate(expected))
    back = blocks.encode(row, "lstm", tensors, layer.descriptor)
    assert np.array_equal(back["peephole"], peephole)


@pytest.mark.parametrize("framework", ["onnx", "coreml", "tensorflow", "tensorflow1"])
@pytest.mark.parametrize("twice", [False, True])
def test_peepholes(framework: str, twice: bool, rng: np.random.Generator) -> None:
    """These formats' output gates look at c[t], and their cell gates have no peephole."""
    plain = random_layer(rng, "lstm", bidirectional=twice, peephole_on_new_cell=True)
    shape = (2, 4, H) if twice else (4, H)
    peephole = draw(rng, shape)
    tensors = {**plain.tensors, "peephole": peephole.reshape(*shape[:-2], 4 * H)}
    with pytest.raises(zs.OptionError, match="peephole: expected none on the cell gate"):
        zc.save(zc.Layer("lstm", plain.descriptor, tensors), target=framework)
    peephole[..., 2, :] = 0  # z
    layer = zc.Layer("lstm", plain.descriptor, tensors)
    weights = zc.save(layer, target=framework)
    facts = zc.facts(layer, target=framework)
    back = zc.load(weights, source=framework, **facts)
    assert isinstance(back, zc.Layer)
    same_layer(back, layer)
    old = zc.Layer("lstm", replace(plain.descriptor, peephole_on_new_cell=False), tensors)
    with pytest.raises(zs.OptionError, match="peephole_on_new_cell: expected True"):
        zc.save(old, target=framework)
    peephole[..., 3, :] = 0  # without o's it does not matter which cell it looks at
    assert zc.save(old, target=framework).keys() == weights.keys()


def test_the_peephole_cell_of_keras_2_is_known() -> None:
    """No Keras of today has it, so by its name alone."""
    assert keras_facts("PeepholeLSTMCell", {"units": 3, "use_bias": True}) == (
        "lstm",
        {"use_bias": True},
    )


def test_arrays_in_another_byte_order(rng: np.random.Generator) -> None:
    layer = random_layer(rng, "gru", reset_after=True)
    swapped = {name: array.astype(">f4") for name, array in zc.save(layer, target="mlx").items()}
    back = zc.load(swapped, source="mlx")
    assert isinstance(back, zc.Layer)
    same_layer(back, layer)
