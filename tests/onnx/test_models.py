"""Models that torch exports: loaded, they give onnxruntime's outputs; trained and saved, again."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import zstate as zs
import zstate.onnx as zo
from tests.onnx.common import close, runtime
from zstate.types import Array

T, N = 7, 3


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.layers = nn.LSTM(8, 6, 2, bidirectional=True, batch_first=True, dropout=0.1)
        self.out = nn.Linear(12, 5)

    def forward(self, x: Any) -> Any:
        return torch.log_softmax(self.out(self.layers(self.embed(x))[0]), -1)


class LanguageModel(nn.Module):
    """Steps of a language model: the states go in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.layers = nn.LSTM(8, 8, 2)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Any, h: Any, c: Any) -> Any:
        y, (h, c) = self.layers(self.embed(x), (h, c))
        return torch.softmax(self.norm(y) @ self.embed.weight.T, -1), h, c


class Encoder(nn.Module):
    """A speech encoder: convolutions over time, then a bidirectional GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(10, 8, 3, padding=1)
        self.second = nn.Conv1d(8, 8, 3, stride=2, padding=1, groups=2)
        self.norm = nn.BatchNorm1d(8)
        self.layers = nn.GRU(8, 6, bidirectional=True, batch_first=True)
        self.out = nn.Linear(12, 4)

    def forward(self, x: Any) -> Any:
        x = nn.functional.leaky_relu(self.norm(self.second(torch.relu(self.first(x)))))
        y, h = self.layers(x.transpose(1, 2))
        return self.out(y), h.mean(0)


class Packed(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layers = getattr(nn, kind)(4, 5, bidirectional=True)

    def forward(self, x: Any, lengths: Any) -> Any:
        packed = pack_padded_sequence(x, lengths)
        y, h = self.layers(packed)
        h = h[0] if isinstance(h, tuple) else h
        return pad_packed_sequence(y)[0], h


def exported(
    model: nn.Module, feeds: dict[str, Any], dynamic: dict[str, Any] | None, tmp_path: Path
) -> Path:
    path = tmp_path / "model.onnx"
    torch.onnx.export(
        model.eval(),
        tuple(feeds.values()),
        str(path),
        input_names=list(feeds),
        dynamic_axes=dynamic,
        dynamo=False,
    )
    return path


def randomised(model: nn.Module, rng: np.random.Generator) -> nn.Module:
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.tensor(rng.uniform(0.05, 0.6, tensor.shape)))
                tensor.mul_(torch.tensor(rng.choice([-1.0, 1.0], tensor.shape)))
        for name, tensor in model.named_buffers():
            if name.endswith("running_var"):
                tensor.abs_()
    return model


MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "tagger": (
        Tagger,
        lambda r: {"x": torch.tensor(r.integers(0, 20, (N, T)))},
        {"x": {0: "N", 1: "T"}},
    ),
    "language model": (
        LanguageModel,
        lambda r: {
            "x": torch.tensor(r.integers(0, 20, (T, N))),
            "h": torch.tensor(r.normal(size=(2, N, 8)), dtype=torch.float32),
            "c": torch.tensor(r.normal(size=(2, N, 8)), dtype=torch.float32),
        },
        {"x": {0: "T", 1: "N"}, "h": {1: "N"}, "c": {1: "N"}},
    ),
    "encoder": (
        Encoder,
        lambda r: {"x": torch.tensor(r.normal(size=(N, 10, 12)), dtype=torch.float32)},
        {"x": {0: "N", 2: "T"}},
    ),
    **{
        f"packed {kind}": (
            lambda kind=kind: Packed(kind),
            lambda r: {
                "x": torch.tensor(r.normal(size=(T, N, 4)), dtype=torch.float32),
                "lengths": torch.tensor([7, 4, 2]),
            },
            {"x": {0: "T", 1: "N"}, "lengths": {0: "N"}},
        )
        for kind in ("RNN", "LSTM", "GRU")
    },
}


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    return np.random.default_rng(int(request.config.option.hypothesis_seed))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_exported_models(
    name: str, is_dynamic: bool, rng: np.random.Generator, tmp_path: Path
) -> None:
    make, draw, dynamic = MODELS[name]
    tensors = draw(rng)
    path = exported(randomised(make(), rng), tensors, dynamic if is_dynamic else None, tmp_path)
    model = zo.load(path)
    feeds: dict[str, Array] = {key: tensor.numpy() for key, tensor in tensors.items()}
    wanted = runtime(path, feeds)
    close(model.run(feeds), wanted)
    saved = tmp_path / "saved.onnx"
    zo.save(model.graph, model.outputs, saved)
    onnx.checker.check_model(onnx.load(saved), full_check=True)
    close(runtime(saved, feeds), wanted)
    kinds = [node.op_type for node in onnx.load(saved).graph.node]
    assert "Scan" not in kinds and {"RNN", "LSTM", "GRU"} & set(kinds)
    close(zo.load(saved).run(feeds), wanted)
    if is_dynamic and name == "tagger":
        longer = {"x": rng.integers(0, 20, (5, 11))}
        close(model.run(longer), runtime(path, longer))


@pytest.mark.filterwarnings("ignore")
def test_a_loaded_model_is_trained_and_saved(rng: np.random.Generator, tmp_path: Path) -> None:
    make, draw, dynamic = MODELS["tagger"]
    path = exported(randomised(make(), rng), draw(rng), dynamic, tmp_path)
    model = zo.load(path)
    g = model.graph
    (scores,) = model.outputs.values()
    labels = g.placeholder(shape=(None, None, 5), name="labels")
    loss = -g.mean(g.reduction_sum(scores * labels, axes=[2]))
    gradients = g.gradients(of=loss, with_respect_to=list(model.parameters.values()))
    steps = [
        g.assign(variable, g.stochastic_gradient_descent(1.0, variable, gradient))
        for variable, gradient in gradients.items()
    ]
    x = rng.integers(0, 20, (8, 9))
    wanted = np.eye(5, dtype=np.float32)[x % 5]
    before = g.variables()
    feeds = {model.inputs["x"]: x, labels: wanted}
    losses = [float(g.run(feeds, [loss], steps)[loss].item()) for _ in range(100)]
    assert losses[-1] < losses[0] / 2
    after = g.variables()
    assert all(np.any(before[name] != after[name]) for name in model.parameters)
    saved = tmp_path / "trained.onnx"
    zo.save(g, model.outputs, saved)
    found = runtime(saved, {"x": x})
    close(found, model.run({"x": x}))
    assert (
        np.abs(next(iter(found.values())) - next(iter(runtime(path, {"x": x}).values()))).max()
        > 0.1
    )


def test_a_loaded_model_prints_and_names_its_parts() -> None:
    model = zo.load(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17]> m (float[N, 3] x) => (float[N, 2] y)'
            "<float[3, 2] w = {1, 2, 3, 4, 5, 6}> { y = MatMul(x, w) }"
        )
    )
    assert (list(model.inputs), list(model.outputs), list(model.parameters)) == (
        ["x"],
        ["y"],
        ["w"],
    )
    assert "matrix_multiplication" in str(model.graph)
    np.testing.assert_array_equal(model.run({"x": np.ones((1, 3), np.float32)})["y"], [[9, 12]])
    with pytest.raises(zs.ZStateError, match="'z'"):
        model.run({"z": np.ones((1, 3), np.float32)})


def test_a_path_that_no_file_can_have() -> None:
    with pytest.raises(zs.GraphError, match=r"^\[onnx.load\] 'a.x00b': expected a file, got "):
        zo.load("a\0b")


def test_bytes_in_memory_need_a_proto() -> None:
    with pytest.raises(zs.ZStateError, match="a path or an onnx.ModelProto"):
        zo.load(io.BytesIO())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["tagger", "language model", "encoder"])
def test_models_of_the_newer_exporter(name: str, rng: np.random.Generator, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="torch's newer exporter needs onnxscript")
    make, draw, _ = MODELS[name]
    tensors = draw(rng)
    path = tmp_path / "model.onnx"
    model = randomised(make(), rng).eval()
    program = torch.onnx.export(model, tuple(tensors.values()), dynamo=True, verbose=False)
    program.save(str(path))
    feeds = {key: tensor.numpy() for key, tensor in tensors.items()}
    close(zo.load(path).run(feeds), runtime(path, feeds))


def test_lists_and_numbers_are_arrays_of_the_declared_type() -> None:
    model = zo.load(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["": 17]>
            m (float[N] x, int64 k, bool[N] b) => (float[N] y, int64 i)
            { f = Cast <to = 1> (k) z = Neg(x) s = Where(b, x, z) y = Mul(s, f) i = Add(k, k) }"""
        )
    )
    for x, k, b in (
        ([1.5, 2], 3, [True, False]),
        ((np.float64(1.5), 2), np.int32(3), [1, 0]),
        (np.array([1.5, 2], np.float32), np.array(3), np.array([True, False])),
        ([1.5, 2], 3.0, (True, False)),
    ):
        found = model.run({"x": x, "k": k, "b": b})
        np.testing.assert_array_equal(found["y"], np.array([4.5, -6], np.float32))
        assert found["y"].dtype == np.float32 and found["i"].dtype == np.int64 and found["i"] == 6
    assert len(model._programs) == 1
    for name, value in (("k", 1.5), ("k", np.nan), ("k", 2**70), ("x", "ab"), ("x", [[1], [2, 3]])):
        with pytest.raises(zs.DTypeError, match=rf"onnx.Model.run\] {name}: expected an array"):
            model.run({"x": [1.0, 2.0], "k": 3, "b": [True, True], name: value})
    with pytest.raises(zs.GraphError, match="feeds: expected"):
        model.run([1, 2])  # type: ignore[arg-type]


def test_a_wrong_feed_is_refused_in_the_name_of_the_call() -> None:
    model = zo.load(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["": 17]>
            m (float[2] x, float[2] y) => (float[2] z) { z = Add(x, y) }"""
        )
    )
    ones = np.ones(2, np.float32)
    for feeds, wrong in (
        ({"x": ones}, r"feed 'y': expected an array float32\[2\], got nothing"),
        ({"x": ones, "y": np.ones(2)}, "feed 'y': expected float32, got float64"),
        ({"x": ones, "y": [1.0]}, r"feed 'y': expected \[2\], got \[1\]"),
    ):
        with pytest.raises(zs.ZStateError, match=rf"^\[onnx.Model.run\] {wrong}$"):
            model.run(feeds)
    with pytest.raises(
        zs.DTypeError, match=r"^\[onnx.Model.run: feed 'y'\] dtype: expected one of"
    ):
        model.run({"x": ones, "y": ones.astype(">f4")})
    wrong_targets: tuple[Any, ...] = ("z", 3, [["z"]])
    for targets in wrong_targets:
        with pytest.raises(zs.ZStateError, match=r"^\[onnx.Model.run\] targets: expected "):
            model.run({"x": ones, "y": ones}, targets)
