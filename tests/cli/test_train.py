"""`zstate train` learns, resumes to the bit, saves when it is stopped, and keeps its promises."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import zstate as zs
from tests.inspect.pages import lstm_in_torch
from zstate import cli
from zstate.inspection.models import of_run
from zstate.inspection.views import view
from zstate.train import Corpus, Run, Settings, default_text
from zstate.train import loop as loop_module
from zstate.train.data import Windows
from zstate.train.model import Model
from zstate.types import Array

TEXT = "the cat sat on the mat. the dog ate the cat.\n" * 120
SMALL = {"hidden": 24, "embedding": 8, "window": 16, "batch": 4, "total": 40}


def small(**options: object) -> Settings:
    return Settings(**{**SMALL, **options})  # type: ignore[arg-type]


def losses(run: Run, every: int = 1000) -> list[float]:
    return [point.bits for point in run.train(every)]


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_every_cell_learns(cell: str, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "r", small(cell=cell, total=150, dropout=0.1), TEXT, None)
    before = run.validate()
    bits = losses(run)
    assert len(bits) == 150
    assert before > 3.5  # log2 of the 14 characters is 3.8
    assert run.validate() < 0.7 * before
    assert run.step == 150


def test_the_text_is_every_pythons_own() -> None:
    text = default_text()
    assert len(text) > 300_000
    assert "The for statement" in text.replace('"', "")


def test_windows_continue_each_other() -> None:
    windows = Windows(np.arange(1000, dtype=np.int32), 10, 3)
    assert windows.count == 33
    first, targets = windows[0]
    second, _ = windows[1]
    assert first.shape == (10, 3)
    assert (targets == first + 1).all()
    assert (second[0] == first[-1] + 1).all()
    assert (windows[33][0] == first).all()
    with pytest.raises(zs.OptionError, match="text: expected at least 31 characters"):
        Windows(np.arange(30, dtype=np.int32), 10, 3)


def test_the_corpus_splits_and_refuses_what_it_does_not_know() -> None:
    corpus = Corpus(TEXT)
    assert corpus.decode(np.concatenate([corpus.train, corpus.valid])) == TEXT
    assert 0 < len(corpus.valid) < len(corpus.train) / 10
    with pytest.raises(zs.OptionError, match="expected the 14 characters of the .*, got 'Z'"):
        corpus.encode("Z")


class TorchModel(torch.nn.Module):
    """The same model in torch.nn."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        s, v = run.settings, len(run.corpus.alphabet)
        self.embedding = torch.nn.Embedding(v, s.embedding)
        self.layer = torch.nn.LSTM(s.embedding, s.hidden, s.layers)
        self.projection = torch.nn.Linear(s.hidden, v)
        values = {n: torch.tensor(a) for n, a in run.model.graph.variables().items()}
        with torch.no_grad():
            self.embedding.weight.copy_(values["embedding"])
            for k in range(s.layers):
                for name, ours in (
                    ("weight_ih", "input_weight"),
                    ("weight_hh", "recurrent_weight"),
                ):
                    getattr(self.layer, f"{name}_l{k}").copy_(values[f"layer{k}.{ours}"])
                getattr(self.layer, f"bias_ih_l{k}").copy_(values[f"layer{k}.bias"])
                getattr(self.layer, f"bias_hh_l{k}").zero_().requires_grad_(False)
            self.projection.weight.copy_(values["projection"].T)
            self.projection.bias.copy_(values["projection_bias"])

    def forward(self, tokens: torch.Tensor, state: object) -> tuple[torch.Tensor, object]:
        h, state = self.layer(self.embedding(tokens), state)
        return self.projection(h), state


