"""float16 and bfloat16: as accurate as storage in that type allows.

The inputs are rounded to the storage type first. The truth is the float64 oracle on these rounded
inputs. The control is PyTorch in the storage type: the plain loop of the oracle, and torch.nn where
it has the layer. The error of every output and every gradient may be at most twice the control's.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from tests import oracle
from tests.cases import (
    BACKENDS,
    CELLS,
    DIRECTIONS,
    FORWARD_MEMBERS,
    Array,
    Arrays,
    Case,
    Tolerance,
    all_inputs,
    answers,
    check_case,
    expected_forward,
    expected_gradients,
    make_cotangents,
    make_tensors,
    relative_error,
    run_forward,
    run_gradients,
    to_torch,
)

TORCH_TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
SIZES = {"T": 12, "N": 5, "I": 8, "H": 16}
half_types = pytest.mark.parametrize("dtype", list(TORCH_TYPES))
BACKEND: str | None = None  # set for each test


@pytest.fixture(params=BACKENDS, autouse=True)
def backend(request: pytest.FixtureRequest) -> None:
    """Every test on every backend that this machine has."""
    global BACKEND
    BACKEND = request.param


def full(cell: str, dtype: str, **more: Any) -> Case:
    found: dict[str, Any] = {
        "inputs": all_inputs(cell),
        "flags": frozenset({"reset_after"}) if cell == "gru" else frozenset(),
        "activations": (oracle.TANH,) if cell == "rnn" else (),
        "state_gradient": "flat",
        "cell_gradient": "all" if cell == "lstm" else "none",
        **SIZES,
        **more,
    }
    if "reset_after" not in found["flags"]:
        found["inputs"] -= {"secondary_bias"}
    return Case(cell, dtype=dtype, **found)


def double(tensors: dict[str, torch.Tensor]) -> Arrays:
    return {name: tensor.detach().to(torch.float64).numpy() for name, tensor in tensors.items()}


def plain_loop(case: Case, tensors: Arrays, cotangents: Arrays) -> tuple[Arrays, Arrays]:
    """The control: every step of the oracle's loop, and of its backward pass, in the type."""
    dtype = TORCH_TYPES[case.dtype]
    low = to_torch(tensors, dtype)
    result, gradients = oracle.forward_and_gradients(
        case.cell, case.options, low, to_torch(cotangents, dtype)
    )
    outputs = {name: getattr(result, name) for name in FORWARD_MEMBERS[case.cell]}
    return double(outputs), double(gradients)


@cache
def truth_and_control(case: Case) -> tuple[Arrays, Arrays, Arrays, Arrays]:
    """The exact outputs and gradients, and PyTorch's in the type; the backends share them."""
    tensors, cotangents = make_tensors(case), make_cotangents(case)
    return (*answers(case, tensors, cotangents), *plain_loop(case, tensors, cotangents))


def compare(case: Case) -> None:
    tensors, cotangents = make_tensors(case), make_cotangents(case)
    result = run_forward(case, tensors, BACKEND, training=True)
    gradients = run_gradients(case, tensors, cotangents, result, BACKEND)
    known = truth_and_control(case)
    truth, control = known[:2], known[2:]
    for ours, exact, theirs in zip((result, gradients), truth, control, strict=True):
        for name, value in exact.items():
            check_twice(getattr(ours, name), value, theirs[name], f"{name} of {case}")


def check_twice(ours: Array, exact: Array, theirs: Array, what: str) -> None:
    """At most twice the control's error; both must have one, else nothing was compared."""
    error, bound = relative_error(ours, exact), 2 * relative_error(theirs, exact)
    assert bound > 0, f"{what}: the control is exact"
    assert error <= bound, f"{what}: error {error:.2e}, twice the control's is {bound:.2e}"


@half_types
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("cell", CELLS)
def test_every_cell_and_direction(cell: str, seed: int, direction: str, dtype: str) -> None:
    compare(full(cell, dtype, direction=direction, seed=seed))


@half_types
@pytest.mark.parametrize("flags", [(), ("flip_z",), ("reset_after", "flip_z")], ids="-".join)
def test_every_form_of_the_gru(flags: tuple[str, ...], dtype: str) -> None:
    compare(full("gru", dtype, flags=frozenset(flags), seed=4))


