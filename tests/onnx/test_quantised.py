"""DynamicQuantizeLSTM in and out, against onnxruntime; and whose int8 is nearer to float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantType, quantize_dynamic

import zstate as zs
import zstate.convert as zc
import zstate.onnx as zo
from tests.onnx.common import Drawn, runtime
from zstate.types import Array


def quantised(model: Any, folder: Path, **options: Any) -> Any:
    before, after = folder / "float.onnx", folder / "int8.onnx"
    onnx.save(model, before)
    quantize_dynamic(before, after, **options)
    found = onnx.load(after)
    assert [node.op_type for node in found.graph.node] == ["DynamicQuantizeLSTM"]
    return found


def layer_model(rng: np.random.Generator, way: str, size: tuple[int, ...]) -> tuple[Any, Any]:
    """An LSTM node of realistic weights, and its feeds."""
    T, N, I, H = size
    drawn = Drawn(rng, "LSTM", direction=way, hidden_size=H)
    D = 2 if way == "bidirectional" else 1

    def normal(*shape: int, scale: float = 1.0) -> Array:
        return (rng.normal(size=shape) * scale).astype(np.float32)

    drawn.attributes = {"hidden_size": H, "direction": way}
    drawn.arrays = {
        "X": normal(T, N, I),
        "W": normal(D, 4 * H, I, scale=I**-0.5),
        "R": normal(D, 4 * H, H, scale=H**-0.5),
        "B": normal(D, 8 * H, scale=0.2),
        "sequence_lens": np.zeros(0, np.int32),
        "initial_h": normal(D, N, H, scale=0.5),
        "initial_c": normal(D, N, H, scale=0.5),
        "P": normal(D, 3 * H, scale=0.2),
    }
    drawn.fed, drawn.unknown = ("X", "initial_h", "initial_c"), False
    return drawn.model()


def errors(found: dict[str, Array], wanted: dict[str, Array]) -> float:
    return float(np.mean([np.abs(found[k] - wanted[k]).mean() for k in wanted]))


@pytest.mark.parametrize("way", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("kind", [QuantType.QInt8, QuantType.QUInt8])
def test_what_onnxruntime_gives(tmp_path: Path, way: str, per_channel: bool, kind: Any) -> None:
    """Apart by no more than what onnxruntime's rounding of x and h makes of the same weights."""
    rng = np.random.default_rng(3)
    model, feeds = layer_model(rng, way, (12, 3, 20, 24))
    small = quantised(model, tmp_path, per_channel=per_channel, weight_type=kind)
    exact = runtime(model, feeds)
    theirs = runtime(small, feeds)
    loaded = zo.load(small)
    ours = loaded.run(feeds)
    assert {name: a.shape for name, a in ours.items()} == {n: a.shape for n, a in theirs.items()}
    assert errors(ours, exact) <= errors(theirs, exact)
    assert errors(ours, theirs) <= 1.2 * errors(theirs, exact)
    assert sum("W" in name or "R" in name for name in loaded.parameters) == 2


def test_the_weights_are_those_of_the_integers(tmp_path: Path) -> None:
    """By hand: (q - zero)·scale, transposed; so the loaded model is the float model of these."""
    rng = np.random.default_rng(4)
    model, feeds = layer_model(rng, "bidirectional", (5, 2, 7, 6))
    small = quantised(model, tmp_path, weight_type=QuantType.QUInt8)
    arrays = {each.name: onnx.numpy_helper.to_array(each) for each in small.graph.initializer}
    (node,) = small.graph.node
    floats = {}
    for name, place, scale, zero in (("W", 1, 8, 9), ("R", 2, 10, 11)):
        q, s, z = (arrays[node.input[k]] for k in (place, scale, zero))
        wide = (q.astype(np.float64) - z.reshape(2, 1, -1)) * s.reshape(2, 1, -1).astype(np.float64)
        floats[name] = wide.transpose(0, 2, 1).astype(np.float32)
    for each in model.graph.initializer:
        if each.name in floats:
            each.CopyFrom(onnx.numpy_helper.from_array(floats[each.name], each.name))
    wanted = runtime(model, feeds)
    for name, array in zo.load(small).run(feeds).items():
        assert np.abs(array - wanted[name]).max() < 5e-6


