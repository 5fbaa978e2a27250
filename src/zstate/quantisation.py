"""Weights in 8 bits: what int8 means everywhere in zstate.

A weight is symmetric and has one scale per output row: w[j,k] ≈ q[j,k]·scale[j] with q in
[-127, 127]. What it multiplies is quantised in the same way, row by row, when it is multiplied
(``quantise_rows`` of float32). Products are summed in integers, so a sum is the same on every
machine; the cell computes in float32.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .errors import OptionError, refusal
from .types import Array

LARGEST = 127  # -128 is not used: a product of two rows then fits in the sums of every instruction
# Beyond this length an integer sum could leave 32 bits.
MOST_VALUES = (2**31 - 1) // (LARGEST * LARGEST)


class Quantised(NamedTuple):
    """Integers int8 […,rows,K], and the scale of each row float32 […,rows]."""

    values: Array
    scale: Array

    def restored(self, dtype: str = "float32") -> Array:
        """The floats that the integers represent."""
        restored: Array = (self.values * self.scale[..., None].astype(np.float64)).astype(dtype)
        return restored


def quantise_weight(operation: str, name: str, weight: Array) -> Quantised:
    """A weight […,rows,K] in 8 bits; refuses what has no place there."""
    wide = np.asarray(weight, dtype=np.float64)
    if not np.isfinite(wide).all():
        raise OptionError(refusal(operation, name, "finite weights for int8", "inf or nan"))
    if wide.shape[-1] > MOST_VALUES:
        expected = f"at most {MOST_VALUES} inputs for int8"
        raise OptionError(refusal(operation, name, expected, str(wide.shape[-1])))
    largest = np.abs(wide).max(axis=-1, initial=0.0)
    # The scale is float32, as everything that multiplies it: integers are rounded with that one.
    scale = (largest / LARGEST).astype(np.float32)
    steps = np.where(scale > 0, scale, 1).astype(np.float64)[..., None]
    values = np.clip(np.rint(wide / steps), -LARGEST, LARGEST).astype(np.int8)
    return Quantised(values, scale)


def quantise_rows(values: Array) -> Quantised:
    """Activations float32 […,K] as an engine quantises them: every step in float32.

    A row whose largest value is too small for 127/largest to be finite counts as zeros. The scale
    of a row that is not finite is NaN, and so is whatever it multiplies.
    """
    rows = np.asarray(values, dtype=np.float32)
    largest = np.abs(rows).max(axis=-1, initial=0.0)
    with np.errstate(all="ignore"):
        factor = np.float32(LARGEST) / largest
    usable = np.isfinite(factor) & np.isfinite(largest)
    factor = np.where(usable, factor, np.float32(0))
    finite: Array = np.asarray(np.isfinite(rows).all(axis=-1))
    safe = np.where(finite[..., None], rows, np.float32(0))
    integers = np.clip(np.rint(safe * factor[..., None]), -LARGEST, LARGEST).astype(np.int8)
    scale = np.where(usable, largest * np.float32(1 / LARGEST), np.float32(0))
    return Quantised(integers, np.where(finite, scale, np.float32(np.nan)).astype(np.float32))
