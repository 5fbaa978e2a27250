"""Calls of the CUDA backend on torch tensors, and the oracle beside them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import checked
import loop
import numpy as np
import torch
from checked import Call

from zstate import backends, verify
from zstate.operations import OPERATIONS

TYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
Tensors = dict[str, torch.Tensor]


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
    control: float
    numbers: int  # in the result


def worst(case: verify.Case, dtype: str, seed: int = 0) -> dict[str, Errors]:
    """The errors of every result, by name."""
    storage = TYPES[dtype]
    arrays = verify.make_inputs(case, seed)
    rounded = {n: torch.from_numpy(np.asarray(a)).to("cuda", storage) for n, a in arrays.items()}
    wide = {name: tensor.double() for name, tensor in rounded.items()}
    there, grads = run_both(case, rounded, dtype, ENGINE)
    exact = loop.forward(make_call(verify.cell_name(case.descriptor), case, wide, "float64"))
    exact_back = back(case, wide, {n: t.double() for n, t in there.items()}, "float64", loop)
    control = loop.forward(make_call(verify.cell_name(case.descriptor), case, rounded, dtype))
    control_back = back(case, rounded, there, dtype, loop)
    pairs = [(name, there[name], control[name], want) for name, want in exact.items()]
    pairs += [
        (f"d {name}", grads[name], control_back[name], want) for name, want in exact_back.items()
    ]
    return {
        name: Errors(error(ours, want), error(other, want), want.numel())
        for name, ours, other, want in pairs
    }
