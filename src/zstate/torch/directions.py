"""One layer: its one or two directions, and what comes after a sequence's last step.

T time, N batch, H hidden_size, P proj_size or H, D directions. What a layer reads and gives has a
row for every step of every sequence: [T,N,·], or [M,·] where the sequences are packed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import dropout, linear

from .. import operations
from ..descriptors import AnyDescriptor
from ..operations import Operation
from .dispatch import Tensors
from .operators import run

if TYPE_CHECKING:
    from .recurrent import Recurrent, Weights

Hidden: TypeAlias = tuple[Tensor | None, ...]  # h, or h and c

# The operations' inputs, as places in the order in which a layer has them.
_INPUTS = (
    *("source", "recurrent_weight", "input_weight", "bias", "init_state", "init_cell"),
    *("mask", "peephole", "secondary_bias"),
)
_PLACES = {
    operation.cell.name: tuple(_INPUTS.index(name) for name in operation.inputs)
    for operation in (operations.SINGLE_GATE_RNN, operations.LSTM_FORWARD, operations.GRU_FORWARD)
}


class Sequences(Protocol):
    """How the steps of N sequences lie, and so where each begins and ends."""

    @property
    def joint(self) -> bool: ...  # whether one call does both directions
    def size(self, source: Tensor) -> tuple[int, int]: ...
    def run(self, operation: Operation, tensors: Tensors, descriptor: AnyDescriptor) -> Any: ...
    def turn(self, steps: Tensor) -> Tensor: ...
    def last(self, steps: Tensor, first: Tensor | None) -> Tensor: ...


class Whole:
    """All sequences have all T steps."""

    joint = True

    def size(self, source: Tensor) -> tuple[int, int]:
        """T and N."""
        return source.shape[0], source.shape[1]

    def run(self, operation: Operation, tensors: Tensors, descriptor: AnyDescriptor) -> Any:
        """The operation's results."""
        return run(operation, tensors, descriptor, None)

    def turn(self, steps: Tensor) -> Tensor:
        """Each sequence turned round."""
        return steps.flip(0)

    def last(self, steps: Tensor, first: Tensor | None) -> Tensor:
        """The state after the last step [N,F]; ``first`` (or zero) where there is none."""
        if steps.shape[0]:
            return steps[-1]
        return steps.new_zeros(steps.shape[1:]) if first is None else first


WHOLE = Whole()


class Ran(NamedTuple):
    """What one layer gives."""

    state: Tensor  # [T,N,D·P]
    cell: Tensor | None  # [T,N,D·H]
    last: tuple[Tensor, ...]  # h [D,N,P], or h and c [D,N,H]


def run_layer(
    module: Recurrent, layer: int, source: Tensor, initial: Hidden, sequences: Sequences
) -> Ran:
    """One layer; ``initial`` [D,N,·] each, or None."""
    if module.proj_size or not sequences.joint:
        return _each_direction(module, layer, source, initial, sequences)
    both = module.bidirectional
    results = _scan(
        module,
        source,
        module.weights(layer),
        tuple([_side_by_side(state) for state in initial]),
        recurrent_mask(module, source, sequences, 2 if both else 1),
        sequences,
        module.both_directions if both else module.one_direction,
    )
    if both:
        ends = [_ends_of_both(*pair, sequences) for pair in zip(results, initial, strict=True)]
    else:
        pairs = zip(results, initial, strict=True)
        ends = [
            _end(module, steps, first, steps is results[0], sequences) for steps, first in pairs
        ]
    return Ran(results[0], results[1] if len(results) > 1 else None, tuple(ends))


def _end(
    module: Recurrent, steps: Tensor, first: Tensor | None, is_output: bool, sequences: Sequences
) -> Tensor:
    """The state after the last step of the one direction, [1,N,H]."""
    if sequences is not WHOLE or not steps.shape[0]:
        return sequences.last(steps, None if first is None else first[0]).unsqueeze(0)
    # A copy: whoever writes to h_n must not write to the output. Cells that nobody else sees are
    # their own last step when there is one step.
    if steps.shape[0] != 1:
        return steps[-1:].clone()
    seen = is_output or module.returns_cells or steps.requires_grad
    return steps.clone() if seen else steps


