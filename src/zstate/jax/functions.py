"""The six operations on jax arrays: the functional interface's arguments, and ``lengths``."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from .. import functional
from .. import operations as ops
from ..descriptors import AnyDescriptor, GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor
from ..errors import BackendError, DTypeError, refusal
from ..layout import Layout, check_descriptor, describe
from ..operations import AnyResult, GRUResult, LSTMResult, Operation, RNNResult
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
) -> AnyResult:
    """Check a call while it is traced, and bind it."""
    descriptor = check_descriptor(operation, descriptor)
    given = {
        name: _as_value(operation, name, value)
        for name, value in zip(operation.inputs, tensors, strict=True)
        if value is not None
    }

    values = list(given.values())
    layout = Signature(operation.name, descriptor, tuple(given)).layout(values)
    _check_backend(layout, backend)

    def bind(given: dict[str, Value], descriptor: AnyDescriptor) -> dict[str, Value]:
        signature = Signature(operation.name, descriptor, tuple(given), backend)
        names = signature.layout(list(given.values())).result_names()
        primitive = gradient_p if operation.is_gradient else forward_p
        values = vary_alike(list(given.values()))
        return dict(zip(names, primitive.bind(*values, signature=signature), strict=True))

    if lengths is None:
        results = bind(given, descriptor)
    else:
        lengths = check_lengths(operation, lengths, *layout.size[:2])
        results = run_with_lengths(bind, given, descriptor, lengths)
    return operation.result(*map(results.get, operation.result._fields))


def _as_value(operation: Operation, name: str, value: Any) -> Value:
    if isinstance(value, (jax.Array, np.ndarray)):
        return jnp.asarray(value)
    raise DTypeError(refusal(operation.name, name, "a jax or NumPy array", describe(value)))


def _check_backend(layout: Layout, backend: str | None) -> None:
    """Refuse a backend that cannot serve such a call on any device."""
    if backend is None or backend == "reference":
        return
    engines = {"native": ffi, "cuda": cuda}
    known = backend in engines
    reason = engines[backend].refuses(layout) if known else "zstate.jax has no such backend"
    if reason is not None:
        raise BackendError(
            f"[{layout.operation.name}] backend {backend!r} cannot serve this call: {reason}"
        )


def single_gate_rnn(
    source: Value,
    recurrent_weight: Value,
    *,
    input_weight: Value | None = None,
    bias: Value | None = None,
    init_state: Value | None = None,
    mask: Value | None = None,
    descriptor: SingleGateRNNDescriptor | None = None,
    backend: str | None = None,
    lengths: Value | None = None,
) -> RNNResult:
    """:func:`zstate.single_gate_rnn` on jax arrays.

    Args:
        lengths: [N], how many steps of each sequence count; None means all T.
    """
    tensors = (source, recurrent_weight, input_weight, bias, init_state, mask)
    return cast(RNNResult, run(ops.SINGLE_GATE_RNN, tensors, descriptor, backend, lengths))


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
    descriptor: LSTMDescriptor | None = None,
    backend: str | None = None,
    lengths: Value | None = None,
) -> LSTMResult:
    """:func:`zstate.lstm` on jax arrays.

    Args:
        lengths: [N], how many steps of each sequence count; None means all T.
    """
    tensors = (
        *(source, recurrent_weight, input_weight, bias, init_state, init_cell),
        *(mask, peephole),
    )
    return cast(LSTMResult, run(ops.LSTM_FORWARD, tensors, descriptor, backend, lengths))


def gru(
    source: Value,
    recurrent_weight: Value,
    *,
    input_weight: Value | None = None,
    bias: Value | None = None,
    init_state: Value | None = None,
    mask: Value | None = None,
    secondary_bias: Value | None = None,
    descriptor: GRUDescriptor | None = None,
    backend: str | None = None,
    lengths: Value | None = None,
) -> GRUResult:
    """:func:`zstate.gru` on jax arrays.

    Args:
        lengths: [N], how many steps of each sequence count; None means all T.
    """
    tensors = (source, recurrent_weight, input_weight, bias, init_state, mask, secondary_bias)
    return cast(GRUResult, run(ops.GRU_FORWARD, tensors, descriptor, backend, lengths))


def _on_jax(function: Callable[P, R]) -> Callable[P, R]:
    """A function of the functional interface whose arrays all become JAX's."""

    @wraps(function)
    def run_on_jax(*arguments: P.args, **options: P.kwargs) -> R:
        def convert(value: Any) -> Any:
            return jnp.asarray(value) if isinstance(value, np.ndarray) else value

        values = [convert(value) for value in arguments]
        return function(*values, **{name: convert(value) for name, value in options.items()})

    return run_on_jax


single_gate_rnn_gradients = _on_jax(functional.single_gate_rnn_gradients)
lstm_gradients = _on_jax(functional.lstm_gradients)
gru_gradients = _on_jax(functional.gru_gradients)
