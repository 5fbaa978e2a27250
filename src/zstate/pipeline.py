"""The three stages of every recurrent operation: project → scan → contract.

Written once, for every cell and for the arrays of any library that ``arrays`` knows. No array is
written to, so a library that differentiates can differentiate through it, as often as it likes.
T time, N batch, I input features, H hidden units, G gates, D directions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .arrays import namespace_of
from .cells.activations import ACTIVATIONS
from .cells.cell import Direction, State, States, Steps, outer_sum
from .layout import SHAPES, Layout
from .types import Value


def run(layout: Layout, values: Sequence[Value | None]) -> tuple[Value | None, ...]:
    """A checked call: inputs in the operation's order to results in the published order."""
    call = _Call(layout, values)
    results = _backward(call) if layout.operation.is_gradient else _forward(call)
    storage, made = call.given["source"].dtype, layout.result_names()
    return tuple(
        call.xp.astype(results[name], storage, copy=False) if name in made else None
        for name in layout.operation.result._fields
    )


def _forward(call: _Call) -> dict[str, Value]:
    """Project, then scan: every state after every step, and the training state."""
    gates = _project(call)
    found = [_scan(call, index, gates) for index in range(call.layout.directions)]
    return {name: call.joined(name, [each[name] for each in found]) for name in found[0]}


def _backward(call: _Call) -> dict[str, Value]:
    """Scan backwards, then contract: the gradient of every input that was passed."""
    found = [_scan_backward(call, index) for index in range(call.layout.directions)]
    parts = {name: call.joined(name, [each[name] for each in found]) for name in found[0]}
    results = {**parts, **_contract(call, parts["gates"])}
    shapes = {name: call.given[name].shape for name in call.layout.result_names()}
    return {name: results[name].reshape(shape) for name, shape in shapes.items()}


def _project(call: _Call) -> Value:
    """gates_x = x W^T + b for all steps and directions, [T,N,D·G·H]."""
    gates, weight, bias = (call.get(name) for name in ("source", "input_weight", "bias"))
    if weight is not None:
        gates = gates @ weight.T
    return gates if bias is None else gates + bias


def _scan(call: _Call, index: int, gates: Value) -> dict[str, Value]:
    """One direction, step by step: each state [T,N,H] and the training state [T,N,G·H]."""
    cell, d = call.layout.cell_kind, call.direction(index)
    gates_x = call.part("gates", gates, index).reshape(call.by_gate)

    def step(now: States, at: tuple[Value, Value | None]) -> tuple[States, tuple[Value, ...]]:
        states, saved = cell.forward(d, *at, now)
        return states, (saved, *states)

    shapes = [call.by_gate, *(call.by_state for _ in cell.states)]
    inputs = (gates_x, call.mask(index))
    _, (saved, *states) = call.scan(step, call.initial(index), inputs, shapes)
    names = [state.name for state in cell.states]
    return {"training_state": saved.reshape(call.flat), **dict(zip(names, states, strict=True))}


def _scan_backward(call: _Call, index: int) -> dict[str, Value]:
    """One direction, last step first: gradients of gates, parameters and initial states."""
    cell, d = call.layout.cell_kind, call.direction(index)
    at = call.steps_of(d, index)
    every, last = zip(*(call.gradients(state, index) for state in cell.states), strict=True)

    def step(now: States, each: tuple[Steps, States]) -> tuple[States, tuple[Value]]:
        at, own = each
        pairs = zip(now, own, strict=True)
        now = tuple(later if here is None else later + here for later, here in pairs)
        gradient, before = cell.backward(d, at, now)
        return before, (gradient,)

    before, (gates,) = call.scan(step, last, (at, every), [call.by_gate], reverse=True)
    names = [state.initial for state in cell.states]
    found = {"gates": gates.reshape(call.flat), **cell.parameters(d, at, gates)}
    return {**found, **dict(zip(names, before, strict=True))}


def _contract(call: _Call, gates: Value) -> dict[str, Value]:
    """From the gates' gradient [T,N,D·G·H] to what project() had."""
    found = {"source": gates, "bias": call.xp.total(gates, (0, 1))}
    weight = call.get("input_weight")
    if weight is not None:
        found["source"] = gates @ weight
        found["input_weight"] = outer_sum(gates, call.get("source"))
    return found