@half_types
@pytest.mark.parametrize("missing", ["input_weight", "bias", "init_state", "mask"])
@pytest.mark.parametrize("cell", CELLS)
def test_with_an_input_missing(cell: str, missing: str, dtype: str) -> None:
    compare(full(cell, dtype, inputs=all_inputs(cell, missing), seed=5))


@half_types
@pytest.mark.parametrize("kind", [oracle.RELU, oracle.SIGMOID, oracle.HARD_SIGMOID])
def test_other_activations_of_the_single_gate(kind: int, dtype: str) -> None:
    compare(full("rnn", dtype, activations=(kind,), seed=6))


@half_types
def test_hard_sigmoid_gates(dtype: str) -> None:
    hard, tanh = oracle.HARD_SIGMOID, oracle.TANH
    compare(full("lstm", dtype, activations=(hard, hard, tanh, hard, tanh), seed=7))
    compare(full("gru", dtype, activations=(hard, hard, tanh), seed=7))


@half_types
@pytest.mark.parametrize("cell", CELLS)
def test_long_sequences_do_not_add_up_their_rounding(cell: str, dtype: str) -> None:
    """500 steps: sums over time in the storage type would lose most of their digits."""
    compare(full(cell, dtype, T=500, N=2, I=3, H=4, seed=8))


# A peephole can carry a unit's cell along for hundreds of steps. Its gradient is then a product of
# as many rounded gates and nearly the whole of the norm: one draw of an error, ours as well as
# PyTorch's, so that a ratio from one seed says nothing. The rule holds for the errors of many.

LONG = {"T": 200, "N": 1, "I": 33, "H": 65}
SEEDS = {"rnn": 2, "lstm": 8, "gru": 2}


@half_types
@pytest.mark.parametrize("cell", CELLS)
def test_long_sequences_over_many_seeds(cell: str, dtype: str) -> None:
    """The root mean square of the errors of all seeds, for every output and every gradient."""
    squares: dict[str, list[tuple[float, float]]] = {}
    for seed in range(SEEDS[cell]):
        case = full(cell, dtype, seed=seed, **LONG)
        outputs, gradients, their_outputs, their_gradients = truth_and_control(case)
        result = run_forward(case, make_tensors(case), BACKEND, training=True)
        ours = run_gradients(case, make_tensors(case), make_cotangents(case), result, BACKEND)
        found = [(result, name, outputs, their_outputs) for name in outputs]
        found += [(ours, name, gradients, their_gradients) for name in gradients]
        for values, name, exact, theirs in found:
            errors = squares.setdefault(f"{type(values).__name__}.{name}", [])
            error = relative_error(getattr(values, name), exact[name])
            errors.append((error**2, relative_error(theirs[name], exact[name]) ** 2))
    for name, pairs in squares.items():
        error, control = np.sqrt(np.mean(pairs, axis=0))
        assert error <= 2 * control, f"{name}: error {error:.2e}, the control's is {control:.2e}"


@half_types
@pytest.mark.parametrize("cell", CELLS)
def test_gradients_add_one_rounding_to_what_was_stored(cell: str, dtype: str) -> None:
    """Against float64 arithmetic on the same zState, cell and state: what is left of the error
    after 200 steps is the rounding of the results, so that all else is in what was stored."""
    unit = 2.0**-11 if dtype == "float16" else 2.0**-8
    for seed in range(SEEDS[cell]):
        case = full(cell, dtype, seed=seed, **LONG)
        tensors, cotangents = make_tensors(case), make_cotangents(case)
        result = run_forward(case, tensors, BACKEND, training=True)
        gradients = run_gradients(case, tensors, cotangents, result, BACKEND)
        stored = result._replace(**widened(result._asdict()))
        wide = replace(case, dtype="float64")
        exact = run_gradients(wide, widened(tensors), widened(cotangents), stored, "reference")
        for name, value in widened(exact._asdict()).items():
            error = relative_error(getattr(gradients, name), value)
            assert error <= unit, f"{name} of {case}: error {error / unit:.2f} units"


