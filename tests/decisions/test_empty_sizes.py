"""No time steps, no batch, no input features."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cases import check_everywhere, full
from tests.decisions.common import cells, directions, setup


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
