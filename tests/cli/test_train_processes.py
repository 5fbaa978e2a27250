"""`zstate train` by several processes: the losses, the weights and the checkpoint of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

import zstate as zs
from zstate import cli
from zstate.graph import Graph

pytest.importorskip("safetensors")
pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch without gloo"
)
TEXT = "the cat sat on the mat. the dog ate the cat.\n" * 80
SIZES = ["--hidden", "12", "--embedding", "5", "--window", "9", "--layers", "2", "--batch", "4"]
DYING = """
import os, sys
from zstate import cli
from zstate.train import Run
feeds = Run.feeds
def dying(self, step):
    if step == 14 and os.environ["RANK"] == "1":
        print("process 1 dies", file=sys.stderr, flush=True)
        os._exit(7)
    return feeds(self, step)
Run.feeds = dying
sys.exit(cli.main(sys.argv[1:]))
"""


def started(folder: Path, count: int, arguments: list[str], script: str = "") -> Any:
    """What torchrun gives that runs the command, or a script with the command's arguments."""
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={count}"]
    launcher += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
    if script:
        (folder / "script.py").write_text(script)
    job = ["--", "script.py"] if script else ["-m", "--", "zstate"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*launcher, *job, *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )


def ended(folder: Path) -> tuple[list[Any], dict[str, Any]]:
    """The history and the variables of a run."""
    history = json.loads((folder / "run.json").read_text())["history"]
    return history, Graph.load(folder / "checkpoint.safetensors").variables()


def assert_equal_to_rounding(one: Path, other: Path) -> None:
    (history, values), (history2, values2) = ended(one), ended(other)
    np.testing.assert_allclose([h[1] for h in history], [h[1] for h in history2], rtol=2e-6)
    assert values.keys() == values2.keys()
    for name, value in values.items():
        np.testing.assert_allclose(values2[name], value, rtol=2e-3, atol=2e-4, err_msg=name)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "text").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_two_processes_train_as_one_and_any_number_goes_on(folder: Path) -> None:
    """A GRU with dropout; the next test has the LSTM without."""
    options = [*SIZES, "--dropout=0.3", "--cell=gru", "--checkpoint-every", "7", "--steps"]
    assert cli.main(["train", "text", "--run", "one", *options, "20"]) == 0
    found = started(folder, 2, ["train", "text", "--run", "two", *options, "20"])
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("validation:") == 1  # one process prints
    assert_equal_to_rounding(folder / "one", folder / "two")
    # Twelve more steps: one process goes on for two, and two for one.
    more = ["train", "--resume", "--total", "32", "--run"]
    assert cli.main([*more, "two"]) == 0
    found = started(folder, 2, [*more, "one"])
    assert found.returncode == 0, found.stderr
    assert_equal_to_rounding(folder / "one", folder / "two")
    assert len(ended(folder / "one")[0]) == 32


def test_a_process_that_dies_ends_the_run_and_leaves_a_whole_checkpoint(folder: Path) -> None:
    """Of two that trained as one, with which one goes on."""
    options = ["train", "text", "--run", "r", *SIZES, "--checkpoint-every", "5", "--steps", "30"]
    found = started(folder, 2, options, DYING)
    assert found.returncode != 0
    assert "process 1 dies" in found.stderr
    assert "[mean_over_processes] tensors: expected 2 processes, got fewer" in found.stderr
    history, values = ended(folder / "r")
    assert len(history) == 10 and values["step"] == 10
    assert cli.main(["train", "--resume", "--run", "r"]) == 0
    assert cli.main(["train", *options[1:3], "whole", *options[4:]]) == 0
    assert_equal_to_rounding(folder / "whole", folder / "r")


def test_what_the_first_process_refuses_ends_all(folder: Path) -> None:
    found = started(folder, 2, ["train", "text", "--run", "r", *SIZES[:-1], "5"])
    assert found.returncode != 0
    assert "batch: expected a multiple of the 2 processes, got 5" in found.stderr
    assert not (folder / "r").exists()


def test_means_without_other_processes_are_the_tensors() -> None:
    g = zs.Graph()
    x, y = (g.placeholder(shape=s, dtype="float32", name=str(s)) for s in ((2, 3), ()))
    means = g.mean_over_processes([x, y])
    rng = np.random.default_rng(0)
    fed = {x: rng.normal(size=(2, 3)).astype(np.float32), y: np.full((), 4, np.float32)}
    found = g.run(fed, means)
    for mean, tensor in zip(means, (x, y), strict=True):
        np.testing.assert_array_equal(found[mean], fed[tensor])
