"""What a cell is: gates, states, parameters, options, and one text: the equations of a step.

The text computes with symbols and is read once per form (tracing.py); all else follows from it: the
reference, the step backward (derivation.py), the kernels of the engines, ONNX, the documentation.
A cell knows nothing of directions, storage types or array libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from ..descriptors import Descriptor
from .derivation import Backward, derive
from .expressions import Expression
from .printing import equations
from .tracing import Step, Trace, trace


class State(NamedTuple):
    """A state that a cell carries from step to step, by the names of its tensors."""

    name: str  # the forward result with its value after every step
    initial: str  # the input with its value before the first step
    output: str  # the gradient operation's input that is the forward result
    gradient: str  # the gradient of every step or, where there is no name for it, of the last one
    last_gradient: str  # the gradient of the last step
    symbol: str  # in equations
    start: float = 0.0  # the value that a sequence begins with, where none is given


def state(name: str, symbol: str = "", start: float = 0.0) -> State:
    """A further state, by the names that follow from its own."""
    own = f"{name}_gradient"
    return State(name, f"init_{name}", f"{name}_output_fwd", own, own, symbol or name, start)


HIDDEN = State("state", "init_state", "output_fwd", "source_gradient", "state_gradient", "h")


class Parameter(NamedTuple):
    """A parameter of one cell alone; with ``only_with``, an option without which it is refused."""

    name: str
    only_with: str = ""
    by_gate: bool = False  # one vector [H] per gate; otherwise one
    letter: str = ""  # in equations
    required: bool = False  # whether the equations need it

    @property
    def symbol(self) -> str:
        return self.letter or self.name


@dataclass(frozen=True, eq=False)
class Cell:
    """A recurrent cell, as a value: see docs/equations.md and docs/gradients.md."""

    name: str  # of its forward operation
    gates: tuple[str, ...]  # canonical order
    descriptor: type[Descriptor]
    # One step: (context, states before it) -> states after it and, if the cell says what it saves,
    # one value per gate; by default a cell saves its gates before activation
    equations: Callable[..., Step | Sequence[Expression] | Expression]
    states: tuple[State, ...] = (HIDDEN,)  # what is carried from step to step; h comes first
    own: tuple[Parameter, ...] = ()  # parameters specific to this cell
    # an option that changes the order of the gates along the G axis, and the order it gives
    other_order: tuple[str, tuple[str, ...]] | None = None
    # the option that makes the forward operation give all states, not h alone
    keeps_states: str | None = None
    values: tuple[str, ...] = ()  # gates that are values per step, which no weight reaches
    short: str = ""  # its name on the command line and in the engines
    key: str = ""  # a name that no cell with other equations has

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.key or self.name)
        object.__setattr__(self, "short", self.short or self.name)

    @cached_property
    def usual(self) -> Descriptor:
        """The descriptor of a call without one: the same object each time, so calls are known."""
        return self.descriptor()

    @lru_cache(maxsize=1024)  # noqa: B019 - cells live as long as the program
    def forward(
        self, options: Descriptor, own: frozenset[str], has_mask: bool, has_resets: bool = False
    ) -> Trace:
        """The equations with these options and these of the own parameters, as symbols."""
        parameters = {each.name: each.by_gate for each in self.own if each.name in own}
        starts = {each.name: each.start for each in self.states}
        restarts = starts if has_resets else None
        return trace(
            self.equations, self.gates, tuple(starts), parameters, options, has_mask, restarts
        )

    @lru_cache(maxsize=1024)  # noqa: B019
    def backward(
        self, options: Descriptor, own: frozenset[str], has_mask: bool, has_resets: bool = False
    ) -> Backward:
        """The step backward that follows from them."""
        return derive(self.forward(options, own, has_mask, has_resets), self.fed_states)

    @cached_property
    def needed(self) -> frozenset[str]:
        """The own parameters without which there are no equations."""
        return frozenset(each.name for each in self.own if each.required)

    @cached_property
    def fed_states(self) -> tuple[str, ...]:
        """The states that the gradient operation takes: h only where no other value gives it."""
        plain = self.forward(self.usual, self.needed, False, False)
        return tuple(each.name for each in self.states)[int(plain.gives_first_state) :]

    @cached_property
    def fed_back(self) -> dict[str, str]:
        """The gradient operation's inputs that are forward results, and which ones they are."""
        carried = (each for each in self.states if each.name in self.fed_states)
        return {"z_state": "training_state"} | {each.output: each.name for each in carried}

    @cached_property
    def incoming(self) -> dict[str, str]:
        """The gradient operation's inputs that are gradients of forward results, likewise."""
        return {each.gradient: each.name for each in self.states}

    def __str__(self) -> str:
        """The equations with the usual options, and without parameters that may be left out."""
        return self.equations_of(self.usual, self.needed)

    def equations_of(self, options: Descriptor, own: Iterable[str] = (), mask: bool = False) -> str:
        """The equations with these options, these of the own parameters, and a mask m or none."""
        symbols = {each.name: each.symbol for each in self.states}
        symbols |= {each.name: each.symbol for each in self.own}
        symbols |= {f"x.{name}": name for name in self.values}
        return equations(self.forward(options, frozenset(own), mask), symbols)

    def produced(self, options: Any) -> tuple[str, ...]:
        """The results of a forward operation with these options."""
        names = tuple(each.name for each in self.states)
        if options.training:
            return (*names, "training_state")
        every = self.keeps_states is not None and getattr(options, self.keeps_states)
        return names if every else names[:1]

    def gate_order(self, options: Any) -> tuple[str, ...]:
        """The gates' names in the order in which they lie along the G axis."""
        if self.other_order is not None and getattr(options, self.other_order[0]):
            return self.other_order[1]
        return self.gates
