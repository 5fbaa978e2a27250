"""The benchmark times only what is right, takes its ratios from what it timed, and keeps it."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import zstate as zs
from zstate import cli
from zstate.backends import native
from zstate.bench import contenders, report, small_calls, timing
from zstate.bench.rows import GATES, GPU_ROWS, ROWS, Row, choose, make_data
from zstate.bench.timing import Protocol, Timing, measure
from zstate.cli import bench
from zstate.verify import relative_error

SMALL = [
    Row("LSTM", 3, 2, 5),
    Row("GRU", 3, 2, 5),
    Row("RNN", 3, 2, 5),
    Row("LSTM", 3, 2, 5, bidirectional=True),
    Row("GRU", 3, 2, 5, bidirectional=True),
]


def test_the_rows_of_the_issue_are_there() -> None:
    titles = {row.title for row in ROWS}
    for cell in GATES:
        assert {f"{cell} 64×1×64", f"{cell} 50×128×1024", f"{cell} 1×1×1024"} <= titles
    assert {"LSTM 256×8×1024 both ways", "GRU 187×32×1024", "RNN 50×16×1760"} <= titles
    assert len(titles) == len(ROWS)


def test_flops() -> None:
    row = Row("GRU", 10, 4, 8)
    assert row.flops(False) == 2 * 10 * 4 * 3 * 8 * 16
    assert row.flops(True) == 3 * row.flops(False)
    assert replace(row, bidirectional=True).flops(False) == 2 * row.flops(False)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("row", SMALL, ids=lambda row: row.title)
def test_every_contender_computes_the_same(row: Row, training: bool) -> None:
    data = make_data(row, 0)
    wanted = contenders.oracle(row, data, training)
    took_part = []
    for name in contenders.installed():
        call = contenders.CONTENDERS[name](row, data, training, 1)
        if call is None:
            continue
        results = contenders.in_order(call())
        assert len(results) == len(wanted)
        for result, right in zip(results, wanted, strict=True):
            error = relative_error(contenders.as_array(row, result, right.shape), right)
            assert error < 1e-5, name
        took_part.append(name)
    assert {"zstate", "torch"} <= set(took_part)


@pytest.mark.parametrize("row", [SMALL[0], SMALL[2], SMALL[4]], ids=lambda row: row.title)
def test_every_contender_on_jax_computes_the_same(row: Row) -> None:
    pytest.importorskip("jax")
    data = make_data(row, 0)
    wanted = contenders.oracle(row, data, True)
    makers = contenders.makers("jax", contenders.chosen_peers(None, "jax"))
    assert {"zstate", "scan"} <= makers.keys()
    for name, maker in makers.items():
        for training in (False, True):
            call = maker(row, data, training, 1)
            if name == "cudnn":
                assert call is None  # only on a GPU
                continue
            assert call is not None
            results = contenders.in_order(call())
            assert len(results) == (len(wanted) if training else 1)
            for result, right in zip(results, wanted, strict=False):
                assert relative_error(np.asarray(result), right) < 1e-5, name


def test_jax_in_every_type_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    jax = pytest.importorskip("jax")
    from zstate.bench import jax_layers

    assert jax_layers.gpu_unavailable() is not None or jax.devices("gpu")
    found = jax.devices("cpu")
    monkeypatch.setattr(jax_layers.jax, "devices", lambda kind=None: found)
    assert jax_layers.gpu_unavailable() is None and jax_layers.machine()["jax"] == jax.__version__
    rows, peers, short = [replace(SMALL[2], states=False)], ["scan", "cudnn"], Protocol(0.0, 0, 1)

    def measured() -> list[report.Measured]:
        return list(jax_layers.measure_all(rows, ["bfloat16"], [False, True], peers, short, 0))

    first = measured()
    assert [(each.type, each.training) for each in first] == [
        ("bfloat16", False),
        ("bfloat16", True),
    ]
    assert all(set(each.timings) == {"zstate", "scan"} for each in first)
    right = jax_layers.ours

    def wrong(row: Row, data: Any, backend: str | None = None) -> Any:
        layer = right(row, data, backend)
        return layer if backend else replace(layer, run=lambda *given: 1.1 * layer.run(*given))

    monkeypatch.setattr(jax_layers, "ours", wrong)
    for each in measured():
        assert not each.timings and each.errors["zstate"] > 0.09


def test_bench_through_jax(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jax")
    quick = ["--block", "0.01", "--rounds", "1", "--no-growth", "--json", str(tmp_path / "b.json")]
    row = ["--through", "jax", "--only", "rnn 1x1x64", "--peers", "scan"]
    assert cli.main(["bench", *row, *quick]) == 0
    assert "float32 training, times each peer: scan" in capsys.readouterr().out
    rows = json.loads((tmp_path / "b.json").read_text())["rows"]
    assert [sorted(row["ms"]) for row in rows] == [["scan", "zstate"]] * 2
    assert cli.main(["bench", "--through", "jax", "--peers", "torch"]) == 2
    assert "some of scan, flax, nnx, cudnn, got 'torch'" in capsys.readouterr().err


def test_a_wrong_contender_is_not_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = contenders.CONTENDERS["torch"]

    def wrong(*arguments: Any) -> Any:
        call = right(*arguments)
        assert call is not None
        return lambda: [call()[0] + 0.01]

    monkeypatch.setitem(contenders.CONTENDERS, "torch", wrong)
    options = ["--only", "rnn 1x1x64", "--mode", "inference", "--peers", "torch"]
    quick = ["--block", "0.01", "--rounds", "1", "--no-growth", "--threads", "1"]
    assert cli.main(["bench", *options, *quick]) == 0
    assert "torch is wrong by" in capsys.readouterr().out


def test_a_run_writes_json_and_a_chart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--json", str(tmp_path / "b.json"), "--chart", str(tmp_path / "b.png")]
    quick = ["--block", "0.01", "--rounds", "2", "--no-growth", "--threads", "1"]
    only = ["--only", "lstm 1x1x64,rnn 1x1x64", "--peers", "torch,onnxruntime"]
    assert cli.main(["bench", *only, *quick, *files]) == 0
    printed = capsys.readouterr().out
    assert "geometric mean of 2 rows" in printed
    found = json.loads((tmp_path / "b.json").read_text())
    assert found["machine"]["threads"] == 1
    assert len(found["rows"]) == 4
    for row in found["rows"]:
        peers = {name: ms for name, ms in row["ms"].items() if name != "zstate"}
        assert row["ratio"] == pytest.approx(min(peers.values()) / row["ms"]["zstate"])
        assert row["best_peer"] == min(peers, key=lambda name: peers[name])
        assert max(row["error"].values()) < 1e-5
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")


def test_growth_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "_BASE", Row("LSTM", 4, 2, 8))
    found = bench._growth(Console(), 1, Protocol(0.001, 0, 1))
    assert [each["letter"] for each in found] == ["T"] * 3 + ["N"] * 4 + ["H"] * 3
    assert all(each["ms"] > 0 for each in found)
    assert "growth" in capsys.readouterr().out


def test_no_such_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--only", "lstm*,transformer"]) == 2
    assert "--only: expected the name of a row" in (err := capsys.readouterr().err)
    assert "got 'transformer'" in err


def test_blocks_alternate_and_the_best_median_counts() -> None:
    order: list[str] = []
    calls = {name: (lambda name=name: order.append(name)) for name in ("a", "b")}
    timings = measure(calls, Protocol(block=0.002, pause=0, rounds=2))
    changes = [name for k, name in enumerate(order) if k == 0 or order[k - 1] != name]
    assert changes == ["a", "b", "a", "b"]
    assert all(timing.seconds > 0 and timing.spread >= 0 for timing in timings.values())


def test_ratios_and_means() -> None:
    row = Row("RNN", 1, 1, 4)
    each = report.Measured(row, False, {"zstate": Timing(1e-3, 0), "torch": Timing(3e-3, 0)})
    each.timings["jax"] = Timing(2e-3, 0)
    assert each.best_peer == "jax"
    assert each.ratio == pytest.approx(2)
    assert report.Measured(row, False, {"zstate": Timing(1e-3, 0)}).ratio is None
    assert report.geometric_mean([1, 4]) == pytest.approx(2)
    assert np.isnan(report.geometric_mean([]))


def test_the_rows_of_the_gpu() -> None:
    titles = {row.title for row in GPU_ROWS}
    assert len(titles) == len(GPU_ROWS) == 135
    for cell in GATES:
        assert {f"{cell} 256×1×128", f"{cell} 1024×16×768", f"{cell} 256×32×2048"} <= titles
    assert not any(row.states for row in GPU_ROWS)


@pytest.mark.skipif(native.unavailable() is not None, reason="built without a C++ compiler")
def test_small_calls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every way of every row is there, and the ratios are of what is shown."""
    file = tmp_path / "small.json"
    words = ["--only", "rnn 1x1x64,gru 4x8x64", "--rounds", "1", "--threads", "2"]
    monkeypatch.setattr(small_calls, "BLOCK", 8)
    monkeypatch.setattr(small_calls, "PAUSE", 0.001)
    assert cli.main(["bench", "--small-calls", *words, "--json", str(file)]) == 0
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


