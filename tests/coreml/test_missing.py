"""Without coremltools: what is missing is named, and nothing is written."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import zstate as zs
from zstate import cli


def test_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "coremltools", None)
    g = zs.Graph()
    x = g.placeholder(shape=(2,), name="x")
    g.addition(x, g.variable(np.ones(2, np.float32)), name="y")
    g.save(tmp_path / "g")
    out = [f"--{kind}={tmp_path / name}" for kind, name in (("swift", "M.swift"), ("svg", "s"))]
    assert cli.main(["graph", str(tmp_path / "g"), *out, f"--coreml={tmp_path}/M.mlpackage"]) == 2
    assert "needs the package coremltools: pip install coremltools" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["g"]
