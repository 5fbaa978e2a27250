"""What RNN, LSTM and GRU share: options, parameters, layers, directions, packed and padded input.

T time, N batch, I input_size, H hidden_size, P proj_size or H, D directions, L layers.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from .. import operations
from ..descriptors import Activation, AnyDescriptor
from ..errors import OptionError, ShapeError, refusal
from ..layout import DESCRIPTORS
from ..operations import Operation
from . import lengths as sequences
from . import segments
from .operators import run
from .parameters import (
    one_bias,
    reset_parameters,
)

Hidden: TypeAlias = tuple[Tensor | None, ...]  # h, or h and c: one for each layer and direction


# The operations' inputs, as places in the order in which a layer has them.
_INPUTS = (
    *("source", "recurrent_weight", "input_weight", "bias", "init_state", "init_cell"),
    *("mask", "peephole", "secondary_bias"),
)
_PLACES = {
    operation.cell.name: tuple(_INPUTS.index(name) for name in operation.inputs)
    for operation in (operations.SINGLE_GATE_RNN, operations.LSTM_FORWARD, operations.GRU_FORWARD)
}


class _Weights(NamedTuple):
    """The inputs of the operation that are parameters, of one layer's one or two directions."""

    recurrent: Tensor
    input: Tensor
    bias: Tensor | None
    secondary: Tensor | None
    peephole: Tensor | None
    projection: Tensor | None  # [P,H]; one direction only


class _Ran(NamedTuple):
    """What one layer gives."""

    state: Tensor  # [T,N,D·P]
    cell: Tensor | None  # [T,N,D·H]
    last: tuple[Tensor, ...]  # h [D,N,P], or h and c [D,N,H]


