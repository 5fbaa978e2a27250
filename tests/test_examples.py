"""The example runs, and its two languages have the same steps."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_example_learns(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "language_model.py"))  # it asserts that its loss halves
    assert capsys.readouterr().out.startswith("loss 3.")


def test_both_listings_have_the_same_steps() -> None:
    swift = re.findall(r"\[(\d)\] (.*)", (EXAMPLES / "language_model.swift").read_text())
    python = re.findall(r"\[(\d)\] (.*)", (EXAMPLES / "language_model.py").read_text())
    assert [number for number, _ in swift] == [number for number, _ in python] == list("1234567")
    assert [title for _, title in swift if "training" not in title] == [
        title for _, title in python if "training" not in title
    ]
