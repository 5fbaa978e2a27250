"""What the tests of modules share: sizes, a module of torch.nn beside ours, how they compare."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

import zstate.torch as zt

T, N, I, H = 6, 4, 3, 5
LAYERS = ("RNN", "LSTM", "GRU")
CELLS = ("RNNCell", "LSTMCell", "GRUCell")
LENGTHS = torch.tensor([3, 6, 1, 5])


def pair(kind: str, *args: Any, seed: int = 0, **options: Any) -> tuple[Any, Any]:
    """torch.nn's module and ours, made from the same seed."""
    torch.manual_seed(seed)
    theirs = getattr(torch.nn, kind)(*args, **options)
    torch.manual_seed(seed)
    return theirs, getattr(zt, kind)(*args, **options)


def states(kind: str, rows: int, wide: int = H, dtype: torch.dtype = torch.float64) -> Any:
    h = torch.randn(rows, N, wide, dtype=dtype)
    return (h, torch.randn(rows, N, H, dtype=dtype)) if kind == "LSTM" else h


def flat(value: Any) -> list[Tensor]:
    if isinstance(value, PackedSequence):
        return [value.data]
    if isinstance(value, Tensor):
        return [value]
    return [tensor for each in value for tensor in flat(each)]


def assert_same(ours: list[Tensor], theirs: list[Tensor], bound: float) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.shape == other.shape and mine.dtype == other.dtype
        torch.testing.assert_close(mine, other, rtol=bound, atol=bound)
