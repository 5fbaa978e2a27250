"""Number types in the graph: casts, float32 sums of 16-bit types, integers and indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import zstate as zs
from tests.graph.op_cases import ADAM, adam_by_hand


def test_cast_gives_the_gradient_back_in_its_type() -> None:
    g = zs.Graph()
    a = g.placeholder(shape=(3,), dtype="float64")
    loss = g.reduction_sum(g.square(g.cast(a, "float32")))
    d = g.gradients(loss, [a])[a]
    found = g.run({a: np.array([1.0, 2.0, 3.0])}, [d])[d]
    assert found.dtype == np.float64
    assert found.tolist() == [2, 4, 6]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_sum_in_float32(dtype: str) -> None:
    """4096 ones and a product of 4096 terms: in float16 or bfloat16 sums both would stop early."""
    kind = zs.types.float_dtype(dtype)
    g = zs.Graph()
    a = g.placeholder(shape=(1, 4096), dtype=dtype)
    b = g.placeholder(shape=(4096, 1), dtype=dtype)
    results = [g.reduction_sum(a), a @ b, g.mean(a), g.soft_max(a, axis=1), g.sigmoid(a)]
    results.append(g.soft_max_cross_entropy(a, a, axis=1))
    results += g.adam(**ADAM, values=a, momentum=a, velocity=a, gradient=a)
    ones = np.ones((1, 4096), kind)
    found = g.run({a: ones, b: ones.T}, results)
    assert [float(found[t].ravel()[0]) for t in results[:3]] == [4096, 4096, 1]
    assert float(found[results[3]].astype(np.float64).sum()) == pytest.approx(1, rel=1e-2)
    assert float(found[results[5]]) == pytest.approx(4096 * np.log(4096), rel=1e-2)
    assert float(found[results[6]][0, 0]) == pytest.approx(adam_by_hand(*[1.0] * 4)[0], rel=1e-2)
    assert all(found[t].dtype == kind for t in results)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_half_types_scatter_in_float32(dtype: str, library: str) -> None:
    """4096 ones added at one place: the sum of what gather and its kind took from there."""
    g = zs.Graph()
    table = g.placeholder(shape=(2, 1), dtype=dtype)
    indices = g.placeholder(shape=(4096, 1), dtype="int64")
    results = [
        g.gradients(taken, [table])[table]
        for taken in (
            g.gather(table, indices),
            g.gather_along_axis(table, indices, 0),
            g.pad_tensor(table, [4095, 0], [0, 0], padding_mode="clamp_to_edge"),
        )
    ]
    zeros = np.zeros((4096, 1), np.int64)
    feeds: dict[zs.Tensor, Any] = {
        table: np.zeros((2, 1), zs.types.float_dtype(dtype)),
        indices: zeros,
    }
    if library == "torch":
        feeds = {
            table: torch.zeros(2, 1, dtype=getattr(torch, dtype)),
            indices: torch.tensor(zeros),
        }
    found = g.run(feeds, results)
    for tensor, last in zip(results, (0, 0, 1), strict=True):
        assert [float(value) for value in found[tensor].ravel()] == [4096, last]
        assert str(found[tensor].dtype).removeprefix("torch.") == dtype


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "int16"])
@pytest.mark.parametrize("convert", [np.asarray, torch.tensor])
def test_indices_of_every_integer_type(dtype: str, convert: Callable[..., Any]) -> None:
    g = zs.Graph()
    i = g.placeholder(shape=(3,), dtype=dtype)
    table = g.variable(np.arange(8.0).reshape(4, 2))
    rows = g.gather(table, i)
    results = [rows, g.gradients(rows, [table])[table], g.one_hot(i, 4)]
    found = g.run({i: convert(np.array([3, 0, 3], dtype))}, results)
    arrays = [np.asarray(found[t]).tolist() for t in results]
    assert arrays[0] == [[6, 7], [0, 1], [6, 7]]
    assert arrays[1] == [[1, 1], [0, 0], [0, 0], [2, 2]]
    assert arrays[2] == [[0, 0, 0, 1], [1, 0, 0, 0], [0, 0, 0, 1]]


def test_integers() -> None:
    g = zs.Graph()
    a = g.placeholder(shape=(3,), dtype="int32")
    results = [a + 1, a * a, g.reduction_sum(a), g.maximum(a, 2), g.cast(a, "float32")]
    found = g.run({a: np.array([1, 2, 3], np.int32)}, results)
    assert [found[t].tolist() for t in results] == [[2, 3, 4], [1, 4, 9], [6], [2, 2, 3], [1, 2, 3]]
    assert [found[t].dtype.name for t in results] == ["int32"] * 4 + ["float32"]
