"""Derivatives of every order, vmap, scan, remat, export: against jax's own of a plain scan."""

from __future__ import annotations

import itertools
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import zstate as zs
import zstate.jax as zj

T, N, I, H = 5, 3, 4, 6
CELLS = {"single_gate_rnn": 1, "lstm": 4, "gru": 3}
NAMES = ("source", "recurrent_weight", "input_weight", "bias", "init_state", "mask")


def make(
    cell: str, both: bool = False, batch: int = N, **options: bool
) -> tuple[dict[str, Any], Any]:
    rng, G, D = np.random.default_rng(3), CELLS[cell], 1 + both
    shapes = {
        "source": (T, batch, I),
        "recurrent_weight": (D, G * H, H)[2 - D :],
        "input_weight": (D * G * H, I),
        "bias": (D * G * H,),
        "init_state": (batch, D * H),
        "mask": (T, batch, D * H),
    }
    if cell == "lstm":
        shapes |= {"init_cell": (batch, D * H), "peephole": (D, G * H)[2 - D :]}
    if cell == "gru":
        shapes["secondary_bias"] = (D * H,)
    values = {name: jnp.asarray(rng.standard_normal(shape) * 0.4) for name, shape in shapes.items()}
    descriptor = {
        "single_gate_rnn": zs.SingleGateRNNDescriptor(
            bidirectional=both, activation=zs.Activation.TANH
        ),
        "lstm": zs.LSTMDescriptor(bidirectional=both, produce_cell=True, **options),
        "gru": zs.GRUDescriptor(bidirectional=both, reset_after=True),
    }[cell]
    return values, descriptor


def loss(cell: str, descriptor: Any, backend: str | None = None) -> Any:
    def function(values: dict[str, Any]) -> Any:
        result = getattr(zj, cell)(**values, descriptor=descriptor, backend=backend)
        total = jnp.sin(result.state).sum()
        return total + (result.cell**2).sum() if cell == "lstm" else total

    return function


