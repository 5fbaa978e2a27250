"""Train a character language model. The model, its gradients and Adam are one compiled graph.

One process at a time trains in a run folder; others can sample from it meanwhile.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import OptionError, refusal
from . import SIGNALS, Stopped, exit_status
from .arguments import add_device, add_number, device_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn

    from ..train.loop import Run
    from ..train.model import Settings
    from ..train.processes import Processes

_HELP = {
    "cell": "cell of the recurrent layers",
    "layers": "number of recurrent layers",
    "hidden": "hidden units per layer",
    "embedding": "size of a character's embedding",
    "window": "steps of truncated back-propagation",
    "batch": "streams of text side by side",
    "dropout": "recurrent dropout of h[t-1], one mask per window",
    "learning_rate": "peak learning rate for Adam",
    "clip": "maximum global norm of the gradients",
    "total": "training steps; with --resume, the new last step",
    "seed": "random seed for the weights, dropout and the sample",
    "type": "type of the recurrent layers; weights and loss stay float32",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The text, the folder, and an option for every setting."""
    from ..train.about import USUAL_OPTIONS
    from ..train.model import DESCRIPTORS, TYPES, Settings

    add, choices = parser.add_argument, {"cell": list(DESCRIPTORS), "type": list(TYPES)}
    text = "a text file to train on (default: Python's own language reference)"
    add("text", nargs="?", help=text)
    add("--encoding", help=f"encoding of the text file (default: {USUAL_OPTIONS['encoding']})")
    folder = "run folder (default: runs/CELL, then runs/CELL-2 and so on)"
    add("--run", metavar="FOLDER", help=folder)
    resume = "continue the run in the --run folder, or the last run in runs/"
    add("--resume", action="store_true", help=resume)
    every = f"validate and save every N steps (default: {USUAL_OPTIONS['checkpoint_every']})"
    add_number(parser, "--checkpoint-every", every)
    temperature = (
        "sampling temperature; 0 always picks the most likely character (default: "
        f"{USUAL_OPTIONS['temperature']})"
    )
    add_number(parser, "--temperature", temperature, kind=float)
    add_device(parser, "train")
    for field in fields(Settings):
        names = [f"--{field.name.replace('_', '-')}"]
        if field.name == "total":
            names.insert(0, "--steps")  # what everybody tries first
        kind = type(field.default)
        add(
            *names,
            dest=field.name,
            type=kind,
            default=None,
            choices=choices.get(field.name),
            metavar={int: "N", float: "X"}.get(kind),
            help=f"{_HELP[field.name]} (default: {field.default})",
        )


def run(options: argparse.Namespace) -> int:
    """Returns 0, or 128 plus the number of the signal that stopped the run."""
    for package in ("matplotlib", "safetensors"):
        if importlib.util.find_spec(package) is None:
            raise ImportError(f"zstate train needs {package}: pip install 'zstate[train]'")
    from rich.console import Console

    from ..train.processes import joined

    processes = joined(uses_gpus=options.device not in (None, "cpu"))
    is_first = processes is None or processes.is_first
    console = Console(highlight=False, markup=False, soft_wrap=True, quiet=not is_first)
    begin = _resumed if options.resume else _created
    with ExitStack() as held:  # the run folder, until its last file is written
        if processes is None:
            return _trained(begin(options, console, held, None), console)
        status = _trained(_together(begin, options, console, held, processes), console)
    processes.leave()
    # gloo's threads outlive the group, and may abort a process that ends as usual.
    sys.stdout.flush()
    os._exit(status)


def _together(
    begin: Callable[..., Run],
    options: argparse.Namespace,
    console: Console,
    held: ExitStack,
    processes: Processes,
) -> Run:
    """The run in one of several processes; the first has the folder."""
    from ..train.loop import Run

    mine: list[Run] = []

    def begun() -> dict[str, Any]:
        mine.append(begin(options, console, held, processes))
        return mine[0].for_others()

    known = processes.from_first(begun)
    if mine:
        return mine[0]
    return Run.beside(known, device_of("train", known["options"]["device"]), processes)


