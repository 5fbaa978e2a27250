"""What the ops of the graph refuse when they are made, and what when the arrays come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import zstate as zs
from tests.graph.op_case import Build, normal


def graph_with(**shapes: tuple[int | None, ...]) -> tuple[zs.Graph, list[zs.Tensor]]:
    g = zs.Graph()
    return g, [g.placeholder(shape=shape, name=name) for name, shape in shapes.items()]


REFUSALS: list[tuple[Build, str]] = [
    (lambda g, a, b: a + b, r"\[addition\] secondary: expected a shape that broadcasts with"),
    (lambda g, a, b: a @ b, r"secondary: expected \[…,3,columns\] to follow primary \[2,3\], got"),
    (lambda g, a, b: a + g.cast(b, "float64"), "secondary: expected float32 like primary, got fl"),
    (lambda g, a, b: g.exponent(g.cast(a, "int32")), r"\[exponent\] tensor: expected one of float"),
    (lambda g, a, b: g.transpose(a, [0, 0]), "permutation: expected a permutation of 2 axes"),
    (lambda g, a, b: g.reshape(a, (4,)), r"shape: expected sizes with as many elements as \[2,3\]"),
    (lambda g, a, b: g.reshape(a, (-1, -1)), "shape: expected sizes"),
    (lambda g, a, b: g.reshape(a, (-1, 4)), "shape: expected sizes"),
    (lambda g, a, b: g.broadcast(a, (3, 3)), r"tensor: expected a shape that broadcasts"),
    (lambda g, a, b: g.broadcast(a, (3,)), r"tensor: expected a shape that broadcasts to \[3\]"),
    (lambda g, a, b: g.concat_tensors([a, b], axis=0), r"tensors\[1\]: expected \[2,3\] outside"),
    (lambda g, a, b: g.concat_tensors([], axis=0), "tensors: expected at least one tensor, got no"),
    (lambda g, a, b: g.stack([a, b], axis=0), r"tensors\[1\]: expected \[2,3\], got \[4,5\]"),
    (lambda g, a, b: g.split(a, [1, 1], axis=1), "split_sizes: expected sizes that sum to 3"),
    (lambda g, a, b: g.split(a, 2, axis=1), "split_sizes: expected equal parts of axis 1"),
    (lambda g, a, b: g.slice_tensor(a, 1, 2, 2), "start and length: expected a window of dimen"),
    (lambda g, a, b: g.slice_tensor(a, 2, 0, 1), "dimension: expected an axis of 2 dimensions"),
    (lambda g, a, b: g.strided_slice(a, [0], [1]), "starts: expected one number for each of 2"),
    (lambda g, a, b: g.strided_slice(a, [0, 0], [1, 1], [1, 0]), "strides: expected at least 1"),
    (lambda g, a, b: g.squeeze(a, axes=[0]), r"axes: expected axes of size 1, got axis 0 of"),
    (lambda g, a, b: g.reverse(a, axes=[0, 0]), "axes: expected every axis once"),
    (lambda g, a, b: g.pad_tensor(a, [1], [1]), "left_padding: expected 2 sizes of at least 0"),
    (
        lambda g, a, b: g.pad_tensor(a, [0, 3], [0, 0], padding_mode="reflect"),
        r"left_padding: expected at most 2 with reflect beside axis 1 of \[2,3\], got 3",
    ),
    (
        lambda g, a, b: g.pad_tensor(a, [0, 0], [3, 0], padding_mode="symmetric"),
        r"right_padding: expected at most 2 with symmetric beside axis 0 of \[2,3\], got 3",
    ),
    (
        lambda g, a, b: g.pad_tensor(a, [0, 0], [3, 0], padding_mode="periodic"),
        "padding_mode: expected one of constant, zero, reflect, symmetric, clamp_to_edge, got 'per",
    ),
    (lambda g, a, b: g.reduction_sum(a, axes=[2]), "axes: expected an axis of 2 dimensions, got 2"),
    (lambda g, a, b: g.select(a, a, a), "predicate: expected bool like bool, got float32"),
    (lambda g, a, b: g.gather(a, b), "indices: expected integers, got float32"),
    (lambda g, a, b: g.one_hot(g.cast(a, "int32"), 0), "depth: expected at least 1, got 0"),
    (lambda g, a, b: g.soft_max(a, axis=5), "axis: expected an axis of 2 dimensions, got 5"),
    (
        lambda g, a, b: g.soft_max_cross_entropy(a, b, axis=1),
        r"labels: expected \[2,3\], got \[4,5\]",
    ),
    (
        lambda g, a, b: g.soft_max_cross_entropy(a, a, axis=1, reduction="max"),
        "reduction: expected one of none, sum, mean, got 'max'",
    ),
    (lambda g, a, b: g.assign(a, a), "variable: expected a variable, got the result of placehold"),
    (
        lambda g, a, b: g.assign(g.variable(np.ones(3, np.float32)), a),
        r"tensor: expected \[3\], got \[2,3\]",
    ),
    (lambda g, a, b: g.dropout(a, 1.0, g.random_philox_state(seed=1)), "rate: expected at least 0"),
    (lambda g, a, b: g.random_uniform((2,), a), r"state: expected int64\[6\] of random_philox_st"),
    (lambda g, a, b: g.random_philox_state(seed=-1), "seed: expected at least 0, got -1"),
    (
        lambda g, a, b: g.stochastic_gradient_descent(0.1, a, b),
        r"gradient: expected \[2,3\] like values, got \[4,5\]",
    ),
    (lambda g, a, b: g.clamp(a, b, 1.0), r"\[clamp\] minimum: expected a shape that broadcasts wi"),
    (lambda g, a, b: g.leaky_relu(a, b), r"\[leaky_relu\] alpha: expected a shape that broadcas"),
    (lambda g, a, b: g.logical_and(a, a), r"primary: expected bool \(graph.not_equal\(tensor, 0"),
    (lambda g, a, b: g.reduction_or(a), r"\[reduction_or\] tensor: expected bool"),
    (lambda g, a, b: g.variance(a, mean=b), r"\[variance\] mean: expected a shape that broadcast"),
    (
        lambda g, a, b: g.normalization(a, a, b, name="n"),
        r"\[normalization 'n'\] variance: expected a shape that broadcasts with \[2,3\]",
    ),
    (lambda g, a, b: g.top_k(a, 4), r"\[top_k\] k: expected 1 to the size of axis 1 of \[2,3\]"),
    (lambda g, a, b: g.tile(a, [2]), r"\[tile\] multiplier: expected 2 numbers of at least 1"),
    (lambda g, a, b: g.arg_sort(a, axis=2), "axis: expected an axis of 2 dimensions, got 2"),
    (lambda g, a, b: g.cumulative_sum(a, axis=-3), "axis: expected an axis of 2 dimensions, got -"),
    (lambda g, a, b: a + "x", "secondary: expected a Tensor of this graph, got str 'x'"),
    (lambda g, a, b: g.cast(a, "complex64"), "uint64, bool, got complex64"),
]


@pytest.mark.parametrize(("build", "message"), REFUSALS)
def test_refusals_name_the_operation_and_the_tensor(build: Build, message: str) -> None:
    g, (a, b) = graph_with(a=(2, 3), b=(4, 5))
    with pytest.raises(zs.ZStateError, match=message) as caught:
        build(g, a, b)
    assert str(caught.value).startswith("[")


def test_too_much_padding_is_refused_once_the_size_is_known() -> None:
    g = zs.Graph()
    a = g.placeholder(shape=(None,), name="a")
    b = g.pad_tensor(a, [3], [0], padding_mode="reflect", name="b")
    ready = np.arange(4, dtype=np.float32)
    assert g.run({a: ready}, [b])[b].tolist() == [3, 2, 1, 0, 1, 2, 3]
    with pytest.raises(zs.ShapeError, match="left_padding: expected at most 2 with reflect beside"):
        g.run({a: ready[:3]}, [b])


@pytest.mark.parametrize("convert", [np.asarray, torch.tensor])
@pytest.mark.parametrize("bad", [-1, 4])
def test_indices_outside_are_refused(bad: int, convert: Callable[..., Any]) -> None:
    g = zs.Graph()
    i = g.placeholder(shape=(2, 3), dtype="int64")
    table = g.constant(normal(4, 3))
    indices = np.array([[0, 1, 2], [3, bad, 0]])
    for result in (
        g.gather(table, i),
        g.one_hot(i, 4),
        g.gather_along_axis(g.constant(normal(2, 4)), i, 1),
        g.scatter(g.constant(normal(2, 3)), i, 4),
    ):
        with pytest.raises(zs.OptionError, match=f"indices: expected 0 to 3, got {bad}"):
            g.run({i: convert(indices)}, [result])
