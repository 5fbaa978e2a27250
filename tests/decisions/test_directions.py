"""Reverse and bidirectional layers: the order of steps, and the halves of every tensor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.cases import (
    DIRECTIONS,
    FORWARD_MEMBERS,
    Arrays,
    Case,
    all_inputs,
    assert_close,
    full,
    make_tensors,
    run_forward,
    run_gradients,
)
from tests.decisions.common import assert_same, cells, directions, put_last, setup, smooth


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
