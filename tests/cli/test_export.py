"""`zstate export`: other runtimes write what `zstate sample` writes; `zstate graph` reads runs and
ONNX."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import zstate as zs
from zstate import cli
from zstate.train import Run, Settings
from zstate.types import Array

TEXT = "the cat sat on the mat. the dog ate the cat.\n" * 120
MODELS = [("lstm", 1), ("lstm", 2), ("gru", 2), ("rnn", 1)]
Step = Callable[[dict[str, Array]], dict[str, Array]]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _trained(cell: str, layers: int) -> None:
    settings = Settings(cell, layers, hidden=12, embedding=6, window=16, batch=8, total=30)
    list(Run.create(Path("run"), settings, TEXT).train(30))


def _sampled(length: int, capsys: pytest.CaptureFixture[str]) -> str:
    words = ["sample", "run", f"--length={length}", "--temperature=0", "--prompt=the dog"]
    assert cli.main(words) == 0
    return capsys.readouterr().out.removesuffix("\n")


def _written(step: Step, about: dict[str, Any], length: int) -> str:
    """The text that a model writes whose likeliest character is always taken."""
    text, alphabet = "the dog", about["alphabet"]
    count = about["characters"][0]
    states = {name: np.zeros(about["state_shape"], np.float32) for name in about["states"]}
    fed = 0
    while len(text) < len("the dog") + length:
        ids = np.array([[alphabet.index(c)] for c in text[fed : fed + count]], np.int32)
        found = step({"characters": ids, **states})
        states = {name: found[new] for name, new in about["states"].items()}
        fed += count
        if fed == len(text):
            text += alphabet[int(found["logits"][-1].argmax())]
    return text


def _about(path: str) -> dict[str, Any]:
    about: dict[str, Any] = json.loads(Path(path).read_text())
    assert about["alphabet"] == "".join(sorted(set(TEXT)))
    return about


@pytest.mark.parametrize(("cell", "layers"), MODELS)
def test_onnx(cell: str, layers: int, capsys: pytest.CaptureFixture[str]) -> None:
    """ONNX Runtime writes the same characters, the states fed back from call to call."""
    runtime = pytest.importorskip("onnxruntime")
    _trained(cell, layers)
    assert cli.main(["export", "run", "--to=onnx"]) == 0
    assert "wrote run/generator.onnx\nwrote run/generator.json\n" in capsys.readouterr().out
    session = runtime.InferenceSession("run/generator.onnx", providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def step(feeds: dict[str, Array]) -> dict[str, Array]:
        return dict(zip(names, session.run(names, feeds), strict=True))

    about = _about("run/generator.json")
    assert len(about["states"]) == layers * (2 if cell == "lstm" else 1)
    assert _written(step, about, 60) == _sampled(60, capsys)


def test_a_chunk_is_its_steps() -> None:
    """--steps 7 gives what seven calls give, logits and states."""
    runtime = pytest.importorskip("onnxruntime")
    _trained("lstm", 2)
    for steps in (1, 7):
        words = ["export", "run", "--to=onnx", f"--steps={steps}", f"--out=s{steps}.onnx"]
        assert cli.main(words) == 0
    whole, single = (runtime.InferenceSession(f"s{steps}.onnx") for steps in (7, 1))
    about = _about("s7.json")
    assert about["characters"] == [7, 1]
    rng = np.random.default_rng(0)
    states = {name: rng.normal(size=(1, 12)).astype(np.float32) for name in about["states"]}
    ids = rng.integers(0, len(about["alphabet"]), (7, 1)).astype(np.int32)
    names = ["logits", *about["states"].values()]
    logits, *ends = whole.run(names, {"characters": ids, **states})
    for k in range(7):
        found, *new = single.run(names, {"characters": ids[k : k + 1], **states})
        np.testing.assert_allclose(logits[k], found[0], rtol=1e-4, atol=1e-5)
        states = dict(zip(states, new, strict=True))
    for end, state in zip(ends, states.values(), strict=True):
        np.testing.assert_allclose(end, state, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("cell", "layers"), MODELS)
def test_coreml(cell: str, layers: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The program in MIL, read by the tests' own evaluator."""
    pytest.importorskip("coremltools")
    from tests.coreml.evaluator import evaluate
    from zstate import coreml
    from zstate.train.loop import load_model

    _trained(cell, layers)
    assert cli.main(["export", "run", "--to=coreml", "--out=Writer.mlpackage"]) == 0
    assert Path("Writer.mlpackage/Manifest.json").exists()
    model, _, _ = load_model(Path("run"))
    made = coreml.mil_program(model.generator_program(1))
    written = _written(lambda feeds: evaluate(made, feeds), _about("Writer.json"), 8)
    capsys.readouterr()
    assert written == _sampled(8, capsys)


