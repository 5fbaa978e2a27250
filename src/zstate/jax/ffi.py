"""The engines inside XLA programs: the handlers of csrc/xla, without Python, and their mesh.

The handlers lie in a shared library of their own beside the package, which must be of the same
build; they are registered with XLA when zstate.jax is imported. Under a mesh, a call is split by
its batch and by nothing else: each device computes its own sequences, and the gradients of weights
are added up between them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from ..backends import native
from ..backends.encoding import called, form_of
from ..heads import by_head
from ..layout import Layout
from .signature import Signature

Run: TypeAlias = Callable[[Signature, Sequence[Any]], list[Any]]  # one call of an engine
_LIBRARY = Path(__file__).parent.parent / "libzstate_xla.so"
_TARGETS = {False: "zstate_forward", True: "zstate_gradient"}  # by whether it is a gradient


@lru_cache(maxsize=1)
def _load() -> ctypes.CDLL | str:
    """The library of the handlers, or why it cannot be used."""
    try:
        library = ctypes.CDLL(str(_LIBRARY))
    except OSError as error:
        return _missing(error)
    reason = _stale(library)
    if reason is not None:
        return reason
    library.zstate_set_kept_memory.argtypes = [ctypes.c_size_t]
    native.add_copy(library)
    return library


def _missing(error: Exception) -> str:
    return f"the package was built without its XLA handlers, which need jax at build time ({error})"


def _stale(library: ctypes.CDLL) -> str | None:
    """Why a library is not of the build of these sources and of the native module, or None."""
    try:
        interface, stamp = library.zstate_interface(), library.zstate_stamp
    except AttributeError:  # of a build that did not say
        interface = None
    reason = native.wrong_interface("library of XLA handlers", interface)
    if reason is not None:
        return reason
    stamp.restype = ctypes.c_char_p
    found, wanted = stamp().decode(), native.stamp()
    if wanted is None or found == wanted:
        return None
    return (
        f"its library of XLA handlers was built from other sources ({found}) than its native "
        f"module ({wanted}): rebuild the package"
    )


@lru_cache(maxsize=8)
def register(target: str, platform: str) -> str | None:
    """Let XLA find a handler; why it cannot, or None."""
    library = _load()
    if isinstance(library, str):
        return library
    try:
        handler = getattr(library, target)
    except AttributeError as error:
        return _missing(error)
    jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(handler), platform=platform)
    return None


def unavailable() -> str | None:
    """Why the native engine cannot be called from JAX, or None."""
    reasons = [register(target, "cpu") for target in _TARGETS.values()]
    reasons.append(native.unavailable())  # whose tables encode a cell's equations
    return next((reason for reason in reasons if reason), None)


def refuses(layout: Layout) -> str | None:
    """Why the engine cannot serve such a call from JAX, or None."""
    return unavailable() or native.refuses(layout)


def call(run: Run, signature: Signature, values: Sequence[Any], partitioned: bool) -> list[Any]:
    """One call of an engine; ``partitioned``: one per device, each with its own sequences."""
    if not partitioned:
        return run(signature, values)
    shapes = tuple((tuple(v.shape), v.dtype.name) for v in values)
    return list(_partitioned(run, signature, shapes)(*values))


def run(signature: Signature, values: Sequence[Any]) -> list[Any]:
    """A call of the native engine."""
    layout = signature.layout(values)
    given = dict(zip(signature.inputs, values, strict=True))
    if layout.descriptor.heads > 1:
        results = by_head(layout, tuple(map(given.get, layout.operation.inputs)), _run_engine)
        return [result for result in results if result is not None]
    # A product that XLA could not leave out by itself:
    no_dx = signature.no_dx and "input_weight" in layout.present
    found = _run_engine(layout, 1, given, ("source",) if no_dx else ())
    if no_dx:
        found["source"] = jnp.zeros(given["source"].shape, given["source"].dtype)
    return [found[name] for name in layout.result_names()]


def _run_engine(
    layout: Layout, heads: int, given: dict[str, Any], without: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Results by name, except those in ``without``; R of several heads as heads.py stacks it."""
    inputs = [name for name in layout.operation.inputs if name in given]
    shapes = {name: tuple(given[name].shape) for name in inputs}
    gradient = layout.operation.is_gradient
    made = {
        name: jax.ShapeDtypeStruct(
            shapes[name] if gradient else layout.shape(name), given["source"].dtype
        )
        for name in layout.result_names()
        if name not in without
    }
    words, numbers = native.encoded(layout, shapes)
    form = form_of(layout, shapes, False)
    problem = _problem(layout, heads)
    results = jax.ffi.ffi_call(_TARGETS[gradient], tuple(made.values()), vmap_method="sequential")(
        *(given[name] for name in inputs),
        fields=f"{native.INTERFACE} {' '.join(problem)}",
        problem=np.array(list(problem.values()), np.int64),
        cell=np.array(words, np.int64),
        numbers=np.array(numbers, np.float64),
        inputs=" ".join(called(form, inputs, False)),
        results=" ".join(called(form, made, not gradient)),
    )
    return dict(zip(made, results, strict=True))


