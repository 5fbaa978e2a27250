"""A layer's call with values per step: those of the caller, and what zoneout draws.

They become gates of x that no weight reaches (zstate/step_values.py), by operations of torch: all
that torch does with those, it does with the values.
T time, N batch, H hidden_size, D directions; packed sequences have M rows in place of T and N.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import dropout

from ..descriptors import AnyDescriptor
from ..errors import DTypeError, OptionError, ShapeError, refusal
from ..layout import brackets, describe
from ..step_values import StepValues
from .checks import check_device, check_tensor
from .dispatch import Tensors, cast, is_autocast
from .sequences.whole import Sequences

if TYPE_CHECKING:
    from .base import Layers


def run_operation(
    module: Layers,
    inputs: Tensors,
    descriptor: AnyDescriptor,
    sequences: Sequences,
    turned: bool = False,
) -> Any:
    """What a module computes of its operation's inputs: its cell, or the variant of that.

    ``turned``: the source has its sequences turned round, so that the values must be too.
    """
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
    for name, value in sequences.values.items():
        own = sequences.turn(value) if turned else value
        given[name] = own if directions == 1 or own.shape[-1] == 1 else torch.cat([own, own], -1)
    given |= _drawn(module, source, directions)
    count = len(cell.gates) - len(cell.values)
    by_gate = tuple([each.name for each in cell.own if each.by_gate])
    values = StepValues(cell.values, count, directions, by_gate)
    with _without_autocast(source.device.type):  # which would round the projected source
        wide = values.inner(given)
        tensors = tuple([wide.get(name) for name in operation.inputs])
        results = sequences.run(operation, tensors, descriptor)
    return tuple([each if each is None else each.to(source.dtype) for each in results])


def values_of_caller(
    module: Layers, steps: Mapping[str, Tensor] | None, source: Tensor, lead: tuple[int, ...]
) -> dict[str, Tensor]:
    """The values per step that the module's cell takes, by name, [T,N,H] or [T,N,1] each.

    ``lead``: T and N as the caller has them, or T alone.
    """
    label, names = type(module).__name__, module.operation.cell.values
    if steps is not None and not isinstance(steps, Mapping):
        raise DTypeError(refusal(label, "steps", "tensors by name", describe(steps)))
    given = steps or {}
    for name in given:
        if name not in names:
            expected = f"names among {', '.join(names)}" if names else "none: the cell has none"
            raise OptionError(refusal(label, "steps", expected, repr(name)))
    found = {}
    for name in names:
        if given.get(name) is None:
            expected = "a tensor that broadcasts to [T,N,H], a value per step"
            raise DTypeError(refusal(label, f"steps[{name!r}]", expected, "None"))
        check_tensor(module, f"steps[{name!r}]", given[name])
        check_device(label, f"steps[{name!r}]", given[name], source)
        if given[name].is_complex():
            dtype = str(given[name].dtype).removeprefix("torch.")
            raise DTypeError(refusal(label, f"steps[{name!r}]", "real numbers", dtype))
        value = given[name] if given[name].is_floating_point() else given[name].to(source.dtype)
        found[name] = _whole(module, f"steps[{name!r}]", value, lead)
    return found


def _whole(module: Layers, name: str, value: Tensor, lead: tuple[int, ...]) -> Tensor:
    """[T,N,H] or [T,N,1]."""
    shape, sizes = (*lead, module.hidden_size), tuple(value.shape)
    pairs = zip(reversed(sizes), reversed(shape), strict=False)
    if len(sizes) > len(shape) or any(size not in (1, whole) for size, whole in pairs):
        letters = "[T,H]" if len(lead) == 1 else "[N,T,H]" if module.batch_first else "[T,N,H]"
        expected = f"a shape that broadcasts to {letters} = {brackets(shape)}"
        raise ShapeError(refusal(type(module).__name__, name, expected, brackets(sizes)))
    whole = value.expand(*lead, value.shape[-1] if sizes else 1)
    if len(lead) == 1:
        return whole.unsqueeze(1)
    return whole.transpose(0, 1) if module.batch_first else whole


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
