"""Prepared layers in plain NumPy: used without the native engine, and to check it.

The cell's equations run step by step; only the matrix products differ from type to type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..arrays import namespace_of
from ..cells.program import Leaf, on_arrays, program
from ..quantisation import quantise_rows, quantise_weight
from ..types import Array
from .parts import Part, rounded

Matrix: TypeAlias = Callable[[Array], Array]  # a row of values times a weight's transpose


def matrix(name: str, weight: Array, weights: str) -> Matrix:
    """x [N,K] to x W^T [N,rows] for a weight [rows,K] that is stored in these bits."""
    if weights != "int8":
        stored = rounded(weight) if weights == "bfloat16" else weight
        return lambda x: x @ stored.T
    small = quantise_weight("prepare", name, weight)

    def multiply(x: Array) -> Array:
        rows = quantise_rows(x)
        sums = rows.values.astype(np.int64) @ small.values.astype(np.int64).T
        scales: Array = rows.scale[..., None] * small.scale  # float32, as all that follows
        return sums.astype(np.float32) * scales

    return multiply


class ReferenceStack:
    """Layers, one after the other."""

    def __init__(self, parts: Sequence[Part], weights: str, single: bool) -> None:
        self._layers = [
            [_Direction(part, weights, index) for index in range(part.directions)] for part in parts
        ]
        self._parts = parts

    def run(
        self, x: Array, initial: list[list[Array]], masks: list[Array | None], lengths: list[int]
    ) -> tuple[Array, list[list[Array]]]:
        """x [T,N,I] to [T,N,D·H] with zeros past each row's length, and the last states."""
        steps, batch = x.shape[:2]
        output = np.zeros((steps, batch, self._parts[-1].width), np.float32)
        last = [[each.copy() for each in states] for states in initial]
        groups: dict[int, list[int]] = {}
        for row, length in enumerate(lengths):
            groups.setdefault(length, []).append(row)
        for length, rows in groups.items():
            value = x[:length, rows]
            for number, (part, layer) in enumerate(zip(self._parts, self._layers, strict=True)):
                mask = masks[number]
                before = [each[rows] for each in initial[number]]
                found = [
                    each.run(value, before, None if mask is None else mask[:length, rows])
                    for each in layer
                ]
                value = np.concatenate([steps for steps, _ in found], axis=-1)
                for k in range(len(part.cell.states)):
                    joined = np.concatenate([states[k] for _, states in found], axis=-1)
                    last[number][k][rows] = joined
            output[:length, rows] = value
        return output, last


class _Direction:
    """One direction of a layer."""

    def __init__(self, part: Part, weights: str, index: int) -> None:
        cell, hidden, count = part.cell, part.hidden, len(part.cell.gates)
        order = cell.gate_order(part.descriptor)
        self._part, self._index = part, index
        self._places = [order.index(gate) for gate in cell.gates]
        self._own_names = frozenset(each.name for each in cell.own if each.name in part.tensors)
        window = slice(index * count * hidden, (index + 1) * count * hidden)
        weight = part.tensors["recurrent_weight"].reshape(-1, hidden)[window]
        self._recurrent = {
            gate: matrix("recurrent_weight", weight[place * hidden :][:hidden], weights)
            for gate, place in zip(cell.gates, self._places, strict=True)
        }
        self._input: Matrix | None = None
        if "input_weight" in part.tensors:
            self._input = matrix("input_weight", part.tensors["input_weight"][window], weights)
        self._window = window
        bias = part.tensors.get("bias")
        self._bias = None if bias is None else bias.reshape(-1)[window]

    def run(
        self, x: Array, initial: list[Array], mask: Array | None
    ) -> tuple[Array, tuple[Array, ...]]:
        """The first state [T,N,H] of every step, in the caller's order, and the last states."""
        part, hidden, index = self._part, self._part.hidden, self._index
        cell, steps = part.cell, len(x)
        trace = cell.forward(part.descriptor, self._own_names, mask is not None, False)
        text, compute = program(trace.states), on_arrays(namespace_of(x))
        units = slice(index * hidden, (index + 1) * hidden)
        now = [state[:, units] for state in initial]
        gates = x[..., self._window] if self._input is None else self._input(x)
        if self._bias is not None:
            gates = gates + self._bias
        own = self._own()
        backwards = index == 1 or (part.directions == 1 and part.descriptor.reverse)
        found: list[Array] = []
        for t in reversed(range(steps)) if backwards else range(steps):

            def read(leaf: Leaf, t: int = t, now: list[Array] = now) -> Any:
                if leaf[0] == "x":
                    place = self._places[cell.gates.index(leaf[1])]
                    return gates[t][:, place * hidden :][:, :hidden]
                if leaf[0] == "before":
                    return now[trace.names.index(leaf[1])]
                if leaf[0] == "mask":
                    assert mask is not None
                    return mask[t][:, units]
                return own[leaf]

            with np.errstate(all="ignore"):
                now = list(text.run(read, compute, self._multiply))
            found.append(now[0])
        # Processing order is the caller's, except for the second of two directions.
        ordered = found[::-1] if index == 1 else found
        batch = (0, x.shape[1], hidden)
        return (np.stack(ordered) if ordered else np.zeros(batch, np.float32)), tuple(now)

    def _multiply(self, op: str, gates: tuple[str, ...], given: Sequence[Any]) -> Sequence[Any]:
        assert op == "product"
        return [self._recurrent[gate](given[0]) for gate in gates]

    def _own(self) -> dict[Leaf, Array]:
        part, hidden = self._part, self._part.hidden
        found: dict[Leaf, Array] = {}
        for each in part.cell.own:
            if each.name not in self._own_names:
                continue
            flat = part.tensors[each.name].reshape(part.directions, -1)[self._index]
            if not each.by_gate:
                found["own", each.name] = flat
                continue
            for gate, place in zip(part.cell.gates, self._places, strict=True):
                found["own", each.name, gate] = flat[place * hidden :][:hidden]
        return found
