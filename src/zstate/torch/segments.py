"""Resets without an engine that knows them: every stretch between two resets is a sequence alone.

T time, N batch, S stretches, F features, D directions, H hidden units.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Segments:
    """The stretches of N rows, row by row and each row's from first to last."""

    def __init__(self, resets: Tensor, lengths: Tensor) -> None:
        """``resets`` [T,N], ``lengths`` [N]: at least one row has a step."""
        self._size = resets.shape
        begins = (resets != 0) & (torch.arange(len(resets))[:, None] < lengths)
        anew = begins[0].clone()
        begins[0] = lengths > 0
        rows, starts = begins.T.nonzero(as_tuple=True)
        self._first, self._last = starts == 0, torch.ones_like(rows, dtype=torch.bool)
        self._last[:-1] = rows[1:] != rows[:-1]
        ends = torch.where(self._last, lengths[rows], starts.roll(-1))
        self._rows, self.lengths = rows, ends - starts  # [S]
        times = torch.arange(int(self.lengths.max()))[:, None]
        self._inside = times < self.lengths  # [longest,S]
        self._times = (starts + times).clamp(max=len(resets) - 1)
        # Where a direction goes on from the state that a call passes.
        self._goes_on = (self._first & ~anew[rows], self._last)

    def split(self, x: Tensor) -> Tensor:
        """[longest,S,F] from [T,N,F]."""
        return x[self._times, self._rows]

    def joined(self, steps: Tensor) -> Tensor:
        """[T,N,F], with zeros past each row's length, from [longest,S,F]."""
        whole = steps.new_zeros(*self._size, steps.shape[-1])
        rows = self._rows.expand(self._inside.shape)
        whole[self._times[self._inside], rows[self._inside]] = steps[self._inside]
        return whole

    def first_states(self, state: Tensor, start: float, directions: int) -> Tensor:
        """[S,D·H] from [N,D·H]: ``start`` where a stretch begins with a reset."""
        halves = zip(self._goes_on, state[self._rows].chunk(directions, -1), strict=False)
        parts = [half.masked_fill(~goes_on[:, None], start) for goes_on, half in halves]
        return torch.cat(parts, -1)

    def last_states(self, ends: Tensor, state: Tensor, directions: int) -> Tensor:
        """[N,D·H] from [S,D·H]; ``state`` [N,D·H] for the rows without steps."""
        parts = []
        for place, half in enumerate(state.chunk(directions, -1)):
            own = self._first if place else self._last  # the second direction ends at the front
            found = ends.chunk(directions, -1)[place][own]
            parts.append(half.index_copy(0, self._rows[own], found))
        return torch.cat(parts, -1)
