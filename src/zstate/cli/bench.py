"""Time zstate against the installed peers, after checking that they all give the same results.

On the CPU, each contender runs alone for a block after a short pause, over several rounds; the best
median counts. Ratios carry over to other machines; times do not. --device cuda times the CUDA
engine against torch.nn, both called directly and replayed as CUDA graphs. --through jax times
zstate.jax against a plain scan, flax and (on a GPU) cuDNN, all jitted. --weights times layers
packed by zs.prepare, and --streaming times their single steps.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..backends import available, native
from ..backends.native import get_num_threads, set_num_threads
from ..bench import contenders, prepared, report, small_calls
from ..bench.rows import GPU_ROWS, ROWS, Row, choose, make_data
from ..bench.timing import Protocol, measure, sgemm_rate
from ..errors import BackendError, OptionError, refusal
from ..prepared.parts import WEIGHTS
from ..verify import relative_error
from . import at_least_one, at_least_zero

if TYPE_CHECKING:
    from rich.console import Console

# A contender further than this from the float64 oracle is not timed but reported.
_BOUND = 1e-4
_BASE = Row("LSTM", 64, 16, 128)
_MODES = {"inference": [False], "training": [True], "both": [False, True]}
_GPU_TYPES = ("bfloat16", "float32", "float16")
_PICTURES = (".png", ".svg", ".pdf")
_WIDE = 160  # columns in a file or a pipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to run, for how long, and where to write the results."""
    parser.add_argument(
        "--only",
        metavar="ROWS",
        help="rows by name or glob, comma-separated: 'lstm 64x1x64', 'gru *x1x*', '*both ways'",
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="the engine to time (default: cpu)"
    )
    parser.add_argument(
        "--types",
        help=f"with --device cuda: comma-separated float types (default: {','.join(_GPU_TYPES)})",
    )
    parser.add_argument(
        "--mode", choices=tuple(_MODES), default="both", help="what to time (default: both)"
    )
    parser.add_argument(
        "--threads",
        type=at_least_one(int),
        metavar="N",
        help="threads per contender (default: the number of cores)",
    )
    parser.add_argument(
        "--peers", help="comma-separated names, or none (default: all that are installed)"
    )
    parser.add_argument(
        "--through",
        choices=list(contenders.THROUGH),
        default="numpy",
        help="time zstate's functions on NumPy arrays (torch tensors on a GPU), its modules on "
        "torch tensors, or its functions in jitted JAX programs",
    )
    parser.add_argument(
        "--block",
        type=at_least_zero(float),
        default=0.5,
        metavar="X",
        help="seconds per block (default: %(default)s)",
    )
    parser.add_argument(
        "--rounds",
        type=at_least_one(int),
        default=3,
        metavar="N",
        help="blocks per contender (default: %(default)s)",
    )
    parser.add_argument(
        "--no-growth",
        action="store_true",
        help="skip the tables of cost over T, N and H (on a GPU: of options, calls and scans), "
        "as --only does",
    )
    parser.add_argument(
        "--weights",
        choices=WEIGHTS,
        help="time inference with layers that zs.prepare packed with these weights, against ONNX "
        "Runtime: its dynamic int8 LSTM for int8, otherwise float32",
    )
    parser.add_argument(
        "--streaming",
        action="store_true",
        help="time streams of prepared layers instead: µs per step, for single steps and chunks "
        "of 10, with every kind of weights or the kind in --weights",
    )
    parser.add_argument(
        "--small-calls",
        action="store_true",
        help="time small calls instead: how steady they are with different threads and pauses",
    )
    parser.add_argument(
        "--train",
        action="store_true",
        help="time training steps of `zstate train`'s model against torch.nn instead; --only "
        "takes names such as 'GRU*', and --types also takes tf32",
    )
    parser.add_argument(
        "--steps",
        type=at_least_one(int),
        default=200,
        metavar="N",
        help="with --train: steps per model; the last losses are compared (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measurements")
    parser.add_argument(
        "--chart", type=Path, metavar="FILE", help="draw the ratios (.png, .svg or .pdf)"
    )
    parser.add_argument(
        "--seed",
        type=at_least_zero(int),
        default=0,
        metavar="N",
        help="random seed for the inputs (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Print the tables; 1 if zstate gave a wrong result."""
    if options.weights or options.streaming:
        _check_prepared(options)
    if options.streaming:
        return _run_streaming(options)
    if options.small_calls:
        return _run_small_calls(options)
    if options.train:
        return _run_training(options)
    if options.types is not None and options.device != "cuda":
        raise OptionError("[bench] --types needs --device cuda")
    rows = choose(GPU_ROWS if options.device == "cuda" else ROWS, options.only)
    if options.through != "numpy" and contenders.missing(options.through):
        raise OptionError(
            f"[bench] --through {options.through}: {options.through} is missing: "
            f"pip install 'zstate[{options.through}]'"
        )
    peers = contenders.chosen_peers(
        options.peers, "prepare" if options.weights else options.through
    )
    _check_files(options, peers)
    console = _console()
    if options.device == "cuda":
        return _run_on_gpu(console, rows, peers, options)
    if not peers and options.peers is None:
        others = "" if options.weights else "pip install torch, pip install jax, or "
        console.print(
            f"no peer is installed, so there are no ratios; to install one: {others}pip install "
            "onnxruntime onnx",
            soft_wrap=True,
        )
    makers = contenders.makers(options.through, [] if options.weights else peers)
    if options.weights:
        makers = prepared.makers(options.weights, peers)
    threads = options.threads or get_num_threads()
    set_num_threads(threads)
    protocol = Protocol(options.block, rounds=options.rounds)
    sgemm = sgemm_rate(protocol, threads)
    backend = next(each.name for each in available() if each.device == "cpu")
    console.print(f"threads: {threads}, backend: {backend}, sgemm: {sgemm / 1e9:.0f} GFLOP/s")
    console.print(
        "sgemm is NumPy's 2048×2048 product on these threads; a row can exceed 100% of it, "
        "because zstate has its own products",
        soft_wrap=True,
    )
    modes = [False] if options.weights else _MODES[options.mode]
    kind = options.weights or "float32"
    measured = _measure_all(console, rows, modes, makers, threads, protocol, options.seed, kind)
    for training in modes:
        console.print(report.table(measured, list(makers), training, sgemm, console.width))
    report.summary(console, measured)
    if options.through == "jax" or options.weights:
        report.peers(console, measured)
    growth = (
        []
        if options.no_growth or options.only or options.weights
        else _growth(console, threads, protocol)
    )
    machine = report.cpu_machine(sgemm, threads)
    return _keep(options, measured, report.as_json(measured, machine, growth=growth))


def _console() -> Console:
    from rich.console import Console

    is_read = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if is_read else _WIDE)


