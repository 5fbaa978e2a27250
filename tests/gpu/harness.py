"""Calls of the CUDA backend on torch tensors, and the oracle beside them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import checked
import loop
import numpy as np
import pytest
import torch
from checked import Call

from zstate import backends, verify
from zstate.backends.cuda import launch
from zstate.backends.cuda.placement import STEPS, Chip, Placement
from zstate.backends.cuda.placements import placements
from zstate.operations import OPERATIONS

TYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
Tensors = dict[str, torch.Tensor]
FEW = 32  # numbers in a tensor: how well one loop does on so few is luck


def _run(call: Call) -> Tensors:
    layout, values = call
    made = backends.prepare(layout.operation, values, layout.descriptor, "cuda")
    return checked.by_name(call, made.run(values))


ENGINE = SimpleNamespace(forward=_run, backward=_run)


def make_call(operation: str, case: verify.Case, tensors: Tensors, dtype: str) -> Call:
    """A checked call."""
    return checked.make_call(OPERATIONS[operation], tensors, case.descriptor)


def run_both(
    case: verify.Case, inputs: Tensors, dtype: str, runner: Any
) -> tuple[Tensors, Tensors]:
    """Forward, then backward on what forward gave."""
    name = verify.cell_name(case.descriptor)
    there = runner.forward(make_call(name, case, inputs, dtype))
    return there, back(case, inputs, there, dtype, runner)


def back(case: verify.Case, inputs: Tensors, there: Tensors, dtype: str, runner: Any) -> Tensors:
    name = verify.cell_name(case.descriptor)
    fed = {"z_state": there["training_state"], "output_fwd": there["state"]}
    if "cell" in there:
        fed["cell_output_fwd"] = there["cell"]
    found: Tensors = runner.backward(make_call(name + "_gradients", case, {**inputs, **fed}, dtype))
    return found


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    wanted = wanted.double()
    size = wanted.norm().item()
    return (found.double() - wanted).norm().item() / (size or 1.0)


class Errors(NamedTuple):
    """The engine's error against float64, and that of a loop of torch operations in the same type,
    both on the same rounded inputs and the same forward results."""

    ours: float
    control: float  # of few numbers, the larger of two loops' that add up in different orders
    numbers: int  # in the result


def mean(draws: list[Errors]) -> Errors:
    """The root of the mean square of errors of the same result."""
    ours, control = (math.sqrt(sum(each[k] ** 2 for each in draws) / len(draws)) for k in (0, 1))
    return Errors(ours, control, draws[0].numbers)


def worst(case: verify.Case, dtype: str, seed: int = 0) -> dict[str, Errors]:
    """The errors of every result, by name."""
    storage = TYPES[dtype]
    arrays = verify.make_inputs(case, seed)
    rounded = {n: torch.from_numpy(np.asarray(a)).to("cuda", storage) for n, a in arrays.items()}
    wide = {name: tensor.double() for name, tensor in rounded.items()}
    there, grads = run_both(case, rounded, dtype, ENGINE)
    exact = _named(case, wide, {n: t.double() for n, t in there.items()}, "float64")
    devices = ("cuda", "cpu") if min(t.numel() for t in exact.values()) < FEW else ("cuda",)
    loops = [_named(case, _on(device, rounded), _on(device, there), dtype) for device in devices]
    ours = there | {f"d {name}": grad for name, grad in grads.items()}
    found = {}
    for name, want in exact.items():
        numbers = want.numel()
        errors = [error(each[name].to("cuda"), want) for each in loops]
        control = max(errors) if numbers < FEW else errors[0]
        found[name] = Errors(error(ours[name], want), control, numbers)
    return found


def _on(device: str, tensors: Tensors) -> Tensors:
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def _named(case: verify.Case, inputs: Tensors, there: Tensors, dtype: str) -> Tensors:
    """All results of the loop; its gradients are those of the engine's forward results."""
    call = make_call(verify.cell_name(case.descriptor), case, inputs, dtype)
    grads = back(case, inputs, there, dtype, loop)
    return dict(loop.forward(call)) | {f"d {name}": grad for name, grad in grads.items()}


def choose(monkeypatch: pytest.MonkeyPatch, accepts: Callable[[Placement], bool]) -> None:
    """Let the engine have only these placements, and no kernel that it chose before."""
    monkeypatch.setattr(launch, "placements", lambda *scan: filter(accepts, placements(*scan)))
    monkeypatch.setattr(launch, "_KERNELS", {})


def in_single_steps(plan: Placement) -> bool:
    return plan.mode == STEPS


def chip() -> Chip:
    return launch.chip_of(torch.cuda.current_device())


def inputs(case: verify.Case, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    arrays = verify.make_inputs(case, 0)
    return {name: torch.from_numpy(array).to("cuda", dtype) for name, array in arrays.items()}


def a_case(cell: str, size: tuple[int, int, int, int]) -> verify.Case:
    return replace(next(c for c in verify.CASES[cell] if c.title == "all inputs"), sizes=size)
