"""The scans themselves on the CPU, with all their threads in random order, against the reference in
float64: what blocks exchange, what warps add up, and the barriers between."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.cells.test_made_up import backward_inputs, run
from tests.cuda.emulated import COMPILER
from tests.cuda.fibers import emulate
from zstate import cells
from zstate.backends import cuda
from zstate.backends.cuda.placement import BLOCK, CLUSTER, GRID, ROW
from zstate.cells import LSTM, Cell
from zstate.layout import bind
from zstate.operations import Operation, operations_of

if COMPILER is None or sys.platform != "linux":
    pytest.skip("there is no C++ compiler, or no ucontext.h", allow_module_level=True)

NORMED = (cells.layer_norm_gru.definition, cells.layer_norm_lstm.definition)
# Of results that are about 1 in size, or a few.
BOUNDS = {"float32": 1e-5, "tf32": 1e-2, "bfloat16": 5e-2, "float16": 1e-2}
# Batch and units: rows beyond the batch and units beyond the layer; a last part of a row that is
# shorter than the others.
SIZES = {BLOCK: (5, 40), CLUSTER: (9, 17), GRID: (9, 41), ROW: (3, 9)}
STEPS = 3


def drawn(cell: Cell, kind: str, mode: int, seed: int) -> tuple[Any, dict[str, Any]]:
    """A call of several steps, with all inputs, now and then with heads; in numbers that the type
    holds."""
    rng, (batch, hidden) = np.random.default_rng(seed), SIZES[mode]
    both, gates = bool(seed % 2), len(cell.gates)
    heads = 1 if seed % 3 else next((n for n in (2, 3) if hidden % n == 0), 1)
    ways = {"bidirectional": both, "reverse": not both}
    descriptor: Any = cell.descriptor(training=True, heads=heads, **ways)
    D, units = 1 + both, hidden // heads
    shapes = {
        "source": (STEPS, batch, D * gates * hidden),
        "recurrent_weight": (*(D,) * both, *(heads,) * (heads > 1), gates * units, units),
        "bias": (D * gates * hidden,),
        "mask": (STEPS, batch, D * hidden),
        **{state.initial: (batch, D * hidden) for state in cell.states},
        **{own.name: (D * hidden,) for own in cell.own if own.required},
        **{state.gradient: (STEPS, batch, D * hidden) for state in cell.states},
    }
    values = {name: rng.normal(size=shape) / 2 for name, shape in shapes.items()}
    values["recurrent_weight"] *= 2 / units**0.5
    values["resets"] = np.where(rng.random((STEPS, batch, D)) < 0.2, 1.0, 0.0)
    return descriptor, {name: rounded(value, kind) for name, value in values.items()}


def rounded(value: Any, kind: str) -> Any:
    return torch.from_numpy(np.asarray(value)).to(typed(kind)).double().numpy()


def typed(kind: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, "float32" if kind == "tf32" else kind)
    return found


def check(operation: Operation, given: dict[str, Any], descriptor: Any, kind: str) -> Any:
    """The reference's results, to which the engine's are close."""
    wanted = run(operation, given, descriptor)
    tensors = tuple(
        None if given.get(name) is None else torch.from_numpy(given[name]).to(typed(kind))
        for name in operation.inputs
    )
    layout = bind(operation, tensors, descriptor)
    assert cuda.refuses(layout) is None and not cuda.by_torch(layout)
    named = zip(operation.result._fields, cuda.prepare(layout)(tensors), strict=True)
    for name, found in named:
        if found is not None:
            exact = np.asarray(getattr(wanted, name))
            atol = BOUNDS[kind] * (1 + np.abs(exact).max())
            np.testing.assert_allclose(found.double(), exact, rtol=0, atol=atol, err_msg=name)
    return wanted


@pytest.fixture(autouse=True)
def precision() -> Iterator[None]:
    yield
    torch.backends.cuda.matmul.allow_tf32 = False


CASES = [
    (cell, mode, list(BOUNDS)[(k + j) % len(BOUNDS)])
    for k, cell in enumerate((LSTM, *NORMED))
    for j, mode in enumerate(SIZES)
]


@pytest.mark.parametrize(
    ("cell", "mode", "kind"), CASES, ids=lambda value: getattr(value, "name", None)
)
def test_a_scan(
    cell: Cell, mode: int, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seed = mode + list(BOUNDS).index(kind)
    emulate(monkeypatch, tmp_path, seed, lambda plan: plan.mode == mode)
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    forward, backward = operations_of(cell)
    descriptor, given = drawn(cell, kind, mode, seed)
    there = check(forward, given, descriptor, kind)
    fed = backward_inputs(cell, given, there, {})
    check(backward, fed | {n: rounded(fed[n], kind) for n in cell.fed_back}, descriptor, kind)
