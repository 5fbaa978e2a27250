"""How evenly small calls run: median and 99th percentile, by threads, with and without pauses.

    python benchmarks/small_calls.py --json benchmarks/results/cpu_small_calls.json

A call of some microseconds shows what a mean over many calls hides: a thread that wakes up after
its work is done, and a machine that went to sleep. Every call is checked before it is timed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from publish import processor

from zstate.backends import native
from zstate.backends.native import get_num_threads, set_num_threads
from zstate.bench.contenders import Case, functions
from zstate.bench.contest import errors_of, oracle
from zstate.bench.report import write_json
from zstate.bench.rows import GATES, Row, choose, make_data
from zstate.bench.timing import apart
from zstate.cli.arguments import check_writable
from zstate.errors import OptionError

BOUND = 1e-4  # of the relative error
SIZES = [(1, 1, 64), (64, 1, 64), (4, 8, 64), (16, 4, 32), (10, 12, 40), (2, 3, 128), (1, 1, 256)]
MOST = 5e6  # floating-point operations of a small call

SMALL_ROWS = [
    row
    for cell in GATES
    for row in (Row(cell, *size, "small") for size in SIZES)
    if row.flops(training=False) < MOST
]

BLOCK = 400  # calls
PAUSE = 0.08  # seconds


@dataclass(frozen=True)
class Spread:
    """One way to run a row, in microseconds: the median of the blocks' medians, and the 99th
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
            found[count, pause].append(apart(call, BLOCK))
    set_num_threads(threads)
    spreads = {way: spread(blocks) for way, blocks in found.items()}
    return SmallCalls(row, training, threads, spreads)


def spread(blocks: list[Any]) -> Spread:
    """Of the seconds of each call, block by block."""
    median = np.median([np.median(block) for block in blocks])
    return Spread(float(median) * 1e6, float(np.percentile(np.concatenate(blocks), 99)) * 1e6)


def print_table(measured: list[SmallCalls]) -> None:
    """A line per row and mode: median / 99th percentile of each way, and the ratios."""
    threads = measured[0].threads
    print(f"small calls: median / 99th percentile in µs; a pause is {PAUSE * 1e3:.0f} ms")
    headings = [heading for _, heading in _ways(threads)]
    print(f"| row | {' | '.join(headings)} | {threads} : 1 | pause : none |")
    print("|---" * (len(headings) + 3) + "|")
    for each in measured:
        spreads = [each.spreads[way] for way, _ in _ways(threads)]
        cells = [f"{each.row.title} {'training' if each.training else 'inference'}"]
        cells += [f"{spread.median:.1f} / {spread.high:.1f}" for spread in spreads]
        cells += [f"{each.slower_shared:.2f}", f"{each.slower_after_pauses:.2f}"]
        print(f"| {' | '.join(cells)} |")


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


def checked(row: Row, training: bool, threads: int) -> Callable[[], Any]:
    """A call of the native engine; raises if one of eight is far from the oracle."""
    case, data = Case(row, training, threads=threads), make_data(row, 0)
    call = functions(case, data, "native")
    set_num_threads(threads)
    wanted = oracle(case, data)
    error = float(np.max([errors_of(case, data, call, wanted) for _ in range(8)]))
    assert error < BOUND, f"{row.title}: wrong, off by {error:.1e}"
    return call


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="ROWS", help="rows such as 'lstm 64x1x64', or globs")
    parser.add_argument("--mode", choices=("inference", "training", "both"), default="both")
    parser.add_argument("--threads", type=int, default=get_num_threads())
    parser.add_argument("--rounds", type=int, default=3, help="of 8 blocks per way")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measurements")
    options = parser.parse_args(arguments)
    if native.unavailable() is not None:
        sys.exit(f"small_calls.py times the native engine: {native.unavailable()}")
    try:
        rows = choose(SMALL_ROWS, options.only)
        if options.json:
            check_writable("small_calls", "--json", options.json)
    except OptionError as error:
        sys.exit(str(error))
    modes = {"inference": [False], "training": [True], "both": [False, True]}[options.mode]
    measured = []
    for training in modes:
        for row in rows:
            call = checked(row, training, options.threads)
            calls = options.rounds * BLOCK * 8
            measured.append(measure(row, training, call, options.threads, calls))
    print_table(measured)
    if options.json:
        machine = {"processor": processor(), "threads": options.threads}
        write_json(options.json, {"machine": machine, "small_calls": as_rows(measured)})


if __name__ == "__main__":
    main()
