"""What is measured: the table of cells and sizes, and the numbers that go into a row."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from ..descriptors import Activation, AnyDescriptor, GRUDescriptor, LSTMDescriptor
from ..descriptors import SingleGateRNNDescriptor as RNNDescriptor
from ..errors import OptionError, refusal
from ..types import Array

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@dataclass(frozen=True)
class Row:
    """One size of one cell; I = H throughout."""

    cell: str
    T: int
    N: int
    H: int
    group: str = "anchors"
    bidirectional: bool = False
    states: bool = True  # whether initial states are passed

    @property
    def title(self) -> str:
        both = " both ways" if self.bidirectional else ""
        return f"{self.cell} {self.T}×{self.N}×{self.H}{both}"

    def is_called(self, pattern: str) -> bool:
        """Whether a typed title, or a glob of titles, matches this row: case does not matter, x
        matches ×, and a part of the title with whole numbers is enough."""
        title, wanted = _typed(self.title), _typed(pattern)
        if not wanted or set(wanted) & set("*?["):
            return fnmatchcase(title, wanted)
        return re.search(rf"(?<!\d){re.escape(wanted)}(?!\d)", title) is not None

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    def flops(self, training: bool) -> float:
        """2·T·N·G·H·(I+H) forward, three times that for training."""
        forward = 2.0 * self.T * self.N * GATES[self.cell] * self.H * 2 * self.H * self.directions
        return forward * (3 if training else 1)

    @property
    def descriptor(self) -> AnyDescriptor:
        """The options under which the peers compute the same thing."""
        if self.cell == "LSTM":
            return LSTMDescriptor(bidirectional=self.bidirectional)
        if self.cell == "GRU":
            return GRUDescriptor(
                bidirectional=self.bidirectional, reset_gate_first=True, reset_after=True
            )
        return RNNDescriptor(bidirectional=self.bidirectional, activation=Activation.TANH)


def _typed(text: str) -> str:
    return text.strip().lower().replace("×", "x")


def choose(rows: list[Row], patterns: str | None) -> list[Row]:
    """The rows that comma-separated patterns mean; a whole title means no other row."""
    chosen: list[Row] = []
    for pattern in patterns.split(",") if patterns is not None else ["*"]:
        exact = [row for row in rows if _typed(row.title) == _typed(pattern)]
        found = exact or [row for row in rows if row.is_called(pattern)]
        if not found:
            expected = "the name of a row, such as 'lstm 64x1x64', or a glob, such as 'gru *x1x*'"
            raise OptionError(refusal("bench", "--only", expected, repr(pattern)))
        chosen += [row for row in found if row not in chosen]
    return chosen


_SIZES = [
    *((64, 1, 64), (64, 16, 128), (128, 32, 256), (100, 64, 512), (512, 1, 256)),
    *((20, 256, 256), (50, 128, 1024), (1, 1, 64), (1, 1, 512)),
]
_ODD = [(80, 12, 200), (80, 5, 200), (30, 48, 333), (50, 3, 333)]  # that no tile divides

ROWS: list[Row] = [
    *(Row(cell, *size) for cell in GATES for size in _SIZES),
    Row("LSTM", 256, 8, 1024, "speech", bidirectional=True),
    Row("LSTM", 25, 16, 512, "DeepBench"),
    Row("LSTM", 25, 64, 1024, "DeepBench"),
    Row("LSTM", 50, 8, 1536, "DeepBench"),
    Row("LSTM", 150, 16, 256, "DeepBench"),
    Row("GRU", 187, 32, 1024, "DeepBench"),
    Row("RNN", 50, 16, 1760, "DeepBench"),
    *(Row(cell, 1, 1, hidden, "streaming") for cell in GATES for hidden in (128, 256, 1024)),
    *(Row(cell, *size, "odd") for cell in GATES for size in _ODD),
]

_GPU_SIZES = [
    *((256, 1, 128), (256, 16, 256), (1024, 8, 256), (256, 256, 256), (1024, 1, 512)),
    *((256, 64, 512), (1024, 16, 768), (256, 64, 1024), (256, 128, 1024), (256, 32, 2048)),
]
GPU_ROWS = [Row(cell, *size, "GPU", states=False) for cell in GATES for size in _GPU_SIZES]

_STREAMED = [(T, 1, H) for H in (64, 128, 256, 512, 1024) for T in (1, 10)]  # T: a chunk
STREAMS = [Row(cell, *size, "streaming", states=False) for cell in GATES for size in _STREAMED]


@dataclass(frozen=True)
class Data:
    """The arrays of a row (or tensors), in zstate's layout; gates in PyTorch's order."""

    x: Any  # [T,N,H]
    W: Any  # [D·G·H,H]
    R: Any  # [G·H,H] or [2,G·H,H]
    b: Any  # [D·G·H]
    b2: Any  # [D·H], GRU only
    h0: Any  # [N,D·H]
    c0: Any  # [N,D·H], LSTM only
    dy: Any  # [T,N,D·H]


def make_data(row: Row, seed: int) -> Data:
    """Random weights of a realistic size and non-zero states."""
    rng = np.random.default_rng([seed, row.T, row.N, row.H, GATES[row.cell]])
    gates, both = GATES[row.cell], row.directions

    def normal(*shape: int, scale: float = 1.0) -> Array:
        return (rng.standard_normal(shape, np.float32) * np.float32(scale)).astype(np.float32)

    weight = row.H**-0.5
    recurrent = (gates * row.H, row.H)
    return Data(
        x=normal(row.T, row.N, row.H),
        W=normal(both * gates * row.H, row.H, scale=weight),
        R=normal(*((2, *recurrent) if row.bidirectional else recurrent), scale=weight),
        b=normal(both * gates * row.H, scale=0.1),
        b2=normal(both * row.H, scale=0.1),
        h0=normal(row.N, both * row.H, scale=0.5),
        c0=normal(row.N, both * row.H, scale=0.5),
        dy=normal(row.T, row.N, both * row.H),
    )
