"""RNNCell, LSTMCell and GRUCell: one step, with torch.nn's constructors and parameters.

N batch, I input_size, H hidden_size.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import operations
from ..descriptors import Activation, AnyDescriptor
from ..errors import OptionError, ShapeError, refusal
from ..layout import DESCRIPTORS
from ..operations import Operation
from .as_torch_nn import CellBase, Proxy, leaf_call
from .base import Weights, own_of
from .checks import check_input, check_state, check_tensor, two_states
from .one_call import Hidden, operation_inputs
from .onnx_nodes import is_exporting, run_node, words_of
from .operators import run
from .parameters import (
    Activations,
    activation_options,
    describe,
    one_bias,
    reset_parameters,
)
from .private import parameter


class RecurrentCell(CellBase):
    """What the three cells share."""

    operation: ClassVar[Operation]
    gates: ClassVar[int]

    def __init__(
        self,
        *,
        input_size: int,
        hidden_size: int,
        bias: bool,
        device: Any,
        dtype: Any,
        activations: Activations | None,
        peephole: bool = False,
        options: dict[str, Any],
    ) -> None:
        """``options``: the descriptor's, as torch.nn's cell has them."""
        torch.nn.Module.__init__(self)  # not RNNCellBase's, which makes its own parameters
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        kind = DESCRIPTORS[self.operation.cell.name]
        options = options | activation_options(type(self).__name__, kind, activations)
        self._descriptor: AnyDescriptor = kind(**options)
        self.activations = activations
        self._reset_after = bool(options.get("reset_after", False))
        self._has_peephole = peephole
        rows = self.gates * hidden_size
        shapes: dict[str, tuple[int, ...] | None] = {
            "weight_ih": (rows, input_size),
            "weight_hh": (rows, hidden_size),
            "bias_ih": (rows,) if bias else None,
            "bias_hh": (rows,) if bias else None,
        }
        if peephole:
            shapes["peephole"] = (rows,)
        for name, shape in shapes.items():
            parameter = None
            if shape is not None:
                parameter = torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
            self.register_parameter(name, parameter)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform values within ±1/√H, the same as torch.nn's for the same seed."""
        reset_parameters(self, self.hidden_size)

    def extra_repr(self) -> str:
        return describe(self)

    def _step(self, input: Tensor, states: Hidden) -> tuple[Tensor, ...]:
        """h, or h and c, after one step; [N,H] or [H] as the input is [N,I] or [I]."""
        hidden = self.hidden_size
        check_tensor(self, "input", input)
        batched = input.dim() == 2
        if not batched and input.dim() != 1:
            expected = "1 axis (one sequence) or 2"
            raise ShapeError(refusal(type(self).__name__, "input", expected, f"{input.dim()} axes"))
        source = input.unsqueeze(0) if batched else input[None, None]  # [1,N,I]
        weight = parameter(self, "weight_hh")
        check_input(self, source, weight)
        shape = (*input.shape[:-1], hidden)
        for kind, state in zip(self.operation.cell.states, states, strict=False):
            if state is not None:
                check_tensor(self, f"{kind.symbol}_0", state)
                letters = "[N,H]" if batched else "[H]"
                check_state(self, f"{kind.symbol}_0", state, letters, shape, weight)
        if not hidden:  # as in torch.nn's cells; the operations need a unit
            return tuple([source.new_zeros(shape) for _ in states])
        if not batched:
            states = tuple(None if state is None else state.unsqueeze(0) for state in states)
        words = None
        if is_exporting() and not self._has_peephole:
            words = words_of(self.operation.cell.name, self._descriptor)
        if words is not None:
            firsts = tuple(None if state is None else state.unsqueeze(0) for state in states)
            directions = [(weight, self.weight_ih, self.bias_ih, self.bias_hh)]
            cell = self.operation.cell.name
            _, ends = run_node(cell, self._descriptor, words, source, directions, firsts)
            return tuple([end[0] if batched else end[0, 0] for end in ends])
        bias = secondary = None
        if self.bias:
            both = parameter(self, "bias_ih"), parameter(self, "bias_hh")
            bias, secondary = one_bias(*both, hidden, self._reset_after)
        peephole = parameter(self, "peephole") if self._has_peephole else None
        weight_ih = parameter(self, "weight_ih")
        own = own_of(self.operation, peephole, secondary)
        weights = Weights(weight, weight_ih, bias, own)
        tensors = operation_inputs(self.operation, source, weights, states, None, None)
        results: Any = run(self.operation, tensors, self._descriptor, None)
        return tuple([r[0] if batched else r[0, 0] for r in results[: len(states)]])


class _OneStateCell(RecurrentCell):
    """A cell whose only state is h."""

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """h' [N,H] from input [N,I] and h [N,H]; None means zeros."""
        if isinstance(input, Proxy):
            return leaf_call(self, input, hx)
        return self._step(input, (hx,))[0]


class RNNCell(_OneStateCell):
    """torch.nn.RNNCell, with any of the five activations.

    Example:
        >>> RNNCell(10, 20)(torch.randn(3, 10)).shape
        torch.Size([3, 20])
    """

    operation = operations.SINGLE_GATE_RNN
    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: Any = None,
        *,
        activations: Activations | None = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise OptionError(
                refusal("RNNCell", "nonlinearity", "'tanh' or 'relu'", repr(nonlinearity))
            )
        super().__init__(
            input_size=input_size,
            hidden_size=hidden_size,
            bias=bias,
            device=device,
            dtype=dtype,
            activations=activations,
            options={"activation": Activation[nonlinearity.upper()]},
        )
        self.nonlinearity = nonlinearity


class GRUCell(_OneStateCell):
    """torch.nn.GRUCell, with activations by gate and ``reset_after``.

    Example:
        >>> GRUCell(10, 20)(torch.randn(10)).shape
        torch.Size([20])
    """

    operation = operations.GRU_FORWARD
    gates = 3

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        activations: Activations | None = None,
        reset_after: bool = True,
    ) -> None:
        super().__init__(
            input_size=input_size,
            hidden_size=hidden_size,
            bias=bias,
            device=device,
            dtype=dtype,
            activations=activations,
            options={"reset_gate_first": True, "reset_after": reset_after},
        )
        self.reset_after = reset_after


class LSTMCell(RecurrentCell):
    """torch.nn.LSTMCell, with peepholes and activations by gate.

    Example:
        >>> h, c = LSTMCell(10, 20, peephole=True)(torch.randn(3, 10))
        >>> h.shape, c.shape
        (torch.Size([3, 20]), torch.Size([3, 20]))
    """

    operation = operations.LSTM_FORWARD
    gates = 4

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        peephole: bool = False,
        activations: Activations | None = None,
        peephole_on_new_cell: bool = False,
    ) -> None:
        super().__init__(
            input_size=input_size,
            hidden_size=hidden_size,
            bias=bias,
            device=device,
            dtype=dtype,
            activations=activations,
            peephole=peephole,
            options={"produce_cell": True, "peephole_on_new_cell": peephole_on_new_cell},
        )
        self.peephole_on_new_cell = peephole_on_new_cell

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """h', c' [N,H] from input [N,I] and h, c [N,H]; None means zeros."""
        if isinstance(input, Proxy):
            return leaf_call(self, input, hx)
        h, c = self._step(input, two_states(self, hx))
        return h, c
