"""Rows of a padded batch [T,N,F] taken out, [M,F], and put back.

A row's number counts through both axes. torch's own derivatives of this add, or copy first, where
setting is enough.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..dispatch import engine_gives_gradients
from ..tensors import pack_rows, unpack_rows


def take_rows(padded: Tensor, rows: Tensor) -> Tensor:
    """[M,F] from [T,N,F]."""
    taken: Tensor = _Take.apply(padded, rows)
    return taken


def put_rows(data: Tensor, rows: Tensor, steps: int, batch: int) -> Tensor:
    """[T,N,F] from [M,F], with zeros in all other places."""
    padded: Tensor = _Put.apply(data, rows, steps, batch)
    return padded


def _take(padded: Tensor, rows: Tensor) -> Tensor:
    if engine_gives_gradients((padded,)):
        return pack_rows(padded, rows)
    steps, batch, width = padded.shape
    return padded.reshape(steps * batch, width).index_select(0, rows)


def _put(data: Tensor, rows: Tensor, steps: int, batch: int) -> Tensor:
    if engine_gives_gradients((data,)):
        return unpack_rows(data, rows, steps, batch)
    zeros = data.new_zeros(steps * batch, data.shape[1])
    return zeros.index_copy(0, rows, data).view(steps, batch, data.shape[1])


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, padded: Tensor, rows: Tensor) -> Tensor:
        ctx.rows, ctx.size = rows, padded.shape[:2]
        return _take(padded, rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _put(gradient, ctx.rows, *ctx.size), None


class _Put(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, data: Tensor, rows: Tensor, steps: int, batch: int) -> Tensor:
        ctx.rows = rows
        return _put(data, rows, steps, batch)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _take(gradient, ctx.rows), None, None, None
