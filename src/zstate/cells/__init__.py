"""The cells: their equations and derivatives, readable beside docs/equations.md."""

from .cell import Cell, Direction
from .gru import GRU
from .lstm import LSTM
from .rnn import RNN

__all__ = ["GRU", "LSTM", "RNN", "Cell", "Direction"]
