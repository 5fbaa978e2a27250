"""What RNN, LSTM and GRU share: their options and their parameters. What they compute: stack.py.

H hidden_size, P proj_size or H.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..descriptors import AnyDescriptor
from ..errors import DTypeError, OptionError, refusal
from ..layout import DESCRIPTORS
from ..operations import Operation
from .parameters import (
    Activations,
    activation_options,
    describe,
    one_bias,
    reset_parameters,
)
from .private import parameter


class Weights(NamedTuple):
    """The inputs of the operation that are parameters, of one layer's one or two directions."""

    recurrent: Tensor
    input: Tensor | None  # None: folded into the source
    bias: Tensor | None
    secondary: Tensor | None
    peephole: Tensor | None
    projection: Tensor | None  # [P,H]; one direction only


# The names of the parameters without the layer's suffix, in the order of _Names.
_STEMS = ("weight_hh", "weight_ih", "bias_ih", "bias_hh", "peephole", "weight_hr")


class _Names(NamedTuple):
    """The parameters of one layer's one direction."""

    recurrent: str
    input: str
    bias_ih: str
    bias_hh: str
    peephole: str
    projection: str


_EACH = len(_Names._fields)


class Recurrent(torch.nn.Module):
    """What the three layers share."""

    operation: ClassVar[Operation]
    gates: ClassVar[int]

    def __init__(
        self,
        *,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        bias: bool,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
        device: Any,
        dtype: Any,
        recurrent_dropout: float,
        recurrent_dropout_per_step: bool,
        activations: Activations | None,
        proj_size: int = 0,
        peephole: bool = False,
        options: dict[str, Any],
    ) -> None:
        """``options``: the descriptor's, as torch.nn's layer has them."""
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = dropout
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        self.recurrent_dropout = recurrent_dropout
        self.recurrent_dropout_per_step = recurrent_dropout_per_step
        self.peephole = peephole
        self.activations = activations
        self._check_options()
        kind = DESCRIPTORS[self.operation.cell.name]
        options = options | activation_options(type(self).__name__, kind, activations)
        self.one_direction: AnyDescriptor = kind(**options)
        # Of the operation that does a whole layer, and of its training.
        self.descriptor: AnyDescriptor = kind(bidirectional=bidirectional, **options)
        self.trained: AnyDescriptor = replace(self.descriptor, training=True)
        self.states = len(self.operation.cell.states)  # h, or h and c
        self._resets_after = bool(options.get("reset_after", False))
        self.returns_cells = False
        self._names = [
            [_Names(*(stem + suffix for stem in _STEMS)) for suffix in self._suffixes(layer)]
            for layer in range(num_layers)
        ]
        self._make_parameters({"device": device, "dtype": dtype})
        self.reset_parameters()

    def _check_options(self) -> None:
        name = type(self).__name__
        for option in ("bias", "batch_first"):
            if not isinstance(getattr(self, option), bool):
                raise DTypeError(refusal(name, option, "a bool", repr(getattr(self, option))))
        for option in ("input_size", "hidden_size", "num_layers", "proj_size"):
            value = getattr(self, option)
            if not isinstance(value, int):
                raise DTypeError(refusal(name, option, "a whole number", repr(value)))
        for option in ("input_size", "hidden_size", "num_layers"):
            if getattr(self, option) <= 0:
                raise OptionError(refusal(name, option, "at least 1", repr(getattr(self, option))))
        for option in ("dropout", "recurrent_dropout"):
            value = getattr(self, option)
            if isinstance(value, bool | str) or not 0 <= float(value) <= 1:
                raise OptionError(refusal(name, option, "a number from 0 to 1", repr(value)))
            setattr(self, option, float(value))
        if not 0 <= self.proj_size < self.hidden_size:
            expected = f"0 to hidden_size - 1 = {self.hidden_size - 1}"
            raise OptionError(refusal(name, "proj_size", expected, repr(self.proj_size)))
        if self.proj_size and self.recurrent_dropout:
            expected = "0 with proj_size, whose product is folded into the recurrent weight"
            raise OptionError(
                refusal(name, "recurrent_dropout", expected, repr(self.recurrent_dropout))
            )
        if self.dropout > 0 and self.num_layers == 1:
            warnings.warn(
                f"{name}: dropout={self.dropout} has no effect with num_layers=1: it works between "
                "layers",
                stacklevel=4,
            )

    @property
    def directions(self) -> int:
        """1 or 2."""
        return 2 if self.bidirectional else 1

    def _make_parameters(self, where: dict[str, Any]) -> None:
        """torch.nn's, in torch.nn's order; what it does not have comes last."""
        rows, wide = self.gates * self.hidden_size, self.proj_size or self.hidden_size
        for layer in range(self.num_layers):
            inputs = self.input_size if layer == 0 else wide * self.directions
            shapes: dict[str, tuple[int, ...]] = {
                "weight_ih": (rows, inputs),
                "weight_hh": (rows, wide),
            }
            if self.bias:
                shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
            if self.proj_size:
                shapes["weight_hr"] = (self.proj_size, self.hidden_size)
            for suffix in self._suffixes(layer):
                for name, shape in shapes.items():
                    empty = torch.nn.Parameter(torch.empty(shape, **where))
                    self.register_parameter(name + suffix, empty)
        for layer in range(self.num_layers if self.peephole else 0):
            for suffix in self._suffixes(layer):
                empty = torch.nn.Parameter(torch.empty(rows, **where))
                self.register_parameter(f"peephole{suffix}", empty)

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", f"_l{layer}_reverse"][: self.directions]

    def reset_parameters(self) -> None:
        """Uniform values within ±1/√H, the same as torch.nn's for the same seed."""
        reset_parameters(self, self.hidden_size)

    def flatten_parameters(self) -> None:
        """Nothing: the parameters are used as they are. For callers that know torch.nn's."""

    @property
    def all_weights(self) -> list[list[Tensor]]:
        """The parameters of each layer and direction, as torch.nn lists them."""
        names = ["weight_ih", "weight_hh"]
        names += ["bias_ih", "bias_hh"] if self.bias else []
        names += ["weight_hr"] if self.proj_size else []
        names += ["peephole"] if self.peephole else []
        return [
            [getattr(self, name + suffix) for name in names]
            for layer in range(self.num_layers)
            for suffix in self._suffixes(layer)
        ]

    def extra_repr(self) -> str:
        return describe(self)

    def layer_parameters(self, layer: int) -> tuple[Tensor | None, ...]:
        """A layer's parameters, those of the second direction behind those of the first."""
        first, *others = self._names[layer]
        parameters = self._direction(first)
        return parameters + self._direction(others[0]) if others else parameters

    def _direction(self, names: _Names) -> tuple[Tensor | None, ...]:
        """One direction's parameters in the order of _Names, None for those it does not have."""
        return (
            parameter(self, names.recurrent),
            parameter(self, names.input),
            parameter(self, names.bias_ih) if self.bias else None,
            parameter(self, names.bias_hh) if self.bias else None,
            parameter(self, names.peephole) if self.peephole else None,
            parameter(self, names.projection) if self.proj_size else None,
        )

    def direction_weights(self, layer: int, index: int) -> Weights:
        """The parameters of one direction as the operation takes them."""
        return self.joined(self._direction(self._names[layer][index]))

    def joined(self, parameters: tuple[Tensor | None, ...], sums: bool = True) -> Weights:
        """The parameters of one or two directions as the operation takes them; see one_bias."""
        recurrent, weight, ih, hh, peephole, projection = parameters[:_EACH]
        assert recurrent is not None and weight is not None
        bias, secondary = one_bias(ih, hh, self.hidden_size, self._resets_after, sums)
        first = Weights(recurrent, weight, bias, secondary, peephole, projection)
        if len(parameters) == _EACH:
            return first
        second = self.joined(parameters[_EACH:], sums)
        assert second.input is not None
        return Weights(
            torch.stack([recurrent, second.recurrent]),
            torch.cat([weight, second.input]),
            _joined(bias, second.bias),
            _joined(secondary, second.secondary),
            _joined(peephole, second.peephole),
            None,
        )


def _joined(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    if first is None or second is None:
        return None
    return torch.cat([first, second])