def _problem(layout: Layout, heads: int) -> dict[str, int]:
    """A call's numbers by field, as csrc/xla/handlers.cpp reads them, in its order."""
    steps, batch, inputs, hidden = layout.size
    return {
        "T": steps,
        "N": batch,
        "I": inputs,
        "H": hidden // heads,
        "D": layout.directions,
        "heads": heads,
        "reverse": int(layout.descriptor.reverse),
        "has_input_weight": int("input_weight" in layout.present),
    }


# ---- under a mesh ----


@lru_cache(maxsize=4096)
def _partitioned(run: Run, signature: Signature, shapes: tuple[Any, ...]) -> Any:
    """The call with a rule for the partitioner: the batch may be split, nothing else."""
    function = custom_partitioning(lambda *values: tuple(run(signature, values)))
    stand_ins = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
    layout = signature.layout(stand_ins)
    inputs = [
        _axes(name, s.shape, layout) for name, s in zip(signature.inputs, stand_ins, strict=True)
    ]
    gradient = layout.operation.is_gradient
    given = dict(zip(signature.inputs, inputs, strict=True))
    results = [
        given[name] if gradient else _axes(name, layout.shape(name), layout)
        for name in layout.result_names()
    ]

    def partition(mesh: Any, arg_shapes: Any, result_shapes: Any) -> Any:
        source = arg_shapes[0].sharding.spec
        split = source[1] if len(source) > 1 else None

        def sharding(axes: tuple[bool, ...]) -> NamedSharding:
            return NamedSharding(mesh, P(*(split if is_batch else None for is_batch in axes)))

        def lower(*values: Any) -> tuple[Any, ...]:
            own = run(signature, values)
            if not gradient or split is None:
                return tuple(own)
            # Every device has the gradients of the weights from its own sequences.
            return tuple(
                each if any(axes) else jax.lax.psum(each, split)
                for each, axes in zip(own, results, strict=True)
            )

        return mesh, lower, tuple(map(sharding, results)), tuple(map(sharding, inputs))

    names = iter(f"a{k}" for k in range(1000))
    factors = [[("n" if b else next(names)) for b in axes] for axes in (*inputs, *results)]
    text = [" ".join(each) for each in factors]
    function.def_partition(
        partition,
        sharding_rule=f"{', '.join(text[: len(inputs)])} -> {', '.join(text[len(inputs) :])}",
        need_replication_factors=tuple(f for each in factors for f in each if f != "n"),
    )
    return function


def _axes(name: str, shape: tuple[int, ...], layout: Layout) -> tuple[bool, ...]:
    """Which axis of a tensor is the batch."""
    letters = [dim.letter for dim in layout.forms(name)[0]]
    if name == "mask":
        letters = letters[len(letters) - len(shape) :]
        return tuple(a == "N" and s != 1 for a, s in zip(letters, shape, strict=True))
    letters = next(
        [d.letter for d in form] for form in layout.forms(name) if len(form) == len(shape)
    )
    return tuple(letter == "N" for letter in letters)
