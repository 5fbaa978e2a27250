"""Streams: one step or a few at a time, with the states kept in between."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..convert.layer import Layer
from ..errors import DTypeError, OptionError, ShapeError, refusal
from ..layout import brackets, describe
from ..types import Array
from .libraries import AS_NUMPY

if TYPE_CHECKING:
    from .model import Prepared


class Stream:
    """Rows fed step by step, made by ``Prepared.stream``; use it from one thread at a time.

    N rows, I input features, H output features.
    """

    def __init__(self, model: Prepared, batch: int) -> None:
        self.model = model
        self.batch = batch
        self._first = [part.first_states(batch) for part in model._parts]
        self._masks = [part.mask_for(1, batch) for part in model._parts]
        self._native: Any = None
        self._states = self._first
        if model.backend == "native":
            self._native = model._stack.stream(batch, self._first, self._masks)

    def step(self, x_t: Array) -> Array:
        """One step: x_t [N,I] float32 to the output [N,H]."""
        if self._native is not None:
            found = self._native.step(x_t)
            if found is not None:
                output: Array = found
                return output
        (output,) = self.run(self._checked(x_t, 2)[None])
        return output

    def run(self, x: Array) -> Array:
        """A chunk of steps: x [T,N,I] float32 to the outputs [T,N,H]."""
        source = self._checked(x, 3)
        if len(source) == 0:
            return np.zeros((0, self.batch, self.model.width), np.float32)
        masks = [part.mask_for(len(source), self.batch) for part in self.model._parts]
        if self._native is not None:
            output: Array = self._native.run(source, masks)
            return output
        output, self._states = self.model._run(source, self._states, masks, None)
        return output

    @property
    def states(self) -> Any:
        """Copies of the states, as a call of the model returns them; set them the same way."""
        return self.model._named(self._copies(), AS_NUMPY)

    @states.setter
    def states(self, states: Any) -> None:
        found = self.model._states(states, self.batch, AS_NUMPY)
        self._keep([[each.copy() for each in layer] for layer in found])

    def reset(self, rows: int | Iterable[int] | None = None) -> None:
        """Start again from the initial states: all rows, or the rows with these numbers."""
        chosen = list(range(self.batch)) if rows is None else self._rows(rows)
        kept = self._copies()
        for states, first in zip(kept, self._first, strict=True):
            for state, start in zip(states, first, strict=True):
                state[chosen] = start[chosen]
        self._keep(kept)

    def __reduce__(self) -> Any:
        """A copy or a pickle goes on from the same states, by itself."""
        states = self._copies()
        single = isinstance(self.model.layers, Layer)
        return _resumed, (self.model, self.batch, states[0] if single else states)

    def _copies(self) -> list[list[Array]]:
        held = self._states if self._native is None else self._native.states()
        return [[each.copy() for each in states] for states in held]

    def _keep(self, states: list[list[Array]]) -> None:
        if self._native is None:
            self._states = states
        else:
            self._native.set_states(states)

    def _rows(self, rows: Any) -> list[int]:
        listed = [rows] if isinstance(rows, int | np.integer) else rows
        try:
            given = np.asarray(list(listed))
        except (TypeError, ValueError) as error:
            expected = "a row's number or several"
            raise DTypeError(refusal("reset", "rows", expected, describe(rows))) from error
        if given.dtype == bool and given.shape == (self.batch,):
            return [int(row) for row in np.flatnonzero(given)]
        if given.dtype.kind not in "iu" and given.size:
            raise DTypeError(refusal("reset", "rows", "integers", describe(rows)))
        for row in given.ravel():
            if not -self.batch <= row < self.batch:
                expected = f"rows below N = {self.batch}"
                raise OptionError(refusal("reset", "rows", expected, str(row)))
        return [int(row) % self.batch for row in given.ravel()]

    def _checked(self, x: Any, rank: int) -> Array:
        if not isinstance(x, np.ndarray):
            name = "x_t" if rank == 2 else "x"
            raise DTypeError(refusal("stream", name, "a NumPy array", describe(x)))
        source = self.model._input(x, rank)
        if source.shape[-2] != self.batch:
            name, axes = ("x_t", ()) if rank == 2 else ("x", ("T",))
            expected = brackets((*axes, self.batch, self.model.inputs))
            raise ShapeError(refusal("stream", name, expected, brackets(x.shape)))
        return source

    def __repr__(self) -> str:
        return f"<Stream of {self.batch} row{'s' * (self.batch > 1)} over {self.model!r}>"


def _resumed(model: Prepared, batch: int, states: Any) -> Stream:
    stream = Stream(model, batch)
    stream.states = states
    return stream
