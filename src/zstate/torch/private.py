"""The names of torch that have no public counterpart: all of them, and nothing else.

Tried with torch 2.6, 2.11 and 2.13.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

# How many modes (torch.utils._python_dispatch.TorchDispatchMode) are active.
_count_modes = torch._C._len_torch_dispatch_stack

# The innermost transform of torch.func (grad, vmap, jvp, …), or None.
current_transform = torch._C._functorch.peek_interpreter_stack

# Whether torch.jit.trace is recording. torch.jit.is_tracing is the same behind two Python calls.
_is_tracing = torch._C._is_tracing

# Which kernels a tensor calls for, and the key of the tensors that torch.autograd.grad makes for
# is_grads_batched: their type is Tensor and their shape is that of one member.
_dispatch_keys: Any = torch._C._dispatch_keys
_BATCHED: Any = torch._C._parse_dispatch_key("Batched")


def is_batched(tensor: Tensor | None) -> bool:
    """Whether it is one of the batched gradients of torch.autograd.grad, which look plain."""
    return isinstance(tensor, Tensor) and _dispatch_keys(tensor).has(_BATCHED)


def is_forward_mode() -> bool:
    """Whether a forward-mode derivative is active: torch keeps its level in a module variable."""
    return forward_ad._current_level >= 0


def break_graph(reason: str) -> None:
    """Let torch.compile leave what it is reading to Python; with fullgraph=True it raises."""
    torch._dynamo.graph_break(msg=reason)


def is_tracing() -> bool:
    """Whether torch.jit.trace is recording; torch.compile, which knows no such thing, is not."""
    return not torch.compiler.is_compiling() and _is_tracing()


def is_exporting() -> bool:
    """Whether torch.export is recording; torch 2.6 cannot tell it from torch.compile."""
    asked = getattr(torch.compiler, "is_exporting", None)
    return asked is not None and asked()


def is_watched() -> bool:
    """Whether a mode, a transform, forward mode or torch.jit.trace is active."""
    return (
        _count_modes() > 0
        or current_transform() is not None
        or forward_ad._current_level >= 0
        or _is_tracing()
    )


def is_symbolic_zero(tensor: Tensor) -> bool:
    """Whether torch only knows that it is zero: autograd makes such tensors, without memory."""
    return tensor._is_zerotensor()


def parameter(module: torch.nn.Module, name: str) -> Tensor:
    """A parameter, or what a parametrization or pruning put in its place."""
    value = module._parameters.get(name)  # Module.__getattr__ takes ten times as long
    return getattr(module, name) if value is None else value


def own_parameters(module: torch.nn.Module) -> dict[str, Tensor | None]:
    """By name; named_parameters() leaves out what is None."""
    return module._parameters  # type: ignore[return-value]


def own_children(module: torch.nn.Module) -> dict[str, torch.nn.Module | None]:
    """By name; children() leaves out a module's second name."""
    return module._modules


def own_buffers(module: torch.nn.Module) -> dict[str, Tensor | None]:
    """By name; named_buffers() leaves out what is None."""
    return module._buffers


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether functions were registered to run around the module's calls, saving or loading."""
    return any(value for name, value in module.__dict__.items() if name.endswith("_hooks"))
