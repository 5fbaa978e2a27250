"""The operations as JAX primitives: how they are typed, differentiated, batched and lowered.

Three primitives, each with the call's signature as its one static parameter:

- ``forward`` and ``gradient`` are a forward operation and its gradient operation. On the CPU they
  lower to one call of the native engine (ffi.py), on NVIDIA GPUs to the CUDA engine's steps
  (cuda.py), elsewhere and where an engine refuses to plain JAX operations (the pipeline).
- ``tangent`` is the derivative of a forward operation: linear in the tangents of its inputs. Its
  transpose is the gradient operation, which is how reverse mode reaches the engine; forward mode
  and higher derivatives use plain JAX operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .. import pipeline
from ..batching import fold
from ..errors import BackendError
from ..layout import batch_axes
from ..operations import operations_of
from . import cuda, ffi
from .signature import Signature, Value, result_splits, result_types
from .versions import (
    array_type,
    lower_with_devices,
    lowers_for_several,
    on_automatic_mesh,
    split_axes,
)


def _compose(signature: Signature, values: Sequence[Value]) -> list[Value]:
    """A call made of plain JAX operations: the pipeline on jax arrays."""
    layout = signature.layout(values)

    def function(*values: Value) -> list[Value]:
        given = iter(values)
        inputs = [next(given) if n in layout.present else None for n in layout.operation.inputs]
        with jax.numpy_rank_promotion("allow"):  # the caller may have forbidden it for their code
            return [result for result in pipeline.run(layout, inputs) if result is not None]

    types = [jax.typeof(value) for value in values]
    return on_automatic_mesh(function, values, result_splits(signature, types))


def _composed(signature: Signature) -> Callable[..., list[Value]]:
    return lambda *values: _compose(signature, values)


def _lowering(backend: str | None, engine: Any = None) -> Callable[..., Any]:
    """The rule of a platform, with its engine: one call per device where there are several."""

    def lower(ctx: Any, *operands: Any, signature: Signature) -> Any:
        if signature.backend not in (None, "reference", backend):
            label = signature.operation.name
            raise BackendError(
                f"[{label}] backend {signature.backend!r} cannot serve this call: it is "
                f"compiled for {', '.join(ctx.module_context.platforms)}"
            )

        def function(*values: Value) -> list[Value]:
            layout = signature.layout(values)
            if engine is None or signature.backend == "reference" or engine.refuses(layout):
                return _compose(signature, values)
            return ffi.call(engine.run, signature, values, lowers_for_several(ctx))

        return mlir.lower_fun(function, multiple_results=True)(ctx, *operands)

    return lower


# ---- a derivative in the direction of tangents ----


def _moving(signature: Signature, values: Sequence[Value], moved: Sequence[bool]) -> Any:
    """The forward operation as a function of the inputs that move, and where these are now."""
    places = [place for place, moves in enumerate(moved) if moves]

    def function(*moving: Value) -> list[Value]:
        inputs = list(values)
        for place, value in zip(places, moving, strict=True):
            inputs[place] = value
        return _compose(signature, inputs)

    return function, [values[place] for place in places]


def _tangent(*values: Value, signature: Signature, moved: tuple[bool, ...]) -> list[Value]:
    """(inputs, results, tangents of the inputs that move) -> tangents of the results."""
    inputs, tangents = values[: len(moved)], values[len(values) - sum(moved) :]
    function, moving = _moving(signature, inputs, moved)
    return list(jax.jvp(function, tuple(moving), tuple(tangents))[1])


def _transposed_tangent(
    cotangents: Sequence[Any], *values: Any, signature: Signature, moved: tuple[bool, ...]
) -> list[Any]:
    """The gradient operation; composed where its formulas do not reach (masks, zState)."""
    inputs = list(values[: len(moved)])
    results = values[len(moved) : len(values) - sum(moved)]
    names = signature.layout(inputs).result_names()
    incoming = {
        name: cotangent
        for name, cotangent in zip(names, cotangents, strict=True)
        if type(cotangent) is not ad.Zero
    }
    moving_names = [name for name, moves in zip(signature.inputs, moved, strict=True) if moves]
    cell = signature.operation.cell
    if "mask" in moving_names or "training_state" in incoming:
        function, moving = _moving(signature, inputs, moved)
        whole = [ad.instantiate_zeros(cotangent) for cotangent in cotangents]
        gradients = jax.vjp(function, *moving)[1](whole)
    else:
        given = dict(zip(signature.inputs, inputs, strict=True))
        made = dict(zip(names, results, strict=True))
        given |= {name: made[result] for name, result in cell.fed_back.items()}
        given |= {n: incoming[result] for n, result in cell.incoming.items() if result in incoming}
        given.setdefault("source_gradient", jnp.zeros_like(made[cell.states[0].name]))
        by_name = _run_gradient(signature, given, "source" not in moving_names)
        gradients = [by_name[name] for name in moving_names]
    return [None] * (len(values) - len(gradients)) + list(gradients)


def _run_gradient(signature: Signature, given: dict[str, Value], no_dx: bool) -> dict[str, Value]:
    """The gradients by name of a forward operation's gradient operation."""
    _, operation = operations_of(signature.operation.cell)
    inputs = tuple(name for name in operation.inputs if name in given)
    own = Signature(operation, signature.descriptor, inputs, signature.backend, no_dx)
    values = [given[name] for name in inputs]
    names = own.layout(values).result_names()
    return dict(zip(names, gradient_p.bind(*values, signature=own), strict=True))


