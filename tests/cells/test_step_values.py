"""Calls with values per step are checked like those of the same cell without them."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest
import torch

import zstate as zs
from zstate import cells

T, N, I, H = 4, 2, 3, 5


@cells.cell(gates="f z", steps="k")
def cell_a(x, R, h, k):
    f = cells.sigmoid(x.f + R.f @ h)
    return (1 - k) * h + k * f * cells.tanh(x.z + R.z @ h)


@cells.cell(gates="f z")
def cell_b(x, R, h):
    f = cells.sigmoid(x.f + R.f @ h)
    return f * h + cells.tanh(x.z + R.z @ h)


def drawn(dtype="float64"):
    shapes = {"source": (T, N, I), "recurrent_weight": (2 * H, H), "input_weight": (2 * H, I)}
    shapes |= {"bias": (2 * H,), "init_h": (N, H), "mask": (1, N, H), "k": (T, N, 1)}
    rng = np.random.default_rng(2)
    return {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}


def converted(library, given):
    """The arrays as those of another library."""
    if library == "numpy":
        return dict(given)
    to = torch.tensor if library == "torch" else jax.numpy.asarray
    return {n: to(v) if isinstance(v, np.ndarray) else v for n, v in given.items()}


def refused(cell, given):
    with pytest.raises(zs.ZStateError) as caught:
        cell(**given)
    return type(caught.value), re.sub(r"^\[\w+\]", "", str(caught.value))


WRONG = {
    "integer source": {"source": np.ones((T, N, I), np.int32)},
    "complex weight": {"recurrent_weight": np.ones((2 * H, H), np.complex64)},
    "complex mask": {"mask": np.ones((1, N, H), np.complex64)},
    "another float type": {"bias": np.ones(2 * H, np.float16)},
    "another type of state": {"init_h": np.ones((N, H), np.float16)},
    "integer weight": {"input_weight": np.ones((2 * H, I), np.int32)},
    "no weight": {"recurrent_weight": None},
    "a number as weight": {"input_weight": 5},
    "a list as bias": {"bias": [1, 2]},
    "a list as source": {"source": [1, 2]},
    "a list as resets": {"resets": [[1]]},
    "resets of another shape": {"resets": np.ones((N, T), bool)},
    "a flat source": {"source": np.ones((T, I), np.float32)},
    "a wide source": {"source": np.ones((T, N, 7), np.float32), "input_weight": None},
    "a flat weight": {"input_weight": np.ones(1, np.float32)},
    "a short weight": {"input_weight": np.ones((4, I), np.float32)},
    "a weight of other inputs": {"input_weight": np.ones((2 * H, I + 1), np.float32)},
    "a number as recurrent weight": {"recurrent_weight": np.ones((), np.float32)},
    "a short bias": {"bias": np.ones(1, np.float32)},
    "a bias without axes": {"bias": np.ones((), np.float32)},
    "a bias that would broadcast": {"bias": np.ones((N, 2 * H), np.float32)},
    "a bias that would not": {"bias": np.ones((4, 1), np.float32)},
    "a wide state": {"init_h": np.ones((N, H + 1), np.float32)},
    "heads": {"heads": 3},
    "heads in an array": {"heads": np.array([1, 1])},
    "a bool as heads": {"heads": True},
}


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_errors_are_those_of_the_cell_without(library, wrong):
    given = converted(library, {**drawn("float32"), **wrong})
    without = {name: value for name, value in given.items() if name != "k"}
    assert refused(cell_a, given) == refused(cell_b, without)


@pytest.mark.parametrize(
    "wrong",
    [
        {"recurrent_weight": np.ones((2 * H, H), np.dtype(np.float32).newbyteorder())},
        {"source": np.full((T, N, I), "")},
        {"source": torch.ones(T, N, I)},
        {"bias": torch.ones(2 * H)},
    ],
    ids=["byte order", "text", "torch source", "torch bias"],
)
def test_errors_of_numpy_arrays(wrong):
    given = drawn("float32") | wrong
    without = {name: value for name, value in given.items() if name != "k"}
    assert refused(cell_a, given) == refused(cell_b, without)


VALUES = {
    "complex": (np.ones(1, np.complex64), "one of float16, bfloat16, float32, float64, got compl"),
    "boolean": (np.ones(1, bool), "one of float16, bfloat16, float32, float64, got bool"),
    "another": (np.ones(1, np.float16), "float32 like source, got float16"),
    "shape": (np.ones((3, 1), np.float32), "a shape that broadcasts to [T,N,H] = [4,2,5], got [3"),
    "axes": (np.ones((1, 1, 1, 1), np.float32), "a shape that broadcasts to [T,N,H] = [4,2,5], go"),
    "none": (None, "an array that broadcasts to [T,N,D·H], a value per step, got None"),
}


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
@pytest.mark.parametrize(("value", "message"), VALUES.values(), ids=VALUES.keys())
def test_the_values_are_checked(library, value, message):
    given = converted(library, {**drawn("float32"), "k": value})
    with pytest.raises(zs.ZStateError, match=re.escape(f"[cell_a] k: expected {message}")):
        cell_a(**given)


def test_dates_are_no_values():
    with pytest.raises(zs.DTypeError, match=r"k: expected one of .*, got datetime64\[s\]"):
        cell_a(**drawn() | {"k": np.zeros((T, N, 1), "M8[s]")})


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"h": np.ones((T, N, H), np.complex64)}, "source_gradient: expected one of float16"),
        ({"h": np.ones((T, N, H + 1), np.float32)}, "source_gradient: expected [T,N,H] = [4,2,5]"),
        ({"training_state": None}, "z_state: expected the training_state of the forward"),
        (
            {"training_state": np.ones((T, N, 2 * H), np.float32)},
            "z_state: expected [T,N,3H] = [4,2,15], got [4,2,10]",
        ),
        ({"bias": np.ones(1, np.float32)}, "bias: expected [2H] = [10], got [1]"),
        ({"k": np.ones(1, np.float16)}, "k: expected float32 like source, got float16"),
    ],
)
def test_gradients_are_checked_too(library, wrong, message):
    given = converted(library, drawn("float32"))
    out = cell_a(**given, training=True)
    wrong = converted(library, wrong)
    incoming = {"h": wrong.pop("h", out.h)}
    if "training_state" in wrong:
        out = out._replace(training_state=wrong.pop("training_state"))
    given |= wrong
    source, weight = given.pop("source"), given.pop("recurrent_weight")
    with pytest.raises(zs.ZStateError, match=re.escape(f"[cell_a_gradients] {message}")):
        cell_a.gradients(source, weight, out, incoming, **given)


def test_compiled_calls_are_checked():
    given = converted("torch", drawn())
    compiled = torch.compile(lambda g: cell_a(**g).h, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(given), cell_a(**given).h)
    with pytest.raises(Exception, match=r"bias: expected \[2H\] = \[10\], got \[1\]"):
        compiled(given | {"bias": torch.ones(1, dtype=torch.double)})


def test_autocast_is_that_of_other_cells():
    """A source in 16 bits beside weights in float32 is usual under autocast."""
    given = converted("torch", drawn("float32"))
    with torch.autocast("cpu"):
        assert cell_a(**given).h.dtype is torch.bfloat16
        found = cell_a(**given | {"source": given["source"].bfloat16()}).h
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found.float(), cell_a(**given).h, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("steps", [0, 3])
def test_gradients_without_steps_or_rows(library, steps):
    rows = 0 if steps else 2
    shapes = {"source": (steps, rows, I), "recurrent_weight": (2, 2 * H, H)}
    shapes |= {"input_weight": (4 * H, I), "bias": (4 * H,), "init_h": (rows, 2 * H)}
    shapes |= {"k": (steps, rows, 2 * H)}
    given = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    for k in (given["k"], np.ones((), np.float32)):
        arrays = converted(library, given | {"k": k})
        out = cell_a(**arrays, bidirectional=True, training=True)
        source, weight = arrays.pop("source"), arrays.pop("recurrent_weight")
        found = cell_a.gradients(source, weight, out, {}, **arrays, bidirectional=True)
        assert tuple(found.k.shape) == k.shape
        for name, shape in shapes.items():
            gradient = np.asarray(getattr(found, name))
            assert name == "k" or gradient.shape == shape
            np.testing.assert_array_equal(gradient, np.zeros_like(gradient))
