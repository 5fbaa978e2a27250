"""A few rows in place of a whole product, in one of which every pair of values meets."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from typing import Any


def covering(*options: Iterable[Any], strength: int = 2) -> list[tuple[Any, ...]]:
    """Rows of the product, the same in every run, that have every combination of any ``strength``
    options' values."""
    values = [tuple(each) for each in options]
    rows = list(itertools.product(*(range(len(each)) for each in values)))
    random.Random(0).shuffle(rows)
    places = list(itertools.combinations(range(len(values)), strength))
    kept: list[tuple[int, ...]] = []
    seen: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    for wanted in range(len(places), 0, -1):  # first the rows that bring the most
        rest = []
        for row in rows:
            new = {(at, tuple(row[k] for k in at)) for at in places} - seen
            if len(new) >= wanted:
                kept.append(row)
                seen |= new
            elif new:
                rest.append(row)
        rows = rest
    return [tuple(each[k] for each, k in zip(values, row, strict=True)) for row in sorted(kept)]
