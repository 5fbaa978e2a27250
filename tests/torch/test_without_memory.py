"""Tensors without memory: torch's symbolic zeros are zeros, an emptied storage is refused."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
import torch
from torch import Tensor

import zstate as zs
import zstate.torch as zt

N, I, H = 2, 3, 4
STEPS = count(11)  # a new number is a call that is not known yet

types = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16]
)
gradients = pytest.mark.parametrize("grad", [False, True])


def symbolic_zeros(*shape: int, dtype: torch.dtype) -> Tensor:
    zeros = torch._efficientzerotensor(shape, dtype=dtype)
    assert zeros.data_ptr() == 0
    return zeros


def emptied(*shape: int, dtype: torch.dtype, offset: int) -> Tensor:
    whole = torch.randn(offset + int(np.prod(shape))).to(dtype)
    part = whole[offset:].view(shape)
    whole.untyped_storage().resize_(0)
    return part


@types
@gradients
def test_symbolic_zeros_are_zeros(dtype: torch.dtype, grad: bool) -> None:
    layer, R, steps = zt.LSTM(I, H).to(dtype), torch.randn(4 * H, H).to(dtype), next(STEPS)
    with torch.set_grad_enabled(grad):
        found = layer(symbolic_zeros(steps, N, I, dtype=dtype))[0]
        assert torch.equal(found, layer(torch.zeros(steps, N, I, dtype=dtype))[0])
        found = zs.lstm(symbolic_zeros(steps, N, 4 * H, dtype=dtype), R).state
        assert torch.equal(found, zs.lstm(torch.zeros(steps, N, 4 * H, dtype=dtype), R).state)


@types
@gradients
@pytest.mark.parametrize("offset", [0, 24])
def test_an_emptied_storage_is_refused(dtype: torch.dtype, grad: bool, offset: int) -> None:
    layer, R, steps = zt.GRU(I, H).to(dtype), torch.randn(4 * H, H).to(dtype), next(STEPS)
    with torch.set_grad_enabled(grad):
        with pytest.raises(zs.ZStateError, match="got an empty storage"):
            layer(emptied(steps, N, I, dtype=dtype, offset=offset))
        source = torch.zeros(steps, N, 4 * H, dtype=dtype)
        with pytest.raises(zs.ZStateError, match=r"\[lstm\] recurrent_weight: expected memory"):
            zs.lstm(source, emptied(4 * H, H, dtype=dtype, offset=offset))
        source = emptied(steps, N, 4 * H, dtype=dtype, offset=offset)
        with pytest.raises(zs.ZStateError, match=r"\[lstm\] source: expected memory"):
            zs.lstm(source, R)


@types
@pytest.mark.parametrize("equal", [False, True])
def test_sequences_of_different_lengths(dtype: torch.dtype, equal: bool) -> None:
    layer, lengths = zt.RNN(I, H).to(dtype), [3, 3] if equal else [3, 1]
    found = layer(symbolic_zeros(3, N, I, dtype=dtype), None, lengths)[0]
    assert torch.equal(found, layer(torch.zeros(3, N, I, dtype=dtype), None, lengths)[0])
    with pytest.raises(zs.ZStateError, match="got an empty storage"):
        layer(emptied(3, N, I, dtype=dtype, offset=6), None, lengths)
