"""A run: its folder, its steps, its checkpoints, what it says at the end."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import GraphError, OptionError, refusal
from ..graph import Graph
from ..types import Array
from .data import Corpus, Windows
from .model import Model, Settings

LN2 = math.log(2)
_VALID_STEPS, _VALID_BATCH = 128, 16
_CHECKPOINT, _ABOUT = "checkpoint.safetensors", "run.json"


class Progress(NamedTuple):
    """Where training stands after a step; bits are bits a character, of this step's window."""

    step: int
    bits: float
    characters: int  # of this step
    seconds: float
    valid_bits: float | None


class Run:
    """One training run in one folder: the settings and the alphabet in run.json, every variable of
    the graph in checkpoint.safetensors. What is not in them follows from them."""

    def __init__(self, folder: Path, settings: Settings, corpus: Corpus, text_path: str | None):
        self.folder, self.settings, self.corpus = folder, settings, corpus
        self.text_path = text_path
        self.model = Model(settings, len(corpus.alphabet))
        self.windows = Windows(corpus.train, settings.window, settings.batch)
        self._train = self.model.training_program()
        rows = min(_VALID_STEPS, max((len(corpus.valid) - 1) // _VALID_BATCH, 1))
        batch = min(_VALID_BATCH, (len(corpus.valid) - 1) // rows)
        self.valid_windows = Windows(corpus.valid, rows, batch)
        self._valid = self.model.validation_program(rows, batch)
        self._sample = self.model.sampling_program()
        self.history: list[tuple[int, float, float | None]] = []  # step, bits, validation bits

    @property
    def step(self) -> int:
        """How many steps of training are done."""
        return int(self._train.variables["step"])

    @staticmethod
    def create(folder: Path, settings: Settings, text: str, text_path: str | None) -> Run:
        """A new run in a folder that holds none yet."""
        if (folder / _ABOUT).exists():
            expected = "a folder without a run (or --resume)"
            raise OptionError(refusal("train", "folder", expected, str(folder)))
        run = Run(folder, settings, Corpus(text), text_path)
        folder.mkdir(parents=True, exist_ok=True)
        return run

    @staticmethod
    def about(folder: Path) -> dict[str, Any]:
        """What run.json says."""
        try:
            found: dict[str, Any] = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            expected = f"a folder with {_ABOUT}"
            raise OptionError(refusal("train", "run", expected, str(folder))) from error
        except ValueError as error:
            expected = f"JSON in {_ABOUT}"
            raise GraphError(refusal("train", str(folder), expected, "something else")) from error
        return found

    @staticmethod
    def resume(folder: Path, text: str) -> Run:
        """The run of a folder, where its last checkpoint left it. The text must be the same."""
        about = Run.about(folder)
        corpus = Corpus(text)
        if corpus.alphabet != about["alphabet"] or len(text) != about["characters"]:
            expected = f"the text that the run began with ({about['characters']} characters)"
            raise OptionError(refusal("train", "text", expected, f"{len(text)} characters"))
        run = Run(folder, Settings(**about["settings"]), corpus, about["text"])
        run.model.graph.set_variables(Graph.load(folder / _CHECKPOINT).variables())
        run.history = [
            (step, bits, valid) for step, bits, valid in about["history"] if step <= run.step
        ]
        return run

    def save(self) -> None:
        """Write the checkpoint, then what is told about it; each file whole or not at all."""
        self.model.graph.save(self.folder / _CHECKPOINT)
        about = {
            "settings": self.settings.as_dict(),
            "alphabet": self.corpus.alphabet,
            "characters": len(self.corpus.train) + len(self.corpus.valid),
            "text": self.text_path,
            "step": self.step,
            "history": self.history,
        }
        temporary = self.folder / f".{_ABOUT}.new"
        temporary.write_text(json.dumps(about), encoding="utf-8")
        os.replace(temporary, self.folder / _ABOUT)

    def train(self, every: int) -> Iterator[Progress]:
        """Train to the end, one step an item, with a validation and a checkpoint after so many."""
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
        """Bits a character over the validation text, the state carried through it."""
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
        ids = list(self.corpus.encode(prompt or "\n"))
        rng = np.random.default_rng(seed)
        written: list[str] = []
        logits: Array = np.zeros((1, len(self.corpus.alphabet)), np.float32)
        for k in range(len(ids) + length - 1):
            token = np.array([[ids[k]]], np.int32)
            (logits,) = self._sample.run([token, np.asarray(np.float32(k > 0))])
            if k >= len(ids) - 1:
                ids.append(_draw(logits[0], temperature, rng))
                written.append(self.corpus.alphabet[ids[-1]])
                if show is not None:
                    show(written[-1])
        return prompt + "".join(written)


def _draw(logits: Array, temperature: float, rng: np.random.Generator) -> int:
    if temperature <= 0:
        return int(logits.argmax())
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    return int(rng.choice(len(weights), p=weights / weights.sum()))
