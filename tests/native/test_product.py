"""The engine's matrix product for the graph: every layout it takes, at sizes around its blocks."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import zstate as zs
from zstate.backends import native

pytestmark = pytest.mark.skipif(
    native.unavailable() is not None, reason="built without a C++ compiler"
)
SIZES = [
    (65, 65, 63),
    (1, 5000, 97),
    (97, 5000, 1),
    (2048, 100, 65),
    (130, 1025, 100),
    (7, 257, 513),
]
ROUNDING = {"float32": 2.0**-24, "float64": 2.0**-53}


def matrix(rows: int, columns: int, dtype: str, transposed: bool) -> np.ndarray:
    rng = np.random.default_rng(rows * 7919 + columns)
    values = rng.standard_normal((rows, columns)).astype(dtype)
    return np.asfortranarray(values) if transposed else values


@cache
def exact_product(size: tuple[int, int, int], dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """And how far off each element may be."""
    rows, length, columns = size
    a, b = matrix(rows, length, dtype, False), matrix(length, columns, dtype, False)
    # Every element is a sum of `length` products: its rounding is at most that of so many steps.
    sums = abs(a).astype(np.longdouble) @ abs(b)
    exact = a.astype(np.longdouble) @ b.astype(np.longdouble)
    return exact, (length + 1) * ROUNDING[dtype] * sums


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", list(ROUNDING))
@pytest.mark.parametrize(("left", "right"), [(False, False), (False, True), (True, False)])
def test_every_layout(
    isa: str, size: tuple[int, int, int], dtype: str, left: bool, right: bool
) -> None:
    rows, length, columns = size
    a, b = matrix(rows, length, dtype, left), matrix(length, columns, dtype, right)
    found = native._native.product(a, b)
    assert found is not None and found.dtype == dtype and found.flags.c_contiguous
    exact, bound = exact_product(size, dtype)
    assert (abs(found - exact) <= bound).all()


@pytest.mark.parametrize("left", [False, True])
def test_the_same_bits_for_every_thread_count(left: bool) -> None:
    a, b = matrix(257, 1030, "float32", left), matrix(1030, 100, "float32", False)
    before = zs.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            zs.set_num_threads(threads)
            found.append(native.product(a, b))
    finally:
        zs.set_num_threads(before)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_views() -> None:
    a, b = matrix(200, 300, "float32", False), matrix(300, 80, "float32", False)
    for one, other in ((a[::-1], b), (a[:, 4:260], b[4:260, 7:70]), (a[::3], b[:, ::-1])):
        expected = one.astype("float64") @ other.astype("float64")
        np.testing.assert_allclose(native.product(one, other), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.ones((4, 5), "float32"), np.ones((5, 6), "float32")),  # small
        (np.ones((100, 100), "float32"), np.ones((100, 100), "float64")),
        (np.ones((100, 100), "int32"), np.ones((100, 100), "int32")),
        (np.ones((100, 100), ">f4"), np.ones((100, 100), ">f4")),
        (np.ones((2, 100, 100), "float32"), np.ones((100, 100), "float32")),
        (np.ones((100, 200), "float32")[:, ::2], np.ones((100, 100), "float32")),
        (np.ones((100, 100), "float32").T, np.ones((100, 100), "float32").T),
        (np.ones((100, 0), "float32"), np.ones((0, 100), "float32")),
        (np.ma.ones((100, 100), "float32"), np.ones((100, 100), "float32")),
    ],
)
def test_numpy_does_the_rest(a: np.ndarray, b: np.ndarray) -> None:
    assert native._native.product(a, b) is None
    np.testing.assert_array_equal(native.product(a, b), np.matmul(a, b))


def test_matrices_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="mismatch"):
        native.product(np.ones((100, 100), "float32"), np.ones((101, 100), "float32"))
