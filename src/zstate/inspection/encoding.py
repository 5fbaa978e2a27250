"""Arrays as the page carries them: numbers of few bits, compressed, in base64."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from ..types import Array

BITS = (16, 12, 8, 6, 5, 4)  # of a value in a map, from the most exact
_FLOW_BITS = 12  # of the logarithm of a norm: within 0.4% over 12 decades
_DECADES = 30  # of norms, at most
_LEAST_SHARE = 0.35  # of its bits that a value still needs when compressed


class Blob:
    """One run of bytes, and where each array lies in it: {"at", "count", "type"}."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._length = 0

    def add(self, array: Array, kind: str) -> dict[str, Any]:
        """An array as it is; ``kind`` is a NumPy type, little-endian."""
        data = np.ascontiguousarray(array, dtype=np.dtype(kind).newbyteorder("<")).tobytes()
        return self._added(data, int(np.size(array)), kind)

    def add_levels(self, levels: Array, bits: int) -> dict[str, Any]:
        """Levels of this many bits. Above 8, all high bytes come before all low ones, which
        compresses better."""
        if bits <= 8:
            return self.add(levels, "u1")
        wide = np.ascontiguousarray(levels, np.uint16)
        data = (wide >> 8).astype(np.uint8).tobytes() + (wide & 255).astype(np.uint8).tobytes()
        return self._added(data, wide.size, "u2 planes")

    def _added(self, data: bytes, count: int, kind: str) -> dict[str, Any]:
        padded = data + bytes(-len(data) % 8)  # so that a view on any type may begin there
        place = {"at": self._length, "count": count, "type": kind}
        self._parts.append(padded)
        self._length += len(padded)
        return place

    def compressed(self) -> bytes:
        return zlib.compress(b"".join(self._parts), 6)


def linear(blob: Blob, values: Array, bits: int) -> dict[str, Any]:
    """[T,H] unit by unit, as levels between the least and the greatest value."""
    low, high = float(values.min()), float(values.max())
    most = 2**bits - 1
    step = (high - low) / most or 1.0
    levels = np.rint((values.T.astype(np.float64) - low) / step)
    return {"low": low, "step": step, **blob.add_levels(levels.clip(0, most), bits)}


def logarithmic(blob: Blob, norms: Array) -> dict[str, Any]:
    """Norms, by their logarithm. Level 0 is 0 or far smaller than the greatest norm; overflowed
    norms count as the greatest finite one."""
    most = 2**_FLOW_BITS - 1
    with np.errstate(divide="ignore"):
        places = np.log10(np.nan_to_num(norms.astype(np.float64), nan=np.inf, posinf=np.inf))
    there = places[np.isfinite(places)]
    high = float(there.max(initial=-300))
    low = max(float(there.min(initial=high)), high - _DECADES)
    step = (high - low) / (most - 1) or 1.0
    levels = np.where(places >= low, 1 + np.rint((places.clip(low, high) - low) / step), 0)
    return {"low": low, "step": step, **blob.add_levels(levels.clip(0, most), _FLOW_BITS)}


def as_small_as(
    megabytes: float, values: int, write: Callable[[Blob, int], dict[str, Any]]
) -> tuple[dict[str, Any], str, int]:
    """What ``write`` returns for the arrays it adds to a blob, the blob in base64, and the bits per
    value: as many as fit into ``megabytes``, but no fewer than the last entry of BITS."""
    room = megabytes * 1e6 * 3 / 4
    for bits in BITS:
        if values * bits / 8 * _LEAST_SHARE > room and bits != BITS[-1]:
            continue
        blob = Blob()
        said = write(blob, bits)
        data = blob.compressed()
        if len(data) <= room or bits == BITS[-1]:
            break
    return said, base64.b64encode(data).decode(), bits
