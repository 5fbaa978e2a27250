"""The three stages of every recurrent operation: project → scan → contract.

Written once, for every cell and for the arrays of any library that ``arrays`` knows. No array is
written to, so a library that differentiates can differentiate through it, as often as it likes.
T time, N batch, I input features, H hidden units, G gates, D directions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from .arrays import Namespace, namespace_of
from .cells.definition import State
from .cells.derivation import Backward
from .cells.expressions import Expression
from .cells.program import Leaf, no_products, on_arrays, program
from .layout import Layout
from .types import Array, Value

States: TypeAlias = tuple[Value, ...]  # one for each of the cell's states, in their order


class Steps(NamedTuple):
    """What the gradient operation knows: of one step, or of all with a leading T axis."""

    mask: Value | None  # m[t] [N,H]; None: none was passed
    reset: Value | None  # [N,1], above 0 where a new sequence begins; None likewise
    before: States  # the states before the step, [N,H] each
    after: States  # the states after it
    saved: Value  # zState[t] [N,G,H]


def run(layout: Layout, values: Sequence[Value | None]) -> tuple[Value | None, ...]:
    """A checked call: inputs in the operation's order to results in the published order."""
    call = Call(layout, values)
    return call.results(_backward(call) if layout.operation.is_gradient else _forward(call))


def _forward(call: Call) -> dict[str, Value]:
    """Project, then scan: every state after every step, and the training state."""
    gates = project(call)
    found = [_scan(call, index, gates) for index in range(call.layout.directions)]
    return {name: call.joined(name, [each[name] for each in found]) for name in found[0]}


def _backward(call: Call) -> dict[str, Value]:
    """Scan backwards, then contract: the gradient of every input that was passed."""
    found = [_scan_backward(call, index) for index in range(call.layout.directions)]
    parts = {name: call.joined(name, [each[name] for each in found]) for name in found[0]}
    results = {**parts, **contract(call, parts["gates"])}
    shapes = {name: call.given[name].shape for name in call.layout.result_names()}
    return {name: results[name].reshape(shape) for name, shape in shapes.items()}


def project(call: Call) -> Value:
    """gates_x = x W^T + b for all steps and directions, [T,N,D·G·H]."""
    gates, weight, bias = (call.get(name) for name in ("source", "input_weight", "bias"))
    if weight is not None:
        gates = product(gates, weight.T)
    return gates if bias is None else gates + bias


def _scan(call: Call, index: int, gates: Value) -> dict[str, Value]:
    """One direction, step by step: each state [T,N,H] and the training state [T,N,G·H]."""
    cell, weights, own = call.layout.cell_kind, call.weights(index), call.own(index)
    trace = cell.forward(*call.form)
    text = program([*trace.states, *trace.saved])
    count, row = len(trace.states), call.by_state[1:]

    def step(now: States, at: tuple[Value, Any, Any]) -> tuple[States, tuple[Value, ...]]:
        gates_x, mask, reset = at  # [N,G,H], [N,H], [N,1]

        def read(leaf: Leaf) -> Value:
            if leaf[0] == "x":
                return weights.gate(gates_x, leaf[1])
            if leaf[0] == "before":
                return now[trace.names.index(leaf[1])]
            if leaf[0] in ("mask", "reset"):
                return mask if leaf[0] == "mask" else reset
            return own[leaf]

        found = text.run(read, call.compute, weights.multiply)
        states = tuple(found[:count])
        # A gate may be a product of parameters alone, [H].
        saved = [
            each if each.ndim == 2 else call.xp.broadcast_to(each, row) for each in found[count:]
        ]
        return states, (weights.stacked(saved, -2), *states)

    shapes = [call.by_gate, *(call.by_state for _ in cell.states)]
    projected = call.part("gates", gates, index).reshape(call.by_gate)
    inputs = (projected, call.mask(index), call.resets(index))
    _, (saved, *states) = call.scan(step, call.initial(index), inputs, shapes)
    return {
        "training_state": saved.reshape(call.flat),
        **dict(zip(trace.names, states, strict=True)),
    }


