"""A recurrent node as a loop of MIL: the cell's equations, one step in the body."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..cells import Cell
from ..cells.program import Leaf, program
from ..errors import OptionError, refusal
from ..graph.tensor import Node
from ..layout import direction_part
from ..operations import OPERATIONS
from .rows import Var, broadcast_to


def loop(mb: Any, node: Node, tensors: Mapping[str, Var]) -> list[Var]:
    """The cell's states, [T,N,D·H] each."""
    count = 2 if node.attributes["descriptor"].bidirectional else 1
    found = [_direction(mb, node, tensors, index, count) for index in range(count)]
    if count == 1:
        return found[0]
    return [mb.concat(values=pair, axis=2) for pair in zip(*found, strict=True)]


def _direction(
    mb: Any, node: Node, tensors: Mapping[str, Var], index: int, count: int
) -> list[Var]:
    """One direction's states, [T,N,H] each."""
    cell, descriptor = OPERATIONS[node.op.name].cell, node.attributes["descriptor"]
    hidden = tensors["recurrent_weight"].shape[-1]
    rows = len(cell.gates) * hidden
    steps, batch, _ = tensors["source"].shape
    parts = {
        name: _part(mb, cell, name, value, index, count, hidden)
        for name, value in tensors.items()
        if name not in ("source", "mask")
    }
    if "input_weight" in parts:
        gates = mb.matmul(x=tensors["source"], y=parts["input_weight"], transpose_y=True)
    else:
        gates = _slice(mb, tensors["source"], index, rows, 2)  # it is projected already
    if "bias" in parts:
        gates = mb.add(x=gates, y=parts["bias"])
    read = [gates]  # at every step
    if "mask" in tensors:
        whole = broadcast_to(mb, tensors["mask"], (steps, batch, count * hidden))
        read.append(_slice(mb, whole, index, hidden, 2))
    if index == 1 or (count == 1 and descriptor.reverse):
        read = [mb.reverse(x=value, axes=[0]) for value in read]
    step = _step(mb, cell, descriptor, parts, "mask" in tensors)
    zeros = np.zeros((batch, hidden), np.float32)
    names = [state.initial for state in cell.states]
    start = [parts[name] if name in parts else mb.const(val=zeros) for name in names]
    lists = [
        mb.make_list(init_length=steps, dynamic_length=False, elem_shape=(batch, hidden))
        for _ in start
    ]

    def body(t: Var, *values: Var) -> tuple[Var, ...]:
        states, kept = values[: len(start)], values[len(start) :]
        at = [mb.gather(x=value, indices=t, axis=0) for value in read]  # [N,G·H], and [N,H]
        after = step(at[0], at[1] if len(at) == 2 else None, states)
        pairs = zip(kept, after, strict=True)
        written = [mb.list_write(ls=each, index=t, value=state) for each, state in pairs]
        return (mb.add(x=t, y=1), *after, *written)

    _, *found = mb.while_loop(
        _cond=lambda t, *values: mb.less(x=t, y=steps),
        _body=body,
        loop_vars=(mb.const(val=np.int32(0)), *start, *lists),
    )
    every = np.arange(steps, dtype=np.int32)
    outputs = [mb.list_gather(ls=each, indices=every) for each in found[len(start) :]]
    # In a bidirectional layer in the order of the input, else in that of processing.
    return [mb.reverse(x=each, axes=[0]) for each in outputs] if index == 1 else outputs


def _part(mb: Any, cell: Cell, name: str, value: Var, index: int, count: int, hidden: int) -> Var:
    """One direction's part of a weight or an initial state."""
    axis, shape = direction_part(cell, name, hidden)
    if axis is not None:
        return _slice(mb, value, index, value.shape[axis] // count, axis)
    stacked = mb.reshape(x=value, shape=(count, *shape))
    return mb.squeeze(x=_slice(mb, stacked, index, 1, 0), axes=[0])


def _slice(mb: Any, value: Var, index: int, length: int, axis: int) -> Var:
    """The index-th part of this length along an axis."""
    begin, end = [0] * value.rank, list(value.shape)
    begin[axis], end[axis] = index * length, (index + 1) * length
    return mb.slice_by_index(x=value, begin=begin, end=end)


# The functions of equations in MIL, by their arguments.
_WORDS: dict[str, tuple[str, ...]] = {
    "add": ("add", "x", "y"),
    "subtract": ("sub", "x", "y"),
    "multiply": ("mul", "x", "y"),
    "divide": ("real_div", "x", "y"),
    "maximum": ("maximum", "x", "y"),
    "minimum": ("minimum", "x", "y"),
    "greater": ("greater", "x", "y"),
    "at_least": ("greater_equal", "x", "y"),
    "where": ("select", "cond", "a", "b"),
    "softplus": ("softplus", "x"),
    "relu": ("relu", "x"),
    "tanh": ("tanh", "x"),
    "sigmoid": ("sigmoid", "x"),
    "exp": ("exp", "x"),
    "sqrt": ("sqrt", "x"),
    "abs": ("abs", "x"),
}


def _compute(mb: Any, op: str, detail: Any, given: Sequence[Var]) -> Var:
    if op == "number":
        return np.float32(detail)
    if op == "negative":
        return mb.mul(x=given[0], y=np.float32(-1))
    if op == "hard_sigmoid":
        return mb.sigmoid_hard(x=given[0], alpha=np.float32(0.2), beta=np.float32(0.5))
    if op == "log":
        return mb.log(x=given[0], epsilon=np.float32(0))
    if op == "log_sigmoid":  # -softplus(-x)
        minus = np.float32(-1)
        return mb.mul(x=mb.softplus(x=mb.mul(x=given[0], y=minus)), y=minus)
    if op not in _WORDS:
        raise OptionError(refusal("coreml", "equations", "functions that MIL has", op))
    word, *labels = _WORDS[op]
    return getattr(mb, word)(**dict(zip(labels, given, strict=True)))


def _step(
    mb: Any, cell: Cell, descriptor: Any, parts: Mapping[str, Var], has_mask: bool
) -> Callable[[Var, Var | None, Sequence[Var]], list[Var]]:
    """(projected input [N,G·H], mask or None, states [N,H]) -> the states after the step."""
    order = cell.gate_order(descriptor)
    hidden = parts["recurrent_weight"].shape[1]
    own = frozenset(parameter.name for parameter in cell.own if parameter.name in parts)
    trace = cell.forward(descriptor, own, has_mask)
    text = program(trace.states)

    def gate(value: Var, letter: str, axis: int = 0) -> Var:
        return _slice(mb, value, order.index(letter), hidden, axis)

    blocks = {letter: gate(parts["recurrent_weight"], letter) for letter in order}

    def multiply(op: str, gates: tuple[str, ...], given: Sequence[Var]) -> list[Var]:
        return [mb.matmul(x=given[0], y=blocks[letter], transpose_y=True) for letter in gates]

    def step(gates: Var, mask: Var | None, states: Sequence[Var]) -> list[Var]:
        def read(leaf: Leaf) -> Var:
            if leaf[0] == "x":
                return gate(gates, leaf[1], 1)
            if leaf[0] == "before":
                return states[trace.names.index(leaf[1])]
            if leaf[0] == "mask":
                return mask
            return gate(parts[leaf[1]], leaf[2]) if len(leaf) == 3 else parts[leaf[1]]

        return text.run(read, lambda *each: _compute(mb, *each), multiply)

    return step
