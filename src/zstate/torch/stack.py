"""All layers, one on the other, and the forms of input: padded, packed, one sequence alone.

T time, N batch, I input_size, H hidden_size, P proj_size or H, D directions, L layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from ..errors import OptionError, ShapeError, refusal
from ..layout import describe
from .base import BuiltIn, Layers
from .checks import (
    Lengths,
    as_lengths,
    check_input,
    check_packed,
    check_state,
    check_tensor,
    checked_lengths,
    checked_resets,
)
from .each_direction import run_each_direction
from .one_call import Hidden, LayerResult, run_in_one_call
from .onnx_nodes import is_exporting, run_node, words_of
from .private import parameter
from .sequences import packed
from .sequences.padded import Padded
from .sequences.rows import put_rows, take_rows
from .sequences.whole import WHOLE, Sequences, Whole
from .step_values import values_of_caller

States = tuple[Tensor, ...]  # every state after the last step: [D·L,N,·] each


def run(
    module: Layers,
    input: Tensor | PackedSequence,
    initial: Hidden,
    lengths: Lengths | None,
    resets: Tensor | None = None,
    steps: Mapping[str, Tensor] | None = None,
) -> tuple[Any, States, Any]:
    """output, the last states [D·L,N,·], and the last layer's cells or None."""
    # Every single-step call pays for this code, so it calls no function needlessly.
    for state in initial:
        if state is not None:
            _check_tensors(module, initial)
            break
    if resets is not None:
        check_tensor(module, "resets", resets)
    if isinstance(input, PackedSequence):
        return _run_packed(module, input, initial, lengths, resets, steps)
    if not isinstance(input, Tensor) or input.is_nested or input.layout is not torch.strided:
        check_tensor(module, "input", input)
    if lengths is not None:
        lengths = as_lengths(module, lengths)
    axes = input.dim()
    values = None
    if (steps is not None or not module.is_plain) and axes in (2, 3):
        values = values_of_caller(module, steps, input, tuple(input.shape[:-1]))
    if axes == 3:
        if not module.batch_first:
            return _run_padded(module, input, initial, lengths, resets, values)
        resets, source = _time_major(module, resets), input.transpose(0, 1)
        output, ends, cells = _run_padded(module, source, initial, lengths, resets, values)
        return output.transpose(0, 1), ends, None if cells is None else cells.transpose(0, 1)
    if axes != 2:
        expected = "2 axes (one sequence) or 3"
        raise ShapeError(refusal(type(module).__name__, "input", expected, f"{axes} axes"))
    _check_states(module, initial, ())
    initial = tuple(None if state is None else state.unsqueeze(1) for state in initial)
    lengths = lengths.reshape(1) if lengths is not None and not lengths.dim() else lengths
    resets = None if resets is None else resets.unsqueeze(-1)
    source = input.unsqueeze(1)
    output, ends, cells = _run_padded(module, source, initial, lengths, resets, values)
    cells = None if cells is None else cells.squeeze(1)
    return output.squeeze(1), tuple(end.squeeze(1) for end in ends), cells


def _time_major(module: Layers, resets: Tensor | None) -> Tensor | None:
    """[T,N] as a module with batch_first takes it, [N,T]."""
    if resets is None or not module.batch_first or resets.dim() != 2:
        return resets
    return resets.transpose(0, 1)


def _run_packed(
    module: Layers,
    input: PackedSequence,
    initial: Hidden,
    lengths: Lengths | None,
    resets: Tensor | None,
    steps: Mapping[str, Tensor] | None,
) -> tuple[Any, States, Any]:
    if lengths is not None:
        expected = "none with a PackedSequence, which has its own"
        raise OptionError(refusal(type(module).__name__, "lengths", expected, describe(lengths)))
    data, sizes, order, back = input
    at_once = packed.serves(module.computed, module.descriptor, resets is not None, data)
    if at_once:
        known = tuple(sizes.tolist())
        check_packed(module, data, known)
        size = (len(known), known[0])
    else:
        source, own_lengths = pad_packed_sequence(PackedSequence(data, sizes))
        size = (source.shape[0], source.shape[1])
    # In the order of the packed batch, longest first; the states go there and back.
    initial = _checked(module, data, size[1], initial)
    resets = _time_major(module, resets)
    if resets is not None:
        resets = checked_resets(module, resets, size, data)
    values = values_of_caller(module, steps, data, size[::-1] if module.batch_first else size)
    if order is not None:
        values = {name: value.index_select(1, order) for name, value in values.items()}
        initial = tuple(None if s is None else s.index_select(1, order) for s in initial)
        resets = None if resets is None else resets.index_select(1, order)
    if at_once:
        sequences = packed.Packed(known)
        if resets is not None:
            own = _by_direction(module, resets, data, sequences.lengths)
            sequences.resets = pack_padded_sequence(own, sequences.lengths).data
        sequences.values = {
            name: pack_padded_sequence(value, sequences.lengths).data
            for name, value in values.items()
        }
        output, ends, cells = _stack(module, data, initial, sequences)
    else:
        output, ends, cells = _run_padded(module, source, initial, own_lengths, resets, values)
        output = pack_padded_sequence(output, own_lengths).data
        cells = None if cells is None else pack_padded_sequence(cells, own_lengths).data
    if back is not None:
        ends = tuple(end.index_select(1, back) for end in ends)
    results = [
        None if r is None else PackedSequence(r, sizes, order, back) for r in (output, cells)
    ]
    return results[0], ends, results[1]


