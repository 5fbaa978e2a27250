"""The forward operations against onnxruntime's CPU operators, for what both can express.

ONNX writes the gates of an LSTM in the order i, o, f, c and those of a GRU in the order z, r, h,
has one activation for all three sigmoid-like gates, and has no mask. Its `reverse` direction
reports every step at its input time, where zstate reports processing order: the tests flip it.
Its output-gate peephole looks at the new cell, as zstate's does with ``peephole_on_new_cell``;
without that option the two agree where that peephole is zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tests import oracle
from tests.cases import (
    Array,
    Arrays,
    Case,
    Tolerance,
    assert_close,
    expected_forward,
    make_tensors,
    relative_error,
    run_forward,
)

FLOAT32 = Tolerance(2e-6, 2e-6)
SIZES = {"T": 5, "N": 3, "I": 4, "H": 6}
OPERATOR = {"rnn": "RNN", "lstm": "LSTM", "gru": "GRU"}
GATE_LETTERS = {"rnn": "z", "lstm": "iofz", "gru": "zro"}
OUTPUTS = {"rnn": ["Y", "Y_h"], "lstm": ["Y", "Y_h", "Y_c"], "gru": ["Y", "Y_h"]}
# (name, alpha, beta); none is the affine function 1 x + 0
ONNX_ACTIVATIONS = {
    oracle.NONE: ("Affine", 1.0, 0.0),
    oracle.RELU: ("Relu", 0.0, 0.0),
    oracle.TANH: ("Tanh", 0.0, 0.0),
    oracle.SIGMOID: ("Sigmoid", 0.0, 0.0),
    oracle.HARD_SIGMOID: ("HardSigmoid", 0.2, 0.5),
}
# the kinds that an operator names: one for RNN; gates, cell gate, output for LSTM; gates, output
LSTM_KINDS = [(a, b, c) for a in (3, 4) for b in (2, 0, 1) for c in (2, 1, 3)]
GRU_KINDS = [(a, b) for a in (3, 4, 2) for b in (2, 1, 0, 4)]


@dataclass(frozen=True)
class OnnxResult:
    state: Array  # [T,D,N,H] at input time
    last: Array  # [D,N,H]
    last_cell: Array | None


def our_activations(cell: str, kinds: tuple[int, ...]) -> tuple[int, ...]:
    if cell == "lstm":
        gates, cell_gate, output = kinds
        return gates, gates, cell_gate, gates, output
    if cell == "gru":
        return kinds[0], kinds[0], kinds[1]
    return kinds


def reordered(case: Case, weight: Array) -> Array:
    """[D,GH,...] with the gates in ONNX's order."""
    ours = oracle.gate_order(case.cell, case.options)
    blocks = np.split(weight, len(ours), axis=1)
    return np.concatenate([blocks[ours.index(g)] for g in GATE_LETTERS[case.cell]], axis=1)


def onnx_bias(case: Case, tensors: Arrays) -> Array:
    """[D,2GH]: input and recurrent bias; only the reset term of a GRU tells them apart."""
    gh = tensors["recurrent_weight"].shape[-2]
    wb = reordered(case, tensors["bias"].reshape(case.D, gh))
    rb = np.zeros_like(wb)
    if "secondary_bias" in tensors:
        rb[:, 2 * case.H :] = tensors["secondary_bias"].reshape(case.D, case.H)
    return np.concatenate([wb, rb], axis=1)


def states_by_direction(case: Case, state: Array) -> Array:
    """[D,N,H] from [N,DH]."""
    return np.stack(np.split(state, case.D, axis=1))


def onnx_inputs(case: Case, tensors: Arrays) -> Arrays:
    gh = tensors["recurrent_weight"].shape[-2]
    weight = tensors["input_weight"].reshape(case.D, gh, case.I)
    recurrent = tensors["recurrent_weight"].reshape(case.D, gh, case.H)
    found = {"X": tensors["source"]}
    found["W"] = reordered(case, weight)
    found["R"] = reordered(case, recurrent)
    if "bias" in tensors:
        found["B"] = onnx_bias(case, tensors)
    if "init_state" in tensors:
        found["initial_h"] = states_by_direction(case, tensors["init_state"])
    if "init_cell" in tensors:
        found["initial_c"] = states_by_direction(case, tensors["init_cell"])
    if "peephole" in tensors:
        blocks = np.split(tensors["peephole"].reshape(case.D, gh), 4, axis=1)
        ours = oracle.gate_order("lstm", case.options)
        found["P"] = np.concatenate([blocks[ours.index(g)] for g in "iof"], axis=1)
    return found


def activation_attributes(case: Case, kinds: tuple[int, ...]) -> dict[str, Any]:
    named = [ONNX_ACTIVATIONS[kind] for kind in kinds] * case.D
    # alpha and beta are lists over the functions that have them, in order
    with_constants = [entry for entry in named if entry[0] in ("Affine", "HardSigmoid")]
    found: dict[str, Any] = {"activations": [entry[0] for entry in named]}
    if with_constants:
        found["activation_alpha"] = [entry[1] for entry in with_constants]
        found["activation_beta"] = [entry[2] for entry in with_constants]
    return found


