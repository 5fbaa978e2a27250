"""Arrays that look unusual but are legal give the same numbers as plain ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.cases import CELLS, DIRECTIONS, Array, Tolerance, all_inputs, assert_close
from tests.core.calls import KINDS, arguments, call, full


def strided(array: Array) -> Array:
    """Every second element along each axis of something larger."""
    large = np.full([2 * n for n in array.shape], np.nan)
    view = large[tuple(slice(None, None, 2) for _ in array.shape)]
    view[...] = array
    return view


def negative(array: Array) -> Array:
    flip = tuple(slice(None, None, -1) for _ in array.shape)
    return array[flip].copy()[flip]


def misaligned(array: Array) -> Array:
    raw = np.zeros(array.nbytes + 1, np.uint8)[1:]
    made = raw.view(array.dtype).reshape(array.shape) if array.size else array.copy()
    made[...] = array
    return made


def from_a_record(array: Array) -> Array:
    """A field of a structured array: the step between elements is no multiple of their size."""
    records = np.zeros(array.shape, dtype=[("mark", "i4"), ("value", "f8")])
    records["value"] = array
    return records["value"]


def read_only(array: Array) -> Array:
    made = array.copy()
    made.flags.writeable = False
    return made


LAYOUTS = {
    "strided": strided,
    "negative": negative,
    "fortran": lambda array: array.copy(order="F"),
    "transposed": lambda array: array.T.copy().T,
    "misaligned": misaligned,
    "record": from_a_record,
    "read_only": read_only,
}


@pytest.mark.parametrize("made", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("projected", [False, True])
def test_any_memory_layout(
    projected: bool, cell: str, direction: str, kind: str, made: str
) -> None:
    case = full(cell, direction)
    if projected:
        case = replace(case, inputs=all_inputs(cell, "input_weight"))
    tensors = arguments(case, kind)
    plain = {name: array.copy() for name, array in tensors.items()}
    unusual = {name: LAYOUTS[made](array) for name, array in tensors.items()}
    expected = call(case, kind, plain)
    found = call(case, kind, unusual)
    for name, x, y in zip(expected._fields, found, expected, strict=True):
        if y is None:
            assert x is None, name
        else:
            assert_close(x, y, name, Tolerance(1e-14, 1e-14))
    for name, array in tensors.items():
        np.testing.assert_array_equal(unusual[name], array)
        np.testing.assert_array_equal(plain[name], array)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cell", CELLS)
def test_broadcast_arrays(cell: str, kind: str) -> None:
    """Steps of zero bytes: one batch entry stands for all."""
    case = full(cell)
    tensors = arguments(case, kind)
    wide = dict(tensors)
    for name in ("source", "mask", "init_state", "source_gradient", "state_gradient"):
        if name in tensors:
            axis = 0 if tensors[name].ndim == 2 else 1
            first = tensors[name].take([0], axis)
            wide[name] = np.broadcast_to(first, tensors[name].shape)
    plain = {name: np.array(array) for name, array in wide.items()}
    for x, y in zip(call(case, kind, wide), call(case, kind, plain), strict=True):
        assert_close(x, y, cell, Tolerance(1e-14, 1e-14))


@pytest.mark.parametrize("sizes", [{"T": 0}, {"N": 0}, {"I": 0}, {"T": 0, "N": 0, "I": 0}])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cell", CELLS)
def test_empty_arrays_of_any_layout(cell: str, kind: str, sizes: dict[str, int]) -> None:
    case = full(cell, "bidirectional", **sizes)
    tensors = arguments(case, kind)
    expected = call(case, kind, tensors)
    for made in LAYOUTS.values():
        found = call(case, kind, {name: made(array) for name, array in tensors.items()})
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cell", CELLS)
def test_an_array_from_a_file(cell: str, kind: str, tmp_path: Any) -> None:
    case = full(cell)
    tensors = arguments(case, kind)
    mapped = {}
    for name, array in tensors.items():
        np.save(tmp_path / f"{name}.npy", array)
        mapped[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
    for x, y in zip(call(case, kind, mapped), call(case, kind, tensors), strict=True):
        np.testing.assert_array_equal(x, y)
        assert type(x) is np.ndarray


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cell", CELLS)
def test_results_may_be_written_to(cell: str, kind: str) -> None:
    """They are the caller's: writable, and in nobody else's memory."""
    case = full(cell, "bidirectional")
    tensors = arguments(case, kind)
    copies = {name: array.copy() for name, array in tensors.items()}
    first = call(case, kind, tensors)
    kept = [array.copy() for array in first]
    for array in first:
        array[...] = np.nan
    for name, array in tensors.items():
        np.testing.assert_array_equal(array, copies[name])
    for x, y in zip(call(case, kind, tensors), kept, strict=True):
        np.testing.assert_array_equal(x, y)
