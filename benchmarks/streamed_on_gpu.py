"""Layers whose recurrent weight does not fit on the chip, beside torch.nn: checked, then timed.

    PYTHONPATH=src python benchmarks/streamed_on_gpu.py
    PYTHONPATH=src python benchmarks/streamed_on_gpu.py --ways --only "lstm 1x4096"

Microseconds per step of whole calls as CUDA graphs, inference / training. With ``--ways`` each way
that the engine could have taken: over the whole grid, in single steps by the library's products,
and by products that read the weight once. ``floor`` is the time in which the memory gives the
weight once, at 4.2 TB/s.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable

import torch

from zstate import backends
from zstate.backends.cuda import launch
from zstate.backends.cuda.placement import GRID, STEPS, WIDE, Placement
from zstate.backends.cuda.placements import placements
from zstate.bench import gpu
from zstate.bench.rows import GATES, Row
from zstate.errors import BackendError

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


def rows(pattern: str | None) -> list[Row]:
    every = [Row(cell, 64 if h > 4096 else 128, n, h) for cell, n, h in SIZES]
    return [row for row in every if pattern is None or row.is_called(pattern)]


def microseconds(
    row: Row, kind: str, training: bool, accepts: Callable[[Placement], bool] | None
) -> float | None:
    """Of a step of zstate's call, in one way; None where there is none."""
    launch.placements = lambda *scan: filter(accepts, placements(*scan))
    launch._KERNELS.clear()
    backends.PREPARED.clear()
    data = gpu.make_tensors(row, gpu.TYPES[kind], 1)
    try:
        call = gpu._calls(row, data, training, False)["zstate"]
        graph = gpu.graphed(call)
    except BackendError:
        return None
    finally:
        launch.placements = placements
    return gpu.timed(graph.replay).seconds * 1e6 / row.T


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="rows such as 'lstm 1x4096'; globs work too")
    parser.add_argument("--ways", action="store_true", help="time every way, unchecked")
    parser.add_argument("--types", default="bfloat16,float32", help="comma-separated types")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    for row in rows(options.only):
        for kind in options.types.split(","):
            size = GATES[row.cell] * row.H**2 * torch.tensor([], dtype=gpu.TYPES[kind]).itemsize
            line = f"{row.title:18} {kind:9} floor {size / MEMORY:6.1f}"
            if options.ways:
                for name, accepts in WAYS.items():
                    pair = [microseconds(row, kind, each, accepts) for each in (False, True)]
                    texts = ("-" if time is None else f"{time:.1f}" for time in pair)
                    line += f"   {name} {' / '.join(texts)}"
            else:
                for training in (False, True):
                    found = gpu.measure(row, kind, training, 1)
                    if not found.timings:
                        line += f"   WRONG {found.errors}"
                        continue
                    ours, theirs = (
                        found.timings[f"{name} graph"].seconds * 1e6 / row.T
                        for name in ("zstate", "torch")
                    )
                    line += f"   {ours:.1f} against {theirs:.1f} ({theirs / ours:.2f})"
            print(line, flush=True)
            gc.collect()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
