"""One test for every decision of the specification, and for every published fact that is easy to
get wrong. The names say the decision; the numbers come from the written equations or from the
oracle, never from the code under test.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import zstate as zs
from tests import oracle
from tests.cases import (
    CELLS,
    DIRECTIONS,
    DTYPES,
    FED_BACK,
    FLAGS,
    FORWARD_MEMBERS,
    FORWARD_OPS,
    GRADIENT_MEMBERS,
    GRADIENT_OPS,
    MASK_FORMS,
    OPTIONAL,
    Array,
    Arrays,
    Case,
    all_inputs,
    assert_close,
    check_everywhere,
    expected_forward,
    expected_gradients,
    make_cotangents,
    make_tensors,
    run_forward,
    run_gradients,
    subsets,
)

cells = pytest.mark.parametrize("cell", CELLS)
directions = pytest.mark.parametrize("direction", DIRECTIONS)


def full(cell: str, **more: Any) -> Case:
    """Everything that may come along does; the GRU resets after, so that b2 has a meaning."""
    found: dict[str, Any] = {
        "inputs": all_inputs(cell),
        "flags": frozenset({"reset_after"}) if cell == "gru" else frozenset(),
        "state_gradient": "flat",
        "cell_gradient": "flat" if cell == "lstm" else "none",
        "seed": 21,
        **more,
    }
    return Case(cell, **found)


def setup(case: Case) -> tuple[Arrays, Arrays, Any, Any]:
    tensors, cotangents = make_tensors(case), make_cotangents(case)
    result = run_forward(case, tensors, training=True)
    return tensors, cotangents, result, run_gradients(case, tensors, cotangents, result)


def assert_same(a: Any, b: Any) -> None:
    """Two named tuples of arrays with the same numbers."""
    assert a._fields == b._fields
    for name, x, y in zip(a._fields, a, b, strict=True):
        assert (x is None) == (y is None), name
        if x is not None:
            assert_close(x, y, name)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def one(value: float, *shape: int) -> Array:
    return np.full(shape or (1, 1, 1), float(value))


# Shapes


def test_peephole_8H_is_the_same_as_2_4H() -> None:
    case = full("lstm", direction="bidirectional")
    tensors, cotangents, result, gradients = setup(case)
    flat = {**tensors, "peephole": tensors["peephole"].reshape(8 * case.H)}
    again = run_forward(case, flat, training=True)
    assert_same(again, result)
    flat_gradients = run_gradients(case, flat, cotangents, again)
    assert gradients.peephole.shape == (2, 4 * case.H)
    assert flat_gradients.peephole.shape == (8 * case.H,)
    assert_same(flat_gradients._replace(peephole=flat_gradients.peephole.reshape(2, -1)), gradients)


@cells
@directions
@pytest.mark.parametrize("form", MASK_FORMS, ids=lambda form: form or "scalar")
def test_mask_is_anything_that_broadcasts(cell: str, direction: str, form: str) -> None:
    case = full(cell, direction=direction, mask_form=form)
    tensors, cotangents, result, gradients = setup(case)
    whole = np.broadcast_to(tensors["mask"], (case.T, case.N, case.D * case.H)).copy()
    materialised = {**tensors, "mask": whole}
    again = run_forward(case, materialised, training=True)
    assert_same(result, again)
    assert_same(gradients, run_gradients(case, materialised, cotangents, again))


@cells
def test_mask_may_vary_with_time(cell: str) -> None:
    """A mask that closes only step 2 changes nothing before it and everything from it on."""
    case = full(cell, inputs=all_inputs(cell, "mask"), activations=smooth(cell))
    tensors = make_tensors(case)
    mask = np.ones((case.T, 1, 1))
    mask[2] = 0
    plain = run_forward(case, tensors).state
    masked = run_forward(case, {**tensors, "mask": mask}).state
    np.testing.assert_array_equal(masked[:2], plain[:2])
    assert np.all(masked[2:] != plain[2:])
    check_everywhere(replace(full(cell), mask_form="T11"))


def smooth(cell: str) -> tuple[int, ...]:
    return (oracle.TANH,) if cell == "rnn" else ()


@cells
@directions
def test_state_gradient_may_have_a_leading_axis(cell: str, direction: str) -> None:
    case = full(cell, direction=direction)
    tensors, cotangents, result, gradients = setup(case)
    leading = {**cotangents, "state_gradient": cotangents["state_gradient"][None]}
    assert_same(run_gradients(case, tensors, leading, result), gradients)


@directions
def test_cell_gradient_may_have_a_leading_axis(direction: str) -> None:
    case = full("lstm", direction=direction)
    tensors, cotangents, result, gradients = setup(case)
    leading = {**cotangents, "cell_gradient": cotangents["cell_gradient"][None]}
    assert_same(run_gradients(case, tensors, leading, result), gradients)


@directions
def test_cell_gradient_for_every_step(direction: str) -> None:
    check_everywhere(full("lstm", direction=direction, cell_gradient="all"))


@directions
def test_cell_gradient_of_the_last_step_alone(direction: str) -> None:
    """[N,DH] is [T,N,DH] with zeros at all but the last processed step."""
    case = full("lstm", direction=direction)
    tensors, cotangents, result, gradients = setup(case)
    every = np.zeros((case.T, case.N, case.D * case.H))
    put_last(case, every, cotangents["cell_gradient"])
    again = run_gradients(case, tensors, {**cotangents, "cell_gradient": every}, result)
    assert_same(again, gradients)


def put_last(case: Case, per_step: Array, last: Array) -> None:
    """Add [N,DH] at the last processed step, which is t = 0 for the reverse half."""
    per_step[-1, :, : case.H] += last[:, : case.H]
    if case.D == 2:
        per_step[0, :, case.H :] += last[:, case.H :]


@directions
def test_for_one_step_the_two_readings_of_cell_gradient_coincide(direction: str) -> None:
    case = full("lstm", direction=direction, T=1)
    tensors, cotangents, result, gradients = setup(case)
    flat = cotangents["cell_gradient"]
    again = run_gradients(case, tensors, {**cotangents, "cell_gradient": flat[None]}, result)
    assert_same(again, gradients)


@cells
@directions
def test_every_gradient_has_the_shape_of_its_input(cell: str, direction: str) -> None:
    case = full(cell, direction=direction)
    tensors, _, _, gradients = setup(case)
    for name in GRADIENT_MEMBERS[cell]:
        assert getattr(gradients, name).shape == tensors[name].shape


@cells
@directions
def test_without_input_weight_the_source_is_already_projected(cell: str, direction: str) -> None:
    case = full(cell, direction=direction)
    tensors = make_tensors(case)
    projected = tensors["source"] @ tensors["input_weight"].T
    rest = {k: v for k, v in tensors.items() if k != "input_weight"}
    assert_same(
        run_forward(case, {**rest, "source": projected}, training=True),
        run_forward(case, tensors, training=True),
    )


@cells
@directions
def test_a_missing_input_is_its_neutral_value(cell: str, direction: str) -> None:
    """Zero for biases, states and peepholes, one for the mask, the identity for the weight."""
    bare = Case(cell, direction, FLAGS_WITH_B2.get(cell, frozenset()), seed=22)
    tensors = make_tensors(bare)
    case = full(cell, direction=direction, I=tensors["source"].shape[2])
    neutral = {name: np.zeros(array.shape) for name, array in make_tensors(case).items()}
    neutral |= {**tensors, "mask": np.ones(neutral["mask"].shape)}
    neutral["input_weight"] = np.eye(neutral["input_weight"].shape[0])
    assert_same(
        run_forward(bare, tensors, training=True), run_forward(case, neutral, training=True)
    )


FLAGS_WITH_B2 = {"gru": frozenset({"reset_after"})}


# Equations


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


# Gate order


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


# Activations


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


# zState and outputs


@directions
@pytest.mark.parametrize("kind", range(5))
def test_z_state_of_the_single_gate_is_the_pre_activation(kind: int, direction: str) -> None:
    case = full("rnn", direction=direction, activations=(kind,))
    tensors = make_tensors(case)
    result = run_forward(case, tensors, training=True)
    assert_close(result.training_state, expected_forward(case, tensors)["training_state"])
    function = [
        lambda x: x,
        lambda x: np.maximum(x, 0),
        np.tanh,
        sigmoid,
        lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    ][kind]
    assert_close(result.state, function(result.training_state))


@directions
def test_z_state_of_the_lstm_is_the_four_activated_gates(direction: str) -> None:
    case = full("lstm", direction=direction)
    result = run_forward(case, make_tensors(case), training=True)
    assert result.training_state.shape == (case.T, case.N, case.D * 4 * case.H)
    for d in range(case.D):
        gates = result.training_state[..., d * 4 * case.H : (d + 1) * 4 * case.H]
        half = slice(d * case.H, (d + 1) * case.H)
        o = gates[..., 3 * case.H :]
        assert_close(result.state[..., half], o * np.tanh(result.cell[..., half]))


@directions
@pytest.mark.parametrize(
    "flags", subsets(FLAGS["gru"]), ids=lambda f: "-".join(sorted(f)) or "plain"
)
def test_z_state_of_the_gru_is_the_three_activated_gates(
    flags: frozenset[str], direction: str
) -> None:
    """And not the un-reset recurrent term, which would be a fourth block."""
    but = () if "reset_after" in flags else ("secondary_bias",)
    case = full("gru", direction=direction, flags=flags, inputs=all_inputs("gru", *but))
    tensors = make_tensors(case)
    found = run_forward(case, tensors, training=True).training_state
    assert found.shape == (case.T, case.N, case.D * 3 * case.H)
    assert_close(found, expected_forward(case, tensors)["training_state"])


@cells
@directions
def test_the_gradient_operation_needs_nothing_but_the_published_tensors(
    cell: str, direction: str
) -> None:
    """zState and the outputs may come from another implementation, or have been stored."""
    case = full(cell, direction=direction)
    tensors, cotangents = make_tensors(case), make_cotangents(case)
    foreign = expected_forward(case, tensors)
    fed_back = {name: foreign[member] for name, member in FED_BACK[cell].items()}
    found = GRADIENT_OPS[cell](
        **tensors, **cotangents, **fed_back, descriptor=case.descriptor(training=True)
    )
    for name, value in expected_gradients(case, tensors, cotangents).items():
        assert_close(getattr(found, name), value, name)


@cells
def test_the_gradient_operation_does_not_ask_for_training(cell: str) -> None:
    """`training` says what the forward operation returns; the gradients are the same without."""
    case = full(cell)
    tensors, cotangents, result, gradients = setup(case)
    fed_back = {name: getattr(result, member) for name, member in FED_BACK[cell].items()}
    found = GRADIENT_OPS[cell](**tensors, **cotangents, **fed_back, descriptor=case.descriptor())
    assert_same(found, gradients)


@pytest.mark.parametrize(
    ("options", "produced"),
    [
        ({}, {"state"}),
        ({"produce_cell": True}, {"state", "cell"}),
        ({"training": True}, {"state", "cell", "training_state"}),
        ({"training": True, "produce_cell": True}, {"state", "cell", "training_state"}),
    ],
    ids=["h", "hc", "hcz", "hcz_too"],
)
def test_lstm_outputs(options: dict[str, bool], produced: set[str]) -> None:
    case = full("lstm")
    result = run_forward(case, make_tensors(case), **options)
    assert result._fields == FORWARD_MEMBERS["lstm"]
    assert {name for name in result._fields if getattr(result, name) is not None} == produced


@pytest.mark.parametrize("cell", ["rnn", "gru"])
@pytest.mark.parametrize("training", [False, True])
def test_rnn_and_gru_outputs(cell: str, training: bool) -> None:
    case = full(cell)
    result = run_forward(case, make_tensors(case), training=training)
    assert result._fields == ("state", "training_state")
    assert result.state is not None
    assert (result.training_state is not None) == training


@cells
def test_no_descriptor_is_the_default_descriptor(cell: str) -> None:
    case = Case(cell, inputs=all_inputs(cell, "secondary_bias"), seed=23)
    tensors = make_tensors(case)
    assert_same(FORWARD_OPS[cell](**tensors), run_forward(case, tensors))
    assert_close(FORWARD_OPS[cell](**tensors).state, expected_forward(case, tensors)["state"])


# Direction


def reversed_in_time(case: Case, tensors: Arrays) -> Arrays:
    found = {**tensors, "source": tensors["source"][::-1]}
    if "mask" in tensors:
        found["mask"] = tensors["mask"][::-1]
    return found


@cells
def test_reverse_outputs_are_in_processing_order(cell: str) -> None:
    """out[0] belongs to x[T-1]: the forward layer on the reversed sequence, not flipped back."""
    case = full(cell, direction="reverse")
    tensors = make_tensors(case)
    plain = replace(case, direction="forward")
    assert_same(
        run_forward(case, tensors, training=True),
        run_forward(plain, reversed_in_time(case, tensors), training=True),
    )


@cells
def test_reverse_takes_per_step_gradients_in_processing_order(cell: str) -> None:
    """And returns the gradient of source in input order, like source."""
    case = full(cell, direction="reverse", cell_gradient="all" if cell == "lstm" else "none")
    tensors, cotangents, result, gradients = setup(case)
    plain = replace(case, direction="forward")
    expected = run_gradients(plain, reversed_in_time(case, tensors), cotangents, result)
    assert_same(gradients, expected._replace(source=expected.source[::-1]))


@cells
def test_mask_belongs_to_the_input_step(cell: str) -> None:
    """In all directions: a mask that closes input step 0 acts where x[0] is read."""
    inputs = all_inputs(cell, "mask")
    base = full(cell, inputs=inputs, activations=smooth(cell))
    for direction in DIRECTIONS:
        case = replace(base, direction=direction)
        tensors = make_tensors(case)
        mask = np.ones((case.T, 1, 1))
        mask[0] = 0
        changed = (
            run_forward(case, tensors).state != run_forward(case, {**tensors, "mask": mask}).state
        )
        by_step = changed.reshape(case.T, case.N, case.D, case.H).any(axis=(1, 3)).T.tolist()
        only_at_0 = [True, False, False, False]
        expected = {
            "forward": [[True] * 4],  # x[0] is read first, and all steps follow from it
            "reverse": [[False, False, False, True]],  # read last: out[T-1]
        }.get(direction, [[True] * 4, only_at_0])
        assert by_step == expected, direction


@cells
def test_bidirectional_halves_are_two_layers(cell: str) -> None:
    """Direction 0 reads forward; direction 1 backward, reported at input time; last axis."""
    case = full(cell, direction="bidirectional")
    tensors = make_tensors(case)
    both = run_forward(case, tensors, training=True)
    for d, direction in enumerate(("forward", "reverse")):
        single = run_forward(
            replace(case, direction=direction), half_of(case, tensors, d), training=True
        )
        for name in FORWARD_MEMBERS[cell]:
            expected = getattr(single, name)
            expected = expected[::-1] if d else expected
            found = np.split(getattr(both, name), 2, axis=2)[d]
            assert_close(found, np.ascontiguousarray(expected), f"{name} of direction {d}")


def half_of(case: Case, tensors: Arrays, d: int) -> Arrays:
    """W, b, b2 stack the directions on axis 0; R, p on a new axis 0; states, mask on the last."""
    found = {"source": tensors["source"]}
    for name in ("input_weight", "bias", "secondary_bias"):
        if name in tensors:
            found[name] = np.split(tensors[name], 2, axis=0)[d]
    for name in ("recurrent_weight", "peephole"):
        if name in tensors:
            found[name] = tensors[name][d]
    for name in ("init_state", "init_cell", "mask"):
        if name in tensors:
            found[name] = np.split(tensors[name], 2, axis=-1)[d]
    return found


@cells
def test_bidirectional_without_input_weight_splits_the_source(cell: str) -> None:
    case = full(cell, direction="bidirectional", inputs=frozenset())
    tensors = make_tensors(case)
    both = run_forward(case, tensors).state
    for d, direction in enumerate(("forward", "reverse")):
        half = {
            "source": np.split(tensors["source"], 2, axis=2)[d],
            "recurrent_weight": tensors["recurrent_weight"][d],
        }
        single = run_forward(replace(case, direction=direction), half).state
        expected = single[::-1].copy() if d else single
        assert_close(np.split(both, 2, axis=2)[d], expected)


@cells
def test_reverse_is_ignored_when_bidirectional(cell: str) -> None:
    case = full(cell, direction="bidirectional")
    both = replace(case, direction="bidirectional_reverse")
    tensors, cotangents, result, gradients = setup(case)
    assert_same(run_forward(both, tensors, training=True), result)
    assert_same(run_gradients(both, tensors, cotangents, result), gradients)


@cells
@directions
def test_state_gradient_is_added_at_the_last_processed_step(cell: str, direction: str) -> None:
    """The reverse half of a bidirectional layer ends at t = 0."""
    case = full(cell, direction=direction)
    tensors, cotangents, result, gradients = setup(case)
    moved = cotangents["source_gradient"].copy()
    put_last(case, moved, cotangents["state_gradient"])
    rest = {k: v for k, v in cotangents.items() if k != "state_gradient"}
    assert_same(run_gradients(case, tensors, {**rest, "source_gradient": moved}, result), gradients)


# Gradients


@pytest.mark.parametrize(("cell", "order"), GRADIENT_MEMBERS.items())
def test_the_order_of_the_gradients(cell: str, order: tuple[str, ...]) -> None:
    case = full(cell)
    assert setup(case)[3]._fields == order


@pytest.mark.parametrize(
    ("cell", "missing"), [(cell, name) for cell in CELLS for name in OPTIONAL[cell]]
)
def test_an_input_that_was_not_passed_has_no_gradient(cell: str, missing: str) -> None:
    gradients = setup(full(cell, inputs=all_inputs(cell, missing)))[3]
    absent = {name for name in gradients._fields if getattr(gradients, name) is None}
    assert absent == {missing} - {"mask"}


@cells
def test_gradients_are_linear_in_what_comes_in(cell: str) -> None:
    case = full(cell)
    tensors, cotangents, result, gradients = setup(case)
    doubled = {name: 2 * array for name, array in cotangents.items()}
    twice = run_gradients(case, tensors, doubled, result)
    assert_same(twice, type(gradients)(*(2 * g for g in gradients)))


# Empty sizes


@cells
@directions
def test_no_time_steps(cell: str, direction: str) -> None:
    """Empty outputs, zero weight gradients, and the states' gradients pass through."""
    case = full(cell, direction=direction, T=0)
    tensors, cotangents, result, gradients = setup(case)
    for array in result:
        assert array.shape[:2] == (0, case.N)
        assert array.size == 0
    assert result.state.shape == (0, case.N, case.D * case.H)
    assert gradients.source.shape == tensors["source"].shape
    for name in ("recurrent_weight", "input_weight", "bias", "peephole", "secondary_bias"):
        if name in tensors:
            np.testing.assert_array_equal(getattr(gradients, name), 0 * tensors[name])
    np.testing.assert_array_equal(gradients.init_state, cotangents["state_gradient"])
    if cell == "lstm":
        np.testing.assert_array_equal(gradients.init_cell, cotangents["cell_gradient"])


