"""The weights that coremltools itself makes of torch's modules are those of zstate.convert.

Core ML computes on Apple's machines only, so the proof is in the arrays: the program that
coremltools builds from a torch module holds the arrays that ``save`` writes, to the bit, and its
operations load as the layers that torch computes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

ct = pytest.importorskip("coremltools")
from coremltools.converters.mil import Builder as mb  # noqa: E402, N813

import zstate as zs  # noqa: E402
import zstate.convert as zc  # noqa: E402

from .common import (  # noqa: E402
    ACT,
    H,
    I,
    N,
    T,
    as_list,
    close,
    draw,
    ours,
    products,
    random_layer,
    same_layer,
    title,
)


class _FromZeros(torch.nn.Module):
    """The module from states of known size: coremltools stumbles over how torch finds it."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module
        shape = (module.num_layers * (2 if module.bidirectional else 1), N, H)
        self.register_buffer("zeros", torch.zeros(shape))

    def forward(self, x: torch.Tensor) -> Any:
        lstm = isinstance(self.module, torch.nn.LSTM)
        return self.module(x, (self.zeros, self.zeros) if lstm else self.zeros)[0]


def _operations(module: torch.nn.Module, kind: str) -> list[Any]:
    """The recurrent operations of the program that coremltools makes of a torch module."""
    traced = torch.jit.trace(_FromZeros(module).eval(), torch.zeros(T, N, I))
    program = ct.convert(
        traced,
        inputs=[ct.TensorType(shape=(T, N, I))],
        convert_to="milinternal",
        compute_precision=ct.precision.FLOAT32,
    )
    return [op for op in program.functions["main"].operations if op.op_type == kind]


@pytest.mark.parametrize(
    "options",
    list(products(num_layers=[1, 2], bidirectional=[False, True], bias=[False, True])),
    ids=title,
)
def test_lstm(options: dict[str, Any], rng: np.random.Generator) -> None:
    module = torch.nn.LSTM(I, H, **options)
    for parameter in module.parameters():
        parameter.data = torch.from_numpy(draw(rng, tuple(parameter.shape)))
    operations = _operations(module, "lstm")
    layers = as_list(zc.load(operations, source="coreml"))
    assert len(layers) == options["num_layers"]
    source = draw(rng, (T, N, I))
    with torch.no_grad():
        expected = module(torch.from_numpy(source))[0].numpy()
    close(ours(layers, source, [{}] * len(layers)), expected)
    from_torch = as_list(zc.load(module, source="torch"))
    for operation, layer in zip(operations, from_torch, strict=True):
        for name, array in zc.save(layer, target="coreml").items():
            assert np.array_equal(operation.inputs[name].val, array), name


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_rnn(nonlinearity: str, rng: np.random.Generator) -> None:
    module = torch.nn.RNN(I, H, nonlinearity=nonlinearity)
    for parameter in module.parameters():
        parameter.data = torch.from_numpy(draw(rng, tuple(parameter.shape)))
    operations = _operations(module, "rnn")
    (layer,) = as_list(zc.load(operations, source="coreml"))
    source = draw(rng, (T, N, I))
    with torch.no_grad():
        close(ours([layer], source, [{}]), module(torch.from_numpy(source))[0].numpy())


def _built(layer: zc.Layer) -> Any:
    """An operation of a MIL program with a layer's weights and facts."""
    op = {"single_gate_rnn": mb.rnn, "lstm": mb.lstm, "gru": mb.gru}[layer.cell]
    shape = (N, H * layer.directions)

    @mb.program(input_specs=[mb.TensorSpec(shape=(T, N, I))])
    def program(x: Any) -> Any:
        begin = {"initial_h": np.zeros(shape, np.float32)}
        if layer.cell == "lstm":
            begin["initial_c"] = np.zeros(shape, np.float32)
        weights = zc.save(layer, target="coreml")
        facts = zc.facts(layer, target="coreml")
        return op(x=x, output_sequence=True, **begin, **weights, **facts)

    kind = {"single_gate_rnn": "rnn"}.get(layer.cell, layer.cell)
    (operation,) = [o for o in program.functions["main"].operations if o.op_type == kind]
    return operation


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("cell", ["single_gate_rnn", "lstm", "gru", "bidirectional"])
def test_programs_take_what_save_writes(cell: str, bias: bool, rng: np.random.Generator) -> None:
    fields: dict[str, Any] = {"activation": ACT.HARD_SIGMOID}
    if cell == "gru":
        fields = {"output_gate_activation": ACT.RELU}
    if cell == "bidirectional":
        cell, fields = "lstm", {"bidirectional": True, "cell_gate_activation": ACT.NONE}
    layer = random_layer(rng, cell, bias=bias, **fields)
    loaded = zc.load(_built(layer), source="coreml")
    assert isinstance(loaded, zc.Layer)
    same_layer(loaded, layer)


def test_gru_by_its_published_equations(rng: np.random.Generator) -> None:
    """r and z of the whole, then o from R_o (r·h): the specification of GRULayerParams."""
    weights = {
        "weight_ih": draw(rng, (3 * H, I)),
        "weight_hh": draw(rng, (3 * H, H)),
        "bias": draw(rng, (3 * H,)),
    }
    layer = zc.load(weights, source="coreml")
    assert isinstance(layer, zc.Layer)
    source, h = draw(rng, (T, N, I)), draw(rng, (N, H))
    result = ours([layer], source, [{"init_state": h}])
    (wr, wo, wz), (rr, ro, rz), (br, bo, bz) = (np.split(array, 3) for array in weights.values())

    def sigmoid(x: Any) -> Any:
        return 1 / (1 + np.exp(-x))

    for t in range(T):
        r = sigmoid(source[t] @ wr.T + h @ rr.T + br)
        z = sigmoid(source[t] @ wz.T + h @ rz.T + bz)
        o = np.tanh(source[t] @ wo.T + (r * h) @ ro.T + bo)
        h = (1 - z) * o + z * h
        close(result[t], h)


@pytest.mark.parametrize(
    ("extra", "facts", "message"),
    [
        ({}, {"direction": "reverse"}, "order of the input"),
        ({}, {"clip": 5.0}, "clip=5.0: zstate does not clip"),
        ({}, {"activation": "scaled_tanh"}, "activation: expected one of.*'scaled_tanh'"),
    ],
)
def test_refused(extra: dict[str, Any], facts: dict[str, Any], message: str) -> None:
    weights = {"weight_ih": np.ones((8, 3)), "weight_hh": np.ones((8, 2)), **extra}
    with pytest.raises(zs.OptionError, match=message):
        zc.load(weights, source="coreml", **facts)
