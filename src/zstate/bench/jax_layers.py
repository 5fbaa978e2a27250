"""zstate through JAX, beside what JAX's users have: a plain scan, flax, and cuDNN on a GPU.

Every contender is one jitted function of its weights, the source and the initial states: inference
gives the states, and training their gradients, of a loss that weights every state by a fixed random
number. Each holds its weights and its source in its own layout, as its users would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..verify import relative_error
from .report import Measured
from .rows import GATES, Data, Row, make_data
from .timing import Protocol, measure

Value = Any  # a jax array, or a tree of them
Call = Callable[[], Any]
STATES = ("init_state", "init_cell")


@dataclass(frozen=True)
class Layer:
    """A layer with its weights; ``run`` takes (weights, source, [h] or [h, c] or [])."""

    weights: Value
    run: Callable[[Value, Value, list[Value]], Value]  # -> [T,N,D·H]
    by_name: Callable[[Value], dict[str, Value]]  # the weights' gradients as zstate has them
    time_axis: int = 0


def ours(row: Row, data: Data, backend: str | None = None) -> Layer:
    """zstate.jax."""
    from .. import jax as zj

    operations: Any = {"LSTM": zj.lstm, "GRU": zj.gru, "RNN": zj.single_gate_rnn}
    weights = {"recurrent_weight": data.R, "input_weight": data.W, "bias": data.b}
    if row.cell == "GRU":
        weights["secondary_bias"] = data.b2
    operation, descriptor = operations[row.cell], row.descriptor

    def run(weights: Value, x: Value, states: list[Value]) -> Value:
        first: Any = dict(zip(STATES, states, strict=False))
        return operation(x, **weights, **first, descriptor=descriptor, backend=backend).state

    return Layer(weights, run, lambda gradients: gradients)


# ---- peers: each gives one direction ----


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
        split = [jnp.split(state, D, -1) for state in states]
        each = [peer.run(weights[d], x, [s[d] for s in split], d == 1) for d in range(D)]
        return each[0] if D == 1 else jnp.concatenate(each, -1)

    def by_name(gradients: Value) -> dict[str, Value]:
        each = [peer.unpack(own) for own in gradients]
        found = {
            "recurrent_weight": jnp.stack([own.R for own in each]).reshape(data.R.shape),
            "input_weight": jnp.concatenate([own.W for own in each]),
            "bias": jnp.concatenate([own.b for own in each]),
        }
        if row.cell == "GRU":
            found["secondary_bias"] = jnp.concatenate([own.b2 for own in each])
        return found

    return Layer(weights, run, by_name)


def _first_states(row: Row, x: Value, states: list[Value]) -> list[Value]:
    """h, and c for an LSTM: those that were passed, or zeros."""
    count = 2 if row.cell == "LSTM" else 1
    return states or [jnp.zeros((x.shape[1], row.H), x.dtype)] * count


def scan(row: Row, data: Data) -> Layer:
    """lax.scan with the projection outside and one product per step."""

    def lstm(p: Value, carry: Any, gx: Value) -> Any:
        h, c = carry
        i, f, g, o = jnp.split(gx + h @ p["R"], 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    def gru(p: Value, carry: Any, gx: Value) -> Any:
        (h,) = carry
        (xr, xz, xn), (hr, hz, hn) = jnp.split(gx, 3, -1), jnp.split(h @ p["R"], 3, -1)
        z = jax.nn.sigmoid(xz + hz)
        n = jnp.tanh(xn + jax.nn.sigmoid(xr + hr) * (hn + p["b2"]))
        h = z * h + (1 - z) * n
        return (h,), h

    def rnn(p: Value, carry: Any, gx: Value) -> Any:
        h = jnp.tanh(gx + carry[0] @ p["R"])
        return (h,), h

    step: Any = {"LSTM": lstm, "GRU": gru, "RNN": rnn}[row.cell]

    def run(p: Value, x: Value, states: list[Value], reverse: bool) -> Value:
        first = tuple(_first_states(row, x, states))
        projected = x @ p["W"] + p["b"]
        return jax.lax.scan(lambda c, gx: step(p, c, gx), first, projected, reverse=reverse)[1]

    def pack(own: _Direction) -> Value:
        return {"W": own.W.T.copy(), "R": own.R.T.copy(), "b": own.b, "b2": own.b2}

    def unpack(p: Value) -> _Direction:
        return _Direction(p["W"].T, p["R"].T, p["b"], p["b2"])

    return _layer(row, data, _Peer(pack, unpack, run))


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
        first = _first_states(row, x, states)[::-1]  # (c, h)
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
        first = _first_states(row, x, states)[::-1]
        return layer(x, initial_carry=tuple(first) if row.cell == "LSTM" else first[0])

    return _layer(row, data, _Peer(pack, unpack, run))


def cudnn(row: Row, data: Data) -> Layer | None:
    """jax.experimental.rnn.lstm, which takes [N,T,I]: an LSTM in float32 on a GPU."""
    on_gpu = _device(data).platform == "gpu"
    if row.cell != "LSTM" or data.x.dtype != jnp.float32 or not on_gpu or row.bidirectional:
        return None
    from jax.experimental import rnn

    H, lengths = row.H, jnp.full(row.N, row.T, jnp.int32)
    pieces = (data.W, data.R, data.b, jnp.zeros_like(data.b))

    def run(weights: Value, x: Value, states: list[Value]) -> Value:
        first = [state[None] for state in states] or [jnp.zeros((1, row.N, H), x.dtype)] * 2
        return rnn.lstm(
            x,
            *first,
            weights,
            lengths,
            input_size=H,
            hidden_size=H,
            num_layers=1,
            dropout=0.0,
            bidirectional=False,
        )[0]

    def by_name(gradient: Value) -> dict[str, Value]:
        ends = [4 * H * H, 8 * H * H, 8 * H * H + 4 * H]
        W, R, b, _ = jnp.split(gradient, ends)
        shape = (4 * H, H)
        return {"recurrent_weight": R.reshape(shape), "input_weight": W.reshape(shape), "bias": b}

    return Layer(jnp.concatenate([piece.ravel() for piece in pieces]), run, by_name, 1)


PEERS: dict[str, Callable[[Row, Data], Layer | None]] = {
    "scan": scan,
    "flax": linen,
    "nnx": nnx,
    "cudnn": cudnn,
}


# ---- the jitted functions ----


def put(data: Data, device: Any, dtype: Any = None) -> Data:
    """The arrays of a row on a device, in a float type."""
    values: Any = vars(data)
    return Data(
        **{
            n: jax.device_put(v if dtype is None else v.astype(dtype), device)
            for n, v in values.items()
        }
    )


def _device(data: Data) -> Any:
    x: Any = data.x
    return x.devices().pop()


def calls(row: Row, data: Data, layer: Layer, training: bool) -> Call:
    """A function that runs the layer once, on arrays that lie on their device.

    It gives a function that returns the results in the order of contenders.oracle().
    """
    axis, wait = layer.time_axis, jax.block_until_ready
    x, dy = (jnp.swapaxes(v, 0, axis).copy() if axis else v for v in (data.x, data.dy))
    states = [data.h0, data.c0][: 2 if row.cell == "LSTM" else 1] if row.states else []
    weights = jax.tree.map(jnp.asarray, layer.weights)

    def loss(weights: Value, x: Value, states: Value, dy: Value) -> Any:
        out = layer.run(weights, x, states)
        return (out * dy).sum(), out

    infer: Any = jax.jit(layer.run)
    train: Any = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))

    def in_order(out: Value, gradients: Sequence[Value]) -> list[Value]:
        results = [jnp.swapaxes(out, 0, axis)]
        if gradients:
            own, of_x, of_states = gradients
            named = {**layer.by_name(own), **dict(zip(STATES, of_states, strict=False))}
            named["source"] = jnp.swapaxes(of_x, 0, axis)
            order = ["source", "recurrent_weight", "input_weight", "bias", *STATES[: len(states)]]
            order += ["secondary_bias"] if row.cell == "GRU" else []
            results += [named[name] for name in order]
        return results

    if not training:

        def run_inference() -> Any:
            out = wait(infer(weights, x, states))
            return lambda: in_order(out, ())

        return run_inference

    def run_training() -> Any:
        (_, out), gradients = wait(train(weights, x, states, dy))
        return lambda: in_order(out, gradients)

    return run_training


# ---- on a GPU ----

# One rounding to the type of the results, or, for float32, to that of the products (TF32).
_ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-11}


def gpu_unavailable() -> str | None:
    """Why JAX cannot run on a GPU here, or None."""
    try:
        jax.devices("gpu")
    except RuntimeError as error:
        return f"JAX sees no GPU ({error})"
    return None


def machine() -> dict[str, Any]:
    """The device and its software."""
    device = jax.devices("gpu")[0]
    platform = getattr(device.client, "platform_version", "").replace("\n", ", ")
    return {
        "processor": device.device_kind,
        "jax": jax.__version__,
        "platform": platform,
        "float32": "TF32",
    }


def measure_all(
    rows: list[Row],
    kinds: list[str],
    modes: list[bool],
    peers: list[str],
    protocol: Protocol,
    seed: int,
) -> Iterator[Measured]:
    """Every row in every type and mode, on the first GPU: checked, then timed."""
    device = jax.devices("gpu")[0]
    makers = {"zstate": ours, **{name: PEERS[name] for name in peers}}
    for row in rows:
        numbers = make_data(row, seed)
        for kind in kinds:
            data = put(numbers, device, jnp.dtype(kind))
            wanted = _exact(row, data)
            for training in modes:
                yield _measure(row, kind, data, training, makers, wanted, protocol)
            del data, wanted


def _exact(row: Row, data: Data) -> list[Any]:
    """The results of training in float64, composed of JAX's own operations, as NumPy arrays."""
    with jax.enable_x64(True):
        wide = put(data, _device(data), jnp.float64)
        results = calls(row, wide, ours(row, wide, "reference"), True)()()
        return [np.asarray(result) for result in results]


def _measure(
    row: Row,
    kind: str,
    data: Data,
    training: bool,
    makers: dict[str, Callable[[Row, Data], Layer | None]],
    wanted: list[Any],
    protocol: Protocol,
) -> Measured:
    """Times those that are at most twice as far off as the scan, or within one rounding."""
    found = Measured(row, training, type=kind)
    ready: dict[str, Call] = {}
    for name, maker in makers.items():
        layer = maker(row, data)
        if layer is None:
            continue
        ready[name] = calls(row, data, layer, training)
        results = ready[name]()()
        pairs = zip(results, wanted[: len(results)], strict=True)
        errors = [relative_error(np.asarray(one), right) for one, right in pairs]
        found.errors[name] = float(np.max(errors))
    bound = max(2 * found.errors.get("scan", 0.0), _ROUNDING[kind])
    right = {name: call for name, call in ready.items() if found.errors[name] <= bound}
    if "zstate" in right:
        found.timings = measure(right, protocol)
    return found
