"""Train a character language model through the graph, its gradients and the compiled program."""

from __future__ import annotations

import argparse
import importlib.util
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from ..errors import OptionError
from . import at_least_zero

_HELP = {
    "cell": "of the recurrent layers",
    "layers": "recurrent layers",
    "hidden": "hidden units of a layer",
    "embedding": "size of a character's embedding",
    "window": "steps of truncated back-propagation",
    "batch": "streams of text side by side",
    "dropout": "recurrent dropout: of h[t-1], one mask a window",
    "learning_rate": "of Adam, at its highest",
    "clip": "global norm of the gradients",
    "total": "steps of training",
    "seed": "of the weights, of dropout and of the sample",
}
_PROMPT = "The "
_SENTENCE = "The value of the expression is evaluated before the function is called."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The text, the folder, and a flag for every setting."""
    from ..train.model import CELLS, Settings

    parser.add_argument(
        "text", nargs="?", help="a text file (default: Python's own language reference)"
    )
    parser.add_argument("--run", default=None, help="folder of the run (default: runs/CELL)")
    parser.add_argument("--resume", action="store_true", help="continue the run of the folder")
    parser.add_argument(
        "--checkpoint-every",
        type=int,
        default=100,
        metavar="STEPS",
        help="validate and save after so many (default: %(default)s)",
    )
    parser.add_argument(
        "--temperature",
        type=at_least_zero(float),
        default=0.7,
        metavar="X",
        help="of the sample; 0: always the likeliest (default: %(default)s)",
    )
    for field in fields(Settings):
        names = [f"--{field.name.replace('_', '-')}"]
        if field.name == "total":
            names.insert(0, "--steps")  # what everybody tries first
        kind = type(field.default)
        parser.add_argument(
            *names,
            dest=field.name,
            type=kind,
            default=None,
            choices=CELLS if field.name == "cell" else None,
            metavar={int: "N", float: "X"}.get(kind),
            help=f"{_HELP[field.name]} (default: {field.default})",
        )


def run(options: argparse.Namespace) -> int:
    """Returns 0, or 130 after Ctrl-C with the run saved."""
    for package in ("matplotlib", "safetensors"):
        if importlib.util.find_spec(package) is None:
            raise ImportError(f"zstate train needs {package}: pip install 'zstate[train]'")
    from ..train import plots
    from ..train.data import read_text
    from ..train.loop import Run
    from ..train.model import Settings

    console = Console()
    given = {f.name: getattr(options, f.name) for f in fields(Settings)}
    given = {name: value for name, value in given.items() if value is not None}
    folder = Path(options.run or f"runs/{given.get('cell', Settings.cell)}")
    every = max(options.checkpoint_every, 1)
    if options.resume:
        if given:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise OptionError(f"--resume keeps the run's settings: leave out {names}")
        about = Run.about(folder)
        current = Run.resume(folder, read_text(options.text or about["text"]))
        state = "goes on" if current.step < current.settings.total else "is finished"
        console.print(f"{escape(str(folder))} {state} at step {current.step}")
    else:
        current = Run.create(folder, Settings(**given), read_text(options.text), options.text)
    s = current.settings
    weights = sum(v.size for n, v in current.model.graph.variables().items() if _is_weight(n))
    console.print(
        f"{s.layers} × {s.cell} of {s.hidden}, {weights:,} weights, "
        f"{len(current.corpus.train):,} characters of {len(current.corpus.alphabet)} kinds"
    )
    try:
        if current.step < s.total:
            _loop(current, every, console)
    except KeyboardInterrupt:
        current.save()
        console.print(f"stopped and saved at step {current.step}; to go on:")
        console.print(f"  zstate train --resume --run {escape(str(folder))}")
        return 130
    bits = current.history[-1][2]
    sentence = "".join(c for c in _SENTENCE if c in current.corpus.alphabet)
    sentence = sentence if len(sentence) > 20 else current.corpus.decode(current.corpus.valid[:70])
    prompt = _PROMPT if set(_PROMPT) <= set(current.corpus.alphabet) else ""
    sample = current.sample(500, prompt, options.temperature, s.seed)
    (folder / "sample.txt").write_text(sample, encoding="utf-8")
    console.rule("sample")
    console.print(escape(sample), highlight=False)
    console.rule()
    console.print(f"validation: [bold]{bits:.3f} bits per character[/bold]")
    for path in plots.draw_all(current, sentence):
        console.print(f"  {escape(str(path))}")
    console.print(f"more of it: zstate sample {escape(str(folder))} --prompt 'The '")
    return 0


def _is_weight(name: str) -> bool:
    return name.startswith(("embedding", "layer", "projection"))


@contextmanager
def _noted_interrupts() -> Iterator[threading.Event]:
    """Ctrl-C lets the step finish, so that what is saved is the state of one step; a second one
    stops at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.getsignal(signal.SIGINT)

    def note(*_: object) -> None:
        asked.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def _loop(current: object, every: int, console: Console) -> None:
    from ..train.loop import Run

    assert isinstance(current, Run)
    columns = (
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[bits]:.3f} bits/char"),
        TextColumn("valid {task.fields[valid]}"),
        TextColumn("{task.fields[speed]:,.0f} chars/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress, _noted_interrupts() as asked:
        task = progress.add_task(
            "", total=current.settings.total, completed=current.step, bits=0.0, valid="–", speed=0.0
        )
        smooth = speed = 0.0
        for point in current.train(every):
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
            if asked.is_set():
                raise KeyboardInterrupt
