"""The native backend: the C++ engine (csrc/) for the CPU, for every cell, option and float type.

The engine does the whole operation, projection and contraction included, with one thread pool;
what is left here is to hand it arrays in a form that it takes, in few steps: a call of one time
step costs little more than what is done here. Its plan is made once a signature.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from ..errors import BackendError, DTypeError, OptionError
from ..layout import Call, Layout, describe
from ..types import Array, Shape

_INTERFACE = 1  # what this module knows how to call; csrc/module.cpp says what it offers


def _stale(module: Any) -> str | None:
    found = getattr(module, "interface", None)
    if found == _INTERFACE:
        return None
    return f"its native module has interface {found}, not {_INTERFACE}: build the package again"


_REASON: str | None
_native: Any
try:
    _native = import_module("zstate._native")
    _REASON = _stale(_native)
except ImportError as error:  # built without a C++ compiler, or run from the source tree
    _native = None
    _REASON = f"the package was built without its native module ({error})"

name = "native"
device = "cpu"

_PLAIN = 0x101  # NumPy's flags for C-contiguous and aligned

_CELLS = {"single_gate_rnn": "rnn", "lstm": "lstm", "gru": "gru"}

# The engine's arguments, in its order: inputs, then results.
_FORWARD = (
    *("source", "recurrent_weight", "input_weight", "bias", "init_state", "init_cell"),
    *("mask", "peephole", "secondary_bias"),
)
_FORWARD_RESULTS = ("state", "cell", "training_state")
_BACKWARD = (
    *("source", "recurrent_weight", "source_gradient", "z_state", "cell_output_fwd"),
    *("output_fwd", "state_gradient", "cell_gradient", *_FORWARD[2:]),
)
_BACKWARD_RESULTS = (
    *("source", "recurrent_weight", "input_weight", "bias", "peephole"),
    *("init_state", "init_cell", "secondary_bias"),
)


class _Prepared(NamedTuple):
    """What calls of one signature share."""

    run: Callable[..., None]
    names: tuple[str, ...]  # the engine's inputs
    inputs: list[int]  # for each of them its place among the call's inputs; -1: none
    results: list[tuple[str, Shape] | None]  # for each of the engine's results
    dtype: np.dtype[Any]
    direct: bool  # contiguous arrays go in as they are


def unavailable() -> str | None:
    """Why this machine cannot run the backend, or None."""
    return _REASON


def refuses(layout: Layout) -> str | None:
    """Why the backend cannot serve such a call: it serves them all."""
    return None


def forward(call: Call) -> dict[str, Array]:
    return _run(call)


def backward(call: Call) -> dict[str, Array]:
    return _run(call)


def _run(call: Call) -> dict[str, Array]:
    prepared: _Prepared = call.layout.cache.get("native") or _prepare(call)
    run, names, inputs, wanted, dtype, direct = prepared
    values = call.values
    results: dict[str, Array] = {}
    outputs: list[Array | None] = []
    for result in wanted:
        if result is None:
            outputs.append(None)
        else:
            array = results[result[0]] = np.empty(result[1], dtype)
            outputs.append(array)
    arrays = [None if place < 0 else values[place] for place in inputs]
    for given in arrays:
        if given is not None and given.flags.num & _PLAIN != _PLAIN:
            direct = False
    if not direct:
        masks = call.layout.shape("mask")
        arrays = [_taken(name, given, masks) for name, given in zip(names, arrays, strict=True)]
        outputs = [_bits(output) for output in outputs]
    run(*arrays, *outputs)
    return results


def _prepare(call: Call) -> _Prepared:
    """The engine's plan for calls of this signature, and where its arguments come from."""
    layout = call.layout
    operation = layout.operation
    plan = _plan(layout)
    names: tuple[str, ...] = _FORWARD
    results: tuple[str, ...] = _FORWARD_RESULTS
    run = plan.forward
    if operation.is_gradient:
        names, results, run = _BACKWARD, _BACKWARD_RESULTS, plan.backward
    places = {name: place for place, name in enumerate(operation.inputs)}
    produced = layout.result_names()
    shapes = {
        # A gradient has the shape of its input, whichever of the accepted forms that had.
        name: call.required(name).shape if operation.is_gradient else layout.shape(name)
        for name in produced
    }
    dtype = call.required("source").dtype
    prepared = _Prepared(
        run,
        names,
        [places.get(name, -1) for name in names],
        [(name, shapes[name]) if name in shapes else None for name in results],
        dtype,
        dtype.itemsize != 2 and "mask" not in layout.present,
    )
    layout.cache["native"] = prepared
    return prepared


def _plan(layout: Layout) -> Any:
    steps, batch, inputs, hidden = layout.size
    descriptor = layout.descriptor
    try:
        _native.isa()
    except RuntimeError as error:  # an instruction set was forced that this machine has not
        raise BackendError(str(error)) from error
    return _native.Plan(
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


def _taken(name: str, array: Array | None, masks: Shape) -> Array | None:
    """An input as the engine takes it: aligned, the last axis contiguous, 16-bit types as bits.

    A mask goes in broadcast, and its last axis may be as well.
    """
    if array is None:
        return None
    good: tuple[int, ...] = (array.itemsize,)
    if name == "mask":
        array, good = np.broadcast_to(array, masks), (array.itemsize, 0)
    if not array.flags.aligned or array.strides[-1] not in good:
        array = np.array(array, order="C")
    return _bits(array)


def _bits(array: Array | None) -> Array | None:
    return array if array is None or array.itemsize != 2 else array.view(np.uint16)


def get_num_threads() -> int:
    """How many threads the native engine uses; 1 where it is not there."""
    return 1 if _REASON else int(_native.get_num_threads())


def set_num_threads(count: int) -> None:
    """Let the native engine use so many threads. Results do not depend on it, to the bit.

    The default is OMP_NUM_THREADS, or the cores that the process may use. Without the native
    engine there is nothing to set.
    """
    if isinstance(count, bool) or not isinstance(count, int):
        raise DTypeError(f"[set_num_threads] expected a whole number, got {describe(count)}")
    if count < 1:
        raise OptionError(f"[set_num_threads] expected at least 1, got {count}")
    if not _REASON:
        _native.set_num_threads(count)
