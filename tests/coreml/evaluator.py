"""Evaluates a MIL program in NumPy, op by op, as the pages of MIL's operations describe them.

Written from those pages alone: it shares no code with zstate. An op that is not here fails the test
that meets it. Constants are read from const ops only; what coremltools folds is computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray


def evaluate(program: Any, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of a program by name, each of the shape and type that MIL has inferred."""
    function = program.functions["main"]
    values: dict[Any, Any] = {var: feeds[name] for name, var in function.inputs.items()}
    _run(function, values)
    return {var.name: values[var] for var in function.outputs}


def _run(block: Any, values: dict[Any, Any]) -> None:
    """The operations of a block, in their order; it sees the values around it."""

    def value(var: Any) -> Any:
        return [values[v] for v in var] if isinstance(var, list | tuple) else values[var]

    for op in block.operations:
        if op.op_type == "const":
            values[op.outputs[0]] = op.outputs[0].val
            continue
        arguments = {name: value(v) for name, v in op.inputs.items() if v is not None}
        if op.op_type == "while_loop":
            found = _while(op, arguments["loop_vars"], values)
        else:
            found = OPERATIONS[op.op_type](**arguments)
            found = found if isinstance(found, list) else [found]
        for var, array in zip(op.outputs, found, strict=True):
            if not isinstance(array, _List):
                assert tuple(var.shape) == np.shape(array), (op.op_type, var.shape, np.shape(array))
            values[var] = array


def _while(op: Any, state: list[Any], values: dict[Any, Any]) -> list[Any]:
    condition, body = op.blocks
    while True:
        values.update(zip(condition.inputs, state, strict=True))
        _run(condition, values)
        if not values[condition.outputs[0]]:
            return state
        values.update(zip(body.inputs, state, strict=True))
        _run(body, values)
        state = [values[var] for var in body.outputs]


class _List(tuple[Any, ...]):
    """A list of MIL, which a write leaves as it was."""


def _list_write(ls: _List, index: int, value: Array) -> _List:
    assert 0 <= index < len(ls)
    return _List((*ls[:index], value, *ls[index + 1 :]))


def _activation(name: str) -> Callable[[Array], Array]:
    return {
        "linear": lambda x: x,
        "relu": lambda x: np.maximum(x, 0),
        "tanh": np.tanh,
        "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "hard_sigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
        "sigmoid_hard": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    }[name]


def _rnn(
    x: Array,
    initial_h: Array,
    weight_ih: Array,
    weight_hh: Array,
    direction: str,
    output_sequence: bool,
    activation: str,
    bias: Any = 0,
) -> list[Array]:
    assert direction == "forward" and output_sequence
    h, states = initial_h, []
    for step in x:
        h = _activation(activation)(step @ weight_ih.T + h @ weight_hh.T + bias)
        states.append(h)
    return [np.stack(states), h]


def _gru(
    x: Array,
    initial_h: Array,
    weight_ih: Array,
    weight_hh: Array,
    direction: str,
    output_sequence: bool,
    recurrent_activation: str,
    activation: str,
    bias: Any = None,
) -> list[Array]:
    """Gates r, o, z; h = (1 - z) o + z h. o is the activation of W_o x + R_o (r h) + b_o, as
    coremltools' own test has it: the page can also be read as r (R_o h)."""
    assert direction == "forward" and output_sequence
    hidden = weight_hh.shape[1]
    inner, outer = _activation(recurrent_activation), _activation(activation)
    bias = np.zeros(3 * hidden, np.float32) if bias is None else bias
    (wr, wo, wz), (rr, ro, rz), (br, bo, bz) = (
        np.split(array, 3) for array in (weight_ih, weight_hh, bias)
    )
    h, states = initial_h, []
    for step in x:
        r = inner(step @ wr.T + h @ rr.T + br)
        z = inner(step @ wz.T + h @ rz.T + bz)
        o = outer(step @ wo.T + (r * h) @ ro.T + bo)
        h = (1 - z) * o + z * h
        states.append(h)
    return [np.stack(states), h]


