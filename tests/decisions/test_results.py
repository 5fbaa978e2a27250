"""What comes back: zState, outputs, gradients; their order, float type and bits."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cases import (
    CELLS,
    DTYPES,
    FED_BACK,
    FLAGS,
    FORWARD_MEMBERS,
    FORWARD_OPS,
    GRADIENT_MEMBERS,
    GRADIENT_OPS,
    OPTIONAL,
    Case,
    all_inputs,
    assert_close,
    expected_forward,
    expected_gradients,
    full,
    make_cotangents,
    make_tensors,
    run_forward,
    run_gradients,
    subsets,
)
from tests.decisions.common import assert_same, cells, directions, setup, sigmoid


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
