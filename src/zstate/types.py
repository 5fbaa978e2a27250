"""The types that the modules share: the array alias and the four float types."""

from __future__ import annotations

from enum import Enum
from operator import index
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Value: TypeAlias = Any  # an array of whichever library: NumPy's or torch's
Shape: TypeAlias = tuple[int, ...]
PartialShape: TypeAlias = tuple[int | None, ...]  # a None is known at run time only

FLOAT_NAMES = ("float16", "bfloat16", "float32", "float64")


def as_integer(value: Any) -> int | None:
    """An integer of any library as an int; None for everything else, bools and enums included."""
    if isinstance(value, bool | np.bool_ | Enum):
        return None
    try:
        return index(value)
    except TypeError:
        return None


def float_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of one of the four names; bfloat16 comes from ml_dtypes."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise ImportError(
            "bfloat16 arrays need ml_dtypes: pip install 'zstate[bfloat16]'"
        ) from error
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16
