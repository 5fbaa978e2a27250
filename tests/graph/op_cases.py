"""The table of cases that feeds test_ops.py, beside NumPy, torch or plain loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tests.graph.op_case import Case, normal, positive
from zstate.types import Array


def softmax(x: Array, axis: int) -> Array:
    return np.asarray(torch.softmax(torch.tensor(x), axis))


def entropy(x: Array, labels: Array, axis: int) -> Array:
    return -(labels * np.asarray(torch.log_softmax(torch.tensor(x), axis))).sum(axis)


def scatter_loop(size: int, updates: Array, indices: Array) -> Array:
    total = np.zeros((size, *updates.shape[indices.ndim :]))
    for place in np.ndindex(*indices.shape):
        total[indices[place]] += updates[place]
    return total


def along_loop(shape: tuple[int, ...], updates: Array, indices: Array) -> Array:
    total = np.zeros(shape)
    for i, j in np.ndindex(*indices.shape):
        total[i, indices[i, j]] += updates[i, j]
    return total


def adam_by_hand(values: Array, m: Array, v: Array, gradient: Array) -> list[Array]:
    m = 0.9 * m + 0.1 * gradient
    v = 0.99 * v + 0.01 * gradient**2
    rate = 0.3 * np.sqrt(1 - 0.99**3) / (1 - 0.9**3)
    return [values - rate * m / (np.sqrt(v) + 1e-3), m, v]


I = np.array([[2, 0, 2], [1, 2, 3]])
PADDINGS: dict[str, Any] = {"reflect": "reflect", "symmetric": "symmetric", "clamp_to_edge": "edge"}


def padding(mode: str, shape: tuple[int, ...], left: Sequence[int], right: Sequence[int]) -> Case:
    """A mode of padding beside NumPy's of another name."""
    return Case(
        "pad_around",
        lambda g, a: g.pad_tensor(a, left, right, padding_mode=mode),
        [normal(*shape)],
        lambda a: np.pad(a, list(zip(left, right, strict=True)), PADDINGS[mode]),
    )


LABELS = np.asarray(torch.softmax(torch.tensor(normal(4, 3, 5)), 1))
ADAM: dict[str, Any] = {
    "learning_rate": 0.3,
    "beta1": 0.9,
    "beta2": 0.99,
    "epsilon": 1e-3,
    "beta1_power": 0.9**3,
    "beta2_power": 0.99**3,
}

