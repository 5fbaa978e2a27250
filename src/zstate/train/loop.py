"""A training run: its folder, steps, checkpoints and results."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import OptionError, refusal
from ..graph import Executable, Graph
from ..graph.on_device import DeviceExecutable
from ..graph.storage import replacing
from ..types import Array
from . import memory
from .about import ABOUT, PICTURES, SAMPLE, no_run, read_about
from .data import Alphabet, Corpus, Windows, characters_for, check_text, split
from .losses import LN2, Losses, Step
from .model import Model, SettingError, Settings
from .processes import Processes

_VALID_STEPS, _VALID_BATCH = 128, 16
_CHECKPOINT = "checkpoint.safetensors"
_STEPS_TO_AGREE = 16  # several processes check this often whether to stop


class Progress(NamedTuple):
    """Where training stands after a step; bits are bits per character, of this step's window."""

    step: int
    bits: float
    characters: int  # of this step
    seconds: float
    valid_bits: float | None


class Run:
    """One training run in one folder: run.json holds the settings, the alphabet, the losses and
    the command line options, checkpoint.safetensors every variable of the graph. All else follows
    from them."""

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        text: str,
        text_path: str | None,
        options: Mapping[str, Any],
        device: str | None = None,
        processes: Processes | None = None,
    ) -> None:
        check_text(text, "text")
        self.folder, self.settings, self.corpus = folder, settings, Corpus(text)
        self.text_path, self.options = text_path, dict(options)
        self._text_hash = _hash(text)
        memory.check(settings, len(self.corpus.alphabet), device)
        corpus = self.corpus
        self.windows = Windows(corpus.train, settings.window, settings.batch)
        self._processes = processes
        self._share = None if processes is None else processes.share(settings.batch)
        self.model = Model(settings, len(corpus.alphabet), device, self._share)
        self._train = self.model.training_program()
        rows = min(_VALID_STEPS, max((len(corpus.valid) - 1) // _VALID_BATCH, 1))
        batch = min(_VALID_BATCH, (len(corpus.valid) - 1) // rows)
        self.valid_windows = Windows(corpus.valid, rows, batch)
        self._valid = self.model.validation_program(rows, batch)
        self.sample = Sampler(self.model, corpus).write
        self.history: list[tuple[int, float, float | None]] = []  # step, bits, validation bits
        self.gradient_norms: list[float | None] = []  # of these steps, before clipping
        self._losses = Losses()
        self._saved: Mapping[str, Array] | None = None  # what it was resumed from

    @property
    def program(self) -> Executable:
        """One step of training, which takes :meth:`feeds`."""
        return self._train

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
        device: str | None = None,
        processes: Processes | None = None,
    ) -> Run:
        """A new run in a folder without one; ``options`` are kept for :meth:`resume`.

        ``device``: where it trains, as :meth:`zstate.Graph.compile` takes it.
        """
        for name in (ABOUT, SAMPLE, *PICTURES):
            if (folder / name).exists():
                expected = "a folder without a run (or --resume)"
                raise OptionError(refusal("train", "folder", expected, f"{folder} with {name}"))
        run = Run(folder, settings, text, text_path, options or {}, device, processes)
        folder.mkdir(parents=True, exist_ok=True)
        run._write_about()
        return run

    @staticmethod
    def resume(
        folder: Path,
        text: str,
        total: int | None = None,
        device: str | None = None,
        processes: Processes | None = None,
    ) -> Run:
        """The run in a folder, at its last checkpoint; ``total`` sets a new last step.

        The text must be the same. A run killed before its first checkpoint starts again.
        """
        about = read_about(folder)
        if _hash(text) != about["sha256"]:
            expected = f"the text that the run began with ({about['characters']:,} characters)"
            got = f"a different text ({len(text):,} characters)"
            raise OptionError(refusal("train", "text", expected, got))
        settings = about["settings"]
        settings = settings if total is None else replace(settings, total=total)
        run = Run(folder, settings, text, about["text"], about["options"], device, processes)
        if (folder / _CHECKPOINT).exists():
            run._restore(Graph.load(folder / _CHECKPOINT).variables())
        done = float(run._train.variables["step"])
        if done not in range(len(about["history"]) + 1):
            raise no_run(folder, f"{_CHECKPOINT} of step {done:g}, which is not in the history")
        run.history = [tuple(line) for line in about["history"][: int(done)]]
        run.gradient_norms = about["gradient_norms"][: int(done)]
        if settings.total < run.step:
            expected = f"at least {run.step}, the steps already done"
            raise SettingError("total", expected, str(settings.total))
        return run

    def _restore(self, saved: Mapping[str, Array]) -> None:
        """Go on from saved variables: of the carried states, those of this process's streams."""
        self._saved, graph = saved, self.model.graph
        values = dict(saved)
        for name in self._carried() if self._share else ():
            if name in values and len(values[name]) == self.settings.batch:
                values[name] = values[name][self._share]
        _restore(graph, values, self.folder, graph.variables())

    def _carried(self) -> list[str]:
        """The names of the states that training carries, a row per stream."""
        s = self.settings
        return [f"train{k}.{each.name}" for k in range(s.layers) for each in s.definition.states]

    def for_others(self) -> dict[str, Any]:
        """What the other processes need to know before the run begins."""
        corpus = self.corpus
        return {
            "settings": self.settings,
            "text": corpus.decode(np.concatenate([corpus.train, corpus.valid])),
            "options": self.options,
            "saved": self._saved,
            "history": self.history,
            "norms": self.gradient_norms,
        }

    @staticmethod
    def beside(known: Mapping[str, Any], device: str | None, processes: Processes) -> Run:
        """The run in a process that is not the first, from what :meth:`for_others` gave there."""
        text, options = known["text"], known["options"]
        run = Run(Path(), known["settings"], text, None, options, device, processes)
        if known["saved"] is not None:
            run._restore(known["saved"])
        run.history, run.gradient_norms = known["history"], known["norms"]
        return run

    def save(self) -> None:
        """Write run.json, then the checkpoint; each file appears whole or not at all.

        If the process is killed in between, the older checkpoint still matches the newer
        run.json, whose history is cut to the checkpoint's step. Weights that are not finite are
        refused, so the older checkpoint stays.
        """
        self._note(self._losses.read(every=True))
        graph = self.model.graph
        weights = graph.variables()
        for name in (tensor.name for tensor in self.model.parameters):
            if not np.isfinite(weights[name]).all():
                raise _diverged(self.step, "finite weights", f"nan or inf in {name}")
        if self._processes is not None:
            values = graph.variables()
            values |= self._processes.joined({name: values[name] for name in self._carried()})
            if not self._processes.is_first:
                return
            graph = self._whole(values)
        self._write_about()
        graph.save(self.folder / _CHECKPOINT)

    def _whole(self, values: Mapping[str, Array]) -> Graph:
        """The graph of one process that trains all streams, so that any number can go on."""
        model = Model(self.settings, len(self.corpus.alphabet))
        model.training_program()
        rows, batch = self.valid_windows[0][0].shape
        model.validation_program(rows, batch)
        model.sampling_program()
        model.graph.set_variables(values)
        return model.graph

    def discard(self) -> bool:
        """Remove a run that has no checkpoint yet; returns whether it did."""
        if (self.folder / _CHECKPOINT).exists():
            return False
        (self.folder / ABOUT).unlink(missing_ok=True)
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
            "gradient_norms": self.gradient_norms,
        }
        with replacing(self.folder / ABOUT) as file:
            file.write(json.dumps(about).encode())

    def train(self, every: int, stops: Callable[[], bool] | None = None) -> Iterator[Progress]:
        """Train to the end, one step per item; validate and save every ``every`` steps.

        On a device, items come once their losses are read, some steps later. Several processes
        all stop after the same step, soon after ``stops`` holds in one of them.
        """
        s = self.settings
        done = self.step
        began = time.perf_counter()
        while done < s.total:
            # In float16 gradients may overflow: the program leaves that step out.
            with np.errstate(over="ignore", invalid="ignore"):
                loss, norm = self._train.run(self.feeds(done))
            self._losses.add(done + 1, loss, norm)
            done += 1
            is_last = done % every == 0 or done == s.total
            is_stopped = self._agreed(done, stops)
            steps = self._losses.read(every=is_last or is_stopped)
            if not steps:
                continue
            self._note(steps)
            seconds = (time.perf_counter() - began) / len(steps)
            valid = None
            if is_last:
                valid = self.validate()
                self.history[-1] = (*self.history[-1][:2], valid)
                self.save()
            for step in steps:
                bits = valid if step.number == done else None
                yield Progress(step.number, step.bits, s.window * s.batch, seconds, bits)
            if is_stopped:
                return
            began = time.perf_counter()

    def _agreed(self, done: int, stops: Callable[[], bool] | None) -> bool:
        """Whether all processes stop after this step."""
        if self._processes is None or stops is None or done % _STEPS_TO_AGREE:
            return False
        return self._processes.any(stops())

    @property
    def stops_alone(self) -> bool:
        """Whether no other process has to stop after the same step."""
        return self._processes is None

    def feeds(self, step: int) -> list[Any]:
        """What the training program takes for a step."""
        tokens, targets = self.windows[step]
        if self._share is not None:
            tokens, targets = (np.ascontiguousarray(a[:, self._share]) for a in (tokens, targets))
        keep = np.float32(0 if step % self.windows.count == 0 else 1)
        rate = np.float32(self.settings.rate(step))
        return self._fed(tokens, targets, np.asarray(keep), np.asarray(rate))

    def _fed(self, *arrays: Array) -> list[Any]:
        """Arrays; on a device tensors, so that results are tensors too and nothing waits."""
        if not isinstance(self._train, DeviceExecutable):
            return list(arrays)
        torch = import_module("torch")
        return [torch.from_numpy(array) for array in arrays]

    def _note(self, steps: Iterable[Step]) -> None:
        """Put steps into the history; refuses a loss that is not finite."""
        for step in steps:
            if not math.isfinite(step.bits):
                raise _diverged(step.number, "a finite loss", str(step.bits))
            self.history.append((step.number, step.bits, None))
            self.gradient_norms.append(step.norm if math.isfinite(step.norm) else None)

    def validate(self) -> float:
        """Bits per character over the validation text, with the state carried through it; refuses
        a loss that is not finite."""
        losses = []
        with np.errstate(over="ignore", invalid="ignore"):
            for k in range(self.valid_windows.count):
                keep = np.asarray(np.float32(k > 0))
                (loss,) = self._valid.run(self._fed(*self.valid_windows[k], keep))
                losses.append(loss)
        bits = sum(map(float, losses)) / self.valid_windows.count / LN2
        if not math.isfinite(bits):
            raise _diverged(self.step, "a finite loss of the validation text", str(bits))
        return bits


class Sampler:
    """Draws characters from a model; the state is carried from one to the next."""

    def __init__(self, model: Model, alphabet: Alphabet) -> None:
        self.model, self.alphabet = model, alphabet
        self._program = model.sampling_program()

    def write(
        self,
        length: int,
        prompt: str,
        temperature: float,
        seed: int,
        show: Callable[[str], None] | None = None,
    ) -> str:
        """The prompt and ``length`` more characters; no prompt means the start of a line."""
        characters = self.alphabet.alphabet
        start = "\n" if "\n" in characters else characters[0]
        ids = list(self.alphabet.encode(prompt or start))
        rng = np.random.default_rng(seed)
        written: list[str] = []
        for k in range(len(ids) + length - 1):
            token = np.array([[ids[k]]], np.int32)
            (logits,) = self._program.run([token, np.asarray(np.float32(k > 0))])
            if k >= len(ids) - 1:
                ids.append(_draw(logits[0], temperature, rng))
                written.append(characters[ids[-1]])
                if show is not None:
                    show(written[-1])
        return prompt + "".join(written)


def _draw(logits: Array, temperature: float, rng: np.random.Generator) -> int:
    if not np.isfinite(logits).all():
        expected = "a model whose outputs are finite"
        raise OptionError(
            refusal("sample", "model", expected, str(logits[~np.isfinite(logits)][0]))
        )
    if temperature <= 0:
        return int(logits.argmax())
    with np.errstate(over="ignore"):  # near 0: the likeliest
        scaled = (logits.astype(np.float64) - logits.max()) / temperature
    weights = np.exp(scaled)
    return int(rng.choice(len(weights), p=weights / weights.sum()))


def load_model(folder: Path, device: str | None = None) -> tuple[Model, Alphabet, str]:
    """The model of a run, its alphabet and its prompt; does not need the text."""
    about = read_about(folder)
    alphabet, settings = Alphabet(about["alphabet"]), about["settings"]
    saved = Graph.load(checkpoint_of(folder)).variables()
    # Of these sizes, before a model of any size is made; the other shapes follow from them.
    sizes = {
        "embedding": (len(alphabet.alphabet), settings.embedding),
        "projection": (settings.hidden, len(alphabet.alphabet)),
        f"layer{settings.layers - 1}.bias": (len(settings.definition.gates) * settings.hidden,),
    }
    wrong = [name for name, size in sizes.items() if name not in saved or saved[name].shape != size]
    wrong += [name for name in saved if name == f"layer{settings.layers}.bias"]
    if wrong:
        raise no_run(folder, f"settings that do not match {_CHECKPOINT}: {wrong[0]}")
    model = Model(settings, len(alphabet.alphabet), device)
    _restore(model.graph, saved, folder, [tensor.name for tensor in model.parameters])
    return model, alphabet, about["prompt"]


def programs_of(folder: Path) -> dict[str, Executable]:
    """The programs of a run by their names: training, validation and sampling."""
    model, _, _ = load_model(folder)
    memory.check(model.settings, model.characters)
    saved = Graph.load(checkpoint_of(folder))
    shapes = [node.results[0].shape for node in saved.nodes if node.name == "valid.tokens"]
    steps, batch = shapes[0] if len(shapes) == 1 and len(shapes[0]) == 2 else (0, 0)
    if not 0 < (steps or 0) <= _VALID_STEPS or not 0 < (batch or 0) <= _VALID_BATCH:
        raise no_run(folder, f"{_CHECKPOINT} without the tokens of a validation")
    return {
        "training": model.training_program(),
        "validation": model.validation_program(steps or 0, batch or 0),
        "sampling": model.sampling_program(),
    }


def checkpoint_of(folder: Path) -> Path:
    """The file with the graph and the variables of a run."""
    read_about(folder)
    path = folder / _CHECKPOINT
    if not path.exists():
        raise OptionError(refusal("run", str(folder), "a run with a checkpoint", "none yet"))
    return path


def _restore(graph: Graph, saved: Mapping[str, Array], folder: Path, names: Iterable[str]) -> None:
    """Give the variables of these names their saved values."""
    missing = [name for name in names if name not in saved]
    if missing:
        raise no_run(folder, f"{_CHECKPOINT} without {missing[0]}")
    graph.set_variables({name: saved[name] for name in names})


def free_folder(first: Path) -> Path:
    """``first``, or the first of first-2, first-3, … that does not exist."""
    folder, number = first, 1
    while os.path.lexists(folder):
        number += 1
        folder = first.with_name(f"{first.name}-{number}")
    return folder


def last_folder(root: Path) -> Path:
    """The folder in ``root`` whose run was saved last."""
    found = {path.parent: path.stat().st_mtime_ns for path in root.glob(f"*/{ABOUT}")}
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


def _diverged(step: int, expected: str, got: str) -> OptionError:
    return OptionError(
        refusal("train", f"step {step}", f"{expected}; try a smaller learning rate", got)
    )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