class Recurrent(torch.nn.Module):
    """What the three layers share."""

    operation: ClassVar[Operation]
    gates: ClassVar[int]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        bias: bool,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
        proj_size: int,
        device: Any,
        dtype: Any,
        recurrent_dropout: float,
        recurrent_dropout_per_step: bool,
        peephole: bool,
        options: dict[str, Any],
    ) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout)
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        self.recurrent_dropout = float(recurrent_dropout)
        self.recurrent_dropout_per_step = recurrent_dropout_per_step
        self.peephole = peephole
        self._check_options()
        kind = DESCRIPTORS[self.operation.cell.name]
        self._one: AnyDescriptor = kind(**options)
        self._both: AnyDescriptor = kind(bidirectional=True, **options)
        self._reset_after = bool(options.get("reset_after", False))
        unbounded = {Activation.NONE, Activation.RELU}
        self._returns_cells = False
        self._is_bounded = not unbounded & set(self._one.activations)
        self._make_parameters({"device": device, "dtype": dtype})
        self.reset_parameters()

    def _check_options(self) -> None:
        name = type(self).__name__
        for option in ("bias", "batch_first"):
            if not isinstance(getattr(self, option), bool):
                raise TypeError(refusal(name, option, "a bool", repr(getattr(self, option))))
        for option in ("input_size", "hidden_size"):
            value = getattr(self, option)
            if not isinstance(value, int):
                raise TypeError(refusal(name, option, "a whole number", repr(value)))
        for option in ("input_size", "hidden_size", "num_layers"):
            if getattr(self, option) <= 0:
                raise OptionError(refusal(name, option, "at least 1", repr(getattr(self, option))))
        for option in ("dropout", "recurrent_dropout"):
            if not 0 <= getattr(self, option) <= 1:
                value = getattr(self, option)
                raise OptionError(refusal(name, option, "a number from 0 to 1", repr(value)))
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
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _make_parameters(self, where: dict[str, Any]) -> None:
        """torch.nn's, in torch.nn's order; what it does not have comes last."""
        rows, wide = self.gates * self.hidden_size, self.proj_size or self.hidden_size
        for layer in range(self.num_layers):
            inputs = self.input_size if layer == 0 else wide * self._directions
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
                    parameter = torch.nn.Parameter(torch.empty(shape, **where))
                    self.register_parameter(name + suffix, parameter)
        for layer in range(self.num_layers if self.peephole else 0):
            for suffix in self._suffixes(layer):
                parameter = torch.nn.Parameter(torch.empty(rows, **where))
                self.register_parameter(f"peephole{suffix}", parameter)

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", f"_l{layer}_reverse"][: self._directions]

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
        defaults = {
            "proj_size": 0,
            "num_layers": 1,
            "nonlinearity": "tanh",
            "bias": True,
            "batch_first": False,
            "dropout": 0.0,
            "bidirectional": False,
            "peephole": False,
            "recurrent_dropout": 0.0,
            "recurrent_dropout_per_step": False,
            "reset_after": True,
            "return_cells": False,
            "activations": None,
        }
        words = [str(self.input_size), str(self.hidden_size)]
        for name, default in defaults.items():
            value = self.__dict__.get(name, default)
            if value != default:
                words.append(f"{name}={value}")
        return ", ".join(words)

    # One layer

    def _weights(self, suffixes: Sequence[str]) -> _Weights:
        """The parameters of one or both directions as the operation takes them."""
        if len(suffixes) == 2:
            first, second = (self._weights([suffix]) for suffix in suffixes)
            return _Weights(
                torch.stack([first.recurrent, second.recurrent]),
                torch.cat([first.input, second.input]),
                _joined(first.bias, second.bias),
                _joined(first.secondary, second.secondary),
                _joined(first.peephole, second.peephole),
                None,
            )
        (suffix,) = suffixes
        bias, secondary = None, None
        if self.bias:
            bias, secondary = one_bias(
                getattr(self, f"bias_ih{suffix}"),
                getattr(self, f"bias_hh{suffix}"),
                self.hidden_size,
                self._reset_after,
            )
        return _Weights(
            getattr(self, f"weight_hh{suffix}"),
            getattr(self, f"weight_ih{suffix}"),
            bias,
            secondary,
            getattr(self, f"peephole{suffix}") if self.peephole else None,
            getattr(self, f"weight_hr{suffix}") if self.proj_size else None,
        )

    def _scan(
        self,
        source: Tensor,
        weights: _Weights,
        initial: Hidden,
        mask: Tensor | None,
        descriptor: AnyDescriptor,
    ) -> tuple[Tensor, ...]:
        """h [T,N,D·H], or h and c."""
        recurrent, _, bias, secondary, peephole, projection = weights
        weight: Tensor | None = weights.input
        first, last = initial[0], initial[-1]
        if projection is not None:
            recurrent, source, weight, bias = _folded(source, weights, projection, first)
            first = None
        pool = (
            *(source, recurrent, weight, bias, first, last),
            *(mask, peephole, secondary),
        )
        tensors = tuple([pool[place] for place in _PLACES[self.operation.cell.name]])
        results: Any = run(self.operation, tensors, descriptor, None)
        found: tuple[Tensor, ...] = results[: len(initial)]
        if projection is not None:
            return torch.nn.functional.linear(found[0], projection), *found[1:]
        return found

    def _mask(self, like: Tensor, steps: int, batch: int, directions: int) -> Tensor | None:
        """Recurrent dropout: [1,N,D·H], one for the sequence, or [T,N,D·H]."""
        if not self.training or not self.recurrent_dropout:
            return None
        rows = steps if self.recurrent_dropout_per_step else 1
        ones = like.new_ones(rows, batch, directions * self.hidden_size)
        return torch.nn.functional.dropout(ones, self.recurrent_dropout)

    def _layer(self, layer: int, source: Tensor, initial: Hidden, lengths: Tensor | None) -> _Ran:
        """One layer; ``initial`` [D,N,·] each, or None."""
        if lengths is not None or self.proj_size:
            return self._each_direction(layer, source, initial, lengths)
        both = self.bidirectional
        firsts = [_side_by_side(state) for state in initial]
        results = self._scan(
            source,
            self._weights(self._suffixes(layer)),
            tuple(firsts),
            self._mask(source, source.shape[0], source.shape[1], self._directions),
            self._both if both else self._one,
        )
        ends = []
        for steps, first in zip(results, initial, strict=True):
            if not steps.shape[0]:
                zeros = steps.new_zeros(self._directions, steps.shape[1], self.hidden_size)
                ends.append(zeros if first is None else first)
            elif both:
                hidden = self.hidden_size
                ends.append(torch.stack([steps[-1, :, :hidden], steps[0, :, hidden:]]))
            else:
                last = steps if steps.shape[0] == 1 else steps[-1:]
                # A copy: whoever writes to h_n must not write to the output. Cells that nobody
                # else sees are their own last step when there is one step.
                seen = steps is results[0] or self._returns_cells or steps.requires_grad
                ends.append(last.clone() if seen or last is not steps else last)
        return _Ran(results[0], results[1] if len(results) > 1 else None, tuple(ends))

    def _each_direction(
        self, layer: int, source: Tensor, initial: Hidden, lengths: Tensor | None
    ) -> _Ran:
        """The directions one after the other, the second with its sequences turned round."""
        steps: list[tuple[Tensor, ...]] = []
        ends: list[list[Tensor]] = []
        for index, suffix in enumerate(self._suffixes(layer)):
            firsts = tuple(None if state is None else state[index] for state in initial)
            mask = self._mask(source, source.shape[0], source.shape[1], 1)
            if lengths is not None and not self._is_bounded:
                # A state that may grow without bound must not do so in the padding.
                within = sequences.inside(lengths, source.shape[0]).to(source.dtype)
                mask = within if mask is None else mask * within
            turned = source if index == 0 else _turned(source, lengths)
            results = self._scan(turned, self._weights([suffix]), firsts, mask, self._one)
            pairs = zip(results, firsts, strict=True)
            ends.append([_last(result, lengths, first) for result, first in pairs])
            if index == 1:
                results = tuple(_turned(result, lengths) for result in results)
            steps.append(results)
        parts = zip(*steps, strict=True)
        joined = [part[0] if len(part) == 1 else torch.cat(part, 2) for part in parts]
        stacked = tuple(torch.stack(part) for part in zip(*ends, strict=True))
        return _Ran(joined[0], joined[1] if len(joined) > 1 else None, stacked)

    def _in_segments(
        self, layer: int, source: Tensor, initial: Hidden, rows: segments.Rows
    ) -> _Ran:
        """The directions one after the other, without padding; source and results are rows."""
        steps: list[tuple[Tensor, ...]] = []
        ends: list[list[Tensor]] = []
        for index, suffix in enumerate(self._suffixes(layer)):
            weights = self._weights([suffix])
            work = float(weights.recurrent.shape[0] * sum(source.shape[1:], self.hidden_size))
            plan = segments.cut(rows, index == 1, work)
            firsts = tuple(None if state is None else state[index] for state in initial)
            found = self._segments(source, weights, firsts, plan)
            pairs = zip(found, firsts, strict=True)
            ends.append([segments.last(data, plan, rows.lengths, first) for data, first in pairs])
            wanted = found if self._returns_cells else found[:1]
            steps.append(tuple(segments.put(data, plan) for data in wanted))
        parts = zip(*steps, strict=True)
        joined = [part[0] if len(part) == 1 else torch.cat(part, 1) for part in parts]
        stacked = tuple(torch.stack(part) for part in zip(*ends, strict=True))
        return _Ran(joined[0], joined[1] if len(joined) > 1 else None, stacked)

    def _segments(
        self, source: Tensor, weights: _Weights, firsts: Hidden, plan: segments.Plan
    ) -> list[Tensor]:
        """h [M,·], or h and c, of the rows that a plan computes."""
        states = tuple(None if s is None else s.index_select(0, plan.order) for s in firsts)
        mask = None
        if not self.recurrent_dropout_per_step:
            mask = self._mask(source, 1, len(plan.order), 1)
        found: list[tuple[Tensor, ...]] = []
        row = 0
        for part in segments.take(source, plan):
            count, batch, _ = part.shape
            own = None if mask is None else mask[:, :batch]
            if self.recurrent_dropout_per_step:
                own = self._mask(part, count, batch, 1)
            if not self._is_bounded:
                # A state that may grow without bound must not do so in the padding.
                inside = plan.targets[row : row + count * batch] < plan.whole
                inside = inside.view(count, batch, 1).to(part.dtype)
                own = inside if own is None else own * inside
            row += count * batch
            states = tuple(None if state is None else state[:batch] for state in states)
            results = self._scan(part, weights, states, own, self._one)
            states = tuple(result[-1] for result in results)
            found.append(tuple(result.flatten(0, 1) for result in results))
        if not found:
            wide = (self.proj_size or self.hidden_size, self.hidden_size)[: len(firsts)]
            return [source.new_zeros(0, width) for width in wide]
        return [torch.cat(parts) for parts in zip(*found, strict=True)]

    # All layers

    def _run(
        self, input: Tensor | PackedSequence, initial: Hidden, lengths: Tensor | None
    ) -> tuple[Any, tuple[Tensor, ...], Any]:
        """output, the last states [D·L,N,·], and the last layer's cells or None."""
        if isinstance(input, PackedSequence):
            return self._run_packed(input, initial, lengths)
        if input.dim() not in (2, 3):
            expected = "2 axes (one sequence) or 3"
            raise ShapeError(refusal(type(self).__name__, "input", expected, f"{input.dim()} axes"))
        unbatched = input.dim() == 2
        if unbatched:
            source = input.unsqueeze(1)
            initial = tuple(None if state is None else state.unsqueeze(1) for state in initial)
            lengths = None if lengths is None else lengths.reshape(1)
        else:
            source = input.transpose(0, 1) if self.batch_first else input
        output, ends, cells = self._run_padded(source, initial, lengths)
        if unbatched:
            cells = None if cells is None else cells.squeeze(1)
            return output.squeeze(1), tuple(end.squeeze(1) for end in ends), cells
        if self.batch_first:
            return output.transpose(0, 1), ends, None if cells is None else cells.transpose(0, 1)
        return output, ends, cells

    def _run_packed(
        self, packed: PackedSequence, initial: Hidden, lengths: Tensor | None
    ) -> tuple[Any, tuple[Tensor, ...], Any]:
        if lengths is not None:
            expected = "none with a PackedSequence, which has its own"
            raise OptionError(refusal(type(self).__name__, "lengths", expected, "a tensor"))
        data, sizes, order, back = packed
        # In the order of the packed batch, longest first; the states go there and back.
        if order is not None:
            initial = tuple(None if s is None else s.index_select(1, order) for s in initial)
        if sequences.in_reach(data):
            self._check_call(data, int(sizes[0]), initial)
            rows = segments.packed_rows(sizes)
            output, ends, cells = self._stack(data, initial, None, rows)
        else:
            source, known = pad_packed_sequence(PackedSequence(data, sizes))
            output, ends, cells = self._run_padded(source, initial, known)
            output = pack_padded_sequence(output, known).data
            cells = None if cells is None else pack_padded_sequence(cells, known).data
        if back is not None:
            ends = tuple(end.index_select(1, back) for end in ends)
        results = [
            None if r is None else PackedSequence(r, sizes, order, back) for r in (output, cells)
        ]
        return results[0], ends, results[1]

    def _run_padded(
        self, source: Tensor, initial: Hidden, lengths: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...], Tensor | None]:
        """[T,N,I] through all layers."""
        steps, batch, _ = source.shape
        self._check_call(source, batch, initial)
        if lengths is None:
            return self._stack(source, initial, None, None)
        lengths = lengths.to(source.device, non_blocking=True)
        sequences.check_lengths(type(self).__name__, lengths, steps, batch)
        if sequences.in_reach(lengths):
            rows = segments.padded_rows(lengths, steps)
            output, ends, cells = self._stack(source.flatten(0, 1), initial, None, rows)
            cells = None if cells is None else cells.view(steps, batch, -1)
            return output.view(steps, batch, -1), ends, cells
        within = sequences.inside(lengths, steps)
        source = sequences.only_inside(source, within)
        output, ends, cells = self._stack(source, initial, lengths, None)
        cells = None if cells is None else sequences.only_inside(cells, within)
        return sequences.only_inside(output, within), ends, cells

    def _stack(
        self, source: Tensor, initial: Hidden, lengths: Tensor | None, rows: segments.Rows | None
    ) -> tuple[Tensor, tuple[Tensor, ...], Tensor | None]:
        """One layer on the other: [T,N,I], or with ``rows`` the rows of the sequences."""
        ends: list[tuple[Tensor, ...]] = []
        count, one = self._directions, self.num_layers == 1
        for layer in range(self.num_layers):
            if layer and self.dropout:
                source = torch.nn.functional.dropout(source, self.dropout, self.training)
            firsts = initial
            if not one:
                window = slice(layer * count, (layer + 1) * count)
                firsts = tuple([None if state is None else state[window] for state in initial])
            if rows is not None:
                ran = self._in_segments(layer, source, firsts, rows)
            else:
                ran = self._layer(layer, source, firsts, lengths)
            source, cells = ran.state, ran.cell
            ends.append(ran.last)
        if one:
            return source, ends[0], cells
        return source, tuple(torch.cat(parts) for parts in zip(*ends, strict=True)), cells

    def _check_call(self, source: Tensor, batch: int, initial: Hidden) -> None:
        name = type(self).__name__
        if source.shape[-1] != self.input_size:
            expected = f"{self.input_size} features on the last axis"
            raise ShapeError(refusal(name, "input", expected, str(source.shape[-1])))
        rows = self.num_layers * self._directions
        widths = (self.proj_size or self.hidden_size, self.hidden_size)
        for state, width, letter in zip(initial, widths, "hc", strict=False):
            if state is not None and state.shape != (rows, batch, width):
                found = ",".join(map(str, state.shape))
                expected = f"[D·L,N,{width}] = [{rows},{batch},{width}]"
                raise ShapeError(refusal(name, f"{letter}_0", expected, f"[{found}]"))