def _run_padded(
    module: Layers,
    source: Tensor,
    initial: Hidden,
    lengths: Tensor | None,
    resets: Tensor | None,
    values: Mapping[str, Tensor] | None = None,
) -> tuple[Tensor, States, Tensor | None]:
    """[T,N,I] through all layers."""
    steps, batch, _ = source.shape
    initial = _checked(module, source, batch, initial)
    if is_exporting() and resets is None:
        found = _run_exported(module, source, initial, lengths)
        if found is not None:
            return found
    if lengths is not None:
        lengths = checked_lengths(module, lengths, steps, batch, source)
    if resets is not None:
        resets = checked_resets(module, resets, (steps, batch), source)
        resets = _by_direction(module, resets, source, lengths)
    if lengths is None:
        plain = resets is None and not values
        return _stack(module, source, initial, WHOLE if plain else Whole(resets, values))
    has_resets = resets is not None
    if packed.serves(module.computed, module.descriptor, has_resets, source, lengths):
        arranged = packed.from_lengths(lengths, resets)
        if arranged is not None:
            rows = arranged[1].rows
            arranged[0].values = {n: take_rows(each, rows) for n, each in (values or {}).items()}
            return _run_unpadded(module, source, initial, *arranged)
    sequences = Padded(lengths, steps, resets)
    sequences.values = {name: sequences.held(each) for name, each in (values or {}).items()}
    output, ends, cells = _stack(module, sequences.only_inside(source), initial, sequences)
    cells = None if cells is None else sequences.only_inside(cells)
    return sequences.only_inside(output), ends, cells


def _by_direction(module: Layers, resets: Tensor, source: Tensor, lengths: Tensor | None) -> Tensor:
    """Resets [T,N], true where step t begins a new sequence, as operations take them: numbers in
    the type of the source, [T,N,D], and none past a sequence's end.

    In the reverse direction, what is read after step t, step t-1, begins anew.
    """
    there = (resets != 0).to(source.dtype)
    if lengths is not None:
        times = torch.arange(there.shape[0], device=there.device)
        there = there.masked_fill(times[:, None] >= lengths, 0)
    if not module.bidirectional:
        return there.unsqueeze(-1)
    # Padded first: an exported graph may not assume that T - 1 steps are several.
    return torch.stack([there, torch.constant_pad_nd(there, (0, 0, 0, 1))[1:]], -1)


def _run_exported(
    module: Layers, source: Tensor, initial: Hidden, lengths: Tensor | None
) -> tuple[Tensor, States, None] | None:
    """[T,N,I] through all layers, each a node of ONNX's own; None if those cannot express them."""
    if not module.is_plain:
        return None
    words = words_of(module.operation.cell.key, module.descriptor)
    has_mask = module.recurrent_dropout and module.training
    if words is None or has_mask or module.peephole or module.proj_size or module.returns_cells:
        return None
    assert isinstance(module, BuiltIn)
    ends: list[States] = []
    count = module.directions
    for layer in range(module.num_layers):
        if layer and module.dropout:
            source = torch.nn.functional.dropout(source, module.dropout, module.training)
        window = slice(layer * count, (layer + 1) * count)
        firsts = tuple([None if state is None else state[window] for state in initial])
        source, last = run_node(
            module.operation.cell.name,
            module.descriptor,
            words,
            source,
            module.layer_directions(layer),
            firsts,
            lengths,
        )
        ends.append(last)
    return source, tuple(torch.cat(parts) for parts in zip(*ends, strict=True)), None


def _run_unpadded(
    module: Layers,
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
    module: Layers, source: Tensor, initial: Hidden, sequences: Sequences
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
    module: Layers, layer: int, source: Tensor, initial: Hidden, sequences: Sequences
) -> LayerResult:
    """One layer; ``initial`` [D,N,·] each, or None."""
    if module.proj_size or not sequences.both_at_once:
        return run_each_direction(module, layer, source, initial, sequences)
    return run_in_one_call(module, layer, source, initial, sequences)


def _checked(module: Layers, source: Tensor, batch: int, initial: Hidden) -> Hidden:
    """The initial states, with those that were not given and do not begin with 0."""
    check_input(module, source, parameter(module, "weight_ih_l0"))
    for state in initial:
        if state is not None:
            _check_states(module, initial, (batch,))
            break
    if not module.starts:
        return initial
    shape = (module.num_layers * module.directions, batch, module.hidden_size)
    filled = list(initial)
    for place, value in module.starts.items():
        if filled[place] is None:
            filled[place] = source.new_full(shape, value)
    return tuple(filled)


def _check_states(module: Layers, initial: Hidden, batch: tuple[int, ...]) -> None:
    """Refuse initial states that do not fit; ``batch``: N, or nothing for one sequence alone."""
    for place, state in enumerate(initial):
        if state is not None:
            rows = module.num_layers * module.directions
            width = module.proj_size if not place and module.proj_size else module.hidden_size
            letters = f"[D·L,N,{width}]" if batch else f"[D·L,{width}]"
            weight = parameter(module, "weight_ih_l0")
            name = _name(module, place)
            check_state(module, name, state, letters, (rows, *batch, width), weight)


def _check_tensors(module: Layers, initial: Hidden) -> None:
    for place, state in enumerate(initial):
        if state is not None:
            check_tensor(module, _name(module, place), state)


def _name(module: Layers, place: int) -> str:
    """An initial state's, in messages."""
    return f"{module.operation.cell.states[place].symbol}_0"
