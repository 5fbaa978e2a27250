"""The shapes of inputs and gradients, and what stands for an input that is missing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.cases import (
    GRADIENT_MEMBERS,
    MASK_FORMS,
    Case,
    all_inputs,
    check_everywhere,
    full,
    make_tensors,
    run_forward,
    run_gradients,
)
from tests.decisions.common import assert_same, cells, directions, put_last, setup, smooth


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
