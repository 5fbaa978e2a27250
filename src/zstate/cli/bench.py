"""Time zstate against the installed peers, after checking that they all give the same results.

On the CPU, each contender runs alone for a block after a short pause, over several rounds; the best
median counts. Ratios carry over to other machines; times do not. --device cuda times the CUDA
engine against torch.nn, both called directly and replayed as CUDA graphs. --through jax times
zstate.jax against a plain scan, both jitted. --weights times layers packed by zs.prepare, and
--streaming times their single steps.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from ..backends import cuda
from ..backends.native import get_num_threads, set_num_threads
from ..bench import contenders, report
from ..bench.contenders import OWN_FLOAT, Case
from ..bench.contest import contest
from ..bench.report import Measured
from ..bench.rows import GPU_ROWS, ROWS, STREAMS, choose
from ..bench.timing import Protocol
from ..errors import BackendError, OptionError, refusal
from ..prepared.parts import WEIGHTS
from .arguments import add_number, check_writable, refuse_beside, refuse_without

if TYPE_CHECKING:
    from rich.console import Console

_MODES = {"inference": [False], "training": [True], "both": [False, True]}
_GPU_TYPES = ("bfloat16", "float32", "float16")
_WIDE = 160  # columns in a file or a pipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to run, and for how long."""
    add = parser.add_argument
    rows = "rows by name or glob, comma-separated: 'lstm 64x1x64', 'gru *x1x*', '*both ways'"
    add("--only", metavar="ROWS", help=rows)
    device = "the engine to time (default: cpu)"
    add("--device", choices=("cpu", "cuda"), default="cpu", help=device)
    types = (
        f"with --device cuda: comma-separated float types (default: {','.join(_GPU_TYPES)}; with "
        "--train float32)"
    )
    add("--types", help=types)
    add("--mode", choices=tuple(_MODES), default="both", help="what to time (default: both)")
    threads = "threads per contender (default: OMP_NUM_THREADS, or the number of cores)"
    add_number(parser, "--threads", threads)
    add("--peers", help="comma-separated names, or none (default: all that are installed)")
    through = (
        "time zstate's functions on NumPy arrays (torch tensors on a GPU), its modules on torch "
        "tensors, or its functions in jitted JAX programs"
    )
    add("--through", choices=("numpy", "torch", "jax"), default="numpy", help=through)
    add_number(parser, "--block", "seconds per block (default: 0.5; on a GPU 0.01)", kind=float)
    add_number(parser, "--rounds", "blocks per contender", 3)
    weights = (
        "time inference with layers that zs.prepare packed with these weights, against ONNX "
        "Runtime: its dynamic int8 LSTM for int8, otherwise float32"
    )
    add("--weights", choices=WEIGHTS, help=weights)
    streaming = (
        "time streams of prepared layers instead: µs per step, for single steps and chunks of 10, "
        "with every kind of weights or the kind in --weights"
    )
    add("--streaming", action="store_true", help=streaming)
    train = (
        "time training steps of three models of `zstate train` against torch.nn; --only takes "
        "names such as 'GRU*'"
    )
    add("--train", action="store_true", help=train)
    steps = "with --train: steps per model; the last losses are compared"
    add_number(parser, "--steps", steps, 200)
    add_number(parser, "--seed", "random seed for the inputs", 0, least=0)
    add("--json", type=Path, metavar="FILE", help="also write all measurements to a file")


def run(options: argparse.Namespace) -> int:
    """Print the tables; 1 if zstate gave a wrong result."""
    if options.train:
        return _train(options)
    if options.json:
        check_writable("bench", "--json", options.json)
    found = measured(options)
    if options.json:
        system = {"system": platform.platform(), "python": platform.python_version()}
        report.write_json(options.json, {"machine": system, "rows": report.as_rows(found)})
    return 1 if any("zstate" not in each.timings for each in found) else 0


def cases_of(options: argparse.Namespace) -> tuple[list[Case], list[str]]:
    """What to measure, and the peers."""
    way, device, modes, rows, types = options.through, options.device, options.mode, ROWS, None
    refuse_without("bench", "--train", options, ["steps"])
    if device == "cpu":
        refuse_without("bench", "--device cuda", options, ["types"])
    else:
        refuse_beside("bench", "--device cuda", options, threads=None)
    if options.weights or options.streaming:
        asked = "--streaming" if options.streaming else "--weights"
        usual = {"device": "cpu", "through": "numpy", "mode": "inference"}
        refuse_beside("bench", asked, options, **usual)
        way, modes = "streamed" if options.streaming else "prepared", "inference"
        rows = STREAMS if options.streaming else ROWS
        types = [options.weights] if options.weights else list(WEIGHTS)
    elif device == "cuda":
        rows, types = GPU_ROWS, _types(options)
    chosen = choose(rows, options.only)
    if way in ("torch", "jax") and importlib.util.find_spec(way) is None:
        raise OptionError(f"[bench] --through {way}: {way} is missing: pip install 'zstate[{way}]'")
    threads = options.threads or get_num_threads()
    cases = [
        Case(row, training, kind, way, device, threads)
        for kind in types or ["float32"]
        for row in chosen
        for training in _MODES[modes]
    ]
    return cases, contenders.chosen_peers(options.peers, cases[0].place)


