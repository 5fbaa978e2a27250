"""What a cell is: its gates, one step forward, one step backward, and its own weight gradients.

A cell knows nothing of directions, storage types or missing inputs: it sees one direction, in
processing order, in the type of the arithmetic, with everything that was missing settled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..types import Array
from .activations import Function


@dataclass(frozen=True)
class Direction:
    """The inputs of one direction that stay the same for every step. G gates, H hidden units.

    ``slots[k]`` is the place of canonical gate k along the G axis: gate orders cost no copy.
    """

    recurrent_weight: Array  # [G,H,H]
    mask: Array  # [T,N,H]
    peephole: Array  # [G,H]
    secondary_bias: Array  # [H]
    init_state: Array  # [N,H]
    init_cell: Array  # [N,H]
    slots: tuple[int, ...]
    activations: tuple[Function, ...]
    reset_after: bool
    flip_z: bool


class Step(NamedTuple):
    """What one step forward gives."""

    state: Array  # h[t] [N,H]
    cell: Array  # c[t] [N,H]; handed through by cells that have none
    saved: Array  # zState[t] [N,G,H]


class StepInputs(NamedTuple):
    """What one step backward reads."""

    mask: Array  # m[t] [N,H]
    state_before: Array  # h[t-1] [N,H]
    cell_before: Array  # c[t-1] [N,H]
    cell: Array  # c[t] [N,H]
    saved: Array  # zState[t] [N,G,H]


class StepGradients(NamedTuple):
    """What one step backward gives."""

    gates: Array  # gradient of the gates before their activation [N,G,H]
    state_before: Array  # gradient of h[t-1] [N,H]
    cell_before: Array  # gradient of c[t-1] [N,H]


class Trace(NamedTuple):
    """All steps of one direction in processing order, for sums over time."""

    state_before: Array  # h[t-1] [T,N,H]
    cell_before: Array  # c[t-1] [T,N,H]
    saved: Array  # zState [T,N,G,H]
    gates: Array  # gradient of the gates before their activation [T,N,G,H]


@dataclass(frozen=True, eq=False)
class Cell:
    """A recurrent cell, as a value: see docs/equations.md and docs/gradients.md."""

    name: str
    gates: tuple[str, ...]  # canonical order
    has_cell: bool
    # (direction, projected input of the step [N,G,H], m[t], h[t-1], c[t-1])
    forward: Callable[[Direction, Array, Array, Array, Array], Step]
    # (direction, inputs of the step, gradient of h[t], gradient of c[t])
    backward: Callable[[Direction, StepInputs, Array, Array], StepGradients]
    # (direction, zState [T,N,G,H], c [T,N,H]) -> h [T,N,H], for cells whose zState determines h
    outputs: Callable[[Direction, Array, Array], Array] | None
    # gradients of recurrent_weight [G,H,H] and of the cell's own parameters
    parameters: Callable[[Direction, Trace], dict[str, Array]]


def outer_sum(left: Array, right: Array) -> Array:
    """Sum over time and batch of left ⊗ right: [T,N,…] and [T,N,H] give […,H]."""
    steps, batch, *kept = left.shape
    width = right.shape[-1]
    flat = left.reshape(steps * batch, math.prod(kept))
    return (flat.T @ right.reshape(steps * batch, width)).reshape(*kept, width)


def total(values: Array) -> Array:
    """Sum over time and batch, [T,N,…] to […], added up in float64 whatever the type."""
    summed: Array = values.sum(axis=(0, 1), dtype=np.float64).astype(values.dtype)
    return summed
