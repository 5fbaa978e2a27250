"""Estimates the memory of a run before anything is allocated."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

from ..errors import OptionError, refusal
from .model import Settings

_WORD = 4  # bytes of a float32


def estimate(settings: Settings, characters: int) -> int:
    """Peak bytes of training, overestimated by a factor of up to two: weights, Adam's moments and
    new values, and the tensors of one window."""
    s, gates = settings, len(settings.definition.gates)
    inputs = s.embedding + (s.layers - 1) * s.hidden
    recurrent = gates * s.hidden * (inputs + s.layers * (s.hidden + 1))
    weights = characters * (s.embedding + s.hidden + 1) + recurrent
    tokens = s.window * s.batch
    table = 2 * characters * gates * s.hidden  # the projected embedding, and its gradient
    of_a_token = s.hidden * (s.layers * (gates + 2) + gates + 1) + 2 * characters
    # Weight, two moments, gradient, and three new values before the old ones are freed.
    return _WORD * (7 * weights + table + tokens * of_a_token)


def check(settings: Settings, characters: int, device: str | None = None) -> None:
    """Refuse a run that does not fit into the free memory of the device it trains on."""
    needed, free = estimate(settings, characters), available(device)
    if free is not None and needed > free:
        s = settings
        expected = f"settings that fit into the {_text(free)} of free memory"
        sizes = f"--layers {s.layers} --hidden {s.hidden} --embedding {s.embedding}"
        got = f"{sizes} --window {s.window} --batch {s.batch}, about {_text(needed)}"
        raise OptionError(refusal("train", "memory", expected, got))


def available(device: str | None = None) -> int | None:
    """Bytes of free memory; None if the system does not say."""
    if device not in (None, "cpu"):
        free, _ = import_module("torch").cuda.mem_get_info(device)
        return int(free)
    found = [_free(), _limit_of_the_group()]
    return min((size for size in found if size is not None), default=None)


def _free() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _limit_of_the_group() -> int | None:
    """The memory limit of a container."""
    try:
        return int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):  # "max": no limit
        return None


def _text(size: float) -> str:
    units = ["bytes", "kB", "MB", "GB", "TB"]
    while size >= 10_000 and len(units) > 1:
        size /= 1000
        del units[0]
    return f"{size:,.0f} {units[0]}"
