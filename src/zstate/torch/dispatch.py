"""Which way a call on tensors goes: straight to the engine, or by what torch lets others see.

Autograd, torch.func's transforms, forward mode, modes, subclasses, torch.compile and
torch.jit.trace may all take part in a call. The conditions stand here alone, and are tested in few
steps: a call of one time step costs little more than this.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

import torch
from torch import Tensor

from .private import break_graph, current_transform, is_forward_mode, is_tracing
from .private import is_batched as is_batched  # for tensors.py
from .private import is_watched as is_watched

Tensors = tuple[Tensor | None, ...]
Results = tuple[Tensor, ...]
Call = Literal["operation", "gradients", "layer", "packed"]

PLAIN_TYPES = (Tensor, torch.nn.Parameter)


class Route(Enum):
    """The ways a call can go."""

    ENGINE = "engine"  # at once; nothing is recorded
    RECORDED = "recorded"  # the engine, as one step of autograd
    TRANSFORMED = "transformed"  # an operator inside torch.func's transforms
    DIFFERENTIABLE = "differentiable"  # plain torch operations, for forward mode
    DISPATCHED = "dispatched"  # an operator through torch's dispatcher, visible to everything


def choose(call: Call, tensors: Tensors) -> Route:
    """The route of a forward or a gradient operation, of a layer, or of a packed call.

    A layer on the CPU and a packed call have routes of their own only with ENGINE and RECORDED;
    with any other, they call their operations one by one.
    """
    if torch.compiler.is_compiling():
        if is_forward_mode():  # which no operator has: let torch run this without a graph
            break_graph("zstate: forward-mode derivatives (torch.func.jvp) cannot be in a graph")
        return Route.DISPATCHED
    first = tensors[0]
    assert first is not None
    if is_watched():
        if is_forward_mode():
            return Route.DIFFERENTIABLE
        return Route.DISPATCHED if current_transform() is None else Route.TRANSFORMED
    if (
        not are_plain(tensors)
        or first.is_meta
        or (call == "layer" and (first.shape[0] == 0 or is_autocast("cpu")))
        or (call == "gradients" and is_batched(tensors[2]))  # of the state
    ):
        return Route.DISPATCHED
    return Route.RECORDED if needs_gradient(tensors) else Route.ENGINE


def engine_gives_gradients(incoming: Tensors) -> bool:
    """Whether a backward pass may go straight to the engine.

    Not for double backward, batched gradients, modes, transforms or subclasses: those need
    operations that can be differentiated or seen.
    """
    if torch.is_grad_enabled() or is_watched() or not are_plain(incoming):
        return False
    return not any([is_batched(gradient) for gradient in incoming])  # noqa: C419, faster


def values_are_hidden() -> bool:
    """Whether a tensor's values must not be read: in a graph that is being compiled or traced, or
    in a transform, they are placeholders."""
    if torch.compiler.is_compiling() or is_tracing():
        return True
    return current_transform() is not None or is_forward_mode()


def needs_gradient(tensors: Tensors) -> bool:
    """Whether autograd records what happens to these tensors."""
    if not torch.is_grad_enabled():
        return False
    # Anything but a tensor is refused later, by name.
    return any([getattr(tensor, "requires_grad", False) for tensor in tensors])  # noqa: C419, faster


def are_plain(tensors: Tensors) -> bool:
    """Whether none of them is of a subclass of Tensor, which may mean anything."""
    for tensor in tensors:
        # Anything but a tensor is refused by the kernel, by name.
        if tensor is not None and type(tensor) not in PLAIN_TYPES and isinstance(tensor, Tensor):
            return False
    return True


def is_autocast(device: str) -> bool:
    """Whether autocast is on for a kind of device."""
    return device != "meta" and torch.is_autocast_enabled(device)


def cast(tensors: Tensors) -> Tensors:
    """Autocast's rule, where it is on: every float tensor but those in float64."""
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
