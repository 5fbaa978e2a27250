"""What the GPU scripts share: the sizes that only they publish, and a clock."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from zstate.backends import cuda
from zstate.bench.rows import GATES, GPU_ROWS, Row
from zstate.bench.timing import Protocol

PROTOCOL = Protocol(block=0.01, pause=0.0)
# Sizes that should keep the tensor cores busy, and sizes whose steps are too short for overlap.
BUSY = [
    *((256, N, H) for N in (96, 128, 256, 512) for H in (512, 768, 1024, 1536)),
    *((256, 32, 2048), (256, 64, 2048)),
]
TINY = [(256, N, H) for N in (1, 2, 5, 8) for H in (32, 64, 77, 128, 200)]


def all_rows() -> list[Row]:
    """`zstate bench`'s rows, and these; a size that is in several groups is a row of the first."""
    groups = {(row.T, row.N, row.H): row.group for row in GPU_ROWS}
    for name, sizes in (("compute-bound", BUSY), ("tiny", TINY)):
        for size in sizes:
            groups.setdefault(size, name)
    return [Row(cell, *size, name, states=False) for cell in GATES for size, name in groups.items()]


def is_compute_bound(row: Row) -> bool:
    """Whether a size is one of those where the tensor cores should be busy, in whatever group."""
    return (row.T, row.N, row.H) in BUSY


def is_tiny(row: Row) -> bool:
    return (row.T, row.N, row.H) in TINY


def require_gpu() -> None:
    """End the script, in one line, where the CUDA engine cannot run."""
    import torch  # noqa: F401 - the engine works on its tensors

    reason = cuda.unavailable()
    if reason is not None:
        sys.exit(f"{Path(sys.argv[0]).name} needs a GPU: {reason}")


def seconds(call: Callable[[], object]) -> float:
    """The duration of a call by the device's clock."""
    from zstate.bench.gpu import on_device
    from zstate.bench.timing import measure

    return measure({"call": call}, PROTOCOL, on_device)["call"].seconds
