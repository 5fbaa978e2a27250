"""Cells that nobody has written, on the CUDA engine, against the pipeline in float64: any options,
types and sizes, every way over the chip, forward and all gradients."""

from __future__ import annotations

import math
import os
import random
from dataclasses import replace
from typing import Any

import checked
import harness
import numpy as np
import pytest
import torch

from tests.cells.made_up import make
from zstate import cells, pipeline
from zstate.backends import cuda
from zstate.backends.cuda.calls import scan_of
from zstate.backends.cuda.placement import ROW, STEPS, WIDE
from zstate.backends.cuda.placements import placements
from zstate.cells import Cell
from zstate.cells.decorator import CellDescriptor
from zstate.errors import BackendError
from zstate.operations import Operation, operations_of

STRESS = int(os.environ.get("ZSTATE_STRESS", "1000")) // 5
ROUNDING = {"float32": 2.0**-16, "tf32": 2.0**-9, "bfloat16": 2.0**-7, "float16": 2.0**-10}
Tensors = dict[str, torch.Tensor]

# N and H for each way; None: whichever is best.
SIZES: dict[int | None, tuple[list[int], list[int]]] = {
    None: ([1, 2, 7, 16, 33, 70], [1, 3, 8, 17, 64, 100, 129, 200]),
    0: ([1, 3, 8, 16, 23], [2, 9, 24, 40, 64]),
    1: ([1, 2, 11, 16, 40], [24, 40, 72, 136]),
    2: ([3, 16, 40, 70], [40, 100, 129, 257]),
    STEPS: ([1, 9, 40], [5, 31, 72, 128]),
    WIDE: ([17, 41, 130], [97, 130, 200]),
    ROW: ([1, 2, 5], [1, 3, 16, 24]),
}


def inputs_of(cell: Cell, descriptor: Any, sizes: tuple[int, int, int, int], seed: int) -> Any:
    """All inputs, but for some that a call may do without; and gradients of the results."""
    rng = np.random.default_rng(seed)
    T, N, I, H = sizes
    D, G, heads = 1 + descriptor.bidirectional, len(cell.gates), descriptor.heads
    d = H // heads
    weight = (D, G * H, H) if heads == 1 else (D, heads, G * d, d)
    shapes = {
        "source": (T, N, I),
        "recurrent_weight": weight[2 - D :],
        "input_weight": (D * G * H, I),
        "bias": (D * G * H,),
        "mask": [(T, N, D * H), (T, N, 1), (1, N, D * H)][rng.integers(3)],
        **{each.name: (D, G * H)[2 - D :] if each.by_gate else (D * H,) for each in cell.own},
        **{state.initial: (N, D * H) for state in cell.states},
    }
    forward, _ = operations_of(cell)
    found = {n: rng.normal(size=shapes[n]) * 0.5 for n in forward.inputs if n != "resets"}
    found["recurrent_weight"] *= 1.6 * d**-0.5
    found["input_weight"] *= 1.6 * I**-0.5
    for name in forward.optional:
        if rng.random() < 0.25 and name in found and name != "input_weight":
            del found[name]
    if rng.random() < 0.3:
        found["resets"] = np.where(rng.random((T, N, D)) < 0.3, 1.0, 0.0)  # as engines get them
    gradients = {state.gradient: rng.normal(size=(T, N, D * H)) for state in cell.states[:1]}
    for state in cell.states[1:]:
        kind = rng.integers(3)
        if kind:
            shape = (T, N, D * H) if kind == 1 else (N, D * H)
            gradients[state.gradient] = rng.normal(size=shape)
    if rng.random() < 0.5:
        gradients[cell.states[0].last_gradient] = rng.normal(size=(N, D * H))
    return found, gradients


def by_pipeline(operation: Operation, given: Tensors, descriptor: Any) -> Tensors:
    call = checked.make_call(operation, given, descriptor)
    return checked.by_name(call, pipeline.run(call.layout, call.values))


def by_engine(operation: Operation, given: Tensors, descriptor: Any, mode: int | None) -> Tensors:
    call = checked.make_call(operation, given, descriptor)
    assert cuda.refuses(call.layout) is None
    if cuda.by_torch(call.layout):
        mode = None  # a mean beside a product: there is no kernel to choose
    if mode is not None:
        exact = not torch.backends.cuda.matmul.allow_tf32
        plans = placements(scan_of(call.layout, exact), harness.chip(), in_steps=True)
        if all(plan.mode != mode for plan in plans):
            mode = None  # such a cell has no such way
    try:
        with pytest.MonkeyPatch.context() as patch:
            if mode is not None:
                harness.choose(patch, lambda plan: plan.mode == mode)
            return checked.by_name(call, cuda.prepare(call.layout)(call.values))
    except BackendError as error:
        if "rejected by the driver" not in str(error):
            raise
    return checked.by_name(call, cuda.prepare(call.layout)(call.values))