def test_training_is_the_same_as_torchs(tmp_path: Path) -> None:
    """The same weights, windows, clipping and Adam: the same losses, step by step."""
    run = Run.create(tmp_path / "r", small(layers=2, total=12), TEXT, None)
    model = TorchModel(run)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, betas=(0.9, 0.99), eps=1e-8)
    wanted, state = [], None
    for step in range(12):
        tokens, targets = (torch.tensor(a).long() for a in run.windows[step])
        for group in optimizer.param_groups:
            group["lr"] = run.settings.rate(step)
        logits, state = model(tokens, state)
        state = tuple(part.detach() for part in state)
        loss = torch.nn.functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
        )
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(trained, run.settings.clip)
        optimizer.step()
        wanted.append(loss.item() / np.log(2))
    np.testing.assert_allclose(losses(run), wanted, rtol=2e-4)


# 24: as large as a projected row of the RNN.
@pytest.mark.parametrize(("cell", "embedding"), [("lstm", 8), ("gru", 8), ("rnn", 8), ("rnn", 24)])
def test_a_projected_table_trains_as_projected_rows_do(
    cell: str, embedding: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small(cell=cell, embedding=embedding, total=10)
    found = losses(Run.create(tmp_path / "table", settings, TEXT, None))

    def plain(model: Model, tokens: zs.Tensor) -> tuple[zs.Tensor, bool]:
        return model.graph.gather(model.embedding, tokens), False

    monkeypatch.setattr(Model, "_looked_up", plain)
    np.testing.assert_allclose(
        found, losses(Run.create(tmp_path / "rows", settings, TEXT, None)), rtol=1e-5
    )


def test_resuming_continues_to_the_bit(tmp_path: Path) -> None:
    settings = small(dropout=0.2, total=30)
    straight = Run.create(tmp_path / "a", settings, TEXT, None)
    whole = losses(straight)
    broken = Run.create(tmp_path / "b", settings, TEXT, None)
    first: Iterator[loop_module.Progress] = broken.train(7)
    bits = [next(first).bits for _ in range(17)]  # the last checkpoint is that of step 14
    resumed = Run.resume(tmp_path / "b", TEXT)
    assert resumed.step == 14 == resumed.history[-1][0]
    bits = bits[:14] + losses(resumed)
    assert bits == whole
    ours, theirs = straight.model.graph.variables(), resumed.model.graph.variables()
    for name in ours:
        if not name.startswith("valid"):
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    assert [step for step, _, _ in resumed.history] == list(range(1, 31))


def test_a_changed_text_is_refused_on_resuming(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "a", small(total=2), TEXT, None)
    losses(run)
    with pytest.raises(zs.OptionError, match="text: expected the text that the run began with"):
        Run.resume(tmp_path / "a", TEXT + "the cat")
    with pytest.raises(zs.OptionError, match="folder: expected a folder without a run"):
        Run.create(tmp_path / "a", small(), TEXT, None)


def test_samples_follow_the_seed(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "a", small(total=60), TEXT, None)
    losses(run)
    text = run.sample(50, "the c", 0.8, 3)
    assert text.startswith("the c") and len(text) == 55
    assert text == run.sample(50, "the c", 0.8, 3) != run.sample(50, "the c", 0.8, 4)
    assert set(text) <= set(TEXT)
    assert "the" in run.sample(40, "", 0.0, 0)


def test_the_gates_are_gates_and_the_flow_is_the_total_derivative(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "a", small(layers=2), TEXT, None)
    run.save()
    seen = view(of_run(run.folder, "the cat sat", None, 512))  # as the pictures of a run take it
    ids = run.corpus.encode("the cat sat")
    gates, flow = lstm_in_torch(run.model.graph.variables(), ids)
    found = [each.values for each in seen.layers[1].maps if each.kind == "gate"]
    np.testing.assert_allclose(np.stack(found, 1), gates, rtol=1e-5, atol=1e-6)
    norms = [layer.flow["h"][-1] for layer in seen.layers]
    np.testing.assert_allclose(norms, flow, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cell": "lru"}, "cell: expected one of rnn, lstm, gru, got 'lru'"),
        ({"hidden": 0}, "hidden: expected at least 1, got 0"),
        ({"dropout": 1.0}, "dropout: expected at least 0 and below 1, got 1.0"),
        ({"learning_rate": 0.0}, "learning_rate: expected above 0, got 0.0"),
        ({"seed": -1}, "seed: expected at least 0, got -1"),
    ],
)
def test_bad_settings_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(zs.OptionError, match=message):
        small(**options)


