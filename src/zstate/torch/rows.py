"""Rows of CPU tensors copied by NumPy: taken, put elsewhere, joined; differentiable to any order.

torch would share such copies among threads of its own, which then go on spinning for milliseconds
and take the cores from the engine's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .dispatch import is_batched, is_plain
from .tensors import array_of, tensor_of


def take(source: Tensor, rows: Any) -> Tensor:
    """Some rows of [·,F]."""
    return _Take.apply(source, rows)  # type: ignore[no-any-return]


def put(source: Tensor, rows: Any, whole: int) -> Tensor:
    """[M,F] as those rows of [whole,F], zero elsewhere."""
    return _Put.apply(source, rows, whole)  # type: ignore[no-any-return]


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: Tensor, rows: Any) -> Tensor:
        ctx.rows, ctx.whole = rows, source.shape[0]
        if is_batched(source):
            return source.index_select(0, torch.from_numpy(rows))
        return tensor_of(array_of(source).take(rows, 0), source.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return put(gradient, ctx.rows, ctx.whole), None


class _Put(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: Tensor, rows: Any, whole: int) -> Tensor:
        ctx.rows = rows
        if is_batched(source):
            zeros = source.new_zeros(whole, source.shape[1])
            return zeros.index_copy(0, torch.from_numpy(rows), source)
        values = array_of(source)
        padded = np.zeros((whole, values.shape[1]), values.dtype)
        padded[rows] = values
        return tensor_of(padded, source.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return take(gradient, ctx.rows), None, None


def join(first: Tensor, second: Tensor) -> Tensor:
    """torch.cat([first, second])."""
    if torch.compiler.is_compiling() or not first.is_cpu or not is_plain((first, None, second)):
        return torch.cat([first, second])
    return _Join.apply(first, second)  # type: ignore[no-any-return]


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        ctx.count = len(first)
        joined = np.concatenate([array_of(first), array_of(second)])
        return tensor_of(joined, first.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient[: ctx.count], gradient[ctx.count :]