def _lstm(
    x: Array,
    initial_h: Array,
    initial_c: Array,
    weight_ih: Array,
    weight_hh: Array,
    direction: str,
    output_sequence: bool,
    recurrent_activation: str,
    cell_activation: str,
    activation: str,
    bias: Any = 0,
    weight_ih_back: Any = None,
    weight_hh_back: Any = None,
    bias_back: Any = 0,
) -> list[Array]:
    """Gates i, f, o, z. The reverse half is aligned with the input, its last step being step 0."""
    assert output_sequence
    gate, cell_gate, out = map(_activation, (recurrent_activation, cell_activation, activation))
    hidden = weight_hh.shape[1]

    def one(steps: Array, h: Array, c: Array, w: Array, r: Array, b: Any) -> tuple[Array, ...]:
        states = []
        for step in steps:
            i, f, o, z = np.split(step @ w.T + h @ r.T + b, 4, axis=-1)
            c = gate(f) * c + gate(i) * cell_gate(z)
            h = gate(o) * out(c)
            states.append(h)
        return np.stack(states), h, c

    forth = one(x, initial_h[:, :hidden], initial_c[:, :hidden], weight_ih, weight_hh, bias)
    if direction == "forward":
        return list(forth)
    assert direction == "bidirectional"
    states = (initial_h[:, hidden:], initial_c[:, hidden:])
    steps, h, c = one(x[::-1], *states, weight_ih_back, weight_hh_back, bias_back)
    return [np.concatenate(pair, -1) for pair in zip(forth, (steps[::-1], h, c), strict=True)]


def _slice_by_index(x: Array, begin: Array, end: Array, stride: Any = None, **masks: Any) -> Array:
    none = np.zeros(x.ndim, bool)
    begins, ends = masks.pop("begin_mask", none), masks.pop("end_mask", none)
    squeezed = masks.pop("squeeze_mask", none)
    assert not masks
    stride = np.ones(x.ndim, int) if stride is None else stride
    places = tuple(
        int(begin[k])
        if squeezed[k]
        else slice(None if begins[k] else begin[k], None if ends[k] else end[k], stride[k])
        for k in range(x.ndim)
    )
    return x[places]


def _one_hot(
    indices: Array, one_hot_vector_size: int, axis: int, on_value: Any, off_value: Any
) -> Array:
    is_on = np.arange(one_hot_vector_size) == indices[..., None]
    return np.moveaxis(np.where(is_on, on_value, off_value), -1, axis)


def _gather(x: Array, indices: Array, axis: int, batch_dims: int = 0, **_: Any) -> Array:
    assert batch_dims == 0
    return np.take(x, indices, axis)


def _split(x: Array, axis: int, split_sizes: Any = None, num_splits: Any = None) -> list[Array]:
    if split_sizes is None:
        return np.split(x, num_splits, axis)
    return np.split(x, np.cumsum(split_sizes)[:-1], axis)