def test_small_calls_are_zstates_on_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--small-calls", "--device", "cuda"]) == 2
    wanted = "--small-calls cannot be combined with --device cuda"
    assert wanted in capsys.readouterr().err
    assert cli.main(["bench", "--small-calls", "--only", "lstm 999x9x9"]) == 2
    assert "lstm 999x9x9" in capsys.readouterr().err


def test_without_a_gpu_the_benchmark_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert cli.main(["bench", "--device", "cuda"]) == 2
    assert "torch sees no CUDA device" in capsys.readouterr().err
    assert cli.main(["bench", "--device", "cuda", "--types", "int8"]) == 2
    assert "expected some of bfloat16, float32, float16, got 'int8'" in capsys.readouterr().err


def test_states_are_left_out_where_a_row_has_none() -> None:
    row = replace(SMALL[0], states=False)
    data = make_data(row, 0)
    wanted = contenders.oracle(row, data, True)
    for name in ("zstate", "torch"):
        call = contenders.CONTENDERS[name](row, data, True, 1)
        assert call is not None
        results = contenders.in_order(call())
        assert len(results) == len(wanted) == 5  # h, and gradients of x, R, W and b
        for result, right in zip(results, wanted, strict=True):
            error = relative_error(contenders.as_array(row, result, right.shape), right)
            assert error < 1e-5, name


