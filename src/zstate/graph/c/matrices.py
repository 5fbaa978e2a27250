"""Stored matrices and the lines that multiply with them, in float32 or in 8 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .words import Place


class Rows(NamedTuple):
    """The product of some rows of a matrix, and where it goes."""

    first: int
    height: int
    result: Place


class Matrix(NamedTuple):
    """A stored weight [rows,columns]; ``scale`` and ``room`` (for x in 8 bits) with int8 alone."""

    prefix: str
    stored: str
    columns: int
    scale: str = ""
    room: Place = Place("")

    def lines(self, x: object, products: Sequence[Rows]) -> list[str]:
        if not self.scale:
            return [
                f"{self.prefix}_multiply({self._at(each)}, {each.height}, {self.columns}, "
                f"{x}, {each.result});"
                for each in products
            ]
        step = f"const float step = {self.prefix}_quantise({x}, {self.columns}, {self.room});"
        calls = [
            f"{self.prefix}_multiply_int8({self._at(each)}, {Place(self.scale, each.first)}, "
            f"{each.height}, {self.columns}, {self.room}, step, {each.result});"
            for each in products
        ]
        return ["{", f"  {step}", *(f"  {call}" for call in calls), "}"]

    def _at(self, each: Rows) -> str:
        return str(Place(self.stored, each.first * self.columns))
