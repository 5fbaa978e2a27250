"""How much the loss of a step depends on the states of other steps, from gradient operations.

T steps, N rows (the steps whose losses are looked at), D directions, H units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..types import Array
from .scans import Scan

_MOST = 2**18  # losses × steps: all losses of 512 steps, every 16th of 2,048
_BYTES = 2**27  # of the gradients between two layers, for the rows of one pass
_WINDOW = 32  # steps that one layer goes back before the layer below it follows
_LEAST = 1e-12  # of the gradient at the loss itself: less is shown as 0

Norms = list[list[dict[str, Array]]]  # by layer, direction and state: [losses,T]


def chosen_steps(steps: int) -> Array:
    """The steps whose losses are looked at: all, or as many as fit, evenly spread."""
    count = min(steps, max(_MOST // steps, 1))
    chosen: Array = np.linspace(0, steps - 1, count).round().astype(np.int32)
    return chosen


def gradient_flow(layers: Sequence[Sequence[Scan]], seeds: Array, losses: Array) -> Norms:
    """The norms of dL[t]/ds[k], by layer, direction and state s: [losses,T] each.

    ``seeds`` [T,D·H] are the gradients of each step's loss by the output of that step. A state is
    what one step hands to the next: of an LSTM, h[k] and c[k] as two values.
    """
    norms: Norms = [
        [{s: np.zeros((len(losses), len(seeds))) for s in scan.states} for scan in layer]
        for layer in layers
    ]
    windows = _windows(layers, len(seeds))
    widest = max(sum(scan.units for scan in layer) for layer in layers)
    rows = max(_BYTES // (len(windows[0]) * widest * seeds.itemsize), 4)
    for start in range(0, len(losses), rows):
        part = slice(start, start + rows)
        found = [[{s: a[part] for s, a in n.items()} for n in directions] for directions in norms]
        _Pass(layers, seeds, losses[part], found).run(windows)
    return norms


def _windows(layers: Sequence[Sequence[Scan]], steps: int) -> list[range]:
    """The steps from last to first, some at a time; all at once if layers go both ways, because
    each then needs everything above it."""
    ways = {scan.backwards for layer in layers for scan in layer}
    if len(ways) > 1:
        return [range(steps)]
    starts = range(0, steps, _WINDOW)
    windows = [range(k, min(k + _WINDOW, steps)) for k in starts]
    return windows if ways == {True} else windows[::-1]


class _Pass:
    """Some losses, propagated back through all layers."""

    def __init__(
        self, layers: Sequence[Sequence[Scan]], seeds: Array, losses: Array, norms: Norms
    ) -> None:
        self.layers, self.seeds, self.losses, self.norms = layers, seeds, losses, norms
        self.least = _LEAST * np.linalg.norm(seeds[losses], axis=1)  # [N]
        self.carried = [
            [
                {s: np.zeros((len(losses), scan.units), seeds.dtype) for s in scan.states}
                for scan in d
            ]
            for d in layers
        ]

    def run(self, windows: list[range]) -> None:
        for window in windows:
            above: Callable[[int], Array] = self._of_the_loss
            for k in range(len(self.layers) - 1, -1, -1):
                width = sum(scan.units for scan in self.layers[k - 1]) if k else 0
                below = np.zeros((len(window), len(self.losses), width), self.seeds.dtype)
                self._layer(k, window, above, below)
                above = _from(below, window.start)

    def _of_the_loss(self, step: int) -> Array:
        """The gradient by the output of a step [N,D·H]: that of its own loss alone."""
        found: Array = (self.losses == step)[:, None] * self.seeds[step]
        return found

    def _layer(self, k: int, window: range, above: Callable[[int], Array], below: Array) -> None:
        """Each direction of a layer back through some steps; gradients of x are added to below
        [steps,N,I]."""
        place = 0
        for scan, norms, carried in zip(
            self.layers[k], self.norms[k], self.carried[k], strict=True
        ):
            columns = slice(place, place + scan.units)
            place += scan.units
            first = next(iter(scan.states))
            for step in window if scan.backwards else reversed(window):
                carried[first] += above(step)[:, columns]
                gates = self._step(scan, step, carried, norms)
                if below.shape[2] and gates is not None:
                    rows, values = gates
                    below[step - window.start, rows] += values @ scan.input_weight

    def _step(
        self, scan: Scan, step: int, carried: dict[str, Array], norms: dict[str, Array]
    ) -> tuple[Array, Array] | None:
        """One step back for the losses that still depend on it: which, and their dgates."""
        for state, values in carried.items():
            norms[state][:, step] = np.linalg.norm(values.astype(np.float64), axis=1)
        size = np.max([n[:, step] for n in norms.values()], axis=0)
        rows = np.flatnonzero(~(size <= self.least))  # what overflowed goes on
        if not len(rows):
            return None
        at = len(scan.source) - 1 - step if scan.backwards else step
        before = slice(at - 1, at) if at else None
        incoming = {state: values[rows] for state, values in carried.items()}
        gates, found = scan.step_back(slice(at, at + 1), before, len(rows), incoming)
        for state, values in found.items():
            carried[state][:] = 0  # what has become too small ends here
            carried[state][rows] = values
        return rows, gates


def _from(below: Array, start: int) -> Callable[[int], Array]:
    """A layer's gradients of x by step."""

    def at(step: int) -> Array:
        found: Array = below[step - start]
        return found

    return at
