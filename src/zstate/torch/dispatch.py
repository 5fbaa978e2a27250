"""Who else has a say in a call on tensors: autocast, autograd, transforms, modes, subclasses.

Looked at in few steps: a call of one time step costs little more than this.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

Tensors = tuple[Tensor | None, ...]
Results = tuple[Tensor, ...]

PLAIN_TYPES = (Tensor, torch.nn.Parameter)
_modes = torch._C._len_torch_dispatch_stack
_transform = torch._C._functorch.peek_interpreter_stack
_BATCHED: Any = torch._C._parse_dispatch_key("Batched")


def is_transformed() -> bool:
    """Whether one of torch.func's transforms, or a derivative forwards, is under way."""
    return _transform() is not None or is_forward_derivative()


def is_forward_derivative() -> bool:
    """Whether a derivative forwards (dual numbers) is under way."""
    return forward_ad._current_level >= 0


def needs_gradient(tensors: Tensors) -> bool:
    """Whether autograd records what happens to these tensors."""
    if not torch.is_grad_enabled():
        return False
    # Something else than a tensor is refused later, by name.
    return any([getattr(tensor, "requires_grad", False) for tensor in tensors])  # noqa: C419, faster


def is_batched(tensor: Tensor | None) -> bool:
    """Whether it is one of the batched gradients of torch.autograd.grad, which look plain."""
    return isinstance(tensor, Tensor) and torch._C._dispatch_keys(tensor).has(_BATCHED)


def is_watched() -> bool:
    """Whether a mode, a transform or a derivative forwards is under way."""
    return _modes() > 0 or is_transformed()


def are_plain(tensors: Tensors) -> bool:
    """Whether none of them is of a subclass of Tensor, which may mean anything."""
    for tensor in tensors:
        # Something else than a tensor is refused by the kernel, by name.
        if tensor is not None and type(tensor) not in PLAIN_TYPES and isinstance(tensor, Tensor):
            return False
    return True


def is_plain(tensors: Tensors) -> bool:
    """Whether nobody but autograd may be watching: no subclass, no mode, no transform."""
    first = tensors[0]
    assert first is not None
    if is_watched() or not are_plain(tensors):
        return False
    # Batched gradients come in third, if at all.
    return not is_batched(tensors[2]) and not first.is_meta


def is_autocast(device: str) -> bool:
    """Whether autocast is switched on for a kind of device."""
    return device != "meta" and torch.is_autocast_enabled(device)


def cast(tensors: Tensors) -> Tensors:
    """Autocast's rule: every float tensor but those in float64, where it is switched on."""
    kind = tensors[0].device.type if tensors[0] is not None else "cpu"
    if not is_autocast(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(
        tensor.to(dtype)
        if isinstance(tensor, Tensor)
        and tensor.is_floating_point()
        and tensor.dtype != torch.float64
        else tensor
        for tensor in tensors
    )
