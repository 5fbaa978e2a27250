"""Files with int8 weights: a matrix NAME as integers, and NAME.scale float32 beside it.

There is one scale per output row (quantisation.py); it has the matrix's shape, but 1 along the axis
of the inputs, so that their product is the matrix.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..errors import ShapeError, refusal
from ..layout import brackets
from ..quantisation import quantise_weight
from ..types import Array
from .table import FRAMEWORKS, Framework
from .weights import Weights

_SCALE = ".scale"


def in_int8(weights: Weights) -> dict[str, Array]:
    """The arrays of layers with their matrices in 8 bits."""
    row = FRAMEWORKS[weights.framework]
    inputs = -2 if row.transposed else -1
    found: dict[str, Array] = {}
    for told, own in weights.parts(weights.framework):
        for name, array in own.items():
            whole = told.prefix + name
            if not _is_matrix(row, told.cell, name):
                found[whole] = array
                continue
            small = quantise_weight("convert", whole, np.moveaxis(array, inputs, -1))
            found[whole] = np.ascontiguousarray(np.moveaxis(small.values, -1, inputs))
            found[whole + _SCALE] = np.ascontiguousarray(np.expand_dims(small.scale, inputs))
    return found


def restored(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The same with floats for integers that have scales."""
    found = dict(arrays)
    for name, array in arrays.items():
        scale = arrays.get(name + _SCALE)
        if scale is None or array.dtype != np.int8:
            continue
        try:
            fits = np.broadcast_shapes(array.shape, scale.shape) == array.shape
        except ValueError:
            fits = False
        if not fits:
            expected = f"a shape that broadcasts to {brackets(array.shape)}"
            raise ShapeError(refusal("convert", name + _SCALE, expected, brackets(scale.shape)))
        found[name] = (array * scale.astype(np.float64)).astype(np.float32)
        del found[name + _SCALE]
    return found


def _is_matrix(row: Framework, cell: str, name: str) -> bool:
    roles = row.names[cell]
    own = [base for role in ("input", "recurrent", "joint") for base in roles.get(role, ())]
    return any(name.startswith(base) or name.endswith(f"/{base}") for base in own)