def _trained(current: Run, console: Console) -> int:
    s, folder = current.settings, current.folder
    weights = sum(v.size for n, v in current.model.graph.variables().items() if _is_weight(n))
    console.print(
        f"{s.layers} × {s.cell} of {s.hidden}, {weights:,} weights, "
        f"{len(current.corpus.train):,} characters of {len(current.corpus.alphabet)} kinds"
    )
    try:
        if current.step < s.total:
            _loop(current, console)
    except _AfterAStep as stopped:
        current.save()
        console.print(f"stopped and saved at step {current.step}; to continue:")
        console.print(f"  zstate train --resume --run {shlex.quote(str(folder))}")
        return exit_status(stopped)
    except BaseException:  # in the middle of a step: keep the last checkpoint
        if not console.quiet:
            current.discard()
        raise
    if current.history[-1][2] is None:  # stopped, then resumed with that step as the last
        current.history[-1] = (*current.history[-1][:2], current.validate())
        current.save()
    return 0 if console.quiet else _finish(current, console)


def _created(
    options: argparse.Namespace, console: Console, held: ExitStack, processes: Processes | None
) -> Run:
    """A new run; the text and the settings are checked before the folder is created."""
    from ..train.about import USUAL_OPTIONS
    from ..train.data import default_text, read_text
    from ..train.loop import Run, fitted

    wanted = _settings(options)
    kept = _kept(options, USUAL_OPTIONS)
    device = device_of("train", kept["device"])
    if options.text is None and options.encoding is not None:
        raise OptionError(refusal("train", "--encoding", "a text file", "none"))
    text = default_text() if options.text is None else read_text(options.text, kept["encoding"])
    label = "text" if options.text is None else repr(options.text)
    settings = fitted(wanted, len(text), {"batch", "window"} & options.typed.keys(), label)
    if settings != wanted:
        console.print(
            f"the text is short, so using --batch {settings.batch} --window {settings.window} "
            f"instead of --batch {wanted.batch} --window {wanted.window}"
        )
    path = None if options.text is None else str(Path(options.text).resolve())
    first = Path(options.run or f"runs/{settings.cell}")
    folder = _claim(first, bool(options.run), held)
    current = Run.create(folder, settings, text, path, kept, device, processes)
    taken = f" ({first} is taken)" if folder != first else ""
    console.print(f"run folder: {folder}{taken}")
    return current


def _claim(first: Path, is_chosen: bool, held: ExitStack) -> Path:
    """The folder chosen, or the first free one of runs/CELL, runs/CELL-2, …: held from here on."""
    from ..train.locking import FolderHeldError, claimed
    from ..train.loop import free_folder

    while True:
        folder = first if is_chosen else free_folder(first)
        try:
            held.enter_context(claimed(folder))
            return folder
        except FolderHeldError:
            if is_chosen:
                raise


def _resumed(
    options: argparse.Namespace, console: Console, held: ExitStack, processes: Processes | None
) -> Run:
    """The run in a folder, or the last run, with the settings it began with."""
    from ..train.about import read_about
    from ..train.data import read_text
    from ..train.locking import claimed
    from ..train.loop import Run, last_folder

    chosen = _chosen_settings(options).items()
    fixed = [typed for name, typed in chosen if name != "total"]
    if fixed:
        names = ", ".join(fixed)
        raise OptionError(f"[train] --resume keeps the run's settings: omit {names}")
    folder = Path(options.run) if options.run else last_folder(Path("runs"))
    read_about(folder)  # refused before anything is made
    held.enter_context(claimed(folder))
    about = read_about(folder)
    kept = _kept(options, about["options"])
    text = read_text(options.text or about["text"], kept["encoding"])
    with _named_as_typed(options):
        device = device_of("train", kept["device"])
        current = Run.resume(folder, text, options.total, device, processes)
    current.options = kept
    if options.text is not None:
        current.text_path = str(Path(options.text).resolve())
    state = "continues" if current.step < current.settings.total else "is finished"
    console.print(f"{folder} {state} at step {current.step}")
    return current


def _kept(options: argparse.Namespace, before: dict[str, Any]) -> dict[str, Any]:
    """The options that the run keeps: those given now, else those before."""
    from ..train.about import OPTIONS

    given = {name: value for name in before if (value := getattr(options, name)) is not None}
    for name, value in given.items():
        if not OPTIONS[name][1](value):  # run.json could not be read again
            raise OptionError(refusal("train", options.typed[name], "below 2**53", str(value)))
    return before | given


