"""From torch tensors to a backend and back, without a copy, and on torch's threads.

The backends of the CPU know NumPy alone: a CPU tensor goes in as a NumPy view of its memory, and a
result comes back as a tensor over the NumPy array's memory. NumPy has no bfloat16 of its own, so
those tensors travel as their bits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..backends import (
    PREPARED,
    native,
    of_tensor,
    prepare,
    remember_call,
    run_known_tensors,
    use_torch,
)
from ..descriptors import AnyDescriptor
from ..layout import tensor_forms
from ..operations import AnyResult, Operation
from ..types import Array, float_dtype
from .checks import with_memory
from .dispatch import PLAIN_TYPES, Tensors, is_autocast, is_batched, is_watched

_OPENMP = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")


def share_threads() -> bool:
    """Let the engine compute on the threads that torch computes on; whether that could be done.

    torch's OpenMP threads spin for some milliseconds after each of its operations, as the engine's
    own do: two sets of them on the same cores slow both libraries down several times over in a
    model that alternates between the two. With one set, there is nothing to take turns on.
    """
    if native.unavailable() is not None or "OpenMP" not in torch.__config__.parallel_info():
        return False
    try:
        process = ctypes.CDLL(None)
        found = [ctypes.cast(getattr(process, name), ctypes.c_void_p) for name in _OPENMP]
    except (AttributeError, OSError, TypeError):  # another runtime, or another system
        return False
    native.use_openmp(*(function.value or 0 for function in found))
    return True


use_torch(PLAIN_TYPES, torch.to_dlpack, torch.from_numpy)  # type: ignore[attr-defined]
share_threads()


def run_known(
    operation: Operation, tensors: Tensors, descriptor: AnyDescriptor, backend: str | None
) -> AnyResult | None:
    """The results of a call on a GPU that looks like one before, or None.

    Also None where something other than the backend must see the call. One pass over the tensors,
    because what comes before a short call on a GPU takes the longest.
    """
    first = tensors[0]
    if type(first) not in PLAIN_TYPES or not first.is_cuda:  # type: ignore[union-attr]
        return None
    if is_watched() or is_autocast("cuda"):
        return None
    recording = torch.is_grad_enabled()
    key: list[object] = [operation, descriptor, backend]  # as backends.signature has it
    for tensor in tensors:
        if tensor is None:
            key.append(None)
        elif type(tensor) in PLAIN_TYPES and not (recording and tensor.requires_grad):
            key.append(of_tensor(tensor))
        else:
            return None
    prepared = PREPARED.get(tuple(key))
    if prepared is None or (operation.is_gradient and is_batched(tensors[2])):
        return None
    return operation.result(*prepared.run(tensors))


def compute(
    operation: Operation,
    tensors: Tensors,
    descriptor: AnyDescriptor | None,
    backend: str | None,
) -> AnyResult:
    """One operation on tensors; nothing is recorded for gradients."""
    if backend is None and not getattr(tensors[0], "is_cuda", False):
        known = run_known_tensors(operation, tensors, descriptor)
        if known is not None:
            return known
    layout, chosen, run = prepare(operation, tensors, descriptor, backend)
    if chosen.device != "cpu":
        return operation.result(*run(tensors))
    is_bfloat16 = layout.dtype == "bfloat16"
    by_bits = is_bfloat16 and getattr(chosen, "takes_bits", False)
    kind = float_dtype("bfloat16") if is_bfloat16 and not by_bits else None
    arrays = _arrays(tensors, is_bfloat16, kind)
    results = run(arrays)
    if backend is None and not is_bfloat16:
        remember_call(operation, arrays, descriptor, run)
    return operation.result(*_tensors(results, is_bfloat16))


@lru_cache(maxsize=64)
def _by_step(operation: Operation) -> frozenset[str]:
    """What has a row for every step of every sequence, as native.packed takes it."""
    forms = tensor_forms(operation.cell)
    names = (name for name in operation.inputs if any(f.startswith("T N") for f in forms[name]))
    return frozenset(names) - {"mask", "resets"}


def compute_packed(
    operation: Operation,
    tensors: tuple[Tensor | None, ...],
    descriptor: AnyDescriptor,
    sizes: tuple[int, ...],
) -> tuple[Tensor | None, ...]:
    """``compute`` on CPU tensors of sequences of different lengths; see native.packed."""
    # Checked as if no step were missing: the first row may represent all of them.
    steps, batch = len(sizes), sizes[0]
    if tensors[-1] is not None:
        tensors = (*tensors[:-1], _unpacked_resets(tensors[-1], sizes))
    by_step = _by_step(operation)
    stand_ins = [
        tensor[:1].expand(steps, batch, *tensor.shape[1:])
        if tensor is not None and name in by_step
        else tensor
        for name, tensor in zip(operation.inputs, tensors, strict=True)
    ]
    layout = prepare(operation, tuple(stand_ins), descriptor, native.name).layout
    is_bfloat16 = layout.dtype == "bfloat16"
    arrays = _arrays(tensors, is_bfloat16, None)
    return _tensors(native.packed(layout, arrays, sizes), is_bfloat16)


def _unpacked_resets(resets: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """[T,N,D] from [M,D]: like a mask, they are not packed for the engine."""
    there = torch.arange(sizes[0]) < torch.tensor(sizes)[:, None]  # [T,N]
    return resets.new_zeros(*there.shape, resets.shape[-1]).masked_scatter(there[..., None], resets)


def pack_rows(padded: Tensor, rows: Tensor) -> Tensor:
    """[M,F]: the rows of a CPU tensor [T,N,F] with these numbers, counted through both axes."""
    return _by_bits(padded, lambda array: native.pack_rows(array, rows.numpy()))


def unpack_rows(packed: Tensor, rows: Tensor, steps: int, batch: int) -> Tensor:
    """[T,N,F] with the rows of [M,F] in these places and zeros in all others."""
    return _by_bits(packed, lambda array: native.unpack_rows(array, rows.numpy(), steps, batch))


def _by_bits(tensor: Tensor, move: Callable[[Array], Array]) -> Tensor:
    """What moves whole rows does not care for their type."""
    if tensor.stride(-1) != 1:
        tensor = tensor.contiguous()
    if tensor.dtype != torch.bfloat16:
        return torch.from_numpy(move(_view(tensor)))
    return torch.from_numpy(move(_bits(tensor, None))).view(torch.bfloat16)


def _arrays(tensors: Tensors, is_bfloat16: bool, kind: np.dtype[Any] | None) -> tuple[Any, ...]:
    """CPU tensors as a backend takes them; bfloat16 as ``kind``, or as bits."""
    if is_bfloat16:
        return tuple([None if tensor is None else _bits(tensor, kind) for tensor in tensors])
    return tuple([None if tensor is None else _view(tensor) for tensor in tensors])


def _tensors(arrays: tuple[Any, ...], is_bfloat16: bool) -> Tensors:
    if not is_bfloat16:
        return tuple([None if array is None else torch.from_numpy(array) for array in arrays])
    return tuple(
        [
            None if array is None else torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
            for array in arrays
        ]
    )


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
    return np.from_dlpack(_Memory(with_memory(tensor)))


def _bits(tensor: Tensor, kind: np.dtype[Any] | None) -> Array:
    """A bfloat16 CPU tensor's memory as bits, or as ``kind`` where that is given."""
    bits = _view(with_memory(tensor).view(torch.int16)).view(np.uint16)
    return bits if kind is None else bits.view(kind)
