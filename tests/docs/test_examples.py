"""The examples run, and the one in two languages has the same steps in both."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


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


# Too heavy for the development dependencies: tested where somebody has installed them.
@pytest.mark.parametrize(
    ("packages", "command"),
    [
        (("lightning",), ["lightning_tagger.py", "--epochs=2", "--batches=10", "--hidden=16"]),
        (("transformers", "accelerate"), ["huggingface_classifier.py", "--lines=100"]),
    ],
    ids=["lightning", "huggingface"],
)
def test_examples_for_other_libraries(packages: tuple[str, ...], command: list[str]) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: too heavy for the dev extra")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / command[0]), *command[1:]],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"accuracy 0\.\d+ before, [01]\.\d+ after training", done.stdout)
