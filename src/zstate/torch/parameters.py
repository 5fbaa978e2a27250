"""What layers and cells share: activations, initial values, reprs, one bias from torch.nn's two."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..descriptors import Activation, AnyDescriptor
from ..errors import OptionError, refusal
from .private import is_exporting, own_parameters

AnyActivation: TypeAlias = Activation | str
# One for each gate in the descriptor's order, or some by the descriptor's names.
Activations: TypeAlias = Sequence[AnyActivation] | Mapping[str, AnyActivation]


def activation_options(
    module: str, kind: type[AnyDescriptor], activations: Activations | None
) -> dict[str, Any]:
    """The descriptor's fields that ``activations`` sets.

    >>> from zstate import GRUDescriptor
    >>> activation_options("GRU", GRUDescriptor, {"output_gate_activation": "relu"})
    {'output_gate_activation': Activation.RELU}
    """
    names = kind.activation_fields
    if activations is None:
        return {}
    if not isinstance(activations, Mapping):
        several = isinstance(activations, Sequence) and not isinstance(activations, str)
        if not several or len(activations) != len(names):
            expected = f"{len(names)} activations ({', '.join(names)})"
            raise OptionError(refusal(module, "activations", expected, repr(activations)))
        activations = dict(zip(names, activations, strict=True))
    return {name: _activation(module, value) for name, value in activations.items()}


def _activation(module: str, value: AnyActivation) -> Activation:
    if isinstance(value, Activation):
        return value
    known = {kind.name.lower(): kind for kind in Activation}
    if not isinstance(value, str) or value not in known:
        raise OptionError(refusal(module, "activations", f"one of {', '.join(known)}", repr(value)))
    return known[value]


# What a module's repr leaves out, in the order in which it names the others.
_DEFAULTS = {
    "proj_size": 0,
    "num_layers": 1,
    "nonlinearity": "tanh",
    "bias": True,
    "batch_first": False,
    "dropout": 0.0,
    "bidirectional": False,
    "peephole": False,
    "peephole_on_new_cell": False,
    "recurrent_dropout": 0.0,
    "recurrent_dropout_per_step": False,
    "reset_after": True,
    "return_cells": False,
    "activations": None,
    "heads": 1,
    "zoneout": 0.0,
    "clip": None,
}


def describe(module: Any) -> str:
    """A module's sizes and the options that are not the default, for its repr."""
    words = [str(module.input_size), str(module.hidden_size)]
    for name, default in _DEFAULTS.items():
        # A cell has its peephole as a parameter of that name.
        value = name in own_parameters(module) or module.__dict__.get(name, default)
        if value != default:
            words.append(f"{name}={value}")
    return ", ".join(words)


def reset_parameters(module: torch.nn.Module, hidden_size: int) -> None:
    """torch.nn's initial values: uniform within ±1/√H, in the order of the parameters."""
    bound = 1.0 / math.sqrt(hidden_size) if hidden_size else 0.0
    for parameter in module.parameters():
        torch.nn.init.uniform_(parameter, -bound, bound)


def one_bias(
    ih: Tensor | None, hh: Tensor | None, hidden: int, reset_after: bool, sums: bool = True
) -> tuple[Tensor | None, Tensor | None]:
    """bias [G·H] and secondary_bias [H] from torch.nn's two biases [G·H].

    Only their sum counts, except in a GRU that resets after the product: there the reset gate
    multiplies the last H of the second. Without ``sums``, only the shape of the bias is right.
    """
    if ih is None or hh is None:
        return None, None
    if not reset_after:
        return ih + with_own_gradient(hh) if sums else ih, None
    blend, candidate = hh.split_with_sizes((hh.shape[0] - hidden, hidden))
    return ih + torch.constant_pad_nd(blend, (0, hidden)) if sums else ih, candidate


# ---- a gradient of one's own ----

# Both summands of a bias have the same gradient. In a compiled graph, torch's inductor hands it out
# as one buffer in two tensors, so that what changes gradients in place (a second backward pass,
# clip_grad_norm_) would change it twice (seen with torch 2.13). A copy by an operator that inductor
# cannot see through keeps the two apart.

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
