"""What the operations take by keyword, for type checkers and editors. Nothing imports it to run.

The graph's methods and the functions on jax arrays name these types; signatures.py says the same
when they run, by the table of operations. A test compares the two.
"""

from typing import Any, Generic, TypeVar

from typing_extensions import Required, TypedDict

from .descriptors import GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor
from .graph.tensor import Tensor

A = TypeVar("A")  # a tensor


class Common(TypedDict, Generic[A], total=False):
    """Of every operation."""

    input_weight: A | None
    bias: A | None
    init_state: A | None
    mask: A | None
    resets: A | None
    heads: int


class RNN(Common[A], total=False):
    descriptor: SingleGateRNNDescriptor | None


class LSTM(Common[A], total=False):
    init_cell: A | None
    peephole: A | None
    descriptor: LSTMDescriptor | None


class GRU(Common[A], total=False):
    secondary_bias: A | None
    descriptor: GRUDescriptor | None


# ---- on jax arrays ----


class OnJax(TypedDict, total=False):
    """Of every forward operation there."""

    backend: str | None
    lengths: Any | None


class JaxRNN(RNN[Any], OnJax, total=False): ...


class JaxLSTM(LSTM[Any], OnJax, total=False): ...


class JaxGRU(GRU[Any], OnJax, total=False): ...


# ---- in a graph ----


class InGraph(TypedDict, total=False):
    """Of every operation there."""

    recurrent_weight: Required[Tensor]
    name: str | None


class GraphRNN(RNN[Tensor], InGraph, total=False): ...


class GraphLSTM(LSTM[Tensor], InGraph, total=False): ...


class GraphGRU(GRU[Tensor], InGraph, total=False): ...


class Saved(TypedDict, total=False):
    """Of every gradient operation there."""

    source_gradient: Required[Tensor]
    z_state: Required[Tensor]
    state_gradient: Tensor | None


class GraphRNNGradients(GraphRNN, Saved, total=False): ...


class GraphLSTMGradients(GraphLSTM, Saved, total=False):
    cell_output_fwd: Required[Tensor]
    cell_gradient: Tensor | None


class GraphGRUGradients(GraphGRU, Saved, total=False):
    output_fwd: Required[Tensor]
