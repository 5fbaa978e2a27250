"""The benchmark of prepared layers: right before timed, ratios of what was timed, refusals."""

from __future__ import annotations

import re
from typing import Any

import pytest

from zstate import cli
from zstate.bench import contenders, report
from zstate.bench.contenders import Case
from zstate.bench.contest import BOUNDS, contest, errors_of, oracle
from zstate.bench.rows import STREAMS, Row, make_data
from zstate.bench.timing import Protocol, Timing, apart, measure

QUICK = ["--block", "0.005", "--rounds", "2", "--threads", "1"]
SHORT = Protocol(0.002, 0, 2)
NAMES = ["zstate", "onnxruntime"]


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(
    "row", [Row("LSTM", 3, 2, 8, bidirectional=True), Row("GRU", 3, 2, 8), Row("RNN", 3, 2, 8)]
)
def test_every_contender_computes_the_same(weights: str, row: Row) -> None:
    case, data = Case(row, type=weights, way="prepared"), make_data(row, 0)
    wanted = oracle(case, data)
    errors = {}
    for name in ("zstate", "onnxruntime", "float32"):
        call = contenders.CONTENDERS[name].make(case, data)
        if call is not None:
            (errors[name],) = errors_of(case, data, call, wanted)
    assert ("onnxruntime" in errors) == (weights != "int8" or row.cell == "LSTM")
    assert errors["zstate"] <= BOUNDS["cpu"][weights] and errors["float32"] < 1e-4
    if weights != "float32":  # they are other weights than those of float32
        assert errors["zstate"] > 10 * errors["float32"]
    if "onnxruntime" in errors:
        is_small = errors["onnxruntime"] > 1e-4
        assert is_small == (weights == "int8")
        assert errors["onnxruntime"] <= BOUNDS["cpu"]["int8"]


def test_a_run_with_int8_weights(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.delenv("COLUMNS", raising=False)  # all columns have room
    assert cli.main(["bench", "--weights", "int8", "--only", "lstm 1x1x64,gru 1x1x64", *QUICK]) == 0
    printed = capsys.readouterr().out
    assert re.search("× best peer +zstate +onnxruntime +float32 +GFLOP/s", printed)
    assert "int8 inference: " in printed and "geometric mean of 1 row)" in printed
    lstm, gru = (
        re.findall(r"[\d.]+ ±", line) for line in printed.splitlines() if "1×1×64 " in line
    )
    assert len(lstm) == 3 and len(gru) == 2  # ONNX Runtime has no int8 for a GRU


def test_float32_is_no_peer() -> None:
    timings = {name: Timing(k, 0.0) for name, k in (("zstate", 2.0), ("float32", 1.0))}
    each = report.Measured(Row("LSTM", 1, 1, 4), False, timings, type="int8")
    assert each.ratio is None
    each.timings["onnxruntime"] = Timing(3.0, 0.0)
    assert each.ratio == pytest.approx(1.5)


@pytest.mark.parametrize("steps", [1, 10])
@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_streams_hand_on_their_states(cell: str, steps: int) -> None:
    """Over three chunks; one that forgets its states is found out and not timed."""
    row = Row(cell, steps, 1, 8, "streaming", states=False)
    found = {
        weights: contest(Case(row, type=weights, way="streamed"), NAMES, SHORT, 0)
        for weights in ("float32", "int8")
    }
    assert set(found["float32"].timings) == {"zstate", "onnxruntime"}
    assert set(found["int8"].timings) == set(NAMES[: 1 + (cell == "LSTM")])
    assert max(found["float32"].errors.values()) < 1e-5
    assert (found["int8"].ratio is None) == (cell != "LSTM")
    timings = found["float32"].timings
    assert all(each.seconds <= each.high for each in timings.values())
    ratio = timings["onnxruntime"].seconds / timings["zstate"].seconds
    assert found["float32"].ratio == pytest.approx(ratio)


def test_a_stream_that_forgets_is_not_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = contenders.prepare

    class Forgets:
        def __init__(self, *given: Any) -> None:
            self.model = right(*given)

        def stream(self) -> Any:
            return self

        def step(self, x: Any) -> Any:
            return self.model(x[None])[0][0]

    monkeypatch.setattr(contenders, "prepare", Forgets)
    words = ["--streaming", "--only", "lstm 1x1x64", "--peers", "none"]
    assert cli.main(["bench", *words, *QUICK, "--weights", "int8"]) == 1
    assert "LSTM 1×1×64: int8 zstate is wrong by" in capsys.readouterr().out


def test_a_run_of_streams(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--streaming", "--only", "lstm *x1x64", "--peers", "none"]
    assert cli.main(["bench", *words, *QUICK]) == 0
    printed = capsys.readouterr().out
    for weights in ("float32", "bfloat16", "int8"):
        assert f"{weights} inference: µs per step, median / 99th percentile" in printed
    for title in ("LSTM 1×1×64", "LSTM 10×1×64"):
        found = re.findall(rf"{title} +([\d.]+) / ([\d.]+)", printed)
        assert len(found) == 3 and all(0 < float(low) <= float(high) for low, high in found)


def test_streams_are_timed_call_by_call_and_shown_per_step() -> None:
    timing = measure({"a": lambda: None}, Protocol(0.0, 0, 1, calls=200), apart)["a"]
    assert 0 < timing.seconds <= timing.high
    each = report.Measured(Row("RNN", 10, 1, 4), False, {"zstate": Timing(2e-5, 0.0, 5e-5)})
    assert report._time(each, "zstate", False, True) == "2 / 5"
    assert {row.T for row in STREAMS} == {1, 10} and not any(row.states for row in STREAMS)
    assert {row.H for row in STREAMS} == {64, 128, 256, 512, 1024}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--weights", "int8", "--device", "cuda"], "--weights cannot be combined with --device"),
        (["--weights", "int8", "--through", "torch"], "combined with --through torch"),
        (["--weights", "int8", "--mode", "training"], "combined with --mode training"),
        (["--streaming", "--train"], "--train cannot be combined with --streaming"),
        (
            ["--weights", "int8", "--peers", "torch"],
            "none, or some of onnxruntime, openvino, got 'torch'",
        ),
        (["--streaming", "--only", "lstm 9x9x9"], "got 'lstm 9x9x9'"),
    ],
)
def test_refusals(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_missing_peer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(contenders, "missing", lambda name: ["onnxruntime"])
    for way in (["--weights", "int8"], ["--streaming"]):
        assert cli.main(["bench", *way, "--peers", "onnxruntime"]) == 2
        assert "onnxruntime is not installed: pip install onnxruntime" in capsys.readouterr().err
    assert cli.main(["bench", "--weights", "int8", "--only", "rnn 1x1x64", *QUICK]) == 0
    assert "no peer is installed, so there are no ratios" in capsys.readouterr().out
