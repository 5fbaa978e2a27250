"""The native backend: the C++ engine (csrc/) for the CPU, for every cell, option and float type.

The engine does the whole operation, projection and contraction included, with one thread pool, and
takes and makes the arrays itself. It makes one plan per signature; a call that looks like one
before goes to its plan at once (``run_known``), since a call of one time step costs little more
than what Python does around it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from operator import index
from typing import Any, TypeAlias

import numpy as np

from ..descriptors import AnyDescriptor
from ..errors import BackendError, DTypeError, OptionError
from ..layout import Layout, describe
from ..operations import AnyResult, Operation
from ..types import Array
from .encoding import Encoded, called, encode, form_of
from .vector_programs import Tables, UnsupportedError

INTERFACE = 18  # what these sources know how to call; csrc/runtime/problem.h says what is offered


def _stale(module: Any) -> str | None:
    return wrong_interface("native module", getattr(module, "interface", None))


def wrong_interface(library: str, found: int | None) -> str | None:
    """Why a library of this interface cannot be called by these sources, or None."""
    if found == INTERFACE:
        return None
    return f"its {library} has interface {found}, not {INTERFACE}: rebuild the package"


def stamp() -> str | None:
    """The digest of the sources that the native module was built from; None without it."""
    return None if _REASON else _native.stamp


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
takes_bits = True  # of bfloat16
_TABLES = None if _REASON else Tables.of(_native)


def unavailable() -> str | None:
    """Why this machine cannot run the backend, or None."""
    return _REASON


def refuses(layout: Layout) -> str | None:
    """Why the backend cannot serve such a call, or None."""
    from ..heads import on_engine  # which needs this module's products

    try:
        encoded(on_engine(layout) if layout.descriptor.heads > 1 else layout)
    except UnsupportedError as reason:
        return str(reason)
    return None


def encoded(
    layout: Layout, shapes: Mapping[str, tuple[int, ...]] | None = None, packed: bool = False
) -> Encoded:
    """The cell's equations as the engine takes them; ``shapes``: of the inputs."""
    form = form_of(layout, shapes, packed)
    return encode(form, layout.operation.is_gradient, tables())


def tables() -> Tables:
    """What the engine has; raises UnsupportedError where it is not there."""
    if _TABLES is None:
        raise UnsupportedError(str(_REASON))
    return _TABLES


def stack(**parts: Any) -> Any:
    """Layers with packed weights: csrc/python/prepared.h says what it takes."""
    return _native.Stack(**parts)


def stream(*parts: Any) -> Any:
    """Steps of such layers, likewise."""
    return _native.Stream(*parts)


class Planned:
    """Calls of one layout. The first one shows the arrays' shapes and type to the engine's plan."""

    __slots__ = ("_heads", "_layout", "plan")

    def __init__(self, layout: Layout, heads: int = 1) -> None:
        self._layout, self._heads = layout, heads
        self.plan: Any = None

    def __call__(self, values: tuple[Any, ...]) -> AnyResult:
        if self.plan is None:
            self.plan = _plan(self._layout, values, heads=self._heads)
        result: AnyResult = self.plan.run(values)
        return result


def prepare(layout: Layout) -> Any:
    """What runs calls of one layout."""
    if layout.descriptor.heads == 1:
        return Planned(layout)
    plans: list[Planned] = []

    def run_inner(inner: Layout, heads: int, values: tuple[Any, ...]) -> AnyResult:
        if not plans:
            plans.append(Planned(inner, heads))
        return plans[0](values)

    return lambda values: _by_head(layout, values, run_inner)


def _by_head(layout: Layout, values: tuple[Any, ...], run_inner: Any) -> AnyResult:
    from ..heads import by_head  # which needs this module's products

    operation = layout.operation
    bits = values[0].dtype == np.uint16

    def run(inner: Layout, heads: int, given: dict[str, Array]) -> dict[str, Array]:
        found = run_inner(inner, heads, tuple(map(given.get, inner.operation.inputs)))
        return {name: getattr(found, name) for name in inner.result_names()}

    if bits:
        layout = replace(layout, dtype="float32")
        values = tuple(None if value is None else _from_bits(value) for value in values)
    results = by_head(layout, values, run)
    if bits:
        results = tuple(None if result is None else _to_bits(result) for result in results)
    return operation.result(*results)


def _from_bits(bits: Array) -> Array:
    """bfloat16's bits as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _to_bits(value: Array) -> Array:
    """float32 as bfloat16's bits, rounded to nearest even; not-a-number stays so."""
    wide = np.ascontiguousarray(value).view(np.uint32)
    rounded = (wide + 0x7FFF + (wide >> 16 & 1)) >> 16
    return np.where(np.isnan(value), wide >> 16 | 0x40, rounded).astype(np.uint16)


