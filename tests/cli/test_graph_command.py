"""`zstate graph`: which program is drawn and how much of it, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zstate as zs
from zstate import cli
from zstate.train import Run, Settings

TEXT = "the cat sat on the mat. the dog ate the cat.\n" * 60


@pytest.mark.parametrize(("cell", "layers"), [("lstm", 1), ("gru", 3)])
def test_unfolding(
    cell: str, layers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(cell, layers, hidden=8, embedding=4, window=16, batch=4)
    graph = Run.create(tmp_path / "r", settings, TEXT).model.graph
    count = len(graph.nodes)
    assert count > 150
    file = tmp_path / "g"
    graph.save(file)
    given = sum(n.op.name in ("variable", "constant", "assign") for n in graph.nodes)
    for option, box in (("--svg", "<g>"), ("--dot", "fillcolor")):
        out = tmp_path / "out"
        assert cli.main(["graph", str(file), option, str(out)]) == 0
        assert f"wrote {count} nodes, folded (--unfold shows all)" in capsys.readouterr().out
        assert out.read_text().count(box) <= 60
        assert cli.main(["graph", str(file), option, str(out), "--unfold"]) == 0
        assert f"wrote {count} nodes to " in capsys.readouterr().out
        assert out.read_text().count(box) == count - given


def test_a_small_graph_is_drawn_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(2, 1, 3), dtype="float64", name="x")
    g.single_gate_rnn(x, recurrent_weight=g.variable(np.eye(3)))
    g.save(tmp_path / "g")
    assert cli.main(["graph", str(tmp_path / "g"), "--svg", str(tmp_path / "s")]) == 0
    assert "folded" not in capsys.readouterr().out
    assert (tmp_path / "s").read_text() == g.to_svg()
    assert cli.main(["graph", str(tmp_path / "g")]) == 0
    assert capsys.readouterr().out == f"{g}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--target", "y"],
            "--target needs --html or --svg or --png or --dot or --swift or --coreml",
        ),
        (["--shape", "x=2"], "--shape needs --swift or --coreml"),
        (["--unfold"], "--unfold needs --html or --svg or --png or --dot"),
    ],
)
def test_an_option_without_its_output_is_refused(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    g = zs.Graph()
    g.tanh(g.placeholder(shape=(2,), name="x"), name="y")
    g.save(tmp_path / "g")
    assert cli.main(["graph", str(tmp_path / "g"), *words]) == 2
    assert message in capsys.readouterr().err


OPEN = """<ir_version: 8, opset_import: ["": 17]> m (float[T, N, 3] x) => (float[T, N, 4] y)
    <float[1, 12, 3] W = {%s}, float[1, 12, 4] R = {%s}, float[1, 1, 4] start = {1, 2, 3, 4},
     int64 one = {1}, int64[1] first = {0}, int64[1] at = {1}, int64[1] four = {4}>
    {
        shape = Shape(x)  n0 = Gather(shape, one)  n = Unsqueeze(n0, first)
        sizes = Concat <axis = 0> (at, n, four)  h = Expand(start, sizes)
        all = GRU <hidden_size = 4, linear_before_reset = 1> (x, W, R, , , h)
        y = Squeeze(all, at)
    }"""


def test_swift_of_a_model_with_open_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused until the sizes are given; then the file computes what onnxruntime computes."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnx.parser")
    pytest.importorskip("tree_sitter_swift")
    runtime = pytest.importorskip("onnxruntime")
    from tests.swift.test_swift import run_file

    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(3)
    weights = (",".join(f"{v:.3f}" for v in rng.normal(size=n)) for n in (36, 48))
    onnx.save(onnx.parser.parse_model(OPEN % tuple(weights)), "m.onnx")
    assert cli.main(["graph", "m.onnx", "--swift=Model.swift"]) == 2
    assert "zstate graph --shape" in capsys.readouterr().err
    assert not Path("Model.swift").exists() and not Path("Model.safetensors").exists()
    assert cli.main(["graph", "m.onnx", "--swift=Model.swift", "--shape=x=5,2,3"]) == 0
    assert "it reads Model.safetensors beside it" in capsys.readouterr().out
    feeds = {"x": rng.normal(size=(5, 2, 3)).astype(np.float32)}
    found, _ = run_file(Path("Model.swift").read_text(), Path("Model.safetensors"), feeds)
    session = runtime.InferenceSession("m.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(found["y"], session.run(["y"], feeds)[0], rtol=1e-5, atol=1e-6)


def test_swift_for_given_sizes_leaves_the_graph_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    g = zs.Graph()
    g.tanh(g.placeholder(shape=(None, 2), name="x"), name="y")
    g.save("g.safetensors")
    before = Path("g.safetensors").read_bytes()
    assert cli.main(["graph", "g.safetensors", "--swift=g.swift", "--shape=x=3,2"]) == 2
    assert (
        "--swift g.swift: its weights would overwrite 'g.safetensors'; choose"
        in capsys.readouterr().err
    )
    assert cli.main(["graph", "g.safetensors", "--swift=h.swift", "--shape=x=3,2"]) == 0
    assert Path("g.safetensors").read_bytes() == before
    assert zs.Executable.load("h.safetensors").targets


def test_a_model_of_another_framework(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["graph", "model.keras"]) == 2
    assert "FILE: expected a saved graph or program, an .onnx" in capsys.readouterr().err


def test_swift_beside_a_refused_export_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    g = zs.Graph()
    g.tanh(g.placeholder(shape=(None, 2), name="x"), name="y")
    g.save("g.safetensors")
    words = ["--swift=a.swift", "--c=b.h", "--shape=x=0,2"]
    assert cli.main(["graph", "g.safetensors", *words]) == 2
    assert "x: expected at least one value, got none" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["g.safetensors"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    settings = Settings("lstm", 1, hidden=8, embedding=4, window=16, batch=4)
    Run.create(tmp_path / "run", settings, TEXT).save()
    return tmp_path / "run"


def _programs(page: Path) -> list[dict[str, Any]]:
    (text,) = re.findall(r'(?s)id="data">(.*?)</script>', page.read_text())
    found: list[dict[str, Any]] = json.loads(text)["programs"]
    return found


@pytest.mark.parametrize(
    ("program", "feed", "others", "titles"),
    [
        ("training", "train.tokens", ("valid.", "sample."), {"lstm_gradients", "adam × 6"}),
        ("validation", "valid.tokens", ("train.", "sample."), {"soft_max_cross_entropy"}),
        ("sampling", "sample.token", ("train.", "valid."), {"gather"}),
    ],
)
def test_a_picture_shows_one_program_of_a_run(
    program: str,
    feed: str,
    others: tuple[str, str],
    titles: set[str],
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "p.svg"
    page = tmp_path / "p.html"
    words = ["graph", str(run), "--svg", str(out), "--html", str(page)]
    assert cli.main([*words, "--program", program]) == 0
    assert f"nodes of {program}" in capsys.readouterr().out
    text = out.read_text()
    assert feed in text and not any(other in text for other in others)
    programs = _programs(page)
    assert [each["name"] for each in programs] == ["training", "validation", "sampling"]
    (chosen,) = [each for each in programs if each["name"] == program]
    assert titles <= {box["title"] for box in chosen["folded"]["boxes"]}
    assert f'"chosen": "{program}"' in page.read_text()
    if program == "training":
        assert cli.main(words) == 0  # the default
        assert out.read_text() == text


def test_targets_of_a_graph_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    g = zs.Graph()
    x = g.placeholder(shape=(2,), name="x")
    g.tanh(x, name="y")
    g.square(x, name="z")
    g.save("g")
    assert cli.main(["graph", "g", "--dot=a.dot", "--target=z"]) == 0
    text = Path("a.dot").read_text()
    assert "square" in text and "tanh" not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--svg=a.png"], "--svg: expected a name that ends in .svg, got 'a.png'"),
        (["--png=a.svg"], "--png: expected a name that ends in .png"),
        (["--html=a.svg"], "--html: expected a name that ends in .html or .htm"),
        (["--dot=a.txt"], "--dot: expected a name that ends in .dot or .gv"),
        (["--swift=a.py"], "--swift: expected a name that ends in .swift"),
        (["--svg=a.svg", "--png=a.jpg"], "--png: expected a name that ends in .png"),
        (["--svg=a.svg", "--program=gates"], "one of training, validation, sampling, got 'gates'"),
        (["--svg=a.svg", "--target=nothing"], "--target: expected the name of a tensor"),
        (["--svg=a.svg", "--program=training", "--target=embedding"], "without --target"),
        (["--program=training"], "--program needs --html or --svg or --png or --dot"),
        (["--svg="], "--svg: expected a name that ends in .svg, got ''"),
        (["--svg=a.svg", "--dot=none/a.dot"], "--dot: expected a file in a folder that exists"),
        (["--c=a.h", "--shape=x=3"], "--shape: expected a saved graph or an .onnx model, got the"),
    ],
)
def test_a_refusal_writes_nothing(
    words: list[str],
    message: str,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["graph", str(run), *words]) == 2
    assert message in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"run"}


def test_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    g = zs.Graph()
    g.tanh(g.placeholder(shape=(2,), name="x"), name="y")
    g.save("g")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert cli.main(["graph", "g", "--svg=a.svg"]) == 0
    assert "pip install 'zstate[draw]' for dagre's layout" in capsys.readouterr().out
    assert cli.main(["graph", "g", "--svg=b.svg", "--png=b.png"]) != 0
    assert "--png needs matplotlib: pip install 'zstate[train]'" in capsys.readouterr().err
    assert not Path("b.svg").exists() and not Path("b.png").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [({"batch": 2**45}, "memory"), ({"hidden": 9}, "settings that do not match checkpoint")],
)
def test_a_run_of_a_stranger(
    change: dict[str, int], message: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about = json.loads((run / "run.json").read_text())
    about["settings"] |= change
    (run / "run.json").write_text(json.dumps(about))
    assert cli.main(["graph", str(run), "--svg", str(run / "a.svg")]) == 2
    assert message in capsys.readouterr().err
    assert not (run / "a.svg").exists()
