"""From torch tensors to a backend and back, without a copy.

The backends of the CPU know NumPy alone: a CPU tensor goes in as a NumPy view of its memory, and a
result comes back as a tensor over the NumPy array's memory. NumPy has no bfloat16 of its own, so
those tensors travel as their bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..backends import choose, native
from ..descriptors import AnyDescriptor
from ..errors import OptionError, refusal
from ..layout import Call, bind
from ..operations import AnyResult, Operation
from ..types import Array, float_dtype


def compute(
    operation: Operation,
    tensors: tuple[Tensor | None, ...],
    descriptor: AnyDescriptor | None,
    backend: str | None,
) -> dict[str, Tensor]:
    """One operation on tensors, its results by name; nothing is recorded for gradients."""
    call = bind(operation, tensors, descriptor)
    chosen = choose(call.layout, backend)
    on_cpu = chosen.device == "cpu"
    if on_cpu:
        # The native engine takes the bits of 16-bit types as they are.
        kind = None if chosen is native else float_dtype(call.layout.dtype)
        call = Call(call.layout, tuple([None if t is None else _view(t, kind) for t in tensors]))
    results: dict[str, Any] = (
        chosen.backward(call) if operation.is_gradient else chosen.forward(call)
    )
    if not on_cpu:
        return results
    if call.layout.dtype != "bfloat16":
        return {name: torch.from_numpy(array) for name, array in results.items()}
    return {
        name: torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
        for name, array in results.items()
    }


def _view(tensor: Tensor, kind: np.dtype[Any] | None) -> Array:
    """A CPU tensor's memory as an array; bfloat16 as bits, or as ``kind`` where that is given."""
    if tensor.dtype != torch.bfloat16:
        return tensor.numpy(force=True)  # for a CPU tensor: without its graph, not a copy
    bits: Array = tensor.detach().view(torch.uint16).numpy()
    return bits if kind is None else bits.view(kind)


def run(
    operation: Operation,
    tensors: tuple[Tensor | None, ...],
    descriptor: AnyDescriptor | None,
    backend: str | None,
) -> AnyResult:
    """The functional interface on tensors."""
    for name, tensor in zip(operation.inputs, tensors, strict=True):
        if torch.is_grad_enabled() and isinstance(tensor, Tensor) and tensor.requires_grad:
            raise OptionError(
                refusal(operation.name, name, "a tensor that needs no gradient", "one that does")
            )
    results: dict[str, Any] = dict(compute(operation, tensors, descriptor, backend))
    return operation.result(*map(results.get, operation.result._fields))  # type: ignore[arg-type]
