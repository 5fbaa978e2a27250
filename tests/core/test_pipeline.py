"""The pipeline gives the same on torch tensors as on NumPy arrays, and writes to no input."""

from __future__ import annotations

import signal
import sys
from typing import Any

import numpy as np
import pytest
import torch

import zstate as zs
from zstate import pipeline, verify
from zstate.backends import cuda
from zstate.extensions import extended
from zstate.layout import bind
from zstate.operations import OPERATIONS
from zstate.types import Array

CASES = [(cell, case) for cell, cases in verify.CASES.items() for case in cases]


def on_torch(name: str, case: verify.Case, arrays: dict[str, Array]) -> dict[str, Any]:
    """The results that there are of an operation on tensors."""
    operation = OPERATIONS[name]
    given = (arrays.get(each) for each in operation.inputs)
    tensors = tuple(None if a is None else torch.from_numpy(np.ascontiguousarray(a)) for a in given)
    tensors, _ = extended(operation, tensors, case.descriptor, 1)
    results = pipeline.run(bind(operation, tensors, case.descriptor), tensors)
    named = zip(operation.result._fields, results, strict=True)
    return {each: tensor for each, tensor in named if tensor is not None}


@pytest.mark.parametrize(("cell", "case"), CASES, ids=[f"{c} {k.title}" for c, k in CASES])
def test_case(cell: str, case: verify.Case) -> None:
    inputs = verify.make_inputs(case, 0)
    there = verify.run_forward(case, inputs, "reference")
    back = verify.run_backward(case, inputs, there, "reference")
    found = on_torch(cell, case, inputs)
    fed = {name: there[result] for name, result in OPERATIONS[cell].cell.fed_back.items()}
    gradients = on_torch(f"{cell}_gradients", case, {**inputs, **fed})
    assert found.keys() == there.keys() and gradients.keys() == back.keys()
    for name, wanted in there.items():
        assert verify.relative_error(found[name].numpy(), wanted) < 1e-14, name
    for name, wanted in back.items():
        assert verify.relative_error(gradients[name].numpy(), wanted) < 1e-14, name


@pytest.mark.parametrize("sizes", [(0, 3, 5, 4), (3, 0, 5, 4)])
@pytest.mark.parametrize("cell", verify.CASES)
def test_nothing_to_scan(cell: str, sizes: tuple[int, int, int, int]) -> None:
    """On either library: no weight gradient, and the last state's gradient, as an array of its own,
    for the first state."""
    descriptor = verify.CASES[cell][0].descriptor
    case = verify.Case("empty", descriptor, sizes=sizes)
    inputs = verify.make_inputs(case, 0)
    there = verify.run_forward(case, inputs, "reference")
    fed = {name: there[result] for name, result in OPERATIONS[cell].cell.fed_back.items()}
    given = {**inputs, **fed}
    on_numpy = verify.run_backward(case, inputs, there, "reference")
    for found in (on_torch(f"{cell}_gradients", case, given), on_numpy):
        assert not found["recurrent_weight"].any()
        wanted = inputs["state_gradient"].reshape(sizes[1], 4)
        assert np.array_equal(np.asarray(found["init_state"]), wanted)
        assert not np.shares_memory(np.asarray(found["init_state"]), inputs["state_gradient"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_are_storage(dtype: torch.dtype) -> None:
    """Arithmetic is in float32: a long sum of small steps goes on below its resolution."""
    steps = 2000
    x = torch.full((steps, 1, 1), 2.0**-10, dtype=dtype)
    weight = torch.ones(1, 1, dtype=dtype)
    operation = OPERATIONS["single_gate_rnn"]
    tensors = (x, weight, None, None, None, None, None)
    state = pipeline.run(bind(operation, tensors, None), tensors)[0]
    assert state.dtype == dtype
    assert abs(float(state[-1]) - steps * 2.0**-10) < 0.01


# What is missing is left out, not replaced by a number: docs/numerics.md


def test_an_infinite_cell_stays_what_torch_gives() -> None:
    """Without a peephole nothing is multiplied with c[-1] but the forget gate."""
    rng = np.random.default_rng(0)
    x, weight = rng.normal(size=(2, 3, 4 * 5)), rng.normal(size=(4 * 5, 5))
    cell = np.full((3, 5), np.inf)
    layer = torch.nn.LSTM(20, 5, bias=False).double()
    with torch.no_grad():
        layer.weight_ih_l0.copy_(torch.eye(20))
        # zstate's gates are i, f, z, o, and so are torch.nn's.
        layer.weight_hh_l0.copy_(torch.from_numpy(weight))
        wanted, _ = layer(
            torch.from_numpy(x), (torch.zeros(1, 3, 5).double(), torch.from_numpy(cell)[None])
        )
    found = zs.lstm(x, weight, init_cell=cell, backend="reference").state
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-12)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("cell", verify.CASES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_recurrent_weight_shows_at_the_first_step(cell: str, bad: float) -> None:
    """Zeros stand for an initial state that was not passed, and 0·NaN is NaN, as in torch.nn."""
    gates = len(OPERATIONS[cell].cell.gates)
    x, weight = np.ones((2, 1, gates * 3)), np.ones((gates * 3, 3))
    weight[-1, 0] = bad  # of the last gate of the last unit
    state = getattr(zs, cell)(x, weight, backend="reference").state
    assert np.isnan(state[0, 0, 2]) and np.isfinite(state[0, 0, :2]).all()


def test_without_a_device_the_cuda_backend_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cuda.unavailable() == "torch sees no CUDA device"
    monkeypatch.setitem(sys.modules, "torch", None)  # as where it is not installed
    assert cuda.unavailable() == "torch is not installed"


@pytest.mark.parametrize("shape", [(9, 4, 5), (1, 30, 5), (1, 1, 5), (70, 5)])
def test_large_products_in_parts_are_the_same(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(2)
    left, right = rng.normal(size=shape), rng.normal(size=(5, 6))
    wanted = np.einsum("...k,kh->...h", left, right)
    monkeypatch.setattr(pipeline, "_LARGE", 200)  # three rows
    np.testing.assert_allclose(pipeline.product(left, right), wanted, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(pipeline.product(left[::-1], right), wanted[::-1], rtol=1e-13)


@pytest.mark.parametrize("gradient", [False, True])
def test_ctrl_c_ends_a_large_product(monkeypatch: pytest.MonkeyPatch, gradient: bool) -> None:
    """NumPy hears no signal inside of a product: one comes during the third part of one."""
    rng = np.random.default_rng(2)
    x, R, W = (rng.normal(size=shape) for shape in ((9, 2, 5), (12, 3), (12, 5)))
    descriptor = zs.LSTMDescriptor(training=True, produce_cell=True)
    made = zs.lstm(x, R, input_weight=W, descriptor=descriptor)
    parts = []

    def matmul(left: Any, right: Any, out: Any) -> None:
        parts.append(left.shape)
        if len(parts) == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(pipeline, "_LARGE", 2 * 2 * 5 * 12 + 1)
    monkeypatch.setattr(np, "matmul", matmul)
    options: Any = {"input_weight": W, "descriptor": descriptor, "backend": "reference"}
    fed = (made.state, made.training_state, made.cell) if gradient else ()
    with pytest.raises(KeyboardInterrupt):
        (zs.lstm_gradients if gradient else zs.lstm)(x, R, *fed, **options)
    assert len(parts) == 3
