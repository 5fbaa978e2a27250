"""Repeated calls on tensors go to the engine at once: what differs from the known call must not."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import zstate as zs
from zstate.backends import native

pytestmark = pytest.mark.skipif(native.unavailable() is not None, reason="no native engine")

T, N, H = 4, 3, 5


@pytest.fixture
def known() -> dict[str, Any]:
    """Inputs of a call that was made twice: from then on it is known."""
    generator = torch.Generator().manual_seed(0)
    inputs: dict[str, Any] = {
        "source": torch.randn(T, N, H, generator=generator),
        "recurrent_weight": torch.randn(4 * H, H, generator=generator),
        "input_weight": torch.randn(4 * H, H, generator=generator),
        "bias": torch.randn(4 * H, generator=generator),
    }
    assert torch.equal(state(inputs), state(inputs))
    return inputs


def by_numpy(inputs: dict[str, Any]) -> Tensor:
    arrays: dict[str, Any] = {
        name: tensor.detach().resolve_neg().numpy() for name, tensor in inputs.items()
    }
    return torch.from_numpy(zs.lstm(**arrays).state)


def state(inputs: dict[str, Any]) -> Any:
    return zs.lstm(**inputs).state


def negated(tensor: Tensor) -> Tensor:
    view = torch.complex(tensor, -tensor).conj().imag
    assert view.is_neg()
    return view


class Own(torch.Tensor):
    """A subclass that changes nothing."""


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "batch first in memory": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "last axis strided": lambda t: t.permute(2, 0, 1).contiguous().permute(1, 2, 0),
    "expanded": lambda t: t[:, :1].expand(T, N, H),
    "last axis expanded": lambda t: t[:, :, :1].expand(T, N, H),
    "behind an offset": lambda t: torch.cat([torch.ones(7), t.flatten()])[7:].view(T, N, H),
    "part of a wider row": lambda t: torch.cat([t, t], 2)[:, :, 1 : H + 1],
    "negated": negated,
    "a parameter": lambda t: torch.nn.Parameter(t.clone()),
    "a leaf": lambda t: t.clone().requires_grad_(),
    "of a subclass": lambda t: t.as_subclass(Own),
    "fewer steps": lambda t: t[:2],
    "no step": lambda t: t[:0],
    "no sequence": lambda t: t[:, :0],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_known_call_with_another_source(
    known: dict[str, Any], change: Callable[[Tensor], Tensor], mode: Any
) -> None:
    inputs = {**known, "source": change(known["source"])}
    wanted = by_numpy(inputs)
    with mode():
        for _ in range(3):
            found = state(inputs)
            assert torch.equal(found.detach().as_subclass(Tensor), wanted)
            assert found.is_inference() == (mode is torch.inference_mode)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_another_type_is_not_the_known_call(known: dict[str, Any], dtype: torch.dtype) -> None:
    inputs = {name: tensor.to(dtype) for name, tensor in known.items()}
    first, second = state(inputs), state(inputs)
    assert first.dtype == second.dtype == dtype and torch.equal(first, second)
    torch.testing.assert_close(first.float(), state(known), rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("bias", torch.zeros(20, dtype=torch.float64), "expected float32 like source, got float64"),
        ("bias", torch.zeros(19), "expected [4H] = [20], got [19]"),
        ("bias", torch.zeros(20, device="meta"), "expected a tensor on cpu like source"),
        ("bias", torch.zeros(20).to_sparse(), "expected a strided tensor, got a sparse_coo one"),
        ("bias", np.zeros(20, np.float32), "expected a torch tensor like source"),
        ("bias", 0.0, "expected a torch tensor like source, got float 0.0"),
        ("bias", torch.zeros(20, dtype=torch.complex64), "got complex64"),
        ("source", torch.zeros(2, T, N, H), "expected [T,N,I]"),
    ],
)
def test_what_is_refused_stays_refused(
    known: dict[str, Any], name: str, wrong: Any, message: str
) -> None:
    for _ in range(2):
        with pytest.raises(zs.ZStateError, match=re.escape(message)):
            zs.lstm(**{**known, name: wrong})


def test_the_results_are_new_each_time(known: dict[str, Any]) -> None:
    first = state(known)
    kept = first.clone()
    second = state({**known, "source": -known["source"]})
    assert torch.equal(first, kept) and not torch.equal(first, second)


def test_a_tensor_may_change_between_calls(known: dict[str, Any]) -> None:
    known["source"].mul_(2)
    assert torch.equal(state(known), by_numpy(known))
    known["source"].data = torch.ones(T, N, H)
    assert torch.equal(state(known), by_numpy(known))


def test_threads_at_once(known: dict[str, Any]) -> None:
    wanted = state(known)
    wrong: list[int] = []

    def work() -> None:
        for k in range(200):
            if not torch.equal(state(known), wanted):
                wrong.append(k)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_rows_out_of_a_batch_and_back(dtype: torch.dtype) -> None:
    from zstate.torch.tensors import pack_rows, unpack_rows

    rows = torch.tensor([4, 0, 11, 7])
    batch = torch.randn(4, 3, 6).to(dtype)
    for padded in (batch, batch.transpose(0, 1).contiguous().transpose(0, 1), batch[:, :, ::2]):
        taken = pack_rows(padded, rows)
        assert torch.equal(taken, padded.flatten(0, 1)[rows])
        back = unpack_rows(taken, rows, 4, 3)
        wanted = torch.zeros_like(padded).flatten(0, 1).index_copy(0, rows, taken)
        assert torch.equal(back.flatten(0, 1), wanted)


def test_rows_that_are_not_there() -> None:
    rows = np.array([0, 6])
    with pytest.raises(ValueError, match="beyond the end"):
        native.pack_rows(np.zeros((2, 3, 4), np.float32), rows)
    with pytest.raises(ValueError, match="beyond the end"):
        native.unpack_rows(np.zeros((2, 4), np.float32), rows, 2, 3)
    with pytest.raises(ValueError, match="one for each row"):
        native.unpack_rows(np.zeros((3, 4), np.float32), np.array([0, 1]), 2, 3)
