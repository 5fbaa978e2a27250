"""The native backend: the C++ engine (csrc/) for the CPU, for every cell, option and float type.

The engine does the whole operation, projection and contraction included, with one thread pool, and
takes and makes the arrays itself. Its plan is made once a signature; a call that looks like one
before goes to its plan at once (``repeat``), since a call of one time step costs little more than
what Python does around it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from operator import index
from typing import Any

import numpy as np

from ..descriptors import AnyDescriptor
from ..errors import BackendError, DTypeError, OptionError
from ..layout import Call, Layout, describe
from ..operations import AnyResult, Operation
from ..types import Array

_INTERFACE = 8  # what this module knows how to call; csrc/python/module.cpp says what it offers


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

_CELLS = {"single_gate_rnn": "rnn", "lstm": "lstm", "gru": "gru"}


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


def repeat(
    operation: Operation, tensors: tuple[Any, ...], descriptor: AnyDescriptor | None
) -> AnyResult | None:
    """The result of a call that looks like one that was remembered, or None.

    The same operation and descriptor objects, and for every input a plain array of the same shape
    and type: what was checked then holds now.
    """
    result: AnyResult | None = None if _REASON else _native.repeat(operation, tensors, descriptor)
    return result


def use_torch(types: tuple[type, ...], to_dlpack: Any, from_numpy: Any) -> None:
    """How ``repeat_tensors`` knows plain tensors, reads one (a DLPack capsule), and makes one."""
    if not _REASON:
        _native.use_torch(types, to_dlpack, from_numpy)


def repeat_tensors(
    operation: Operation, tensors: tuple[Any, ...], descriptor: AnyDescriptor | None
) -> AnyResult | None:
    """``repeat`` on plain torch tensors on the CPU; the results are tensors as well."""
    found: AnyResult | None = (
        None if _REASON else _native.repeat_tensors(operation, tensors, descriptor)
    )
    return found


def remember(call: Call, descriptor: AnyDescriptor | None) -> None:
    """Let calls that look like this one, which was served, be repeated; ``descriptor`` as given."""
    plan = call.layout.cache.get("native")
    if plan is not None:
        _native.remember(call.layout.operation, call.values, descriptor, plan)


def product(a: Array, b: Array) -> Array:
    """a·b as np.matmul has it; large matrices go to the engine.

    NumPy's own library would leave threads spinning on the cores that the engine needs next: with
    it, a step of training took twice as long.
    """
    found: Array | None = None if _REASON else _native.product(a, b)
    return np.matmul(a, b) if found is None else found


def fused(name: str, *values: Any) -> Any:
    """What the engine computes of these arrays in one pass, or None where it does not serve them.

    ``name``: a function of csrc/python/graph_arrays.h, which says what it takes and gives.
    """
    return None if _REASON else getattr(_native, name)(*values)


def pack_rows(padded: Array, rows: Array) -> Array:
    """[M,F]: the rows of [T,N,F] with these numbers, counted through its first two axes."""
    found: Array = _native.pack_rows(padded, rows)
    return found


def unpack_rows(packed: Array, rows: Array, steps: int, batch: int) -> Array:
    """[T,N,F] with the rows of [M,F] in these places and zeros in all others."""
    found: Array = _native.unpack_rows(packed, rows, steps, batch)
    return found


def packed(call: Call, sizes: tuple[int, ...]) -> dict[str, Array]:
    """A call on sequences of different lengths, longest first; sizes[t] of them have a step t.

    The layout is that of N = sizes[0] sequences of T = len(sizes) steps. Every array [T,N,…] but
    the mask comes and goes as [M,…] without the steps that are not there, step after step.
    """
    return _by_name(_plan(call, sizes).run(call.values))


def _run(call: Call) -> dict[str, Array]:
    plan = call.layout.cache.get("native")
    if plan is None:
        plan = call.layout.cache["native"] = _plan(call)
    return _by_name(plan.run(call.values))


def _by_name(result: Any) -> dict[str, Array]:
    return {
        name: array for name, array in zip(result._fields, result, strict=True) if array is not None
    }


def _plan(call: Call, sizes: tuple[int, ...] = ()) -> Any:
    """The engine's plan for calls of this signature."""
    layout = call.layout
    operation = layout.operation
    steps, batch, inputs, hidden = layout.size
    descriptor = layout.descriptor
    given = {name: array.shape for name, array in call.tensors.items() if array is not None}
    made = {
        # A gradient has the shape of its input, whichever of the accepted forms that had.
        name: given[name] if operation.is_gradient else layout.shape(name)
        for name in layout.result_names()
    }
    if sizes and not operation.is_gradient:
        made = {name: (sum(sizes), shape[-1]) for name, shape in made.items()}
    try:
        _native.isa()
    except RuntimeError as error:  # an instruction set was forced that this machine has not
        raise BackendError(str(error)) from error
    return _native.Plan(
        cell=_CELLS[layout.cell_kind.name],
        type=layout.dtype,
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
        gradient=operation.is_gradient,
        dtype=call.required("source").dtype,
        inputs=[(name, given[name]) if name in given else None for name in operation.inputs],
        results=[(name, made[name]) if name in made else None for name in operation.result._fields],
        result=operation.result,
        batch_sizes=sizes,
    )


def use_openmp(parallel: int, thread_number: int, team_size: int) -> None:
    """Compute on the threads of an OpenMP runtime; the addresses of three of its functions."""
    _native.use_openmp(parallel, thread_number, team_size)


def get_num_threads() -> int:
    """How many threads the native engine uses; 1 where it is not there."""
    return 1 if _REASON else int(_native.get_num_threads())


def set_num_threads(count: int) -> None:
    """Let the native engine use so many threads. Results do not depend on it, to the bit.

    The default is OMP_NUM_THREADS, or the cores that the process may use. Without the native
    engine there is nothing to set.
    """
    number = _whole_number("set_num_threads", count, 1, 2**31 - 1)
    if not _REASON:
        _native.set_num_threads(number)


def set_kept_memory(size: int) -> None:
    """Let the native engine keep at most so many bytes of memory between calls.

    It keeps the blocks of large results that nobody holds any more, and its scratch memory, for the
    next call: new memory has to be cleared by the system first. The default is 512 MB, or an eighth
    of the machine's memory if that is less; 0 keeps nothing, and gives back what is kept now.
    """
    number = _whole_number("set_kept_memory", size, 0)
    if not _REASON:
        _native.set_kept_memory(min(number, sys.maxsize))


def _whole_number(function: str, value: Any, least: int, most: int | None = None) -> int:
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise DTypeError(f"[{function}] expected a whole number, got {describe(value)}")
    number = index(value)
    if number < least:
        raise OptionError(f"[{function}] expected at least {least}, got {number}")
    if most is not None and number > most:
        raise OptionError(f"[{function}] expected at most {most}, got {number}")
    return number