def plain_scan(cell: str, descriptor: Any) -> Any:
    """The same loss by jax.lax.scan, written here: no code is shared."""
    sigmoid = jax.nn.sigmoid

    def direction(v: dict[str, Any], d: int) -> tuple[Any, Any]:
        G = CELLS[cell]
        own = slice(d * H, (d + 1) * H)
        R = v["recurrent_weight"].reshape(-1, G, H, H)[d]
        x = v["source"] @ v["input_weight"].T + v["bias"]
        x = x.reshape(T, -1, x.shape[-1] // (G * H), G, H)[:, :, d]
        m, h = v["mask"][..., own], v["init_state"][:, own]
        c = v["init_cell"][:, own] if cell == "lstm" else h
        if d:
            x, m = x[::-1], m[::-1]

        def step(state: Any, at: Any) -> Any:
            (h, c), (x, m) = state, at
            u = jnp.einsum("nk,ghk->ngh", h * m, R)
            if cell == "single_gate_rnn":
                h = jnp.tanh(x[:, 0] + u[:, 0])
            elif cell == "lstm":
                a, p = x + u, v["peephole"].reshape(-1, 4, H)[d]
                i, f = sigmoid(a[:, 0] + p[0] * c), sigmoid(a[:, 1] + p[1] * c)
                new_c = f * c + i * jnp.tanh(a[:, 2] + p[2] * c)
                seen = new_c if descriptor.peephole_on_new_cell else c
                c, h = new_c, sigmoid(a[:, 3] + p[3] * seen) * jnp.tanh(new_c)
            else:
                z, r = sigmoid(x[:, 0] + u[:, 0]), sigmoid(x[:, 1] + u[:, 1])
                o = jnp.tanh(x[:, 2] + (u[:, 2] + v["secondary_bias"][own]) * r)
                h = z * h + (1 - z) * o
            return (h, c), (h, c)

        _, (hs, cs) = jax.lax.scan(step, (h, c), (x, m))
        return hs, cs

    def function(v: dict[str, Any]) -> Any:
        total = 0.0
        for d in range(2 if descriptor.bidirectional else 1):
            hs, cs = direction(v, d)
            total += jnp.sin(hs).sum() + ((cs**2).sum() if cell == "lstm" else 0.0)
        return total

    return function


@pytest.mark.parametrize(
    ("cell", "both"),
    [*itertools.product(CELLS, (False, True)), ("lstm, new cell", True)],
)
def test_gradients_are_those_of_a_plain_scan(cell: str, both: bool) -> None:
    cell, _, new_cell = cell.partition(", ")
    values, descriptor = make(cell, both, **{"peephole_on_new_cell": True} if new_cell else {})
    wanted = jax.grad(plain_scan(cell, descriptor))(values)
    for function in (jax.grad(loss(cell, descriptor)), jax.jit(jax.grad(loss(cell, descriptor)))):
        found = function(values)
        for name in values:
            np.testing.assert_allclose(found[name], wanted[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("cell", CELLS)
def test_derivatives_forwards_and_of_second_order(cell: str) -> None:
    values, descriptor = make(cell)
    order = 2 if cell == "gru" or os.environ.get("ZSTATE_SOAK") else 1  # test_hessian has the rest
    check_grads(loss(cell, descriptor), (values,), order=order, modes=["fwd", "rev"], rtol=1e-6)
    tangent = {name: jnp.ones_like(value) for name, value in values.items()}
    wanted = jax.jvp(plain_scan(cell, descriptor), (values,), (tangent,))
    found = jax.jvp(loss(cell, descriptor), (values,), (tangent,))
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    linear = jax.linearize(loss(cell, descriptor), values)[1]
    np.testing.assert_allclose(linear(tangent), wanted[1], rtol=1e-12)


@pytest.mark.parametrize("cell", CELLS)
def test_hessian(cell: str) -> None:
    values, descriptor = make(cell, batch=1)

    def of_weight(function: Any) -> Any:
        return lambda R: function({**values, "recurrent_weight": R})

    R = values["recurrent_weight"]
    wanted = jax.hessian(of_weight(plain_scan(cell, descriptor)))(R)
    function = of_weight(loss(cell, descriptor))
    ways = [jax.hessian, lambda f: jax.jacrev(jax.jacrev(f))]
    for way in ways if cell == "lstm" else ways[:1]:
        found = way(function)(R)
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("cell", CELLS)
def test_vmap_over_any_inputs_is_a_loop(cell: str) -> None:
    values, descriptor = make(cell)
    function = loss(cell, descriptor)
    one = jax.jit(jax.value_and_grad(function))
    chosen = [{"source", "init_state"}, {"mask"}, {"recurrent_weight"}, set(values)]
    if os.environ.get("ZSTATE_SOAK"):
        chosen += [{name} for name in values]
    for batched in chosen:
        several = {
            name: jnp.stack([value, value * 1.5], axis=1) if name in batched else value
            for name, value in values.items()
        }
        axes = {name: 1 if name in batched else None for name in values}
        both = jax.value_and_grad(function)
        found, gradients = jax.jit(jax.vmap(both, in_axes=(axes,)))(several)
        for k in range(2):
            own = {n: v[:, k] if n in batched else v for n, v in several.items()}
            value, alone = one(own)
            np.testing.assert_allclose(found[k], value, rtol=1e-12)
            for name in values:
                np.testing.assert_allclose(gradients[name][k], alone[name], rtol=1e-10, atol=1e-12)


def test_inside_scan_and_checkpoint() -> None:
    values, descriptor = make("gru")
    function = loss("gru", descriptor)

    def repeated(scale: Any) -> Any:
        def body(total: Any, factor: Any) -> Any:
            inner = {**values, "source": values["source"] * factor}
            return total + jax.checkpoint(function)(inner), None

        return jax.lax.scan(body, 0.0, scale)[0]

    scale = jnp.array([0.5, 1.0, 2.0])
    each = [function({**values, "source": values["source"] * factor}) for factor in scale]
    np.testing.assert_allclose(jax.jit(repeated)(scale), sum(each), rtol=1e-12)
    check_grads(repeated, (scale,), order=1, modes=["rev"], rtol=1e-6)


def test_donated_and_exported() -> None:
    values, descriptor = make("lstm")
    function = loss("lstm", descriptor)
    wanted = function(values)
    copies = {name: value + 0 for name, value in values.items()}
    np.testing.assert_allclose(jax.jit(function, donate_argnums=0)(copies), wanted, rtol=1e-12)
    allowed = [jax.export.DisabledSafetyCheck.custom_call("zstate_forward")]
    exported = jax.export.export(jax.jit(function), disabled_checks=allowed)(values)
    again = jax.export.deserialize(exported.serialize())
    np.testing.assert_allclose(again.call(values), wanted, rtol=1e-12)
    compiled = jax.jit(function).lower(values).compile()
    np.testing.assert_allclose(compiled(values), wanted, rtol=1e-12)


def test_equal_descriptors_compile_once() -> None:
    traces = 0

    def function(x: Any, R: Any, descriptor: Any) -> Any:
        nonlocal traces
        traces += 1
        return zj.lstm(x, R, descriptor=descriptor).state

    jitted = jax.jit(function, static_argnums=2)
    x, R = jnp.ones((2, 1, 8)), jnp.ones((8, 2))
    for _ in range(3):
        jitted(x, R, zs.LSTMDescriptor(forget_gate_last=True))
    assert traces == 1


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16])
def test_other_float_types_keep_theirs(dtype: Any) -> None:
    values, descriptor = make("gru")
    cast = {name: value.astype(dtype) for name, value in values.items()}
    gradients = jax.grad(lambda v: loss("gru", descriptor)(v).astype(jnp.float32))(cast)
    exact = jax.grad(loss("gru", descriptor))({n: v.astype(jnp.float64) for n, v in cast.items()})
    bound = {jnp.float32: 1e-5, jnp.float16: 1e-2, jnp.bfloat16: 8e-2}[dtype]
    for name, value in gradients.items():
        assert value.dtype == dtype
        error = jnp.abs(value.astype(jnp.float64) - exact[name]).max()
        assert error <= bound * jnp.abs(exact[name]).max(), name


def test_no_copy_of_the_source() -> None:
    """The compiled program needs no room beyond its arguments and results."""
    if zj.unavailable() is not None:
        pytest.skip("built without the XLA handlers")
    x, R = jnp.ones((64, 16, 128)), jnp.ones((128, 128)) * 0.01
    compiled = jax.jit(lambda x, R: zj.single_gate_rnn(x, R).state).lower(x, R).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < x.nbytes // 2