def _joined(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    if first is None or second is None:
        return None
    return torch.cat([first, second])


def _side_by_side(state: Tensor | None) -> Tensor | None:
    """[N,D·H] from [D,N,H]."""
    if state is None:
        return None
    return state[0] if state.shape[0] == 1 else torch.cat([state[0], state[1]], 1)


def _turned(steps: Tensor, lengths: Tensor | None) -> Tensor:
    return steps.flip(0) if lengths is None else sequences.turn(steps, lengths)


def _last(steps: Tensor, lengths: Tensor | None, first: Tensor | None) -> Tensor:
    """The state after the last step, [N,·]."""
    if lengths is not None:
        return sequences.last_step(steps, lengths, first)
    if steps.shape[0]:
        return steps[-1]
    return steps.new_zeros(steps.shape[1:]) if first is None else first


def _folded(
    source: Tensor, weights: _Weights, projection: Tensor, first: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """R, x, W and b for projected states, in one direction.

    (W_hr h) R^T = h (R W_hr)^T: the projection of the state goes into the recurrent weight. An
    initial state comes projected already, so that its product joins the first step.
    """
    linear = torch.nn.functional.linear
    recurrent = weights.recurrent @ projection
    if first is None or not source.shape[0]:
        return recurrent, source, weights.input, weights.bias
    gates = linear(source, weights.input, weights.bias)
    begin = gates[:1] + linear(first, weights.recurrent)
    return recurrent, torch.cat([begin, gates[1:]]), None, None
