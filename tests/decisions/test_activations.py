"""The five activations: values, derivatives at their kinks, large arguments."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import zstate as zs
from tests.cases import DTYPES, FED_BACK, Array, assert_close
from tests.decisions.common import one


def activated(kind: zs.Activation, values: list[float], **types: Any) -> tuple[Array, Array]:
    """The function and its derivative, through the single gate, one unit a batch entry."""
    x = np.array(values, **types).reshape(1, -1, 1)
    weight = np.zeros((1, 1), x.dtype)
    descriptor = zs.SingleGateRNNDescriptor(training=True, activation=kind)
    result = zs.single_gate_rnn(x, weight, descriptor=descriptor)
    gradient = zs.single_gate_rnn_gradients(
        x, weight, np.ones_like(x), result.training_state, descriptor=descriptor
    )
    return result.state.ravel(), gradient.source.ravel()


POINTS = [-3.0, -2.0, -0.5, 0.25, 1.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("kind", "function", "derivative"),
    [
        (zs.Activation.NONE, lambda x: x, lambda x: 1.0),
        (zs.Activation.RELU, lambda x: max(x, 0.0), lambda x: float(x > 0)),
        (zs.Activation.TANH, math.tanh, lambda x: 1 / math.cosh(x) ** 2),
        (
            zs.Activation.SIGMOID,
            lambda x: 1 / (1 + math.exp(-x)),
            lambda x: 0.25 / math.cosh(x / 2) ** 2,
        ),
        (
            zs.Activation.HARD_SIGMOID,
            lambda x: min(max(0.2 * x + 0.5, 0.0), 1.0),
            lambda x: 0.2 if -2.5 < x < 2.5 else 0.0,
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_five_activations(kind: zs.Activation, function: Any, derivative: Any) -> None:
    value, slope = activated(kind, POINTS)
    assert_close(value, np.array([function(x) for x in POINTS]))
    assert_close(slope, np.array([derivative(x) for x in POINTS]))


def test_the_numbers_of_the_activations_are_the_published_ones() -> None:
    numbers = {"NONE": 0, "RELU": 1, "TANH": 2, "SIGMOID": 3, "HARD_SIGMOID": 4}
    assert {kind.name: int(kind) for kind in zs.Activation} == numbers


def test_hard_sigmoid_constants() -> None:
    """clamp(0.2 x + 0.5, 0, 1), not PyTorch's clamp(x/6 + 0.5, 0, 1)."""
    value, slope = activated(zs.Activation.HARD_SIGMOID, [-2.6, -2.0, 0.0, 1.0, 2.4, 2.6])
    np.testing.assert_allclose(value, [0.0, 0.1, 0.5, 0.7, 0.98, 1.0], rtol=1e-14)
    np.testing.assert_allclose(slope, [0.0, 0.2, 0.2, 0.2, 0.2, 0.0], rtol=1e-14)


def test_the_derivative_of_relu_at_zero_is_zero() -> None:
    value, slope = activated(zs.Activation.RELU, [0.0, -0.0])
    assert value.tolist() == [0, 0]
    assert slope.tolist() == [0, 0]


def test_the_derivative_of_hard_sigmoid_is_zero_where_the_output_is_0_or_1() -> None:
    value, slope = activated(zs.Activation.HARD_SIGMOID, [-2.5, 2.5])
    assert value.tolist() == [0, 1]
    assert slope.tolist() == [0, 0]


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_derivatives_at_the_kinks_inside_a_cell(cell: str) -> None:
    """Gates that stand exactly on a kink let nothing through to their pre-activation."""
    hard, relu = zs.Activation.HARD_SIGMOID, zs.Activation.RELU
    if cell == "lstm":
        x = np.array([[[2.5, -2.5, 0.0, 2.5]]])
        fields = {
            "input_gate_activation": hard,
            "forget_gate_activation": hard,
            "cell_gate_activation": relu,
            "output_gate_activation": hard,
        }
        case_op, gradient_op, descriptor = zs.lstm, zs.lstm_gradients, zs.LSTMDescriptor
        weight = np.zeros((4, 1))
        initial = {"init_state": one(0.5, 1, 1), "init_cell": one(0.7, 1, 1)}
    else:
        x = np.array([[[-2.5, 2.5, 0.0]]])
        fields = {
            "update_gate_activation": hard,
            "reset_gate_activation": hard,
            "output_gate_activation": relu,
        }
        case_op, gradient_op, descriptor = zs.gru, zs.gru_gradients, zs.GRUDescriptor
        weight = np.zeros((3, 1))
        initial = {"init_state": one(0.5, 1, 1)}
    d = descriptor(training=True, **fields)
    result = case_op(x, weight, descriptor=d, **initial)
    fed_back = {name: getattr(result, member) for name, member in FED_BACK[cell].items()}
    found = gradient_op(x, weight, np.ones((1, 1, 1)), **fed_back, descriptor=d, **initial)
    np.testing.assert_array_equal(found.source, np.zeros(x.shape))


@pytest.mark.parametrize("kind", list(zs.Activation))
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_activations_do_not_overflow(kind: zs.Activation, dtype: str) -> None:
    """Large arguments saturate; there are no infinities, nans or warnings on the way."""
    with np.errstate(all="raise", under="ignore"):
        value, slope = activated(kind, [-3e4, -800.0, 800.0, 3e4], dtype=DTYPES[dtype])
    assert np.all(np.isfinite(value.astype(float)))
    assert np.all(np.isfinite(slope.astype(float)))
    if kind in (zs.Activation.SIGMOID, zs.Activation.HARD_SIGMOID):
        np.testing.assert_array_equal(value.astype(float), [0, 0, 1, 1])
    if kind is zs.Activation.TANH:
        np.testing.assert_array_equal(value.astype(float), [-1, -1, 1, 1])
