"""The main job as a user meets it: `zstate train` twice, on any text, stopped, killed, resumed,
without room on the disk or in memory, and on any terminal."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from rich.progress import Progress

import zstate as zs
from zstate import cli
from zstate.cli.train import _columns
from zstate.train import Run, Settings, locking, loop, memory, plots
from zstate.train.data import read_text

TEXT = "the cat sat on the mat. the dog ate the cat.\n" * 120
TINY = ["--hidden=8", "--embedding=4", "--window=16", "--batch=4"]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT)


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "draw_all", lambda run: [])


def steps(folder: str) -> int:
    history = json.loads(Path(folder, "run.json").read_text())["history"]
    return int(history[-1][0]) if history else 0


def command(*words: str, **further: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "zstate", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        **further,
    )


@pytest.mark.usefixtures("no_pictures")
class TestFolders:
    def test_a_second_run_gets_a_folder_of_its_own_and_resume_takes_the_last(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = ["train", "text.txt", *TINY, "--steps=2"]
        for folder in ("runs/lstm", "runs/lstm-2", "runs/lstm-3"):
            assert cli.main(words) == 0
            assert f"run folder: {folder}" in capsys.readouterr().out
        assert cli.main([*words, "--cell=gru"]) == 0
        assert "run folder: runs/gru\n" in capsys.readouterr().out
        assert cli.main(["train", "--resume", "--run=runs/lstm-2", "--steps=3"]) == 0
        assert cli.main(["train", "--resume"]) == 0
        assert "runs/lstm-2 is finished at step 3" in capsys.readouterr().out

    def test_without_a_run_there_is_nothing_to_resume(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main(["train", "--resume"]) == 2
        assert "--resume: expected a run in runs/" in capsys.readouterr().err

    def test_a_file_in_the_place_of_the_folder(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["train", "text.txt", *TINY, "--run=text.txt"]) == 2
        assert "folder: expected a folder, got the file text.txt" in capsys.readouterr().err

    @pytest.mark.parametrize("name", ["sample.txt", "gates.png"])
    def test_a_folder_with_a_file_that_the_run_would_overwrite(
        self, name: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        Path(name).write_text("mine")
        assert cli.main(["train", "text.txt", *TINY, "--run=."]) == 2
        assert f"expected a folder without a run (or --resume), got . with {name}" in (
            capsys.readouterr().err
        )
        assert Path(name).read_text() == "mine" and not Path("run.json").exists()


@pytest.mark.usefixtures("no_pictures")
class TestResuming:
    def test_a_finished_run_is_extended(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["train", "text.txt", *TINY, "--steps=4"]) == 0
        assert cli.main(["train", "--resume", "--steps=7"]) == 0
        assert "continues at step 4" in capsys.readouterr().out
        assert steps("runs/lstm") == 7
        assert cli.main(["train", "--resume", "--steps=6"]) == 2
        assert "--steps: expected at least 7, the steps already done" in capsys.readouterr().err

    def test_from_any_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main(["train", "text.txt", *TINY, "--steps=2"]) == 0
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert cli.main(["train", "--resume", "--run=../runs/lstm", "--steps=3"]) == 0
        # Sampling does not need the text at all.
        (tmp_path / "text.txt").unlink()
        assert cli.main(["sample", "../runs/lstm", "--length=5"]) == 0
        capsys.readouterr()
        assert cli.main(["train", "--resume", "--run=../runs/lstm"]) == 2
        assert "expected a text file, got no such file" in capsys.readouterr().err

    def test_a_text_of_the_same_characters_is_another_text(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main(["train", "text.txt", *TINY, "--steps=2"]) == 0
        Path("text.txt").write_text(TEXT[::-1])
        assert cli.main(["train", "--resume"]) == 2
        assert "text: expected the text that the run began with" in capsys.readouterr().err
        Path("moved.txt").write_text(TEXT)
        assert cli.main(["train", "moved.txt", "--resume", "--steps=3"]) == 0
        assert json.loads(Path("runs/lstm/run.json").read_text())["text"].endswith("/moved.txt")

    def test_the_options_are_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Path("text.txt").write_text("déjà vu, café, garçon. " * 100, encoding="latin-1")
        kept = ["--encoding=latin-1", "--checkpoint-every=3", "--temperature=0"]
        assert cli.main(["train", "text.txt", *TINY, "--steps=6", *kept]) == 0
        sample = Path("runs/lstm/sample.txt").read_text(encoding="utf-8")
        assert cli.main(["train", "--resume", "--steps=12"]) == 0
        history = json.loads(Path("runs/lstm/run.json").read_text())["history"]
        assert [step for step, _, valid in history if valid is not None] == [3, 6, 9, 12]
        assert cli.main(["train", "--resume", "--temperature=2"]) == 0
        assert Path("runs/lstm/sample.txt").read_text(encoding="utf-8") != sample

    def test_stopped_where_it_is_then_said_to_end(self) -> None:
        run = Run.create(Path("r"), small(total=9), TEXT, str(Path("text.txt").resolve()), KEPT)
        for point in run.train(100):
            if point.step == 5:
                break
        run.save()
        assert cli.main(["train", "--resume", "--run=r", "--steps=5"]) == 0
        assert json.loads(Path("r/run.json").read_text())["history"][-1][2] is not None

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["--steps=0"], "[train] --steps: expected at least 1, got 0"),
            (["--total=0"], "[train] --total: expected at least 1, got 0"),
            (["--learning-rate=-1"], "[train] --learning-rate: expected above 0, got -1.0"),
            (["--learning-rate=inf"], "[train] --learning-rate: expected a finite number"),
            (["--seed=99999999999999999999"], "[train] --seed: expected below 2**63"),
            (
                ["--checkpoint-every=9007199254740992"],
                "[train] --checkpoint-every: expected below 2",
            ),
            (["--resume", "--total=3", "--hidden=9"], "omit --hidden\n"),
            (["--window=9000"], "expected at least 9,474 characters for --window 9000, got 5,400"),
        ],
    )
    def test_messages_name_the_option_that_was_typed(
        self, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main(["train", "text.txt", *words]) == 2
        assert message in capsys.readouterr().err
        assert not Path("runs").exists()

    @pytest.mark.parametrize("value", ["-1", "0", "1.5", "x"])
    def test_checkpoint_every(self, value: str, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            cli.main(["train", f"--checkpoint-every={value}"])
        expected = f"--checkpoint-every: expected an integer of at least 1, got '{value}'"
        assert expected in capsys.readouterr().err


KEPT = {"checkpoint_every": 100, "temperature": 0.7, "encoding": "utf-8"}


def small(**changed: Any) -> Settings:
    sizes: dict[str, Any] = {"hidden": 8, "embedding": 4, "window": 16, "batch": 4, "total": 6}
    return Settings(**{**sizes, **changed})


class TestTexts:
    @pytest.mark.parametrize(
        ("text", "prompt"),
        [
            ("the cat sat on the mat and " * 200, "the "),  # no newline, no T
            ("Мороз и солнце; день чудесный!\n" * 100, "Мороз "),
            ("春眠不觉晓，处处闻啼鸟。夜来风雨声，花落知多少。" * 200, "春眠不觉晓，处处闻啼鸟。"),
            (("Once upon a time there was a fox. " * 200)[:4297], "Once "),
            ("abcdefghijklmnopqrst", "abcdefghijkl"),
            ("\n \n " * 400, "\n "),
            ("\ufeffThe fox.\r\nThe dog.\r" * 100, "The "),
        ],
        ids=["no newline", "Cyrillic", "Chinese", "4297", "20", "white", "BOM and CR"],
    )
    def test_every_text_trains_and_samples(
        self,
        text: str,
        prompt: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        if text.isascii() and len(text) > 20:  # the others are what a picture might fail on
            monkeypatch.setattr(plots, "draw_all", lambda run: [])
        Path("text.txt").write_text(text, encoding="utf-8", newline="")
        assert cli.main(["train", "text.txt", "--hidden=8", "--steps=2"]) == 0
        printed, complaints = capsys.readouterr()
        assert not complaints
        assert ("the text is short" in printed) == (len(text) < 4500)
        assert Path("runs/lstm/sample.txt").read_text(encoding="utf-8").startswith(prompt)
        for words in ([], ["--prompt="]):
            assert cli.main(["sample", "runs/lstm", "--length=5", *words]) == 0
            written = capsys.readouterr().out
            assert len(written) == (6 if words else len(prompt) + 6)
            assert words or written.startswith(prompt)

    @pytest.mark.parametrize(
        ("content", "words", "message"),
        [
            (b"abcd", [], "expected at least 20 characters, got 4 characters"),
            (b"", [], "expected text, got an empty file"),
            (b"a" * 9000, [], "expected at least two different characters, got only 'a'"),
            (
                "café ".encode("latin-1") * 999,
                [],
                "expected utf-8 text (or another encoding, such as --encoding latin-1), "
                "got byte 0xe9 at position 3",
            ),
            ("café ".encode("utf-16"), [], "such as --encoding utf-16), got byte 0xff at"),
            (bytes(range(256)) * 40, [], "expected text, got binary data (a zero byte at 0)"),
            (bytes(range(256)) * 40, ["--encoding=latin-1"], "got binary data (a zero at ch"),
            (b"abc" * 999, ["--encoding=foo"], "--encoding: expected a text encoding that Python"),
            (b"abc" * 999, ["--encoding=rot13"], "--encoding: expected a text encoding that Py"),
            (
                b"ab" * 999,
                ["--batch=20", "--window=100"],
                "expected at least 2,106 characters for --batch 20 and --window 100, got 1,998",
            ),
        ],
    )
    def test_others_are_refused_before_anything_starts(
        self, content: bytes, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        Path("text.txt").write_bytes(content)
        assert cli.main(["train", "text.txt", *words]) == 2
        printed, refused = capsys.readouterr()
        assert message in refused and refused.count("\n") == 1 and not printed
        assert "--encoding:" in refused or "'text.txt'" in refused
        assert not Path("runs").exists()

    @pytest.mark.parametrize(
        ("path", "got"),
        [(".", "a directory"), ("nowhere", "no such file"), ("/dev/null", "a device or a pipe")],
    )
    def test_what_is_no_file(self, path: str, got: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["train", path]) == 2
        assert f"{path!r}: expected a text file, got " in (err := capsys.readouterr().err)
        assert got in err

    def test_an_encoding_without_a_file(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["train", "--encoding=latin-1"]) == 2
        assert "--encoding: expected a text file, got none" in capsys.readouterr().err

    def test_other_encodings_are_read(self) -> None:
        text = "déjà vu, café, garçon. " * 10
        for encoding in ("latin-1", "utf-16", "cp1252", "UTF8"):
            Path("t").write_text(text, encoding=encoding)
            assert read_text("t", encoding) == text


def has_more_steps_than(before: int) -> bool:
    return Path("runs/lstm/run.json").exists() and steps("runs/lstm") > before


def until(process: subprocess.Popen[str], is_there: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not is_there():
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.01)


class TestStopping:
    LONG = ("train", "text.txt", *TINY, "--steps=1000000", "--checkpoint-every=20")

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_a_signal_saves_first(self, number: signal.Signals) -> None:
        """One that is ignored, as under nohup, stays ignored: here SIGHUP while SIGTERM counts."""
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL

        def begin() -> None:
            signal.signal(number, usual)  # the tests themselves may run under nohup
            if number == signal.SIGTERM:
                signal.signal(signal.SIGHUP, signal.SIG_IGN)

        process = command(*self.LONG, preexec_fn=begin)
        until(process, Path("runs/lstm/checkpoint.safetensors").exists)
        if number == signal.SIGTERM:
            process.send_signal(signal.SIGHUP)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.3)
        process.send_signal(number)
        printed, complaints = process.communicate(timeout=60)
        assert process.returncode == 128 + number
        assert not complaints
        done = int(printed.partition("stopped and saved at step ")[2].split(";")[0])
        assert steps("runs/lstm") == done >= 20
        assert Run.resume(Path("runs/lstm"), TEXT).step == done

    def test_kills_leave_a_whole_run_and_no_pile(self) -> None:
        for k in range(3):
            resume = ("train", "--resume") if k else self.LONG
            before = steps("runs/lstm") if k else 0
            process = command(*resume)
            until(process, partial(has_more_steps_than, before))
            process.kill()
            process.communicate()
        resumed = Run.resume(Path("runs/lstm"), TEXT)
        assert resumed.step % 20 == 0 and len(resumed.history) == resumed.step
        names = [path.name for path in Path("runs/lstm").iterdir() if path.name != ".lock"]
        assert len(names) <= 4, names

    @pytest.mark.parametrize("stop", [KeyboardInterrupt(), cli.Stopped(signal.SIGTERM)])
    def test_an_interrupted_first_step_leaves_nothing(
        self, stop: BaseException, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def stopped(*_: object) -> None:
            raise stop

        monkeypatch.setattr(zs.Executable, "run", stopped)
        assert cli.main(["train", "text.txt", *TINY, "--run=a/b/c"]) in (130, 143)
        assert not Path("a").exists()
        Path("mine").mkdir()
        assert cli.main(["train", "text.txt", *TINY, "--run=mine"]) in (130, 143)
        assert not list(Path("mine").iterdir())

    @pytest.mark.parametrize(("every", "kept"), [(4, 8), (5, 10)])  # validated at once, or later
    def test_weights_that_diverge_keep_the_last_checkpoint(
        self,
        every: int,
        kept: int,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        right = Settings.rate
        monkeypatch.setattr(Settings, "rate", lambda self, k: 1e38 if k == 11 else right(self, k))
        words = ["text.txt", *TINY, "--run=r", f"--checkpoint-every={every}", "--steps=30"]
        assert cli.main(["train", *words]) == 2
        assert "expected a finite loss" in capsys.readouterr().err
        monkeypatch.setattr(Settings, "rate", right)
        assert cli.main(["sample", "r", "--length=3"]) == 0
        run = Run.resume(Path("r"), TEXT)
        assert run.step == len(run.history) == kept
        before = Path("r/checkpoint.safetensors").read_bytes(), Path("r/run.json").read_bytes()
        run.model.graph.set_variables({"layer0.bias": np.full(32, np.nan, np.float32)})
        with pytest.raises(zs.OptionError, match=f"step {kept}: expected finite weights"):
            run.save()  # as a signal would let it
        with pytest.raises(zs.OptionError, match="finite loss of the validation text"):
            run.validate()
        with pytest.raises(zs.OptionError, match="expected a model whose outputs are finite"):
            run.sample(3, "the ", 0.7, 1)
        after = Path("r/checkpoint.safetensors").read_bytes(), Path("r/run.json").read_bytes()
        assert after == before

    def test_a_second_signal_keeps_the_last_checkpoint(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        right, calls = zs.Executable.run, 0

        def stopped(self: zs.Executable, feeds: list[Any]) -> list[Any]:
            nonlocal calls
            calls += 1
            if calls == 30:  # in the middle of a step, for good
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)
            return right(self, feeds)

        monkeypatch.setattr(zs.Executable, "run", stopped)
        words = ["train", "text.txt", *TINY, "--checkpoint-every=8", "--steps=30"]
        assert cli.main(words) == 130
        assert Run.resume(Path("runs/lstm"), TEXT).step % 8 == 0

    def test_killed_before_or_between_checkpoints(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = [p.bits for p in Run.create(Path("whole"), small(), TEXT).train(2)]
        right, saves = zs.Graph.save, 0

        def killed(self: zs.Graph, path: Path) -> None:
            nonlocal saves
            saves += 1
            if saves == 2:
                raise KeyboardInterrupt
            right(self, path)

        run = Run.create(Path("run"), small(), TEXT)
        assert Run.resume(Path("run"), TEXT).step == 0  # run.json is there, and no checkpoint
        monkeypatch.setattr(zs.Graph, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            list(run.train(2))
        resumed = Run.resume(Path("run"), TEXT)
        assert resumed.step == 2 == len(resumed.history)
        list(resumed.train(2))
        assert [bits for _, bits, _ in resumed.history] == whole

    @pytest.mark.parametrize("module", ["numpy", "rich"])
    def test_ctrl_c_while_importing_prints_nothing(self, module: str) -> None:
        Path(module).mkdir()
        Path(module, "__init__.py").write_text("raise KeyboardInterrupt")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([".", *sys.path])}
        process = command("shapes", "lstm", env=environment)
        assert process.communicate() == ("", "")
        assert process.returncode in (130, -signal.SIGINT)


class TestTwoAtOnce:
    LONG = TestStopping.LONG

    @pytest.mark.usefixtures("no_pictures")
    def test_a_folder_has_one_trainer(self, capsys: pytest.CaptureFixture[str]) -> None:
        """The second is refused by name of folder and process, whatever it asks for; a reader is
        not; a killed process leaves nothing that must be cleared away."""
        first = command(*self.LONG, "--run=r")
        until(first, Path("r/checkpoint.safetensors").exists)
        before = json.loads(Path("r/run.json").read_text())["settings"]
        for words in (["text.txt", *TINY, "--hidden=5", "--run=r"], ["--resume", "--run=r"]):
            assert cli.main(["train", *words]) == 2
            refused = capsys.readouterr().err
            assert refused.startswith("zstate: [train] r: expected a folder that no other process ")
            assert f"one held by process {first.pid} on " in refused
        assert cli.main(["sample", "r", "--length=3"]) == 0
        assert first.poll() is None
        first.kill()
        first.communicate()
        assert Path("r/.lock").exists()
        assert json.loads(Path("r/run.json").read_text())["settings"] == before
        done = steps("r")
        assert cli.main(["train", "--resume", "--run=r", f"--steps={done + 1}"]) == 0
        assert not Path("r/.lock").exists()

    def test_both_begin_together(self) -> None:
        both = [command(*self.LONG, "--run=new", f"--seed={k}") for k in range(2)]
        end = time.monotonic() + 60
        while all(process.poll() is None for process in both) and time.monotonic() < end:
            time.sleep(0.01)
        (refused,) = [process for process in both if process.poll() is not None]
        (going,) = [process for process in both if process is not refused]
        assert f"held by process {going.pid} on" in refused.communicate()[1]
        until(going, Path("new/checkpoint.safetensors").exists)
        going.kill()
        going.communicate()
        assert json.loads(Path("new/run.json").read_text())["settings"]["seed"] == both.index(going)

    @pytest.mark.usefixtures("no_pictures")
    def test_a_folder_that_nobody_chose(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Without --run the next folder is taken, also when another took the first just now."""
        right = loop.free_folder
        with locking.claimed(Path("runs/lstm")), pytest.MonkeyPatch.context() as patch:
            given = iter([Path("runs/lstm")])
            patch.setattr(loop, "free_folder", lambda first: next(given, None) or right(first))
            assert cli.main(["train", "text.txt", *TINY, "--steps=1"]) == 0
        assert "run folder: runs/lstm-2 (runs/lstm is taken)" in capsys.readouterr().out

    def test_a_lock_that_is_removed_meanwhile(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whoever locks a file that its holder has just removed locks the new one instead."""
        right, removed = locking._try_to_lock, []

        def late(file: Any) -> None:
            if not removed:
                removed.append(1)
                Path("a/b/.lock").unlink()
            right(file)

        monkeypatch.setattr(locking, "_try_to_lock", late)
        with locking.claimed(Path("a/b")):
            assert str(os.getpid()) in Path("a/b/.lock").read_text()
            with pytest.raises(zs.OptionError, match="held by"), locking.claimed(Path("a/b")):
                pass
        assert not Path("a").exists()


class TestLimits:
    def test_a_full_disk_is_one_line(self) -> None:
        def limited() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))

        process = command("train", "text.txt", *TINY, "--steps=3", preexec_fn=limited)
        printed, refused = process.communicate()
        assert process.returncode == 2
        assert refused.startswith("zstate: [save] 'runs/lstm/checkpoint.safetensors': cannot be ")
        assert refused.count("\n") == 1 and "Traceback" not in printed
        assert not Path("runs").exists()  # nothing was saved, so nothing stays

    def test_a_read_only_folder_is_one_line(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        right = os.open

        def read_only(path: Any, *rest: Any, **further: Any) -> int:
            if ".run.json" in str(path):
                raise PermissionError(13, "Permission denied", str(path))
            return right(path, *rest, **further)

        monkeypatch.setattr("os.open", read_only)
        assert cli.main(["train", "text.txt", *TINY]) == 2
        refused = "zstate: [save] 'runs/lstm/run.json': cannot be written: Permission denied\n"
        assert capsys.readouterr().err == refused
        assert not Path("runs").exists()

    @pytest.mark.parametrize(
        "words", [["--hidden=2000000"], ["--layers=1000000000"], ["--embedding=99999999999"]]
    )
    def test_too_large_a_model_is_refused_before_allocating(
        self, words: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        began = time.monotonic()
        assert cli.main(["train", "text.txt", *words]) == 2
        assert time.monotonic() - began < 5
        refused = capsys.readouterr().err
        assert refused.startswith("zstate: [train] memory: expected settings that fit into the ")
        assert words[0].replace("=", " ") in refused and refused.count("\n") == 1
        assert not Path("runs").exists()

    @pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
    @pytest.mark.parametrize(
        "sizes",
        [
            {"hidden": 256, "window": 4, "batch": 2},  # the weights count
            {"hidden": 8, "window": 64, "batch": 32},  # the window counts
            {"hidden": 64, "layers": 3, "window": 32, "batch": 8},
        ],
    )
    def test_the_estimate_of_memory(self, cell: str, sizes: dict[str, int]) -> None:
        run = Run.create(Path("r"), small(cell=cell, **sizes), TEXT)
        found = run._train.memory
        needed = found.peak + found.weights + found.feeds
        assert 0.9 < memory.estimate(run.settings, len(run.corpus.alphabet)) / needed < 2

    def test_without_memory_it_is_one_line(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def none_left(*_: object) -> None:
            raise MemoryError("Unable to allocate 9 GiB")

        monkeypatch.setattr(zs.Executable, "run", none_left)
        assert cli.main(["train", "text.txt", *TINY]) == 2
        assert capsys.readouterr().err == "zstate: out of memory: Unable to allocate 9 GiB\n"

    def test_every_file_follows_the_umask(self) -> None:
        before = os.umask(0o027)
        try:
            assert cli.main(["train", "text.txt", *TINY, "--steps=2"]) == 0
        finally:
            os.umask(before)
        modes = {path.name: path.stat().st_mode & 0o777 for path in Path("runs/lstm").iterdir()}
        assert len(modes) == 6 and set(modes.values()) == {0o640}


ONE_BY_ONE = """
from zstate import cli
from zstate.train import plots
plots.draw_all = lambda run: []
for words in {words}:
    try:
        status = cli.main(list(words))
    except SystemExit as stopped:
        status = stopped.code
    print("<status>", status)
"""


class TestTerminals:
    @pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
    def test_a_terminal_without_the_characters(self, encoding: str) -> None:
        """Of one process, whose commands all print to it."""
        Path("text.txt").write_text("Мороз и солнце; день чудесный!\n" * 100, encoding="utf-8")
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        words = (
            ("train", "text.txt", *TINY, "--steps=2"),
            ("sample", "runs/lstm", "--length=9"),
            ("train", "--help"),
            ("shapes", "lstm", "--bidirectional"),
            ("graph", "runs/lstm/checkpoint.safetensors"),
            ("sample", "runs/lstm", "--prompt=Ω"),
        )
        done = subprocess.run(
            [sys.executable, "-c", ONE_BY_ONE.format(words=words)],
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        *printed, rest = done.stdout.split("<status> ")
        assert [each[0] for each in (*printed[1:], rest)] == [*"000002"], done.stderr
        assert "1 x lstm of 8" in printed[0] or encoding == "latin-1"

    @pytest.mark.parametrize("width", [10, 30, 40, 60, 80, 100, 200])
    def test_progress_keeps_to_one_line(self, width: int) -> None:
        out = io.StringIO()
        console = Console(file=out, width=width, force_terminal=True, color_system=None)
        with Progress(*_columns(width), console=console) as progress:
            fields: dict[str, Any] = {"bits": 12.345, "valid": "12.345", "speed": 1234567.0}
            progress.add_task("", total=100000, completed=99999, **fields)
        shown = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", out.getvalue())
        lines = [line for line in re.split("[\r\n]", shown) if line]
        assert all(len(line) <= width for line in lines)
        assert width < 20 or all("99999/100000" in line for line in lines)
        if width >= 80:
            assert "12.345 bits/char" in lines[0] and "chars/s" in lines[0]

    def test_a_closed_pipe_is_no_error(self) -> None:
        Run.create(Path("r"), small(), TEXT).save()
        process = command("sample", "r", "--length=3000")
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(5)
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 141


def test_the_gates_title_counts_units_and_names_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    titles: list[str] = []
    right = Figure.suptitle
    monkeypatch.setattr(
        Figure, "suptitle", lambda self, text, **k: (titles.append(text), right(self, text, **k))
    )
    run = Run.create(Path("r"), small(layers=2, hidden=30, total=1), TEXT)
    list(run.train(1))
    plots.draw_all(run)
    few = "the 24 of 30 units that vary most, the same in each gate"
    assert titles == [f"lstm, layer 2 of 2: {few}"]
    for units, title in ((8, "all 8 units, in the same order in each gate"), (1, "its only unit")):
        assert plots._gates_title(small(hidden=units)) == f"lstm, layer 1 of 1: {title}"
    one = Run.create(Path("one"), small(hidden=1, total=1), TEXT)
    list(one.train(1))
    plots.draw_all(one)
    assert titles[1] == "lstm, layer 1 of 1: its only unit"
