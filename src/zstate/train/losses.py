"""Losses of steps, read only when they are shown, because reading one waits for the device."""

from __future__ import annotations

import math
import time
from collections import deque
from importlib import import_module
from typing import Any, NamedTuple

from ..layout import is_torch_tensor

LN2 = math.log(2)
_SECONDS = 0.1  # between two reads from the device; a progress line shows no more
_AHEAD = 16  # steps that stay unread, so that the device has work meanwhile


class Step(NamedTuple):
    """A step, its bits per character, and the norm of its gradients before clipping."""

    number: int
    bits: float
    norm: float


class Losses:
    """Results of steps, [loss, norm], that have not been read yet."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Any, Any]] = deque()
        self._looked = time.perf_counter()
        self._reader: _Reader | None = None

    def add(self, number: int, loss: Any, norm: Any) -> None:
        if is_torch_tensor(loss) and loss.is_cuda:
            self._reader = self._reader or _Reader(loss.device)
            self._waiting.append((number, *self._reader.noted(loss, norm)))
        else:
            self._waiting.append((number, loss, norm))

    def read(self, every: bool) -> list[Step]:
        """Results that can be shown: all of them, or, on a device and without ``every``, older
        ones at intervals."""
        if self._reader is not None and not every:
            if time.perf_counter() - self._looked < _SECONDS:
                return []
            count = len(self._waiting) - _AHEAD
        else:
            count = len(self._waiting)
        if count <= 0:
            return []
        taken = [self._waiting.popleft() for _ in range(count)]
        pairs = [(loss, norm) for _, loss, norm in taken]
        if self._reader is not None:
            pairs = self._reader.values(pairs)
        self._looked = time.perf_counter()
        numbers = (number for number, *_ in taken)
        return [Step(n, float(a) / LN2, float(b)) for n, (a, b) in zip(numbers, pairs, strict=True)]


class _Reader:
    """Reads results on its own stream, which waits only for the step that produced them."""

    def __init__(self, device: Any) -> None:
        torch = import_module("torch")

        self._torch = torch
        self._stream = torch.cuda.Stream(device)

    def noted(self, loss: Any, norm: Any) -> tuple[Any, Any]:
        """The two in one tensor, and when it is ready."""
        event = self._torch.cuda.Event()
        both = self._torch.stack([loss, norm])
        event.record()
        return both, event

    def values(self, pairs: list[tuple[Any, Any]]) -> list[tuple[float, float]]:
        self._stream.wait_event(pairs[-1][1])
        with self._torch.cuda.stream(self._stream):
            found = self._torch.stack([both for both, _ in pairs]).tolist()
        return [(loss, norm) for loss, norm in found]
