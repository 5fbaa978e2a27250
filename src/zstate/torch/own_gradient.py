"""A gradient of one's own for a tensor that is added to another, in a compiled graph.

Both summands have the same gradient. torch's inductor hands it out as one buffer in two tensors, so
that what changes gradients in place (a second backward pass, clip_grad_norm_) would change it twice
(seen with torch 2.13). A copy by an operator that inductor cannot see through keeps the two apart.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .private import is_exporting

_LIBRARY = torch.library.Library("zstate", "FRAGMENT")
_LIBRARY.define("copied(Tensor tensor) -> Tensor")
_LIBRARY.impl("copied", lambda tensor: tensor.clone(), "CompositeExplicitAutograd")
torch.library.register_fake("zstate::copied", torch.empty_like, lib=_LIBRARY)


def with_own_gradient(tensor: Tensor) -> Tensor:
    """The same tensor."""
    if torch.compiler.is_dynamo_compiling() and not is_exporting():
        return _OwnGradient.apply(tensor)  # type: ignore[no-any-return]
    return tensor


class _OwnGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.ops.zstate.copied(gradient)  # type: ignore[no-any-return]
