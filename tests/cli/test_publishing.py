"""The scripts in benchmarks/ that write results: what they keep is what was timed."""

from __future__ import annotations

import importlib
import importlib.util
import json
import py_compile
import re
import runpy
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zstate.backends import native
from zstate.bench import contenders, contest, report
from zstate.bench.rows import GPU_ROWS, Row
from zstate.bench.timing import Protocol, Timing

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
QUICK = ["--block", "0.01", "--rounds", "2", "--threads", "1"]


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a script by its name; forgets the contenders that it adds."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    before = dict(contenders.CONTENDERS)
    yield importlib.import_module
    contenders.CONTENDERS.clear()
    contenders.CONTENDERS.update(before)


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.py")), ids=lambda path: path.name)
def test_every_script_compiles(path: Path, tmp_path: Path) -> None:
    py_compile.compile(str(path), str(tmp_path / "x.pyc"), doraise=True)
    assert path.name in (BENCHMARKS / "README.md").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("cells_on_gpu.py", "cells_on_gpu.py needs a GPU: "),
        ("graph_on_gpu.py", "graph_on_gpu.py needs a GPU: "),
        ("streamed_on_gpu.py", "streamed_on_gpu.py needs a GPU: "),
        ("fit_cost_model.py measure x.json", "fit_cost_model.py needs a GPU: "),
        ("fit_cost_model.py fit x.json", "no file 'x.json'"),
        ("onnx_models.py zzz", "--only: expected the name of a row"),
        ("small_calls.py --only zzz", "--only: expected the name of a row"),
        ("small_calls.py --json nowhere/x.json", "--json: expected a file in a folder that exists"),
        ("torch_layers.py zzz", "expected some of lengths, compile, call, got 'zzz'"),
        ("train.py --steps 3 --block 2", "--steps: expected at least two blocks of 2"),
        ("summary.py nowhere", "no folder 'nowhere'"),
    ],
)
def test_what_a_script_cannot_do_is_refused_in_a_line(
    words: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setattr("zstate.backends.cuda.unavailable", lambda: "torch sees no CUDA device")
    script, *rest = words.split()
    monkeypatch.setattr("sys.argv", [script, *rest])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(BENCHMARKS / script), run_name="__main__")
    shown = capsys.readouterr().err if ended.value.code == 2 else str(ended.value.code)
    assert message in shown and not shown[shown.index(message) :].strip().count("\n")
    assert not any(tmp_path.iterdir())


