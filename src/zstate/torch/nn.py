"""The same modules as instances of torch.nn's, for code that asks isinstance(m, torch.nn.LSTM).

torch.compile breaks its graph at every instance of torch.nn.RNN, LSTM and GRU, but compiles
zstate.torch.LSTM and so on. Otherwise the two are the same.

>>> import torch
>>> isinstance(LSTM(4, 8, peephole=True), torch.nn.LSTM)
True
"""

from __future__ import annotations

import torch

from . import cells, layers


class RNN(layers.RNN, torch.nn.RNN):
    """zstate.torch.RNN and torch.nn.RNN."""


class LSTM(layers.LSTM, torch.nn.LSTM):
    """zstate.torch.LSTM and torch.nn.LSTM."""


class GRU(layers.GRU, torch.nn.GRU):
    """zstate.torch.GRU and torch.nn.GRU."""


class RNNCell(cells.RNNCell, torch.nn.RNNCell):
    """zstate.torch.RNNCell and torch.nn.RNNCell."""


class LSTMCell(cells.LSTMCell, torch.nn.LSTMCell):
    """zstate.torch.LSTMCell and torch.nn.LSTMCell."""


class GRUCell(cells.GRUCell, torch.nn.GRUCell):
    """zstate.torch.GRUCell and torch.nn.GRUCell."""
