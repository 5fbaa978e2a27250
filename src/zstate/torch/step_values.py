"""A layer's call with values per step: what zoneout draws.

They become gates of x that no weight reaches (zstate/step_values.py), by operations of torch: all
that torch does with those, it does with the values.
T time, N batch, H hidden_size, D directions; packed sequences have M rows in place of T and N.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import dropout

from ..descriptors import AnyDescriptor
from ..step_values import StepValues
from .dispatch import Tensors, cast, is_autocast
from .sequences.whole import Sequences

if TYPE_CHECKING:
    from .recurrent import Layers


def run_operation(
    module: Layers, inputs: Tensors, descriptor: AnyDescriptor, sequences: Sequences
) -> Any:
    """What a module computes of its operation's inputs: its cell, or the variant of that."""
    operation = module.computed
    cell = operation.cell
    if not cell.values:
        return sequences.run(operation, inputs, descriptor)
    inputs = cast(inputs)
    source = inputs[0]
    assert source is not None
    directions = 2 if descriptor.bidirectional else 1
    pairs = zip(operation.inputs, inputs, strict=True)
    given = {name: tensor for name, tensor in pairs if tensor is not None}
    given |= _drawn(module, source, directions)
    count = len(cell.gates) - len(cell.values)
    by_gate = tuple([each.name for each in cell.own if each.by_gate])
    values = StepValues(type(module).__name__, cell.values, count, directions, by_gate)
    with _without_autocast(source.device.type):  # which would round the projected source
        wide = values.inner(given)
        tensors = tuple([wide.get(name) for name in operation.inputs])
        results = sequences.run(operation, tensors, descriptor)
    return tuple([each if each is None else each.to(source.dtype) for each in results])


def _drawn(module: Layers, source: Tensor, directions: int) -> dict[str, Tensor]:
    """Where units keep their old values, [T,N,D·H] or [M,D·H] of every state with zoneout."""
    if module.changes is None or not module.training:
        return {}
    zoneout = module.changes.zoneout
    names = module.computed.cell.values[-len(zoneout) :] if zoneout else ()
    shape = (*source.shape[:-1], directions * module.hidden_size)
    # torch's dropout draws, so that its generator, vmap's randomness and graphs are as for that.
    return {
        name: dropout(source.new_ones(shape), p) == 0
        for name, (_, p) in zip(names, zoneout, strict=True)
    }


def _without_autocast(device: str) -> AbstractContextManager[Any]:
    return torch.autocast(device, enabled=False) if is_autocast(device) else nullcontext()
