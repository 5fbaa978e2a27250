"""One direction of a layer as the page shows it: gates and states by name, and one step back.

Whatever the model is, what is looked at are plain calls: one sequence, one direction, the time in
the order in which that direction reads it. T steps, N rows, I input features, H units, G gates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..arrays import NUMPY
from ..cells.definition import Cell
from ..cells.expressions import Expression, ordered
from ..cells.functions import FUNCTIONS, REDUCTIONS
from ..errors import OptionError, ShapeError, refusal
from ..extensions import in_the_table
from ..functional import run
from ..layout import bind, brackets
from ..operations import Operation, operations_of
from ..types import Array

# Functions of one value, but no activations.
_OPERATORS = frozenset({"negative", "none"}) | REDUCTIONS


@dataclass(frozen=True, eq=False)
class Call:
    """A layer as a call of its operation: the tensors by name, without the source."""

    operation: Operation
    descriptor: Any
    tensors: Mapping[str, Array]

    def __post_init__(self) -> None:
        for name in ("mask", "resets"):
            if self.tensors.get(name) is not None:
                expected = "a layer without it: the page shows one sequence, without dropout"
                raise OptionError(refusal("inspect", name, expected, "an array"))
        if self.operation.cell.values:
            got = f"{self.operation.name} with {' '.join(self.operation.cell.values)}"
            raise OptionError(refusal("inspect", "cell", "a cell without values per step", got))

    def directions(self, source: Array) -> list[Scan]:
        """The one or two directions over a source [T,I]."""
        d, weight = self.descriptor, self.tensors.get("input_weight")
        # Checked beside a source that fits: what came is checked where it is projected.
        fitting = source if weight is None else np.zeros((1, weight.shape[-1]), source.dtype)
        given = {**self.tensors, "source": fitting[:, None]}
        inputs = tuple(map(given.get, self.operation.inputs))
        bind(self.operation, *in_the_table(self.operation, inputs, d, d.heads))
        count = 2 if d.bidirectional else 1
        plain = replace(d, reverse=False, bidirectional=False, training=True)
        scans = []
        for k in range(count):
            tensors = {name: _part(name, a, k, count) for name, a in self.tensors.items()}
            backwards = k == 1 or (count == 1 and d.reverse)
            scans.append(Scan(self.operation, plain, tensors, source, backwards, (k, count)))
        return scans


def _part(name: str, array: Array, index: int, count: int) -> Array:
    """One direction's part of a tensor: of [2,…], or of what has both one after the other."""
    if count == 1:
        return array
    if name.startswith("init_"):
        parts = np.split(array, 2, -1)
    elif name == "recurrent_weight" or (array.ndim == 2 and name != "input_weight"):
        parts = list(array)
    else:
        parts = np.split(array, 2)
    return parts[index]


class Gate(NamedTuple):
    """What is known of a gate's values."""

    function: str  # that gave them; "" if they are those before it
    apply: str  # still to be applied to what the operation saves, or ""


