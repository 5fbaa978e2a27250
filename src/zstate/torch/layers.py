"""RNN, LSTM and GRU with torch.nn's constructors, parameters and shapes, and more options.

T time, N batch, I input_size, H hidden_size, P proj_size or H, D directions, L layers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from .. import operations
from ..descriptors import Activation
from ..errors import OptionError, refusal
from .as_torch_nn import Proxy, leaf_call
from .base import BuiltIn
from .checks import Lengths, two_states
from .parameters import Activations
from .stack import run
from .zoneout import ByState


class _OneState(BuiltIn):
    """A layer whose only state is h."""

    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: Tensor | None = None,
        lengths: Lengths | None = None,
        resets: Tensor | None = None,
    ) -> tuple[Any, Tensor]:
        """output [T,N,D·H] and h_n [D·L,N,H].

        Args:
            input: [T,N,I], [N,T,I] with batch_first, [T,I] for one sequence, or packed.
            hx: h_0 [D·L,N,H]; None means zeros.
            lengths: [N], a tensor or a list: how many steps of each sequence count; None means
                all.
            resets: [T,N], or [N,T] with batch_first: true where step t starts a new sequence.
        """
        if isinstance(input, Proxy):
            return leaf_call(self, input, hx, lengths, resets)
        output, (h_n,), _ = run(self, input, (hx,), lengths, resets)
        return output, h_n


class RNN(_OneState):
    """torch.nn.RNN with recurrent dropout, any of the five activations, and ``lengths``.

    Example:
        >>> import torch
        >>> output, h_n = RNN(10, 20, num_layers=2)(torch.randn(5, 3, 10))
        >>> output.shape, h_n.shape
        (torch.Size([5, 3, 20]), torch.Size([2, 3, 20]))
    """

    operation = operations.SINGLE_GATE_RNN

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        recurrent_dropout: float = 0.0,
        recurrent_dropout_per_step: bool = False,
        activations: Activations | None = None,
        zoneout: ByState = 0.0,
        clip: ByState | None = None,
    ) -> None:
        """The arguments of torch.nn.RNN, then:

        Args:
            recurrent_dropout: the probability of dropping a unit of h[t-1] before the
                recurrent weight, in training; one mask per sequence.
            recurrent_dropout_per_step: use a new mask at every step.
            activations: one activation instead of ``nonlinearity``.
            zoneout: the probability that a unit of h keeps its value at a step, in training; in
                evaluation h is the expectation.
            clip: keep h[t] within ±clip.
        """
        if nonlinearity not in ("tanh", "relu"):
            raise OptionError(
                refusal("RNN", "nonlinearity", "'tanh' or 'relu'", repr(nonlinearity))
            )
        super().__init__(
            input_size=input_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            device=device,
            dtype=dtype,
            recurrent_dropout=recurrent_dropout,
            recurrent_dropout_per_step=recurrent_dropout_per_step,
            activations=activations,
            zoneout=zoneout,
            clip=clip,
            options={"activation": Activation[nonlinearity.upper()]},
        )
        self.nonlinearity = nonlinearity

    @property
    def mode(self) -> str:  # type: ignore[override]
        """torch.nn's name of the operation."""
        return f"RNN_{self.nonlinearity.upper()}"


class GRU(_OneState):
    """torch.nn.GRU with recurrent dropout, activations by gate, ``reset_after`` and ``lengths``.

    Example:
        >>> import torch
        >>> layer = GRU(10, 20, reset_after=False, batch_first=True)
        >>> output, h_n = layer(torch.randn(3, 5, 10), lengths=torch.tensor([5, 2, 4]))
        >>> output.shape, bool(output[1, 2:].any())
        (torch.Size([3, 5, 20]), False)
    """

    operation = operations.GRU_FORWARD
    mode = "GRU"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        recurrent_dropout: float = 0.0,
        recurrent_dropout_per_step: bool = False,
        activations: Activations | None = None,
        reset_after: bool = True,
        zoneout: ByState = 0.0,
        clip: ByState | None = None,
    ) -> None:
        """The arguments of torch.nn.GRU, then:

        Args:
            recurrent_dropout: the probability of dropping a unit of h[t-1] before the
                recurrent weight, in training; one mask per sequence.
            recurrent_dropout_per_step: use a new mask at every step.
            activations: for the update, reset and output gate, or some by the descriptor's names.
            reset_after: whether the reset gate applies after the recurrent product, as in torch.nn,
                or before it, as in the paper.
            zoneout: the probability that a unit of h keeps its value at a step, in training; in
                evaluation h is the expectation.
            clip: keep h[t] within ±clip.
        """
        super().__init__(
            input_size=input_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            device=device,
            dtype=dtype,
            recurrent_dropout=recurrent_dropout,
            recurrent_dropout_per_step=recurrent_dropout_per_step,
            activations=activations,
            zoneout=zoneout,
            clip=clip,
            options={"reset_gate_first": True, "reset_after": reset_after},
        )
        self.reset_after = reset_after


