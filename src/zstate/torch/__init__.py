"""PyTorch: the six operations as operators, and recurrent modules that replace torch.nn's, or run
any cell.

The functional interface (``zstate.lstm`` and so on) takes torch tensors without this import. See
docs/torch.md.
"""

from . import nn as nn
from .any_cell import Recurrent
from .cells import GRUCell, LSTMCell, RNNCell
from .layers import GRU, LSTM, RNN
from .preparing import PreparedLayers, prepare
from .replacing import Report, replace, restore

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "GRUCell",
    "LSTMCell",
    "PreparedLayers",
    "RNNCell",
    "Recurrent",
    "Report",
    "prepare",
    "replace",
    "restore",
]


def __dir__() -> list[str]:
    # Not in __all__: `import *` would hide the reader's own torch.nn behind it.
    return sorted([*__all__, "nn"])