class Scan:
    """One direction over one sequence. Arrays are in the order in which it reads the steps."""

    def __init__(
        self,
        operation: Operation,
        descriptor: Any,
        tensors: Mapping[str, Array],
        source: Array,
        backwards: bool,
        direction: tuple[int, int],
    ) -> None:
        self.cell: Cell = operation.cell
        self.descriptor, self.backwards, self.direction = descriptor, backwards, direction
        self._forward, self._gradients = operations_of(self.cell)
        self.input_weight = tensors.get("input_weight")
        self.recurrent_weight = tensors["recurrent_weight"]
        self._own = {e.name: tensors[e.name] for e in self.cell.own if e.name in tensors}
        self.source = self._projected(self.in_order(source), tensors.get("bias"))  # [T,G·H]
        self.units = self.source.shape[1] // len(self.cell.gates)
        self.initial = {
            e.name: tensors[e.initial].reshape(1, self.units)
            if e.initial in tensors
            else np.full((1, self.units), e.start, self.source.dtype)
            for e in self.cell.states
        }

    def _projected(self, source: Array, bias: Array | None) -> Array:
        wide = source.shape[1]
        if self.input_weight is None:  # already projected, both directions side by side
            index, count = self.direction
            rows = wide // count
            source = source[:, index * rows : (index + 1) * rows]
        else:
            if wide != self.input_weight.shape[1]:
                expected = f"[T,I] = [T,{self.input_weight.shape[1]}]"
                raise ShapeError(refusal("inspect", "source", expected, brackets(source.shape)))
            source = source @ self.input_weight.T
        return np.ascontiguousarray(source if bias is None else source + bias)

    def in_order(self, array: Array) -> Array:
        """Steps in the order in which this direction reads them; and back again."""
        return array[::-1] if self.backwards else array

    @cached_property
    def _results(self) -> dict[str, Array]:
        tensors = {"source": self.source[:, None], "recurrent_weight": self.recurrent_weight}
        tensors |= self._own
        tensors |= {e.initial: self.initial[e.name] for e in self.cell.states}
        inputs = tuple(map(tensors.get, self._forward.inputs))
        found: Any = run(self._forward, inputs, self.descriptor, None)
        return {name: value[:, 0] for name, value in found._asdict().items()}

    @property
    def saved(self) -> Array:
        """What the operation keeps for its gradients: zState [T,G·H]."""
        return self._results["training_state"]

    @cached_property
    def states(self) -> dict[str, Array]:
        """Every state [T,H] after each step, by its name in equations."""
        return {e.symbol: self._results[e.name] for e in self.cell.states}

    @cached_property
    def gates(self) -> dict[str, Array]:
        """Every gate [T,H], in the order in which zState has them."""
        found = {}
        for k, (name, gate) in enumerate(self.gate_kinds.items()):
            values = self.saved[:, k * self.units : (k + 1) * self.units]
            if gate.apply:
                values = FUNCTIONS[gate.apply].apply(NUMPY, values)
            found[name] = values
        return found

    @cached_property
    def gate_kinds(self) -> dict[str, Gate]:
        """A gate is what its one function gives, if the cell saves it or what goes into it."""
        trace = self._trace
        users: dict[Expression, list[Expression]] = {}
        for each in ordered(trace.states):
            for argument in each.args:
                users.setdefault(argument, []).append(each)
        kinds = {}
        for name, value in zip(trace.gates, trace.saved, strict=True):
            uses = users.get(value, [])
            if _is_activation(value):
                kinds[name] = Gate(value.op, "")
            elif len(uses) == 1 and _is_activation(uses[0]) and uses[0] not in trace.states:
                kinds[name] = Gate(uses[0].op, uses[0].op)
            else:
                kinds[name] = Gate("", "")
        return {name: kinds[name] for name in self.cell.gate_order(self.descriptor)}

    @cached_property
    def _trace(self) -> Any:
        return self.cell.forward(self.descriptor, frozenset(self._own), False)

    def retention(self) -> dict[str, Array]:
        """By state, how much of it each unit keeps from step to step [T-1,H]: the derivative of the
        new value by the old one, but for what goes through R. For an LSTM's c the forget gate, for
        a GRU the update gate. Empty for a cell that needs the products themselves, as layer norm
        does, and without those states that are kept through R alone."""
        if len(self.source) < 2 or any(
            each.op == "product" for each in ordered(self._trace.states, self._trace.saved)
        ):
            return {}
        # With an R of zeros the gradient operation leaves out what goes through it.
        none = np.zeros_like(self.recurrent_weight)
        found = {}
        for symbol, values in self.states.items():
            ones = {symbol: np.ones_like(values[1:])}
            _, kept = self.step_back(slice(1, None), slice(0, -1), len(values) - 1, ones, none)
            if kept[symbol].any():
                found[symbol] = kept[symbol]
        return found

    def step_back(
        self,
        at: slice,
        before: slice | None,
        rows: int,
        incoming: Mapping[str, Array],
        recurrent_weight: Array | None = None,
    ) -> tuple[Array, dict[str, Array]]:
        """The gradient operation over one step: those of the gates before their activation
        [N,G·H], and of the states before the step [N,H] by symbol, from those after it.

        ``at``: the step, the same for all rows, or one step per row; ``before``: the one before, or
        None for the initial state.
        """

        def as_rows(values: Array) -> Array:
            return np.broadcast_to(values, (rows, values.shape[1]))

        results = {name: as_rows(value[at])[None] for name, value in self._results.items()}
        zeros = np.zeros((rows, self.units), self.source.dtype)
        tensors: dict[str, Any] = {
            "source": as_rows(self.source[at])[None],
            "recurrent_weight": self.recurrent_weight
            if recurrent_weight is None
            else recurrent_weight,
            **self._own,
        }
        for name, result in self.cell.fed_back.items():
            tensors[name] = np.ascontiguousarray(results[result])
        for e in self.cell.states:
            last = self.initial[e.name] if before is None else self._results[e.name][before]
            tensors[e.initial] = np.ascontiguousarray(as_rows(last))
            tensors[e.gradient] = np.ascontiguousarray(incoming.get(e.symbol, zeros))[None]
        inputs = tuple(map(tensors.get, self._gradients.inputs))
        found: Any = run(self._gradients, inputs, replace(self.descriptor, training=False), None)
        return found.source[0], {e.symbol: getattr(found, e.initial) for e in self.cell.states}


def _is_activation(value: Expression) -> bool:
    return value.op in FUNCTIONS and len(value.args) == 1 and value.op not in _OPERATORS