def _run_training(options: argparse.Namespace) -> int:
    """One line per model, type and side: milliseconds per step, the ratio, final bits per
    character.
    """
    if importlib.util.find_spec("torch") is None:
        raise ImportError("zstate bench --train needs torch: pip install 'zstate[torch]'")
    from ..bench import training

    on_gpu = options.device == "cuda"
    types = (options.types or ("tf32,bfloat16" if on_gpu else "float32")).split(",")
    known = ("float32", "bfloat16", "float16", *(("tf32",) if on_gpu else ()))
    if not set(types) <= set(known):
        raise OptionError(refusal("bench", "--types", "some of " + ", ".join(known), options.types))
    names = [n for n in training.MODELS if fnmatch(n.lower(), (options.only or "*").lower())]
    if not names:
        raise OptionError(refusal("bench", "--only", ", ".join(training.MODELS), options.only))
    ways = training.WAYS if on_gpu else training.WAYS[:2]
    console = _console()
    for kind in types:
        for name in names:
            with training.precision(kind) as stored:
                settings = replace(training.MODELS[name], type=stored, total=options.steps)
                found = training.contest(settings, options.device, ways, options.steps)
            ours = found["zstate"].milliseconds
            for side, timed in found.items():
                ratio = timed.milliseconds / ours
                console.print(
                    f"{name:22} {kind:9} {side:15} {timed.milliseconds:10.3f} ms "
                    f"{ratio:6.2f} {timed.bits:7.3f} bits/char",
                    soft_wrap=True,
                )
    return 0


def _check_prepared(options: argparse.Namespace) -> None:
    """Reject options that prepared layers do not have."""
    asked = "--streaming" if options.streaming else "--weights"
    others = {
        "--device cuda": options.device == "cuda",
        f"--through {options.through}": options.through != "numpy",
        "--mode training": options.mode == "training",
        "--small-calls": options.small_calls,
        "--train": options.train,
        "--chart": options.streaming and options.chart is not None,
    }
    for other, is_given in others.items():
        if is_given:
            raise OptionError(f"[bench] {asked} cannot be combined with {other}")


def _run_streaming(options: argparse.Namespace) -> int:
    """The table of streams; 1 if zstate gave a wrong result."""
    from rich.progress import track

    rows = choose(prepared.STREAMS, options.only)
    peers = contenders.chosen_peers(options.peers, "prepare")
    _check_files(options, peers)
    console, threads = _console(), options.threads or get_num_threads()
    set_num_threads(threads)
    protocol = Protocol(options.block, rounds=options.rounds)
    kinds = (options.weights,) if options.weights else WEIGHTS
    measured = [
        prepared.stream_row(row, kinds, peers, threads, protocol, options.seed)
        for row in track(rows, console=console, transient=True)
    ]
    console.print(f"threads: {threads}; 10×1×H is a chunk of 10 steps")
    console.print(prepared.table(measured))
    wrong = [
        f"{each.row.title}: {name} is wrong by {each.errors[name]:.1e}, not timed"
        for each in measured
        for name in each.errors.keys() - each.spreads.keys()
    ]
    for line in wrong:
        console.print(line)
    if options.json:
        content = {"machine": report.cpu_machine(None, threads)}
        report.write_json(options.json, {**content, "streams": prepared.as_rows(measured)})
    return 1 if any("zstate" in line for line in wrong) else 0


