"""How evenly small calls run: median and 99th percentile, by threads, with and without pauses.

A call of some microseconds shows what a mean over many hides: a thread that is woken for work that
is over before it is there, and a machine that has gone to sleep.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..backends.native import set_num_threads
from .rows import GATES, Row

if TYPE_CHECKING:
    from rich.table import Table

_SIZES = [(1, 1, 64), (64, 1, 64), (4, 8, 64), (16, 4, 32), (10, 12, 40), (2, 3, 128), (1, 1, 256)]
_MOST = 5e6  # floating-point operations of a small call

SMALL_ROWS = [
    row
    for cell in GATES
    for row in (Row(cell, *size, "small") for size in _SIZES)
    if row.flops(training=False) < _MOST
]

BLOCK = 400  # calls
PAUSE = 0.08  # seconds


@dataclass(frozen=True)
class Spread:
    """Of one way to run a row, in microseconds: the median of the blocks' medians, and the 99th
    percentile of all calls."""

    median: float
    high: float


@dataclass(frozen=True)
class SmallCalls:
    """A row with 1 and with more threads, each with and without a pause before every block."""

    row: Row
    training: bool
    threads: int
    spreads: dict[tuple[int, bool], Spread]

    @property
    def slower_shared(self) -> float:
        """The time with threads over the time with one, without pauses."""
        return self.spreads[self.threads, False].median / self.spreads[1, False].median

    @property
    def slower_after_pauses(self) -> float:
        """The same for a pause, with threads."""
        return self.spreads[self.threads, True].median / self.spreads[self.threads, False].median


def measure(
    row: Row, training: bool, call: Callable[[], object], threads: int, calls: int
) -> SmallCalls:
    """Time ``calls`` calls of each way, in blocks that take turns."""
    ways = [(count, pause) for count in sorted({1, threads}) for pause in (False, True)]
    found: dict[tuple[int, bool], list[Any]] = {way: [] for way in ways}
    for number in range(max(1, calls // BLOCK)):
        for count, pause in ways[:: 1 if number % 2 else -1]:
            set_num_threads(count)
            for _ in range(BLOCK // 8):
                call()
            if pause:
                time.sleep(PAUSE)
            found[count, pause].append(_block(call))
    set_num_threads(threads)
    spreads = {way: spread(blocks) for way, blocks in found.items()}
    return SmallCalls(row, training, threads, spreads)


def _block(call: Callable[[], object]) -> Any:
    """Seconds of each call."""
    clock = time.perf_counter
    taken = np.empty(BLOCK)
    for number in range(BLOCK):
        start = clock()
        call()
        taken[number] = clock() - start
    return taken


def spread(blocks: list[Any]) -> Spread:
    """Of the seconds of each call, block by block."""
    median = np.median([np.median(block) for block in blocks])
    return Spread(float(median) * 1e6, float(np.percentile(np.concatenate(blocks), 99)) * 1e6)


def table(measured: list[SmallCalls]) -> Table:
    """A line per row and mode: median / 99th percentile of each way, and the ratios."""
    from rich.table import Table

    threads = measured[0].threads
    title = f"small calls: median / 99th percentile in µs; a pause is {PAUSE * 1e3:.0f} ms"
    made = Table(title=title, title_justify="left")
    made.add_column("row", no_wrap=True)
    made.add_column("mode")
    for _, heading in _ways(threads):
        made.add_column(heading, justify="right")
    made.add_column(f"{threads} : 1", justify="right")
    made.add_column("pause : none", justify="right")
    for each in measured:
        shown = [each.spreads[way] for way, _ in _ways(threads)]
        made.add_row(
            each.row.title,
            "training" if each.training else "inference",
            *(f"{spread.median:.1f} / {spread.high:.1f}" for spread in shown),
            f"{each.slower_shared:.2f}",
            f"{each.slower_after_pauses:.2f}",
        )
    return made


def _ways(threads: int) -> Iterator[tuple[tuple[int, bool], str]]:
    for count in sorted({1, threads}):
        name = "1 thread" if count == 1 else f"{count} threads"
        yield (count, False), name
        yield (count, True), f"{name}, after pauses"


def as_rows(measured: list[SmallCalls]) -> list[dict[str, Any]]:
    """For a JSON file."""
    return [
        {
            "row": each.row.title,
            "mode": "training" if each.training else "inference",
            "us": [
                {"threads": count, "pause": pause, "median": spread.median, "p99": spread.high}
                for (count, pause), spread in each.spreads.items()
            ],
        }
        for each in measured
    ]
