"""The benchmark of prepared layers: right before timed, ratios of what was timed, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zstate import cli
from zstate.bench import contenders, prepared, report
from zstate.bench.rows import Row, make_data
from zstate.bench.timing import Protocol, Timing
from zstate.verify import relative_error

QUICK = ["--block", "0.005", "--rounds", "2", "--threads", "1"]
SHORT = Protocol(0.002, 0, 2)


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(
    "row", [Row("LSTM", 3, 2, 8, bidirectional=True), Row("GRU", 3, 2, 8), Row("RNN", 3, 2, 8)]
)
def test_every_contender_computes_the_same(weights: str, row: Row) -> None:
    data = make_data(row, 0)
    (wanted,) = contenders.oracle(row, data, False)
    errors = {}
    for name, maker in prepared.makers(weights, ["onnxruntime"]).items():
        call = maker(row, data, False, 1)
        if call is not None:
            (found,) = contenders.in_order(call())
            errors[name] = relative_error(contenders.as_array(row, found, wanted.shape), wanted)
    peer = [] if weights == "int8" and row.cell != "LSTM" else ["onnxruntime"]
    own = [] if weights == "float32" else ["float32"]
    assert list(errors) == ["zstate", *peer, *own]
    assert errors["zstate"] <= prepared.BOUNDS[weights]
    if weights != "float32":  # they are other weights than those of float32
        assert errors["zstate"] > 10 * errors["float32"]
    if "onnxruntime" in errors:
        is_small = errors["onnxruntime"] > 1e-4
        assert is_small == (weights == "int8") and errors["onnxruntime"] <= prepared.BOUNDS["int8"]


def test_a_run_with_int8_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    file = tmp_path / "b.json"
    only = ["--only", "lstm 1x1x64,gru 1x1x64", "--json", str(file)]
    assert cli.main(["bench", "--weights", "int8", *only, *QUICK]) == 0
    printed = capsys.readouterr().out
    assert "int8 inference, times each peer: onnxruntime" in printed
    assert "float32" in printed and "geometric mean of 1 row)" in printed
    lstm, gru = json.loads(file.read_text())["rows"]
    assert {lstm["type"], gru["type"]} == {"int8"} and {lstm["mode"], gru["mode"]} == {"inference"}
    assert list(lstm["ms"]) == ["zstate", "onnxruntime", "float32"]
    assert lstm["ratio"] == pytest.approx(lstm["ms"]["onnxruntime"] / lstm["ms"]["zstate"])
    assert list(gru["ms"]) == ["zstate", "float32"] and gru["ratio"] is None


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
    row = Row(cell, steps, 1, 8, "streaming")
    found = prepared.stream_row(row, ("float32", "int8"), ["onnxruntime"], 1, SHORT, 0)
    peers = ["onnxruntime float32", *(["onnxruntime int8"] if cell == "LSTM" else [])]
    assert set(found.spreads) == {"zstate float32", "zstate int8", *peers}
    assert found.errors["zstate float32"] < 1e-5 and found.errors["onnxruntime float32"] < 1e-5
    assert (found.ratio("int8") is None) == (cell != "LSTM") and found.ratio("bfloat16") is None
    ratio = found.spreads[peers[0]].median / found.spreads["zstate float32"].median
    assert found.ratio("float32") == pytest.approx(ratio)


def test_a_stream_that_forgets_is_not_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = prepared._packed

    class Forgets:
        def __init__(self, *given: Any) -> None:
            self.model = right(*given)

        def stream(self) -> Any:
            return self

        def step(self, x: Any) -> Any:
            return self.model(x[None])[0][0]

    monkeypatch.setattr(prepared, "_packed", Forgets)
    words = ["--streaming", "--only", "lstm 1x1x64", "--peers", "none"]
    assert cli.main(["bench", *words, *QUICK, "--weights", "int8"]) == 1
    assert "LSTM 1×1×64: zstate int8 is wrong by" in capsys.readouterr().out


def test_a_run_of_streams(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.json"
    words = ["--streaming", "--only", "lstm *x1x64", "--peers", "none", "--json", str(file)]
    assert cli.main(["bench", *words, *QUICK]) == 0
    assert "LSTM 10×1×64" in capsys.readouterr().out
    rows = json.loads(file.read_text())["streams"]
    assert [row["row"] for row in rows] == ["LSTM 1×1×64", "LSTM 10×1×64"]
    for row in rows:
        assert list(row["us_per_step"]) == ["zstate float32", "zstate bfloat16", "zstate int8"]
        assert all(0 < each["median"] <= each["p99"] for each in row["us_per_step"].values())


def test_the_blocks_of_streams_are_per_step() -> None:
    spread = prepared.spread([np.array([1.0, 2.0, 3.0]) * 1e-6, np.array([5.0]) * 1e-6])
    assert spread.median == pytest.approx(3.5) and 4.9 < spread.high <= 5.0
    assert {row.T for row in prepared.STREAMS} == {1, 10}
    assert {row.H for row in prepared.STREAMS} == {64, 128, 256, 512, 1024}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--weights", "int8", "--device", "cuda"], "--weights cannot be combined with --device"),
        (["--weights", "int8", "--through", "torch"], "combined with --through torch"),
        (["--weights", "int8", "--mode", "training"], "combined with --mode training"),
        (["--streaming", "--small-calls"], "--streaming cannot be combined with --small-calls"),
        (["--streaming", "--train"], "--streaming cannot be combined with --train"),
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