def _settings(options: argparse.Namespace) -> Settings:
    """The settings that were typed."""
    from ..train.model import Settings

    with _named_as_typed(options):
        return Settings(**{name: getattr(options, name) for name in _chosen_settings(options)})


def _chosen_settings(options: argparse.Namespace) -> dict[str, str]:
    """The settings among the options that were typed, and as what."""
    return {name: typed for name, typed in options.typed.items() if name in _HELP}


@contextmanager
def _named_as_typed(options: argparse.Namespace) -> Iterator[None]:
    from ..train.model import SettingError

    try:
        yield
    except SettingError as error:
        typed = options.typed[error.name]
        raise OptionError(refusal("train", typed, error.expected, error.got)) from None


def _finish(current: Run, console: Console) -> int:
    """The sample, the pictures, and what to do next."""
    from ..graph.storage import replacing
    from ..train import plots
    from ..train.about import SAMPLE

    bits = current.history[-1][2]
    folder, prompt = current.folder, current.corpus.prompt
    sample = current.sample(500, prompt, current.options["temperature"], current.settings.seed)
    with replacing(folder / SAMPLE) as file:
        file.write(sample.encode())
    pictures = plots.draw_all(current)
    console.rule("sample")
    console.print(sample)
    console.rule()
    console.print(f"validation: {bits:.3f} bits per character", style="bold")
    for path in pictures:
        console.print(f"  {path}")
    quoted = shlex.quote(prompt) if prompt.isprintable() else ""
    console.print(
        "to generate more: zstate sample "
        f"{shlex.quote(str(folder))}{quoted and f' --prompt {quoted}'}"
    )
    return 0


def _is_weight(name: str) -> bool:
    return name.startswith(("embedding", "layer", "projection"))


class _AfterAStep(Stopped):
    """A signal came during a step, which was then finished."""


@contextmanager
def _noted_signals() -> Iterator[list[int]]:
    """Let the current step finish after Ctrl-C or SIGTERM, so that the saved state is that of one
    step; a second signal stops at once. Signals ignored on entry, as under nohup, stay ignored."""
    came: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, *SIGNALS)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, _: object) -> None:
        came.append(number)
        restore()

    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, note)
    try:
        yield came
    finally:
        restore()


def _loop(current: Run, console: Console) -> None:
    from rich.progress import Progress

    columns = _columns(console.width)
    with Progress(*columns, console=console) as progress, _noted_signals() as came:
        task = progress.add_task(
            "", total=current.settings.total, completed=current.step, bits=0.0, valid="–", speed=0.0
        )
        smooth = speed = 0.0
        for point in current.train(current.options["checkpoint_every"], lambda: bool(came)):
            rate = point.characters / point.seconds
            smooth = point.bits if not smooth else 0.95 * smooth + 0.05 * point.bits
            speed = rate if not speed else 0.95 * speed + 0.05 * rate
            progress.update(task, completed=point.step, bits=smooth, speed=speed)
            if point.valid_bits is not None:
                progress.update(task, valid=f"{point.valid_bits:.3f}")
                if not console.is_terminal:
                    progress.console.print(
                        f"step {point.step}: {smooth:.3f} bits/char, "
                        f"valid {point.valid_bits:.3f}, {speed:,.0f} chars/s"
                    )
            if came and current.stops_alone:
                raise _AfterAStep(came[0])
        if current.step < current.settings.total:
            raise _AfterAStep(came[0] if came else signal.SIGTERM)


def _columns(width: int) -> list[ProgressColumn]:
    """The columns that fit on one line, the most important ones first."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.table import Column

    one = Column(no_wrap=True)
    wanted = [  # with their maximum width, including the space before
        (MofNCompleteColumn(table_column=one), 14),
        (TextColumn("{task.fields[bits]:.3f} bits/char", table_column=one), 17),
        (TimeRemainingColumn(compact=True, table_column=one), 8),
        (TextColumn("valid {task.fields[valid]}", table_column=one), 13),
        (TextColumn("{task.fields[speed]:,.0f} chars/s", table_column=one), 18),
    ]
    shown: list[ProgressColumn] = []
    for column, needed in wanted:
        if needed > width:
            break
        shown.append(column)
        width -= needed
    if width >= 6:
        shown.insert(0, BarColumn(bar_width=min(width - 1, 30)))
    return shown
