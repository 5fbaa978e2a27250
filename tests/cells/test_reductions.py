"""Means and variances over the units of a row: of several values, and however they are written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zstate as zs
import zstate.onnx as zo
from zstate import cells
from zstate.cells import MadeCell
from zstate.cells.text import read_cell, write_cell

T, N, H = 3, 2, 5


def made(value: Callable[..., Any]) -> MadeCell:
    """A cell that adds a value of x, R h and h to each unit."""

    @cells.cell(gates="z")
    def step(x: Any, R: Any, h: Any) -> Any:
        product = x.z + R.z @ h
        return cells.tanh(product) + value(product, h)

    return step


def mean(*values: Any) -> Any:
    return sum(v.mean(-1, keepdims=True) for v in values) / len(values)


def variance(*values: Any) -> Any:
    middle = mean(*values)
    return mean(*((v - middle) ** 2 for v in values))


def long_variance(v: Any) -> Any:
    away = v - cells.mean(v)
    return cells.mean(away * away)


# The value in equations, the same in arrays, and what is printed of it.
WRITTEN: dict[str, tuple[Callable[..., Any], Callable[..., Any], str]] = {
    "of two": (lambda a, h: cells.mean(a, h), lambda a, h: mean(a, h), "mean(product, h)"),
    "variance of two": (lambda a, h: cells.variance(a, h), variance, "variance(product, h)"),
    "by hand": (lambda a, h: long_variance(h), lambda a, h: variance(h), "variance(h)"),
    "a half": (lambda a, h: cells.mean((a + h) / 2), mean, "mean((product + h)/2)"),
    "about a half": (
        lambda a, h: cells.mean((a + h) * 0.5000003),
        lambda a, h: mean(a, h) * 1.0000006,
        "mean((product + h)·0.5000003)",
    ),
    "nearly one": (
        lambda a, h: cells.mean(h * 1.0000009),
        lambda a, h: mean(h) * 1.0000009,
        "mean(h·1.0000009)",
    ),
    "twice the same": (
        lambda a, h: cells.variance(h, h, a),
        lambda a, h: variance(h, h, a),
        "variance(h, h, product)",
    ),
    "from another mean": (
        lambda a, h: cells.mean((h - cells.mean(a)) * (h - cells.mean(a))),
        lambda a, h: mean((h - mean(a)) ** 2),
        "mean(product)",
    ),
    "of means": (
        lambda a, h: cells.variance(cells.mean(h), h) * cells.mean(cells.variance(a), a),
        lambda a, h: variance(mean(h) + 0 * h, h) * mean(variance(a) + 0 * a, a),
        "variance(mean(h), h)",
    ),
}
every = pytest.mark.parametrize("name", WRITTEN)


def by_hand(name: str, x: Any, R: Any, h: Any) -> Any:
    steps = []
    for t in range(T):
        product = x[t] + h @ R.T
        tanh = torch.tanh if isinstance(x, torch.Tensor) else np.tanh
        h = tanh(product) + WRITTEN[name][1](product, h)
        steps.append(h)
    return (torch if isinstance(x, torch.Tensor) else np).stack(steps)


def drawn() -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=size) for size in ((T, N, H), (H, H), (N, H))]


class Torch(torch.Tensor):
    """A tensor whose mean() takes NumPy's words."""

    def mean(self, axis: int, keepdims: bool) -> Any:  # type: ignore[override]
        return super().mean(axis, keepdim=keepdims)


@every
@pytest.mark.parametrize("backend", ["reference", "native"])
def test_results_and_gradients(name: str, backend: str) -> None:
    cell, arrays = made(WRITTEN[name][0]), drawn()
    assert WRITTEN[name][2] in str(cell)
    leaves = [torch.tensor(each).as_subclass(Torch).requires_grad_() for each in arrays]
    wanted = by_hand(name, *leaves)
    dh = np.random.default_rng(1).normal(size=(T, N, H))
    gradients = torch.autograd.grad((wanted * torch.tensor(dh)).sum(), leaves)
    x, R, h = arrays
    found = cell(x, R, init_h=h, training=True, backend=backend)
    np.testing.assert_allclose(found.h, wanted.detach().numpy(), rtol=1e-10, atol=1e-11)
    back = cell.gradients(x, R, found, {"h": dh}, init_h=h, backend=backend)
    for mine, exact in zip(
        (back.source, back.recurrent_weight, back.init_h), gradients, strict=True
    ):
        np.testing.assert_allclose(mine, exact.numpy(), rtol=1e-8, atol=1e-10)


@every
def test_text_and_onnx(name: str, tmp_path: Path) -> None:
    cell, (x, R, h) = made(WRITTEN[name][0]), drawn()
    assert read_cell(write_cell(cell)).definition.key == cell.definition.key
    g = zs.Graph()
    source = g.placeholder(shape=(T, N, H), dtype="float32", name="x")
    state, *_ = g.recurrent(
        cell, source, recurrent_weight=g.constant(np.float32(R)), init_h=g.constant(np.float32(h))
    )
    path = tmp_path / "cell.onnx"
    zo.save(g, outputs={"y": state}, path=path)
    loaded = zo.load(path)
    wanted = cell(x, R, init_h=h).h
    np.testing.assert_allclose(loaded.run({"x": np.float32(x)})["y"], wanted, rtol=1e-4, atol=1e-5)


def test_a_division_by_zero_stays_one() -> None:
    cell, (x, R, h) = made(lambda a, h: cells.mean(h / 0)), drawn()
    with np.errstate(divide="ignore", invalid="ignore"):
        assert not np.isfinite(cell(x, R, init_h=h, backend="reference").h).any()
    assert not np.isfinite(cell(x, R, init_h=h, backend="native").h).any()


def test_sums_in_another_order_are_written() -> None:
    """Equations are regrouped when they are read, so what they are equal to is seen then."""

    @cells.cell(gates="z")
    def step(x: Any, R: Any, h: Any) -> Any:
        a, b = h + (x.z + R.z @ h), (h + x.z) + R.z @ h
        away = a - cells.mean(b)
        return cells.tanh(h + (cells.tanh(h) + x.z)) + cells.mean(away * away)

    assert read_cell(write_cell(step)).definition.key == step.definition.key
