"""What is printed for a cell, run on the CPU, against the reference in float64: every option of the
three cells, and cells that nobody has written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.cells.test_made_up import backward_inputs, case, run
from tests.cuda.emulated import COMPILER, emulate
from zstate import cells, verify
from zstate.arrays import TorchNamespace
from zstate.backends import cuda
from zstate.backends.cuda import engine
from zstate.cells.decorator import CellDescriptor
from zstate.extensions import extended
from zstate.layout import bind
from zstate.operations import OPERATIONS, Operation, operations_of

if COMPILER is None:
    pytest.skip("there is no C++ compiler", allow_module_level=True)

# Every sixth, and resets and heads of every cell: the compiler takes a second for each.
EVERY = [(cell, each) for cell, cases in verify.CASES.items() for each in cases]
BEYOND = [(cell, each) for cell, each in EVERY if each.resets or each.descriptor.heads > 1]
CASES = [each for each in EVERY if each not in BEYOND][::6]
CASES += [
    (cell, each)
    for cell, each in BEYOND
    if cell == "lstm" or each.title in ("resets, both ways", "resets and heads")
]


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    emulate(monkeypatch, tmp_path)


def call(operation: Operation, inputs: dict[str, Any], descriptor: Any) -> dict[str, Any] | str:
    """The results that there are, or why there are none."""
    tensors = tuple(
        None if inputs.get(n) is None else torch.from_numpy(np.float32(inputs[n]))
        for n in operation.inputs
    )
    layout = bind(operation, tensors, descriptor)
    reason = cuda.refuses(layout)
    if reason is not None:
        return reason
    named = zip(operation.result._fields, cuda.prepare(layout)(tensors), strict=True)
    return {name: value.numpy() for name, value in named if value is not None}


def close(found: dict[str, Any], wanted: Any, bound: float = 2e-4) -> None:
    for name, value in found.items():
        exact = np.asarray(getattr(wanted, name))
        size = 1 + np.abs(exact).max(initial=0)
        assert value.shape == exact.shape
        np.testing.assert_allclose(value, exact, rtol=0, atol=bound * size, err_msg=name)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("cell", "case"), CASES, ids=[f"{c} {k.title}" for c, k in CASES])
def test_option(cell: str, case: verify.Case) -> None:
    case = replace(case, sizes=(3, 2, 3, 5 if case.descriptor.heads == 1 else 6), extra={})
    inputs = verify.make_inputs(case, 1)
    forward, backward = OPERATIONS[cell], OPERATIONS[f"{cell}_gradients"]
    if case.resets:  # as engines get them
        tensors = tuple(inputs.get(name) for name in backward.inputs)
        inputs["resets"] = extended(backward, tensors, case.descriptor, 1)[0][-1]
    there = run(forward, inputs, case.descriptor)
    found = call(forward, inputs, case.descriptor)
    assert isinstance(found, dict)
    close(found, there)
    given = backward_inputs(forward.cell, inputs, there, {})
    back = call(backward, given, case.descriptor)
    assert isinstance(back, dict)
    close(back, run(backward, given, case.descriptor))


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("number", range(8))
def test_a_made_up_cell(number: int) -> None:
    cell, descriptor, inputs, gradients = case(1000 + number, smooth=False)
    forward, backward = operations_of(cell)
    there = run(forward, inputs, descriptor)
    found = call(forward, inputs, descriptor)
    assert isinstance(found, dict), found
    close(found, there)
    given = backward_inputs(cell, inputs, there, gradients)
    back = call(backward, given, descriptor)
    assert isinstance(back, dict), back
    close(back, run(backward, given, descriptor))


@pytest.mark.usefixtures("emulated")
def test_means_of_made_up_cells() -> None:
    by_kernel = 0
    for number in range(3000, 3008):
        cell, descriptor, inputs, gradients = case(number, smooth=False, means=0.3)
        forward, backward = operations_of(cell)
        there = run(forward, inputs, descriptor)
        given = backward_inputs(cell, inputs, there, gradients)
        for operation, fed, wanted in (
            (forward, inputs, there),
            (backward, given, run(backward, given, descriptor)),
        ):
            tensors = tuple(fed.get(name) for name in operation.inputs)
            layout = bind(operation, tensors, descriptor)
            if cuda.by_torch(layout):
                continue  # a mean beside a product
            by_kernel += 1
            found = call(operation, fed, descriptor)
            assert isinstance(found, dict), found
            close(found, wanted, 1e-3)
    assert by_kernel >= 4


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("number", range(6))
def test_heads_of_any_cell(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With resets now and then, also of one unit each."""
    from tests.cells.test_heads import drawn

    monkeypatch.setattr(engine, "dots", lambda a, b, stream: (a * b).sum(0))
    cell, inputs, options, heads, gradients = drawn(np.random.default_rng(number))
    forward, backward = operations_of(cell)
    descriptor = cell.descriptor(**options, training=True, heads=heads)
    tensors = tuple(inputs.get(name) for name in forward.inputs)
    inputs = dict(zip(forward.inputs, extended(forward, tensors, descriptor, 1)[0], strict=True))
    there = run(forward, inputs, descriptor)
    found = call(forward, inputs, descriptor)
    assert isinstance(found, dict), found
    close(found, there)
    outer = {state.gradient: gradients[state.name] for state in cell.states}
    given = backward_inputs(cell, inputs, there, outer)
    back = call(backward, given, descriptor)
    assert isinstance(back, dict), back
    close(back, run(backward, given, descriptor))


