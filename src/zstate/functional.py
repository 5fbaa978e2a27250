"""The operations on arrays: arrays in, a named tuple out; torch tensors give torch tensors.

T time, N batch, I input features, H hidden units, D directions (2 when bidirectional), G gates.
docs/layouts.md lists the shapes, docs/equations.md the equations. A member of a result that was not
produced, or whose input was not passed, is None. Inputs are never written to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from . import operations as ops
from .arrays import namespace_of
from .backends import prepare, remember_call, run_known
from .descriptors import AnyDescriptor, GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor
from .extensions import (
    checked_heads,
    extended,
    has_head_axis,
    in_the_table,
    without_head_axis,
)
from .layout import Layout, bind, is_jax_array, is_torch_tensor
from .operations import AnyArray as Array
from .operations import (
    GRUGradients,
    GRUResult,
    LSTMGradients,
    LSTMResult,
    Operation,
    RNNGradients,
    RNNResult,
)
from .signatures import arguments_of, sign, signature_of

_on_torch: Any = None  # zstate.torch's run(), once it was needed: to ask every time costs as much


def run(
    operation: Operation,
    tensors: tuple[Any, ...],
    descriptor: AnyDescriptor | None,
    backend: str | None,
    heads: int = 1,
) -> Any:
    """Run a call by its prepared plan, which the first call of its kind makes; returns the
    operation's named tuple.

    The last of the tensors is the resets, [T,N].
    """
    if type(heads) is not int:
        heads = checked_heads(operation.name, heads)
    # What was checked when it was remembered, as most calls were, holds now.
    is_plain = heads == 1 and tensors[-1] is None and type(tensors[0]) is np.ndarray
    if is_plain and backend is None:
        known = run_known(operation, tensors, descriptor)
        if known is not None:
            return known
    weight = tensors[1]
    if (
        heads == 1
        and getattr(weight, "ndim", 2) > 2
        and has_head_axis(operation, weight, descriptor)
    ):
        found = without_head_axis(run, operation, tensors, descriptor, backend)
        return found
    if tensors[-1] is not None or heads != 1:
        tensors, descriptor = extended(operation, tensors, descriptor, heads)
    # First of all, since torch.compile follows a call on its tensors into here.
    if type(tensors[0]) is not np.ndarray:
        if is_torch_tensor(tensors[0]):
            global _on_torch
            if _on_torch is None:
                from .torch.operators import run as _on_torch
            return _on_torch(operation, tensors, descriptor, backend)
        if is_jax_array(tensors[0]):
            from .jax.functions import traced as on_jax

            return on_jax(operation, tensors, descriptor, backend)
    if backend is None and not is_plain:
        known = run_known(operation, tensors, descriptor)
        if known is not None:
            return known
    prepared = prepare(operation, tensors, descriptor, backend).run
    results = prepared(tensors)
    if backend is None:
        remember_call(operation, tensors, descriptor, prepared)
    named = type(results) is operation.result
    return results if named else operation.result(*results)


def accepted(
    operation: Operation, given: Mapping[str, Any], descriptor: AnyDescriptor, heads: int
) -> dict[str, Any]:
    """The tensors of a call as its caller passes them (``calls_of``), after the checks of run() and
    as run() would compute with them. A recurrent weight that nobody needs to pass is zeros."""
    tensors = tuple(map(given.get, operation.inputs))
    if is_torch_tensor(tensors[0]):
        from .torch.operators import checked
    elif is_jax_array(tensors[0]):
        from .jax.functions import checked
    else:
        checked = _checked
    heads = checked_heads(operation.name, heads)
    tensors, layout = checked(operation, tensors, descriptor, heads)
    pairs = zip(operation.inputs, tensors, strict=True)
    found = {name: tensor for name, tensor in pairs if tensor is not None}
    if "recurrent_weight" not in found:
        source = found["source"]
        zeros = namespace_of(source).zeros(layout.shape("recurrent_weight"), source.dtype)
        found["recurrent_weight"] = zeros
    return found


def _checked(
    operation: Operation, tensors: tuple[Any, ...], descriptor: AnyDescriptor, heads: int
) -> tuple[tuple[Any, ...], Layout]:
    return tensors, bind(operation, *in_the_table(operation, tensors, descriptor, heads))


def single_gate_rnn(
    source: Array,
    recurrent_weight: Array,
    *,
    input_weight: Array | None = None,
    bias: Array | None = None,
    init_state: Array | None = None,
    mask: Array | None = None,
    resets: Array | None = None,
    heads: int = 1,
    descriptor: SingleGateRNNDescriptor | None = None,
    backend: str | None = None,
) -> RNNResult:
    """h[t] = activation(x[t]W^T + (h[t-1]·m[t])R^T + b).

    Args:
        source: x [T,N,I]; without input_weight already projected, [T,N,D·H].
        recurrent_weight: R [H,H], bidirectional [2,H,H].
        input_weight: W [D·H,I].
        bias: b [D·H].
        init_state: h[-1] [N,D·H].
        mask: m, anything that broadcasts to [T,N,D·H]. It multiplies h[t-1] before R, like
            recurrent dropout; it is not for padding.
        resets: [T,N], true where step t starts a new sequence, with states of 0. MPSGraph has
            neither resets nor heads.
        heads: if more than 1, R is [heads,G·d,d], bidirectional [2,heads,G·d,d]; H = heads·d.
        descriptor: the options; None means the defaults.
        backend: a backend's name; None means the fastest.

    Returns:
        state h [T,N,D·H]; training_state z [T,N,D·H] with descriptor.training.

    Example:
        >>> import numpy as np
        >>> x, R = np.ones((2, 1, 3)), np.eye(3)
        >>> single_gate_rnn(x, R).state[-1]
        array([[2., 2., 2.]])
    """
    tensors = (source, recurrent_weight, input_weight, bias, init_state, mask, resets)
    found: RNNResult = run(ops.SINGLE_GATE_RNN, tensors, descriptor, backend, heads)
    return found


def single_gate_rnn_gradients(
    source: Array,
    recurrent_weight: Array,
    source_gradient: Array,
    z_state: Array,
    *,
    state_gradient: Array | None = None,
    input_weight: Array | None = None,
    bias: Array | None = None,
    init_state: Array | None = None,
    mask: Array | None = None,
    resets: Array | None = None,
    heads: int = 1,
    descriptor: SingleGateRNNDescriptor | None = None,
    backend: str | None = None,
) -> RNNGradients:
    """The gradients of :func:`single_gate_rnn`, for every input that was passed.

    Args:
        source, recurrent_weight, input_weight, bias, init_state, mask, resets, heads, descriptor:
            as in the forward operation.
        source_gradient: the gradient of h [T,N,D·H].
        z_state: training_state of the forward operation [T,N,D·H].
        state_gradient: the gradient of the last state [N,D·H] or [1,N,D·H].
        backend: a backend's name; None means the fastest.

    Returns:
        One gradient per input, with exactly its shape: source, recurrent_weight, input_weight,
        bias, init_state.

    Example:
        >>> import numpy as np
        >>> x, R = np.ones((2, 1, 3)), np.eye(3)
        >>> h, z = single_gate_rnn(x, R, descriptor=SingleGateRNNDescriptor(training=True))
        >>> single_gate_rnn_gradients(x, R, np.ones_like(h), z).source[0]
        array([[2., 2., 2.]])
    """
    needed = (source, recurrent_weight, source_gradient, z_state)
    tensors = (*needed, state_gradient, input_weight, bias, init_state, mask, resets)
    found: RNNGradients = run(ops.SINGLE_GATE_RNN_GRADIENTS, tensors, descriptor, backend, heads)
    return found


def lstm(
    source: Array,
    recurrent_weight: Array,
    *,
    input_weight: Array | None = None,
    bias: Array | None = None,
    init_state: Array | None = None,
    init_cell: Array | None = None,
    mask: Array | None = None,
    peephole: Array | None = None,
    resets: Array | None = None,
    heads: int = 1,
    descriptor: LSTMDescriptor | None = None,
    backend: str | None = None,
) -> LSTMResult:
    """[i,f,z,o] = f((h[t-1]·m)R^T + xW^T + b + p·c[t-1]); c[t] = f·c[t-1] + i·z; h[t] = o·g(c[t]).

    Args:
        source: x [T,N,I]; without input_weight already projected, [T,N,D·4H].
        recurrent_weight: R [4H,H], bidirectional [2,4H,H].
        input_weight: W [D·4H,I].
        bias: b [D·4H].
        init_state: h[-1] [N,D·H].
        init_cell: c[-1] [N,D·H].
        mask: m, anything that broadcasts to [T,N,D·H]. It multiplies h[t-1] before R, like
            recurrent dropout; it is not for padding.
        peephole: p [4H], bidirectional [2,4H] or [8H]; with peephole_on_new_cell o sees c[t].
        resets: [T,N], true where step t starts a new sequence, with states of 0. MPSGraph has
            neither resets nor heads.
        heads: if more than 1, R is [heads,G·d,d], bidirectional [2,heads,G·d,d]; H = heads·d.
        descriptor: the options; None means the defaults.
        backend: a backend's name; None means the fastest.

    Returns:
        state h [T,N,D·H]; cell c [T,N,D·H] with produce_cell or training; training_state, the
        activated gates [T,N,D·4H], with training.

    Example:
        >>> import numpy as np
        >>> x, R = np.zeros((2, 1, 8)), np.zeros((8, 2))
        >>> keep = LSTMDescriptor(produce_cell=True)
        >>> lstm(x, R, init_cell=np.full((1, 2), 4.0), descriptor=keep).cell[-1]
        array([[1., 1.]])
    """
    optional = (input_weight, bias, init_state, init_cell, mask, peephole, resets)
    tensors = (source, recurrent_weight, *optional)
    found: LSTMResult = run(ops.LSTM_FORWARD, tensors, descriptor, backend, heads)
    return found


def lstm_gradients(
    source: Array,
    recurrent_weight: Array,
    source_gradient: Array,
    z_state: Array,
    cell_output_fwd: Array,
    *,
    state_gradient: Array | None = None,
    cell_gradient: Array | None = None,
    input_weight: Array | None = None,
    bias: Array | None = None,
    init_state: Array | None = None,
    init_cell: Array | None = None,
    mask: Array | None = None,
    peephole: Array | None = None,
    resets: Array | None = None,
    heads: int = 1,
    descriptor: LSTMDescriptor | None = None,
    backend: str | None = None,
) -> LSTMGradients:
    """The gradients of :func:`lstm`, for every input that was passed.

    Args:
        source, recurrent_weight, input_weight, bias, init_state, init_cell, mask, peephole,
            resets, heads, descriptor: as in the forward operation.
        source_gradient: the gradient of h [T,N,D·H].
        z_state: training_state of the forward operation [T,N,D·4H].
        cell_output_fwd: cell of the forward operation [T,N,D·H].
        state_gradient: the gradient of the last state [N,D·H] or [1,N,D·H].
        cell_gradient: that of the last cell, in the same shapes, or of every cell [T,N,D·H].
        backend: a backend's name; None means the fastest.

    Returns:
        One gradient per input, with exactly its shape: source, recurrent_weight, input_weight,
        bias, peephole, init_state, init_cell.

    Example:
        >>> import numpy as np
        >>> x, R = np.zeros((2, 1, 8)), np.zeros((8, 2))
        >>> h, c, z = lstm(x, R, descriptor=LSTMDescriptor(training=True))
        >>> lstm_gradients(x, R, np.ones_like(h), z, c).recurrent_weight.shape
        (8, 2)
    """
    needed = (source, recurrent_weight, source_gradient, z_state, cell_output_fwd)
    optional = (input_weight, bias, init_state, init_cell, mask, peephole, resets)
    tensors = (*needed, state_gradient, cell_gradient, *optional)
    found: LSTMGradients = run(ops.LSTM_GRADIENTS, tensors, descriptor, backend, heads)
    return found


def gru(
    source: Array,
    recurrent_weight: Array,
    *,
    input_weight: Array | None = None,
    bias: Array | None = None,
    init_state: Array | None = None,
    mask: Array | None = None,
    secondary_bias: Array | None = None,
    resets: Array | None = None,
    heads: int = 1,
    descriptor: GRUDescriptor | None = None,
    backend: str | None = None,
) -> GRUResult:
    """z, r = f((h[t-1]·m)R^T + xW^T + b), o = fo(u + xWo^T + bo), h[t] = z·h[t-1] + (1-z)·o.

    u is (h[t-1]·r·m)Ro^T, or ((h[t-1]·m)Ro^T + b2)·r with reset_after; flip_z swaps the blend.

    Args:
        source: x [T,N,I]; without input_weight already projected, [T,N,D·3H].
        recurrent_weight: R [3H,H], bidirectional [2,3H,H].
        input_weight: W [D·3H,I].
        bias: b [D·3H].
        init_state: h[-1] [N,D·H].
        mask: m, anything that broadcasts to [T,N,D·H]. It multiplies h[t-1] before R, like
            recurrent dropout; it is not for padding.
        secondary_bias: b2 [D·H], only with reset_after.
        resets: [T,N], true where step t starts a new sequence, with states of 0. MPSGraph has
            neither resets nor heads.
        heads: if more than 1, R is [heads,G·d,d], bidirectional [2,heads,G·d,d]; H = heads·d.
        descriptor: the options; None means the defaults.
        backend: a backend's name; None means the fastest.

    Returns:
        state h [T,N,D·H]; training_state, the activated gates [T,N,D·3H], with training.

    Example:
        >>> import numpy as np
        >>> x, R = np.zeros((2, 1, 6)), np.zeros((6, 2))
        >>> gru(x, R, init_state=np.full((1, 2), 4.0)).state[-1]
        array([[1., 1.]])
    """
    optional = (input_weight, bias, init_state, mask, secondary_bias, resets)
    tensors = (source, recurrent_weight, *optional)
    found: GRUResult = run(ops.GRU_FORWARD, tensors, descriptor, backend, heads)
    return found


def gru_gradients(
    source: Array,
    recurrent_weight: Array,
    source_gradient: Array,
    z_state: Array,
    output_fwd: Array,
    *,
    state_gradient: Array | None = None,
    input_weight: Array | None = None,
    bias: Array | None = None,
    init_state: Array | None = None,
    mask: Array | None = None,
    secondary_bias: Array | None = None,
    resets: Array | None = None,
    heads: int = 1,
    descriptor: GRUDescriptor | None = None,
    backend: str | None = None,
) -> GRUGradients:
    """The gradients of :func:`gru`, for every input that was passed.

    Args:
        source, recurrent_weight, input_weight, bias, init_state, mask, secondary_bias,
            resets, heads, descriptor: as in the forward operation.
        source_gradient: the gradient of h [T,N,D·H].
        z_state: training_state of the forward operation [T,N,D·3H].
        output_fwd: state of the forward operation [T,N,D·H].
        state_gradient: the gradient of the last state [N,D·H] or [1,N,D·H].
        backend: a backend's name; None means the fastest.

    Returns:
        One gradient per input, with exactly its shape: source, recurrent_weight, input_weight,
        bias, init_state, secondary_bias.

    Example:
        >>> import numpy as np
        >>> x, R = np.zeros((2, 1, 6)), np.zeros((6, 2))
        >>> h, z = gru(x, R, descriptor=GRUDescriptor(training=True))
        >>> gru_gradients(x, R, np.ones_like(h), z, h).source.shape
        (2, 1, 6)
    """
    needed = (source, recurrent_weight, source_gradient, z_state, output_fwd, state_gradient)
    tensors = (*needed, input_weight, bias, init_state, mask, secondary_bias, resets)
    found: GRUGradients = run(ops.GRU_GRADIENTS, tensors, descriptor, backend, heads)
    return found


def function_of(
    operation: Operation, call: Callable[..., Any] = run, **further: Any
) -> Callable[..., Any]:
    """The function for an operation by its signature; for those not written out above.

    ``call`` takes the operation, its tensors, and the rest by name.
    """
    rest = {"backend": str, **further}
    signature = signature_of(operation, operation.required, Array, operation.result, **rest)

    def function(*args: Any, **kwargs: Any) -> Any:
        given = arguments_of(operation.name, signature, *args, **kwargs)
        tensors = tuple([given.pop(name) for name in operation.inputs])
        return call(operation, tensors, **given)

    function.__name__ = function.__qualname__ = operation.name
    function.__doc__ = f"{operation.name}: {', '.join(operation.result._fields)}."
    sign(function, signature)
    return function


FURTHER = {
    name: function_of(operation)
    for name, operation in ops.OPERATIONS.items()
    if name not in globals()
}
