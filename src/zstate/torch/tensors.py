"""From torch tensors to a backend and back, without a copy.

The backends of the CPU know NumPy alone: a CPU tensor goes in as a NumPy view of its memory, and a
result comes back as a tensor over the NumPy array's memory. NumPy has no bfloat16 of its own, so
those tensors travel as their bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..backends import choose, native
from ..descriptors import AnyDescriptor
from ..layout import Call, Layout, bind
from ..operations import Operation
from ..types import Array, float_dtype
from .dispatch import PLAIN_TYPES

native.use_torch(PLAIN_TYPES, torch.to_dlpack, torch.from_numpy)  # type: ignore[attr-defined]


def compute(
    operation: Operation,
    tensors: tuple[Tensor | None, ...],
    descriptor: AnyDescriptor | None,
    backend: str | None,
) -> tuple[Tensor | None, ...]:
    """One operation on tensors, its results in order; nothing is recorded for gradients."""
    if backend is None:
        known: Any = native.repeat_tensors(operation, tensors, descriptor)
        if known is not None:
            return known  # type: ignore[no-any-return]
    layout = bind(operation, tensors, descriptor).layout
    chosen = choose(layout, backend)
    on_cpu = chosen.device == "cpu"
    # The native engine takes the bits of 16-bit types as they are.
    kind = None if chosen is native else float_dtype(layout.dtype)
    values: Any = _arrays(layout, tensors, kind) if on_cpu else tensors
    call = Call(layout, values)
    results: dict[str, Any] = (
        chosen.backward(call) if operation.is_gradient else chosen.forward(call)
    )
    if backend is None and chosen is native and layout.dtype != "bfloat16":
        native.remember(call, descriptor)
    if on_cpu:
        results = _tensors(layout, results)
    found: Any = operation.result(*map(results.get, operation.result._fields))  # type: ignore[arg-type]
    return found  # type: ignore[no-any-return]


# What has a row for every step of every sequence, as native.packed takes it.
_BY_STEP = frozenset(
    ("source", "source_gradient", "z_state", "cell_output_fwd", "output_fwd", "cell_gradient")
)


def compute_packed(
    operation: Operation,
    tensors: tuple[Tensor | None, ...],
    descriptor: AnyDescriptor,
    sizes: tuple[int, ...],
) -> tuple[Tensor | None, ...]:
    """``compute`` on CPU tensors of sequences of different lengths; see native.packed."""
    # Checked as if no step were missing: the first row may stand in for all of them.
    steps, batch = len(sizes), sizes[0]
    stand_ins = [
        tensor[:1].expand(steps, batch, -1) if tensor is not None and name in _BY_STEP else tensor
        for name, tensor in zip(operation.inputs, tensors, strict=True)
    ]
    layout = bind(operation, tuple(stand_ins), descriptor).layout
    call = Call(layout, _arrays(layout, tensors, None))
    results = _tensors(layout, native.packed(call, sizes))
    return tuple([results.get(name) for name in operation.result._fields])


def take_rows(padded: Tensor, rows: Tensor) -> Tensor:
    """[M,F]: the rows of a CPU tensor [T,N,F] with these numbers, counted through both axes."""
    return _by_bits(padded, lambda array: native.take_rows(array, rows.numpy()))


def put_rows(packed: Tensor, rows: Tensor, steps: int, batch: int) -> Tensor:
    """[T,N,F] with the rows of [M,F] in these places and zeros in all others."""
    return _by_bits(packed, lambda array: native.put_rows(array, rows.numpy(), steps, batch))


def _by_bits(tensor: Tensor, move: Callable[[Array], Array]) -> Tensor:
    """What moves whole rows does not care for their type."""
    if tensor.stride(-1) != 1:
        tensor = tensor.contiguous()
    if tensor.dtype != torch.bfloat16:
        return torch.from_numpy(move(_view(tensor)))
    return torch.from_numpy(move(_view(tensor.view(torch.int16)))).view(torch.bfloat16)


def _arrays(
    layout: Layout, tensors: tuple[Tensor | None, ...], kind: np.dtype[Any] | None
) -> tuple[Array | None, ...]:
    """CPU tensors as a backend takes them; bfloat16 as ``kind``, or as bits."""
    if layout.dtype == "bfloat16":
        return tuple([None if tensor is None else _bits(tensor, kind) for tensor in tensors])
    return tuple([None if tensor is None else _view(tensor) for tensor in tensors])


def _tensors(layout: Layout, results: dict[str, Array]) -> dict[str, Tensor]:
    if layout.dtype != "bfloat16":
        return {name: torch.from_numpy(array) for name, array in results.items()}
    return {
        name: torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
        for name, array in results.items()
    }


class _Memory:
    """A CPU tensor's memory for numpy.from_dlpack.

    Tensor.numpy() would do, but it forbids the tensor's storage to be resized from then on, which
    FSDP does with parameters.
    """

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, **_: Any) -> Any:
        return torch.to_dlpack(self.tensor)  # type: ignore[attr-defined]

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # the CPU


def _view(tensor: Tensor) -> Array:
    """A CPU tensor's memory as an array that is not to be written to."""
    return np.from_dlpack(_Memory(tensor.resolve_neg() if tensor.is_neg() else tensor))


def _bits(tensor: Tensor, kind: np.dtype[Any] | None) -> Array:
    """A bfloat16 CPU tensor's memory as bits, or as ``kind`` where that is given."""
    bits = _view(tensor.view(torch.int16)).view(np.uint16)
    return bits if kind is None else bits.view(kind)
