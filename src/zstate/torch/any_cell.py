"""A cell from equations as a module: layers, directions, lengths and packed sequences.

T time, N batch, I input_size, H hidden_size, D directions, L layers, G gates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ..cells.decorator import MadeCell
from ..errors import DTypeError, OptionError, refusal
from ..layout import describe
from ..operations import Operation, calls_of, operations_of
from .as_torch_nn import Proxy, leaf_call
from .base import Layers, Weights
from .checks import Lengths, several_states
from .one_call import Hidden
from .stack import run
from .zoneout import ByState


class Recurrent(Layers):
    """Layers of any cell made by ``@cells.cell``, used like torch.nn's.

    Parameters of each layer and direction: ``weight_ih_l0`` [G·H,I], ``weight_hh_l0`` [G·H,H],
    ``bias_l0`` [G·H], and the cell's own by name, such as ``p_i_l0`` [H]; with heads,
    ``weight_hh_l0`` is [heads,G·d,d] with d = H/heads. A cell without products has no weight_hh.

    Example:
        >>> import torch
        >>> from zstate import cells
        >>> layer = Recurrent(cells.slstm, 10, 20, num_layers=2, bidirectional=True)
        >>> output, (h, c, n, m) = layer(torch.randn(5, 3, 10))
        >>> output.shape, m.shape
        (torch.Size([5, 3, 40]), torch.Size([4, 3, 20]))
    """

    def __init__(
        self,
        cell: MadeCell,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        heads: int = 1,
        device: Any = None,
        dtype: Any = None,
        *,
        zoneout: ByState = 0.0,
        clip: ByState | None = None,
    ) -> None:
        """The arguments of torch.nn's layers, with:

        Args:
            cell: a cell of zstate.cells, or one of your own.
            heads: blocks of units that do not see each other in the recurrent product.
            zoneout: the probability that a unit keeps its value at a step, in training; in
                evaluation a state is the expectation. One number for all states, or {"h": 0.1}
                for some.
            clip: a bound b that keeps new values within ±b, for the state c or, without one, for
                the first state; {"n": 3.0} for others.
        """
        if not isinstance(cell, MadeCell):
            expected = "a cell made by @zstate.cells.cell"
            raise DTypeError(refusal("Recurrent", "cell", expected, describe(cell)))
        self.cell = cell
        call, _ = calls_of(cell.definition)
        self._multiplies = "recurrent_weight" in call.required
        if not self._multiplies and heads != 1:
            expected = "1, as the cell has no products"
            raise OptionError(refusal("Recurrent", "heads", expected, str(heads)))
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
            heads=heads,
            zoneout=zoneout,
            clip=clip,
            options={},
        )
        begins = [cell.initial.get(each.name, 0.0) for each in cell.definition.states]
        self.starts = {place: value for place, value in enumerate(begins) if value}

    @property
    def operation(self) -> Operation:  # type: ignore[override]
        """The cell's; not kept, since a copied or pickled module would have one of its own."""
        return operations_of(self.cell.definition)[0]

    def forward(
        self,
        input: Tensor | PackedSequence,
        states: Any = None,
        lengths: Lengths | None = None,
        resets: Tensor | None = None,
        steps: Mapping[str, Tensor] | None = None,
    ) -> tuple[Any, Any]:
        """output [T,N,D·H] of the first state, and all states after the last step [D·L,N,H].

        Args:
            input: [T,N,I], [N,T,I] with batch_first, [T,I] for one sequence, or packed.
            states: a tensor [D·L,N,H] for a cell with one state; otherwise one per state, in the
                cell's order. None, for all or for one, means the cell's initial values.
            lengths: [N], a tensor or a list: how many steps of each sequence count; None means
                all.
            resets: [T,N], or [N,T] with batch_first: true where step t starts a new sequence.
            steps: the cell's values per step by name, each [T,N,H] or anything that broadcasts to
                it, [N,T,H] with batch_first; every layer and both directions get the same.
        """
        if isinstance(input, Proxy):
            return leaf_call(self, input, states, lengths, resets, steps)
        output, ends, _ = run(self, input, self._each_state(states), lengths, resets, steps)
        return output, ends[0] if self.states == 1 else ends

    def _each_state(self, states: Any) -> Hidden:
        if self.states == 1:
            return (states,)
        names = ", ".join(f"{each.symbol}_0" for each in self.operation.cell.states)
        expected = f"{self.states} tensors ({names})"
        return several_states(self, "states", expected, states, self.states)

    def reset_parameters(self) -> None:
        """Uniform values within ±1/√H; parameters called scale… are 1, shift… 0."""
        super().reset_parameters()
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name.startswith(("scale", "shift")):
                    parameter.fill_(name.startswith("scale"))

    def extra_repr(self) -> str:
        return f"{self.cell.__name__}, {super().extra_repr()}"

    def _stems(self) -> tuple[str | None, ...]:
        own = [each.name for each in self.operation.cell.own]
        recurrent = "weight_hh" if self._multiplies else None
        return (recurrent, "weight_ih", "bias" if self.bias else None, *own)

    def _shapes(self, inputs: int) -> dict[str, tuple[int, ...]]:
        shapes = super()._shapes(inputs)
        rows = shapes["weight_ih"][:1]
        if not self._multiplies:
            del shapes["weight_hh"]
        if self.bias:
            shapes["bias"] = rows
        for each in self.operation.cell.own:
            if each.name in shapes:
                expected = "a cell whose parameter names differ from the layer's own"
                raise OptionError(refusal("Recurrent", "cell", expected, each.name))
            shapes[each.name] = rows if each.by_gate else (self.hidden_size,)
        return shapes

    def _weights(self, parameters: tuple[Tensor | None, ...], sums: bool) -> Weights:
        recurrent, weight, bias, *own = parameters
        if recurrent is None:  # the operation takes one, and nothing reads it
            assert weight is not None
            recurrent = weight.new_zeros(weight.shape[0], self.hidden_size)
        return Weights(recurrent, weight, bias, tuple(own))

    def _spread(self, gradients: Weights) -> list[Tensor | None]:
        recurrent = gradients.recurrent if self._multiplies else None
        return [recurrent, gradients.input, gradients.bias, *gradients.own]
