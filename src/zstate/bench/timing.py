"""How times are measured: each contender alone, in blocks after a pause, over several rounds.

Call-by-call interleaving would be wrong: the spinning threads of one library slow the next one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

Call = Callable[[], object]
# Makes this many calls and returns samples of the seconds per call: one sample, or one per call.
Sampler = Callable[[Call, int], list[float]]


@dataclass(frozen=True)
class Timing:
    """Seconds per call: the best median of the rounds, by how much the worst exceeds it
    (relative), and the 99th percentile of all samples."""

    seconds: float
    spread: float
    high: float = float("nan")


@dataclass(frozen=True)
class Protocol:
    """Block length and pause in seconds, and the number of rounds."""

    block: float = 0.5
    pause: float = 0.08
    rounds: int = 3
    calls: int | None = None  # per block, instead of its length


def together(call: Call, count: int) -> list[float]:
    """One sample: the mean of the calls."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return [(time.perf_counter() - start) / count]


def apart(call: Call, count: int) -> list[float]:
    """A sample per call, for percentiles."""
    return [together(call, 1)[0] for _ in range(count)]


def measure(
    calls: Mapping[str, Call], protocol: Protocol, sample: Sampler = together
) -> dict[str, Timing]:
    """Time every contender in alternating blocks."""
    blocks: dict[str, list[list[float]]] = {name: [] for name in calls}
    for _ in range(protocol.rounds):
        for name, call in calls.items():
            time.sleep(protocol.pause)
            blocks[name].append(_block(call, protocol, sample))
    return {name: _timing(found) for name, found in blocks.items()}


def _timing(blocks: list[list[float]]) -> Timing:
    medians = [statistics.median(block) for block in blocks]
    high = float(np.percentile(np.concatenate(blocks), 99))
    return Timing(min(medians), max(medians) / min(medians) - 1, high)


def _block(call: Call, protocol: Protocol, sample: Sampler) -> list[float]:
    """The samples of a block."""
    if protocol.calls is not None:
        return sample(call, protocol.calls)
    call()
    # A sample long enough that the cost of reading the clock is negligible.
    repeats = max(1, int(2e-5 / max(sample(call, 1)[0], 1e-7)))
    samples: list[float] = []
    end = time.perf_counter() + protocol.block
    while not samples or time.perf_counter() < end:
        samples += sample(call, repeats)
    return samples