def widened(arrays: dict[str, Array | None]) -> Arrays:
    """In float64, without what is missing."""
    return {name: a.astype(np.float64) for name, a in arrays.items() if a is not None}


# torch.nn as the control


def module_for(case: Case, tensors: Arrays) -> Any:
    """The torch.nn layer with the same weights, in the storage type; its second bias is zero."""
    made = {"rnn": torch.nn.RNN, "lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[case.cell]
    module = made(case.I, case.H, dtype=TORCH_TYPES[case.dtype])
    low = to_torch(tensors, TORCH_TYPES[case.dtype])
    with torch.no_grad():
        module.weight_ih_l0.copy_(low["input_weight"])
        module.weight_hh_l0.copy_(low["recurrent_weight"])
        module.bias_ih_l0.copy_(low["bias"])
        module.bias_hh_l0.zero_()
        if case.cell == "gru":
            module.bias_hh_l0[2 * case.H :] = low["secondary_bias"]
    return module


@half_types
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("cell", CELLS)
def test_against_torch_nn(cell: str, seed: int, dtype: str) -> None:
    flags = frozenset({"reset_after", "reset_gate_first"}) if cell == "gru" else frozenset()
    inputs = all_inputs(cell, "mask", "peephole")
    last = "flat" if cell == "lstm" else "none"
    case = full(cell, dtype, flags=flags, inputs=inputs, cell_gradient=last, seed=seed)
    tensors, cotangents = make_tensors(case), make_cotangents(case)
    module = module_for(case, tensors)
    low = to_torch({**tensors, **cotangents}, TORCH_TYPES[dtype])
    x = low["source"].requires_grad_()
    names = ["init_state", "init_cell"] if cell == "lstm" else ["init_state"]
    initial = [low[name][None].requires_grad_() for name in names]
    y, last_states = module(x, tuple(initial) if cell == "lstm" else initial[0])
    ends = list(last_states) if cell == "lstm" else [last_states]
    upstream = [low["source_gradient"]]
    upstream += [low[name][None] for name in ("state_gradient", "cell_gradient")[: len(ends)]]
    torch.autograd.backward([y, *ends], upstream)
    theirs = {
        "source": x.grad,
        "recurrent_weight": module.weight_hh_l0.grad,
        "input_weight": module.weight_ih_l0.grad,
        "bias": module.bias_ih_l0.grad,
        **{name: state.grad[0] for name, state in zip(names, initial, strict=True)},
    }
    if cell == "gru":
        theirs["secondary_bias"] = module.bias_hh_l0.grad[2 * case.H :]
    control = double(theirs)
    result = run_forward(case, tensors, BACKEND, training=True)
    gradients = run_gradients(case, tensors, cotangents, result, BACKEND)
    exact_state = expected_forward(case, tensors)["state"]
    check_twice(result.state, exact_state, double({"y": y})["y"], f"state of {case}")
    exact = expected_gradients(case, tensors, cotangents)
    assert set(control) == set(exact)
    for name, value in exact.items():
        check_twice(getattr(gradients, name), value, control[name], f"{name} of {case}")


# Storage only: an absolute statement beside the relative one


@half_types
@pytest.mark.parametrize("cell", CELLS)
def test_outputs_are_rounded_once(cell: str, dtype: str) -> None:
    """Arithmetic is at least float32, so an output is off by half a unit of storage, no more."""
    case = full(cell, dtype, seed=9)
    tensors = make_tensors(case)
    unit = 2.0**-11 if dtype == "float16" else 2.0**-8
    result = run_forward(case, tensors, BACKEND, training=True)
    for name, exact in expected_forward(case, tensors).items():
        found = getattr(result, name).astype(np.float64)
        bound = unit * np.abs(exact) * 1.01 + 1e-6
        assert np.all(np.abs(found - exact) <= bound), name


@half_types
@pytest.mark.parametrize("cell", CELLS)
def test_shapes_types_and_untouched_inputs(cell: str, dtype: str) -> None:
    unit = 2.0**-10 if dtype == "float16" else 2.0**-7
    check_case(full(cell, dtype, seed=10), BACKEND, Tolerance(unit, 2 * unit))
