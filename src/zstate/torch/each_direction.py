"""One layer direction by direction: with a projection, or where lengths cannot be read.

T time, N batch, H hidden_size, P proj_size or H, D directions. What a layer reads and gives has a
row for every step of every sequence: [T,N,·], or [M,·] where the sequences are packed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import linear

from .one_call import Hidden, LayerResult, operation_inputs, recurrent_mask
from .sequences.whole import Sequences
from .step_values import run_operation

if TYPE_CHECKING:
    from .base import Layers, Weights


def run_each_direction(
    module: Layers, layer: int, source: Tensor, initial: Hidden, sequences: Sequences
) -> LayerResult:
    """The directions one after the other, the second with its sequences turned round."""
    steps: list[tuple[Tensor, ...]] = []
    ends: list[list[Tensor]] = []
    for index in range(module.directions):
        firsts = tuple(None if state is None else state[index] for state in initial)
        weights = module.direction_weights(layer, index)
        turned = source if index == 0 else sequences.turn(source)
        mask = recurrent_mask(module, source, sequences, 1)
        resets = _resets(sequences, index)
        results = _scan(module, turned, weights, firsts, mask, resets, sequences, index == 1)
        pairs = zip(results, firsts, strict=True)
        ends.append([sequences.last(result, first) for result, first in pairs])
        if index == 1:
            results = tuple(sequences.turn(result) for result in results)
        steps.append(results)
    joined = [
        part[0] if len(part) == 1 else torch.cat(part, -1) for part in zip(*steps, strict=True)
    ]
    stacked = tuple(torch.stack(part) for part in zip(*ends, strict=True))
    return LayerResult(joined[0], joined[1] if len(joined) > 1 else None, stacked)


def _resets(sequences: Sequences, index: int) -> Tensor | None:
    """Those of one direction, in the order in which it reads, [T,N,1]."""
    if sequences.resets is None:
        return None
    own = sequences.resets.narrow(-1, index, 1)
    return sequences.turn(own) if index else own


def _scan(
    module: Layers,
    source: Tensor,
    weights: Weights,
    initial: Hidden,
    mask: Tensor | None,
    resets: Tensor | None,
    sequences: Sequences,
    is_turned: bool,
) -> tuple[Tensor, ...]:
    """Every state [T,N,H] of one direction; ``initial`` [N,H]."""
    projection, first = weights.projection, initial[0]
    if projection is not None:
        if first is not None and resets is not None and resets.shape[0]:
            begins = resets[0] if resets.dim() == 3 else resets[: first.shape[0]]
            first = first.masked_fill(begins > 0, 0)
        recurrent, source, weight, bias = _folded(source, weights, projection, first)
        weights = weights._replace(recurrent=recurrent, input=weight, bias=bias)
        initial = (None, *initial[1:])
    tensors = operation_inputs(module.operation, source, weights, initial, mask, resets)
    descriptor = module.one_direction
    results: tuple[Tensor, ...] = run_operation(module, tensors, descriptor, sequences, is_turned)
    # Not a slice: torch.compile of 2.6 cannot slice a named tuple.
    results = tuple([results[k] for k in range(len(initial))])
    if projection is not None:
        return linear(results[0], projection), *results[1:]
    return results


def _folded(
    source: Tensor, weights: Weights, projection: Tensor, first: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """R, x, W and b for projected states, in one direction.

    (W_hr h) R^T = h (R W_hr)^T: the projection of the state goes into the recurrent weight. An
    initial state comes projected already, so its product joins the first step.
    """
    recurrent = weights.recurrent @ projection
    assert weights.input is not None
    if first is None or not source.shape[0]:
        return recurrent, source, weights.input, weights.bias
    gates = linear(source, weights.input, weights.bias)
    product = linear(first, weights.recurrent)  # [N,G·H], for the first N rows
    if gates.dim() == 3:
        product = product.unsqueeze(0)
    rows = gates.shape[0] - product.shape[0]
    padding = (0, 0) * (gates.dim() - 1) + (0, rows)
    return recurrent, gates + torch.constant_pad_nd(product, padding), None, None