def _scan_backward(call: Call, index: int) -> dict[str, Value]:
    """One direction, last step first: gradients of gates, parameters and initial states."""
    cell, weights, own = call.layout.cell_kind, call.weights(index), call.own(index)
    back = cell.backward(*call.form)
    at = call.steps_of(back, index)
    every, last = zip(*(call.gradients(state, index) for state in cell.states), strict=True)
    names = [state.name for state in cell.states]
    # A step gives the gradients of the states before it, and keeps those of the gates, of the
    # products with R, and of the cell's own parameters.
    before = [back.inputs.get(("before", name)) for name in names]
    carried = [each for each in before if each is not None]
    kept = list(
        dict.fromkeys(
            [each for leaf, each in back.inputs.items() if leaf[0] in ("x", "own")]
            + list(back.products.values())
        )
    )
    text = program([*carried, *kept])
    zeros = call.xp.zeros(call.by_state[1:], call.dtype)

    def step(now: States, each: tuple[Steps, States]) -> tuple[States, tuple[Value, ...]]:
        at, outside = each
        pairs = zip(now, outside, strict=True)
        now = tuple(later if here is None else later + here for later, here in pairs)
        known = call.reader(at, own, weights)

        def read(leaf: Leaf) -> Value:
            return now[names.index(leaf[1])] if leaf[0] == "gradient" else known(leaf)

        found = text.run(read, call.compute, weights.multiply)
        passed = iter(found[: len(carried)])
        states = tuple(zeros if each is None else next(passed) for each in before)
        return states, tuple(found[len(carried) :])

    shapes = [call.by_state] * len(kept)
    first, steps = call.scan(step, last, (at, every), shapes, reverse=True)
    gradients = _Gradients(call, back, dict(zip(kept, steps, strict=True)), weights)
    weights = call.weights(index)  # JAX lets nothing out of a scan, such as the blocks it made
    operands = program(back.operands).run(
        call.reader(at, own, weights), call.compute, weights.multiply
    )
    return {
        "gates": gradients.of_gates().reshape(call.flat),
        "recurrent_weight": gradients.of_weight(operands),
        **{name: gradients.of_own(name) for name, *_ in cell.own},
        **dict(zip([state.initial for state in cell.states], first, strict=True)),
    }


class _Gradients(NamedTuple):
    """What the steps of one direction kept, [T,N,H] each, as gradients of its inputs."""

    call: Call
    back: Backward
    steps: Mapping[Expression, Value]
    weights: _Weights

    def of_gates(self) -> Value:
        """[T,N,G,H]."""
        zeros = self.call.xp.zeros(self.call.by_state, self.call.dtype)
        found = [self.back.inputs.get(("x", gate)) for gate in self.weights.slots]
        return self.weights.stacked([zeros if e is None else self.steps[e] for e in found], -2)

    def of_weight(self, operands: Sequence[Value]) -> Value:
        """[heads,G,d,d]: the gradients of the products times what R multiplied."""
        xp, heads = self.call.xp, self.weights.heads
        units = self.call.by_state[2] // heads
        zeros = xp.zeros((heads, units, units), self.call.dtype)
        found = dict.fromkeys(self.weights.slots, zeros)
        for operand, value in zip(self.back.operands, operands, strict=True):
            pairs = {g: d for (g, used), d in self.back.products.items() if used is operand}
            gates = self.weights.in_order(pairs)
            left = [self.weights.by_head(self.steps[pairs[gate]]) for gate in gates]
            whole = xp.broadcast_to(value, self.call.by_state)  # also a parameter, [H]
            right = self.weights.by_head(whole)
            part = xp.stack(
                [outer_sum(xp.stack([g[k] for g in left], -2), right[k]) for k in range(heads)], 0
            )  # [heads,g,d,d]
            for k, gate in enumerate(gates):
                found[gate] = part[:, k] if found[gate] is zeros else found[gate] + part[:, k]
        return self.weights.stacked(list(found.values()), 1)

    def of_own(self, name: str) -> Value:
        """[H], or [G,H] of a parameter with a vector per gate."""
        xp = self.call.xp
        zeros = xp.zeros(self.call.by_state[2:], self.call.dtype)

        def total(*leaf: str) -> Value:
            each = self.back.inputs.get(leaf)
            return zeros if each is None else xp.total(self.steps[each], (0, 1))

        if not next(own.by_gate for own in self.call.layout.cell_kind.own if own.name == name):
            return total("own", name)
        return self.weights.stacked([total("own", name, gate) for gate in self.weights.slots], 0)


def contract(call: Call, gates: Value) -> dict[str, Value]:
    """From the gates' gradient [T,N,D·G·H] to what project() had."""
    rows = tuple(range(gates.ndim - 1))  # steps and batch, or packed
    found = {"source": gates, "bias": call.xp.total(gates, rows)}
    weight = call.get("input_weight")
    if weight is not None:
        found["source"] = product(gates, weight)
        found["input_weight"] = outer_sum(gates, call.get("source"))
    return found


