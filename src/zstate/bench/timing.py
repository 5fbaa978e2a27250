"""How times are measured: each contender alone, in blocks after a pause, over several rounds.

Call-by-call interleaving would be wrong: the spinning threads of one library slow the next one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

Call = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Seconds per call: the best median of the rounds, and how far the worst was off (relative)."""

    seconds: float
    spread: float


@dataclass(frozen=True)
class Protocol:
    """Block length and pause in seconds, and the number of rounds."""

    block: float = 0.5
    pause: float = 0.08
    rounds: int = 3


def measure(calls: Mapping[str, Call], protocol: Protocol) -> dict[str, Timing]:
    """Time every contender in alternating blocks."""
    medians: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(protocol.rounds):
        for name, call in calls.items():
            time.sleep(protocol.pause)
            medians[name].append(_block(call, protocol.block))
    return {
        name: Timing(min(found), max(found) / min(found) - 1) for name, found in medians.items()
    }


def _block(call: Call, length: float) -> float:
    """The median time of a call, over a block of about that length."""
    call()
    clock = time.perf_counter
    start = clock()
    call()
    once = clock() - start
    # A sample long enough that reading the clock does not count.
    repeats = max(1, int(2e-5 / max(once, 1e-7)))
    samples: list[float] = []
    end = clock() + length
    while not samples or clock() < end:
        start = clock()
        for _ in range(repeats):
            call()
        samples.append((clock() - start) / repeats)
    return statistics.median(samples)


def sgemm_rate(protocol: Protocol, threads: int) -> float:
    """The float32 rate in flop/s of NumPy's BLAS on a large product, on so many threads.

    BLAS has a number of threads of its own, often 1 in a container or under OMP_NUM_THREADS, which
    rows computed on more would exceed: so it is also timed on a part of the rows per thread, and
    the faster way counts.
    """
    size = 2048
    rng = np.random.default_rng(0)
    a = rng.standard_normal((size, size), np.float32)
    b = rng.standard_normal((size, size), np.float32)
    out = np.empty((size, size), np.float32)

    def product(part: int, parts: int) -> None:
        rows = slice(part * size // parts, (part + 1) * size // parts)
        np.matmul(a[rows], b, out=out[rows])

    with ThreadPoolExecutor(threads) as pool:
        ways: dict[str, Call] = {
            "one call": lambda: product(0, 1),
            "a call per thread": lambda: list(
                pool.map(lambda part: product(part, threads), range(threads))
            ),
        }
        found = measure(ways if threads > 1 else {"one call": ways["one call"]}, protocol)
    return 2.0 * size**3 / min(timing.seconds for timing in found.values())