def compare(ours: Tensors, exact: Tensors, control: Tensors, kind: str) -> None:
    errors = {name: harness.error(control[name], want) for name, want in exact.items()}
    largest = max([error for error in errors.values() if not math.isnan(error)], default=0.0)
    for name, want in exact.items():
        if math.isnan(errors[name]):
            continue  # beyond the type
        few = want.numel() < harness.FEW
        bound = 4 * (largest if few else errors[name])
        # The kernels round operands and their gradients to the type at every step; the control
        # does not. Over a few numbers such errors do not average out.
        least = ROUNDING[kind] * (2 if few else 1)
        found = harness.error(ours[name], want)
        assert found <= max(bound, least), (name, found, errors[name], want.numel())


def wide(tensors: Tensors) -> Tensors:
    return {name: tensor.double() for name, tensor in tensors.items()}


def check(seed: int, mode: int | None, kind: str, means: float, most_heads: int = 3) -> None:
    rng = random.Random(seed)
    # In few bits a value beside a kink may fall on its other side: there cells are smooth.
    made = make(np.random.default_rng(seed), smooth=kind != "float32", means=means)
    cell = replace(made, descriptor=CellDescriptor)  # which has heads
    heads = min(rng.choice([1, 1, 2, 3]), most_heads)
    descriptor = cell.descriptor(
        reverse=rng.random() < 0.5, bidirectional=rng.random() < 0.5, training=True, heads=heads
    )
    batches, hidden = SIZES[mode]
    units = rng.choice(hidden) * heads
    sizes = (rng.randint(1, 7), rng.choice(batches), rng.randint(1, 20), units)
    if kind == "tf32" and sizes[-1] == heads:
        sizes = (*sizes[:3], 2 * heads)  # cuBLAS has no TF32 for single columns
    compare_all(cell, descriptor, *inputs_of(cell, descriptor, sizes, seed), mode, kind)


def compare_all(
    cell: Cell, descriptor: Any, arrays: Any, gradients: Any, mode: int | None, kind: str
) -> None:
    """Forward, and all gradients of what forward gave."""
    forward, backward = operations_of(cell)
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    storage = harness.TYPES["float32" if kind == "tf32" else kind]

    def on_device(given: dict[str, Any]) -> Tensors:
        return {name: torch.from_numpy(a).to("cuda", storage) for name, a in given.items()}

    fed = on_device(arrays)
    probe = checked.make_call(forward, fed, descriptor)
    if cuda.refuses(probe.layout) is not None:
        pytest.skip(f"{cuda.refuses(probe.layout)}")
    there = by_engine(forward, fed, descriptor, mode)
    compare(
        there,
        by_pipeline(forward, wide(fed), descriptor),
        by_pipeline(forward, fed, descriptor),
        kind,
    )
    back = {name: there[result] for name, result in cell.fed_back.items()}
    given = {**fed, **back, **on_device(gradients)}
    probe = checked.make_call(backward, given, descriptor)
    if cuda.refuses(probe.layout) is not None:
        pytest.skip(f"{cuda.refuses(probe.layout)}")
    compare(
        by_engine(backward, given, descriptor, mode),
        by_pipeline(backward, wide(given), descriptor),
        by_pipeline(backward, given, descriptor),
        kind,
    )


@pytest.mark.parametrize("seed", range(STRESS))
def test_a_made_up_cell(seed: int) -> None:
    mode = list(SIZES)[seed % len(SIZES)]
    kinds = ["float32", "tf32", "bfloat16", "float16"]
    if mode in (STEPS, WIDE):  # not in full float32
        kinds = kinds[1:]
    check(seed, mode, random.Random(seed).choice(kinds), 0.25 if seed % 3 == 0 else 0.0)


@pytest.mark.parametrize("kind", ROUNDING)
@pytest.mark.parametrize("mode", [None, 0, 1, 2, ROW])
@pytest.mark.parametrize("seed", range(STRESS // 40))
def test_means_and_variances(seed: int, mode: int | None, kind: str) -> None:
    """Several heads go as one, whose ways are others."""
    check(5000 + 97 * seed + 10 * (mode or 0), mode, kind, 0.5, 3 if mode is None else 1)


@pytest.mark.parametrize("mode", list(SIZES))
@pytest.mark.parametrize("name", ["mgu", "cifg", "slstm", "layer_norm_lstm", "layer_norm_gru"])
def test_the_library(name: str, mode: int | None) -> None:
    """Also with rows beyond the batch in the last tile, where an sLSTM divides zero by zero."""
    cell, rng = getattr(cells, name).definition, random.Random(f"{name} {mode}")
    kind = rng.choice(["tf32", "bfloat16", "float16"])
    descriptor = cell.descriptor(bidirectional=rng.random() < 0.5, training=True)
    batches, hidden = SIZES[mode]
    sizes = (5, rng.choice([n for n in batches if n % 8] or batches), 9, max(hidden))
    arrays, gradients = inputs_of(cell, descriptor, sizes, 7)
    shape = (sizes[1], (1 + descriptor.bidirectional) * sizes[3])
    own = np.random.default_rng(3)
    arrays |= {each.name: 1 + 0.3 * own.normal(size=shape[1]) for each in cell.own}
    if name == "slstm":  # n is a sum of positive numbers
        arrays["init_n"] = 0.5 + own.random(shape)
    arrays["bias"] = own.normal(size=shape[1] * len(cell.gates))
    compare_all(cell, descriptor, arrays, gradients, mode, kind)
