"""The reference gradients against differences of the forward operation itself, in float64.

No second implementation takes part: only the public forward operation and the public gradient
operation, which must agree with each other to a relative error of 1e-7 for each tensor. Fourth
order differences with a step of 5e-4 have a truncation error near 1e-13 and a rounding error near
1e-12, so that the bound has room for neither a mistake nor luck. Inputs that bring a relu or a
hardSigmoid near the place where it has no derivative are drawn again.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests import oracle
from tests.cases import (
    ACTIVATION_FIELDS,
    CELLS,
    DEFAULT_ACTIVATIONS,
    DIRECTIONS,
    FLAGS,
    OPTIONAL,
    Array,
    Arrays,
    Case,
    all_inputs,
    make_cotangents,
    make_tensors,
    relative_error,
    run_forward,
    run_gradients,
    to_torch,
)
from tests.covering import covering

STEP = 5e-4
BOUND = 1e-7
SMALL = {"T": 3, "N": 2, "I": 2, "H": 2}


def away_from_kinks(case: Case) -> Case:
    for seed in range(case.seed, case.seed + 1000):
        candidate = replace(case, seed=seed)
        tensors = to_torch(make_tensors(candidate))
        if oracle.kink_distance(case.cell, case.options, tensors) > 20 * STEP:
            return candidate
    raise AssertionError(f"no inputs away from the kinks for {case}")


def last_step(case: Case, per_step: Array) -> Array:
    """[N,DH]: of the last processed step, which is t = 0 for the reverse half."""
    if case.D == 1:
        return per_step[-1]
    return np.concatenate([per_step[-1, :, : case.H], per_step[0, :, case.H :]], axis=1)


def objective(case: Case, tensors: Arrays, cotangents: Arrays) -> float:
    result = run_forward(case, tensors, training=True)
    total = np.vdot(result.state, cotangents["source_gradient"])
    if case.state_gradient != "none":
        total += np.vdot(last_step(case, result.state), cotangents["state_gradient"])
    if case.cell_gradient == "all":
        total += np.vdot(result.cell, cotangents["cell_gradient"])
    elif case.cell_gradient != "none":
        total += np.vdot(last_step(case, result.cell), cotangents["cell_gradient"])
    return float(total)


def difference(case: Case, tensors: Arrays, cotangents: Arrays, name: str) -> Array:
    """The derivative of the objective by every element of one tensor."""
    found = np.zeros(tensors[name].shape)
    for index in np.ndindex(found.shape):
        values = {}
        for steps in (-2, -1, 1, 2):
            moved = tensors[name].copy()
            moved[index] += steps * STEP
            values[steps] = objective(case, {**tensors, name: moved}, cotangents)
        found[index] = (8 * (values[1] - values[-1]) - (values[2] - values[-2])) / (12 * STEP)
    return found


def check(case: Case) -> None:
    case = away_from_kinks(case)
    tensors, cotangents = make_tensors(case), make_cotangents(case)
    gradients = run_gradients(case, tensors, cotangents)
    for name in tensors:
        if name != "mask":
            expected = difference(case, tensors, cotangents, name)
            error = relative_error(getattr(gradients, name), expected)
            assert error < BOUND, f"{name} of {case}: relative error {error:.2e}"


def full(cell: str, **more: Any) -> Case:
    """A case with everything that its flags allow."""
    flags = more.get("flags", frozenset())
    but = () if "reset_after" in flags else ("secondary_bias",)
    found = {
        "inputs": all_inputs(cell, *but),
        "state_gradient": "flat",
        "cell_gradient": "all" if cell == "lstm" else "none",
        **SMALL,
        **more,
    }
    return Case(cell, **found)


def flags_of(cell: str) -> list[tuple[Any, ...]]:
    """A direction and whether each flag is on: every pair of them."""
    flags = [(False, True) for _ in FLAGS[cell]]
    return covering(DIRECTIONS, *flags) if flags else [(each,) for each in DIRECTIONS]


STRUCTURES = [
    pytest.param(cell, direction, flags, id="-".join([cell, direction, *sorted(flags)]))
    for cell in CELLS
    for direction, *on in flags_of(cell)
    for flags in [frozenset(itertools.compress(FLAGS[cell], on))]
]
GATES_AND_ACTIVATIONS = [
    pytest.param(cell, position, kind, id=f"{cell}-{field}-{kind}")
    for cell in CELLS
    for position, field in enumerate(ACTIVATION_FIELDS[cell])
    for kind in range(5)
]


@pytest.mark.parametrize(("cell", "direction", "flags"), STRUCTURES)
def test_directions_and_flags(cell: str, direction: str, flags: frozenset[str]) -> None:
    smooth = (oracle.TANH,) if cell == "rnn" else DEFAULT_ACTIVATIONS[cell]
    check(full(cell, direction=direction, flags=flags, activations=smooth, seed=11))


@pytest.mark.parametrize(("cell", "position", "kind"), GATES_AND_ACTIVATIONS)
def test_every_activation_on_every_gate(cell: str, position: int, kind: int) -> None:
    kinds = list(DEFAULT_ACTIVATIONS[cell])
    kinds[position] = kind
    for flags in ((), ("reset_after",)) if cell == "gru" else ((),):
        check(full(cell, activations=tuple(kinds), flags=frozenset(flags), seed=12))


@pytest.mark.parametrize("kind", range(5))
@pytest.mark.parametrize("cell", CELLS)
def test_one_activation_everywhere(cell: str, kind: int) -> None:
    kinds = (kind,) * len(ACTIVATION_FIELDS[cell])
    check(full(cell, direction="bidirectional", activations=kinds, seed=13))


@pytest.mark.parametrize(
    ("cell", "missing"), [(cell, name) for cell in CELLS for name in OPTIONAL[cell]]
)
def test_each_input_missing(cell: str, missing: str) -> None:
    flags = frozenset({"reset_after"}) if cell == "gru" else frozenset()
    smooth = (oracle.SIGMOID,) if cell == "rnn" else DEFAULT_ACTIVATIONS[cell]
    check(
        full(
            cell,
            flags=flags,
            inputs=all_inputs(cell, missing),
            activations=smooth,
            direction="bidirectional",
            seed=14,
        )
    )


@pytest.mark.parametrize("cell", CELLS)
def test_all_inputs_missing(cell: str) -> None:
    smooth = (oracle.TANH,) if cell == "rnn" else DEFAULT_ACTIVATIONS[cell]
    check(Case(cell, activations=smooth, seed=15, **SMALL))


@pytest.mark.parametrize(
    ("direction", "cell_gradient", "state_gradient"),
    covering(DIRECTIONS, ("none", "flat", "leading", "all"), ("none", "flat", "leading")),
)
def test_incoming_gradients(direction: str, cell_gradient: str, state_gradient: str) -> None:
    check(
        full(
            "lstm",
            direction=direction,
            state_gradient=state_gradient,
            cell_gradient=cell_gradient,
            seed=16,
        )
    )
