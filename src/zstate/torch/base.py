"""What the layers share: their options and their parameters. What they compute: stack.py.

H hidden_size, P proj_size or H, G gates, D directions.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from numbers import Real
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..cells.variants import Changes, variant, variant_of_key
from ..descriptors import AnyDescriptor
from ..errors import DTypeError, OptionError, refusal
from ..operations import Operation, operations_of
from ..types import as_integer
from .as_torch_nn import LayerBase
from .parameters import (
    Activations,
    activation_options,
    describe,
    one_bias,
    reset_parameters,
)
from .private import parameter
from .zoneout import ByState, checked_changes

_CHANGING = ("zoneout", "clip")


class Weights(NamedTuple):
    """The inputs of the operation that are parameters, or their gradients, of one layer's one or
    two directions."""

    recurrent: Tensor
    input: Tensor | None  # None: folded into the source
    bias: Tensor | None
    own: tuple[Tensor | None, ...]  # the cell's own, in its order
    projection: Tensor | None = None  # [P,H]; one direction only

    def beside(self, second: Weights) -> Weights:
        """Those of both directions, from those of each."""
        pairs = zip(self.own, second.own, strict=True)
        return Weights(
            torch.stack([self.recurrent, second.recurrent]),
            _joined(self.input, second.input),
            _joined(self.bias, second.bias),
            tuple([_joined(*pair) for pair in pairs]),
        )

    def part(self, index: int) -> Weights:
        """Those of one direction, from those of both."""
        return Weights(
            self.recurrent[index],
            _half(self.input, index),
            _half(self.bias, index),
            tuple([_half(each, index) for each in self.own]),
        )


class Layers(LayerBase):
    """What all layers share."""

    operation: ClassVar[Operation]
    zoneout: ByState
    clip: ByState | None
    changes: Changes | None = None  # what zoneout and clip come to
    is_plain = True  # whether a call computes the operation, without changes or values per step

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
        recurrent_dropout: float = 0.0,
        recurrent_dropout_per_step: bool = False,
        activations: Activations | None = None,
        proj_size: int = 0,
        peephole: bool = False,
        heads: int = 1,
        zoneout: ByState = 0.0,
        clip: ByState | None = None,
        options: dict[str, Any],
    ) -> None:
        """``options``: the descriptor's, as torch.nn's layer has them."""
        torch.nn.Module.__init__(self)  # not RNNBase's, which makes its own parameters
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
        self.heads = heads
        self.activations = activations
        self.zoneout = zoneout
        self.clip = clip
        self._check_options()
        self._change(self.zoneout, self.clip)
        cell = self.operation.cell
        kind: Any = cell.descriptor
        options = options | activation_options(type(self).__name__, kind, activations)
        if heads != 1:
            options["heads"] = heads
        self.one_direction: AnyDescriptor = kind(**options)
        # Of the operation that does a whole layer, and of its training.
        self.descriptor: AnyDescriptor = kind(bidirectional=bidirectional, **options)
        self.trained: AnyDescriptor = replace(self.descriptor, training=True)
        self.states = len(cell.states)  # h, or h and c
        self.starts: dict[int, float] = {}  # the states that do not begin with 0, by their place
        self.returns_cells = False
        stems = self._stems()
        self._names = [
            [[stem and stem + suffix for stem in stems] for suffix in self._suffixes(layer)]
            for layer in range(num_layers)
        ]
        self._make_parameters({"device": device, "dtype": dtype})
        self.reset_parameters()

    def _check_options(self) -> None:
        name = type(self).__name__
        for option in ("bias", "batch_first", "bidirectional"):
            if not isinstance(getattr(self, option), bool):
                raise DTypeError(refusal(name, option, "a bool", repr(getattr(self, option))))
        for option in ("input_size", "hidden_size", "num_layers", "proj_size", "heads"):
            value = getattr(self, option)
            whole = as_integer(value)
            if whole is None:
                raise DTypeError(refusal(name, option, "an integer", repr(value)))
            setattr(self, option, whole)
        for option in ("input_size", "hidden_size", "num_layers", "heads"):
            if getattr(self, option) <= 0:
                raise OptionError(refusal(name, option, "at least 1", repr(getattr(self, option))))
        if self.hidden_size % self.heads:
            expected = f"a divisor of hidden_size = {self.hidden_size}"
            raise OptionError(refusal(name, "heads", expected, repr(self.heads)))
        for option in ("dropout", "recurrent_dropout"):
            value = getattr(self, option)
            is_number = isinstance(value, Real) and not isinstance(value, bool)
            if not is_number or not 0 <= float(value) <= 1:
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

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _CHANGING:
            value = dict(value) if isinstance(value, Mapping) else value
            if "changes" in self.__dict__:  # the layer is made, and its option set anew
                self._change(*(value if n == name else getattr(self, n) for n in _CHANGING))
        super().__setattr__(name, value)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A layer from a pickle: its cell's variants may not be there yet."""
        super().__setstate__(state)
        self._make_variants()

    def _change(self, zoneout: ByState, clip: ByState | None) -> None:
        cell, name = self.operation.cell, type(self).__name__
        self.changes = checked_changes(name, cell, bool(self.proj_size), zoneout, clip)
        self.is_plain = self.changes is None and not cell.values
        self._make_variants()

    def _make_variants(self) -> None:
        """At once: no operator can be defined inside torch.compile."""
        if self.changes is not None:
            cell, changes = self.operation.cell, self.changes
            self._variants = [variant(cell, changes, drawn).key for drawn in (False, True)]

    @property
    def computed(self) -> Operation:
        """What a call computes: the operation or, with changes, that of the cell's variant."""
        return self.computed_in(self.training)

    def computed_in(self, training: bool) -> Operation:
        """The same in training or in evaluation."""
        if self.changes is None:
            return self.operation
        key = self._variants[training]
        return operations_of(variant_of_key(self.operation.cell, key))[0]

    @property
    def directions(self) -> int:
        """1 or 2."""
        return 2 if self.bidirectional else 1

    def _stems(self) -> tuple[str | None, ...]:
        """The names of one direction's parameters without the layer's suffix, in the order of
        layer_parameters; None for one that it does not have."""
        raise NotImplementedError

    def _shapes(self, inputs: int) -> dict[str, tuple[int, ...]]:
        """The shapes by these names, in the order in which they are made."""
        cell, wide = self.operation.cell, self.hidden_size
        rows = (len(cell.gates) - len(cell.values)) * wide
        heads = () if self.heads == 1 else (self.heads,)
        recurrent = (*heads, rows // self.heads, (self.proj_size or wide) // self.heads)
        return {"weight_ih": (rows, inputs), "weight_hh": recurrent}

    def _make_parameters(self, where: dict[str, Any]) -> None:
        for layer in range(self.num_layers):
            wide = (self.proj_size or self.hidden_size) * self.directions
            shapes = self._shapes(self.input_size if layer == 0 else wide)
            for suffix in self._suffixes(layer):
                for name, shape in shapes.items():
                    empty = torch.nn.Parameter(torch.empty(shape, **where))
                    self.register_parameter(name + suffix, empty)

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", f"_l{layer}_reverse"][: self.directions]

    def reset_parameters(self) -> None:
        """Uniform values within ±1/√H, the same as torch.nn's for the same seed."""
        reset_parameters(self, self.hidden_size)

    def _weight_names(self) -> list[list[str]]:
        recurrent, weight, *others = self._stems()
        stems = [stem for stem in (weight, recurrent, *others) if stem is not None]
        return [
            [stem + suffix for stem in stems]
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

    def _direction(self, names: list[str | None]) -> tuple[Tensor | None, ...]:
        """One direction's parameters, None for those it does not have."""
        return tuple([None if name is None else parameter(self, name) for name in names])

    def direction_weights(self, layer: int, index: int) -> Weights:
        """The parameters of one direction as the operation takes them."""
        return self._weights(self._direction(self._names[layer][index]), True)

    def joined(self, parameters: tuple[Tensor | None, ...], sums: bool = True) -> Weights:
        """A layer's parameters as the operation takes them; ``sums`` as in _weights."""
        if not self.bidirectional:
            return self._weights(parameters, sums)
        half = len(parameters) // 2
        return self._weights(parameters[:half], sums).beside(self._weights(parameters[half:], sums))

    def spread(self, gradients: Weights) -> list[Tensor | None]:
        """The gradients of a layer's parameters from those of the operation's inputs."""
        if not self.bidirectional:
            return self._spread(gradients)
        return self._spread(gradients.part(0)) + self._spread(gradients.part(1))

    def _weights(self, parameters: tuple[Tensor | None, ...], sums: bool) -> Weights:
        """One direction's; without ``sums``, a bias that is right in shape alone."""
        raise NotImplementedError

    def _spread(self, gradients: Weights) -> list[Tensor | None]:
        """One direction's; the way back."""
        raise NotImplementedError


class BuiltIn(Layers):
    """What RNN, LSTM and GRU share: the parameters of torch.nn, and peepholes."""

    reset_after = False  # a GRU says so

    def _stems(self) -> tuple[str | None, ...]:
        return (
            "weight_hh",
            "weight_ih",
            "bias_ih" if self.bias else None,
            "bias_hh" if self.bias else None,
            "weight_hr" if self.proj_size else None,
            "peephole" if self.peephole else None,
        )

    def _shapes(self, inputs: int) -> dict[str, tuple[int, ...]]:
        """torch.nn's, in torch.nn's order."""
        shapes = super()._shapes(inputs)
        rows = shapes["weight_ih"][:1]
        if self.bias:
            shapes |= {"bias_ih": rows, "bias_hh": rows}
        if self.proj_size:
            shapes["weight_hr"] = (self.proj_size, self.hidden_size)
        return shapes

    def _make_parameters(self, where: dict[str, Any]) -> None:
        """torch.nn's; what it does not have comes last."""
        super()._make_parameters(where)
        for layer in range(self.num_layers if self.peephole else 0):
            for suffix in self._suffixes(layer):
                empty = torch.nn.Parameter(torch.empty(4 * self.hidden_size, **where))
                self.register_parameter(f"peephole{suffix}", empty)

    def layer_directions(self, layer: int) -> list[Any]:
        """Of each direction the recurrent and the input weight, and the two biases or None."""
        return [self._direction(names)[:4] for names in self._names[layer]]

    def _weights(self, parameters: tuple[Tensor | None, ...], sums: bool) -> Weights:
        recurrent, weight, ih, hh, projection, peephole = parameters
        assert recurrent is not None
        bias, secondary = one_bias(ih, hh, self.hidden_size, self.reset_after, sums)
        own = own_of(self.operation, peephole, secondary)
        return Weights(recurrent, weight, bias, own, projection)

    def _spread(self, gradients: Weights) -> list[Tensor | None]:
        """The two biases are added, but for a secondary one; see one_bias."""
        recurrent, weight, bias, own, _ = gradients
        hidden, peephole = bias, None
        for each, gradient in zip(self.operation.cell.own, own, strict=True):
            if each.name == "peephole":
                peephole = gradient
            elif bias is not None and gradient is not None:
                hidden = torch.cat([bias[: -len(gradient)], gradient])
        return [recurrent, weight, bias, hidden, None, peephole]


def own_of(
    operation: Operation, peephole: Tensor | None, secondary: Tensor | None
) -> tuple[Tensor | None, ...]:
    """The own parameter of a built-in cell; no such cell has more than one."""
    own = operation.cell.own
    return (peephole if own[0].name == "peephole" else secondary,) if own else ()


def _joined(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    if first is None or second is None:
        return None
    return torch.cat([first, second])


def _half(joined: Tensor | None, index: int) -> Tensor | None:
    """One direction's part of what has the directions one above the other."""
    if joined is None:
        return None
    half = len(joined) // 2
    return joined.narrow(0, index * half, half)