def _run_small_calls(options: argparse.Namespace) -> int:
    """The table of small calls; 1 if zstate gave a wrong result."""
    from rich.progress import track

    plain = {"device": "cpu", "through": "numpy", "chart": None}
    for name, value in plain.items():
        if getattr(options, name) != value:
            other = f"--{name} {getattr(options, name)}"
            raise OptionError(f"[bench] --small-calls cannot be combined with {other}")
    reason = native.unavailable()
    if reason is not None:
        raise BackendError(f"[bench] --small-calls times the native engine: {reason}")
    _check_files(options, [])
    console, threads = _console(), options.threads or get_num_threads()
    rows = choose(small_calls.SMALL_ROWS, options.only)
    todo = [(row, training) for training in _MODES[options.mode] for row in rows]
    calls = options.rounds * small_calls.BLOCK * 8
    measured = []
    for row, training in track(todo, console=console, transient=True):
        call, error = _small_call(row, training, threads, options.seed)
        if not error < _BOUND:
            console.print(f"{row.title}: wrong, off by {error:.1e}; nothing more was timed")
            return 1
        measured.append(small_calls.measure(row, training, call, threads, calls))
    console.print(small_calls.table(measured))
    if options.json:
        machine = report.cpu_machine(None, threads)
        report.write_json(
            options.json, {"machine": machine, "small_calls": small_calls.as_rows(measured)}
        )
    return 0


def _small_call(
    row: Row, training: bool, threads: int, seed: int
) -> tuple[Callable[[], Any], float]:
    """A call of the native engine, and how far it is from the oracle, with threads or without."""
    data = make_data(row, seed)
    call = contenders.zstate_calls("native")(row, data, training, threads)
    assert call is not None
    set_num_threads(threads)
    wanted = contenders.oracle(row, data, training)
    return call, max(_error(row, contenders.in_order(call()), wanted) for _ in range(8))


def _check_files(options: argparse.Namespace, peers: list[str]) -> None:
    """Before measuring anything, reject a file that could not be written afterwards."""
    for option, path in (("--json", options.json), ("--chart", options.chart)):
        if path is None:
            continue
        if path.is_dir() or not path.parent.is_dir():
            got = "a folder" if path.is_dir() else f"no folder {str(path.parent)!r}"
            raise OptionError(refusal("bench", option, "a file in a folder that exists", got))
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise OptionError(refusal("bench", option, "a file that can be written", str(path)))
    if options.chart is None:
        return
    if options.chart.suffix.lower() not in _PICTURES:
        expected = f"a name that ends in one of {', '.join(_PICTURES)}"
        raise OptionError(refusal("bench", "--chart", expected, repr(options.chart.name)))
    if options.mode == "training":
        peers = [name for name in peers if name not in contenders.ONLY_INFER]
    if not peers and options.device == "cpu":
        raise OptionError(refusal("bench", "--chart", "at least one peer to compare with", "none"))
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("[bench] --chart needs matplotlib: pip install 'zstate[bench]'")


def _keep(
    options: argparse.Namespace, measured: list[report.Measured], content: dict[str, Any]
) -> int:
    """Write the files; 1 if zstate gave a wrong result."""
    if options.json:
        report.write_json(options.json, content)
    if options.chart and any(row["ratio"] is not None for row in content["rows"]):
        report.write_chart(options.chart, content)
    elif options.chart:
        print(
            "zstate: --chart: nothing to draw, because no peer gave a correct result",
            file=sys.stderr,
        )
    wrong = [each for each in measured if "zstate" not in each.timings]
    return 1 if wrong else 0


