"""The six operations on jax arrays: the functional interface's arguments, and ``lengths``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import jax
import jax.export
import jax.numpy as jnp

from .. import functional
from ..backends import check_name
from ..cells import CELLS, Cell
from ..cells.decorator import tell_of_cells
from ..descriptors import AnyDescriptor
from ..errors import BackendError, DTypeError, ShapeError, refusal
from ..extensions import (
    checked_heads,
    extended,
    has_head_axis,
    in_the_table,
    without_head_axis,
)
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
from ..signatures import sign
from . import cuda, ffi
from .lengths import check_lengths, run_with_lengths
from .primitives import forward_p, gradient_p
from .signature import Signature
from .versions import vary_alike

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..keywords import JaxGRU, JaxLSTM, JaxRNN

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
    if type(heads) is not int:
        heads = checked_heads(operation.name, heads)
    tensors = (_as_value(operation, "source", tensors[0]), *tensors[1:])
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
        given = {name: given[name] for name in operation.inputs if name in given}
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


def checked(
    operation: Operation,
    tensors: tuple[Value | None, ...],
    descriptor: AnyDescriptor,
    heads: int,
) -> tuple[tuple[Value | None, ...], Layout]:
    """The tensors as traced() computes with them, and what its checks say."""
    *_, resets = tensors
    given = {
        name: _as_value(operation, name, value)
        for name, value in by_name(operation, (*tensors[:-1], None)).items()
    }
    tensors = (*map(given.get, operation.inputs[:-1]), resets)
    table, descriptor = in_the_table(operation, tensors, descriptor, heads)
    values = {n: v for n, v in zip(operation.inputs, table, strict=True) if v is not None}
    layout = Signature(operation, descriptor, tuple(values)).layout(list(values.values()))
    return tensors, layout


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


# Every operation as a function, by its signature in the table; some are written below for editors.
_BY_TABLE = {
    name: functional.function_of(each, run, **({} if each.is_gradient else {"lengths": Any}))
    for name, each in OPERATIONS.items()
}


def _described(function: Callable[P, R]) -> Callable[P, R]:
    """The function with the text of the one that it has on NumPy arrays, and a line on lengths."""
    name = function.__name__
    whole: str = getattr(functional, name).__doc__ or ""  # none under python -OO
    text = whole.partition("\n    Example:")[0]
    line = "        lengths: [N], how many steps of each sequence count; None means all T.\n"
    function.__doc__ = text.replace("\n\n    Returns:", f"\n{line}\n    Returns:")
    sign(function, signature(_BY_TABLE[name]))
    return function


@_described
def single_gate_rnn(source: Value, recurrent_weight: Value, **inputs: Unpack[JaxRNN]) -> RNNResult:
    """:func:`zstate.single_gate_rnn` on jax arrays, with ``lengths``."""
    found = _BY_TABLE["single_gate_rnn"](source, recurrent_weight, **inputs)
    return cast(RNNResult, found)


@_described
def lstm(source: Value, recurrent_weight: Value, **inputs: Unpack[JaxLSTM]) -> LSTMResult:
    """:func:`zstate.lstm` on jax arrays, with ``lengths``."""
    return cast(LSTMResult, _BY_TABLE["lstm"](source, recurrent_weight, **inputs))


@_described
def gru(source: Value, recurrent_weight: Value, **inputs: Unpack[JaxGRU]) -> GRUResult:
    """:func:`zstate.gru` on jax arrays, with ``lengths``."""
    return cast(GRUResult, _BY_TABLE["gru"](source, recurrent_weight, **inputs))


def _like(function: Callable[P, R]) -> Callable[P, R]:
    """The function on jax arrays that takes what it takes on NumPy arrays."""
    return cast(Callable[P, R], wraps(function)(_BY_TABLE[function.__name__]))


single_gate_rnn_gradients = _like(functional.single_gate_rnn_gradients)
lstm_gradients = _like(functional.lstm_gradients)
gru_gradients = _like(functional.gru_gradients)
FURTHER = {name: each for name, each in _BY_TABLE.items() if name not in globals()}


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
