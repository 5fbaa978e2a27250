"""torch tensors in the functional interface: the same bits as NumPy arrays, no copies, one kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

import zstate as zs
import zstate.torch as zt
from tests.cases import (
    CELLS,
    FED_BACK,
    FORWARD_OPS,
    GRADIENT_OPS,
    Array,
    Arrays,
    Case,
    all_inputs,
    cases,
    make_cotangents,
    make_tensors,
)
from zstate import backends
from zstate.backends import available, native
from zstate.torch import tensors as torch_tensors

BACKENDS = [backend.name for backend in available() if backend.device == "cpu"]
DTYPES = ("float64", "float32", "float16", "bfloat16")


def as_tensor(array: Array) -> torch.Tensor:
    """The same bits as a tensor of its own."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def as_array(tensor: torch.Tensor, like: Array) -> Array:
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(like.dtype)
    return tensor.numpy()


def both_results(case: Case, arrays: Arrays, cotangents: Arrays, backend: str) -> list[Any]:
    """The members of the forward and of the gradient operation."""
    descriptor = case.descriptor(training=True)
    result = FORWARD_OPS[case.cell](**arrays, descriptor=descriptor, backend=backend)
    fed_back = {name: getattr(result, member) for name, member in FED_BACK[case.cell].items()}
    gradients = GRADIENT_OPS[case.cell](
        **arrays, **cotangents, **fed_back, descriptor=descriptor, backend=backend
    )
    return [*result, *gradients]


def check_same_bits(case: Case, backend: str) -> None:
    arrays, cotangents = make_tensors(case), make_cotangents(case)
    wanted = both_results(case, arrays, cotangents, backend)
    inputs, incoming = (
        {name: as_tensor(array) for name, array in each.items()} for each in (arrays, cotangents)
    )
    for found, array in zip(both_results(case, inputs, incoming, backend), wanted, strict=True):
        if array is None:
            assert found is None
            continue
        assert type(found) is torch.Tensor
        np.testing.assert_array_equal(as_array(found, array), array)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cell", CELLS)
def test_same_bits_as_numpy(cell: str, backend: str, dtype: str) -> None:
    inputs = all_inputs(cell, "secondary_bias")
    for direction in ("forward", "reverse", "bidirectional"):
        check_same_bits(Case(cell, direction, inputs=inputs, dtype=dtype, seed=3), backend)


