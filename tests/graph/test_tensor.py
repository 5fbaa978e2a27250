"""A tensor of a graph has no values: what needs them raises by name, what can be built is built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import zstate as zs

ARRAY = np.arange(12, dtype=np.float32).reshape(4, 3)

REFUSED: dict[str, Callable[[Any], Any]] = {
    "bool": bool,
    "not": lambda x: not x,
    "and": lambda x: x and x,
    "chained comparison": lambda x: 0 < x < 1,
    "max": lambda x: max(x, x),
    "float": float,
    "int": int,
    "iter": list,
    "unpacking": lambda x: (lambda a, b: a)(*x),
    "in": lambda x: 0 in x,
    "== number": lambda x: x == 0,
    "!= number": lambda x: x != 0,
    "== array": lambda x: x == ARRAY,
    "array ==": lambda x: ARRAY == x,  # noqa: SIM300
    "scalar ==": lambda x: np.float32(1) == x,
    "np.sum": np.sum,
    "np.exp": np.exp,
    "np.add.reduce": np.add.reduce,
    "np.array": np.array,
    "np.asarray of a list": lambda x: np.asarray([x, x]),
    "np.concatenate": lambda x: np.concatenate([x, x]),
    "np.testing": lambda x: np.testing.assert_array_equal(x, ARRAY),
    "array +": lambda x: ARRAY + x,
    "+ array": lambda x: x + ARRAY,
    "array @": lambda x: ARRAY.T @ x,
    "@ array": lambda x: x @ ARRAY.T,
    "array <": lambda x: ARRAY < x,  # noqa: SIM300
    "torch +": lambda x: torch.ones(3) + x,
    "+ torch": lambda x: x + torch.ones(3),
    "index by a tensor": lambda x: x[x],
    "index by a bool": lambda x: x[True],
    "index by a float": lambda x: x[1.0],
    "index by an array": lambda x: x[np.array([0, 1])],
    "slice by a float": lambda x: x[:1.5],
}


@pytest.mark.parametrize("act", REFUSED.values(), ids=REFUSED)
def test_what_needs_values_is_refused(act: Callable[[Any], Any]) -> None:
    x = zs.Graph().placeholder(shape=(4, 3), name="x")
    with pytest.raises(TypeError, match=r"^\[.*\] \w+: expected .*, got ") as caught:
        act(x)
    assert isinstance(caught.value, zs.ZStateError)


def test_the_refusal_says_what_to_do() -> None:
    x = zs.Graph().placeholder(shape=(4, 3), name="x")
    with pytest.raises(
        TypeError,
        match=r"^\[np.sum\] tensor: expected values, got <Tensor x float32\[4,3\]>, which has no "
        r"values before a run; use the graph's own methods, such as graph.reduction_sum$",
    ):
        np.sum(x)
    with pytest.raises(TypeError, match=r"\[bool\(\)\] .*use graph.select, or the array that"):
        bool(x)


@pytest.mark.parametrize("key", [4, -5, (0, 3), (0, 0, 0), slice(None, None, -1), (..., ...)])
def test_an_index_outside_is_refused(key: Any) -> None:
    x = zs.Graph().placeholder(shape=(4, 3), name="x")
    with pytest.raises(zs.ShapeError, match=r"^\[getitem\] "):
        x[key]


KEYS: list[Any] = [
    *(0, -1, np.int64(2), (1, 2), (-4, -3), slice(1, 3), slice(None, None, 2), slice(-3, -1)),
    *(slice(0, 4, 3), (slice(None), 1), (..., -1), (None, 2), (1, None), (..., None), ()),
    *((slice(1, None), None, slice(None, 2)), (None, ..., 1, None), ...),
]


@pytest.mark.parametrize("key", KEYS, ids=str)
@pytest.mark.parametrize("shape", [(4, 3), (None, None)])
def test_indices_are_those_of_numpy(key: Any, shape: tuple[int | None, ...]) -> None:
    g = zs.Graph()
    x = g.placeholder(shape=shape, name="x")
    taken = x[key]
    found = g.run({x: ARRAY}, [taken])[taken]
    np.testing.assert_array_equal(found, ARRAY[key])
    assert all(a in (None, b) for a, b in zip(taken.shape, found.shape, strict=True))


def test_an_index_outside_an_axis_whose_size_a_run_tells() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(None, 2), name="x")
    for key in (3, -4):
        y = x[key]
        with pytest.raises(zs.ShapeError, match=r"an index tensor\[k\] that is outside its axis"):
            g.run({x: np.ones((3, 2), np.float32)}, [y])


def test_an_index_has_a_gradient() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(4, 3), name="x")
    dx = g.gradients(g.reduction_sum(g.square(x[1:3, 0])), [x])[x]
    wanted = np.zeros_like(ARRAY)
    wanted[1:3, 0] = 2 * ARRAY[1:3, 0]
    np.testing.assert_array_equal(g.run({x: ARRAY}, [dx])[dx], wanted)


def test_operators_build() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(4, 3), name="x")
    two = np.float32(2)
    built: dict[zs.Tensor, Any] = {
        x < 5: ARRAY < 5,
        x <= 5: ARRAY <= 5,
        5 > x: ARRAY < 5,  # noqa: SIM300
        x >= x: ARRAY >= ARRAY,
        two < x: two < ARRAY,
        two * x: two * ARRAY,
        two - x: two - ARRAY,
        two / (x + 1.0): two / (ARRAY + 1),
        2**x: 2**ARRAY,
        two**x: two**ARRAY,
        abs(-x): ARRAY,
        sum([x, x]): ARRAY * 2,
    }  # fmt: skip
    for tensor, array in g.run({x: ARRAY}, list(built)).items():
        np.testing.assert_array_equal(array, built[tensor])


def test_the_length_is_the_first_size() -> None:
    g = zs.Graph()
    assert len(g.placeholder(shape=(4, 3))) == 4
    for shape in [(None, 3), ()]:
        with pytest.raises(TypeError, match=r"\[len\(\)\] tensor: expected values, got <Tensor"):
            len(g.placeholder(shape=shape))


def test_tensors_are_keys() -> None:
    g = zs.Graph()
    x, y = g.placeholder(shape=(2,)), g.placeholder(shape=(2,))
    found = {x: 1, y: 2}
    assert (found[x], found[y]) == (1, 2)
    assert x == x
    assert x != y
    assert x != None  # noqa: E711
    assert x in [y, x]
    assert [y, x].index(x) == 1
    assert x not in {y}
