"""zstate: every recurrent operation of Apple's MPSGraph, with its gradients, on any machine.

Importing it imports nothing heavier than NumPy; frameworks are found when they are used.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import _startup  # noqa: F401 - first: what follows takes its time
from .backends.native import get_num_threads, set_kept_memory, set_num_threads
from .backends.slow import SlowBackendWarning
from .config import show_config
from .descriptors import Activation, GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor
from .errors import (
    BackendError,
    DescriptorError,
    DTypeError,
    GraphError,
    OptionError,
    ShapeError,
    ZStateError,
)
from .functional import (
    FURTHER,
    gru,
    gru_gradients,
    lstm,
    lstm_gradients,
    single_gate_rnn,
    single_gate_rnn_gradients,
)
from .graph import Executable, Graph, Tensor
from .hints import ELSEWHERE as _ELSEWHERE
from .hints import missing as _missing
from .inspection import inspect
from .operations import (
    GRUGradients,
    GRUResult,
    LSTMGradients,
    LSTMResult,
    RNNGradients,
    RNNResult,
)
from .prepared import Prepared, Stream, prepare

__version__ = "0.1.0"

__all__ = [
    "Activation",
    "BackendError",
    "DTypeError",
    "DescriptorError",
    "Executable",
    "GRUDescriptor",
    "GRUGradients",
    "GRUResult",
    "Graph",
    "GraphError",
    "LSTMDescriptor",
    "LSTMGradients",
    "LSTMResult",
    "OptionError",
    "Prepared",
    "RNNGradients",
    "RNNResult",
    "ShapeError",
    "SingleGateRNNDescriptor",
    "SlowBackendWarning",
    "Stream",
    "Tensor",
    "ZStateError",
    "get_num_threads",
    "gru",
    "gru_gradients",
    "inspect",
    "lstm",
    "lstm_gradients",
    "prepare",
    "set_kept_memory",
    "set_num_threads",
    "show_config",
    "single_gate_rnn",
    "single_gate_rnn_gradients",
]

globals().update(FURTHER)  # those of further cells
__all__ += list(FURTHER)


def __dir__() -> list[str]:
    """What is public, and the public modules that are imported."""
    modules = [name for name in _ELSEWHERE["zstate"] if name in globals()]
    return sorted([*__all__, *modules, "__doc__", "__version__"])


if not _TYPE_CHECKING:  # a type checker would take any name to be there

    def __getattr__(name: str) -> object:
        raise _missing("zstate", name, __all__)