@given(case=cases("lstm"))
@settings(max_examples=40)
def test_any_lstm(case: Case) -> None:
    check_same_bits(case, BACKENDS[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_tensors(dtype: str) -> None:
    case = Case("lstm", inputs=frozenset({"input_weight", "init_state"}), dtype=dtype, T=5, N=4)
    inputs = {name: as_tensor(array) for name, array in make_tensors(case).items()}
    wanted = zs.lstm(**inputs).state
    batch_first = inputs["source"].transpose(0, 1).contiguous().transpose(0, 1)
    every_other = torch.stack([inputs["source"], inputs["source"]], 1).flatten(0, 1)[::2]
    turned = inputs["source"].permute(2, 0, 1).contiguous().permute(1, 2, 0)  # last axis strided
    for source in (batch_first, every_other, turned):
        assert not source.is_contiguous()
        torch.testing.assert_close(
            zs.lstm(**{**inputs, "source": source}).state, wanted, rtol=0, atol=0
        )


def test_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, int] = {}

    def prepare(layout: Any) -> Any:
        def run(values: Any) -> Any:
            named = zip(layout.operation.inputs, values, strict=True)
            seen.update({name: array.ctypes.data for name, array in named if array is not None})
            made = np.zeros(layout.shape("state"), np.float32)
            seen["state"] = made.ctypes.data
            return made, None, None

        return run

    monkeypatch.setattr(native, "prepare", prepare)
    monkeypatch.setattr(backends, "PREPARED", {})
    monkeypatch.setattr(native, "unavailable", lambda: None)
    x, R = torch.randn(4, 5, 7).transpose(0, 1)[:, :, :4], torch.randn(4, 1, requires_grad=True)
    with torch.no_grad():
        state = zs.lstm(x, R, backend="native").state
    assert seen == {
        "source": x.data_ptr(),
        "recurrent_weight": R.data_ptr(),
        "state": state.data_ptr(),
    }


def test_storages_stay_resizable() -> None:
    x, R = torch.randn(3, 1, 8), torch.randn(8, 2)
    zs.lstm(x, R)
    R.untyped_storage().resize_(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_negated_and_zero_views(dtype: torch.dtype) -> None:
    layer = zt.LSTM(3, 2, dtype=dtype)
    negated: Any = torch._neg_view(torch.randn(3, 2, 3, dtype=dtype))
    zero: Any = torch._efficientzerotensor((3, 2, 3), dtype=dtype)
    assert negated.is_neg() and zero._is_zerotensor()
    for x, same in ((negated, negated.resolve_neg()), (zero, torch.zeros(3, 2, 3, dtype=dtype))):
        for lengths in (None, [3, 1]):
            assert torch.equal(layer(x, lengths=lengths)[0], layer(same, lengths=lengths)[0])
    R = torch.randn(8, 2, dtype=dtype)
    x = torch._neg_view(torch.randn(3, 1, 8, dtype=dtype))
    assert torch.equal(zs.lstm(x, R).state, zs.lstm(x.resolve_neg(), R).state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"recurrent_weight": np.zeros((8, 2), np.float32)},
            "[lstm] recurrent_weight: expected a torch tensor like source, got numpy.ndarray",
        ),
        (
            {"source": np.zeros((3, 1, 8), np.float32)},
            "[lstm] recurrent_weight: expected a NumPy array like source, got torch.Tensor",
        ),
        (
            {"bias": torch.zeros(8, dtype=torch.float64)},
            "[lstm] bias: expected float32 like source, got float64",
        ),
        (
            {"bias": torch.zeros(8, dtype=torch.int32)},
            "[lstm] bias: expected one of float16, bfloat16, float32, float64, got int32",
        ),
        (
            {"bias": torch.zeros(8, device="meta")},
            "[lstm] bias: expected a tensor on cpu like source, got one on meta",
        ),
        (
            {"bias": torch.zeros(8).to_sparse()},
            "[lstm] bias: expected a strided tensor, got a sparse_coo one",
        ),
        ({"bias": torch.zeros(7)}, "[lstm] bias: expected [4H] = [8], got [7]"),
        ({"bias": [0.0]}, "[lstm] bias: expected a torch tensor like source, got list"),
    ],
)
def test_refusals(change: dict[str, Any], message: str) -> None:
    inputs: dict[str, Any] = {
        "source": torch.zeros(3, 1, 8),
        "recurrent_weight": torch.zeros(8, 2),
        **change,
    }
    with pytest.raises(zs.ZStateError) as error:
        zs.lstm(**inputs)
    assert str(error.value) == message


def test_a_device_without_a_backend() -> None:
    x, R = torch.zeros(3, 1, 8, device="meta"), torch.zeros(8, 2, device="meta")
    with pytest.raises(zs.BackendError, match="got meta \\(this installation has none\\)"):
        torch_tensors.compute(zs.operations.LSTM_FORWARD, (x, R, *[None] * 7), None, None)
    with pytest.raises(zs.BackendError, match="it computes on cpu, the tensors are on meta"):
        torch_tensors.compute(zs.operations.LSTM_FORWARD, (x, R, *[None] * 7), None, "reference")


def test_a_backend_of_another_device_gets_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a CUDA backend does: tensors in as they came, tensors out as they are."""
    from types import SimpleNamespace

    from zstate.backends import BACKENDS

    seen: list[Any] = []

    def prepare(layout: Any) -> Any:
        def run(values: Any) -> Any:
            seen.extend(values)
            return values[0].new_zeros(layout.shape("state")), None, None

        return run

    backend = SimpleNamespace(
        name="other",
        device="meta",
        unavailable=lambda: None,
        refuses=lambda layout: None,
        prepare=prepare,
    )
    monkeypatch.setitem(BACKENDS, "other", backend)
    x, R = torch.zeros(5, 2, 8, device="meta"), torch.zeros(8, 2, device="meta")
    inputs = (x, R, *[None] * 7)
    found = torch_tensors.compute(zs.operations.LSTM_FORWARD, inputs, None, None)
    assert seen[0] is x and seen[1] is R and found[0] is not None and found[0].shape == (5, 2, 2)
    with pytest.raises(zs.BackendError, match="it computes on meta, the tensors are on cpu"):
        zs.lstm(np.zeros((5, 2, 8)), np.zeros((8, 2)), backend="other")