class Call:
    """The inputs of a call, direction by direction, in the arithmetic's type: float32 at least."""

    def __init__(self, layout: Layout, values: Sequence[Value | None]) -> None:
        pairs = zip(layout.operation.inputs, values, strict=True)
        self.layout = layout
        self.given = {name: value for name, value in pairs if value is not None}
        self.xp = namespace_of(self.given["source"])
        self.compute = on_arrays(self.xp)
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

    def results(self, found: Mapping[str, Value]) -> tuple[Value | None, ...]:
        """In the published order and the type of the source; None where one is not asked for."""
        storage, made = self.given["source"].dtype, self.layout.result_names()
        return tuple(
            self.xp.astype(found[name], storage, copy=False) if name in made else None
            for name in self.layout.operation.result._fields
        )

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

    @property
    def form(self) -> tuple[Any, frozenset[str], bool, bool]:
        """What the equations of this call depend on."""
        own = frozenset(name for name, *_ in self.layout.cell_kind.own if name in self.given)
        return self.layout.descriptor, own, "mask" in self.given, "resets" in self.given

    def weights(self, index: int) -> _Weights:
        """R of one direction."""
        heads = self.layout.descriptor.heads
        units = self.by_state[2] // heads
        weight = self.layout.direction("recurrent_weight", self.get("recurrent_weight"), index)
        slots = dict(zip(self.layout.cell_kind.gates, self.layout.slots, strict=True))
        return _Weights(self.xp, weight.reshape(heads, self.gates, units, units), slots)

    def own(self, index: int) -> dict[Leaf, Value]:
        """Those of the cell's own parameters that were passed, [H] each, for one direction."""
        found: dict[Leaf, Value] = {}
        for name, _, by_gate, *_ in self.layout.cell_kind.own:
            value = self.get(name)
            if value is None:
                continue
            part = self.layout.direction(name, value.reshape(self.layout.shape(name)), index)
            if not by_gate:
                found["own", name] = part
                continue
            rows = part.reshape(self.gates, self.by_state[2])
            for gate, slot in zip(self.layout.cell_kind.gates, self.layout.slots, strict=True):
                found["own", name, gate] = rows[slot]
        return found

    def reader(
        self, at: Steps, own: Mapping[Leaf, Value], weights: _Weights
    ) -> Callable[[Leaf], Value]:
        """The value of a leaf at one step, or at all steps."""
        names = [state.name for state in self.layout.cell_kind.states]

        def read(leaf: Leaf) -> Value:
            kind, *rest = leaf
            if kind == "saved":
                return weights.gate(at.saved, rest[0])
            if kind in ("before", "after"):
                states = at.before if kind == "before" else at.after
                return states[names.index(rest[0])]
            if kind in ("mask", "reset"):
                return at.mask if kind == "mask" else at.reset
            return own[leaf]

        return read

    def mask(self, index: int) -> Value | None:
        """The mask of one direction [T,N,H], or None."""
        mask = self.get("mask")
        if mask is not None:
            mask = self.xp.broadcast_to(mask, self.layout.shape("mask"))
        return self.part("mask", mask, index)

    def resets(self, index: int) -> Value:
        """The resets of one direction [T,N,1], or None."""
        return self.part("resets", self.get("resets"), index)

    def initial(self, index: int) -> States:
        """The states before the first step, [N,H] each; zeros where one was not passed."""
        names = [state.initial for state in self.layout.cell_kind.states]
        given = [self.part(name, self.get(name), index) for name in names]
        zeros = self.xp.zeros(self.by_state[1:], self.dtype)
        return tuple(zeros if value is None else value for value in given)

    def steps_of(self, back: Backward, index: int) -> Steps:
        """What the forward operation left, for all steps of one direction."""
        cell = self.layout.cell_kind

        def fed(name: str) -> Value:
            return self.part(name, self.get(name), index)

        saved = fed("z_state").reshape(self.by_gate)
        mask = self.mask(index)
        after = tuple(fed(state.output) for state in cell.states if state.name in cell.fed_states)
        if back.first_state is not None:
            weights, own = self.weights(index), self.own(index)
            known = Steps(mask, None, (), (None, *after), saved)
            read = self.reader(known, own, weights)
            (h,) = program([back.first_state]).run(read, self.compute, no_products)
            after = (h, *after)
        pairs = zip(self.initial(index), after, strict=True)
        before = tuple(self._shifted(first, steps) for first, steps in pairs)
        return Steps(mask, self.resets(index), before, after, saved)

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


