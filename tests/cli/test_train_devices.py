"""Types and devices of `zstate train`; torch's CPU device stands for a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zstate as zs
from tests.graph.torch_kernels import TorchKernels
from zstate import cli
from zstate.graph import on_device
from zstate.train import Run, Settings, memory
from zstate.train.losses import Losses
from zstate.train.model import Model

TEXT = "the cat sat on the mat. the dog ate the cat.\n" * 60
SMALL = Settings(hidden=16, embedding=6, window=12, batch=3, total=20, layers=2)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> str:
    """A device by this name, in whose place torch's CPU device computes."""
    found = torch.device("cpu"), TorchKernels()
    monkeypatch.setattr(on_device, "device_named", lambda *_: found)
    monkeypatch.setattr(memory, "available", lambda device=None: None)
    return "cuda"


def settings(**options: object) -> Settings:
    return Settings(**{**SMALL.as_dict(), **options})


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_sixteen_bits_learn_what_float32_learns(kind: str, tmp_path: Path) -> None:
    ends = []
    for each in ("float32", kind):
        run = Run.create(tmp_path / each, settings(type=each, total=120, learning_rate=0.03), TEXT)
        ends.append([point.bits for point in run.train(1000)])
    assert ends[0][-1] < 0.7 * ends[0][0]
    np.testing.assert_allclose(ends[1], ends[0], rtol=0.05)
    assert ends[1] != ends[0]
    values = run.model.graph.variables()
    assert all(v.dtype in (np.float32, np.float64) for v in values.values())


def test_a_step_whose_gradients_overflow_is_left_out() -> None:
    model = Model(settings(type="float16", window=5, batch=2), 7)
    program = model.training_program()
    rng = np.random.default_rng(0)
    tokens, targets = rng.integers(0, 7, (2, 5, 2)).astype(np.int32)
    feeds = [tokens, targets, np.asarray(np.float32(1)), np.asarray(np.float32(0.01))]
    program.run(feeds)
    before = model.graph.variables()
    assert before["loss_scale"] == 2**15 and before["loss_scale.steps"] == 1
    model.graph.set_variables({"loss_scale": np.array(2**30, np.float32)})
    with np.errstate(over="ignore", invalid="ignore"):
        loss, norm = program.run(feeds)
    assert np.isfinite(loss) and not np.isfinite(norm)
    after = model.graph.variables()
    assert after["loss_scale"] == 2**29 and after["loss_scale.steps"] == 0
    carried = {name for name in before if name.startswith("train") or name == "step"}
    for name in before.keys() - carried - {"loss_scale", "loss_scale.steps"}:
        np.testing.assert_array_equal(after[name], before[name], err_msg=name)
    assert after["step"] == 2
    model.graph.set_variables(
        {"loss_scale": np.array(2**15, np.float32), "loss_scale.steps": np.array(999, np.float32)}
    )
    program.run(feeds)
    found = model.graph.variables()
    assert found["loss_scale"] == 2**16 and found["loss_scale.steps"] == 0
    assert not np.array_equal(found["projection"], before["projection"])


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_a_run_on_a_device_resumes_to_the_bit_and_anywhere(
    gpu: str, kind: str, tmp_path: Path
) -> None:
    pytest.importorskip("safetensors")
    whole = Run.create(tmp_path / "whole", settings(type=kind), TEXT, device=gpu)
    expected = [point.bits for point in whole.train(1000)]
    half = Run.create(tmp_path / "half", settings(type=kind), TEXT, device=gpu)
    for point in half.train(10):
        if point.step == 10:
            break
    again = Run.resume(tmp_path / "half", TEXT, device=gpu)
    assert again.step == 10
    rest = [point.bits for point in again.train(1000)]
    assert [bits for _, bits, _ in again.history] == expected and rest == expected[10:]
    for name, value in whole.model.graph.variables().items():
        np.testing.assert_array_equal(again.model.graph.variables()[name], value, err_msg=name)
    # The same checkpoint on the host, and its losses there.
    there = Run.create(tmp_path / "there", settings(type=kind), TEXT)
    on_host = [point.bits for point in there.train(10)]
    np.testing.assert_allclose(on_host, expected, rtol=1e-4 if kind == "float32" else 2e-2)
    assert Run.resume(tmp_path / "whole", TEXT).validate() == pytest.approx(
        whole.validate(), rel=1e-4 if kind == "float32" else 1e-2
    )


def test_losses_are_read_in_order() -> None:
    losses = Losses()
    for k in range(3):
        losses.add(k + 1, np.float32(k), np.float32(2 * k))
    assert [(s.number, s.norm) for s in losses.read(every=False)] == [(1, 0), (2, 2), (3, 4)]
    assert losses.read(every=True) == []


def test_the_command_keeps_the_device_and_the_type(
    gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text").write_text(TEXT)
    monkeypatch.setattr(
        "zstate.cli.train.device_of", lambda command, name: None if name == "cpu" else gpu
    )
    asked: list[Any] = []
    create = Run.create
    monkeypatch.setattr(Run, "create", lambda *a, **k: asked.append(a[5]) or create(*a, **k))
    options = ["--hidden", "8", "--embedding", "4", "--window", "8", "--batch", "2", "--steps", "3"]
    command = ["train", "text", "--run", "r", "--device", "cuda", "--type", "bfloat16", *options]
    assert cli.main(command) == 0
    assert asked == [gpu]
    about = json.loads(Path("r/run.json").read_text())
    assert about["options"]["device"] == "cuda" and about["settings"]["type"] == "bfloat16"
    assert cli.main(["train", "--run", "r", "--resume", "--total", "5", "--device", "cpu"]) == 0
    assert json.loads(Path("r/run.json").read_text())["options"]["device"] == "cpu"
    assert "continues at step 3" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--run", str(tmp_path / "r"), "--device", "cuda"]) == 2
    message = capsys.readouterr().err
    assert "--device: expected a CUDA device, got none: torch sees no CUDA device" in message
    assert not (tmp_path / "r").exists()
    from zstate.cli.arguments import device_of

    assert device_of("sample", "auto") is None and device_of("sample", "cpu") is None
    with pytest.raises(zs.OptionError, match=r"\[sample\] --device: expected a CUDA device"):
        device_of("sample", "cuda")


@pytest.mark.parametrize("kind", ["float64", "int8", ""])
def test_a_type_that_no_layer_has(kind: str) -> None:
    with pytest.raises(zs.OptionError, match="type: expected one of float32, bfloat16, float16"):
        Settings(type=kind)
