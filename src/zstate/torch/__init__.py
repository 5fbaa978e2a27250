"""PyTorch: the six operations as operators, and recurrent modules in place of torch.nn's.

The functional interface (``zstate.lstm`` and so on) takes torch tensors without this import. See
docs/torch.md.
"""

from .cells import GRUCell, LSTMCell, RNNCell
from .layers import GRU, LSTM, RNN
from .replacing import Report, replace, restore
from .threads import share_threads

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "GRUCell",
    "LSTMCell",
    "RNNCell",
    "Report",
    "replace",
    "restore",
]

share_threads()
