"""Further peers of zstate.jax: flax's cells, and cuDNN on a GPU. publish.py times them.

Each keeps the weights of a direction in its own layout, and gives their gradients in zstate's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from zstate.bench.contenders import weights_of
from zstate.bench.jax_layers import Layer, first_states
from zstate.bench.rows import GATES, Data, Row

Value = Any  # a jax array, or a tree of them


@dataclass(frozen=True)
class _Direction:
    """The weights of one direction as zstate has them."""

    W: Value  # [G·H,H]
    R: Value  # [G·H,H]
    b: Value  # [G·H]
    b2: Value  # [H], GRU only


@dataclass(frozen=True)
class _Peer:
    """How a peer keeps the weights of a direction, and runs it from the first or the last step."""

    pack: Callable[[_Direction], Value]
    unpack: Callable[[Value], _Direction]
    run: Callable[[Value, Value, list[Value], bool], Value]


def _layer(row: Row, data: Data, peer: _Peer) -> Layer:
    """Both directions of a peer, side by side."""
    D, G, H = row.directions, GATES[row.cell], row.H
    W, R = data.W.reshape(D, G * H, H), data.R.reshape(D, G * H, H)
    b, b2 = data.b.reshape(D, G * H), data.b2.reshape(D, H)
    weights = [peer.pack(_Direction(W[d], R[d], b[d], b2[d])) for d in range(D)]

    def run(weights: Value, x: Value, states: list[Value]) -> Value:
        split = [jnp.split(state, D, -1) for state in first_states(row, x, states)]
        each = [peer.run(weights[d], x, [s[d] for s in split], d == 1) for d in range(D)]
        return jnp.concatenate(each, -1)

    def by_name(gradients: Value) -> dict[str, Value]:
        each = [peer.unpack(own) for own in gradients]
        fields = {"recurrent_weight": "R", "input_weight": "W", "bias": "b", "secondary_bias": "b2"}
        return {n: [getattr(own, fields[n]) for own in each] for n in weights_of(row, data)}

    return Layer(weights, run, by_name)


# The names of flax.linen's kernels, in the order of the gates, and the ones that have a bias.
_LINEN = {
    "LSTM": (["ii", "if", "ig", "io"], ["hi", "hf", "hg", "ho"]),
    "GRU": (["ir", "iz", "in"], ["hr", "hz", "hn"]),
    "RNN": (["i"], ["h"]),
}


def linen(row: Row, data: Data) -> Layer:
    """flax.linen: OptimizedLSTMCell, GRUCell or SimpleCell in nn.RNN."""
    import flax.linen as nn

    kinds = {"LSTM": nn.OptimizedLSTMCell, "GRU": nn.GRUCell, "RNN": nn.SimpleCell}
    G, kind = GATES[row.cell], kinds[row.cell]
    from_x, from_h = _LINEN[row.cell]
    with_bias = from_h if row.cell == "LSTM" else from_x

    def pack(own: _Direction) -> Value:
        params: Any = {}
        for names, weight in ((from_x, own.W), (from_h, own.R)):
            for name, part in zip(names, jnp.split(weight, G), strict=True):
                params[name] = {"kernel": part.T.copy()}
        for name, part in zip(with_bias, jnp.split(own.b, G), strict=True):
            params[name]["bias"] = part
        if row.cell == "GRU":
            params["hn"]["bias"] = own.b2
        return params

    def unpack(p: Value) -> _Direction:
        W, R = (jnp.concatenate([p[n]["kernel"].T for n in names]) for names in (from_x, from_h))
        b = jnp.concatenate([p[n]["bias"] for n in with_bias])
        return _Direction(W, R, b, p["hn"]["bias"] if row.cell == "GRU" else None)

    def run(p: Value, x: Value, states: list[Value], reverse: bool) -> Value:
        cell = kind(row.H, param_dtype=x.dtype)
        layer = nn.RNN(cell, time_major=True, reverse=reverse, keep_order=True)
        first = states[::-1]  # (c, h)
        carry = tuple(first) if row.cell == "LSTM" else first[0]
        return layer.apply({"params": {"cell": p}}, x, initial_carry=carry)

    return _layer(row, data, _Peer(pack, unpack, run))


def nnx(row: Row, data: Data) -> Layer:
    """flax.nnx: the same cells, with one kernel for all gates."""
    from flax import nnx as nn

    kinds = {"LSTM": nn.OptimizedLSTMCell, "GRU": nn.GRUCell, "RNN": nn.SimpleCell}
    G, H = GATES[row.cell], row.H

    def make(dtype: Any) -> Any:
        types: Any = {"dtype": dtype, "param_dtype": dtype}
        cell = kinds[row.cell](H, H, **types, rngs=nn.Rngs(0))
        if row.cell == "GRU":  # it has no bias inside the reset gate's product
            cell.dense_h = nn.Linear(H, G * H, **types, rngs=nn.Rngs(0))
        return cell

    biased = "dense_h" if row.cell == "LSTM" else "dense_i"

    def pack(own: _Direction) -> Value:
        params: Any = {"dense_i": {"kernel": own.W.T.copy()}, "dense_h": {"kernel": own.R.T.copy()}}
        params[biased]["bias"] = own.b
        if row.cell == "GRU":
            params["dense_h"]["bias"] = jnp.pad(own.b2, (2 * H, 0))
        return params

    def unpack(p: Value) -> _Direction:
        b2 = p["dense_h"]["bias"][2 * H :] if row.cell == "GRU" else None
        kernels = p["dense_i"]["kernel"], p["dense_h"]["kernel"]
        return _Direction(kernels[0].T, kernels[1].T, p[biased]["bias"], b2)

    def run(p: Value, x: Value, states: list[Value], reverse: bool) -> Value:
        cell = make(x.dtype)
        for name, values in p.items():
            for kind, value in values.items():
                getattr(getattr(cell, name), kind).set_value(value)
        layer = nn.RNN(cell, time_major=True, reverse=reverse, keep_order=True, rngs=False)
        first = states[::-1]
        return layer(x, initial_carry=tuple(first) if row.cell == "LSTM" else first[0])

    return _layer(row, data, _Peer(pack, unpack, run))


def cudnn(row: Row, data: Data) -> Layer | None:
    """jax.experimental.rnn.lstm, which takes [N,T,I]: an LSTM in float32 on a GPU."""
    device = data.x.devices().pop()
    if row.cell != "LSTM" or data.x.dtype != jnp.float32 or row.bidirectional:
        return None
    if device.platform != "gpu":
        return None
    from jax.experimental import rnn

    H, lengths = row.H, jnp.full(row.N, row.T, jnp.int32)
    pieces = (data.W, data.R, data.b, jnp.zeros_like(data.b))

    def run(weights: Value, x: Value, states: list[Value]) -> Value:
        first = [state[None] for state in states] or [jnp.zeros((1, row.N, H), x.dtype)] * 2
        sizes = {"input_size": H, "hidden_size": H, "num_layers": 1}
        return rnn.lstm(x, *first, weights, lengths, **sizes, dropout=0.0, bidirectional=False)[0]

    def by_name(gradient: Value) -> dict[str, Value]:
        ends = [4 * H * H, 8 * H * H, 8 * H * H + 4 * H]
        W, R, b, _ = jnp.split(gradient, ends)
        shape = (4 * H, H)
        return {"recurrent_weight": R.reshape(shape), "input_weight": W.reshape(shape), "bias": b}

    return Layer(jnp.concatenate([piece.ravel() for piece in pieces]), run, by_name, 1)


LAYERS: dict[str, Callable[[Row, Data], Layer | None]] = {
    "flax": linen,
    "nnx": nnx,
    "cudnn": cudnn,
}