class LSTM(BuiltIn):
    """torch.nn.LSTM with peepholes, recurrent dropout, activations, all cells and ``lengths``.

    Example:
        >>> import torch
        >>> layer = LSTM(10, 20, bidirectional=True, peephole=True, return_cells=True)
        >>> output, (h_n, c_n), cells = layer(torch.randn(5, 3, 10))
        >>> output.shape, cells.shape, c_n.shape
        (torch.Size([5, 3, 40]), torch.Size([5, 3, 40]), torch.Size([2, 3, 20]))
    """

    operation = operations.LSTM_FORWARD
    mode = "LSTM"
    get_expected_cell_size = torch.nn.LSTM.get_expected_cell_size
    check_forward_args = torch.nn.LSTM.check_forward_args  # type: ignore[assignment]
    permute_hidden = torch.nn.LSTM.permute_hidden  # type: ignore[assignment]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
        *,
        peephole: bool = False,
        recurrent_dropout: float = 0.0,
        recurrent_dropout_per_step: bool = False,
        activations: Activations | None = None,
        return_cells: bool = False,
        peephole_on_new_cell: bool = False,
        zoneout: ByState = 0.0,
        clip: ByState | None = None,
    ) -> None:
        """The arguments of torch.nn.LSTM, then:

        Args:
            peephole: let every gate see c[t-1]; adds the parameters ``peephole_l0`` [4H] and so on.
            recurrent_dropout: the probability of dropping a unit of h[t-1] before the
                recurrent weight, in training; one mask per sequence.
            recurrent_dropout_per_step: use a new mask at every step.
            activations: for the input, forget, cell and output gate and for c[t], or some by the
                descriptor's names.
            return_cells: also return c[t] of the last layer for every step.
            peephole_on_new_cell: let the output gate's peephole see c[t] instead, as in ONNX.
            zoneout: the probability that a unit of h or c keeps its value at a step, in
                training; in evaluation both are the expectation. {"h": 0.1, "c": 0.5} sets it
                per state.
            clip: keep c[t] within ±clip, before h[t] = o·f(c[t]); a mapping sets it per state.
        """
        super().__init__(
            input_size=input_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            device=device,
            dtype=dtype,
            recurrent_dropout=recurrent_dropout,
            recurrent_dropout_per_step=recurrent_dropout_per_step,
            activations=activations,
            zoneout=zoneout,
            clip=clip,
            proj_size=proj_size,
            peephole=peephole,
            options={"produce_cell": True, "peephole_on_new_cell": peephole_on_new_cell},
        )
        self.return_cells = self.returns_cells = return_cells
        self.peephole_on_new_cell = peephole_on_new_cell

    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: tuple[Tensor, Tensor] | None = None,
        lengths: Lengths | None = None,
        resets: Tensor | None = None,
    ) -> Any:
        """output [T,N,D·P], (h_n [D·L,N,P], c_n [D·L,N,H]), and with return_cells c [T,N,D·H].

        Args:
            input: [T,N,I], [N,T,I] with batch_first, [T,I] for one sequence, or packed.
            hx: h_0 [D·L,N,P] and c_0 [D·L,N,H]; None means zeros.
            lengths: [N], a tensor or a list: how many steps of each sequence count; None means
                all.
            resets: [T,N], or [N,T] with batch_first: true where step t starts a new sequence.
        """
        if isinstance(input, Proxy):
            return leaf_call(self, input, hx, lengths, resets)
        output, ends, cells = run(
            self, input, (None, None) if hx is None else two_states(self, hx), lengths, resets
        )
        return (output, ends, cells) if self.return_cells else (output, ends)