def _pad(x: Array, pad: Array, mode: str, constant_val: Any) -> Array:
    assert mode == "constant"
    widths = [(0, 0)] * (x.ndim - len(pad) // 2) + list(np.reshape(pad, (-1, 2)))
    return np.pad(x, widths, constant_values=constant_val)


def _softmax(x: Array, axis: int) -> Array:
    raised = np.exp(x - x.max(axis, keepdims=True))
    return raised / raised.sum(axis, keepdims=True)


def _reduction(function: Any) -> Callable[..., Array]:
    def reduce(x: Array, axes: Any = None, keep_dims: bool = False) -> Array:
        axis = None if axes is None else tuple(int(a) for a in axes)
        return np.asarray(function(x, axis=axis, keepdims=bool(keep_dims)))

    return reduce


def _elementwise(function: Any) -> Callable[..., Array]:
    return lambda x: function(x)


_TYPES = {"fp32": np.float32, "int32": np.int32, "bool": np.bool_}
OPERATIONS: dict[str, Callable[..., Any]] = {
    "make_list": lambda init_length, dynamic_length, elem_shape, dtype: _List([None] * init_length),
    "list_write": _list_write,
    "list_gather": lambda ls, indices: np.stack([ls[k] for k in indices]),
    "sigmoid_hard": lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
    "rnn": _rnn,
    "gru": _gru,
    "lstm": _lstm,
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "real_div": lambda x, y: x / y,
    "pow": lambda x, y: x**y,
    "maximum": lambda x, y: np.maximum(x, y),
    "minimum": lambda x, y: np.minimum(x, y),
    "equal": lambda x, y: x == y,
    "not_equal": lambda x, y: x != y,
    "less": lambda x, y: x < y,
    "less_equal": lambda x, y: x <= y,
    "greater": lambda x, y: x > y,
    "greater_equal": lambda x, y: x >= y,
    "logical_and": lambda x, y: x & y,
    "logical_or": lambda x, y: x | y,
    "logical_xor": lambda x, y: x ^ y,
    "logical_not": lambda x: ~x,
    "floor_div": lambda x, y: np.floor(x / y).astype(x.dtype),
    **{
        name: _elementwise(getattr(np, numpy_name))
        for name, numpy_name in {
            **{name: name for name in ("floor", "ceil", "sin", "cos", "tan", "sinh", "cosh")},
            **{f"a{name}": f"arc{name}" for name in ("sin", "cos", "tan", "tanh")},
            "exp2": "exp2",
        }.items()
    },
    "select": lambda cond, a, b: np.where(cond, a, b),
    "abs": lambda x: np.abs(x),
    "sign": lambda x: np.sign(x),
    "square": lambda x: x * x,
    "exp": lambda x: np.exp(x),
    "sqrt": lambda x: np.sqrt(x),
    "tanh": lambda x: np.tanh(x),
    "sigmoid": lambda x: 0.5 * (1 + np.tanh(x / 2)),
    "relu": lambda x: np.maximum(x, 0),
    "log": lambda x, epsilon: np.log(x + epsilon),
    "cast": lambda x, dtype: np.asarray(x).astype(_TYPES[dtype]),
    "identity": lambda x: x,
    "matmul": lambda x, y, transpose_x, transpose_y: (
        (np.swapaxes(x, -1, -2) if transpose_x else x)
        @ (np.swapaxes(y, -1, -2) if transpose_y else y)
    ),
    "linear": lambda x, weight, bias=0: x @ weight.T + bias,
    "reduce_sum": _reduction(np.sum),
    "reduce_mean": _reduction(np.mean),
    "reduce_max": _reduction(np.max),
    "reduce_min": _reduction(np.min),
    "reduce_prod": _reduction(np.prod),
    "reduce_argmin": lambda x, axis, keep_dims: np.argmin(x, axis, keepdims=bool(keep_dims)),
    "argsort": lambda x, axis, ascending: np.argsort(x if ascending else -x, axis),
    "cumsum": lambda x, axis, exclusive, reverse: np.cumsum(x, axis),
    "reduce_argmax": lambda x, axis, keep_dims: np.argmax(x, axis, keepdims=bool(keep_dims)),
    "softmax": _softmax,
    "one_hot": _one_hot,
    "gather": _gather,
    "gather_along_axis": lambda x, indices, axis, **_: np.take_along_axis(x, indices, axis),
    "transpose": lambda x, perm: np.transpose(x, perm),
    "reshape": lambda x, shape: np.reshape(x, shape),
    "tile": lambda x, reps: np.tile(x, reps),
    "expand_dims": lambda x, axes: np.expand_dims(x, tuple(axes)),
    "squeeze": lambda x, axes: np.squeeze(x, tuple(axes)),
    "concat": lambda values, axis, interleave: np.concatenate(values, axis),
    "stack": lambda values, axis: np.stack(values, axis),
    "split": _split,
    "slice_by_index": _slice_by_index,
    "reverse": lambda x, axes: np.flip(x, tuple(axes)),
    "pad": _pad,
}
