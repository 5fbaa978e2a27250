"""The cells: one text each, from which their derivatives, kernels and exports follow.

``@cells.cell`` makes a cell from equations; the functions that equations may use are here too.
"""

from .decorator import CellDescriptor, MadeCell, cell
from .definition import Cell
from .gru import GRU
from .language import (
    abs,
    exp,
    hard_sigmoid,
    layer_norm,
    log,
    log_sigmoid,
    maximum,
    mean,
    minimum,
    relu,
    sigmoid,
    softplus,
    sqrt,
    tanh,
    variance,
    where,
)
from .library import (
    block_gru,
    cifg,
    diagonal_gru,
    indrnn,
    layer_norm_gru,
    layer_norm_lstm,
    mgu,
    slstm,
)
from .lstm import LSTM
from .rnn import RNN

CELLS = (RNN, LSTM, GRU)

__all__ = [
    "CELLS",
    "GRU",
    "LSTM",
    "RNN",
    "Cell",
    "CellDescriptor",
    "MadeCell",
    "abs",
    "block_gru",
    "cell",
    "cifg",
    "diagonal_gru",
    "exp",
    "hard_sigmoid",
    "indrnn",
    "layer_norm",
    "layer_norm_gru",
    "layer_norm_lstm",
    "log",
    "log_sigmoid",
    "maximum",
    "mean",
    "mgu",
    "minimum",
    "relu",
    "sigmoid",
    "slstm",
    "softplus",
    "sqrt",
    "tanh",
    "variance",
    "where",
]


def __dir__() -> list[str]:
    return sorted(__all__)
