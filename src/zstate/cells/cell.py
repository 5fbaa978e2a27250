"""What a cell is: gates, states, options, one step forward, one step backward, weight gradients.

A cell knows nothing of directions, storage types or array libraries: it sees one direction, in
processing order, in the type of the arithmetic, and computes through the direction's namespace.
It writes to no array, so that a library can differentiate through it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ..descriptors import Descriptor
from ..types import Value
from .activations import Function

if TYPE_CHECKING:
    from ..arrays import Namespace

States: TypeAlias = tuple[Value, ...]  # one for each of the cell's states, in their order


class State(NamedTuple):
    """A state that a cell carries from step to step, by the names of its tensors."""

    name: str  # the forward result with its value after every step
    initial: str  # the input with its value before the first step
    output: str  # the gradient operation's input that is the forward result
    gradient: str  # the gradient of every step or, where there is no name for it, of the last one
    last_gradient: str  # the gradient of the last step


def state(name: str) -> State:
    """A further state, by the names that follow from its own."""
    gradient = f"{name}_gradient"
    return State(name, f"init_{name}", f"{name}_output_fwd", gradient, gradient)


HIDDEN = State("state", "init_state", "output_fwd", "source_gradient", "state_gradient")


class Parameter(NamedTuple):
    """A parameter of one cell alone; with ``only_with``, an option without which it is refused."""

    name: str
    only_with: str = ""


@dataclass(frozen=True)
class Direction:
    """The inputs of one direction that stay the same for every step. G gates, H hidden units.

    ``slots[k]`` is the place of canonical gate k along the G axis: gate orders cost no copy.
    """

    xp: Namespace
    options: Any  # the cell's descriptor
    recurrent_weight: Value  # [G,H,H]
    own: Mapping[str, Value]  # those of the cell's own parameters that were passed
    slots: tuple[int, ...]
    activations: tuple[Function, ...]

    def gates(self, stacked: Value) -> list[Value]:
        """The canonical gates of [N,G,H] or [T,N,G,H]."""
        return [stacked[..., slot, :] for slot in self.slots]

    def stack(self, gates: Sequence[Value], axis: int = -2) -> Value:
        """The inverse of ``gates``: canonical gates in their slots along a new axis."""
        return self.xp.stack([gates[self.slots.index(k)] for k in range(len(gates))], axis)


class Step(NamedTuple):
    """What one step forward gives."""

    states: States  # [N,H] each
    saved: Value  # zState[t] [N,G,H]


class Steps(NamedTuple):
    """What the gradient operation reads: at one step, or at all of them with a leading T axis."""

    mask: Value | None  # m[t] [N,H]; None: none was passed
    before: States  # the states before the step, [N,H] each
    after: States  # the states after it
    saved: Value  # zState[t] [N,G,H]


class StepGradients(NamedTuple):
    """What one step backward gives."""

    gates: Value  # gradient of the gates before their activation [N,G,H]
    before: States  # gradients of the states before the step, [N,H] each


@dataclass(frozen=True, eq=False)
class Cell:
    """A recurrent cell, as a value: see docs/equations.md and docs/gradients.md."""

    name: str  # of its forward operation
    gates: tuple[str, ...]  # canonical order
    descriptor: type[Descriptor]
    # (direction, projected input of the step [N,G,H], m[t] or None, states before the step)
    forward: Callable[[Direction, Value, Value | None, States], Step]
    # (direction, the step, gradients of the states after it)
    backward: Callable[[Direction, Steps, States], StepGradients]
    # (direction, all steps, gradients of their gates [T,N,G,H]) -> gradients of recurrent_weight
    # [G,H,H] and of the cell's own parameters
    parameters: Callable[[Direction, Steps, Value], dict[str, Value]]
    # (direction, zState [T,N,G,H], the other states [T,N,H]) -> h [T,N,H], for cells whose zState
    # determines h; the gradient operation of others takes h as an input
    outputs: Callable[[Direction, Value, States], Value] | None = None
    states: tuple[State, ...] = (HIDDEN,)  # what is carried from step to step; h comes first
    own: tuple[Parameter, ...] = ()  # parameters that other cells have not
    # an option that changes the order of the gates along the G axis, and the order it gives
    other_order: tuple[str, tuple[str, ...]] | None = None
    # the option that makes the forward operation give all states, not h alone
    keeps_states: str | None = None
    short: str = ""  # its name on the command line and in the engines

    def __post_init__(self) -> None:
        object.__setattr__(self, "short", self.short or self.name)

    @cached_property
    def fed_back(self) -> dict[str, str]:
        """The gradient operation's inputs that are forward results, and which ones they are."""
        carried = self.states if self.outputs is None else self.states[1:]
        return {"z_state": "training_state"} | {each.output: each.name for each in carried}

    @cached_property
    def incoming(self) -> dict[str, str]:
        """The gradient operation's inputs that are gradients of forward results, likewise."""
        return {each.gradient: each.name for each in self.states}

    def gate_order(self, options: Any) -> tuple[str, ...]:
        """The gates' names in the order in which they lie along the G axis."""
        if self.other_order is not None and getattr(options, self.other_order[0]):
            return self.other_order[1]
        return self.gates


def masked(value: Value, mask: Value | None) -> Value:
    """value·mask; without a mask nothing is multiplied, so that inf and NaN stay what they are."""
    return value if mask is None else value * mask


def outer_sum(left: Value, right: Value) -> Value:
    """Sum over time and batch of left ⊗ right: [T,N,…] and [T,N,H] give […,H]."""
    steps, batch, *kept = left.shape
    width = right.shape[-1]
    flat = left.reshape(steps * batch, math.prod(kept))
    return (flat.T @ right.reshape(steps * batch, width)).reshape(*kept, width)