ARGUMENTS = [f"--{name}={value}" for name, value in SMALL.items() if name != "total"]


def test_the_command_leaves_what_it_promises(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "text.txt").write_text(TEXT)
    folder = tmp_path / "run"
    words = ["train", str(tmp_path / "text.txt"), "--run", str(folder)]
    assert cli.main([*words, *ARGUMENTS, "--steps=20", "--checkpoint-every=10"]) == 0
    printed = capsys.readouterr().out
    assert "1 × lstm of 24" in printed and "bits per character" in printed
    made = {path.name for path in folder.iterdir()}
    assert made == {
        *("checkpoint.safetensors", "run.json", "sample.txt"),
        *("loss.png", "gates.png", "gradient_flow.png"),
    }
    for name in ("loss.png", "gates.png", "gradient_flow.png"):
        content = (folder / name).read_bytes()
        assert content[:4] == b"\x89PNG" and len(content) > 4000
    assert len(json.loads((folder / "run.json").read_text())["history"]) == 20
    assert cli.main(["sample", str(folder), "--prompt", "the ", "--length", "30"]) == 0
    assert capsys.readouterr().out.startswith("the ")
    assert cli.main(["sample", str(folder), "--prompt", "Ω"]) == 2
    assert not capsys.readouterr().out
    assert cli.main(["sample", str(tmp_path)]) == 2
    assert "got a folder without run.json" in capsys.readouterr().err
    assert cli.main([*words, *ARGUMENTS]) == 2
    assert "expected a folder without a run" in capsys.readouterr().err
    assert cli.main(["train", "--run", str(folder), "--resume", "--hidden=3"]) == 2
    assert "--resume keeps the run's settings: omit --hidden" in capsys.readouterr().err
    assert cli.main(["train", "--run", str(folder), "--resume"]) == 0
    printed = capsys.readouterr().out
    assert "is finished at step 20" in printed and "chars/s" not in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sample", "x", "--temperature", "-1"], "--temperature: expected a number of at least 0"),
        (["sample", "x", "--length", "1.5"], "--length: expected an integer of at least 0"),
        (["train", "--temperature", "nan"], "--temperature: expected a number of at least 0"),
        (["train", "--cell", "transformer"], "--cell: invalid choice: 'transformer'"),
    ],
)
def test_wrong_options_are_named(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(words)
    assert message in capsys.readouterr().err


def test_ctrl_c_saves_first_and_resume_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "text.txt").write_text(TEXT)
    folder = tmp_path / "run"
    right = zs.Executable.run
    calls = 0

    def interrupted(self: zs.Executable, feeds: list[Array]) -> list[Array]:
        nonlocal calls
        calls += 1
        if calls == 13:
            os.kill(os.getpid(), signal.SIGINT)  # in the middle of a step, which is then finished
        return right(self, feeds)

    before = signal.getsignal(signal.SIGINT)
    words = ["train", str(tmp_path / "text.txt"), *ARGUMENTS, "--total=20"]
    monkeypatch.setattr(zs.Executable, "run", interrupted)
    assert cli.main([*words, "--run", str(folder)]) == 130
    assert "stopped and saved at step 13" in capsys.readouterr().out
    monkeypatch.setattr(zs.Executable, "run", right)
    assert cli.main([*words, "--run", str(tmp_path / "straight")]) == 0
    assert signal.getsignal(signal.SIGINT) is before
    assert cli.main(["train", "--run", str(folder), "--resume"]) == 0
    printed = capsys.readouterr().out
    assert "at step 13" in printed
    histories = [
        json.loads((path / "run.json").read_text())["history"]
        for path in (folder, tmp_path / "straight")
    ]
    assert histories[0] == histories[1]
    assert [step for step, _, _ in histories[0]] == list(range(1, 21))


def test_without_matplotlib_the_command_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import importlib.util

    right = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "matplotlib" else right(name)
    )
    assert cli.main(["train"]) == 2
    assert "pip install 'zstate[train]'" in capsys.readouterr().err