def packed(layout: Layout, values: tuple[Any, ...], sizes: tuple[int, ...]) -> AnyResult:
    """A call on sequences of different lengths, longest first; sizes[t] of them have a step t.

    The layout is that of N = sizes[0] sequences of T = len(sizes) steps. Every array [T,N,…] but
    the mask comes and goes as [M,…] without the steps that are not there, step after step.
    """
    if layout.descriptor.heads > 1:
        return _by_head(
            layout,
            values,
            lambda inner, heads, given: _plan(inner, given, sizes, heads).run(given),
        )
    result: AnyResult = _plan(layout, values, sizes).run(values)
    return result


def _unknown(operation: Operation, tensors: tuple[Any, ...], descriptor: Any) -> None:
    """No call is known without the engine."""


# The result of a call that looks like one that was remembered, or None. The same operation and
# descriptor objects, and for every input a plain array of the same shape and type: what was checked
# then holds now. The second: on plain torch tensors on the CPU; the results are tensors as well.
# They are the engine's own functions, since another call around them would take a while of its own.
Known: TypeAlias = Callable[[Operation, tuple[Any, ...], AnyDescriptor | None], AnyResult | None]
run_known: Known = _unknown if _REASON else _native.repeat
run_known_tensors: Known = _unknown if _REASON else _native.repeat_tensors


def use_torch(types: tuple[type, ...], to_dlpack: Any, from_numpy: Any) -> None:
    """How ``run_known_tensors`` knows plain tensors, reads one (a DLPack capsule), makes one."""
    if not _REASON:
        _native.use_torch(types, to_dlpack, from_numpy)


def remember_call(
    operation: Operation, values: tuple[Any, ...], descriptor: AnyDescriptor | None, run: Any
) -> None:
    """Cache this call's plan, if ``run`` is this engine's; ``descriptor`` as given."""
    if type(run) is Planned:
        _native.remember(operation, values, descriptor, run.plan)


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


def _plan(
    layout: Layout, values: tuple[Any, ...], sizes: tuple[int, ...] = (), heads: int = 1
) -> Any:
    """The engine's plan for calls like this one; R of several heads as heads.py stacks it."""
    operation = layout.operation
    steps, batch, inputs, hidden = layout.size
    pairs = zip(operation.inputs, values, strict=True)
    given = {name: array.shape for name, array in pairs if array is not None}
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
    form = form_of(layout, given, bool(sizes))
    words, numbers = encoded(layout, given, bool(sizes))

    def named(names: tuple[str, ...], shapes: Mapping[str, tuple[int, ...]], results: bool) -> Any:
        return [
            (name, shapes[name], engine) if name in shapes else None
            for name, engine in zip(names, called(form, names, results), strict=True)
        ]

    return _native.Plan(
        cell=words,
        numbers=numbers,
        type=layout.dtype,
        T=steps,
        N=batch,
        I=inputs,
        H=hidden // heads,
        D=layout.directions,
        heads=heads,
        reverse=layout.descriptor.reverse,
        has_input_weight="input_weight" in layout.present,
        gradient=operation.is_gradient,
        dtype=values[0].dtype,
        inputs=named(operation.inputs, given, False),
        results=named(operation.result._fields, made, not operation.is_gradient),
        result=operation.result,
        batch_sizes=sizes,
    )


def use_openmp(parallel: int, thread_number: int, team_size: int) -> None:
    """Compute on the threads of an OpenMP runtime; the addresses of three of its functions."""
    _native.use_openmp(parallel, thread_number, team_size)


def get_num_threads() -> int:
    """How many threads the native engine uses; 1 without the native engine."""
    return 1 if _REASON else int(_native.get_num_threads())


def set_num_threads(count: int) -> None:
    """Set how many threads the native engine uses. Results are the same bits for any number.

    The default is OMP_NUM_THREADS, or the number of cores that the process may use. Without the
    native engine this does nothing.
    """
    _set("set_num_threads", _whole_number("set_num_threads", count, 1, 2**31 - 1))


def set_kept_memory(size: int) -> None:
    """Limit the memory that the native engine keeps between calls, in bytes.

    For the next call it keeps its scratch memory, and the blocks of large results that are no
    longer in use, because the system has to clear new memory first. The default is 512 MB, or an
    eighth of the machine's memory if that is less. 0 keeps nothing, and frees what is kept now.
    """
    _set("set_kept_memory", min(_whole_number("set_kept_memory", size, 0), sys.maxsize))


# The settings that were made, and the copies of the engine in other libraries that follow them.
_settings: dict[str, int] = {}
_copies: list[Any] = []


def _set(setting: str, number: int) -> None:
    _settings[setting] = number
    if not _REASON:
        getattr(_native, setting)(number)
    for library in _copies:
        getattr(library, f"zstate_{setting}")(number)


def add_copy(library: Any) -> None:
    """Let the engine inside another library follow this one's settings."""
    for setting, number in _settings.items():
        getattr(library, f"zstate_{setting}")(number)
    _copies.append(library)


def _whole_number(function: str, value: Any, least: int, most: int | None = None) -> int:
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise DTypeError(f"[{function}] expected an integer, got {describe(value)}")
    number = index(value)
    if number < least:
        raise OptionError(f"[{function}] expected at least {least}, got {number}")
    if most is not None and number > most:
        raise OptionError(f"[{function}] expected at most {most}, got {number}")
    return number