def _forward_jvp(
    values: Sequence[Value], tangents: Sequence[Any], *, signature: Signature
) -> tuple[list[Value], list[Any]]:
    trained = signature.trained()
    results = forward_p.bind(*values, signature=trained)
    moved = tuple(type(tangent) is not ad.Zero for tangent in tangents)
    moving = [tangent for tangent, moves in zip(tangents, moved, strict=True) if moves]
    derivatives = tangent_p.bind(*values, *results, *moving, signature=trained, moved=moved)
    names = trained.layout(values).result_names()
    wanted = [names.index(name) for name in signature.layout(values).result_names()]
    return [results[place] for place in wanted], [derivatives[place] for place in wanted]


def _composed_jvp(function: Callable[..., Callable[..., Any]]) -> Callable[..., Any]:
    """The rule of a primitive that is differentiated through its composition."""

    def rule(values: Sequence[Value], tangents: Sequence[Any], **static: Any) -> Any:
        whole = [ad.instantiate_zeros(tangent) for tangent in tangents]
        return jax.jvp(function(**static), tuple(values), tuple(whole))

    return rule


# ---- one more batch axis ----


def _batch_forward(
    values: Sequence[Value], axes: Sequence[int | None], *, signature: Signature
) -> tuple[list[Value], list[int]]:
    """Shared weights: the new axis becomes part of N. Otherwise, one call per member.

    So too where an explicit mesh splits N already: JAX does not flatten an axis with a split one.
    """
    batched = {name for name, axis in zip(signature.inputs, axes, strict=True) if axis is not None}
    batched_axes = batch_axes(signature.operation)
    is_split = any(
        split is not None
        for name, value, own in zip(signature.inputs, values, axes, strict=True)
        for axis, split in enumerate(split_axes(jax.typeof(value)))
        if name in batched_axes and axis != own
    )
    if is_split or not batched <= batched_axes.keys():
        return _batch_in_turn(forward_p, values, axes, signature=signature)
    moved = [v if a is None else jnp.moveaxis(v, a, 0) for v, a in zip(values, axes, strict=True)]
    given = dict(zip(signature.inputs, moved, strict=True))
    one = [
        jax.ShapeDtypeStruct(v.shape[1:], v.dtype) if n in batched else v for n, v in given.items()
    ]
    layout = signature.layout(one)
    size = next(len(given[name]) for name in batched)
    folded = fold(signature.operation, given, batched, size, layout.shape("mask"))
    results = forward_p.bind(*folded, signature=signature)
    batch = layout.size[1]
    return [r.reshape(r.shape[0], size, batch, r.shape[-1]) for r in results], [1] * len(results)


def _batch_in_turn(
    primitive: Primitive, values: Sequence[Value], axes: Sequence[int | None], **static: Any
) -> tuple[list[Value], list[int]]:
    """One call per member: no engine computes several layers at once."""
    moved = [v if a is None else jnp.moveaxis(v, a, 0) for v, a in zip(values, axes, strict=True)]
    members = [v for v, axis in zip(moved, axes, strict=True) if axis is not None]

    def one(member: list[Value]) -> list[Value]:
        rest = iter(member)
        inputs = [v if axis is None else next(rest) for v, axis in zip(moved, axes, strict=True)]
        return list(primitive.bind(*inputs, **static))

    results = jax.lax.map(one, members)
    return results, [0] * len(results)


def _batch_tangent(
    values: Sequence[Value], axes: Sequence[int | None], **static: Any
) -> tuple[Any, Any]:
    results = jax.vmap(lambda *v: _tangent(*v, **static), in_axes=tuple(axes))(*values)
    return results, [0] * len(results)


# ---- the primitives ----


def _primitive(name: str) -> Primitive:
    primitive = Primitive(f"zstate_{name}")
    primitive.multiple_results = True

    def result_avals(*values: Any, signature: Signature, **static: Any) -> Any:
        inputs = values[: len(signature.inputs)]
        types, splits = result_types(signature, inputs), result_splits(signature, inputs)
        return [
            array_type(t.shape, t.dtype, values, split)
            for t, split in zip(types, splits, strict=True)
        ]

    @cache
    def compiled(**static: Any) -> Any:
        return jax.jit(lambda *values: primitive.bind(*values, **static))

    def compute(*values: Any, **static: Any) -> Any:
        with jax.disable_jit(False):  # a primitive of JAX's own is compiled under disable_jit too
            return compiled(**static)(*values)

    primitive.def_abstract_eval(result_avals)
    primitive.def_impl(compute)
    return primitive


forward_p = _primitive("forward")
gradient_p = _primitive("gradient")
tangent_p = _primitive("tangent")

for _each in (forward_p, gradient_p):
    mlir.register_lowering(_each, _lowering(None))
    mlir.register_lowering(_each, _lowering("native", ffi), platform="cpu")
    mlir.register_lowering(_each, _lowering("cuda", cuda), platform="cuda")
    lower_with_devices(_each)
mlir.register_lowering(tangent_p, mlir.lower_fun(_tangent, multiple_results=True))

ad.primitive_jvps[forward_p] = _forward_jvp
ad.primitive_jvps[gradient_p] = _composed_jvp(lambda signature: _composed(signature))
ad.primitive_jvps[tangent_p] = _composed_jvp(lambda **static: lambda *v: _tangent(*v, **static))
ad.primitive_transposes[tangent_p] = _transposed_tangent

batching.primitive_batchers[forward_p] = _batch_forward
batching.primitive_batchers[gradient_p] = lambda v, axes, **static: _batch_in_turn(
    gradient_p, v, axes, **static
)
batching.primitive_batchers[tangent_p] = _batch_tangent
