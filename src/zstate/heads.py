"""Heads on the engines: R of H = heads·d units is one block [G·d,d] per head.

The units of a head lie side by side in every state, and so do they within every gate of x. Heads
do not see each other: the CPU's engine computes one after the other. The input is projected, and
its weight's gradient summed, for the whole layer. Heads of one unit, a diagonal R, are a parameter
of a cell without products (``diagonal``). Where a cell takes means over the units of all heads,
engines compute one head, whose R has zeros between the blocks (``in_one_head``).
T time, N batch, G gates, D directions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TypeAlias

from .arrays import namespace_of
from .cells.checks import DIAGONAL
from .cells.definition import Cell, Parameter
from .cells.expressions import Expression, ordered
from .cells.tracing import Context, Named, Step, Weight, as_step
from .errors import EquationError
from .layout import Layout
from .operations import operations_of
from .pipeline import Call
from .types import Value

# A call of a layout without heads, and how many blocks R is made of: inputs by name to results by
# name.
Run: TypeAlias = Callable[[Layout, int, dict[str, Value]], Mapping[str, Value]]


def twin_of(layout: Layout) -> Cell | None:
    """The cell that by_head() computes instead: for heads of one unit, with R's diagonal as a
    parameter. None where heads are computed one by one."""
    is_diagonal = layout.size[3] == layout.descriptor.heads
    return diagonal(layout.cell_kind) if is_diagonal else None


def on_engine(layout: Layout) -> Layout:
    """The layout of the calls by which by_head() computes one."""
    twin = twin_of(layout)
    if twin is not None:
        return _with_diagonal(layout, twin)
    return _with_one_head(layout) if reduces_rows(layout) else _inner(layout)


def by_head(layout: Layout, values: tuple[Value | None, ...], run: Run) -> tuple[Value | None, ...]:
    """A call of a layer with heads; where R is diagonal, as a call without products."""
    twin = twin_of(layout)
    if twin is None:
        way = in_one_head if reduces_rows(layout) else _head_after_head
        return way(layout, values, run)
    pairs = zip(layout.operation.inputs, values, strict=True)
    given = {name: value for name, value in pairs if value is not None}
    weight = given["recurrent_weight"]  # […,H,G,1]
    xp, gates, units = namespace_of(weight), len(twin.gates), layout.size[3]
    lead = tuple(weight.shape[:-3])
    given[DIAGONAL] = xp.moveaxis(weight[..., 0], -1, -2).reshape((*lead, gates * units))
    given["recurrent_weight"] = xp.zeros((*lead, gates * units, units), weight.dtype)
    found = dict(run(_with_diagonal(layout, twin), 1, given))
    if layout.operation.is_gradient:
        split = found[DIAGONAL].reshape((*lead, gates, units))
        found["recurrent_weight"] = xp.moveaxis(split, -2, -1)[..., None]
    return tuple(map(found.get, layout.operation.result._fields))


# The layouts that follow from a call's: calls of one layout repeat, and each made anew took longer
# than a step of a small layer. A layout is known by identity.


@lru_cache(maxsize=1024)
def _with_diagonal(layout: Layout, twin: Cell) -> Layout:
    return replace(
        layout,
        operation=operations_of(twin)[layout.operation.is_gradient],
        descriptor=replace(layout.descriptor, heads=1),
        present=layout.present | {DIAGONAL},
    )


@lru_cache(maxsize=1024)
def _with_one_head(layout: Layout) -> Layout:
    return replace(layout, descriptor=replace(layout.descriptor, heads=1))


@lru_cache(maxsize=1024)
def _inner(layout: Layout) -> Layout:
    """The same call without projection, and with one block of R as the engine takes it."""
    inputs = layout.directions * len(layout.cell_kind.gates) * layout.size[3]
    return replace(
        _with_one_head(layout),
        dtype="float64" if layout.dtype == "float64" else "float32",
        letters={**layout.letters, "I": inputs},
        present=layout.present - {"input_weight"},
    )


@lru_cache(maxsize=1024)
def reduces_rows(layout: Layout) -> bool:
    """Whether the equations take means or variances over the units of a row."""
    own = frozenset(each.name for each in layout.cell_kind.own if each.name in layout.present)
    if not layout.cell_kind.needed <= own:
        return False  # asked of without its parameters
    return layout.cell_kind.forward(layout.descriptor, own, "mask" in layout.present).has_means


def in_one_head(
    layout: Layout, values: tuple[Value | None, ...], run: Run
) -> tuple[Value | None, ...]:
    """A call of all heads as one of a single head."""
    pairs = zip(layout.operation.inputs, values, strict=True)
    given = {name: value for name, value in pairs if value is not None}
    blocks = given["recurrent_weight"]  # […,heads,G·d,d]
    xp, (*lead, heads, rows, units) = namespace_of(blocks), blocks.shape
    # Made where the blocks lie: a copy from the host would wait, and no CUDA graph could hold it.
    ones = xp.zeros((heads, heads), blocks.dtype) + 1
    inside = (xp.tril(xp.triu(ones)) > 0)[:, None, :, None]
    split = xp.moveaxis(blocks.reshape((*lead, heads, -1, units, units)), -4, -3)
    whole = xp.where(inside, split[..., None, :], xp.zeros((1,), blocks.dtype))
    given["recurrent_weight"] = whole.reshape((*lead, rows * heads, heads * units))  # […,G·H,H]
    found = dict(run(_with_one_head(layout), 1, given))
    if layout.operation.is_gradient:
        whole = found["recurrent_weight"].reshape((*lead, -1, heads, units, heads, units))
        split = xp.sum(xp.where(inside, whole, xp.zeros((1,), whole.dtype)), (-2,), keepdims=False)
        found["recurrent_weight"] = xp.moveaxis(split, -3, -4).reshape(blocks.shape)
    return tuple(map(found.get, layout.operation.result._fields))


class _Diagonal:
    """R of one gate as a parameter; keeps the products that it made."""

    def __init__(self, own: Expression, weight: Weight) -> None:
        self._own, self._weight = own, weight
        self.products: list[Expression] = []

    def __matmul__(self, value: Expression) -> Expression:
        self.products.append(self._weight.operand(value) * self._own)
        return self.products[-1]


@lru_cache(maxsize=256)
def diagonal(cell: Cell) -> Cell | None:
    """The same cell with R's diagonal as a parameter, or None where its gradient would need more
    than is saved."""

    def equations(at: Context, *before: Expression) -> Step:
        weights = {gate: _Diagonal(at.own[DIAGONAL][gate], at.R[gate]) for gate in cell.gates}
        given = cell.equations(at._replace(R=Named("R", weights)), *before)
        step = given if isinstance(given, Step) else as_step(given)
        if step.saved is not None:
            return step
        every = ordered(step.states)
        saved = []
        for gate in cell.gates:  # as a cell with products saves them
            terms = [at.x[gate]] if at.x[gate] in every else []
            terms += dict.fromkeys(weights[gate].products)
            saved.append(sum(terms[1:], terms[0]))
        return step._replace(saved=tuple(saved))

    own = (*cell.own, Parameter(DIAGONAL, by_gate=True, required=True))
    twin = replace(cell, equations=equations, own=own, key=f"{cell.key}_diagonal")
    try:
        twin.backward(twin.usual, twin.needed, False)
    except EquationError:
        return None
    return twin


def _head_after_head(
    layout: Layout, values: tuple[Value | None, ...], run: Run
) -> tuple[Value | None, ...]:
    """A call of all heads on what is projected here, in the type of the arithmetic."""
    call = Call(layout, values)
    inner, gradient = _inner(layout), layout.operation.is_gradient
    given = {name: call.get(name) for name in inner.present}
    source, weight = given["source"], call.get("input_weight")
    if weight is not None:  # of a projected source the gradient needs only the shape
        given["source"] = given["z_state"] if gradient else _product(call, source, weight.T)
    blocks: Value = given["recurrent_weight"]  # […,heads,G·d,d]
    given["recurrent_weight"] = blocks.reshape((*blocks.shape[:-3], -1, blocks.shape[-1]))
    found = dict(run(inner, layout.descriptor.heads, given))
    if gradient:
        if weight is not None:
            gates = found["source"]  # [T,N,D·G·H]
            found["source"] = _product(call, gates, weight)
            found["input_weight"] = call.xp.matmul(_rows(gates).T, _rows(source))
        shapes = {name: call.given[name].shape for name in layout.result_names()}
        found = {name: found[name].reshape(shape) for name, shape in shapes.items()}
    return call.results(found)


def _product(call: Call, left: Value, right: Value) -> Value:
    """left @ right, […,K] and [K,H]; NumPy's arrays on the engine's threads."""
    return call.xp.matmul(_rows(left), right).reshape((*left.shape[:-1], right.shape[1]))


def _rows(value: Value) -> Value:
    """[…,K] as a matrix."""
    return value.reshape((math.prod(value.shape[:-1]), value.shape[-1]))
