"""How much the loss of a step depends on the states of other steps, by the gradient operations.

T steps, N rows (the steps whose losses are looked at), D directions, H units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..types import Array
from .scans import Scan

_MOST = 2**18  # losses × steps: all losses of 512 steps, every 16th of 2,048
_BYTES = 2**27  # of the gradients between two layers, for the rows of one pass
_ROWS = 128  # of one pass: enough for the matrix product, few enough to leave early


def chosen_steps(steps: int) -> Array:
    """The steps whose losses are looked at: all, or as many as fit, evenly spread."""
    count = min(steps, max(_MOST // steps, 1))
    chosen: Array = np.linspace(0, steps - 1, count).round().astype(np.int32)
    return chosen


def gradient_flow(
    layers: Sequence[Sequence[Scan]], seeds: Array, losses: Array
) -> list[list[dict[str, Array]]]:
    """The norms of dL[t]/ds[k], by layer, direction and state s: [losses,T] each.

    ``seeds`` [T,D·H] are the gradients of each step's loss by the output of that step. A state is
    what one step hands to the next: of an LSTM, h[k] and c[k] as two values.
    """
    steps = len(seeds)
    norms = [
        [{s: np.zeros((len(losses), steps)) for s in scan.states} for scan in layer]
        for layer in layers
    ]
    widest = max((sum(scan.units for scan in layer) for layer in layers), default=1)
    rows = int(np.clip(_BYTES // (steps * widest * 8), 4, _ROWS))
    for start in range(0, len(losses), rows):
        window = slice(start, start + rows)
        _one_pass(layers, seeds, losses[window], [[_rows(n, window) for n in d] for d in norms])
    return norms


def _rows(norms: dict[str, Array], window: slice) -> dict[str, Array]:
    return {state: array[window] for state, array in norms.items()}


def _one_pass(
    layers: Sequence[Sequence[Scan]],
    seeds: Array,
    losses: Array,
    norms: list[list[dict[str, Array]]],
) -> None:
    """Some losses through all layers, the last layer first."""

    def of_the_loss(step: int) -> Array:
        """The gradient by the output of a step [N,D·H]: that of its own loss alone."""
        found: Array = (losses == step)[:, None] * seeds[step]
        return found

    above: Callable[[int], Array] = of_the_loss
    for k in range(len(layers) - 1, -1, -1):
        below: Array | None = None
        place = 0
        if k:
            width = sum(scan.units for scan in layers[k - 1])
            below = np.zeros((len(seeds), len(losses), width), seeds.dtype)  # [T,N,I]
        for scan, found in zip(layers[k], norms[k], strict=True):
            _one_direction(scan, above, slice(place, place + scan.units), below, found)
            place += scan.units
        if below is not None:
            above = below.__getitem__


def _one_direction(
    scan: Scan,
    above: Callable[[int], Array],
    columns: slice,
    below: Array | None,
    norms: dict[str, Array],
) -> None:
    """Back through the steps of a scan: norms [N,T] are written, gradients of x added to below."""
    steps, rows = len(scan.source), next(iter(norms.values())).shape[0]
    first = next(iter(scan.states))
    carried = {s: np.zeros((rows, scan.units), scan.source.dtype) for s in scan.states}
    for at in range(steps - 1, -1, -1):
        step = steps - 1 - at if scan.backwards else at
        carried[first] = carried[first] + above(step)[:, columns]
        if not any(values.any() for values in carried.values()):
            continue  # the losses lie before this step
        for state, values in carried.items():
            norms[state][:, step] = np.linalg.norm(values.astype(np.float64), axis=1)
        if at == 0 and below is None:
            return
        before = slice(at - 1, at) if at else None
        gates, carried = scan.step_back(slice(at, at + 1), before, rows, carried)
        if below is not None:
            assert scan.input_weight is not None
            below[step] += gates @ scan.input_weight