@pytest.mark.parametrize("way", ["forward", "reverse", "bidirectional"])
def test_saved_and_run_by_onnxruntime(tmp_path: Path, way: str) -> None:
    rng = np.random.default_rng(5)
    model, feeds = layer_model(rng, way, (9, 2, 16, 20))
    loaded = zo.load(model)
    zo.save(loaded.graph, loaded.outputs, tmp_path / "out.onnx", weights="int8")
    saved = onnx.load(tmp_path / "out.onnx")
    assert [n.op_type for n in saved.graph.node].count("DynamicQuantizeLSTM") == 1
    assert {each.domain for each in saved.opset_import} == {"", "com.microsoft"}
    exact, theirs = runtime(model, feeds), runtime(saved, feeds)
    usual = runtime(quantised(model, tmp_path, per_channel=True), feeds)
    assert errors(theirs, exact) <= 1.2 * errors(usual, exact)
    again = zo.load(saved).run(feeds)
    assert errors(again, exact) <= errors(theirs, exact)


def test_what_int8_cannot_be_saved(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    g = zs.Graph()
    x = g.placeholder(shape=(4, 2, 3), dtype="float32", name="x")
    R = g.variable(rng.normal(size=(15, 5)).astype(np.float32), name="R")
    W = g.variable(rng.normal(size=(15, 3)).astype(np.float32), name="W")
    (h,) = g.gru(x, recurrent_weight=R, input_weight=W)
    with pytest.raises(zs.OptionError, match="gru.*expected an LSTM that DynamicQuantizeLSTM"):
        zo.save(g, {"h": h}, tmp_path / "a.onnx", weights="int8")
    with pytest.raises(zs.OptionError, match="weights: expected 'float32' or 'int8', got 'int4'"):
        zo.save(g, {"h": h}, tmp_path / "a.onnx", weights="int4")


def test_nodes_that_are_not_whole_are_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    model, _ = layer_model(rng, "forward", (3, 1, 4, 5))
    small = quantised(model, tmp_path)
    (node,) = small.graph.node
    names = list(node.input)

    def loaded(**changes: Any) -> None:
        broken = onnx.ModelProto()
        broken.CopyFrom(small)
        for each in broken.graph.initializer:
            if each.name in changes:
                each.CopyFrom(onnx.numpy_helper.from_array(changes[each.name], each.name))
        zo.load(broken)

    loaded()
    with pytest.raises(zs.ShapeError, match=r"W scale: expected \[1\] or \[1,20\], got \[3\]"):
        loaded(**{names[8]: np.ones(3, np.float32)})
    with pytest.raises(zs.ShapeError, match=r"W: expected integers \[D,K,4H\], got float32"):
        loaded(**{names[1]: np.ones((1, 4, 20), np.float32)})
    with pytest.raises(zs.ShapeError, match="R"):
        loaded(**{names[2]: np.ones((1, 6, 20), np.int8)})
    node.input[8] = "nothing"
    with pytest.raises(zs.GraphError, match="nothing: expected weights, scales and zero points"):
        zo.load(small)


@pytest.mark.parametrize("size", [(30, 4, 40, 100), (60, 1, 128, 128), (40, 8, 100, 200)])
def test_our_int8_is_as_near_to_float_as_theirs(tmp_path: Path, size: tuple[int, ...]) -> None:
    rng = np.random.default_rng(8)
    ours, theirs = [], []
    for _ in range(4):
        model, feeds = layer_model(rng, "forward", size)
        exact = runtime(model, feeds)["Y"][:, 0]
        usual = quantised(model, tmp_path, per_channel=True, weight_type=QuantType.QInt8)
        layer = zc.load(model, source="onnx")
        prepared = zs.prepare(layer, "int8")
        states = (feeds["initial_h"][0], feeds["initial_c"][0])
        ours.append(np.abs(prepared(feeds["X"], states)[0] - exact).mean())
        theirs.append(np.abs(runtime(usual, feeds)["Y"][:, 0] - exact).mean())
    assert np.mean(ours) <= np.mean(theirs)