@cells
def test_no_time_steps_and_no_state_gradient(cell: str) -> None:
    case = full(cell, T=0, state_gradient="none", cell_gradient="none")
    tensors, _, _, gradients = setup(case)
    np.testing.assert_array_equal(gradients.init_state, np.zeros((case.N, case.H)))
    if cell == "lstm":
        np.testing.assert_array_equal(gradients.init_cell, np.zeros((case.N, case.H)))
    assert gradients.init_state.shape == tensors["init_state"].shape


def test_no_time_steps_and_a_cell_gradient_for_each_of_them() -> None:
    case = full("lstm", T=0, cell_gradient="all")
    np.testing.assert_array_equal(setup(case)[3].init_cell, np.zeros((case.N, case.H)))


@cells
@directions
def test_no_batch(cell: str, direction: str) -> None:
    case = full(cell, direction=direction, N=0)
    tensors, _, result, gradients = setup(case)
    assert result.state.shape == (case.T, 0, case.D * case.H)
    assert gradients.init_state.shape == tensors["init_state"].shape
    for name in ("recurrent_weight", "input_weight", "bias"):
        np.testing.assert_array_equal(getattr(gradients, name), 0 * tensors[name])


@cells
@directions
def test_no_input_features(cell: str, direction: str) -> None:
    """The states run on from the initial ones; the input weight has an empty gradient."""
    case = full(cell, direction=direction, I=0)
    gradients = setup(case)[3]
    assert gradients.source.shape == (case.T, case.N, 0)
    assert gradients.input_weight.shape[1] == 0
    check_everywhere(case)


@cells
@pytest.mark.parametrize("sizes", [{"T": 0, "N": 0}, {"T": 0, "I": 0}, {"T": 0, "N": 0, "I": 0}])
def test_nothing_at_all(cell: str, sizes: dict[str, int]) -> None:
    check_everywhere(full(cell, **sizes))


# Arithmetic


@cells
def test_the_same_inputs_give_the_same_bits(cell: str) -> None:
    case = full(cell, direction="bidirectional", T=9, N=5, I=7, H=11)
    tensors, cotangents, result, gradients = setup(case)
    for _ in range(3):
        again = run_forward(case, tensors, training=True)
        found = run_gradients(case, tensors, cotangents, again)
        for x, y in [*zip(again, result, strict=True), *zip(found, gradients, strict=True)]:
            np.testing.assert_array_equal(x, y)


@cells
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_results_have_the_float_type_of_the_inputs(cell: str, dtype: str) -> None:
    case = full(cell, dtype=dtype)
    _, _, result, gradients = setup(case)
    assert {array.dtype for array in (*result, *gradients)} == {DTYPES[dtype]}
