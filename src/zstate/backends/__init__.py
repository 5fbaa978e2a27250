"""The backends and the choice between them.

A backend is a module with ``forward(call)`` and ``backward(call)``, the device that it serves, and
two statements: ``unavailable()`` says why this machine cannot run it, ``refuses(layout)`` why it
cannot serve a call; None means it can. Backends of the device "cpu" get and give NumPy arrays
whatever the caller has; those of another device get and give torch tensors.
"""

from __future__ import annotations

from typing import Protocol

from ..errors import BackendError
from ..layout import Call, Layout
from ..types import Array
from . import cuda, native, reference
from .slow import warn_once


class Backend(Protocol):
    """What a backend module offers."""

    name: str
    device: str

    def unavailable(self) -> str | None: ...
    def refuses(self, layout: Layout) -> str | None: ...
    def forward(self, call: Call) -> dict[str, Array]: ...
    def backward(self, call: Call) -> dict[str, Array]: ...


# Fastest first: without a name, the first one that can serve the call does.
BACKENDS: dict[str, Backend] = {"cuda": cuda, "native": native, "reference": reference}


def available() -> list[Backend]:
    """The backends that this machine can run, fastest first."""
    return [backend for backend in BACKENDS.values() if backend.unavailable() is None]


def choose(layout: Layout, name: str | None) -> Backend:
    """The backend that was asked for, or the fastest that can serve the call."""
    # Asked first, since what is no string may not be hashable either.
    is_name = name is None or isinstance(name, str)
    chosen: Backend | None = layout.chosen.get(name) if is_name else None
    if chosen is None:
        chosen = _choose(layout, name)
        layout.chosen[name] = chosen
    return chosen


def _choose(layout: Layout, name: str | None) -> Backend:
    operation = layout.operation.name
    if name is None:
        return _fastest(layout)
    if not isinstance(name, str) or name not in BACKENDS:
        known = ", ".join(map(repr, BACKENDS))
        raise BackendError(f"[{operation}] backend: expected None or one of {known}, got {name!r}")
    reason = _reason(BACKENDS[name], layout)
    if reason is not None:
        raise BackendError(f"[{operation}] backend {name!r} cannot serve this call: {reason}")
    return BACKENDS[name]


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
