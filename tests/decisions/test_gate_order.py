"""The order of the gates in every tensor, and which activation belongs to which gate."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import zstate as zs
from tests.cases import Array, Arrays, Case, assert_close, full, run_forward, run_gradients
from tests.decisions.common import directions, one, setup, sigmoid


def reorder(case: Case, tensors: Arrays, order: list[int]) -> Arrays:
    """Every tensor along G·H with its blocks in another order, within each direction."""
    h, gates, d = case.H, len(order), case.D

    def moved(array: Array, rows: bool) -> Array:
        tail = (case.H,) if array.ndim == 3 else array.shape[1:] if rows else ()
        blocks = array.reshape(d, gates, h, *tail)
        return blocks[:, order].reshape(array.shape)

    found = dict(tensors)
    for name, rows in (
        ("recurrent_weight", True),
        ("input_weight", True),
        ("bias", False),
        ("peephole", False),
    ):
        if name in tensors:
            found[name] = moved(tensors[name], rows)
    return found


ORDERS = [
    pytest.param("lstm", "forget_gate_last", [0, 2, 1, 3], id="forget_gate_last"),
    pytest.param("gru", "reset_gate_first", [1, 0, 2], id="reset_gate_first"),
]


@directions
@pytest.mark.parametrize(("cell", "flag", "order"), ORDERS)
def test_weights_bias_peephole_and_z_state_share_the_gate_order(
    cell: str, flag: str, order: list[int], direction: str
) -> None:
    """[i,f,z,o] or [i,z,f,o]; [z,r,o] or [r,z,o]: only a relabelling, also of the gradients."""
    case = full(cell, direction=direction)
    other = replace(case, flags=case.flags | {flag})
    tensors, cotangents, result, gradients = setup(case)
    moved = reorder(case, tensors, order)
    again = run_forward(other, moved, training=True)
    assert_close(again.state, result.state)
    blocks = result.training_state.reshape(case.T, case.N, case.D, len(order), case.H)
    assert_close(again.training_state, blocks[:, :, :, order].reshape(result.training_state.shape))
    found = run_gradients(other, moved, cotangents, again)
    expected = reorder(case, gradients._asdict(), order)
    for name, value in expected.items():
        assert_close(getattr(found, name), value, name)


def test_lstm_gates_are_in_the_order_i_f_z_o() -> None:
    """Four biases that tell the gates apart: zState has them in the same order."""
    for last, names in ((False, "ifzo"), (True, "izfo")):
        pre = {"i": -1.0, "f": 0.5, "z": 0.25, "o": 2.0}
        bias = np.array([pre[name] for name in names])
        result = zs.lstm(
            np.zeros((1, 1, 4)),
            np.zeros((4, 1)),
            bias=bias,
            init_cell=one(0.6, 1, 1),
            descriptor=zs.LSTMDescriptor(training=True, forget_gate_last=last),
        )
        gates = {k: math.tanh(v) if k == "z" else float(sigmoid(v)) for k, v in pre.items()}
        assert_close(result.training_state.ravel(), np.array([gates[n] for n in names]))
        assert_close(result.cell, one(gates["f"] * 0.6 + gates["i"] * gates["z"]))


def test_gru_gates_are_in_the_order_z_r_o() -> None:
    for first, names in ((False, "zro"), (True, "rzo")):
        pre = {"z": -1.0, "r": 0.5, "o": 2.0}
        recurrent = np.array([[0.0], [0.0], [1.5]])
        result = zs.gru(
            np.zeros((1, 1, 3)),
            recurrent,
            bias=np.array([pre[name] for name in names]),
            init_state=one(0.6, 1, 1),
            descriptor=zs.GRUDescriptor(training=True, reset_gate_first=first),
        )
        z, r = sigmoid(-1.0), sigmoid(0.5)
        gates = {"z": z, "r": r, "o": math.tanh(0.6 * r * 1.5 + 2.0)}
        assert_close(result.training_state.ravel(), np.array([gates[n] for n in names]))
        assert_close(result.state, one(z * 0.6 + (1 - z) * gates["o"]))


def test_each_lstm_activation_field_belongs_to_its_gate() -> None:
    kinds = {
        "input_gate_activation": 0,
        "forget_gate_activation": 1,
        "cell_gate_activation": 2,
        "output_gate_activation": 3,
    }
    for field, gate in kinds.items():
        descriptor = zs.LSTMDescriptor(training=True, **{field: zs.Activation.NONE})
        x = np.array([[[0.3, 0.4, 0.6, 0.7]]])
        gates = zs.lstm(x, np.zeros((4, 1)), descriptor=descriptor).training_state.ravel()
        expected = np.array([sigmoid(0.3), sigmoid(0.4), math.tanh(0.6), sigmoid(0.7)])
        expected[gate] = x.ravel()[gate]
        assert_close(gates, expected, field)
    descriptor = zs.LSTMDescriptor(training=True, activation=zs.Activation.NONE)
    result = zs.lstm(x, np.zeros((4, 1)), descriptor=descriptor)
    assert_close(result.state, result.training_state[..., 3:] * result.cell, "activation")


def test_each_gru_activation_field_belongs_to_its_gate() -> None:
    x = np.array([[[0.3, 0.4, 0.6]]])
    for gate, field in enumerate(("update_gate", "reset_gate", "output_gate")):
        descriptor = zs.GRUDescriptor(training=True, **{f"{field}_activation": zs.Activation.NONE})
        gates = zs.gru(x, np.zeros((3, 1)), descriptor=descriptor).training_state.ravel()
        expected = np.array([sigmoid(0.3), sigmoid(0.4), math.tanh(0.6)])
        expected[gate] = x.ravel()[gate]
        assert_close(gates, expected, field)
