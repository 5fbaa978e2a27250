"""The op table: one row per op, with its shape rule, its evaluation and its derivative."""

from . import (
    contractions,
    elementwise,
    indexing,
    like,
    losses,
    ordering,
    padding,
    processes,
    random,
    recurrent,
    shaping,
    sized,
    state,
)
from .base import Op
from .recurrent import RECURRENT
from .state import ASSIGN, CONSTANT, PLACEHOLDER, READ, VARIABLE

_FAMILIES = (
    state,
    elementwise,
    shaping,
    padding,
    contractions,
    losses,
    indexing,
    ordering,
    random,
    processes,
    recurrent,
    like,
    sized,
)
OPS: dict[str, Op] = {op.name: op for family in _FAMILIES for op in family.ROWS}


def row_named(name: str) -> Op:
    """The row of this name."""
    return OPS[name]


__all__ = ["ASSIGN", "CONSTANT", "OPS", "PLACEHOLDER", "READ", "RECURRENT", "VARIABLE", "Op"]