def test_graphs_count_and_types_are_kept_apart(tmp_path: Path) -> None:
    measured = []
    for kind, ours in (("bfloat16", 1e-6), ("float16", 2e-6)):
        times = {"zstate": 5e-6, "zstate graph": ours, "torch": 9e-6, "torch graph": 4e-6}
        timings = {name: Timing(seconds, 0) for name, seconds in times.items()}
        measured.append(report.Measured(Row("LSTM", 2, 1, 4), True, timings, {}, kind))
    assert [each.ratio for each in measured] == pytest.approx([4, 2])
    assert {each.best_peer for each in measured} == {"torch graph"}
    assert report.line(measured[0]).startswith("bfloat16 training  LSTM 2×1×4: zstate 2.50,")
    wrong = report.Measured(Row("RNN", 2, 1, 4), False, errors={"zstate": 0.5})
    assert "wrong, not timed" in report.line(wrong)
    content = report.as_json(measured, {"processor": "a GPU"}, scan=[])
    assert [row["type"] for row in content["rows"]] == ["bfloat16", "float16"]
    report.write_chart(tmp_path / "c.png", content)
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_the_bound_of_an_error_on_a_gpu() -> None:
    gpu = pytest.importorskip("zstate.bench.gpu")
    assert gpu.within(2e-3, 1e-3, 0.0)
    assert not gpu.within(2.1e-3, 1e-3, 2e-3)
    assert gpu.within(1e-3, 0.0, 1e-3)
    assert not gpu.within(float("nan"), 1.0, 1.0)


@pytest.mark.parametrize(
    ("pattern", "titles"),
    [
        ("lstm 64x1x64", ["LSTM 64×1×64"]),
        ("LSTM 64×1×64", ["LSTM 64×1×64"]),
        (" gru 1x1x64 , rnn 1x1x64", ["GRU 1×1×64", "RNN 1×1×64"]),
        ("64x1x64", ["LSTM 64×1×64", "GRU 64×1×64", "RNN 64×1×64"]),
        ("*both ways", ["LSTM 256×8×1024 both ways"]),
        ("[lr]*x1760", ["RNN 50×16×1760"]),
        ("rnn *x333", ["RNN 30×48×333", "RNN 50×3×333"]),
    ],
)
def test_rows_by_what_can_be_typed(pattern: str, titles: list[str]) -> None:
    assert [row.title for row in choose(ROWS, pattern)] == titles