def measured(options: argparse.Namespace) -> list[Measured]:
    """Everything, checked and timed; prints the tables."""
    from rich.progress import track

    cases, peers = cases_of(options)
    on_gpu, console, found = options.device == "cuda", _console(), []
    block = options.block if options.block is not None else 0.01 if on_gpu else 0.5
    protocol = Protocol(block, 0.0 if on_gpu else Protocol.pause, options.rounds)
    if not peers and options.peers is None:
        console.print(_no_peer(cases[0]), soft_wrap=True)
    with _device(console, options):
        for case in track(cases, console=console, transient=True):
            own = [OWN_FLOAT] if case.way == "prepared" and case.type != "float32" else []
            each = contest(case, ["zstate", *peers, *own], protocol, options.seed)
            found.append(each)
            for name in each.errors.keys() - {name.split()[0] for name in each.timings}:
                wrong = f"{name} is wrong by {each.errors[name]:.1e}, not timed"
                console.print(f"[bold red]{each.row.title}: {each.type} {wrong}[/]")
    for name, shown in report.kinds(found):
        console.print(report.table(name, shown, console.width, options.streaming))
    report.summary(console, found)
    return found


def _console() -> Console:
    """The terminal; wide in a file or a pipe."""
    from rich.console import Console

    is_read = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if is_read else _WIDE)


def _no_peer(case: Case) -> str:
    packages = {"cuda": ["torch"], "jax": ["jax"], "cpu": ["torch", "jax", "onnxruntime onnx"]}
    ways = ", or ".join(f"pip install {p}" for p in packages.get(case.place, ["onnxruntime onnx"]))
    return f"no peer is installed, so there are no ratios; to install one: {ways}"


@contextmanager
def _device(console: Console, options: argparse.Namespace) -> Iterator[None]:
    """On a GPU: check that there is one, and set TF32. On the CPU: set the threads."""
    if options.device == "cpu":
        set_num_threads(threads := options.threads or get_num_threads())
        console.print(f"threads: {threads}")
        yield
        return
    if options.through == "jax":
        from ..bench import jax_layers

        reason = jax_layers.gpu_unavailable()
    elif importlib.util.find_spec("torch") is None:
        reason = "torch is missing: pip install 'zstate[cuda]'"
    else:
        from ..bench import gpu  # imports torch, so that the engine finds it

        reason = cuda.unavailable()
    if reason is not None:
        raise BackendError(f"[bench] --device cuda: {reason}")
    console.print("float32 means TF32")
    with nullcontext() if options.through == "jax" else gpu.tf32():
        yield


def _types(options: argparse.Namespace) -> list[str]:
    types: list[str] = options.types.split(",") if options.types else list(_GPU_TYPES)
    for kind in types:
        if kind not in _GPU_TYPES:
            expected = f"some of {', '.join(_GPU_TYPES)}"
            raise OptionError(refusal("bench", "--types", expected, repr(kind)))
    return types


def _train(options: argparse.Namespace) -> int:
    """One line per model and side: milliseconds per step, the ratio, final bits per character."""
    others = ("streaming", "weights", "mode", "peers", "block", "rounds", "seed", "json")
    refuse_beside("bench", "--train", options, through="numpy", **dict.fromkeys(others))
    if options.device == "cpu":
        refuse_without("bench", "--device cuda", options, ["types"])
    types = _types(options) if options.types else ["float32"]
    if importlib.util.find_spec("torch") is None:
        raise ImportError("zstate bench --train needs torch: pip install 'zstate[torch]'")
    import torch

    from ..bench import training

    names = [n for n in training.MODELS if fnmatch(n.lower(), (options.only or "*").lower())]
    if not names:
        raise OptionError(refusal("bench", "--only", ", ".join(training.MODELS), options.only))
    console = _console()
    with _device(console, options):
        torch.set_num_threads(get_num_threads())
        for kind, name in product(types, names):
            settings = replace(training.MODELS[name], total=options.steps, type=kind)
            found = training.contest(settings, options.device, options.steps)
            for side, timed in found.items():
                ratio = timed.milliseconds / found["zstate"].milliseconds
                text = f"{timed.milliseconds:10.3f} ms {ratio:6.2f} {timed.bits:7.3f} bits/char"
                console.print(f"{kind:9} {name:22} {side:15} {text}", soft_wrap=True)
    return 0
