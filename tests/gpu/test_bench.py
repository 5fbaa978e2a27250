"""The benchmark of the CUDA engine: it runs, and refuses to time what is wrong."""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from zstate import cli
from zstate.bench import contenders
from zstate.bench.contenders import Case
from zstate.bench.contest import contest
from zstate.bench.rows import Row
from zstate.bench.timing import Protocol

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SHORT = Protocol(0.001, 0, 1)
ALL = {"zstate", "zstate graph", "torch", "torch graph"}


def test_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    only = ["--only", "gru 256x1x128", "--types", "bfloat16,float32"]
    assert cli.main(["bench", "--device", "cuda", *only]) == 0
    printed = capsys.readouterr().out
    for name in (
        "bfloat16 inference",
        "bfloat16 training",
        "float32 inference",
        "float32 training",
    ):
        assert f"{name}: ms" in printed
    assert len(re.findall("zstate +zstate graph +torch +torch graph", printed)) == 4


def test_publishing_writes_json_and_a_chart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    publish = importlib.import_module("publish")
    files = ["--json", str(tmp_path / "b.json"), "--chart", str(tmp_path / "b.png")]
    only = ["--only", "gru 256x8x77", "--types", "bfloat16,float32"]
    assert publish.main(["--device", "cuda", *only, *files]) == 0
    rows = json.loads((tmp_path / "b.json").read_text())["rows"]
    assert {(row["type"], row["mode"]) for row in rows} == {
        (kind, mode) for kind in ("bfloat16", "float32") for mode in ("inference", "training")
    }
    for row in rows:
        assert set(row["ms"]) == ALL
        assert row["error"]["zstate"] < 0.01
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_the_modules_are_right_too(cell: str) -> None:
    case = Case(Row(cell, 5, 3, 16, states=False), True, way="torch", device="cuda")
    assert set(contest(case, ["zstate", "torch"], SHORT, 0).timings) == ALL


def test_what_is_wrong_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(case: Case, data: Any) -> Any:
        ours = contenders.functions(case, data)
        return lambda: [ours()[0] + 0.1]

    zstate = contenders.CONTENDERS["zstate"]
    monkeypatch.setitem(contenders.CONTENDERS, "zstate", replace(zstate, make=wrong))
    case = Case(Row("RNN", 4, 2, 8, states=False), type="bfloat16", device="cuda")
    found = contest(case, ["zstate", "torch"], SHORT, 0)
    assert found.errors["zstate"] > 0.05
    assert set(found.timings) == {"torch", "torch graph"}