@cells.cell(gates="int ü a count", states="float namespace", parameters="auto a load count ä")
def words(x, R, float, namespace, auto, a, load, count, ä):  # type: ignore[no-untyped-def]
    i = cells.sigmoid(x.int + R.int @ float + auto)
    u = cells.sigmoid(x.ü + R.ü @ float + a * load)
    n = namespace * i + u * cells.tanh(x.a + R.a @ float + count)
    return n * cells.sigmoid(x.count + R.count @ float + ä), n


@pytest.mark.usefixtures("emulated")
def test_names_that_mean_something_in_cpp() -> None:
    rng = np.random.default_rng(0)
    forward, backward = operations_of(words.definition)
    own = {name: rng.normal(size=5) for name in ("auto", "a", "load", "count", "ä")}
    inputs = {"source": rng.normal(size=(3, 2, 20)), "recurrent_weight": rng.normal(size=(20, 5))}
    inputs |= own
    descriptor = CellDescriptor(training=True)
    there = run(forward, inputs, descriptor)
    found = call(forward, inputs, descriptor)
    assert isinstance(found, dict), found
    close(found, there)
    outer = {state.gradient: rng.normal(size=(3, 2, 5)) for state in words.definition.states}
    given = backward_inputs(words.definition, inputs, there, outer)
    back = call(backward, given, descriptor)
    assert isinstance(back, dict), back
    close(back, run(backward, given, descriptor))


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    ("cell", "heads"), [(cells.layer_norm_lstm, 1), (cells.layer_norm_gru, 1), (cells.block_gru, 3)]
)
def test_layer_norm(cell: Any, heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Means over the units of a row are phases of their own; several heads are computed as one.

    Nothing is copied from the host, which no CUDA graph could hold.
    """
    monkeypatch.setattr(TorchNamespace, "asarray", None)
    rng = np.random.default_rng(3)
    cell, (steps, batch, hidden) = cell.definition, (3, 2, 6)
    forward, backward = operations_of(cell)
    descriptor = CellDescriptor(training=True, reverse=True, heads=heads)
    gates = len(cell.gates) * hidden
    inputs: dict[str, Any] = {each.name: 1 + rng.normal(size=hidden) / 2 for each in cell.own}
    inputs |= {state.initial: rng.normal(size=(batch, hidden)) for state in cell.states}
    inputs["source"] = rng.normal(size=(steps, batch, gates))
    weight = (heads, gates // heads, hidden // heads)[heads == 1 :]
    inputs["recurrent_weight"] = rng.normal(size=weight)
    there = run(forward, inputs, descriptor)
    found = call(forward, inputs, descriptor)
    assert isinstance(found, dict), found
    close(found, there)
    outer = {state.gradient: rng.normal(size=(steps, batch, hidden)) for state in cell.states}
    given = backward_inputs(cell, inputs, there, outer)
    back = call(backward, given, descriptor)
    assert isinstance(back, dict), back
    close(back, run(backward, given, descriptor), 1e-3)


@cells.cell(gates="z o", states="h")
def late_product(x, R, h):  # type: ignore[no-untyped-def]
    z = cells.sigmoid(x.z + R.z @ h)
    return cells.mean(z) * h + cells.tanh(x.o + R.o @ (z * h))


def test_means_that_no_kernel_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a product; and those across heads, which torch's way of calling turns into one."""
    pytest.importorskip("jax")
    from zstate.jax import cuda as in_jax

    monkeypatch.setattr(in_jax, "unavailable", lambda: None)
    for cell, heads in ((cells.block_gru, 2), (late_product, 1)):
        forward, _ = operations_of(cell.definition)
        shapes = {"source": (3, 2, 4 * len(cell.definition.gates))}
        shapes["recurrent_weight"] = (heads, shapes["source"][2] // heads, 4 // heads)[heads == 1 :]
        shapes |= {each.name: (4,) for each in cell.definition.own}
        tensors = tuple(
            torch.ones(shapes[name]) if name in shapes else None for name in forward.inputs
        )
        layout = bind(forward, tensors, CellDescriptor(heads=heads))
        assert cuda.by_torch(layout) is (heads == 1) and cuda.refuses(layout) is None
        assert "no kernel for the means" in str(in_jax.refuses(layout))