@pytest.mark.parametrize(("cell", "layers"), MODELS)
def test_swift(cell: str, layers: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The Swift file, carried out on the facade with the arrays beside it."""
    pytest.importorskip("tree_sitter_swift")
    from tests.swift.test_swift import run_file

    _trained(cell, layers)
    assert cli.main(["export", "run", "--to=swift"]) == 0
    text = Path("run/generator.swift").read_text()

    def step(feeds: dict[str, Array]) -> dict[str, Array]:
        return run_file(text, Path("run/generator.safetensors"), feeds)[0]

    capsys.readouterr()
    assert _written(step, _about("run/generator.json"), 4) == _sampled(4, capsys)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--to=onnx", "--out=a.txt"], "--out: expected a name that ends in .onnx, got 'a."),
        (["run", "--to=onnx", "--out="], "--out: expected a name that ends in .onnx"),
        (["nope", "--to=onnx"], "[run] 'nope': expected the folder of a run of `zstate train`, "),
        (["text", "--to=onnx"], "got a file"),
        (["empty", "--to=onnx"], "got a folder without run.json"),
        (
            ["run", "--to=onnx", "--out=run/run.onnx"],
            "run.json beside it would overwrite the run's",
        ),
        (["run", "--to=coreml", "--out=run/run.mlpackage"], "run.json beside it would overwrite"),
        (["run", "--to=swift", "--out=run/checkpoint.swift"], "checkpoint.safetensors beside it"),
        (["run", "--to=onnx", "--out=nowhere/a.onnx"], "--out: expected a file in a folder that"),
        (["run", "--to=swift", "--out=folder.swift"], "expected a file in a folder that exists, "),
    ],
)
def test_refusals(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("text").write_text(TEXT)
    Path("empty").mkdir()
    Path("folder.swift").mkdir()
    Run.create(Path("run"), Settings(hidden=4, window=8, batch=2), TEXT).save()
    before = {path: path.is_file() and path.read_bytes() for path in Path().rglob("*")}
    assert cli.main(["export", *words]) == 2
    refused = capsys.readouterr().err
    assert message in refused and refused.count("\n") == 1
    assert {path: path.is_file() and path.read_bytes() for path in Path().rglob("*")} == before


class TestGraph:
    def test_a_run(self, capsys: pytest.CaptureFixture[str]) -> None:
        _trained("gru", 1)
        assert cli.main(["graph", "run"]) == 0
        printed = capsys.readouterr().out
        assert cli.main(["graph", "run/checkpoint.safetensors"]) == 0
        assert capsys.readouterr().out == printed and "= gru(" in printed
        assert cli.main(["graph", "run", "--svg=run.svg"]) == 0
        ElementTree.parse("run.svg")
        assert cli.main(["graph", "run", "--swift=run.swift"]) == 2
        told = capsys.readouterr().err
        assert "got float64; to export only the run's model: zstate export run --to swift" in told
        graph = zs.Graph.load("run/checkpoint.safetensors")
        tokens = next(node.results[0] for node in graph.nodes if node.name == "train.tokens")
        read = next(node.name for node in graph.nodes if tokens in node.inputs)
        words = [f"--target={read}", "--shape=train.tokens=16,8"]
        assert cli.main(["graph", "run", "--swift=run/checkpoint.swift", *words]) == 2
        assert "would overwrite 'run/checkpoint.safetensors'" in capsys.readouterr().err

    def test_onnx(self, capsys: pytest.CaptureFixture[str]) -> None:
        pytest.importorskip("onnx")
        _trained("lstm", 1)
        assert cli.main(["export", "run", "--to=onnx", "--out=g.onnx"]) == 0
        capsys.readouterr()
        assert cli.main(["graph", "g.onnx"]) == 0
        assert "= lstm(" in capsys.readouterr().out
        assert cli.main(["graph", "g.onnx", "--dot=g.dot", "--swift=g.swift"]) == 0
        assert "it reads g.safetensors beside it" in capsys.readouterr().out
        assert zs.Graph.load("g.safetensors").nodes
        text = Path("g.swift").read_text()
        assert '"logits"' in text and "«" not in text

    def test_not_a_run(self, capsys: pytest.CaptureFixture[str]) -> None:
        Path("empty").mkdir()
        assert cli.main(["graph", "empty"]) == 2
        assert "got a folder without run.json" in capsys.readouterr().err
        Path("bad.onnx").write_bytes(b"no")
        assert cli.main(["graph", "bad.onnx"]) == 2
