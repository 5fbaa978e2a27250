"""A recurrent node as a loop of MIL: the equations of docs/equations.md, one step in the body."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..convert.table import GRU, LSTM
from ..descriptors import Activation
from ..graph.tensor import Node
from ..layout import gate_order
from .rows import Var, broadcast_to


def loop(mb: Any, node: Node, tensors: Mapping[str, Var]) -> list[Var]:
    """The states, and of an LSTM the cells, [T,N,D·H]."""
    count = 2 if node.attributes["descriptor"].bidirectional else 1
    found = [_direction(mb, node, tensors, index, count) for index in range(count)]
    if count == 1:
        return found[0]
    return [mb.concat(values=pair, axis=2) for pair in zip(*found, strict=True)]


def _direction(
    mb: Any, node: Node, tensors: Mapping[str, Var], index: int, count: int
) -> list[Var]:
    """One direction's states, and cells, [T,N,H]."""
    descriptor = node.attributes["descriptor"]
    hidden = tensors["recurrent_weight"].shape[-1]
    rows = len(gate_order(descriptor)) * hidden
    steps, batch, _ = tensors["source"].shape
    parts = {
        name: _part(mb, name, value, index, count, rows, hidden)
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
    step = _step(mb, node.op.name, descriptor, parts)
    zeros = np.zeros((batch, hidden), np.float32)
    names = ("init_state", "init_cell") if node.op.name == LSTM else ("init_state",)
    start = [parts[name] if name in parts else mb.const(val=zeros) for name in names]
    lists = [
        mb.make_list(init_length=steps, dynamic_length=False, elem_shape=(batch, hidden))
        for _ in start
    ]

    def body(t: Var, *values: Var) -> tuple[Var, ...]:
        states, kept = values[: len(start)], values[len(start) :]
        at = [mb.gather(x=value, indices=t, axis=0) for value in read]  # [N,G·H], and [N,H]
        after = step(at[0], at[1] if len(at) == 2 else None, *states)
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


def _part(mb: Any, name: str, value: Var, index: int, count: int, rows: int, hidden: int) -> Var:
    """One direction's part of a weight or an initial state."""
    if name in ("recurrent_weight", "peephole"):
        shape = (rows, hidden) if name == "recurrent_weight" else (rows,)
        stacked = mb.reshape(x=value, shape=(count, *shape))
        return mb.squeeze(x=_slice(mb, stacked, index, 1, 0), axes=[0])
    axis = 1 if name in ("init_state", "init_cell") else 0
    length = rows if name in ("input_weight", "bias") else hidden
    return _slice(mb, value, index, length, axis)


def _slice(mb: Any, value: Var, index: int, length: int, axis: int) -> Var:
    """The index-th part of this length along an axis."""
    begin, end = [0] * value.rank, list(value.shape)
    begin[axis], end[axis] = index * length, (index + 1) * length
    return mb.slice_by_index(x=value, begin=begin, end=end)


def _step(
    mb: Any, cell: str, descriptor: Any, parts: Mapping[str, Var]
) -> Callable[..., list[Var]]:
    """(projected input [N,G·H], mask or None, states [N,H]) -> the states after the step."""
    order = gate_order(descriptor)
    kinds = dict(
        zip([*gate_order(type(descriptor)()), "cell"], descriptor.activations, strict=False)
    )
    hidden = parts["recurrent_weight"].shape[1]

    def block(name: str, letter: str) -> Var:
        return _slice(mb, parts[name], order.index(letter), hidden, 0)

    blocks = {letter: block("recurrent_weight", letter) for letter in order}
    peepholes = {letter: block("peephole", letter) for letter in order if "peephole" in parts}

    def active(value: Var, kind: Activation) -> Var:
        if kind is Activation.NONE:
            return value
        if kind is Activation.HARD_SIGMOID:
            return mb.sigmoid_hard(x=value, alpha=np.float32(0.2), beta=np.float32(0.5))
        return getattr(mb, kind.name.lower())(x=value)

    def product(state: Var, letter: str) -> Var:
        return mb.matmul(x=state, y=blocks[letter], transpose_y=True)

    def looked(value: Var, letter: str, at: Var) -> Var:
        if letter not in peepholes:
            return value
        return mb.add(x=value, y=mb.mul(x=at, y=peepholes[letter]))

    def step(gates: Var, mask: Var | None, h: Var, c: Var = None) -> list[Var]:
        x = {letter: _slice(mb, gates, k, hidden, 1) for k, letter in enumerate(order)}
        masked = h if mask is None else mb.mul(x=h, y=mask)

        def inner(letter: str) -> Var:
            return mb.add(x=x[letter], y=product(masked, letter))

        if cell == LSTM:
            i, f, z = (active(looked(inner(k), k, c), kinds[k]) for k in "ifz")
            new = mb.add(x=mb.mul(x=f, y=c), y=mb.mul(x=i, y=z))
            at = new if getattr(descriptor, "peephole_on_new_cell", False) else c
            o = active(looked(inner("o"), "o", at), kinds["o"])
            return [mb.mul(x=o, y=active(new, kinds["cell"])), new]
        if cell == GRU:
            z, r = (active(inner(k), kinds[k]) for k in "zr")
            if descriptor.reset_after:
                within = product(masked, "o")
                if "secondary_bias" in parts:
                    within = mb.add(x=within, y=parts["secondary_bias"])
                candidate = mb.add(x=x["o"], y=mb.mul(x=within, y=r))
            else:
                candidate = mb.add(x=x["o"], y=product(mb.mul(x=masked, y=r), "o"))
            o = active(candidate, kinds["o"])
            other = mb.sub(x=np.float32(1), y=z)
            keep, take = (other, z) if descriptor.flip_z else (z, other)
            return [mb.add(x=mb.mul(x=keep, y=h), y=mb.mul(x=take, y=o))]
        return [active(inner("z"), kinds["z"])]

    return step
