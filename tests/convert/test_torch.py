"""torch.nn's modules and zstate's operations give the same with the same weights, both ways."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import zstate as zs
import zstate.convert as zc
import zstate.torch as zt
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
    random_stack,
    states,
    title,
)

_MODULES = {"single_gate_rnn": "RNN", "lstm": "LSTM", "gru": "GRU"}
_CASES = list(
    products(
        cell=list(_MODULES), num_layers=[1, 3], bidirectional=[False, True], bias=[False, True]
    )
)


def _run(
    module: torch.nn.Module, layers: list[zc.Layer], source: Array, initial: list[dict[str, Array]]
) -> Array:
    """The module's outputs from the same initial states: [D·L,N,H] in torch."""
    stacked = []
    for name in initial[0]:
        parts = [
            half
            for layer, each in zip(layers, initial, strict=True)
            for half in halves(layer, each[name])
        ]
        stacked.append(torch.from_numpy(np.stack(parts)))
    hx = tuple(stacked) if len(stacked) == 2 else stacked[0]
    with torch.no_grad():
        output: Array = module(torch.from_numpy(source), hx)[0].numpy()
    return output


_RELU = [case | {"nonlinearity": "relu"} for case in _CASES if case["cell"] == "single_gate_rnn"]


@pytest.mark.parametrize("options", _CASES + _RELU, ids=title)
def test_loaded(options: dict[str, Any], rng: np.random.Generator) -> None:
    cell = options["cell"]
    more = {name: value for name, value in options.items() if name == "nonlinearity"}
    arguments = {name: value for name, value in options.items() if name != "cell"}
    module = getattr(torch.nn, _MODULES[cell])(I, H, dtype=torch.float64, **arguments)
    for parameter in module.parameters():
        parameter.data = torch.from_numpy(draw(rng, tuple(parameter.shape), "float64"))
    source = draw(rng, (T, N, I), "float64")
    for weights, facts in ((module, {}), (module.state_dict(), more)):
        layers = as_list(zc.load(weights, source="torch", **facts))
        assert len(layers) == options["num_layers"]
        initial = states(rng, layers, "float64")
        close(ours(layers, source, initial), _run(module, layers, source, initial), "float64")


@pytest.mark.parametrize("options", _CASES, ids=title)
def test_saved(options: dict[str, Any], rng: np.random.Generator) -> None:
    cell, count = options["cell"], options["num_layers"]
    more: dict[str, Any] = {"reset_after": True} if cell == "gru" else {}
    if cell == "single_gate_rnn":
        more = {"activation": [ACT.TANH, ACT.RELU][rng.integers(2)]}
    layers = random_stack(
        rng,
        cell,
        count,
        bidirectional=options["bidirectional"],
        bias=options["bias"],
        dtype="float64",
        **more,
    )
    weights = zc.save(layers, target="torch")
    module = getattr(torch.nn, _MODULES[cell])(
        I,
        H,
        num_layers=count,
        bidirectional=options["bidirectional"],
        dtype=torch.float64,
        **zc.facts(layers[0], target="torch"),
    )
    module.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    source, initial = draw(rng, (T, N, I), "float64"), states(rng, layers, "float64")
    close(_run(module, layers, source, initial), ours(layers, source, initial), "float64")


@pytest.mark.parametrize("name", ["RNNCell", "LSTMCell", "GRUCell"])
def test_cells(name: str, rng: np.random.Generator) -> None:
    module = getattr(torch.nn, name)(I, H, dtype=torch.float64)
    for parameter in module.parameters():
        parameter.data = torch.from_numpy(draw(rng, tuple(parameter.shape), "float64"))
    layer = zc.load(module, source="torch")
    assert isinstance(layer, zc.Layer)
    source, (initial,) = draw(rng, (1, N, I), "float64"), states(rng, [layer], "float64")
    hx = tuple(torch.from_numpy(array) for array in initial.values())
    with torch.no_grad():
        result = module(torch.from_numpy(source[0]), hx if len(hx) == 2 else hx[0])
    result = result[0] if len(hx) == 2 else result
    close(ours([layer], source, [initial])[0], result.numpy(), "float64")


def test_a_model_of_several_modules(rng: np.random.Generator) -> None:
    model = torch.nn.Sequential(torch.nn.RNN(I, H, nonlinearity="relu"), torch.nn.GRU(H, 2))
    layers = as_list(zc.load(model, source="torch"))
    assert [layer.cell for layer in layers] == ["single_gate_rnn", "gru"]
    assert layers[0].descriptor.activations == (ACT.RELU,)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_options_of_zstate_torch(bidirectional: bool, rng: np.random.Generator) -> None:
    lstm = zt.LSTM(
        I,
        H,
        bidirectional=bidirectional,
        peephole=True,
        peephole_on_new_cell=bidirectional,
        activations={"activation": "relu", "forget_gate_activation": "hard_sigmoid"},
        dtype=torch.float64,
    )
    gru = zt.GRU(I, H, bidirectional=bidirectional, reset_after=False, dtype=torch.float64)
    for module in (lstm, gru):
        for parameter in module.parameters():
            parameter.data = torch.from_numpy(draw(rng, tuple(parameter.shape), "float64"))
        layer = zc.load(module, source="torch")
        assert isinstance(layer, zc.Layer)
        source, initial = draw(rng, (T, N, I), "float64"), states(rng, [layer], "float64")
        expected = _run(module, [layer], source, initial)
        close(ours([layer], source, initial), expected, "float64")


def test_bfloat16_keeps_its_bits(rng: np.random.Generator) -> None:
    module = torch.nn.LSTM(I, H, dtype=torch.bfloat16)
    layer = zc.load(module, source="torch")
    assert isinstance(layer, zc.Layer)
    weight = layer.tensors["input_weight"]
    assert weight.dtype.name == "bfloat16"
    expected = module.weight_ih_l0.detach().float().numpy()
    assert np.array_equal(weight.astype(np.float32), expected)


def test_the_loaded_arrays_are_copies(rng: np.random.Generator) -> None:
    module = torch.nn.GRU(I, H)
    layer = zc.load(module, source="torch")
    assert isinstance(layer, zc.Layer)
    before = {name: array.copy() for name, array in layer.tensors.items()}
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    for name, array in layer.tensors.items():
        assert np.array_equal(array, before[name]), name


def test_both_gate_orders_are_saved_alike(rng: np.random.Generator) -> None:
    plain = random_layer(rng, "lstm")
    order = [0, 2, 1, 3]  # [i,z,f,o] of [i,f,z,o]
    tensors = {
        name: array.reshape(4, H, -1)[order].reshape(array.shape)
        for name, array in plain.tensors.items()
    }
    other = zc.Layer("lstm", zs.LSTMDescriptor(forget_gate_last=True), tensors)
    one, two = zc.save(plain, target="torch"), zc.save(other, target="torch")
    assert all(np.array_equal(one[name], two[name]) for name in one)