def test_a_row_is_taken_once_and_all_without_a_pattern() -> None:
    assert len(choose(ROWS, "gru*,gru 1x1x64")) == sum(row.cell == "GRU" for row in ROWS)
    assert choose(ROWS, None) == ROWS


def test_odd_sizes_are_in_the_table() -> None:
    odd = [row for row in ROWS if row.group == "odd"]
    for cell in GATES:
        sizes = {(row.N, row.H) for row in odd if row.cell == cell}
        assert sizes == {(12, 200), (5, 200), (48, 333), (3, 333)}
    assert len(ROWS) == 43 + len(odd)


def _fast(*_: object) -> None:
    raise AssertionError("something was measured")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "["], "--only: expected the name of a row, such as 'lstm 64x1x64'"),
        (["--only", ""], "--only: expected the name of a row"),
        (
            ["--peers", "foo"],
            "--peers: expected none, or some of torch, onnxruntime, openvino, jax, got 'f",
        ),
        (["--json", "/nowhere/x.json"], "--json: expected a file in a folder that exists, got no"),
        (["--json", "."], "--json: expected a file in a folder that exists, got a folder"),
        (["--chart", "/nowhere/x.png"], "--chart: expected a file in a folder that exists"),
        (["--chart", "x.gif"], "--chart: expected a name that ends in one of .png, .svg, .pdf"),
        (["--chart", "x.png", "--peers", "none"], "--chart: expected at least one peer"),
        (
            ["--chart", "x.png", "--peers", "onnxruntime", "--mode", "training"],
            "--chart: expected at least one peer",
        ),
        (["--types", "float32"], "--types needs --device cuda"),
        (["--rounds", "0"], "--rounds: expected an integer of at least 1, got '0'"),
        (["--threads", "0"], "--threads: expected an integer of at least 1, got '0'"),
        (["--block", "nan"], "--block: expected a number of at least 0, got 'nan'"),
    ],
)
def test_options_are_checked_before_anything_is_measured(
    words: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(bench, "sgemm_rate", _fast)
    with suppress(SystemExit):
        assert cli.main(["bench", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gone", "words", "message"),
    [
        ("matplotlib", ["--chart", "x.png"], "--chart needs matplotlib: pip install 'zstate[bench"),
        ("jax", ["--peers", "jax"], "--peers: jax is not installed: pip install jax"),
        ("onnx", ["--peers", "onnxruntime"], "onnxruntime is not installed: pip install onnx"),
        ("torch", ["--through", "torch"], "--through torch: torch is missing: pip install 'zst"),
        ("jax", ["--through", "jax"], "--through jax: jax is missing: pip install 'zstate[jax]'"),
    ],
)
def test_missing_packages_are_named_first(
    gone: str,
    words: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    right = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda n: None if n == gone else right(n))
    monkeypatch.setattr(bench, "sgemm_rate", _fast)
    assert cli.main(["bench", *words]) == 2
    assert message in capsys.readouterr().err


def test_without_a_peer_it_says_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(contenders, "missing", lambda name: [name] if name != "zstate" else [])
    quick = ["--block", "0.001", "--rounds", "1", "--no-growth", "--mode", "inference"]
    assert cli.main(["bench", "--only", "rnn 1x1x64", *quick]) == 0
    printed = capsys.readouterr().out
    assert (
        "no peer is installed, so there are no ratios; to install one: pip install torch" in printed
    )


@pytest.mark.parametrize("width", [30, 50, 60, 80, 100, 160])
def test_the_ratio_is_never_cut(width: int) -> None:
    row = Row("LSTM", 256, 8, 1024, bidirectional=True)
    times = {"zstate": 12.3456, "torch": 1.23456, "onnxruntime": 2.0, "jax": 3.0}
    timings = {name: Timing(seconds, 0.123) for name, seconds in times.items()}
    out = io.StringIO()
    console = Console(file=out, width=width)
    each = report.Measured(row, False, timings)
    console.print(report.table([each], list(times), False, 1e11, width))
    lines = out.getvalue().splitlines()
    assert all(len(line) <= max(width, 45) for line in lines)
    (line,) = [line for line in lines if "0.10" in line]
    assert width < 45 or "LSTM 256×8×1024 both ways" in line
    assert ("×" in line) and ("12,346" in line) == (width >= 60)
    assert ("jax" in out.getvalue()) == (width >= 100)
    assert ("of sgemm" in out.getvalue()) == (width == 160)


def test_piped_output_has_all_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    quick = ["--block", "0.001", "--rounds", "1", "--no-growth", "--peers", "torch,onnxruntime"]
    assert cli.main(["bench", "--only", "rnn 1x1x64", *quick]) == 0
    printed = capsys.readouterr().out
    assert "× best peer" in printed and "of sgemm" in printed and "±" in printed


def test_only_prints_the_rows_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """No tables of growth beside them, and what sgemm is."""
    quick = ["--block", "0.001", "--rounds", "1", "--peers", "none", "--mode", "inference"]
    assert cli.main(["bench", "--only", "rnn 1x1x64", *quick]) == 0
    printed = capsys.readouterr().out
    assert len(re.findall(r"\d+×\d+×\d+", printed)) == 1 and "growth" not in printed
    assert "sgemm is NumPy's 2048×2048 product" in printed and "can exceed 100%" in printed


def test_a_part_of_a_title_has_whole_numbers() -> None:
    assert [row.title for row in choose(ROWS, "lstm 1x1x64")] == ["LSTM 1×1×64"]
    for row in choose(ROWS, "1x1x64, 64x1"):
        assert re.search(r"\b1×1×64\b|\b64×1\b", row.title)
    with pytest.raises(zs.OptionError, match="--only"):
        choose(ROWS, "1x1x1")


def test_sgemm_is_not_that_of_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A BLAS that computes on one thread is called from as many as the rows have."""
    used: set[int] = set()
    right = np.matmul

    def seen(a: Any, b: Any, out: Any) -> Any:
        used.add(threading.get_ident())
        time.sleep(0.01)
        return right(a[:1], b, out=out[:1])

    monkeypatch.setattr(timing.np, "matmul", seen)
    assert timing.sgemm_rate(timing.Protocol(0.0, rounds=1), threads=3) > 0
    assert len(used) == 1 + 3


def test_training_is_timed_beside_torch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from zstate.bench import training
    from zstate.train import Settings

    small = Settings(cell="gru", hidden=8, embedding=4, window=8, batch=2, layers=2)
    monkeypatch.setattr(training, "MODELS", {"GRU small": small, "other": small})
    monkeypatch.setattr(training, "WAYS", ("eager",))
    assert cli.main(["bench", "--train", "--only", "gru*", "--steps", "30"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("float32")[1].split()[0] for line in lines] == ["zstate", "torch"]
    ours, theirs = (float(line.split()[-2]) for line in lines)
    assert ours == pytest.approx(theirs, abs=2e-3) and ours > 3


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_both_sides_of_the_training_contest_are_the_same_training(
    cell: str, layers: int, tmp_path: Path
) -> None:
    """Weights, windows, carried states, rates, clipping and Adam with its epsilon: over 50 steps
    only rounding may differ. Gradients of 1e-6 make the epsilon count."""
    import torch

    from zstate.bench import training
    from zstate.train import Settings

    settings = Settings(
        cell=cell, layers=layers, hidden=48, embedding=16, window=32, batch=8,
        learning_rate=3e-3, clip=1e-3, total=50,
    )  # fmt: skip
    run = training.run_of(settings, None, tmp_path / "run")
    device = torch.device("cpu")
    sides = training.OurSteps(run), training.TorchSteps(run, device, "eager")
    losses = np.array([[float(s(b)) for s in sides] for b in training.batches(run, device, 50)])
    assert losses[-1, 0] < 0.8 * losses[0, 0]
    np.testing.assert_allclose(losses[:, 0], losses[:, 1], rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("option", "message"), [(["--types", "tf32"], "--types: expected"), (["--only", "x"], "--only")]
)
def test_training_of_what_is_not_there(
    option: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "--train", *option]) == 2
    assert message in capsys.readouterr().err
