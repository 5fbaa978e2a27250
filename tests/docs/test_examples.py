"""The examples run, and the one in two languages is the same graph in both."""

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


def test_the_example_learns_and_is_written_in_swift(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["language_model.py", str(tmp_path)])
    runpy.run_path(str(EXAMPLES / "language_model.py"))  # it asserts that its loss halves
    assert capsys.readouterr().out.startswith("loss 3.")
    written = (tmp_path / "language_model.swift").read_text(encoding="utf-8")
    assert written == (EXAMPLES / "language_model.swift").read_text(encoding="utf-8"), (
        "run `python examples/language_model.py examples` and keep the Swift file"
    )
    assert (tmp_path / "language_model.safetensors").exists()


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