CASES = [
    Case("addition", lambda g, a, b: g.addition(a, b), [normal(2, 3), normal(3)], np.add),
    Case("addition", lambda g, a: a + 2.0, [normal(2, 3)], lambda a: a + 2),
    Case("subtraction", lambda g, a, b: a - b, [normal(2, 1, 3), normal(4, 1)], np.subtract),
    Case("multiplication", lambda g, a, b: a * b, [normal(2, 3), normal(2, 1)], np.multiply),
    Case("multiplication", lambda g, a: g.multiplication(a, a), [normal(3)], np.square),
    Case("division", lambda g, a, b: a / b, [normal(2, 3), positive(1, 3)], np.divide),
    Case("power", lambda g, a, b: a**b, [positive(2, 3), normal(3)], np.power),
    Case("maximum", lambda g, a, b: g.maximum(a, b), [normal(3, 4), normal(4)], np.maximum),
    Case("minimum", lambda g, a, b: g.minimum(a, b), [normal(3, 4), normal(4)], np.minimum),
    *(
        Case(
            name,
            lambda g, a, b, name=name: getattr(g, name)(a, b),
            [np.array([1.0, 2, 3]), np.array([2.0, 2, 2])],
            function,
            False,
        )
        for name, function in {
            "equal": np.equal,
            "not_equal": np.not_equal,
            "less_than": np.less,
            "less_than_or_equal_to": np.less_equal,
            "greater_than": np.greater,
            "greater_than_or_equal_to": np.greater_equal,
        }.items()
    ),
    Case(
        "select",
        lambda g, p, a, b: g.select(p, a, b),
        [normal(3, 4) > 0, normal(3, 4), normal(4)],
        np.where,
    ),
    Case("identity", lambda g, a: g.identity(a), [normal(2, 3)], lambda a: a),
    Case("modulo", lambda g, a, b: g.modulo(a, b), [normal(3, 4) * 5, positive(4)], np.fmod),
    Case(
        "floor_modulo",
        lambda g, a, b: g.floor_modulo(a, b),
        [normal(3, 4) * 5, -positive(4)],
        np.mod,
    ),
    Case(
        "integer_division",
        lambda g, a, b: g.apply("integer_division", (a, b)),
        [np.array([[-7], [7], [6]]), np.array([2, -2, 3, 2**62 + 1])],
        lambda a, b: np.array([[-3, 3, -2, 0], [3, -3, 2, 0], [3, -3, 2, 0]]),
        is_smooth=False,
    ),
    Case(
        "expect_lengths",
        lambda g, a, x: g.add_node_named("expect_lengths", (a, x), {"what": "test"}),
        [np.array([0, 3]), normal(3, 2)],
        lambda a, x: a,
        is_smooth=False,
    ),
    *(
        Case(
            row,
            lambda g, a, b, name=name: getattr(g, name)(a, b),
            [np.array([[True], [False]]), np.array([True, False])],
            function,
            False,
        )
        for row, name, function in [
            ("logical_and", "logical_and", np.logical_and),
            ("logical_or", "logical_or", np.logical_or),
            ("logical_xor", "logical_xor", np.logical_xor),
            ("logical_not", "logical_nand", lambda a, b: ~(a & b)),
            ("logical_not", "logical_nor", lambda a, b: ~(a | b)),
            ("logical_not", "logical_xnor", np.equal),
        ]
    ),
    *(
        Case(
            name,
            lambda g, a, name=name: getattr(g, name)(a),
            [np.array([1.0, -np.inf, np.nan, np.inf, 0.0])],
            function,
            False,
        )
        for name, function in {
            "is_nan": np.isnan,
            "is_finite": np.isfinite,
            "is_infinite": np.isinf,
        }.items()
    ),
    *(
        Case(name, lambda g, a, name=name: getattr(g, name)(a), [inputs], function)
        for name, inputs, function in [
            ("floor", normal(3, 3) * 3, np.floor),
            ("ceil", normal(3, 3) * 3, np.ceil),
            ("truncate", normal(3, 3) * 3, np.trunc),
            ("rint", normal(3, 3) * 3, np.rint),
            ("exponent_base2", normal(4), np.exp2),
            ("logarithm_base2", positive(4), np.log2),
            ("logarithm_base10", positive(4), np.log10),
            ("sin", normal(4), np.sin),
            ("cos", normal(4), np.cos),
            ("tan", normal(4) / 2, np.tan),
            ("sinh", normal(4), np.sinh),
            ("cosh", normal(4), np.cosh),
            ("asin", normal(4) / 9, np.arcsin),
            ("acos", normal(4) / 9, np.arccos),
            ("atan", normal(4), np.arctan),
            ("asinh", normal(4), np.arcsinh),
            ("acosh", positive(4) + 1, np.arccosh),
            ("atanh", normal(4) / 9, np.arctanh),
        ]
    ),
    Case("power", lambda g, a: g.exponent_base10(a), [normal(3)], lambda a: 10**a),
    Case(
        "reciprocal",
        lambda g, a: g.reciprocal_square_root(a),
        [positive(3)],
        lambda a: 1 / np.sqrt(a),
    ),
    Case(
        "select",
        lambda g, a, b: g.division_no_nan(a, b),
        [normal(3), np.array([2.0, 0.5, -4.0])],
        np.divide,
    ),
    Case(
        "minimum",
        lambda g, a, low, high: g.clamp(a, low, high),
        [normal(4, 3) * 2, -positive(3), positive(4, 1)],
        np.clip,
    ),
    Case(
        "select",
        lambda g, a, b: g.leaky_relu(a, b),
        [normal(4, 3), positive(3)],
        lambda a, b: np.where(a > 0, a, a * b),
    ),
    Case("negative", lambda g, a: -a, [normal(3)], np.negative),
    Case("absolute", lambda g, a: g.absolute(a), [normal(3, 3)], np.abs),
    Case("sign", lambda g, a: g.sign(a), [normal(3, 3)], np.sign),
    Case("square", lambda g, a: g.square(a), [normal(3)], np.square),
    Case("exponent", lambda g, a: g.exponent(a), [normal(3)], np.exp),
    Case("logarithm", lambda g, a: g.logarithm(a), [positive(3)], np.log),
    Case("square_root", lambda g, a: g.square_root(a), [positive(3)], np.sqrt),
    Case("reciprocal", lambda g, a: g.reciprocal(a), [positive(3)], np.reciprocal),
    Case("tanh", lambda g, a: g.tanh(a), [normal(3)], np.tanh),
    Case(
        "sigmoid",
        lambda g, a: g.sigmoid(a),
        [np.array([-800.0, -30, -1, 0, 2, 900])],
        lambda a: np.asarray(torch.sigmoid(torch.tensor(a))),
    ),
    Case("relu", lambda g, a: g.relu(a), [normal(3, 4)], lambda a: np.maximum(a, 0)),
    Case(
        "cast",
        lambda g, a: g.cast(g.cast(a, "float32"), "float64"),
        [np.array([1.0, 2.5, -3])],
        lambda a: a,
        False,
    ),
    Case(
        "matrix_multiplication", lambda g, a, b: a @ b, [normal(4, 2, 3), normal(3, 5)], np.matmul
    ),
    Case(
        "matrix_multiplication",
        lambda g, a, b: a @ b,
        [normal(4, 1, 2, 3), normal(6, 3, 5)],
        np.matmul,
    ),
    Case(
        "transpose",
        lambda g, a: g.transpose(a, [2, 0, 1]),
        [normal(2, 3, 4)],
        lambda a: a.transpose(2, 0, 1),
    ),
    Case(
        "transpose",
        lambda g, a: g.transpose_tensor(a, -1, 0),
        [normal(2, 3, 4)],
        lambda a: a.swapaxes(0, 2),
    ),
    Case(
        "reshape",
        lambda g, a: g.reshape(a, (-1, 2)),
        [normal(3, 4)],
        lambda a: a.reshape(6, 2),
    ),
    Case(
        "expand_dims",
        lambda g, a: g.expand_dims(a, axes=[0, 2]),
        [normal(3, 4)],
        lambda a: a[None, :, None],
    ),
    Case("squeeze", lambda g, a: g.squeeze(a, axes=[1]), [normal(3, 1, 1)], lambda a: a[:, 0]),
    Case("squeeze", lambda g, a: g.squeeze(a), [normal(3, 1, 1)], lambda a: a[:, 0, 0]),
    Case(
        "broadcast",
        lambda g, a: g.broadcast(a, (2, 3, 4)),
        [normal(3, 1)],
        lambda a: np.broadcast_to(a, (2, 3, 4)),
    ),
    Case(
        "concat_tensors",
        lambda g, a, b, c: g.concat_tensors([a, b, c], axis=-1),
        [normal(2, 3), normal(2, 1), normal(2, 2)],
        lambda *x: np.concatenate(x, 1),
    ),
    Case(
        "stack",
        lambda g, a, b: g.stack([a, b], axis=1),
        [normal(2, 3), normal(2, 3)],
        lambda *x: np.stack(x, 1),
    ),
    Case(
        "split",
        lambda g, a: g.split(a, [1, 2, 3], axis=1),
        [normal(2, 6)],
        lambda a: [a[:, :1], a[:, 1:3], a[:, 3:]],
    ),
    Case(
        "split",
        lambda g, a: g.split(a, 2, axis=-1)[1],
        [normal(2, 6)],
        lambda a: a[:, 3:],
    ),
    Case(
        "slice",
        lambda g, a: g.slice_tensor(a, 1, -3, 2),
        [normal(2, 5)],
        lambda a: a[:, -3:-1],
    ),
    Case(
        "slice",
        lambda g, a: g.strided_slice(a, [0, -5], [2, None], [1, 2]),
        [normal(3, 7)],
        lambda a: a[:2, -5::2],
    ),
    Case(
        "put_slice",
        lambda g, a: g.gradients(g.reduction_sum(g.square(g.strided_slice(a, [1], [6], [2]))), [a])[
            a
        ],
        [normal(7)],
        lambda a: np.where(np.isin(np.arange(7), [1, 3, 5]), 2 * a, 0),
    ),
    Case("reverse", lambda g, a: g.reverse(a, axes=[1]), [normal(2, 3)], lambda a: a[:, ::-1]),
    Case("reverse", lambda g, a: g.reverse(a), [normal(2, 3)], lambda a: a[::-1, ::-1]),
    Case(
        "pad_tensor",
        lambda g, a: g.pad_tensor(a, [1, 0], [0, 2], constant_value=7.0),
        [normal(2, 3)],
        lambda a: np.pad(a, [(1, 0), (0, 2)], constant_values=7),
    ),
    Case(
        "pad_tensor",
        lambda g, a: g.pad_tensor(a, [1, 0], [0, 2], padding_mode="zero", constant_value=7.0),
        [normal(2, 3)],
        lambda a: np.pad(a, [(1, 0), (0, 2)]),
    ),
    *(padding(mode, (3, 2, 4), (2, 0, 1), (1, 0, 3)) for mode in PADDINGS),
    padding("reflect", (1, 2), (0, 1), (0, 1)),
    padding("symmetric", (1, 2), (1, 2), (1, 2)),
    padding("clamp_to_edge", (1, 2), (4, 0), (3, 5)),
    Case(
        "pad_around_gradient",
        lambda g, a: g.gradients(
            g.reduction_sum(g.square(g.pad_tensor(a, [3], [2], padding_mode="clamp_to_edge"))), [a]
        )[a],
        [normal(4)],
        lambda a: 2 * a * np.array([4, 1, 1, 3]),
    ),
    Case(
        "reduction_sum",
        lambda g, a: g.reduction_sum(a, axes=[0, -1]),
        [normal(2, 3, 4)],
        lambda a: a.sum((0, 2), keepdims=True),
    ),
    Case(
        "mean",
        lambda g, a: g.mean(a, axes=[1]),
        [normal(2, 3, 4)],
        lambda a: a.mean(1, keepdims=True),
    ),
    Case("mean", lambda g, a: g.mean(a), [normal(2, 3)], lambda a: a.mean(keepdims=True)),
    Case(
        "reduction_maximum",
        lambda g, a: g.reduction_maximum(a, axes=[1]),
        [normal(3, 4)],
        lambda a: a.max(1, keepdims=True),
    ),
    Case(
        "reduction_minimum",
        lambda g, a: g.reduction_minimum(a, axes=[0, 2]),
        [normal(3, 4, 2)],
        lambda a: a.min((0, 2), keepdims=True),
    ),
    Case(
        "reduction_product",
        lambda g, a: g.reduction_product(a, axes=[0, 2]),
        [normal(2, 3, 2)],
        lambda a: a.prod((0, 2), keepdims=True),
    ),
    Case(
        "reduction_product",
        lambda g, a: g.reduction_product(a, axes=[1]),
        [np.array([[2.0, 0, 3], [0, 0, 5], [1, 2, 4]])],
        lambda a: a.prod(1, keepdims=True),
    ),
    *(
        Case(
            name,
            lambda g, a, name=name: getattr(g, name)(a, axes=[0, 2]),
            [np.array([[[1, 1], [0, 1], [0, 0]], [[1, 1], [1, 1], [0, 0]]], bool)],
            lambda a, f=function: f(a, (0, 2), keepdims=True),
            False,
        )
        for name, function in {"reduction_and": np.all, "reduction_or": np.any}.items()
    ),
    Case(
        "reduction_arg_minimum",
        lambda g, a: g.reduction_arg_minimum(a, axis=0),
        [np.array([[3.0, 1], [1, 1], [1, 5]])],
        lambda a: np.array([[1, 0]], np.int32),
        False,
    ),
    Case(
        "mean",
        lambda g, a: g.variance(a, axes=[0, 2]),
        [normal(3, 2, 4)],
        lambda a: a.var((0, 2), keepdims=True),
    ),
    Case(
        "mean",
        lambda g, a, m: g.variance(a, axes=[1], mean=m),
        [normal(3, 4), normal(3, 1)],
        lambda a, m: ((a - m) ** 2).mean(1, keepdims=True),
    ),
    Case(
        "division",
        lambda g, a, b, c: g.normalization(
            a, g.mean(a, axes=[1]), g.variance(a, axes=[1]), gamma=b, beta=c, epsilon=0.1
        ),
        [normal(3, 5), normal(5), normal(5)],
        lambda a, b, c: np.asarray(
            torch.nn.functional.layer_norm(
                torch.tensor(a), (5,), torch.tensor(b), torch.tensor(c), 0.1
            )
        ),
    ),
    Case(
        "arg_sort",
        lambda g, a: g.arg_sort(a, axis=1),
        [np.array([[2.0, 1, 2, 1], [0, 3, -1, 3]])],
        lambda a: np.array([[1, 3, 0, 2], [2, 0, 1, 3]], np.int32),
        False,
    ),
    Case(
        "arg_sort",
        lambda g, a: g.arg_sort(a, axis=0, descending=True),
        [np.array([[2.0, 1], [1, 1], [2, 4]])],
        lambda a: np.array([[0, 2], [2, 0], [1, 1]], np.int32),
        False,
    ),
    Case(
        "gather_along_axis",
        lambda g, a: g.sort(a, axis=-1, descending=True),
        [normal(3, 5)],
        lambda a: -np.sort(-a, 1),
    ),
    Case(
        "gather_along_axis",
        lambda g, a: g.top_k(a, 2, axis=1)[0],
        [normal(3, 5, 2)],
        lambda a: np.asarray(torch.topk(torch.tensor(a), 2, 1).values),
    ),
    Case(
        "slice",
        lambda g, a: g.bottom_k(a, 3)[1],
        [normal(3, 5)],
        lambda a: np.asarray(torch.topk(torch.tensor(a), 3, largest=False).indices).astype("i4"),
        False,
    ),
    Case(
        "cumulative_sum",
        lambda g, a: g.cumulative_sum(a, axis=1),
        [normal(2, 4, 3)],
        lambda a: a.cumsum(1),
    ),
    Case(
        "cumulative_sum",
        lambda g, a: g.cumulative_sum(a, axis=-1, exclusive=True, reverse=True),
        [normal(3, 4)],
        lambda a: a.sum(1, keepdims=True) - a.cumsum(1),
    ),
    Case(
        "cumulative_sum",
        lambda g, a: g.cumulative_sum(a, axis=1, exclusive=True),
        [normal(2, 0, 3)],
        lambda a: a,
    ),
    Case(
        "concat_tensors",
        lambda g, a: g.tile(a, [2, 1, 3]),
        [normal(2, 2, 1)],
        lambda a: np.tile(a, (2, 1, 3)),
    ),
    Case(
        "reduction_arg_maximum",
        lambda g, a: g.reduction_arg_maximum(a, axis=1),
        [normal(3, 4)],
        lambda a: a.argmax(1)[:, None].astype(np.int32),
        False,
    ),
    Case(
        "soft_max",
        lambda g, a: g.soft_max(a, axis=1),
        [normal(2, 5, 3) * 30],
        lambda a: softmax(a, 1),
    ),
    *(
        Case(
            "soft_max_cross_entropy",
            lambda g, a, b, mode=mode: g.soft_max_cross_entropy(a, b, axis=1, reduction=mode),
            [normal(4, 3, 5), LABELS],
            lambda a, b, f=function: f(entropy(a, b, 1)),
        )
        for mode, function in {"none": np.array, "sum": np.sum, "mean": np.mean}.items()
    ),
    Case(
        "soft_max_cross_entropy_gradient",
        lambda g, a: g.gradients(
            g.soft_max_cross_entropy(a, g.constant(LABELS), axis=1, reduction="sum"), [a]
        )[a],
        [normal(4, 3, 5)],
        lambda a: softmax(a, 1) - LABELS,
        False,
    ),
    Case(
        "soft_max_cross_entropy_labels_gradient",
        lambda g, a: g.gradients(
            g.soft_max_cross_entropy(g.constant(LABELS), a, axis=1, reduction="mean"), [a]
        )[a],
        [normal(4, 3, 5)],
        lambda a: -np.log(softmax(LABELS, 1)) / 20,
        False,
    ),
    Case(
        "one_hot",
        lambda g, i: g.one_hot(i, 5, axis=1, dtype="float64", on_value=2.0, off_value=-1.0),
        [I],
        lambda i: np.moveaxis(np.where(np.arange(5) == i[..., None], 2.0, -1.0), -1, 1),
        False,
    ),
    Case(
        "gather",
        lambda g, a, i: g.gather(a, i, axis=1),
        [normal(2, 4, 3), I],
        lambda a, i: a[:, i],
    ),
    Case(
        "scatter",
        lambda g, a, i: g.scatter(a, i, 5),
        [normal(2, 3, 4), I],
        lambda a, i: scatter_loop(5, a, i),
    ),
    Case(
        "scatter",
        lambda g, a, i: g.scatter(a, i, 4, 1),
        [normal(5, 2, 3), I],
        lambda a, i: scatter_loop(4, np.moveaxis(a, 0, -1), i).T,
    ),
    Case(
        "gather_along_axis",
        lambda g, a, i: g.gather_along_axis(a, i, 1),
        [normal(2, 4), I],
        lambda a, i: np.take_along_axis(a, i, 1),
    ),
    Case(
        "scatter_along_axis",
        lambda g, a, i: g.scatter_along_axis(a, i, 4, 1),
        [normal(2, 3), I],
        lambda a, i: along_loop((2, 4), a, i),
    ),
    Case(
        "stochastic_gradient_descent",
        lambda g, r, v, d: g.stochastic_gradient_descent(r, v, d),
        [positive(), normal(3, 2), normal(3, 2)],
        lambda r, v, d: v - r * d,
    ),
    Case(
        "adam",
        lambda g, v, m, s, d: g.adam(**ADAM, values=v, momentum=m, velocity=s, gradient=d),
        [normal(3, 2), normal(3, 2), positive(3, 2), normal(3, 2)],
        adam_by_hand,
        False,
    ),
    Case(
        "adam",
        lambda g, v, m, s, d, top: g.adam(
            **ADAM, values=v, momentum=m, velocity=s, gradient=d, maximum_velocity=top
        ),
        [normal(3), normal(3), positive(3), normal(3), np.array([9.0, 0, 0])],
        lambda v, m, s, d, top: [
            v
            - 0.3
            * np.sqrt(1 - 0.99**3)
            / (1 - 0.9**3)
            * (0.9 * m + 0.1 * d)
            / (np.sqrt(np.maximum(0.99 * s + 0.01 * d**2, top)) + 1e-3),
            0.9 * m + 0.1 * d,
            0.99 * s + 0.01 * d**2,
            np.maximum(0.99 * s + 0.01 * d**2, top),
        ],
        False,
    ),
    Case(
        "read",
        lambda g, a: g.read(g.variable(np.array([1.0, 2.0]))) * a,
        [normal(2)],
        lambda a: np.array([1.0, 2.0]) * a,
    ),
    Case(
        "assign",
        lambda g, a: g.assign(g.variable(np.zeros(2)), a * 3.0),
        [normal(2)],
        lambda a: 3 * a,
    ),
]
IDS = [f"{case.op}{k}" for k, case in enumerate(CASES)]
