"""All layers, one on the other, and the forms of input: padded, packed, one sequence alone.

T time, N batch, I input_size, H hidden_size, P proj_size or H, D directions, L layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from ..errors import OptionError, ShapeError, refusal
from ..layout import describe
from .checks import Lengths, as_lengths, check_input, check_lengths, check_state, check_tensor
from .dispatch import values_are_hidden
from .each_direction import run_each_direction
from .layer import Hidden, LayerResult, run_in_one_call
from .private import parameter
from .sequences import packed
from .sequences.padded import Padded
from .sequences.rows import put_rows, take_rows
from .sequences.whole import WHOLE, Sequences

if TYPE_CHECKING:
    from .recurrent import Recurrent

States = tuple[Tensor, ...]  # h, or h and c, after the last step: [D·L,N,·] each


def run(
    module: Recurrent, input: Tensor | PackedSequence, initial: Hidden, lengths: Lengths | None
) -> tuple[Any, States, Any]:
    """output, the last states [D·L,N,·], and the last layer's cells or None."""
    # Every call of one step pays for what stands here: no function is called without need.
    if initial[0] is not None or initial[-1] is not None:
        for letter, state in zip("hc", initial, strict=False):
            if state is not None:
                check_tensor(module, f"{letter}_0", state)
    if isinstance(input, PackedSequence):
        return _run_packed(module, input, initial, lengths)
    if not isinstance(input, Tensor) or input.is_nested:
        check_tensor(module, "input", input)
    if lengths is not None:
        lengths = as_lengths(module, lengths)
    axes = input.dim()
    if axes == 3:
        if not module.batch_first:
            return _run_padded(module, input, initial, lengths)
        output, ends, cells = _run_padded(module, input.transpose(0, 1), initial, lengths)
        return output.transpose(0, 1), ends, None if cells is None else cells.transpose(0, 1)
    if axes != 2:
        expected = "2 axes (one sequence) or 3"
        raise ShapeError(refusal(type(module).__name__, "input", expected, f"{axes} axes"))
    initial = tuple(None if state is None else state.unsqueeze(1) for state in initial)
    lengths = None if lengths is None else lengths.reshape(1)
    output, ends, cells = _run_padded(module, input.unsqueeze(1), initial, lengths)
    cells = None if cells is None else cells.squeeze(1)
    return output.squeeze(1), tuple(end.squeeze(1) for end in ends), cells


def _run_packed(
    module: Recurrent, input: PackedSequence, initial: Hidden, lengths: Lengths | None
) -> tuple[Any, States, Any]:
    if lengths is not None:
        expected = "none with a PackedSequence, which has its own"
        raise OptionError(refusal(type(module).__name__, "lengths", expected, describe(lengths)))
    data, sizes, order, back = input
    # In the order of the packed batch, longest first; the states go there and back.
    if order is not None:
        initial = tuple(None if s is None else s.index_select(1, order) for s in initial)
    if packed.serves(data):
        known = tuple(sizes.tolist())
        _check_call(module, data, known[0], initial)
        output, ends, cells = _stack(module, data, initial, packed.Packed(known))
    else:
        source, own_lengths = pad_packed_sequence(PackedSequence(data, sizes))
        output, ends, cells = _run_padded(module, source, initial, own_lengths)
        output = pack_padded_sequence(output, own_lengths).data
        cells = None if cells is None else pack_padded_sequence(cells, own_lengths).data
    if back is not None:
        ends = tuple(end.index_select(1, back) for end in ends)
    results = [
        None if r is None else PackedSequence(r, sizes, order, back) for r in (output, cells)
    ]
    return results[0], ends, results[1]


def _run_padded(
    module: Recurrent, source: Tensor, initial: Hidden, lengths: Tensor | None
) -> tuple[Tensor, States, Tensor | None]:
    """[T,N,I] through all layers."""
    steps, batch, _ = source.shape
    _check_call(module, source, batch, initial)
    if lengths is None:
        return _stack(module, source, initial, WHOLE)
    lengths = lengths.to(source.device, non_blocking=True)
    readable = lengths.device.type == "cpu" and not values_are_hidden()
    check_lengths(module, lengths, steps, batch, readable)
    if packed.serves(source, lengths):
        arranged = packed.from_lengths(lengths)
        if arranged is not None:
            return _run_unpadded(module, source, initial, *arranged)
    sequences = Padded(lengths, steps)
    output, ends, cells = _stack(module, sequences.only_inside(source), initial, sequences)
    cells = None if cells is None else sequences.only_inside(cells)
    return sequences.only_inside(output), ends, cells


def _run_unpadded(
    module: Recurrent,
    source: Tensor,
    initial: Hidden,
    sequences: packed.Packed,
    order: packed.Order,
) -> tuple[Tensor, States, Tensor | None]:
    """[T,N,I] packed, through all layers, and padded again."""
    steps, batch, _ = source.shape
    data = take_rows(source, order.rows)
    firsts = tuple(None if s is None else s.index_select(1, order.sequences) for s in initial)
    output, last, cells = _stack(module, data, firsts, sequences)
    ends = []
    for end, state in zip(last, initial, strict=True):
        # The state of an empty sequence stays the initial one.
        first = end.new_zeros(end.shape[0], batch, end.shape[2]) if state is None else state
        ends.append(first.index_copy(1, order.sequences, end))
    output = put_rows(output, order.rows, steps, batch)
    cells = None if cells is None else put_rows(cells, order.rows, steps, batch)
    return output, tuple(ends), cells


def _stack(
    module: Recurrent, source: Tensor, initial: Hidden, sequences: Sequences
) -> tuple[Tensor, States, Tensor | None]:
    """One layer on the other; the cells are the last layer's, with ``returns_cells``."""
    if module.num_layers == 1:
        state, cells, last = _run_layer(module, 0, source, initial, sequences)
        return state, last, cells if module.returns_cells else None
    ends: list[States] = []
    cells = None
    count = module.directions
    for layer in range(module.num_layers):
        if layer and module.dropout:
            source = torch.nn.functional.dropout(source, module.dropout, module.training)
        window = slice(layer * count, (layer + 1) * count)
        firsts = tuple([None if state is None else state[window] for state in initial])
        source, cells, last = _run_layer(module, layer, source, firsts, sequences)
        ends.append(last)
    joined = tuple(torch.cat(parts) for parts in zip(*ends, strict=True))
    return source, joined, cells if module.returns_cells else None


def _run_layer(
    module: Recurrent, layer: int, source: Tensor, initial: Hidden, sequences: Sequences
) -> LayerResult:
    """One layer; ``initial`` [D,N,·] each, or None."""
    if module.proj_size or not sequences.both_at_once:
        return run_each_direction(module, layer, source, initial, sequences)
    return run_in_one_call(module, layer, source, initial, sequences)


def _check_call(module: Recurrent, source: Tensor, batch: int, initial: Hidden) -> None:
    weight = parameter(module, "weight_hh_l0")
    check_input(module, source, weight)
    if initial[0] is None and initial[-1] is None:
        return
    rows = module.num_layers * module.directions
    for letter, state in zip("hc", initial, strict=False):
        if state is not None:
            width = module.proj_size if letter == "h" and module.proj_size else module.hidden_size
            shape = (rows, batch, width)
            check_state(module, f"{letter}_0", state, f"[D·L,N,{width}]", shape, weight)
