"""Odd run folders: whatever stands in run.json or the checkpoint, a command gives a result or the
package's error, never another exception and never a model of a size the files do not have."""

from __future__ import annotations

import contextlib
import copy
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zstate as zs
from zstate import cli
from zstate.train import Run, Settings
from zstate.train.loop import Sampler, load_model

TEXT = "the cat sat on the mat. the dog ate the cat.\n" * 20
KEPT = {"checkpoint_every": 5, "temperature": 0.7, "encoding": "utf-8"}
ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 2.5, -0.0, 1e308, float("nan"), float("inf"), 2**31, 2**63),
    *(10**30, 10**400, "", "a", "lstm", "gru", "\0", "\ud800", "x" * 5000, [], [[]], {}, {"a": 1}),
    *([1, 2, 3], [[1, 2.0, None]], [[1, "x", None]], [[2, 1.0, None]], {"cell": "gru"}, "utf-16"),
]
MUTATIONS = 300  # some thousands, by hand, after a change


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT)
    settings = Settings(hidden=3, embedding=2, window=4, batch=2, total=5)
    made = Run.create(Path("run"), settings, TEXT, str(Path("text.txt").resolve()), KEPT)
    list(made.train(5))
    return Path("run")


def _used(folder: Path) -> None:
    """Everything that reads the folder."""
    for use in (_sampled, lambda: Run.resume(folder, TEXT).step):
        with contextlib.suppress(zs.ZStateError):
            use()


def _sampled() -> str:
    model, alphabet, prompt = load_model(Path("run"))
    return Sampler(model, alphabet).write(2, prompt, 0.0, 1)


def _mutated(rng: random.Random, value: Any) -> Any:
    """The value with one of its parts, or all of it, replaced, removed or doubled."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            return {name: part for name, part in value.items() if name != key}
        if rng.random() < 0.1:
            return {**value, "odd": value[key]}
        return {**value, key: _mutated(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.7:
        at = rng.randrange(len(value))
        tail = [] if rng.random() < 0.1 else [_mutated(rng, value[at])]
        return [*value[:at], *tail, *value[at + 1 :]]
    if isinstance(value, str) and rng.random() < 0.3:
        return value + value[:1]
    if isinstance(value, int | float) and rng.random() < 0.3:
        return value + rng.choice([-1, 1, 0.5])
    return copy.deepcopy(rng.choice(ODD))


def test_run_json(run: Path, pytestconfig: pytest.Config) -> None:
    rng = random.Random(int(pytestconfig.option.hypothesis_seed))
    right = json.loads((run / "run.json").read_text())
    whole = (run / "run.json").read_bytes()
    for k in range(MUTATIONS):
        text = json.dumps(_mutated(rng, right)).encode()
        if k % 4 == 0:  # bytes
            at = rng.randrange(len(whole))
            text = whole[:at] + rng.randbytes(rng.randrange(3)) + whole[at + rng.randrange(3) :]
        (run / "run.json").write_bytes(text)
        _used(run)


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (b"[" * 100_000, "something else"),
        (b"\xff\xfe", "something else"),
        (b"", "something else"),
        (b"[]", "another program or version"),
        (b'{"settings": {}}', "another program or version"),
        (b"9" * 5000, "e"),
    ],
)
@pytest.mark.parametrize("command", [["sample", "run"], ["train", "--resume", "--run=run"]])
def test_no_json_of_ours(
    content: bytes, got: str, command: list[str], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "run.json").write_bytes(content)
    assert cli.main(command) == 2
    refused = capsys.readouterr().err
    assert refused.startswith("zstate: [run] run/run.json: expected a run of `zstate train`, got ")
    assert got in refused and refused.count("\n") == 1


def test_checkpoints(run: Path, pytestconfig: pytest.Config) -> None:
    """Bytes changed, cut or added: the checksum and the format's own checks see to it."""
    rng = random.Random(int(pytestconfig.option.hypothesis_seed))
    path = run / "checkpoint.safetensors"
    whole = path.read_bytes()
    for k in range(MUTATIONS // 4):
        at = rng.randrange(len(whole)) if k % 2 else rng.randrange(3000)
        cut = rng.choice([0, 1, 1, 50])
        path.write_bytes(whole[:at] + rng.randbytes(rng.randrange(3)) + whole[at + cut :])
        _used(run)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"projection": None}, "settings that do not match checkpoint.safetensors: projection"),
        ({"embedding": np.zeros((99, 2), np.float32)}, "checkpoint.safetensors: embedding"),
        ({"layer0.input_weight": None}, "checkpoint.safetensors without layer0.input_weight"),
        ({"layer1.bias": np.zeros(12, np.float32)}, "do not match checkpoint.safetensors: layer1"),
        ({"projection_bias": np.zeros(3, np.float32)}, "projection_bias: expected float32["),
    ],
)
def test_a_checkpoint_of_another_model(
    change: dict[str, Any], message: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A whole file with other variables: nothing is left at its random start."""
    values = {**zs.Graph.load(run / "checkpoint.safetensors").variables(), **change}
    g = zs.Graph()
    for name, value in values.items():
        if value is not None:
            g.variable(value, name=name)
    g.save(run / "checkpoint.safetensors")
    assert cli.main(["sample", "run"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("step", [float("nan"), float("inf"), -1.0, 2.5, 6.0, 1e300])
def test_a_step_that_is_not_in_the_history(step: float, run: Path) -> None:
    saved = zs.Graph.load(run / "checkpoint.safetensors")
    saved.set_variables({"step": np.array(step)})
    saved.save(run / "checkpoint.safetensors")
    with pytest.raises(zs.GraphError, match="which is not in the history"):
        Run.resume(run, TEXT)


@pytest.mark.parametrize(
    "wrong", [{"layers": 2.5}, {"hidden": True}, {"cell": 3}, {"dropout": "0"}, {"clip": 10**400}]
)
def test_settings_of_other_types(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(zs.OptionError, match=rf"\[train\] {name}: expected a value of type "):
        Settings(**wrong)
