"""The benchmark of the CUDA engine: it runs, and refuses to time what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zstate import cli
from zstate.bench import gpu
from zstate.bench.rows import Row


def test_a_run_writes_json_and_a_chart(tmp_path: Path) -> None:
    files = ["--json", str(tmp_path / "b.json"), "--chart", str(tmp_path / "b.png")]
    only = ["--only", "gru 256x1x128", "--types", "bfloat16,float32", "--no-growth"]
    assert cli.main(["bench", "--device", "cuda", *only, *files]) == 0
    rows = json.loads((tmp_path / "b.json").read_text())["rows"]
    assert [(row["type"], row["mode"]) for row in rows] == [
        (kind, mode) for kind in ("bfloat16", "float32") for mode in ("inference", "training")
    ]
    for row in rows:
        assert set(row["ms"]) == {"zstate", "zstate graph", "torch", "torch graph"}
        assert row["error"]["zstate"] < 0.01
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_the_modules_are_right_too(cell: str) -> None:
    found = gpu.measure(Row(cell, 5, 3, 16, states=False), "float32", True, 0, modules=True)
    assert set(found.timings) == {"zstate", "zstate graph", "torch", "torch graph"}


def test_what_is_wrong_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = gpu._calls

    def wrong(*arguments: Any) -> dict[str, gpu.Call]:
        calls = right(*arguments)
        ours = calls["zstate"]
        return {**calls, "zstate": lambda: [ours()[0] + 0.1]}

    monkeypatch.setattr(gpu, "_calls", wrong)
    found = gpu.measure(Row("RNN", 4, 2, 8, states=False), "bfloat16", False, 0)
    assert found.errors["zstate"] > 0.05
    assert not found.timings
