"""A training run: its folder, steps, checkpoints and results."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import GraphError, OptionError, refusal
from ..graph import Graph
from ..graph.storage import replacing
from . import memory
from .data import Alphabet, Corpus, Windows, characters_for, check_text, split
from .model import Model, SettingError, Settings
from .sampling import Sampler

LN2 = math.log(2)
_VALID_STEPS, _VALID_BATCH = 128, 16
_CHECKPOINT, _ABOUT = "checkpoint.safetensors", "run.json"


class Progress(NamedTuple):
    """Where training stands after a step; bits are bits per character, of this step's window."""

    step: int
    bits: float
    characters: int  # of this step
    seconds: float
    valid_bits: float | None


class Run:
    """One training run in one folder: run.json holds the settings, the alphabet, the losses and
    the options of the command line, checkpoint.safetensors every variable of the graph. What is
    not in them follows from them."""

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        text: str,
        text_path: str | None,
        options: Mapping[str, Any],
    ) -> None:
        check_text(text, "text")
        self.folder, self.settings, self.corpus = folder, settings, Corpus(text)
        self.text_path, self.options = text_path, dict(options)
        self._text_hash = _hash(text)
        memory.check(settings, len(self.corpus.alphabet))
        corpus = self.corpus
        self.windows = Windows(corpus.train, settings.window, settings.batch)
        self.model = Model(settings, len(corpus.alphabet))
        self._train = self.model.training_program()
        rows = min(_VALID_STEPS, max((len(corpus.valid) - 1) // _VALID_BATCH, 1))
        batch = min(_VALID_BATCH, (len(corpus.valid) - 1) // rows)
        self.valid_windows = Windows(corpus.valid, rows, batch)
        self._valid = self.model.validation_program(rows, batch)
        self._sampler = Sampler(self.model, corpus)
        self.history: list[tuple[int, float, float | None]] = []  # step, bits, validation bits
        self._made: list[Path] = []  # folders that this run created

    @property
    def step(self) -> int:
        """How many steps of training are done."""
        return int(self._train.variables["step"])

    @staticmethod
    def create(
        folder: Path,
        settings: Settings,
        text: str,
        text_path: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Run:
        """A new run in a folder without one; ``options`` are kept for :meth:`resume`."""
        if (folder / _ABOUT).exists():
            expected = "a folder without a run (or --resume)"
            raise OptionError(refusal("train", "folder", expected, str(folder)))
        if folder.exists() and not folder.is_dir():
            raise OptionError(refusal("train", "folder", "a folder", f"the file {folder}"))
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        try:
            run = Run(folder, settings, text, text_path, options or {})
            run._made = made
            run._write_about()
        except BaseException:
            _remove(made)
            raise
        return run

    @staticmethod
    def about(folder: Path) -> dict[str, Any]:
        """The contents of run.json."""
        try:
            found = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError) as error:
            expected = f"a folder with {_ABOUT}"
            raise OptionError(refusal("train", "run", expected, str(folder))) from error
        except ValueError as error:
            raise _no_run(folder, "something else") from error
        if not isinstance(found, dict) or not _KEYS.issubset(found):
            raise _no_run(folder, "that of another program or version")
        return found

    @staticmethod
    def resume(folder: Path, text: str, total: int | None = None) -> Run:
        """The run in a folder, at its last checkpoint; ``total`` sets a new last step.

        The text must be the same. A run killed before its first checkpoint starts again.
        """
        about = Run.about(folder)
        if _hash(text) != about["sha256"]:
            expected = f"the text that the run began with ({about['characters']:,} characters)"
            got = f"another one ({len(text):,} characters)"
            raise OptionError(refusal("train", "text", expected, got))
        settings = _settings(folder, about)
        settings = settings if total is None else replace(settings, total=total)
        run = Run(folder, settings, text, about["text"], about["options"])
        if (folder / _CHECKPOINT).exists():
            run.model.graph.set_variables(Graph.load(folder / _CHECKPOINT).variables())
        run.history = [
            (step, bits, valid) for step, bits, valid in about["history"] if step <= run.step
        ]
        if settings.total < run.step:
            expected = f"at least the {run.step} that are done"
            raise SettingError("total", expected, str(settings.total))
        return run

    def save(self) -> None:
        """Write run.json, then the checkpoint; each file appears whole or not at all.

        If the process is killed in between, the older checkpoint still matches the newer
        run.json, whose history is cut to the checkpoint's step.
        """
        self._write_about()
        self.model.graph.save(self.folder / _CHECKPOINT)

    def discard(self) -> bool:
        """Remove a run that has no checkpoint yet; returns whether it did."""
        if (self.folder / _CHECKPOINT).exists():
            return False
        (self.folder / _ABOUT).unlink(missing_ok=True)
        _remove(self._made)
        return True

    def _write_about(self) -> None:
        about = {
            "settings": self.settings.as_dict(),
            "options": self.options,
            "alphabet": self.corpus.alphabet,
            "prompt": self.corpus.prompt,
            "characters": len(self.corpus.train) + len(self.corpus.valid),
            "sha256": self._text_hash,
            "text": self.text_path,
            "history": self.history,
        }
        with replacing(self.folder / _ABOUT) as file:
            file.write(json.dumps(about).encode())

    def train(self, every: int) -> Iterator[Progress]:
        """Train to the end, one step per item; validate and save every so many steps."""
        s = self.settings
        done = self.step
        while done < s.total:
            began = time.perf_counter()
            tokens, targets = self.windows[done]
            keep = np.float32(0 if done % self.windows.count == 0 else 1)
            rate = np.float32(s.rate(done))
            loss, _ = self._train.run([tokens, targets, np.asarray(keep), np.asarray(rate)])
            done += 1
            bits = float(loss) / LN2
            if not math.isfinite(bits):
                expected = "a finite loss; try a smaller learning rate"
                raise OptionError(refusal("train", f"step {done}", expected, str(bits)))
            seconds = time.perf_counter() - began
            valid = None
            if done % every == 0 or done == s.total:
                valid = self.validate()
            self.history.append((done, bits, valid))
            if valid is not None:
                self.save()
            yield Progress(done, bits, tokens.size, seconds, valid)

    def validate(self) -> float:
        """Bits per character over the validation text, with the state carried through it."""
        total = 0.0
        for k in range(self.valid_windows.count):
            tokens, targets = self.valid_windows[k]
            (loss,) = self._valid.run([tokens, targets, np.asarray(np.float32(k > 0))])
            total += float(loss)
        return total / self.valid_windows.count / LN2

    def sample(
        self,
        length: int,
        prompt: str,
        temperature: float,
        seed: int,
        show: Callable[[str], None] | None = None,
    ) -> str:
        """The prompt, continued by so many characters."""
        return self._sampler.write(length, prompt, temperature, seed, show)


_KEYS = {"settings", "options", "alphabet", "prompt", "characters", "sha256", "text", "history"}


def load_sampler(folder: Path) -> tuple[Sampler, str]:
    """The model of a run and its prompt; does not need the text."""
    about = Run.about(folder)
    alphabet = Alphabet(about["alphabet"])
    if not (folder / _CHECKPOINT).exists():
        raise OptionError(refusal("sample", str(folder), "a run with a checkpoint", "none yet"))
    sampler = Sampler(Model(_settings(folder, about), len(alphabet.alphabet)), alphabet)
    graph, saved = sampler.model.graph, Graph.load(folder / _CHECKPOINT).variables()
    graph.set_variables({name: saved[name] for name in graph.variables() if name in saved})
    return sampler, about["prompt"]


def free_folder(first: Path) -> Path:
    """``first``, or the first of first-2, first-3, … that does not exist."""
    folder, number = first, 1
    while folder.exists():
        number += 1
        folder = first.with_name(f"{first.name}-{number}")
    return folder


def last_folder(root: Path) -> Path:
    """The folder in ``root`` whose run was saved last."""
    found = {path.parent: path.stat().st_mtime_ns for path in root.glob(f"*/{_ABOUT}")}
    if not found:
        expected = f"a run in {root.name}/ (or the folder of one, with --run)"
        raise OptionError(refusal("train", "--resume", expected, "none"))
    return max(found, key=lambda folder: found[folder])


def fitted(settings: Settings, characters: int, typed: set[str], label: str) -> Settings:
    """The settings, with fewer streams or shorter windows if the text is too short for them.

    Settings that were ``typed`` do not change; if they do not fit, the text is refused.
    """
    room = split(characters) - 1
    if "batch" not in typed:
        settings = replace(settings, batch=max(min(settings.batch, room // settings.window), 1))
    if "window" not in typed:
        settings = replace(settings, window=max(min(settings.window, room // settings.batch), 1))
    if settings.batch * settings.window > room:
        needed = characters_for(settings.window, settings.batch)
        sizes = " and ".join(f"--{name} {getattr(settings, name)}" for name in sorted(typed))
        expected = f"at least {needed:,} characters for {sizes}"
        raise OptionError(refusal("train", label, expected, f"{characters:,}"))
    return settings


def _settings(folder: Path, about: Mapping[str, Any]) -> Settings:
    try:
        return Settings(**about["settings"])
    except (TypeError, ValueError) as error:
        raise _no_run(folder, f"wrong settings: {error}") from error


def _no_run(folder: Path, got: str) -> GraphError:
    return GraphError(refusal("train", str(folder / _ABOUT), "a run of `zstate train`", got))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _remove(folders: list[Path]) -> None:
    """Remove the folders that are empty, innermost first."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()
