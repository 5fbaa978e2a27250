"""The cells that this backend has: one row per form, and one text beside this file per cell.

A row says what the placement of a scan and the products around it have to know of a cell; its
equations are in its text. Nothing else in this folder tests which cell a call has.
"""

from __future__ import annotations

from typing import NamedTuple


class Phase(NamedTuple):
    """One product of a step: gates that go in, gates that come out, the first of either."""

    gates_in: int
    gates_out: int
    first: int = 0


class Pass(NamedTuple):
    """A direction of time: the products of a step, and how many values a unit of a row keeps."""

    phases: tuple[Phase, ...]
    states: int


class Contraction(NamedTuple):
    """Gates of dR: the sum over time and batch of ``gradients`` times ``factor``.

    Both name what the scan leaves: ``gates``, ``left`` or ``left_reset``.
    """

    gradients: str
    factor: str
    first: int
    gates: int


class Form(NamedTuple):
    """A cell, in one of its forms."""

    text: str
    gates: int
    forward: Pass
    backward: Pass
    contractions: tuple[Contraction, ...]
    left_reset: int = 0  # gates in left_reset; 0: the scan leaves none
    unreset: bool = False  # the gradient needs what the reset multiplies

    def direction(self, backward: bool) -> Pass:
        return self.backward if backward else self.forward


# By the cell's name and whether it resets after the product.
CELLS = {
    ("single_gate_rnn", False): Form(
        text="rnn.cuh",
        gates=1,
        forward=Pass((Phase(1, 1),), states=0),
        backward=Pass((Phase(1, 1),), states=0),
        contractions=(Contraction("gates", "left", 0, 1),),
    ),
    ("lstm", False): Form(
        text="lstm.cuh",
        gates=4,
        forward=Pass((Phase(1, 4),), states=1),
        backward=Pass((Phase(4, 1),), states=1),
        contractions=(Contraction("gates", "left", 0, 4),),
    ),
    ("gru", False): Form(
        text="gru.cuh",
        gates=3,
        forward=Pass((Phase(1, 2), Phase(1, 1, first=2)), states=2),
        backward=Pass((Phase(1, 1, first=2), Phase(2, 1)), states=4),
        # The candidate's gate is the last in either gate order, and has a factor of its own.
        contractions=(
            Contraction("gates", "left", 0, 2),
            Contraction("gates", "left_reset", 2, 1),
        ),
        left_reset=1,
    ),
    ("gru", True): Form(
        text="gru.cuh",
        gates=3,
        forward=Pass((Phase(1, 3),), states=1),
        backward=Pass((Phase(3, 1),), states=1),
        contractions=(Contraction("left_reset", "left", 0, 3),),
        left_reset=3,
        unreset=True,
    ),
}
