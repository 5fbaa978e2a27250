"""The layers' options ``zoneout`` and ``clip``: what is done to each state of the cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import TypeAlias

from ..cells.definition import Cell
from ..cells.variants import Changes
from ..errors import OptionError, refusal

# One number, or one per state by the states' names: {"h": 0.1, "c": 0.5}.
ByState: TypeAlias = float | Mapping[str, float]


def checked_changes(
    label: str, cell: Cell, projected: bool, zoneout: ByState, clip: ByState | None
) -> Changes | None:
    """The two options by state, None if they change nothing; ``projected``: with proj_size."""
    symbols = [each.symbol for each in cell.states]
    bounded = "c" if "c" in symbols else symbols[0]  # by a clip for no state in particular
    chances = _by_state(label, "zoneout", zoneout, symbols, symbols, _is_chance)
    bounds = _by_state(label, "clip", clip, symbols, [bounded], _is_bound)
    chances = {symbol: p for symbol, p in chances.items() if p}
    for option, given in (("zoneout", chances), ("clip", bounds)):
        if projected and symbols[0] in given:
            expected = f"no {symbols[0]} with proj_size, whose product is folded into R"
            raise OptionError(refusal(label, option, f"{expected}: name other states", str(given)))
    for each in cell.states:
        if each.symbol in chances and not math.isfinite(each.start):
            expected = f"states by name, without {each.symbol}, which begins with {each.start}"
            raise OptionError(refusal(label, "zoneout", expected, str(zoneout)))
    if not chances and not bounds:
        return None
    return Changes(*(tuple((s, of[s]) for s in symbols if s in of) for of in (bounds, chances)))


def _is_chance(value: float) -> bool:
    return 0 <= value < 1


def _is_bound(value: float) -> bool:
    return 0 < value < math.inf


_NUMBERS = {"zoneout": "a number from 0 to below 1", "clip": "a finite number above 0"}


def _by_state(
    label: str,
    option: str,
    given: ByState | None,
    symbols: list[str],
    meant: list[str],  # by one number
    allowed: Callable[[float], bool],
) -> dict[str, float]:
    if given is None:
        return {}
    by_state = given if isinstance(given, Mapping) else dict.fromkeys(meant, given)
    for symbol, value in by_state.items():
        if symbol not in symbols:
            expected = f"states among {', '.join(symbols)}"
            raise OptionError(refusal(label, option, expected, repr(symbol)))
        if isinstance(value, bool) or not isinstance(value, Real) or not allowed(float(value)):
            expected = f"{_NUMBERS[option]}, or such numbers by state"
            raise OptionError(refusal(label, option, expected, repr(value)))
    return {symbol: float(value) for symbol, value in by_state.items()}