def test_a_run_writes_json_and_a_chart(
    scripts: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--json", str(tmp_path / "b.json"), "--chart", str(tmp_path / "b.png")]
    only = ["--only", "lstm 1x1x64,rnn 1x1x64", "--peers", "torch,onnxruntime"]
    assert scripts("publish").main([*only, *QUICK, *files]) == 0
    printed = capsys.readouterr().out
    assert "geometric mean of 2 rows" in printed and "GFLOP/s" in printed
    assert re.search(r"float32 training, times each peer \(rows\): torch [\d.]+ \(2\)\n", printed)
    found = json.loads((tmp_path / "b.json").read_text())
    assert found["machine"]["threads"] == 1 and found["machine"]["sgemm_gflops"] > 0
    assert len(found["rows"]) == 4
    for row in found["rows"]:
        peers = {name: ms for name, ms in row["ms"].items() if name != "zstate"}
        assert row["ratio"] == pytest.approx(min(peers.values()) / row["ms"]["zstate"])
        assert row["best_peer"] == min(peers, key=lambda name: peers[name])
        assert max(row["error"].values()) < 1e-5
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")
    assert "growth" not in found


def test_growth_is_measured(
    scripts: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    publish = scripts("publish")
    monkeypatch.setattr(publish, "BASE", Row("LSTM", 4, 2, 8))
    found = publish.growth(1, Protocol(0.001, 0, 1))
    assert [each["letter"] for each in found] == ["T"] * 3 + ["N"] * 4 + ["H"] * 3
    assert all(each["ms"] > 0 for each in found)
    assert "growth" in capsys.readouterr().out


def test_types_are_drawn_side_by_side(scripts: Any, tmp_path: Path) -> None:
    timings = {"zstate graph": Timing(1e-6, 0), "torch graph": Timing(4e-6, 0)}
    rows = [
        report.Measured(Row("LSTM", 2, 1, 4), True, timings, {}, kind)
        for kind in ("bfloat16", "float16")
    ]
    content = {"machine": {"processor": "a GPU"}, "rows": report.as_rows(rows)}
    assert [row["type"] for row in content["rows"]] == ["bfloat16", "float16"]
    assert content["rows"][0]["ratio"] == pytest.approx(4)
    scripts("charts").write_chart(tmp_path / "c.png", content)
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_streams_are_kept_with_their_percentiles(scripts: Any, tmp_path: Path) -> None:
    words = ["--streaming", "--only", "lstm *x1x64", "--peers", "none"]
    assert scripts("publish").main([*words, *QUICK, "--json", str(tmp_path / "s.json")]) == 0
    rows = json.loads((tmp_path / "s.json").read_text())["rows"]
    assert [(row["type"], row["T"]) for row in rows] == [
        (kind, steps) for kind in ("float32", "bfloat16", "int8") for steps in (1, 10)
    ]
    assert all(0 < row["ms"]["zstate"] <= row["p99_ms"]["zstate"] for row in rows)


def test_all_rows_of_the_gpu(scripts: Any) -> None:
    on_gpu = scripts("on_gpu")
    rows = on_gpu.all_rows()
    stored = json.loads((BENCHMARKS / "results" / "h200.json").read_text())["rows"]
    groups = {(row["cell"], row["T"], row["N"], row["H"]): row["group"] for row in stored}
    assert {(row.cell, row.T, row.N, row.H): row.group for row in rows} == groups
    assert len(rows) == len(groups) == 135 and set(GPU_ROWS) < set(rows)
    assert sum(map(on_gpu.is_compute_bound, rows)) == 54 and sum(map(on_gpu.is_tiny, rows)) == 60


def test_sgemm_is_not_that_of_one_thread(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A BLAS that computes on one thread is called from as many as the rows have."""
    publish, used, right = scripts("publish"), set[int](), np.matmul

    def seen(a: Any, b: Any, out: Any) -> Any:
        used.add(threading.get_ident())
        time.sleep(0.01)
        return right(a[:1], b, out=out[:1])

    monkeypatch.setattr(publish.np, "matmul", seen)
    assert publish.sgemm_rate(Protocol(0.0, rounds=1), threads=3) > 0
    assert len(used) == 1 + 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--json", "/nowhere/x.json"], "--json: expected a file in a folder that exists, got no"),
        (["--json", "."], "--json: expected a file in a folder that exists, got a folder"),
        (["--chart", "/nowhere/x.png"], "--chart: expected a file in a folder that exists"),
        (["--chart", "x.gif"], "--chart: expected a name that ends in .png or .svg or .pdf"),
        (["--chart", "x.png", "--peers", "none"], "--chart: expected at least one peer"),
        (
            ["--chart", "x.png", "--peers", "onnxruntime", "--mode", "training"],
            "--chart: expected at least one peer",
        ),
        (["--train"], "--train writes no files"),
    ],
)
def test_files_are_checked_before_anything_is_measured(
    scripts: Any,
    words: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    publish = scripts("publish")
    monkeypatch.setattr(publish.bench, "contest", None)
    assert publish.main(words) == 2
    assert message in capsys.readouterr().err


def test_a_chart_needs_matplotlib(
    scripts: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    publish, right = scripts("publish"), importlib.util.find_spec
    found = lambda name: None if name == "matplotlib" else right(name)  # noqa: E731
    monkeypatch.setattr("importlib.util.find_spec", found)
    monkeypatch.setattr(publish.bench, "contest", None)
    assert publish.main(["--chart", "x.png"]) == 2
    assert "--chart needs matplotlib: pip install matplotlib" in capsys.readouterr().err


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("name", ["flax", "nnx", "cudnn"])
def test_further_peers_on_jax(name: str, cell: str, bidirectional: bool, scripts: Any) -> None:
    pytest.importorskip("jax")
    scripts("publish").add_peers()
    if contenders.missing(name):
        pytest.skip(f"needs {contenders.missing(name)}")
    row = Row(cell, 3, 2, 5, bidirectional=bidirectional)
    data = contest.numbers(case := contenders.Case(row, True, way="jax"), 0)
    call = contenders.CONTENDERS[name].make(case, data)
    if name == "cudnn":
        assert call is None  # only on a GPU
        return
    assert call is not None
    assert max(contest.errors_of(case, data, call, contest.oracle(case, data))) < 1e-5


@pytest.mark.skipif(native.unavailable() is not None, reason="built without a C++ compiler")
def test_small_calls(
    scripts: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every way of every row is there, and the ratios are of what is shown."""
    small_calls, file = scripts("small_calls"), tmp_path / "small.json"
    words = ["--only", "rnn 1x1x64,gru 4x8x64", "--rounds", "1", "--threads", "2"]
    monkeypatch.setattr(small_calls, "BLOCK", 8)
    monkeypatch.setattr(small_calls, "PAUSE", 0.001)
    small_calls.main([*words, "--json", str(file)])
    shown = capsys.readouterr().out
    kept = json.loads(file.read_text())["small_calls"]
    assert [(row["row"], row["mode"]) for row in kept] == [
        (title, mode)
        for mode in ("inference", "training")
        for title in ("RNN 1×1×64", "GRU 4×8×64")
    ]
    for row in kept:
        ways = {(way["threads"], way["pause"]): way for way in row["us"]}
        assert ways.keys() == {(1, False), (1, True), (2, False), (2, True)}
        assert all(0 < way["median"] <= way["p99"] for way in ways.values())
        assert f"{ways[2, False]['median'] / ways[1, False]['median']:.2f}" in shown
        assert f"{ways[2, True]['median'] / ways[2, False]['median']:.2f}" in shown


def test_wrong_small_calls_are_not_timed(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    small_calls = scripts("small_calls")
    right = small_calls.functions
    wrong = lambda *given: lambda: [right(*given)()[0] + 0.01]  # noqa: E731
    monkeypatch.setattr(small_calls, "functions", wrong)
    with pytest.raises(AssertionError, match="RNN 1×1×64: wrong, off by"):
        small_calls.main(["--only", "rnn 1x1x64", "--mode", "inference"])