def _ends_of_both(steps: Tensor, initial: Tensor | None, sequences: Sequences) -> Tensor:
    """The states after each direction's last step, [2,N,H]."""
    if not steps.numel():
        zeros = steps.new_zeros(2, steps.shape[-2], steps.shape[-1] // 2)
        return zeros if initial is None else initial
    there, back = steps.chunk(2, -1)
    begin = back[0] if back.dim() == 3 else back[: sequences.size(steps)[1]]
    return torch.stack([sequences.last(there, None), begin])


def _each_direction(
    module: Recurrent, layer: int, source: Tensor, initial: Hidden, sequences: Sequences
) -> Ran:
    """The directions one after the other, the second with its sequences turned round."""
    steps: list[tuple[Tensor, ...]] = []
    ends: list[list[Tensor]] = []
    for index in range(module.directions):
        firsts = tuple(None if state is None else state[index] for state in initial)
        weights = module.direction_weights(layer, index)
        turned = source if index == 0 else sequences.turn(source)
        mask = recurrent_mask(module, source, sequences, 1)
        results = _scan(module, turned, weights, firsts, mask, sequences, module.one_direction)
        pairs = zip(results, firsts, strict=True)
        ends.append([sequences.last(result, first) for result, first in pairs])
        if index == 1:
            results = tuple(sequences.turn(result) for result in results)
        steps.append(results)
    joined = [
        part[0] if len(part) == 1 else torch.cat(part, -1) for part in zip(*steps, strict=True)
    ]
    stacked = tuple(torch.stack(part) for part in zip(*ends, strict=True))
    return Ran(joined[0], joined[1] if len(joined) > 1 else None, stacked)


def _scan(
    module: Recurrent,
    source: Tensor,
    weights: Weights,
    initial: Hidden,
    mask: Tensor | None,
    sequences: Sequences,
    descriptor: AnyDescriptor,
) -> tuple[Tensor, ...]:
    """h [T,N,D·H], or h and c; ``initial`` [N,D·H]."""
    weight: Tensor | None
    recurrent, weight, bias, secondary, peephole, projection = weights
    first, last = initial[0], initial[-1]
    if projection is not None:
        recurrent, source, weight, bias = _folded(source, weights, projection, first)
        first = None
    pool = (source, recurrent, weight, bias, first, last, mask, peephole, secondary)
    tensors = tuple([pool[place] for place in _PLACES[module.operation.cell.name]])
    found: tuple[Tensor, ...] = sequences.run(module.operation, tensors, descriptor)[: len(initial)]
    if projection is not None:
        return linear(found[0], projection), *found[1:]
    return found


def recurrent_mask(
    module: Recurrent, like: Tensor, sequences: Sequences, directions: int
) -> Tensor | None:
    """Recurrent dropout: [1,N,D·H], one for the sequence, or [T,N,D·H]."""
    if not module.training or not module.recurrent_dropout:
        return None
    steps, batch = sequences.size(like)
    rows = steps if module.recurrent_dropout_per_step else 1
    ones = like.new_ones(rows, batch, directions * module.hidden_size)
    return dropout(ones, module.recurrent_dropout)


def _side_by_side(state: Tensor | None) -> Tensor | None:
    """[N,D·H] from [D,N,H]."""
    if state is None:
        return None
    # Not state[0], whose derivative is a copy.
    return state.squeeze(0) if state.shape[0] == 1 else torch.cat([state[0], state[1]], 1)


def _folded(
    source: Tensor, weights: Weights, projection: Tensor, first: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """R, x, W and b for projected states, in one direction.

    (W_hr h) R^T = h (R W_hr)^T: the projection of the state goes into the recurrent weight. An
    initial state comes projected already, so that its product joins the first step.
    """
    recurrent = weights.recurrent @ projection
    if first is None or not source.shape[0]:
        return recurrent, source, weights.input, weights.bias
    gates = linear(source, weights.input, weights.bias)
    product = linear(first, weights.recurrent)  # [N,G·H], for the first N rows
    if gates.dim() == 3:
        product = product.unsqueeze(0)
    begin = gates[: len(product)] + product
    return recurrent, torch.cat([begin, gates[len(product) :]]), None, None
