"""The equations of one step by hand: peepholes, resets, blends, and where the mask acts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import zstate as zs
from tests.cases import (
    BACKENDS,
    all_inputs,
    assert_close,
    full,
    make_cotangents,
    make_tensors,
    run_forward,
    run_gradients,
)
from tests.decisions.common import assert_same, cells, one, sigmoid


def test_the_single_gate_by_hand() -> None:
    """z = 2*3 + (5*7)*11 + 13, and relu is the default activation."""
    result = zs.single_gate_rnn(
        one(2),
        one(11, 1, 1),
        input_weight=one(3, 1, 1),
        bias=one(13, 1),
        init_state=one(5, 1, 1),
        mask=one(7),
        descriptor=zs.SingleGateRNNDescriptor(training=True),
    )
    assert result.training_state.item() == 404
    assert result.state.item() == 404


def test_all_peepholes_look_at_the_previous_cell() -> None:
    """o included, which is where ONNX and TensorFlow look at the new cell."""
    c0, peephole = 0.7, np.array([0.3, -0.5, 0.9, -1.1])
    result = zs.lstm(
        np.zeros((1, 1, 4)),
        np.zeros((4, 1)),
        init_cell=one(c0, 1, 1),
        peephole=peephole,
        descriptor=zs.LSTMDescriptor(training=True),
    )
    i, f, o = (sigmoid(peephole[k] * c0) for k in (0, 1, 3))
    z = math.tanh(peephole[2] * c0)
    c1 = f * c0 + i * z
    assert_close(result.training_state, np.array([[[i, f, z, o]]]))
    assert_close(result.cell, one(c1))
    assert_close(result.state, one(o * math.tanh(c1)))


def test_the_output_peephole_looks_at_the_new_cell_where_told_to() -> None:
    """And only it: i, f and z stay on c[t-1]; by hand, gradients included."""
    c0, peephole = 0.7, np.array([0.3, -0.5, 0.9, -1.1])
    descriptor = zs.LSTMDescriptor(training=True, peephole_on_new_cell=True)
    inputs = {"init_cell": one(c0, 1, 1), "peephole": peephole, "descriptor": descriptor}
    x, R, dy = np.zeros((1, 1, 4)), np.zeros((4, 1)), 1.7
    result = zs.lstm(x, R, **inputs)
    i, f = (sigmoid(peephole[k] * c0) for k in (0, 1))
    z = math.tanh(peephole[2] * c0)
    c1 = f * c0 + i * z
    o = sigmoid(peephole[3] * c1)
    assert_close(result.training_state, np.array([[[i, f, z, o]]]))
    assert_close(result.cell, one(c1))
    assert_close(result.state, one(o * math.tanh(c1)))
    found = zs.lstm_gradients(x, R, one(dy), result.training_state, result.cell, **inputs)
    da_o = dy * math.tanh(c1) * o * (1 - o)
    dc = dy * o * (1 - math.tanh(c1) ** 2) + da_o * peephole[3]
    da = [dc * z * i * (1 - i), dc * c0 * f * (1 - f), dc * i * (1 - z * z)]
    assert_close(found.peephole, np.array([*(each * c0 for each in da), da_o * c1]))
    assert_close(found.init_cell, one(dc * f + np.dot(da, peephole[:3]), 1, 1))


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_a_peephole_it_does_not_matter_which_cell_it_looks_at(backend: str) -> None:
    case = full("lstm", inputs=all_inputs("lstm", "peephole"))
    other = replace(case, flags=frozenset({"peephole_on_new_cell"}))
    tensors, cotangents = make_tensors(case), make_cotangents(case)
    old, new = (run_forward(each, tensors, backend, training=True) for each in (case, other))
    assert_same(old, new)
    assert_same(
        run_gradients(case, tensors, cotangents, old, backend),
        run_gradients(other, tensors, cotangents, new, backend),
    )


@pytest.mark.parametrize("gate", range(4))
def test_each_gate_has_its_own_peephole(gate: int) -> None:
    peephole = np.zeros(4)
    peephole[gate] = 0.8
    result = zs.lstm(
        np.zeros((1, 1, 4)),
        np.zeros((4, 1)),
        init_cell=one(1, 1, 1),
        peephole=peephole,
        descriptor=zs.LSTMDescriptor(training=True),
    )
    expected = np.array([0.5, 0.5, 0.0, 0.5])
    expected[gate] = math.tanh(0.8) if gate == 2 else sigmoid(0.8)
    assert_close(result.training_state, expected.reshape(1, 1, 4))


def gru_by_hand(**more: Any) -> tuple[dict[str, float], Any]:
    """One unit, one step, every quantity different; gates z, r, o are 0.25, 0.5, linear."""
    none = zs.Activation.NONE
    descriptor = zs.GRUDescriptor(
        training=True,
        update_gate_activation=none,
        reset_gate_activation=none,
        output_gate_activation=none,
        **more,
    )
    given = {"h": 3.0, "m": 2.0, "x": 7.0, "R": 5.0}
    weights = {"secondary_bias": one(11, 1)} if more.get("reset_after") else {}
    result = zs.gru(
        np.array([[[0.25, 0.5, given["x"]]]]),
        np.array([[0.0], [0.0], [given["R"]]]),
        init_state=one(given["h"], 1, 1),
        mask=one(given["m"]),
        descriptor=descriptor,
        **weights,
    )
    return given, result


def test_reset_before_masks_and_resets_the_state_in_front_of_the_weight() -> None:
    v, result = gru_by_hand()
    o = v["h"] * 0.5 * v["m"] * v["R"] + v["x"]
    assert result.training_state.ravel().tolist() == [0.25, 0.5, o]
    assert result.state.item() == 0.25 * v["h"] + 0.75 * o


def test_reset_after_resets_the_secondary_bias_too() -> None:
    v, result = gru_by_hand(reset_after=True)
    o = (v["h"] * v["m"] * v["R"] + 11) * 0.5 + v["x"]
    assert result.training_state.ravel().tolist() == [0.25, 0.5, o]
    assert result.state.item() == 0.25 * v["h"] + 0.75 * o


@pytest.mark.parametrize("after", [False, True], ids=["reset_before", "reset_after"])
def test_flip_z_follows_the_operation_text(after: bool) -> None:
    """flipZ NO: z h + (1-z) o. flipZ YES: (1-z) h + z o."""
    v, plain = gru_by_hand(reset_after=after)
    _, flipped = gru_by_hand(reset_after=after, flip_z=True)
    np.testing.assert_array_equal(plain.training_state, flipped.training_state)
    o = plain.training_state[0, 0, 2]
    assert plain.state.item() == 0.25 * v["h"] + 0.75 * o
    assert flipped.state.item() == 0.75 * v["h"] + 0.25 * o


def test_mask_never_touches_the_blend() -> None:
    """All masked and R shut off: the update gate still blends the whole of h[t-1]."""
    case = full("gru", flags=frozenset())
    case = replace(case, inputs=all_inputs("gru", "secondary_bias"))
    tensors = make_tensors(case)
    zero_mask = {**tensors, "mask": np.zeros((1, 1, 1))}
    no_recurrence = {
        **tensors,
        "mask": np.ones((1, 1, 1)),
        "recurrent_weight": np.zeros(tensors["recurrent_weight"].shape),
    }
    assert_same(
        run_forward(case, zero_mask, training=True),
        run_forward(case, no_recurrence, training=True),
    )
    first = run_forward(case, zero_mask, training=True)
    z, _, o = np.split(first.training_state[0], 3, axis=1)
    assert_close(first.state[0], z * tensors["init_state"] + (1 - z) * o)


def test_mask_never_touches_the_cell() -> None:
    """With the mask at 0, c[t] is still f c[t-1] + i z, and the peepholes see c[t-1] whole."""
    case = full("lstm")
    tensors = {**make_tensors(case), "mask": np.zeros((1, 1, 1))}
    result = run_forward(case, tensors, training=True)
    i, f, z, o = np.split(result.training_state, 4, axis=2)
    previous = np.concatenate([tensors["init_cell"][None], result.cell[:-1]])
    assert_close(result.cell, f * previous + i * z)
    assert_close(result.state, o * np.tanh(result.cell))
    bias = tensors["bias"] + tensors["source"] @ tensors["input_weight"].T
    pre = bias + tensors["peephole"] * np.tile(previous, 4)
    assert_close(i, sigmoid(pre[..., : case.H]))


@cells
def test_mask_zero_is_recurrent_weight_zero(cell: str) -> None:
    case = full(cell)
    if cell == "gru":
        case = replace(case, inputs=all_inputs("gru", "secondary_bias"))
    tensors = make_tensors(case)
    masked = {**tensors, "mask": np.zeros((1, 1, 1))}
    shut = {**tensors, "recurrent_weight": np.zeros(tensors["recurrent_weight"].shape)}
    assert_same(run_forward(case, masked), run_forward(case, shut))


@cells
def test_mask_multiplies_the_state_not_the_sum(cell: str) -> None:
    """A mask of s for all features is a recurrent weight that is s times as large."""
    case = full(cell)
    if cell == "gru":
        case = replace(case, inputs=all_inputs("gru", "secondary_bias"))
    tensors = make_tensors(case)
    masked = {**tensors, "mask": np.full((1, 1, 1), 0.4)}
    ones = np.ones((1, 1, 1))
    scaled = {**tensors, "mask": ones, "recurrent_weight": 0.4 * tensors["recurrent_weight"]}
    assert_same(run_forward(case, masked, training=True), run_forward(case, scaled, training=True))


@cells
def test_dropping_a_feature_by_mask_is_dropping_its_column_of_the_weight(cell: str) -> None:
    """The mask runs along the input features of R, not along its outputs."""
    case = full(cell, inputs=all_inputs(cell, "mask"))
    tensors = make_tensors(case)
    mask = np.ones(case.H)
    mask[1] = 0
    weight = tensors["recurrent_weight"].copy()
    weight[:, 1] = 0
    assert_same(
        run_forward(case, {**tensors, "mask": mask}, training=True),
        run_forward(case, {**tensors, "recurrent_weight": weight}, training=True),
    )
