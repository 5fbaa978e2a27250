"""From torch tensors to a backend and back, without a copy.

The backends of the CPU know NumPy alone: a CPU tensor goes in as a NumPy view of its memory, and a
result comes back as a tensor over the NumPy array's memory. NumPy has no bfloat16 of its own, so
those tensors travel as their bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..backends import Backend, choose, cuda, native
from ..descriptors import AnyDescriptor
from ..layout import Call, Layout, bind
from ..operations import Operation
from ..types import Array, float_dtype
from .dispatch import PLAIN_TYPES, is_batched, is_watched


class _Known(NamedTuple):
    """What calls of one signature share."""

    layout: Layout
    backend: Backend
    on_cpu: bool
    run: Callable[[tuple[Tensor | None, ...]], tuple[Tensor | None, ...]] | None  # the whole call
    kind: np.dtype[Any] | None  # of the views of bfloat16 tensors; None: their bits


_KNOWN: dict[tuple[object, ...], _Known] = {}
_MOST_KNOWN = 4096  # then start anew: a bound, not a policy
_in_numpy = {torch.float32, torch.float64, torch.float16}.__contains__


def _known(layout: Layout, backend: Backend) -> _Known:
    # The native engine takes the bits of 16-bit types as they are.
    kind = None if backend is native else float_dtype(layout.dtype)
    run = cuda.runner(layout) if backend is cuda else None
    return _Known(layout, backend, backend.device == "cpu", run, kind)


def repeat(
    operation: Operation,
    tensors: tuple[Tensor | None, ...],
    descriptor: AnyDescriptor,
    backend: str | None,
) -> tuple[Tensor | None, ...] | None:
    """The results of a call on a GPU that looks like one before, or None.

    None too where anybody but the backend has a say in it. One pass over the tensors, since on a
    GPU nothing else of a short call takes as long as what stands in front of it.
    """
    first = tensors[0]
    if type(first) not in PLAIN_TYPES or not first.is_cuda or is_watched():  # type: ignore[union-attr]
        return None
    recording = torch.is_grad_enabled()
    key: list[object] = [operation, descriptor, backend]
    for tensor in tensors:
        if tensor is None:
            key.append(None)
        elif type(tensor) in PLAIN_TYPES and not (recording and tensor.requires_grad):
            key += (tensor.shape, tensor.dtype, tensor.device)
        else:
            return None
    known = _KNOWN.get(tuple(key))
    if known is None or known.run is None:
        return None
    if operation.is_gradient and is_batched(tensors[2]):
        return None
    return known.run(tensors)


def compute(
    operation: Operation,
    tensors: tuple[Tensor | None, ...],
    descriptor: AnyDescriptor | None,
    backend: str | None,
) -> tuple[Tensor | None, ...]:
    """One operation on tensors, its results in order; nothing is recorded for gradients."""
    # A call of one step costs little more than what is done here.
    first = tensors[0]
    if backend is None and isinstance(first, Tensor) and first.is_cpu and _in_numpy(first.dtype):
        found = _repeated(operation, tensors, descriptor)
        if found is not None:
            return found
    known = _look_up(operation, tensors, descriptor, backend)
    layout, chosen, on_cpu, run, kind = known
    if run is not None:
        return run(tensors)
    values: Any = _arrays(layout, tensors, kind) if on_cpu else tensors
    call = Call(layout, values)
    results: dict[str, Any] = (
        chosen.backward(call) if operation.is_gradient else chosen.forward(call)
    )
    if backend is None and chosen is native and layout.dtype != "bfloat16":
        native.remember(call, descriptor)
    if on_cpu:
        results = _tensors(layout, results)
    return tuple([results.get(name) for name in operation.result._fields])


def _repeated(
    operation: Operation, tensors: tuple[Tensor | None, ...], descriptor: AnyDescriptor | None
) -> tuple[Tensor | None, ...] | None:
    """The results of a call that looks like one before, or None."""
    try:
        arrays = tuple([None if tensor is None else _view(tensor) for tensor in tensors])
    except (RuntimeError, TypeError, AttributeError, BufferError):
        return None  # not all are on the CPU, or tensors at all: refused by name
    found: Any = native.repeat(operation, arrays, descriptor)
    if found is None:
        return None
    return tuple([None if array is None else torch.from_numpy(array) for array in found])


def _look_up(
    operation: Operation,
    tensors: tuple[Tensor | None, ...],
    descriptor: AnyDescriptor | None,
    backend: str | None,
) -> _Known:
    """What is known of such calls; checked when it is the first."""
    key: list[object] = [operation, descriptor, backend]
    for tensor in tensors:
        if tensor is None:
            key.append(None)
        elif type(tensor) in PLAIN_TYPES or isinstance(tensor, Tensor):
            key += (tensor.shape, tensor.dtype, tensor.device)
        else:
            bind(operation, tensors, descriptor)  # refuses it
    signature = tuple(key)
    known = _KNOWN.get(signature)
    if known is None:
        layout = bind(operation, tensors, descriptor).layout
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        known = _KNOWN[signature] = _known(layout, choose(layout, backend))
    return known


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