class _Weights:
    """The recurrent weight of one direction by gate; gate orders cost no copy."""

    def __init__(self, xp: Namespace, weight: Value, slots: Mapping[str, int]) -> None:
        self._xp, self._weight = xp, weight  # [heads,G,d,d]
        self.heads = weight.shape[0]
        self.slots = slots  # the place of each gate along the G axis, gates in canonical order
        self._blocks: dict[tuple[str, ...], Value] = {}

    def gate(self, stacked: Value, gate: str) -> Value:
        """One gate of [N,G,H] or [T,N,G,H]."""
        return stacked[..., self.slots[gate], :]

    def stacked(self, gates: Sequence[Value], axis: int) -> Value:
        """The inverse: canonical gates in their places along a new axis."""
        order = sorted(range(len(gates)), key=list(self.slots.values()).__getitem__)
        return self._xp.stack([gates[k] for k in order], axis)

    def in_order(self, gates: Sequence[str] | Mapping[str, Any]) -> list[str]:
        """Gates as they lie along the G axis."""
        return sorted(gates, key=self.slots.__getitem__)

    def multiply(self, op: str, gates: tuple[str, ...], given: Sequence[Value]) -> Sequence[Value]:
        """The products of an operand [N,H] with R, one per gate, or their gradients back."""
        order = self.in_order(gates)
        block = self._block(tuple(order))  # [heads,g·d,d]
        if op == "product":
            (operand,) = given
            heads = self.by_head(operand)  # [heads,…,d]
            found = self._each(product, heads, self._turned(block))  # [heads,…,g·d]
            split = found.reshape((*found.shape[:-1], len(gates), heads.shape[-1]))
            return [self._whole(split[..., order.index(gate), :]) for gate in gates]
        heads = [self.by_head(given[gates.index(gate)]) for gate in order]
        stacked = heads[0] if len(heads) == 1 else self._xp.concat(heads, -1)
        return [self._whole(self._each(_times, stacked, block))]

    def by_head(self, value: Value) -> Value:
        """[heads,…,d] from […,H]."""
        if self.heads == 1:
            return value[None]
        split = value.reshape((*value.shape[:-1], self.heads, value.shape[-1] // self.heads))
        return self._xp.moveaxis(split, -2, 0)

    def _whole(self, value: Value) -> Value:
        """[…,H] from [heads,…,d]."""
        if self.heads == 1:
            return value[0]
        split = self._xp.moveaxis(value, 0, -2)
        return split.reshape((*split.shape[:-2], split.shape[-2] * split.shape[-1]))

    def _each(self, multiply: Any, left: Value, right: Value) -> Value:
        """The products of every head's matrices; of one unit each, numbers."""
        if self.heads == 1:
            return multiply(left[0], right[0])[None]
        if right.shape[-2] == 1:
            return left * right.reshape((self.heads, *(1,) * (left.ndim - 2), right.shape[-1]))
        flat = left.reshape((self.heads, math.prod(left.shape[1:-1]), left.shape[-1]))
        return (flat @ right).reshape((*left.shape[:-1], right.shape[-1]))

    def _turned(self, block: Value) -> Value:
        return self._xp.moveaxis(block, -1, -2)

    def _block(self, order: tuple[str, ...]) -> Value:
        """R of these gates, one below the other, by head."""
        if order not in self._blocks:
            places = [self.slots[gate] for gate in order]
            first, units = places[0], self._weight.shape[-1]
            together = places == list(range(first, first + len(places)))
            part = (
                self._weight[:, first : first + len(places)]
                if together
                else (self._xp.stack([self._weight[:, place] for place in places], 1))
            )
            self._blocks[order] = part.reshape((self.heads, len(places) * units, units))
        return self._blocks[order]


def _times(left: Value, right: Value) -> Value:
    return left @ right


def outer_sum(left: Value, right: Value) -> Value:
    """Sum over time and batch of left ⊗ right: [T,N,…] and [T,N,H] give […,H]; packed, [M,…]."""
    rows, width = math.prod(right.shape[:-1]), right.shape[-1]
    kept = left.shape[right.ndim - 1 :]
    flat = left.reshape(rows, math.prod(kept))
    return product(flat.T, right.reshape(rows, width)).reshape(*kept, width)


_LARGE = 2**29  # floating-point operations, a fraction of a second


def product(left: Value, right: Value) -> Value:
    """left @ right, […,K] and [K,H]. NumPy hears Ctrl-C only between its calls, so that a large
    product goes to it in parts."""
    if not isinstance(left, np.ndarray) or 2 * left.size * right.shape[1] < _LARGE:
        return left @ right
    out = np.empty((*left.shape[:-1], right.shape[1]), np.result_type(left, right))
    _multiply(left, right, out)
    return out


def _multiply(left: Array, right: Array, out: Array) -> None:
    if left.ndim == 3 and len(left) == 1:
        _multiply(left[0], right, out[0])
    elif len(left) == 1 or 2 * left.size * right.shape[1] < _LARGE:
        np.matmul(left, right, out=out)
    else:
        half = len(left) // 2
        _multiply(left[:half], right, out[:half])
        _multiply(left[half:], right, out[half:])
