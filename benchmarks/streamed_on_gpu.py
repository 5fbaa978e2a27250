"""Layers whose recurrent weight does not fit on the chip, beside torch.nn: checked, then timed.

    PYTHONPATH=src python benchmarks/streamed_on_gpu.py
    PYTHONPATH=src python benchmarks/streamed_on_gpu.py --ways --only "lstm 128x1x4096"

Microseconds per step of whole calls as CUDA graphs, inference / training. With ``--ways`` each way
that the engine could have taken: over the whole grid, in single steps by the library's products,
and by products that read the weight once. ``floor`` is the time in which the memory gives the
weight once, at 4.2 TB/s.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from dataclasses import replace

import torch
from on_gpu import PROTOCOL, require_gpu, seconds

from zstate import backends
from zstate.backends.cuda import launch
from zstate.backends.cuda.placement import GRID, STEPS, WIDE, Placement
from zstate.backends.cuda.placements import placements
from zstate.bench import gpu
from zstate.bench.contenders import Case, functions
from zstate.bench.contest import contest, numbers
from zstate.bench.rows import GATES, Data, Row, choose
from zstate.errors import BackendError, OptionError

MEMORY = 4.2e6  # bytes per microsecond
WAYS: dict[str, Callable[[Placement], bool]] = {
    "grid": lambda plan: plan.mode == GRID,
    "wide": lambda plan: plan.mode == WIDE,
    "library": lambda plan: plan.mode == STEPS and not plan.split,
    "streamed": lambda plan: plan.mode == STEPS and bool(plan.split),
}
SIZES = [
    *((cell, n, h) for cell in ("LSTM", "GRU") for n, h in ((1, 4096), (8, 3072))),
    *(("LSTM", n, h) for n, h in ((2, 2560), (16, 3072), (3, 3500), (5, 2049), (1, 8192))),
    *(("GRU", n, h) for n, h in ((16, 2560), (2, 6000))),
    *(("RNN", n, h) for n, h in ((1, 8192), (8, 6144), (4, 4096))),
]


ROWS = [Row(cell, 64 if h > 4096 else 128, n, h) for cell, n, h in SIZES]


def microseconds(
    case: Case, data: Data, accepts: Callable[[Placement], bool] | None
) -> float | None:
    """Of a step of zstate's call, in one way; None where there is none."""
    launch.placements = lambda *scan: filter(accepts, placements(*scan))
    launch._KERNELS.clear()
    backends.PREPARED.clear()
    try:
        graph = gpu.graphed(functions(case, data))
    except BackendError:
        return None
    finally:
        launch.placements = placements
    return seconds(graph.replay) * 1e6 / case.row.T


def ways(case: Case) -> str:
    """Every way that the engine could have taken, unchecked."""
    text, data = "", numbers(case, 1)
    for name, accepts in WAYS.items():
        pair = [
            microseconds(replace(case, training=training), data, accepts)
            for training in (False, True)
        ]
        texts = ("-" if time is None else f"{time:.1f}" for time in pair)
        text += f"   {name} {' / '.join(texts)}"
    return text


def against_torch(case: Case) -> str:
    """Inference and training, checked."""
    text = ""
    for training in (False, True):
        found = contest(replace(case, training=training), ["zstate", "torch"], PROTOCOL, 1)
        if "zstate" not in found.timings:
            text += f"   WRONG {found.errors}"
            continue
        ours, theirs = (
            found.timings[f"{name} graph"].seconds * 1e6 / case.row.T
            for name in ("zstate", "torch")
        )
        text += f"   {ours:.1f} against {theirs:.1f} ({theirs / ours:.2f})"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    only = "rows such as 'lstm 128x1x4096' (T×N×H), comma-separated; globs work too"
    parser.add_argument("--only", help=only)
    parser.add_argument("--ways", action="store_true", help="time every way, unchecked")
    parser.add_argument("--types", default="bfloat16,float32", help="comma-separated types")
    options = parser.parse_args()
    try:
        rows = choose(ROWS, options.only)
    except OptionError:
        titles = ", ".join(row.title for row in ROWS)
        parser.error(f"--only: no row is called {options.only!r}; the rows: {titles}")
    require_gpu()
    with gpu.tf32():
        for row in rows:
            for kind in options.types.split(","):
                size = GATES[row.cell] * row.H**2 * (4 if kind == "float32" else 2)
                case = Case(row, type=kind, device="cuda")
                shown = ways(case) if options.ways else against_torch(case)
                print(f"{row.title:18} {kind:9} floor {size / MEMORY:6.1f}{shown}", flush=True)
                gc.collect()
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
