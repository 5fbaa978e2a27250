"""The native backend: the C++ engine (csrc/) for the CPU, for every cell, option and float type.

The engine does the whole operation, projection and contraction included, with one thread pool;
what is left here is to hand it arrays in a form that it takes. Its plan is made once a signature.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from ..errors import DTypeError, OptionError
from ..layout import Call, Layout, describe
from ..types import Array

_native: Any
try:
    _native = import_module("zstate._native")
except ImportError as error:  # built without a C++ compiler, or run from the source tree
    _native = None
    _REASON = f"the package was built without its native module ({error})"

name = "native"

_CELLS = {"single_gate_rnn": "rnn", "lstm": "lstm", "gru": "gru"}


def unavailable() -> str | None:
    """Why this machine cannot run the backend, or None."""
    return _REASON if _native is None else None


def refuses(layout: Layout) -> str | None:
    """Why the backend cannot serve such a call: it serves them all."""
    return None


def forward(call: Call) -> dict[str, Array]:
    layout, tensors = call.layout, call.tensors
    plan, shapes = layout.cache.get("native") or _prepare(layout)
    dtype = tensors["source"].dtype  # type: ignore[union-attr]
    results = {name: np.empty(shape, dtype) for name, shape in shapes.items()}
    get, out = tensors.get, results.get
    plan.forward(
        _taken(tensors["source"]),
        _taken(tensors["recurrent_weight"]),
        _taken(tensors["input_weight"]),
        _taken(tensors["bias"]),
        _taken(tensors["init_state"]),
        _taken(get("init_cell")),
        _mask(call),
        _taken(get("peephole")),
        _taken(get("secondary_bias")),
        _raw(out("state")),
        _raw(out("cell")),
        _raw(out("training_state")),
    )
    return results


def backward(call: Call) -> dict[str, Array]:
    layout, tensors = call.layout, call.tensors
    plan, shapes = layout.cache.get("native") or _prepare(layout)
    dtype = tensors["source"].dtype  # type: ignore[union-attr]
    results = {
        # A gradient has the shape of its input, whichever of the accepted forms that had.
        name: np.empty(call.required(name).shape, dtype)
        for name in shapes
    }
    get, out = tensors.get, results.get
    plan.backward(
        _taken(tensors["source"]),
        _taken(tensors["recurrent_weight"]),
        _taken(tensors["source_gradient"]),
        _taken(tensors["z_state"]),
        _taken(get("cell_output_fwd")),
        _taken(get("output_fwd")),
        _taken(get("state_gradient")),
        _taken(get("cell_gradient")),
        _taken(tensors["input_weight"]),
        _taken(tensors["bias"]),
        _taken(tensors["init_state"]),
        _taken(get("init_cell")),
        _mask(call),
        _taken(get("peephole")),
        _taken(get("secondary_bias")),
        _raw(out("source")),
        _raw(out("recurrent_weight")),
        _raw(out("input_weight")),
        _raw(out("bias")),
        _raw(out("peephole")),
        _raw(out("init_state")),
        _raw(out("init_cell")),
        _raw(out("secondary_bias")),
    )
    return results


def _prepare(layout: Layout) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """The engine's plan for calls of this signature, and the shapes of their results."""
    steps, batch, inputs, hidden = layout.size
    descriptor = layout.descriptor
    plan = _native.Plan(
        cell=_CELLS[layout.cell_kind.name],
        dtype=layout.dtype,
        T=steps,
        N=batch,
        I=inputs,
        H=hidden,
        D=layout.directions,
        reverse=descriptor.reverse,
        gate_slots=layout.slots,
        activations=tuple(int(activation) for activation in descriptor.activations),
        reset_after=getattr(descriptor, "reset_after", False),
        flip_z=getattr(descriptor, "flip_z", False),
        has_input_weight="input_weight" in layout.present,
    )
    shapes = {name: layout.shape(name) for name in layout.result_names()}
    layout.cache["native"] = plan, shapes
    return plan, shapes


def _taken(array: Array | None) -> Array | None:
    """An input as the engine takes it: its last axis contiguous, 16-bit types as bits."""
    if array is None:
        return None
    if not array.flags.c_contiguous and array.strides[-1] != array.itemsize:
        array = np.ascontiguousarray(array)
    return _raw(array)


def _raw(array: Array | None) -> Array | None:
    if array is None or array.itemsize != 2:
        return array
    return array.view(np.uint16)


def _mask(call: Call) -> Array | None:
    mask = call.tensors["mask"]
    if mask is None:
        return None
    if mask.ndim and mask.strides[-1] not in (0, mask.itemsize):
        mask = np.ascontiguousarray(mask)
    # As bits first: NumPy makes broadcast views read-only, and has no other objection to them.
    return np.broadcast_to(
        mask.view(np.uint16) if mask.itemsize == 2 else mask, call.layout.shape("mask")
    )


def get_num_threads() -> int:
    """How many threads the native engine uses; 1 where it is not there."""
    return 1 if _native is None else int(_native.get_num_threads())


def set_num_threads(count: int) -> None:
    """Let the native engine use so many threads. Results do not depend on it, to the bit.

    The default is OMP_NUM_THREADS, or the cores that the process may use. Without the native
    engine there is nothing to set.
    """
    if isinstance(count, bool) or not isinstance(count, int):
        raise DTypeError(f"[set_num_threads] expected a whole number, got {describe(count)}")
    if count < 1:
        raise OptionError(f"[set_num_threads] expected at least 1, got {count}")
    if _native is not None:
        _native.set_num_threads(count)
