"""One row per op of the graph: (builder, node, values) -> value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..graph import Tensor
from ..graph.ops.base import axes_of, known
from ..graph.ops.like import windows
from ..graph.tensor import Node

# zstate's types, NumPy's for MIL, and MIL's own word. Core ML has no wider ones.
TYPES = {
    "float32": (np.float32, "fp32"),
    "int32": (np.int32, "int32"),
    "int64": (np.int32, "int32"),
    "bool": (np.bool_, "bool"),
}
Var = Any  # a value of a MIL program


def _named(operation: str, *labels: str) -> Callable[..., Any]:
    def row(mb: Any, node: Node, *values: Var) -> Var:
        return getattr(mb, operation)(**dict(zip(labels, values, strict=True)))

    return row


def _axes(node: Node) -> list[int]:
    return list(axes_of(node.op.name, node.attributes["axes"], len(node.inputs[0].shape)))


def _reduction(operation: str) -> Callable[..., Any]:
    def row(mb: Any, node: Node, x: Var) -> Var:
        axes = _axes(node)
        return getattr(mb, operation)(x=x, axes=axes, keep_dims=True) if axes else x

    return row


def _of_bools(operation: str) -> Callable[..., Any]:
    """A reduction of bools, which MIL reduces as integers."""

    def row(mb: Any, node: Node, x: Var) -> Var:
        return mb.cast(x=_reduction(operation)(mb, node, mb.cast(x=x, dtype="int32")), dtype="bool")

    return row


def _floor_modulo(mb: Any, node: Node, x: Var, y: Var) -> Var:
    """0 where the divisor is 0."""
    is_zero = mb.equal(x=y, y=np.float32(0))
    divisor = mb.select(cond=is_zero, a=np.float32(1), b=y)
    rest = mb.sub(x=x, y=mb.mul(x=divisor, y=mb.floor_div(x=x, y=divisor)))
    return mb.select(cond=is_zero, a=np.float32(0), b=rest)


def _logarithm(base: float) -> Callable[..., Any]:
    def row(mb: Any, node: Node, x: Var) -> Var:
        return mb.real_div(x=mb.log(x=x, epsilon=np.float32(0)), y=np.float32(np.log(base)))

    return row


def _axis(node: Node, more: int = 0) -> int:
    return int(node.attributes["axis"]) % (len(node.inputs[0].shape) + more)


def broadcast_to(mb: Any, x: Var, shape: Sequence[int]) -> Var:
    before = (1,) * (len(shape) - x.rank) + tuple(x.shape)
    if len(before) != x.rank:
        x = mb.reshape(x=x, shape=before)
    reps = [a if b == 1 else 1 for a, b in zip(shape, before, strict=True)]
    return mb.tile(x=x, reps=reps) if reps else x


def _reshape(mb: Any, node: Node, x: Var) -> Var:
    """MIL reshapes nothing to or from a tensor without dimensions."""
    shape, rank = _shape(node.results[0]), len(node.inputs[0].shape)
    if not shape:
        return mb.squeeze(x=x, axes=list(range(rank))) if rank else x
    return mb.reshape(x=x, shape=shape) if rank else mb.expand_dims(x=x, axes=[*range(len(shape))])


def slice_of(
    mb: Any, node: Node, x: Var, first: Sequence[tuple[int, int, int]] | None = None
) -> Var:
    """``first`` replaces the bounds of the first axes."""
    shape = _shape(node.inputs[0])
    bounds = [w.indices(size) for w, size in zip(windows(node.attributes), shape, strict=True)]
    if first is not None:
        bounds[: len(first)] = first
    if not bounds:
        return x
    begin, end, stride = ([bound[k] for bound in bounds] for k in range(3))
    return mb.slice_by_index(x=x, begin=begin, end=end, stride=stride)


def _pad(mb: Any, node: Node, x: Var) -> Var:
    a = node.attributes
    sizes = [size for pair in zip(a["left"], a["right"], strict=True) for size in pair]
    if not any(sizes):
        return x
    return mb.pad(x=x, pad=sizes, mode="constant", constant_val=np.float32(a["value"]))


def _one_hot(mb: Any, node: Node, indices: Var) -> Var:
    a = node.attributes
    kind = TYPES[a["dtype"]][0]
    return mb.one_hot(
        indices=indices,
        one_hot_vector_size=a["depth"],
        axis=_axis(node, 1),
        on_value=kind(a["on_value"]),
        off_value=kind(a["off_value"]),
    )


def _split(mb: Any, node: Node, x: Var) -> Any:
    sizes, axis = list(node.attributes["sizes"]), _axis(node)
    return mb.split(x=x, split_sizes=sizes, axis=axis) if len(sizes) > 1 else [x]


_BINARY = {
    "addition": "add",
    "subtraction": "sub",
    "multiplication": "mul",
    "division": "real_div",
    "power": "pow",
    "maximum": "maximum",
    "minimum": "minimum",
    "equal": "equal",
    "not_equal": "not_equal",
    "less_than": "less",
    "less_than_or_equal_to": "less_equal",
    "greater_than": "greater",
    "greater_than_or_equal_to": "greater_equal",
    "logical_and": "logical_and",
    "logical_or": "logical_or",
    "logical_xor": "logical_xor",
    "matrix_multiplication": "matmul",
}
_UNARY = {
    "absolute": "abs",
    "sign": "sign",
    "square": "square",
    "exponent": "exp",
    "exponent_base2": "exp2",
    "square_root": "sqrt",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "relu": "relu",
    "identity": "identity",
    "logical_not": "logical_not",
    **{name: name for name in ("floor", "ceil", "sin", "cos", "tan", "sinh", "cosh")},
    **{name: name for name in ("asin", "acos", "atan", "atanh")},
}
ROWS: dict[str, Callable[..., Any]] = {
    **{name: _named(operation, "x", "y") for name, operation in _BINARY.items()},
    **{name: _named(operation, "x") for name, operation in _UNARY.items()},
    "negative": lambda mb, node, x: mb.mul(x=x, y=_number(node, -1)),
    # MIL adds an epsilon by default, to which log and inverse would be sensitive.
    "logarithm": lambda mb, node, x: mb.log(x=x, epsilon=np.float32(0)),
    "logarithm_base2": _logarithm(2),
    "logarithm_base10": _logarithm(10),
    "truncate": lambda mb, node, x: mb.mul(x=mb.sign(x=x), y=mb.floor(x=mb.abs(x=x))),
    "floor_modulo": _floor_modulo,
    "is_nan": lambda mb, node, x: mb.not_equal(x=x, y=x),
    "is_finite": lambda mb, node, x: mb.less(x=mb.abs(x=x), y=np.float32(np.inf)),
    "is_infinite": lambda mb, node, x: mb.equal(x=mb.abs(x=x), y=np.float32(np.inf)),
    "reciprocal": lambda mb, node, x: mb.real_div(x=np.float32(1), y=x),
    "select": _named("select", "cond", "a", "b"),
    "cast": lambda mb, node, x: mb.cast(x=x, dtype=TYPES[node.attributes["dtype"]][1]),
    "reduction_sum": _reduction("reduce_sum"),
    "mean": _reduction("reduce_mean"),
    "reduction_maximum": _reduction("reduce_max"),
    "reduction_minimum": _reduction("reduce_min"),
    "reduction_product": _reduction("reduce_prod"),
    "reduction_and": _of_bools("reduce_min"),
    "reduction_or": _of_bools("reduce_max"),
    "reduction_arg_maximum": lambda mb, node, x: mb.reduce_argmax(
        x=x, axis=_axis(node), keep_dims=True
    ),
    "reduction_arg_minimum": lambda mb, node, x: mb.reduce_argmin(
        x=x, axis=_axis(node), keep_dims=True
    ),
    "arg_sort": lambda mb, node, x: mb.argsort(
        x=x, axis=_axis(node), ascending=not node.attributes["descending"]
    ),
    "cumulative_sum": lambda mb, node, x: mb.cumsum(x=x, axis=_axis(node)),
    "soft_max": lambda mb, node, x: mb.softmax(x=x, axis=_axis(node)),
    "expect_lengths": lambda mb, node, lengths, tensor: mb.identity(x=lengths),
    "one_hot": _one_hot,
    "gather": lambda mb, node, x, i: mb.gather(x=x, indices=i, axis=_axis(node)),
    "gather_along_axis": lambda mb, node, x, i: mb.gather_along_axis(
        x=x, indices=i, axis=_axis(node)
    ),
    "transpose": lambda mb, node, x: mb.transpose(x=x, perm=list(node.attributes["permutation"])),
    "reshape": _reshape,
    "broadcast": lambda mb, node, x: broadcast_to(mb, x, _shape(node.results[0])),
    "expand_dims": _reshape,
    "squeeze": lambda mb, node, x: mb.squeeze(x=x, axes=_axes(node)) if _axes(node) else x,
    "concat_tensors": lambda mb, node, *x: mb.concat(values=x, axis=_axis(node)),
    "stack": lambda mb, node, *x: mb.stack(values=x, axis=_axis(node, 1)),
    "split": _split,
    "slice": slice_of,
    "reverse": lambda mb, node, x: mb.reverse(x=x, axes=_axes(node)) if _axes(node) else x,
    "pad_tensor": _pad,
}


def _number(node: Node, value: float) -> Any:
    return TYPES[node.inputs[0].dtype][0](value)


def _shape(tensor: Tensor) -> tuple[int, ...]:
    shape = known(tensor.shape)
    assert shape is not None  # a program knows them all
    return shape