class _Call:
    """The inputs of a call, direction by direction, in the arithmetic's type: float32 at least."""

    def __init__(self, layout: Layout, values: Sequence[Value | None]) -> None:
        pairs = zip(layout.operation.inputs, values, strict=True)
        self.layout = layout
        self.given = {name: value for name, value in pairs if value is not None}
        self.xp = namespace_of(self.given["source"])
        self.dtype = self.xp.dtype("float64" if layout.dtype == "float64" else "float32")
        self.steps, batch, _, hidden = layout.size
        self.gates = len(layout.cell_kind.gates)
        self.by_state = (self.steps, batch, hidden)
        self.by_gate = (self.steps, batch, self.gates, hidden)
        self.flat = (self.steps, batch, self.gates * hidden)

    def get(self, name: str) -> Value | None:
        """An input, or None if it was not passed."""
        value = self.given.get(name)
        return None if value is None else self.xp.astype(value, self.dtype, copy=False)

    def part(self, name: str, value: Value | None, index: int) -> Value:
        """One direction of a tensor, its steps in processing order; None of None."""
        if value is None:
            return None
        return self._turned(name, self.layout.direction(name, value, index), index)

    def joined(self, name: str, parts: list[Value]) -> Value:
        """The inverse of ``part``: all directions, steps in the caller's order."""
        turned = [self._turned(name, part, index) for index, part in enumerate(parts)]
        if len(turned) == 1 and turned[0] is parts[0]:
            return turned[0]
        # One direction that was turned may be a view against the grain; joined, it is none.
        axis = self.layout.direction_axis(name)
        return self.xp.stack(turned, 0) if axis is None else self.xp.concat(turned, axis)

    def _turned(self, name: str, value: Value, index: int) -> Value:
        by_step = value.ndim == 3 and name != "recurrent_weight"
        backwards = by_step and self.layout.is_backwards(name, index)
        return self.xp.flip(value, (0,)) if backwards else value

    def scan(
        self,
        step: Callable[[States, Any], tuple[States, tuple[Value, ...]]],
        first: States,
        inputs: Any,
        shapes: Sequence[tuple[int, ...]],
        reverse: bool = False,
    ) -> tuple[States, tuple[Value, ...]]:
        """The states after the last step, and what the steps gave, [T,N,…] of these shapes."""
        if self.steps:
            last, steps = self.xp.scan(step, first, inputs, self.steps, reverse)
            return last, steps
        return first, tuple(self.xp.zeros(shape, self.dtype) for shape in shapes)

    def direction(self, index: int) -> Direction:
        """What the steps of one direction share."""
        layout, hidden = self.layout, self.by_state[2]
        own = {}
        for name, _ in layout.cell_kind.own:
            value = self.get(name)
            if value is not None:
                part = layout.direction(name, value.reshape(layout.shape(name)), index)
                own[name] = part.reshape(-1, hidden) if "G" in SHAPES[name] else part
        weight = layout.direction("recurrent_weight", self.get("recurrent_weight"), index)
        activations = [ACTIVATIONS[kind].on(self.xp) for kind in layout.descriptor.activations]
        return Direction(
            xp=self.xp,
            options=layout.descriptor,
            recurrent_weight=weight.reshape(self.gates, hidden, hidden),
            own=own,
            slots=layout.slots,
            activations=tuple(activations),
        )

    def mask(self, index: int) -> Value | None:
        """The mask of one direction [T,N,H], or None."""
        mask = self.get("mask")
        if mask is not None:
            mask = self.xp.broadcast_to(mask, self.layout.shape("mask"))
        return self.part("mask", mask, index)

    def initial(self, index: int) -> States:
        """The states before the first step, [N,H] each; zeros where one was not passed."""
        names = [state.initial for state in self.layout.cell_kind.states]
        given = [self.part(name, self.get(name), index) for name in names]
        zeros = self.xp.zeros(self.by_state[1:], self.dtype)
        return tuple(zeros if value is None else value for value in given)

    def steps_of(self, d: Direction, index: int) -> Steps:
        """What the forward operation left, for all steps of one direction."""
        cell = self.layout.cell_kind

        def fed(name: str) -> Value:
            return self.part(name, self.get(name), index)

        saved = fed("z_state").reshape(self.by_gate)
        others = tuple(fed(state.output) for state in cell.states[1:])
        first = cell.states[0].output
        h = fed(first) if cell.outputs is None else cell.outputs(d, saved, others)
        after = (h, *others)
        pairs = zip(self.initial(index), after, strict=True)
        before = tuple(self._shifted(first, steps) for first, steps in pairs)
        return Steps(self.mask(index), before, after, saved)

    def _shifted(self, first: Value, steps: Value) -> Value:
        """What stood before each step: first, steps[0], …, steps[T-2]."""
        return self.xp.concat([first[None], steps[:-1]], 0)[: self.steps]

    def gradients(self, state: State, index: int) -> tuple[Value | None, Value]:
        """Of a state at every step, [T,N,H] or None, and of the last one, [N,H]."""
        each = self.part(state.gradient, self.get(state.gradient), index)
        last = None
        if state.last_gradient != state.gradient:
            last = self.part(state.last_gradient, self.get(state.last_gradient), index)
        elif each is not None and not (each.ndim == 3 and each.shape[0] == self.steps):
            each, last = None, each
        zeros = self.xp.zeros(self.by_state[1:], self.dtype)
        # Added, not taken: without a step it is a result, which must not be the caller's array.
        return each, zeros if last is None else zeros + last.reshape(zeros.shape)
