"""The six operations on jax arrays: the functional interface's arguments, and ``lengths``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import jax
import jax.export
import jax.numpy as jnp

from .. import functional
from .. import operations as ops
from ..backends import check_name
from ..cells import CELLS, Cell
from ..cells.decorator import tell_of_cells
from ..descriptors import AnyDescriptor, GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor
from ..errors import BackendError, DTypeError, ShapeError, refusal
from ..extensions import extended, has_head_axis, without_head_axis
from ..layout import (
    Layout,
    brackets,
    by_name,
    check_descriptor,
    check_type,
    describe,
    dtype_name,
    is_plain_array,
)
from ..operations import (
    OPERATIONS,
    AnyResult,
    GRUResult,
    LSTMResult,
    Operation,
    RNNResult,
    operations_of,
)
from . import cuda, ffi
from .lengths import check_lengths, run_with_lengths
from .primitives import forward_p, gradient_p
from .signature import Signature
from .versions import vary_alike

P = ParamSpec("P")
R = TypeVar("R")
Value = Any  # what jax.numpy takes: a jax array, a tracer, a NumPy array


def run(
    operation: Operation,
    tensors: tuple[Value | None, ...],
    descriptor: AnyDescriptor | None,
    backend: str | None,
    lengths: Value | None = None,
    heads: int = 1,
) -> AnyResult:
    """A call of the functional interface; the last of the tensors are the resets, [T,N]."""
    if heads == 1 and has_head_axis(operation, tensors[1], descriptor):
        rest = (descriptor, backend, lengths)
        return cast(AnyResult, without_head_axis(run, operation, tensors, *rest))
    if tensors[-1] is not None or heads != 1:
        tensors, descriptor = extended(operation, tensors, descriptor, heads)
    return traced(operation, tensors, descriptor, backend, lengths)


def traced(
    operation: Operation,
    tensors: tuple[Value | None, ...],
    descriptor: AnyDescriptor | None,
    backend: str | None,
    lengths: Value | None = None,
) -> AnyResult:
    """Check a call while it is traced, and bind it."""
    descriptor = check_descriptor(operation, descriptor)
    given = {
        name: _as_value(operation, name, value)
        for name, value in by_name(operation, tensors).items()
    }
    values = list(given.values())
    layout = Signature(operation, descriptor, tuple(given)).layout(values)
    _check_backend(layout, backend)

    def bind(given: dict[str, Value], descriptor: AnyDescriptor) -> dict[str, Value]:
        signature = Signature(operation, descriptor, tuple(given), backend)
        names = signature.layout(list(given.values())).result_names()
        primitive = gradient_p if operation.is_gradient else forward_p
        values = vary_alike(list(given.values()))
        return dict(zip(names, primitive.bind(*values, signature=signature), strict=True))

    if lengths is None:
        results = bind(given, descriptor)
    else:
        lengths = check_lengths(operation.name, lengths, *layout.size[:2])
        results = run_with_lengths(bind, operation.cell, given, descriptor, lengths)
    return operation.result(*map(results.get, operation.result._fields))


def _as_value(operation: Operation, name: str, value: Any) -> Value:
    if not isinstance(value, jax.Array) and hasattr(value, "__jax_array__"):
        value = value.__jax_array__()  # such as a flax.nnx parameter, which jax.numpy accepts too
    if not isinstance(value, jax.Array):
        if not is_plain_array(value):
            raise DTypeError(refusal(operation.name, name, "a jax or NumPy array", describe(value)))
        check_type(operation.name, name, dtype_name(value.dtype))  # JAX refuses some without a name
    if all(isinstance(size, int) for size in value.shape):
        return jnp.asarray(value)
    expected = "sizes that are numbers, because each has its own program"
    raise ShapeError(refusal(operation.name, name, expected, brackets(value.shape)))


def _check_backend(layout: Layout, backend: str | None) -> None:
    """Refuse a backend that cannot serve such a call on any device."""
    if backend is None:
        return
    check_name(layout.operation.name, backend)
    engine = {"native": ffi, "cuda": cuda}.get(backend)
    reason = engine.refuses(layout) if engine is not None else None
    if reason is not None:
        raise BackendError(
            f"[{layout.operation.name}] backend {backend!r} cannot serve this call: {reason}"
        )


def _described(function: Callable[P, R]) -> Callable[P, R]:
    """The function with the text of the one that it has on NumPy arrays, and a line on lengths."""
    whole: str = getattr(functional, function.__name__).__doc__ or ""  # none under python -OO
    text = whole.partition("\n    Example:")[0]
    line = "        lengths: [N], how many steps of each sequence count; None means all T.\n"
    function.__doc__ = text.replace("\n\n    Returns:", f"\n{line}\n    Returns:")
    return function


@_described
def single_gate_rnn(
    source: Value,
    recurrent_weight: Value,
    *,
    input_weight: Value | None = None,
    bias: Value | None = None,
    init_state: Value | None = None,
    mask: Value | None = None,
    resets: Value | None = None,
    heads: int = 1,
    descriptor: SingleGateRNNDescriptor | None = None,
    backend: str | None = None,
    lengths: Value | None = None,
) -> RNNResult:
    """:func:`zstate.single_gate_rnn` on jax arrays, with ``lengths``."""
    tensors = (source, recurrent_weight, input_weight, bias, init_state, mask, resets)
    return cast(RNNResult, run(ops.SINGLE_GATE_RNN, tensors, descriptor, backend, lengths, heads))


@_described
def lstm(
    source: Value,
    recurrent_weight: Value,
    *,
    input_weight: Value | None = None,
    bias: Value | None = None,
    init_state: Value | None = None,
    init_cell: Value | None = None,
    mask: Value | None = None,
    peephole: Value | None = None,
    resets: Value | None = None,
    heads: int = 1,
    descriptor: LSTMDescriptor | None = None,
    backend: str | None = None,
    lengths: Value | None = None,
) -> LSTMResult:
    """:func:`zstate.lstm` on jax arrays, with ``lengths``."""
    tensors = (
        *(source, recurrent_weight, input_weight, bias, init_state, init_cell),
        *(mask, peephole, resets),
    )
    return cast(LSTMResult, run(ops.LSTM_FORWARD, tensors, descriptor, backend, lengths, heads))


@_described
def gru(
    source: Value,
    recurrent_weight: Value,
    *,
    input_weight: Value | None = None,
    bias: Value | None = None,
    init_state: Value | None = None,
    mask: Value | None = None,
    secondary_bias: Value | None = None,
    resets: Value | None = None,
    heads: int = 1,
    descriptor: GRUDescriptor | None = None,
    backend: str | None = None,
    lengths: Value | None = None,
) -> GRUResult:
    """:func:`zstate.gru` on jax arrays, with ``lengths``."""
    tensors = (
        *(source, recurrent_weight, input_weight, bias, init_state, mask),
        *(secondary_bias, resets),
    )
    return cast(GRUResult, run(ops.GRU_FORWARD, tensors, descriptor, backend, lengths, heads))


def _on_jax(operation: Operation, function: Callable[P, R]) -> Callable[P, R]:
    """A function of the functional interface, which goes by its source, on a jax array there."""

    @wraps(function)
    def run_on_jax(source: Value, *others: Any, **options: Any) -> R:
        return function(_as_value(operation, "source", source), *others, **options)

    return cast(Callable[P, R], run_on_jax)


def _serialized(cell: Cell, own: bool = True) -> None:
    """Let jax.export write functions that return a cell's results; ``own``: it is a user's cell."""
    for each in operations_of(cell):
        name = f"zstate.{each.result.__name__}"
        if own:  # another cell of this name may give other results
            name += f"({','.join(each.result._fields)})"
        with suppress(ValueError):  # registered already, by an equal cell or an earlier import
            jax.export.register_namedtuple_serialization(each.result, serialized_name=name)


for _each in CELLS:
    _serialized(_each, own=False)
tell_of_cells(_serialized)

single_gate_rnn_gradients = _on_jax(
    ops.SINGLE_GATE_RNN_GRADIENTS, functional.single_gate_rnn_gradients
)
lstm_gradients = _on_jax(ops.LSTM_GRADIENTS, functional.lstm_gradients)
gru_gradients = _on_jax(ops.GRU_GRADIENTS, functional.gru_gradients)

FURTHER = {
    name: functional.function_of(each, run, () if each.is_gradient else ("lengths",))
    for name, each in OPERATIONS.items()
    if name not in globals()
}
