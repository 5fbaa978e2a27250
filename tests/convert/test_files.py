"""`zstate convert`: files in, files out, whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors.numpy import load_file, save_file

import zstate as zs
import zstate.convert as zc
from zstate.convert import files

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
    read_stack,
    same_layer,
)

pytestmark = pytest.mark.usefixtures("in_folder")


def _saved_torch(module: torch.nn.Module, name: str = "in.safetensors") -> dict[str, Any]:
    arrays = {key: value.numpy() for key, value in module.state_dict().items()}
    save_file(arrays, name)
    return arrays


@pytest.mark.parametrize("end", ["safetensors", "npz"])
def test_torch_to_keras(end: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = torch.nn.LSTM(I, H, num_layers=12, bidirectional=True)
    arrays = _saved_torch(module)
    if end == "npz":
        np.savez("in.npz", **arrays)
    assert convert(f"in.{end}", f"out.{end}", "--from", "torch", "--to", "keras") == 0
    printed = capsys.readouterr().out
    assert f"layer 0: lstm, {I} inputs, {H} units, both directions" in printed
    assert 'keras: activation="tanh" recurrent_activation="sigmoid" use_bias=true' in printed
    found = load_file(f"out.{end}") if end == "safetensors" else dict(np.load(f"out.{end}"))
    expected = zc.save(zc.load(module, source="torch"), target="keras")
    assert set(found) == set(expected)
    assert all(np.array_equal(found[name], array) for name, array in expected.items())
    assert len(found) == 12 * 2 * 3
    # The layers come back in their order: 10 behind 9.
    assert convert(f"out.{end}", "back.safetensors", "--from", "keras", "--to", "torch") == 0
    back = zc.load(load_file("back.safetensors"), source="torch")
    for one, other in zip(as_list(back), as_list(zc.load(module, source="torch")), strict=True):
        same_layer(one, other)


def test_facts_travel_in_the_file(rng: np.random.Generator) -> None:
    stack = [
        random_layer(rng, "gru"),
        random_layer(rng, "single_gate_rnn", inputs=H, activation=ACT.RELU),
    ]
    files.write("a.safetensors", {"": stack}, "keras")
    assert convert("a.safetensors", "b.safetensors", "--from", "keras", "--to", "tensorflow") == 0
    back = read_stack("b.safetensors", "tensorflow")
    for one, other in zip(back, stack, strict=True):
        same_layer(one, other)


def test_facts_and_prefixes_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.ModuleDict(
        {"encoder": torch.nn.RNN(I, H, nonlinearity="relu"), "head": torch.nn.Linear(H, 2)}
    )
    _saved_torch(model)
    frameworks = ("--from", "torch", "--to", "mlx")
    assert convert("in.safetensors", "out.npz", *frameworks) == 2
    refused = capsys.readouterr().err
    assert "got head.bias, head.weight." in refused
    assert "--only (encoder). To load a whole model, use zstate.onnx" in refused
    only = ("--only", "encoder", "--fact", "nonlinearity=relu", "--cell", "rnn")
    assert convert("in.safetensors", "out.npz", *frameworks, *only) == 0
    printed = capsys.readouterr().out
    assert 'mlx: nonlinearity="relu" bias=true' in printed
    assert "left out: head.bias, head.weight" in printed
    assert set(np.load("out.npz")) == {"encoder.Wxh", "encoder.Whh", "encoder.bias"}


def _with_peepholes(rng: np.random.Generator, layer: zc.Layer) -> zc.Layer:
    peephole = draw(rng, (2, 4 * H))
    peephole[:, 2 * H : 3 * H] = 0
    return zc.Layer(layer.cell, layer.descriptor, {**layer.tensors, "peephole": peephole})


@pytest.mark.parametrize("dtype", ["float32"])
def test_onnx_out_and_in(dtype: str, rng: np.random.Generator) -> None:
    first = random_layer(rng, "lstm", bidirectional=True, peephole_on_new_cell=True)
    stack = [
        _with_peepholes(rng, first),
        random_layer(rng, "gru", inputs=2 * H, reset_after=True),
        random_layer(rng, "single_gate_rnn", inputs=H, hidden=3, bias=False),
    ]
    files.write("model.onnx", {"": stack}, "onnx")
    onnx.checker.check_model(onnx.load("model.onnx"), full_check=True)
    session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    source = draw(rng, (T, N, I), dtype)
    close(session.run(["Y"], {"X": source})[0], ours(stack, source, [{}, {}, {}]))
    back = read_stack("model.onnx", "onnx")
    for one, other in zip(back, stack, strict=True):
        same_layer(one, other)
    assert convert("model.onnx", "out.safetensors", "--from", "onnx", "--to", "tensorflow") == 0
    assert convert("model.onnx", "out.safetensors", "--from", "onnx", "--to", "keras") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["in.pt", "o.npz", "--from", "torch", "--to", "keras"],
            "No such file",
        ),
        (["in.pt", "o.npz", "--from", "keras", "--to", "keras"], "--from: expected torch for a"),
        (["in.ckpt", "o.npz", "--from", "torch", "--to", "keras"], "a file that ends in .safe"),
        (["in.npz", "o.pt", "--from", "torch", "--to", "keras"], "write: expected a file that"),
        (["in.npz", "o.keras", "--from", "torch", "--to", "tensorflow"], "keras for a .keras file"),
        (
            ["in.npz", "o.h5", "--from", "torch", "--to", "mlx"],
            "--to: expected keras or tensorflow",
        ),
        (["in.npz", "o.onnx", "--from", "torch", "--to", "keras"], "--to: expected onnx for a"),
        (["in.onnx", "o.npz", "--from", "torch", "--to", "keras"], "--from: expected onnx"),
        (["in.keras", "o.npz", "--from", "torch", "--to", "mlx"], "--from: expected keras or"),
        (["in.npz", "o.npz", "--from", "torch", "--to", "mlx"], "No such file"),
        (["bad.npz", "o.npz", "--from", "torch", "--to", "mlx"], "whole .npz file"),
        (["bad.safetensors", "o.npz", "--from", "torch", "--to", "mlx"], "whole .safetensors file"),
        (["bad.onnx", "o.npz", "--from", "onnx", "--to", "mlx"], "whole ONNX file"),
        (["good.npz", "o.npz", "--from", "torch", "--to", "mlx", "--fact", "x"], "NAME=VALUE"),
        (["good.npz", "o.npz", "--from", "torch", "--to", "mlx", "--only", "x"], "--only"),
        (["good.npz", "no/o.npz", "--from", "torch", "--to", "mlx"], "No such file"),
        (["good.npz", "o.npz", "--from", "torch", "--to", "coreml"], "reset_after"),
        (
            ["keras.safetensors", "o.npz", "--from", "torch", "--to", "mlx"],
            "--from: expected 'keras'",
        ),
    ],
)
def test_refusals_write_nothing(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    rng: np.random.Generator,
) -> None:
    for name in ("bad.npz", "bad.safetensors", "bad.onnx"):
        Path(name).write_bytes(b"not what it says")
    gru = random_layer(rng, "gru", reset_after=True)
    np.savez("good.npz", **zc.save(gru, target="torch"))
    files.write("keras.safetensors", {"": [gru]}, "keras")
    before = sorted(os.listdir())
    assert convert(*arguments) == 2
    assert message in capsys.readouterr().err
    assert sorted(os.listdir()) == before


def test_a_failure_while_writing_leaves_the_old_file(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    layer = random_layer(rng, "lstm")
    files.write("out.npz", {"": [layer]}, "torch")
    before = Path("out.npz").read_bytes()

    def fails(file: Any, **arrays: Any) -> None:
        file.write(b"half")
        raise OSError("the disk is full")

    monkeypatch.setattr(np, "savez", fails)
    with pytest.raises(OSError, match="full"):
        files.write("out.npz", {"": [layer]}, "mlx")
    assert Path("out.npz").read_bytes() == before
    assert os.listdir() == ["out.npz"]


def test_bfloat16_is_no_type_of_npz() -> None:
    layer = zc.load(torch.nn.LSTM(I, H, dtype=torch.bfloat16), source="torch")
    with pytest.raises(zs.OptionError, match="bfloat16"):
        files.write("out.npz", {"": as_list(layer)}, "torch")
    files.write("out.safetensors", {"": as_list(layer)}, "torch")
    same_layer(read_stack("out.safetensors", "torch")[0], as_list(layer)[0])


def test_a_missing_reader_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    Path("in.h5").touch()
    assert convert("in.h5", "out.npz", "--from", "keras", "--to", "torch") == 2
    assert "this file needs the package h5py: pip install 'h5py'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["model.keras", "model.h5", "model.weights.h5"])
def test_models_of_keras(name: str, rng: np.random.Generator) -> None:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras", minversion="3.0")
    pytest.importorskip("h5py")
    options: dict[str, Any] = {"activation": "relu", "return_sequences": True}
    if name == "model.weights.h5":
        options["activation"] = "tanh"  # such a file holds no options
    model = keras.Sequential(
        [
            keras.Input((T, I)),
            keras.layers.LSTM(H, name="zeta", **options),
            keras.layers.Bidirectional(keras.layers.LSTM(H, **options), name="alpha"),
            keras.layers.Dense(3, name="dense"),
            keras.layers.RNN(keras.layers.LSTMCell(H), return_sequences=True, name="middle"),
        ]
    )
    model.set_weights([draw(rng, weight.shape) for weight in model.get_weights()])
    (model.save_weights if "weights" in name else model.save)(name)
    titles = ["zeta", "alpha", "middle"]
    stacks = files.read(name, "keras", titles).stacks
    assert [title.split("/")[0] for title in stacks] == titles
    for pieces, title in zip(stacks.values(), titles, strict=True):
        (layer,) = as_list(zc.load(pieces, source="keras"))
        same_layer(layer, as_list(zc.load(model.get_layer(title), source="keras"))[0])
    with pytest.raises(zs.OptionError, match="expected a stack of recurrent layers, got .*dense"):
        files.read(name, "keras")
    if name != "model.weights.h5":
        with pytest.raises(zs.OptionError, match="Keras 2.*--from keras.*got Keras 3"):
            files.read(name, "tensorflow")


@pytest.mark.parametrize("name", ["model.keras", "model.h5"])
def test_models_of_keras_2(name: str, rng: np.random.Generator) -> None:
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    keras = pytest.importorskip("tf_keras")
    model = keras.Sequential(
        [
            keras.Input((T, I)),
            keras.layers.GRU(H, return_sequences=True, recurrent_activation="hard_sigmoid"),
            keras.layers.Bidirectional(keras.layers.LSTM(H)),
            keras.layers.Dense(2),
        ]
    )
    model.set_weights([draw(rng, weight.shape) for weight in model.get_weights()])
    model.save(name)
    if name == "model.keras":
        with pytest.raises(zs.OptionError, match="save the model as .h5"):
            files.read(name, "tensorflow")
        return
    expected = as_list(zc.load(model.layers[:2], source="tensorflow"))
    names = [layer.name for layer in model.layers]
    stacks = files.read(name, "tensorflow", names[:2]).stacks
    for pieces, other in zip(stacks.values(), expected, strict=True):
        same_layer(as_list(zc.load(pieces, source="tensorflow"))[0], other)
    with pytest.raises(zs.OptionError, match="got dense.*--only"):
        files.read(name, "tensorflow")
    with pytest.raises(zs.OptionError, match="--from tensorflow"):
        files.read(name, "keras")


def _stack(rng: np.random.Generator) -> list[zc.Layer]:
    return [
        random_layer(rng, "lstm", bidirectional=True),
        random_layer(rng, "gru", inputs=2 * H, reset_after=True),
        random_layer(rng, "gru", inputs=H, bias=False, output_gate_activation=ACT.RELU),
        random_layer(rng, "single_gate_rnn", inputs=H, hidden=3, activation=ACT.SIGMOID),
        random_layer(rng, "lstm", inputs=3, reverse=True),
        random_layer(rng, "lstm", inputs=H),
    ]


@pytest.mark.parametrize(
    ("name", "framework"),
    [("out.keras", "keras"), ("out.h5", "keras"), ("out.h5", "tensorflow")],
)
def test_models_for_keras(name: str, framework: str, rng: np.random.Generator) -> None:
    """Written without Keras; read back to the bit, and loaded by Keras itself where it is."""
    pytest.importorskip("h5py")
    stack = _stack(rng)
    files.write(name, {"": stack}, framework)
    found = read_stack(name, framework)
    for one, other in zip(found, stack, strict=True):
        same_layer(one, other)
    os.environ.setdefault("KERAS_BACKEND", "torch")
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    keras = pytest.importorskip("keras" if framework == "keras" else "tf_keras")
    model = keras.models.load_model(name, compile=False)
    source = draw(rng, (T, N, I))
    expected = ours(stack, source, [{}] * len(stack))
    result = np.asarray(model.predict(source.swapaxes(0, 1), verbose=0)).swapaxes(0, 1)
    close(result, expected)


def test_what_a_model_of_keras_cannot_hold(rng: np.random.Generator) -> None:
    pytest.importorskip("h5py")
    layer = random_layer(rng, "lstm", peephole_on_new_cell=True)
    peephole = draw(rng, (4 * H,))
    peephole[2 * H : 3 * H] = 0
    seeing = zc.Layer("lstm", layer.descriptor, {**layer.tensors, "peephole": peephole})
    with pytest.raises(zs.OptionError, match="no peephole: Keras layers have none"):
        files.write("out.h5", {"": [seeing]}, "tensorflow")
    narrow = random_layer(rng, "lstm", dtype="bfloat16")
    with pytest.raises(zs.OptionError, match="a type that .h5 has, got bfloat16"):
        files.write("out.h5", {"": [narrow]}, "keras")
    assert not Path("out.h5").exists()
