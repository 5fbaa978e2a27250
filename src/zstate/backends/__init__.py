"""The backends, the choice between them, and the one table of prepared calls.

A backend is a module with a name, the device that it serves, and three functions:
``prepare(layout)`` returns a function that runs calls of one layout, ``unavailable()`` says why
this machine cannot run it, and ``refuses(layout)`` says why it cannot serve a call; None means it
can. Backends for the device "cpu" take and return NumPy arrays, whatever the caller has; those for
another device take and return torch tensors. A module with ``takes_bits = True`` takes and returns
bfloat16 tensors as their bits (uint16); others use arrays of ml_dtypes' type.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from ..descriptors import AnyDescriptor
from ..errors import BackendError
from ..layout import Layout, bind, is_plain_array, is_torch_tensor
from ..operations import Operation
from . import cuda, native, reference
from .native import remember_call, run_known, run_known_tensors, use_torch
from .slow import warn_once

__all__ = [
    "BACKENDS",
    "Backend",
    "Prepared",
    "available",
    "prepare",
    "remember_call",
    "run_known",
    "run_known_tensors",
    "use_torch",
]

# Inputs in the operation's order to results in the published order, None for missing ones.
Run: TypeAlias = Callable[[Any], Any]


class Backend(Protocol):
    """What a backend module offers."""

    name: str
    device: str

    def unavailable(self) -> str | None: ...
    def refuses(self, layout: Layout) -> str | None: ...
    def prepare(self, layout: Layout) -> Run: ...


class Prepared(NamedTuple):
    """Calls of one signature, checked and given to a backend."""

    layout: Layout
    backend: Backend
    run: Run


# Fastest first: without a name, the first one that can serve the call does.
BACKENDS: dict[str, Backend] = {"cuda": cuda, "native": native, "reference": reference}

# By signature, whatever the arrays are. The native engine has its own table in front of it, in C++,
# for calls that name no backend: run_known, run_known_tensors, remember_call.
PREPARED: dict[tuple[object, ...], Prepared] = {}
_MOST_PREPARED = 4096  # then start over: a bound, not a policy

# What a call is known by, of each of its inputs.
of_array = attrgetter("shape", "dtype")
of_tensor = attrgetter("shape", "dtype", "device", "layout")


def available() -> list[Backend]:
    """The backends that this machine can run, fastest first."""
    return [backend for backend in BACKENDS.values() if backend.unavailable() is None]


def prepare(
    operation: Operation,
    tensors: tuple[Any, ...],
    descriptor: AnyDescriptor | None,
    backend: str | None,
) -> Prepared:
    """What runs such a call: from the table, or checked now and given to a backend.

    ``tensors``, in the order of the operation's inputs, are NumPy arrays or torch tensors.
    """
    key = signature(operation, tensors, descriptor, backend)
    try:
        known = PREPARED.get(key)  # type: ignore[arg-type]
    except TypeError:  # something unhashable in the descriptor's place
        known = key = None
    if known is not None:
        return known
    # Outside the handler, so that the error has no other exception behind it.
    layout = bind(operation, tensors, descriptor)
    chosen = choose(layout, backend)
    prepared = Prepared(layout, chosen, chosen.prepare(layout))
    if key is not None:
        if len(PREPARED) >= _MOST_PREPARED:
            PREPARED.clear()
        PREPARED[key] = prepared
    return prepared


def signature(
    operation: Operation,
    tensors: tuple[Any, ...],
    descriptor: AnyDescriptor | None,
    backend: str | None,
) -> tuple[object, ...] | None:
    """The key of a call; None if something that is not a plain array prevents one."""
    key: list[object] = [operation, descriptor, backend]
    for tensor in tensors:
        if tensor is None:
            key.append(None)
        elif type(tensor) is np.ndarray or is_plain_array(tensor):
            key.append(of_array(tensor))
        elif is_torch_tensor(tensor):
            key.append(of_tensor(tensor))
        else:
            return None
    return tuple(key)


def choose(layout: Layout, name: str | None) -> Backend:
    """The backend the caller named, or the fastest that can serve the call."""
    operation = layout.operation.name
    if name is None:
        return _fastest(layout)
    check_name(operation, name)
    reason = _reason(BACKENDS[name], layout)
    if reason is not None:
        raise BackendError(f"[{operation}] backend {name!r} cannot serve this call: {reason}")
    return BACKENDS[name]


def check_name(operation: str, name: object) -> None:
    """Reject a name that is not a backend's."""
    if not isinstance(name, str) or name not in BACKENDS:
        known = ", ".join(map(repr, BACKENDS))
        raise BackendError(f"[{operation}] backend: expected None or one of {known}, got {name!r}")


def _fastest(layout: Layout) -> Backend:
    reasons = []
    for backend in BACKENDS.values():
        reason = _reason(backend, layout)
        if reason is None:
            if backend.name == "reference":
                warn_once(layout, native.unavailable())
            return backend
        if backend.device == layout.device:
            reasons.append(f"{backend.name}: {reason}")
    why = "; ".join(reasons) or "this installation has none"
    raise BackendError(
        f"[{layout.operation.name}] source: expected a device with a backend that serves the call, "
        f"got {layout.device} ({why})"
    )


def _reason(backend: Backend, layout: Layout) -> str | None:
    """Why a backend cannot serve a call, or None."""
    if backend.device != layout.device:
        return f"it computes on {backend.device}, the tensors are on {layout.device}"
    return backend.unavailable() or backend.refuses(layout)
