"""Random equations: the derived gradients against central differences, stages against steps."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zstate import pipeline
from zstate.cells import GRU, Cell
from zstate.cells.backward_stages import backward_stages
from zstate.layout import bind
from zstate.operations import operations_of

from .made_up import make
from .staged import run_backward, run_forward

NUMBERS = st.integers(0, 2**60)


def case(number: int, smooth: bool, means: float = 0.0):
    """A cell, its forward call with all inputs, and its sizes."""
    rng = np.random.default_rng(number)
    cell = make(rng, smooth, means)
    T, N, I, H = (int(size) for size in rng.integers(1, 5, size=4))
    descriptor = cell.descriptor(
        reverse=bool(rng.integers(2)), bidirectional=bool(rng.integers(2)), training=True
    )
    forward, _ = operations_of(cell)
    D, G = 1 + descriptor.bidirectional, len(cell.gates)
    shapes = {
        "source": (T, N, I),
        "recurrent_weight": (D, G * H, H)[2 - D :],
        "input_weight": (D * G * H, I),
        "bias": (D * G * H,),
        "mask": (T, N, D * H),
        "shift": (D * H,),
        "scale": (D, G * H)[2 - D :],
        **{state.initial: (N, D * H) for state in cell.states},
    }
    inputs = {n: rng.normal(size=shapes[n]) / 2 for n in forward.inputs if n != "resets"}
    for name in forward.optional:
        if rng.random() < 0.2 and name != "input_weight":
            inputs[name] = None
    resets = np.where(rng.random((T, N, D)) < 0.3, 1.0, 0.0)  # as the engines get them
    inputs["resets"] = resets if rng.random() < 0.3 else None
    gradients = {state.gradient: rng.normal(size=(T, N, D * H)) for state in cell.states}
    if rng.random() < 0.5:
        gradients["state_gradient"] = rng.normal(size=(N, D * H))
    return cell, descriptor, inputs, gradients


def run(operation, inputs, descriptor):
    layout = bind(operation, tuple(inputs.get(name) for name in operation.inputs), descriptor)
    values = [inputs.get(name) for name in operation.inputs]
    return operation.result(*pipeline.run(layout, values))


def backward_inputs(cell, inputs, results, gradients):
    fed = {name: getattr(results, result) for name, result in cell.fed_back.items()}
    return {**inputs, **fed, **gradients}


@given(number=NUMBERS)
def test_central_differences(number):
    cell, descriptor, inputs, gradients = case(number, smooth=True)
    forward, backward = operations_of(cell)
    results = run(forward, inputs, descriptor)
    found = run(backward, backward_inputs(cell, inputs, results, gradients), descriptor)

    def loss(given):
        values = run(forward, given, descriptor)
        total = sum((getattr(values, s.name) * gradients[s.gradient]).sum() for s in cell.states)
        if "state_gradient" in gradients:
            H = values.state.shape[-1]
            ends = (
                [values.state[-1]]
                if not descriptor.bidirectional
                else [values.state[-1][:, : H // 2], values.state[0][:, H // 2 :]]
            )
            total += (np.concatenate(ends, -1) * gradients["state_gradient"]).sum()
        return total

    rng, step = np.random.default_rng(number), 1e-6
    for name in forward.inputs:
        if inputs[name] is None or name in ("mask", "resets"):
            continue
        way = rng.normal(size=inputs[name].shape)
        up, down = ({**inputs, name: inputs[name] + sign * step * way} for sign in (1, -1))
        wanted = (loss(up) - loss(down)) / (2 * step)
        got = (getattr(found, name) * way).sum()
        assert abs(got - wanted) <= 1e-7 * (
            1 + abs(wanted) + np.abs(getattr(found, name) * way).sum()
        ), name


@given(number=NUMBERS)
def test_stages(number):
    """What the engines are given computes what the equations say."""
    cell, descriptor, inputs, gradients = case(number, smooth=False)
    forward, backward = operations_of(cell)
    results = run(forward, inputs, descriptor)
    given = backward_inputs(cell, inputs, results, gradients)
    wanted = run(backward, given, descriptor)
    for as_cuda in (False, True):
        for name, value in run_forward(cell, descriptor, inputs, as_cuda).items():
            np.testing.assert_allclose(value, getattr(results, name), rtol=1e-11, atol=1e-11)
        for name, value in run_backward(cell, descriptor, given, as_cuda).items():
            np.testing.assert_allclose(value, getattr(wanted, name), rtol=1e-9, atol=1e-9)


def test_a_reading_that_was_dropped() -> None:
    """Equations may be read again at any time; a step backward keeps to the reading it is of."""
    form = (GRU.usual, frozenset[str](), False)
    back = GRU.backward(*form)
    Cell.forward.cache_clear()
    assert GRU.forward(*form) is not back.trace
    assert backward_stages(back, frozenset({"state"}), frozenset()).carried
