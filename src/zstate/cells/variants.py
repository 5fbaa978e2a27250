"""A cell whose states are clipped or zoned out: the same equations, with more in them.

Everything that reads a cell's equations, the engines and the derivatives first, follows by itself.
With a bound b, a state's new value v is min(max(v, -b), b) wherever the equations use it. With
zoneout (Krueger et al. 2016) a unit keeps its old value, s[t] = s[t-1], with a probability p, and
otherwise takes the new one. All new values come from each other, as in the paper: an LSTM's new h
is o·g(new c), whether or not c itself is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import NamedTuple

from ..errors import EquationError
from .decorator import announce
from .definition import Cell
from .expressions import Expression, Operand, ordered
from .language import maximum, minimum, where
from .tracing import Context, Step, as_step


class Changes(NamedTuple):
    """What is done to states, by their symbols and in the cell's order."""

    clip: tuple[tuple[str, float], ...] = ()  # bounds
    zoneout: tuple[tuple[str, float], ...] = ()  # probabilities


def variant(cell: Cell, changes: Changes, drawn: bool) -> Cell:
    """The cell with these changes: the same object each time.

    ``drawn``: at every step, draws decide which units keep their values. They are passed as values
    per step, one per zoned state and last among ``values``: above 0 where a unit keeps its value.
    Otherwise the state is the expectation, p·s[t-1] + (1-p)·new.
    """
    known = cell.__dict__.setdefault("_variants", {})
    name = variant_key(cell, changes, drawn)
    if name not in known:
        made = _variant(cell, changes, drawn, name)
        made.backward(made.usual, made.needed, False)  # raises before anything registers it
        announce(made)
        known[name] = made
    return variant_of_key(cell, name)


def variant_key(cell: Cell, changes: Changes, drawn: bool) -> str:
    """A name that no other cell has; drawn values are the same for every probability."""
    zoned = tuple(state for state, _ in changes.zoneout) if drawn else changes.zoneout
    digest = hashlib.sha256(repr((changes.clip, zoned)).encode()).hexdigest()[:12]
    return f"{cell.key}_{digest}"


def variant_of_key(cell: Cell, key: str) -> Cell:
    """One that was made before; in few steps, which torch.compile can read."""
    made: Cell = cell.__dict__["_variants"][key]
    return made


def _variant(cell: Cell, changes: Changes, drawn: bool, key: str) -> Cell:
    values = _free_names(cell, changes.zoneout) if drawn else {}
    names = tuple(values.values())
    bounds, kept = dict(changes.clip), dict(changes.zoneout)
    symbols = [each.symbol for each in cell.states]

    @wraps(cell.equations)  # whose local variables name the values when they are printed
    def equations(at: Context, *before: Expression) -> Step:
        own = at._replace(x=at.x.without("x", names), R=at.R.without("R", names))
        step = _clipped(cell, as_step(cell.equations(own, *before)), before, bounds)
        states = list(step.states)
        for place, symbol in enumerate(symbols):
            if symbol in values:
                # where(), not a product: 0·s would be NaN where s is infinite.
                states[place] = where(at.x[values[symbol]] > 0, before[place], states[place])
            elif symbol in kept:
                p = kept[symbol]
                states[place] = p * before[place] + (1 - p) * states[place]
        saved = None if step.saved is None else (*step.saved, *(at.x[name] for name in names))
        return step._replace(states=tuple(states), saved=saved)

    order = cell.other_order
    return replace(
        cell,
        gates=(*cell.gates, *names),
        equations=equations,
        other_order=order and (order[0], (*order[1], *names)),
        values=(*cell.values, *names),
        key=key,
    )


def _free_names(cell: Cell, zoneout: Iterable[tuple[str, float]]) -> dict[str, str]:
    """Of the values per step, by state: names that the cell's gates leave free."""
    found = {}
    for symbol, _ in zoneout:
        name = f"keep_{symbol}"
        while name in cell.gates:
            name += "_"
        found[symbol] = name
    return found


def _clipped(
    cell: Cell, step: Step, before: Sequence[Expression], bounds: Mapping[str, float]
) -> Step:
    """The step with the new values of some states within bounds wherever they are used."""
    if not bounds:
        return step
    symbols = [each.symbol for each in cell.states]
    by_value: dict[Expression, float] = {}
    for symbol, value in zip(symbols, step.states, strict=True):
        if symbol in bounds and by_value.setdefault(value, bounds[symbol]) != bounds[symbol]:
            expected = f"one bound for the states that share the value of {symbol}"
            raise EquationError(f"[{cell.name}] clip: expected {expected}, got two")
    book = step.states[0].book
    raw: dict[Expression, Expression] = {}  # in front of its own bound: what a gradient needs
    new: dict[Expression, Expression] = {}
    for each in ordered([*step.states, *(step.saved or ())]):
        raw[each] = book.again(each.op, tuple(new[arg] for arg in each.args), each.detail)
        # A state that becomes an older value, or x, is clipped alone: the rest reads that value.
        inside = each in by_value and each.args and each not in before
        new[each] = _within(raw[each], by_value[each]) if inside else raw[each]
    states = [
        _within(new[value], bounds[symbol])
        if symbol in bounds and (value in before or not value.args)
        else new[value]
        for symbol, value in zip(symbols, step.states, strict=True)
    ]
    return step._replace(
        states=tuple(states),
        saved=None if step.saved is None else tuple(raw[each] for each in step.saved),
        names=step.names and {new[v]: name for v, name in step.names.items() if v in new},
    )


def _within(value: Operand, bound: float) -> Expression:
    return minimum(maximum(value, -bound), bound)