def _run_on_gpu(
    console: Console, rows: list[Row], peers: list[str], options: argparse.Namespace
) -> int:
    """The rows of the CUDA engine; 1 if zstate gave a wrong result."""
    kinds = list(_GPU_TYPES) if options.types is None else options.types.split(",")
    unknown = [kind for kind in kinds if kind not in _GPU_TYPES]
    if unknown:
        expected = ", ".join(_GPU_TYPES)
        raise OptionError(f"[bench] --types: expected some of {expected}, got {unknown[0]!r}")
    if options.through == "jax":
        return _run_on_gpu_through_jax(console, rows, kinds, peers, options)
    if importlib.util.find_spec("torch") is None:
        raise BackendError("[bench] --device cuda: torch is missing: pip install 'zstate[cuda]'")
    from ..bench import gpu

    reason = gpu.unavailable()
    if reason is not None:
        raise BackendError(f"[bench] --device cuda: {reason}")
    console.print(f"{gpu.machine()}\nµs per step; float32 means TF32", highlight=False)
    measured = []
    modes, modules = _MODES[options.mode], options.through == "torch"
    for each in gpu.measure_all(rows, kinds, modes, options.seed, modules):
        measured.append(each)
        console.print(report.line(each), highlight=False, soft_wrap=True)
    report.summary(console, measured)
    further = {}
    if not options.no_growth and not options.only:
        from ..bench.gpu_details import details

        further = details(options.seed)
        console.print_json(data=further)
    return _keep(options, measured, report.as_json(measured, gpu.machine(), **further))


def _run_on_gpu_through_jax(
    console: Console,
    rows: list[Row],
    kinds: list[str],
    peers: list[str],
    options: argparse.Namespace,
) -> int:
    """The same rows in jitted JAX programs, without torch."""
    from ..bench import jax_layers

    reason = jax_layers.gpu_unavailable()
    if reason is not None:
        raise BackendError(f"[bench] --device cuda: {reason}")
    machine = jax_layers.machine()
    console.print(f"{machine}\nµs per step; float32 means TF32", highlight=False)
    protocol = Protocol(options.block, rounds=options.rounds)
    measured = []
    modes = _MODES[options.mode]
    for each in jax_layers.measure_all(rows, kinds, modes, peers, protocol, options.seed):
        measured.append(each)
        console.print(report.line(each), highlight=False, soft_wrap=True)
    report.summary(console, measured)
    report.peers(console, measured)
    return _keep(options, measured, report.as_json(measured, machine))


def _measure_all(
    console: Console,
    rows: list[Row],
    modes: list[bool],
    makers: dict[str, contenders.Maker],
    threads: int,
    protocol: Protocol,
    seed: int,
    kind: str,
) -> list[report.Measured]:
    from rich.progress import Progress

    measured = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(rows) * len(modes))
        for row in rows:
            for training in modes:
                progress.update(task, description=f"{row.title} {'training' if training else ''}")
                found = report.Measured(row, training, type=kind)
                _measure(console, found, makers, threads, protocol, seed)
                measured.append(found)
                progress.advance(task)
    return measured


def _measure(
    console: Console,
    found: report.Measured,
    makers: dict[str, contenders.Maker],
    threads: int,
    protocol: Protocol,
    seed: int,
) -> None:
    row, training = found.row, found.training
    data = make_data(row, seed)
    wanted = contenders.oracle(row, data, training)
    bound = max(_BOUND, prepared.BOUNDS[found.type])
    calls: dict[str, Callable[[], Any]] = {}
    for name, maker in makers.items():
        call = maker(row, data, training, threads)
        if call is None:
            continue
        error = _error(row, contenders.in_order(call()), wanted)
        found.errors[name] = error
        if error <= bound:
            calls[name] = call
        else:
            console.print(f"[bold red]{row.title}: {name} is wrong by {error:.1e}, not timed[/]")
    found.timings = measure(calls, protocol)


def _error(row: Row, results: list[Any], wanted: list[Any]) -> float:
    if len(results) != len(wanted):
        return float("nan")
    pairs = zip(results, wanted, strict=True)
    errors = [relative_error(contenders.as_array(row, r, w.shape), w) for r, w in pairs]
    return float(np.max(errors))


def _growth(console: Console, threads: int, protocol: Protocol) -> list[dict[str, Any]]:
    """How zstate's own cost grows with T, N and H, one at a time."""
    from rich.table import Table

    table = Table(title=f"growth from {_BASE.title}, training", title_justify="left")
    for column in ("T×N×H", "ms", "µs per step", "GFLOP/s"):
        table.add_column(column, justify="right")
    found = []
    for letter, sizes in (("T", (16, 64, 256)), ("N", (1, 4, 16, 64)), ("H", (32, 128, 512))):
        for size in sizes:
            changed: dict[str, Any] = {letter: size}
            row = replace(_BASE, **changed)
            call = contenders.CONTENDERS["zstate"](row, make_data(row, 0), True, threads)
            assert call is not None
            seconds = measure({"zstate": call}, protocol)["zstate"].seconds
            rate = row.flops(True) / seconds / 1e9
            title = f"{row.T}×{row.N}×{row.H}"
            numbers = (f"{seconds * 1e3:.3g}", f"{seconds / row.T * 1e6:.2f}", f"{rate:.0f}")
            table.add_row(title, *numbers, end_section=size == sizes[-1])
            found.append({"letter": letter, "row": title, "ms": seconds * 1e3, "gflops": rate})
    console.print(table)
    return found
