"""int8 weights in files: integers and scales by hand, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import zstate as zs
import zstate.convert as zc
from zstate.cli import main
from zstate.convert import files

TARGETS = ("torch", "keras", "onnx", "tensorflow1")


def layers(both_ways: bool) -> list[zc.Layer]:
    rng = np.random.default_rng(1)
    D, H, I = 1 + both_ways, 6, 5
    made = []
    for inputs in (I, D * H):
        R = (4 * H, H) if D == 1 else (2, 4 * H, H)
        tensors = {
            "recurrent_weight": rng.normal(size=R).astype(np.float32),
            "input_weight": rng.normal(size=(D * 4 * H, inputs)).astype(np.float32),
            "bias": rng.normal(size=D * 4 * H).astype(np.float32),
        }
        made.append(zc.Layer("lstm", zs.LSTMDescriptor(bidirectional=both_ways), tensors))
    return made


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("target", TARGETS)
def test_integers_and_scales(tmp_path: Path, target: str, both_ways: bool) -> None:
    """Each matrix as round(w / scale), with scale = max|w| / 127 of its output row."""
    stack = layers(both_ways)
    floats, small = (str(tmp_path / name) for name in ("a.safetensors", "b.safetensors"))
    files.write(floats, {"": stack}, target)
    files.write(small, {"": stack}, target, int8=True)
    exact, found = load_file(floats), load_file(small)
    axis = -2 if target in ("keras", "tensorflow1") else -1
    matrices = [name for name in exact if f"{name}.scale" in found]
    stacked, joint = target == "onnx", target == "tensorflow1"
    assert len(matrices) == len(stack) * (1 + both_ways * (not stacked)) * (2 - joint)
    for name, array in exact.items():
        if name not in matrices:
            assert found[name].tobytes() == array.tobytes()
            continue
        scale = (np.abs(array).max(axis=axis, keepdims=True) / 127).astype(np.float32)
        np.testing.assert_allclose(found[f"{name}.scale"], scale, rtol=2e-7)
        assert found[name].dtype == np.int8
        assert (found[name] == np.rint(array / found[f"{name}.scale"].astype(np.float64))).all()
    (pieces,) = files.read(small, target).stacks.values()
    again: Any = zc.load(pieces, target)
    for before, after in zip(stack, again, strict=True):
        largest = {name: np.abs(array).max() for name, array in before.tensors.items()}
        if joint:  # a row of both has one scale
            largest = dict.fromkeys(largest, max(largest.values()))
        for name, array in before.tensors.items():
            step = largest[name] / 127 if name != "bias" else 0
            assert np.abs(after.tensors[name] - array).max() <= 0.51 * step
    if joint:
        return
    x = np.random.default_rng(2).normal(size=(7, 2, 5)).astype(np.float32)
    wanted = zs.prepare(stack, "int8")(x)[0]
    assert np.abs(zs.prepare(again, "int8")(x)[0] - wanted).max() < 2e-3  # the same integers


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, small = str(tmp_path / "a.safetensors"), str(tmp_path / "b.safetensors")
    files.write(source, {"": layers(False)}, "torch")
    way = ["--from", "torch", "--to", "onnx"]
    assert main(["convert", source, small, *way, "--weights", "int8"]) == 0
    assert {a.dtype.name for a in load_file(small).values()} == {"int8", "float32"}
    back = str(tmp_path / "c.npz")
    assert main(["convert", small, back, "--from", "onnx", "--to", "torch"]) == 0
    assert main(["convert", source, back, *way, "--weights", "int8"]) != 0
    assert "expected a .safetensors file for int8 weights" in capsys.readouterr().err


def test_scales_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "a.safetensors")
    files.write(path, {"": layers(False)}, "torch", int8=True)
    arrays = load_file(path)
    name = next(name for name in arrays if name.endswith(".scale"))
    arrays[name] = np.ones((3, 1), np.float32)
    save_file(arrays, path)
    with pytest.raises(zs.ShapeError, match=r"scale: expected a shape that broadcasts to \[24,"):
        files.read(path, "torch")