def run_onnx(case: Case, kinds: tuple[int, ...], tensors: Arrays) -> OnnxResult:
    feeds = onnx_inputs(case, tensors)
    slots = ["X", "W", "R", "B", "", "initial_h"]
    if case.cell == "lstm":
        slots += ["initial_c", "P"]
    more = {"linear_before_reset": int("reset_after" in case.flags)} if case.cell == "gru" else {}
    node = helper.make_node(
        OPERATOR[case.cell],
        [slot if slot in feeds else "" for slot in slots],
        OUTPUTS[case.cell],
        hidden_size=case.H,
        direction=case.direction,
        **activation_attributes(case, kinds),
        **more,
    )
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)
        for name, array in feeds.items()
    ]
    each = {"Y": [case.T, case.D, case.N, case.H]}
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, each.get(name, each["Y"][1:]))
        for name in OUTPUTS[case.cell]
    ]
    graph = helper.make_graph([node], "one_operator", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    state, last, *cell = session.run(None, {k: np.ascontiguousarray(v) for k, v in feeds.items()})
    return OnnxResult(state, last, cell[0] if cell else None)


def ours_as_onnx(case: Case, per_step: Array) -> Array:
    """[T,D,N,H] at input time from [T,N,DH]."""
    if case.direction == "reverse":
        per_step = per_step[::-1]
    return per_step.reshape(case.T, case.N, case.D, case.H).transpose(0, 2, 1, 3)


def last_of(case: Case, at_input_time: Array) -> Array:
    """[D,N,H] of the last processed step, from [T,D,N,H]."""
    if case.D == 2:
        return np.stack([at_input_time[-1, 0], at_input_time[0, 1]])
    return at_input_time[0 if case.direction == "reverse" else -1]


def check(case: Case, kinds: tuple[int, ...], tensors: Arrays | None = None) -> None:
    tensors = make_tensors(case) if tensors is None else tensors
    theirs = run_onnx(case, kinds, tensors)
    ours = run_forward(case, tensors, None, training=True)
    state = ours_as_onnx(case, ours.state)
    assert_close(state, theirs.state, f"state of {case}", FLOAT32)
    assert_close(last_of(case, state), theirs.last, f"last state of {case}", FLOAT32)
    if case.cell == "lstm":
        cell = last_of(case, ours_as_onnx(case, ours.cell))
        assert_close(cell, theirs.last_cell, f"last cell of {case}", FLOAT32)


def make_case(cell: str, kinds: tuple[int, ...], direction: str, **more: Any) -> Case:
    inputs = frozenset({"input_weight", "bias", "init_state"})
    found = {
        "inputs": inputs | {"init_cell"} if cell == "lstm" else inputs,
        "dtype": "float32",
        "seed": sum(kinds) + 10 * len(direction),
        **SIZES,
        **more,
    }
    return Case(cell, direction, activations=our_activations(cell, kinds), **found)


directions = pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])


@directions
@pytest.mark.parametrize("kind", range(5))
def test_single_gate_rnn(kind: int, direction: str) -> None:
    check(make_case("rnn", (kind,), direction), (kind,))


@directions
@pytest.mark.parametrize("kinds", LSTM_KINDS, ids=str)
@pytest.mark.parametrize("flags", [(), ("forget_gate_last",)], ids=["ifzo", "izfo"])
def test_lstm(flags: tuple[str, ...], kinds: tuple[int, ...], direction: str) -> None:
    check(make_case("lstm", kinds, direction, flags=frozenset(flags)), kinds)


@directions
@pytest.mark.parametrize("kinds", GRU_KINDS, ids=str)
@pytest.mark.parametrize("first", [(), ("reset_gate_first",)], ids=["zro", "rzo"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "linear_before_reset"])
def test_gru(after: bool, first: tuple[str, ...], kinds: tuple[int, ...], direction: str) -> None:
    flags = frozenset([*first, *(["reset_after"] if after else [])])
    case = make_case("gru", kinds, direction, flags=flags)
    if after:
        case = make_case(
            "gru", kinds, direction, flags=flags, inputs=case.inputs | {"secondary_bias"}
        )
    check(case, kinds)


@directions
@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_without_bias_and_initial_states(cell: str, direction: str) -> None:
    kinds = {"rnn": (2,), "lstm": (3, 2, 2), "gru": (3, 2)}[cell]
    check(make_case(cell, kinds, direction, inputs=frozenset({"input_weight"})), kinds)


def peephole_case(direction: str, gates_without: str, *flags: str) -> tuple[Case, Arrays]:
    inputs = frozenset({"input_weight", "bias", "init_state", "init_cell", "peephole"})
    case = make_case("lstm", (3, 2, 2), direction, inputs=inputs, flags=frozenset(flags))
    tensors = make_tensors(case)
    peephole = tensors["peephole"].copy()
    for gate in gates_without:
        k = "ifzo".index(gate)
        peephole[..., k * case.H : (k + 1) * case.H] = 0
    return case, {**tensors, "peephole": peephole}


@directions
def test_peepholes_agree_without_those_of_the_output_and_the_cell_gate(direction: str) -> None:
    """i and f look at c[t-1] in both; ONNX has no z peephole, and its o looks at c[t]."""
    case, tensors = peephole_case(direction, "zo")
    assert np.count_nonzero(tensors["peephole"]) == case.D * 2 * case.H
    check(case, (3, 2, 2), tensors)


@directions
def test_peepholes_on_the_new_cell_agree(direction: str) -> None:
    case, tensors = peephole_case(direction, "z", "peephole_on_new_cell")
    assert np.count_nonzero(tensors["peephole"]) == case.D * 3 * case.H
    check(case, (3, 2, 2), tensors)


def test_the_output_peephole_is_not_that_of_onnx() -> None:
    """With it the two differ visibly, and ours is what the specification says."""
    case, tensors = peephole_case("forward", "z")
    theirs = run_onnx(case, (3, 2, 2), tensors).state
    ours = run_forward(case, tensors, None).state
    assert relative_error(ours_as_onnx(case, ours), theirs) > 1e-2
    assert_close(ours, expected_forward(case, tensors)["state"], case, FLOAT32)
