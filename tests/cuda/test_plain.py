"""The CUDA backend's plain path runs on any device: here on the CPU, against the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zstate import verify
from zstate.backends import cuda
from zstate.backends.cuda import plain
from zstate.layout import Call, bind
from zstate.operations import OPERATIONS
from zstate.types import Array

CASES = [(cell, case) for cell, cases in verify.CASES.items() for case in cases]


def as_tensors(operation: str, case: verify.Case, arrays: dict[str, Array]) -> Call:
    op = OPERATIONS[operation]
    given = (arrays.get(name) for name in op.inputs)
    tensors = (None if a is None else torch.from_numpy(np.ascontiguousarray(a)) for a in given)
    return bind(op, tuple(tensors), case.descriptor)


@pytest.mark.parametrize(("cell", "case"), CASES, ids=[f"{c} {k.title}" for c, k in CASES])
def test_case(cell: str, case: verify.Case) -> None:
    inputs = verify.make_inputs(case, 0)
    there = verify.run_forward(case, inputs, "reference")
    back = verify.run_backward(case, inputs, there, "reference")
    found = plain.forward(as_tensors(cell, case, inputs))  # type: ignore[arg-type]
    fed = {"z_state": there["training_state"], "output_fwd": there["state"]}
    if "cell" in there:
        fed["cell_output_fwd"] = there["cell"]
    call = as_tensors(cell + "_gradients", case, {**inputs, **fed})
    gradients = plain.backward(call)  # type: ignore[arg-type]
    for name, wanted in there.items():
        assert verify.relative_error(found[name].numpy(), wanted) < 1e-12, name
    for name, wanted in back.items():
        assert verify.relative_error(gradients[name].numpy(), wanted) < 1e-12, name


@pytest.mark.parametrize("sizes", [(0, 3, 5, 4), (3, 0, 5, 4)])
def test_nothing_to_scan(sizes: tuple[int, int, int, int]) -> None:
    case = verify.Case("empty", verify.LSTMDescriptor(training=True), sizes=sizes)
    inputs = verify.make_inputs(case, 0)
    there = verify.run_forward(case, inputs, "reference")
    call = as_tensors(
        "lstm_gradients",
        case,
        {**inputs, "z_state": there["training_state"], "cell_output_fwd": there["cell"]},
    )
    gradients = plain.backward(call)  # type: ignore[arg-type]
    assert not gradients["recurrent_weight"].any()
    assert torch.equal(
        gradients["init_state"], torch.from_numpy(inputs["state_gradient"].reshape(sizes[1], 4))
    )


def test_without_a_device_the_backend_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cuda.unavailable() == "torch sees no CUDA device"
