"""zstate.jax, and a plain scan as JAX's users write it.

A contender is one jitted function of its weights, the source and the initial states: inference
gives the states, and training their gradients, of a loss that weights every state by a fixed random
number. Each holds its weights and its source in its own layout, as its users would.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from .contenders import Call, Case, inputs_of, weights_of
from .rows import Data, Row

Value = Any  # a jax array, or a tree of them


@dataclass(frozen=True)
class Layer:
    """A layer with its weights; ``run`` takes (weights, source, [h] or [h, c] or [])."""

    weights: Value
    run: Callable[[Value, Value, list[Value]], Value]  # -> [T,N,D·H]
    by_name: Callable[[Value], dict[str, Value]]  # the weights' gradients as zstate has them
    time_axis: int = 0


def ours(row: Row, data: Data) -> Layer:
    """zstate.jax."""
    from .. import jax as zj

    operations: Any = {"LSTM": zj.lstm, "GRU": zj.gru, "RNN": zj.single_gate_rnn}

    def run(weights: Value, x: Value, states: list[Value]) -> Value:
        first = dict(zip(("init_state", "init_cell"), states, strict=False))
        return operations[row.cell](x, **weights, **first, descriptor=row.descriptor).state

    return Layer(weights_of(row, data), run, lambda gradients: gradients)


def _lstm(own: Value, carry: Any, x: Value) -> Any:
    h, c = carry
    i, f, g, o = jnp.split(x + h @ own["recurrent_weight"], 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), h


def _gru(own: Value, carry: Any, x: Value) -> Any:
    (h,) = carry
    (xr, xz, xn), (hr, hz, hn) = (jnp.split(v, 3, -1) for v in (x, h @ own["recurrent_weight"]))
    z = jax.nn.sigmoid(xz + hz)
    n = jnp.tanh(xn + jax.nn.sigmoid(xr + hr) * (hn + own["secondary_bias"]))
    h = z * h + (1 - z) * n
    return (h,), h


def _rnn(own: Value, carry: Any, x: Value) -> Any:
    h = jnp.tanh(x + carry[0] @ own["recurrent_weight"])
    return (h,), h


_STEPS: dict[str, Callable[..., Any]] = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}


def scan(row: Row, data: Data) -> Layer:
    """lax.scan with the projection outside and one product per step, per direction."""
    step, D = _STEPS[row.cell], row.directions

    def turned(own: dict[str, Value]) -> dict[str, Value]:
        return {name: value.T if value.ndim == 2 else value for name, value in own.items()}

    def run(weights: Value, x: Value, states: list[Value]) -> Value:
        first = first_states(row, x, states)
        found = []
        for d, own in enumerate(weights):
            start = tuple(jnp.split(state, D, -1)[d] for state in first)
            projected = x @ own["input_weight"] + own["bias"]
            found.append(jax.lax.scan(partial(step, own), start, projected, reverse=d == 1)[1])
        return jnp.concatenate(found, -1)

    def by_name(gradients: Value) -> dict[str, Value]:
        each = [turned(own) for own in gradients]
        return {name: [own[name] for own in each] for name in each[0]}

    shapes = {"recurrent_weight": (D, -1, row.H), "input_weight": (D, -1, row.H)}
    whole = {n: v.reshape(shapes.get(n, (D, -1))) for n, v in weights_of(row, data).items()}
    weights = [turned({name: value[d] for name, value in whole.items()}) for d in range(D)]
    return Layer(weights, run, by_name)


def first_states(row: Row, x: Value, states: list[Value]) -> list[Value]:
    """h, and c for an LSTM: those that were passed, or zeros."""
    zeros = jnp.zeros((x.shape[1], row.directions * row.H), x.dtype)
    return states or [zeros] * (2 if row.cell == "LSTM" else 1)


def calls(case: Case, data: Data, layer_of: Callable[[Row, Data], Layer | None]) -> Call | None:
    """A function that runs the layer once, on arrays that lie on their device.

    It gives a function that returns the results in the order of contest.oracle().
    """
    device = jax.devices("gpu" if case.device == "cuda" else "cpu")[0]
    kind = jnp.dtype(case.type)
    put = Data(**{n: jax.device_put(v.astype(kind), device) for n, v in vars(data).items()})
    layer = layer_of(case.row, put)
    if layer is None:
        return None
    run, inputs = layer.run, inputs_of(case.row, put)
    names = [name for name in ("init_state", "init_cell") if name in inputs]
    x, dy = (jnp.swapaxes(value, 0, layer.time_axis) for value in (put.x, put.dy))
    given = (layer.weights, x, [inputs[name] for name in names])

    def loss(weights: Value, x: Value, states: Value, dy: Value) -> Any:
        out = run(weights, x, states)
        return (out * dy).sum(), out

    gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))
    infer = jax.jit(run)

    def in_order(out: Value, weights: Value, x: Value, states: Value) -> list[Value]:
        named = layer.by_name(weights) | dict(zip(names, states, strict=True))
        named["source"] = jnp.swapaxes(x, 0, layer.time_axis)
        return [jnp.swapaxes(out, 0, layer.time_axis), *(named[name] for name in inputs)]

    def run_inference() -> Any:
        out = jax.block_until_ready(infer(*given))
        return lambda: [jnp.swapaxes(out, 0, layer.time_axis)]

    def run_training() -> Any:
        (_, out), found = jax.block_until_ready(gradients(*given, dy))
        return lambda: in_order(out, *found)

    return run_training if case.training else run_inference


def gpu_unavailable() -> str | None:
    """Why JAX cannot run on a GPU here, or None."""
    try:
        jax.devices("gpu")
    except RuntimeError as error:
        return f"JAX sees no GPU ({error})"
    return None
