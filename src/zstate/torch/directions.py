"""One layer: both directions in one call (joint.py), or, where that is impossible, one by one.

T time, N batch, H hidden_size, P proj_size or H, D directions. What a layer reads and gives has a
row for every step of every sequence: [T,N,·], or [M,·] where the sequences are packed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import dropout, linear

from .joint import Hidden, operation_inputs, run_joint
from .sequences import Sequences

if TYPE_CHECKING:
    from .recurrent import Recurrent, Weights


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
    mask = recurrent_mask(module, source, sequences, module.directions)
    tensors = (source, mask, *initial, *module.layer_parameters(layer))
    found: Any = run_joint(module, tensors, sequences)
    state, cell, *last = found
    return Ran(state, cell, tuple(last))


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
        results = _scan(module, turned, weights, firsts, mask, sequences)
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
) -> tuple[Tensor, ...]:
    """h [T,N,H], or h and c, of one direction; ``initial`` [N,H]."""
    projection, first = weights.projection, initial[0]
    if projection is not None:
        recurrent, source, weight, bias = _folded(source, weights, projection, first)
        weights = weights._replace(recurrent=recurrent, input=weight, bias=bias)
        initial = (None, *initial[1:])
    tensors = operation_inputs(module.operation, source, weights, initial, mask)
    found: tuple[Tensor, ...] = sequences.run(module.operation, tensors, module.one_direction)
    found = found[: len(initial)]
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


def _folded(
    source: Tensor, weights: Weights, projection: Tensor, first: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """R, x, W and b for projected states, in one direction.

    (W_hr h) R^T = h (R W_hr)^T: the projection of the state goes into the recurrent weight. An
    initial state comes projected already, so that its product joins the first step.
    """
    recurrent = weights.recurrent @ projection
    assert weights.input is not None
    if first is None or not source.shape[0]:
        return recurrent, source, weights.input, weights.bias
    gates = linear(source, weights.input, weights.bias)
    product = linear(first, weights.recurrent)  # [N,G·H], for the first N rows
    if gates.dim() == 3:
        product = product.unsqueeze(0)
    begin = gates[: len(product)] + product
    return recurrent, torch.cat([begin, gates[len(product) :]]), None, None
