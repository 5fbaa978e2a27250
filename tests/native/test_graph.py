"""The engine's operations for the graph: cross entropy, Adam, rows by index, each against its
formula in float64, and against what the graph composes of NumPy's functions without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import zstate as zs
from zstate.arrays import NumPyNamespace
from zstate.backends import native
from zstate.types import Array

pytestmark = pytest.mark.skipif(
    native.unavailable() is not None, reason="built without a C++ compiler"
)
DTYPES = {"float32": 2.0**-24, "float64": 2.0**-53}
SHAPES = [(1, 1), (3, 5), (7, 16), (5, 17), (2, 103), (64, 33), (4, 3, 9), (6,)]


def draw(shape: tuple[int, ...], dtype: str, seed: int = 0, scale: float = 1.0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)


def exact_entropy(source: Array, labels: Array) -> tuple[Array, Array]:
    """The loss of every position, and the softmax, in float64."""
    x, y = source.astype(np.float64), labels.astype(np.float64)
    raised = np.exp(x - x.max(-1, keepdims=True))
    soft_max = raised / raised.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return -np.where(y == 0, 0, y * np.log(soft_max)).sum(-1), soft_max


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_cross_entropy(isa: str, shape: tuple[int, ...], dtype: str, scale: float) -> None:
    source, labels = draw(shape, dtype, 1, scale), abs(draw(shape, dtype, 2))
    loss, soft_max = native.fused("soft_max_cross_entropy", source, labels)
    wanted_loss, wanted = exact_entropy(source, labels)
    assert loss.dtype == soft_max.dtype == dtype
    assert loss.shape == shape[:-1] and soft_max.shape == shape
    unit = DTYPES[dtype]
    # exp's argument, up to 10·scale, is rounded; the sums have as many terms as there are classes.
    relative = (shape[-1] + 10 * scale + 10) * unit
    smallest = 2 * np.finfo(dtype).smallest_subnormal  # the last bit of a result that underflows
    np.testing.assert_allclose(soft_max, wanted, rtol=relative, atol=float(smallest))
    size = (labels.sum(-1) + 1) * (abs(source).max() + 10)
    assert (abs(loss - wanted_loss) <= relative * size).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("by_row", [False, True])
def test_cross_entropy_gradient(isa: str, shape: tuple[int, ...], dtype: str, by_row: bool) -> None:
    soft_max, labels = abs(draw(shape, dtype, 3)), abs(draw(shape, dtype, 4))
    factor = draw((*shape[:-1], 1), dtype, 5) if by_row else np.array(0.25, dtype)
    found = native.fused("soft_max_cross_entropy_gradient", factor, soft_max, labels)
    s, y, f = (array.astype(np.float64) for array in (soft_max, labels, factor))
    weight = y.sum(-1, keepdims=True)
    assert found.dtype == dtype and found.shape == shape
    bound = (shape[-1] + 4) * DTYPES[dtype] * (s * weight + y) * abs(f)
    assert (abs(found - (s * weight - y) * f) <= bound).all()


ADAM = (0.01, 0.9, 0.1, 0.99, 0.01, 1e-8)


@pytest.mark.parametrize("count", [1, 7, 16, 33, 1000])
@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("keeps_largest", [False, True])
def test_adam(isa: str, count: int, dtype: str, keeps_largest: bool) -> None:
    values, m, gradient = (draw((count,), dtype, seed) for seed in (1, 2, 3))
    v, largest = (abs(draw((count,), dtype, seed)) + np.array(0.1, dtype) for seed in (4, 5))
    arrays = (values, m, v, gradient, *([largest] if keeps_largest else []))
    found = native.fused("adam", arrays, ADAM)
    rate, beta1, rest1, beta2, rest2, epsilon = ADAM
    p, m, v, g = (array.astype(np.float64) for array in (values, m, v, gradient))
    new_m, new_v = beta1 * m + rest1 * g, beta2 * v + rest2 * g * g
    top = np.maximum(new_v, largest) if keeps_largest else new_v
    wanted = [p - rate * new_m / (np.sqrt(top) + epsilon), new_m, new_v, top][: len(found)]
    sizes = [abs(p) + rate * (abs(m) + abs(g)) / np.sqrt(top), abs(m) + abs(g), new_v, top]
    assert len(found) == (4 if keeps_largest else 3)
    for array, exact, size in zip(found, wanted, sizes, strict=False):
        assert array.dtype == dtype
        assert (abs(array - exact) <= 8 * DTYPES[dtype] * size).all()


@pytest.mark.parametrize("width", [(), (1,), (5,), (16,), (17,), (3, 11), (1030,)])
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_rows(isa: str, width: tuple[int, ...], dtype: str) -> None:
    places = np.random.default_rng(1).integers(0, 9, 50)
    places[places == 4] = 5  # a row that nothing is added to
    table, updates = draw((9, *width), dtype, 1), draw((50, *width), dtype, 2)
    np.testing.assert_array_equal(native.fused("take_rows", table, places), table[places])
    by_two = places.reshape(5, 10)
    np.testing.assert_array_equal(native.fused("take_rows", table, by_two), table[by_two])
    found = native.fused("add_rows", updates, places, 9)
    total, size = np.zeros((9, *width)), np.zeros((9, *width))
    np.add.at(total, places, updates)
    np.add.at(size, places, abs(updates))
    assert found.dtype == dtype and found.shape == table.shape
    assert (abs(found - total) <= 50 * DTYPES[dtype] * size).all()
    assert (found[4] == 0).all()


def calls() -> dict[str, Callable[[], Any]]:
    source, labels = draw((257, 103), "float32", 1), abs(draw((257, 103), "float32", 2))
    places = np.random.default_rng(3).integers(0, 20, 257)
    arrays = tuple(abs(draw((4099,), "float32", seed)) for seed in range(5))
    return {
        "loss": lambda: native.fused("soft_max_cross_entropy", source, labels),
        "gradient": lambda: (native.fused("soft_max_cross_entropy_gradient", 0.1, source, labels),),
        "adam": lambda: native.fused("adam", arrays, ADAM),
        "take": lambda: (native.fused("take_rows", source, places),),
        "add": lambda: (native.fused("add_rows", source, places, 20),),
    }


@pytest.mark.parametrize("name", list(calls()))
def test_the_same_bits_for_every_thread_count(isa: str, name: str) -> None:
    before = zs.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            zs.set_num_threads(threads)
            found.append(calls()[name]())
    finally:
        zs.set_num_threads(before)
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


def test_a_nan_stays_in_its_row(isa: str) -> None:
    for column in (0, 5, 18):
        source, labels = draw((4, 19), "float32", 1), abs(draw((4, 19), "float32", 2))
        expected = native.fused("soft_max_cross_entropy", source, labels)
        source[2, column] = np.nan
        found = native.fused("soft_max_cross_entropy", source, labels)
        for array, before in zip(found, expected, strict=True):
            assert np.isnan(array[2]).all()
            np.testing.assert_array_equal(np.delete(array, 2, 0), np.delete(before, 2, 0))
    gradient = draw((19,), "float32", 3)
    gradient[7] = np.nan
    ones = np.ones(19, "float32")
    for array in native.fused("adam", (ones, ones, ones, gradient, ones), ADAM):
        assert np.flatnonzero(np.isnan(array)).tolist() == [7]
    largest = np.where(np.arange(19) == 3, np.nan, 1).astype("float32")
    found = native.fused("adam", (ones, ones, ones, ones, largest), ADAM)
    assert np.flatnonzero(np.isnan(found[0])).tolist() == [3]
    assert np.flatnonzero(np.isnan(found[3])).tolist() == [3]
    total = native.fused("add_rows", gradient[:, None].repeat(3, 1), np.arange(19) % 5, 5)
    assert np.flatnonzero(np.isnan(total).any(1)).tolist() == [2]


def test_infinities_are_numpys(isa: str) -> None:
    source = np.zeros((3, 19), "float32")
    source[0, 3], source[1, 4], source[2] = -np.inf, 200, -np.inf
    loss, soft_max = native.fused("soft_max_cross_entropy", source, np.eye(3, 19, dtype="float32"))
    np.testing.assert_allclose(soft_max[0], np.where(np.arange(19) == 3, 0, 1 / 18), rtol=1e-6)
    np.testing.assert_array_equal(soft_max[1], np.arange(19) == 4)
    np.testing.assert_allclose(loss[1], 200)
    assert np.isnan(soft_max[2]).all() and np.isnan(loss[2])


def unserved() -> dict[str, Array]:
    good = np.ones((6, 8), "float32")
    return {
        "another type": good.astype("float16"),
        "integers": good.astype("int32"),
        "swapped": good.astype(">f4"),
        "steps": np.ones((6, 16), "float32")[:, ::2],
        "transposed": np.ones((8, 6), "float32").T,
        "a subclass": np.ma.ones((6, 8), "float32"),
        "empty": np.ones((0, 8), "float32"),
        "unaligned": np.frombuffer(bytes(6 * 8 * 4 + 1), "uint8")[1:].view("float32").reshape(6, 8),
    }


@pytest.mark.parametrize("name", list(unserved()))
def test_other_arrays_are_left_to_numpy(name: str) -> None:
    odd, places = unserved()[name], np.zeros(len(unserved()[name]), np.int64)
    good = np.ones(odd.shape, "float32")
    for one, two in ((odd, odd), (odd, good), (good, odd)):
        assert native.fused("soft_max_cross_entropy", one, two) is None
        assert native.fused("soft_max_cross_entropy_gradient", 1.0, one, two) is None
        assert native.fused("adam", (one, two, one, two), ADAM) is None
    assert native.fused("take_rows", odd, places) is None
    assert native.fused("add_rows", odd, places, 3) is None


def test_arrays_that_do_not_fit_are_left_to_numpy() -> None:
    a, b = np.ones((4, 5), "float32"), np.ones((5, 4), "float32")
    assert native.fused("soft_max_cross_entropy", a, b) is None
    assert native.fused("soft_max_cross_entropy_gradient", np.ones((5, 1), "float32"), a, a) is None
    assert native.fused("adam", (a, a, b, a), ADAM) is None
    assert native.fused("adam", (a, a, a, a), (np.ones(1, "float32"), *ADAM[1:])) is None
    for places in ([0, 4], [-1, 0]):
        assert native.fused("take_rows", a, np.array(places)) is None
        assert native.fused("add_rows", a[:2], np.array(places), 4) is None
    assert native.fused("take_rows", a, np.zeros(2, np.int32)) is None
    assert native.fused("add_rows", a, np.zeros(3, np.int64), 4) is None
    assert native.fused("add_rows", a, np.zeros(4, np.int64), 0) is None
    assert native.fused("take_rows", a, np.zeros((0,), np.int64)).shape == (0, 5)


def model(dtype: str, reduction: str) -> Array:
    """The variables of a small model after two steps: a table, its cross entropy, Adam."""
    g = zs.Graph()
    ids = np.random.default_rng(0).integers(0, 11, (5, 6)).astype(np.int32)
    table = g.variable(draw((11, 13), dtype, 1), name="table")
    weight = g.constant(draw((13, 7), dtype, 2))
    labels = g.one_hot(g.constant(ids % 7), 7, dtype=dtype)
    logits = g.gather(table, g.constant(ids)) @ weight
    loss = g.soft_max_cross_entropy(logits, labels, axis=-1, reduction=reduction)
    gradient = g.gradients(of=loss, with_respect_to=[table])[table]
    zeros = g.constant(0.0, shape=(11, 13), dtype=dtype)
    names = ("learning_rate", "beta1", "beta2", "epsilon", "beta1_power", "beta2_power")
    numbers = dict(zip(names, (0.1, 0.9, 0.99, 1e-3, 0.9, 0.99), strict=True))
    found = g.adam(**numbers, values=table, momentum=zeros, velocity=zeros, gradient=gradient)  # type: ignore[arg-type]
    program = g.compile(feeds={}, targets=[loss], operations=[g.assign(table, found[0])])
    program.run([])
    program.run([])
    return g.variables()["table"]


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_a_model_with_and_without_them(
    reduction: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []

    def counted(name: str, *values: Any) -> Any:
        found = native.fused(name, *values)
        if found is not None:
            used.append(name)
        return found

    monkeypatch.setattr(NumPyNamespace, "fused", staticmethod(counted))
    monkeypatch.setattr("zstate.arrays.fused", counted)
    first = model(dtype, reduction)
    rows = {"take_rows", "add_rows"} if dtype != "float16" else set()
    assert set(used) == {
        *("soft_max_cross_entropy", "soft_max_cross_entropy_gradient", "adam"),
        *rows,
    }
    monkeypatch.setattr(NumPyNamespace, "fused", staticmethod(lambda name, *values: None))
    monkeypatch.setattr("zstate.arrays.fused", lambda name, *values: None)
    second = model(dtype, reduction)
    tolerance = {"float32": 1e-5, "float64": 1e-13, "float16": 4e-3}[dtype]
    np.testing.assert_allclose(first, second, rtol=tolerance, atol=tolerance)
