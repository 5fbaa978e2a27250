"""Derivatives of every order, vmap, scan, remat, export: against jax's own of a plain scan."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import zstate as zs
import zstate.jax as zj
from zstate import layout
from zstate.jax import ffi, signature

needs_handlers = pytest.mark.skipif(
    zj.unavailable() is not None, reason="built without the XLA handlers"
)
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


def with_mask(function: Any, mask: Any) -> Any:
    """As a function of the other inputs, whose gradients the engine has; the mask's is composed."""
    return lambda values: function({**values, "mask": mask})


@pytest.mark.parametrize(
    ("cell", "both"),
    [*product(CELLS, (False, True)), ("lstm, new cell", True)],
)
def test_gradients_are_those_of_a_plain_scan(cell: str, both: bool) -> None:
    cell, _, new_cell = cell.partition(", ")
    values, descriptor = make(cell, both, **{"peephole_on_new_cell": True} if new_cell else {})
    wanted = jax.jit(jax.grad(plain_scan(cell, descriptor)))(values)
    function = loss(cell, descriptor)
    if not both:
        assert_close(jax.jit(jax.grad(function))(values), wanted)
    mask = values.pop("mask")
    function = jax.grad(with_mask(function, mask))
    assert_close(jax.jit(function)(values), wanted)
    assert_close(function(values), wanted)


def assert_close(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    for name, value in found.items():
        np.testing.assert_allclose(value, wanted[name], rtol=1e-12, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("cell", CELLS)
def test_derivatives_forwards_and_of_second_order(cell: str) -> None:
    values, descriptor = make(cell)
    order = 2 if os.environ.get("ZSTATE_SOAK") else 1  # test_hessian has the rest
    function, plain = jax.jit(loss(cell, descriptor)), jax.jit(plain_scan(cell, descriptor))
    check_grads(function, (values,), order=order, modes=["fwd", "rev"], rtol=1e-6)
    tangent = {name: jnp.ones_like(value) for name, value in values.items()}
    wanted = jax.jvp(plain, (values,), (tangent,))
    found = jax.jvp(function, (values,), (tangent,))
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    linear = jax.linearize(function, values)[1]
    np.testing.assert_allclose(linear(tangent), wanted[1], rtol=1e-12)


@pytest.mark.parametrize("cell", CELLS)
def test_hessian(cell: str) -> None:
    values, descriptor = make(cell, batch=1)

    def of_weight(function: Any) -> Any:
        return lambda R: function({**values, "recurrent_weight": R})

    R = values["recurrent_weight"]
    wanted = jax.jit(jax.hessian(of_weight(plain_scan(cell, descriptor))))(R)
    function = of_weight(loss(cell, descriptor))
    ways = [jax.hessian, lambda f: jax.jacrev(jax.jacrev(f))]
    for way in ways if cell == "lstm" else ways[:1]:
        found = jax.jit(way(function))(R)
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("cell", CELLS)
def test_hessian_by_differences(cell: str) -> None:
    """All second derivatives by h0 and the bias, against differences of the first."""
    values, descriptor = make(cell, batch=1)
    names = ("bias", "init_state")

    def of(vector: Any) -> Any:
        bias, state = jnp.split(vector, [values["bias"].size])
        changed = {"bias": bias, "init_state": state[None]}
        return loss(cell, descriptor)({**values, **changed})

    at = jnp.concatenate([values[name].ravel() for name in names])
    gradient, step = jax.jit(jax.vmap(jax.grad(of))), 1e-3 * jnp.eye(at.size)
    weights = {1: 2 / 3, -1: -2 / 3, 2: -1 / 12, -2: 1 / 12}
    wanted = sum(weight * gradient(at + k * step) for k, weight in weights.items()) / 1e-3
    found = jax.jit(jax.hessian(of))(at)
    np.testing.assert_allclose(found, wanted, atol=1e-9)
    np.testing.assert_allclose(found, found.T, atol=1e-13)


@pytest.mark.parametrize("cell", CELLS)
def test_vmap_over_any_inputs_is_a_loop(cell: str, pytestconfig: pytest.Config) -> None:
    values, descriptor = make(cell)
    chosen = [*combinations(values, 1), *combinations(values, 2)]
    if not os.environ.get("ZSTATE_SOAK"):  # a few of them, others at every commit
        rng = np.random.default_rng(int(pytestconfig.option.hypothesis_seed))
        chosen = [chosen[k] for k in rng.choice(len(chosen), 4, replace=False)]

    def gradients(values: dict[str, Any]) -> Any:
        others = {name: value for name, value in values.items() if name != "mask"}
        function = with_mask(loss(cell, descriptor), values["mask"])
        return jax.value_and_grad(function)(others)

    one = jax.jit(gradients)
    for batched in [*chosen, tuple(values)]:
        several = {
            name: jnp.stack([value, value * 1.5], axis=1) if name in batched else value
            for name, value in values.items()
        }
        axes = {name: 1 if name in batched else None for name in values}
        found, found_gradients = jax.jit(jax.vmap(gradients, in_axes=(axes,)))(several)
        for k in range(2):
            own = {n: v[:, k] if n in batched else v for n, v in several.items()}
            wanted, alone = one(own)
            np.testing.assert_allclose(found[k], wanted, rtol=1e-12, err_msg=str(batched))
            assert_close({name: each[k] for name, each in found_gradients.items()}, alone)


@pytest.mark.parametrize(
    ("members", "steps", "batch"), [(2, 0, 3), (2, 3, 0), (0, 3, 2), (0, 0, 0)]
)
@pytest.mark.parametrize("own_weights", [False, True])
def test_vmap_without_members_steps_or_sequences(
    members: int, steps: int, batch: int, own_weights: bool
) -> None:
    x, h, m = jnp.ones((members, steps, batch, 5)), jnp.ones((members, batch, 4)), jnp.ones(4)
    W, R = jnp.ones((12, 5)), jnp.ones((members, 12, 4) if own_weights else (12, 4))

    def state(R: Any, x: Any, h: Any) -> Any:
        return zj.gru(x, R, input_weight=W, init_state=h, mask=m).state

    axes = (0 if own_weights else None, 0, 0)
    assert jax.vmap(state, axes)(R, x, h).shape == (members, steps, batch, 4)
    dR = jax.vmap(jax.grad(lambda *inputs: state(*inputs).sum()), axes)(R, x, h)
    assert dR.shape == (members, 12, 4)
    assert not dR.any() or (steps and batch)

    def derivative(R: Any, x: Any, h: Any) -> Any:
        return jax.jvp(lambda x: state(R, x, h), (x,), (x,))[1]

    assert jax.vmap(derivative, axes)(R, x, h).shape == (members, steps, batch, 4)


def test_without_jit() -> None:
    """jax.disable_jit is for looking into one's own functions: the operations stay compiled,
    whatever the cell."""
    cell = "lstm"
    values, descriptor = make(cell)
    function, plain = loss(cell, descriptor), plain_scan(cell, descriptor)
    wanted = jax.jit(jax.value_and_grad(plain))(values)
    with jax.disable_jit():
        found = jax.value_and_grad(jax.jit(function))(values)
        batched = jax.vmap(function)({name: value[None] for name, value in values.items()})
    np.testing.assert_allclose([found[0], batched[0]], wanted[0], rtol=1e-12)
    assert_close(found[1], wanted[1])


def test_where_promotion_is_forbidden() -> None:
    """A user's strict settings are for their own code."""
    made = {cell: make(cell) for cell in CELLS}

    def results(cell: str, values: dict[str, Any]) -> Any:
        descriptor = made[cell][1]
        second = jax.jvp(jax.grad(loss(cell, descriptor)), (values,), (values,))
        padded = getattr(zj, cell)(**values, descriptor=descriptor, lengths=[T, 1, 0])
        return second, padded, zj.last_states(padded.state, [T, 1, 0])

    def all_cells() -> Any:
        return [jax.jit(partial(results, cell))(values) for cell, (values, _) in made.items()]

    wanted = all_cells()
    jax.clear_caches()
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        found = all_cells()
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


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


@pytest.mark.parametrize("cell", CELLS)
def test_checkpoint_saves_nothing_and_changes_nothing(cell: str) -> None:
    values, descriptor = make(cell)
    del values["mask"]  # its gradient is composed of other operations
    function = loss(cell, descriptor)
    wanted = jax.jit(jax.grad(function))(values)
    again = jax.jit(jax.grad(jax.checkpoint(function)))
    for name, value in again(values).items():
        np.testing.assert_array_equal(value, wanted[name])
    nothing = jax.checkpoint_policies.nothing_saveable
    text = str(jax.make_jaxpr(jax.grad(jax.checkpoint(function, policy=nothing)))(values))
    assert text.count("zstate_forward[") == 2  # once more on the way back


def test_donated_buffers() -> None:
    """A step of training that gives its weights away gets the right ones back."""
    values, descriptor = make("lstm")
    function = with_mask(loss("lstm", descriptor), values.pop("mask"))

    def step(values: Any) -> Any:
        gradients = jax.grad(function)(values)
        return {name: value - 0.1 * gradients[name] for name, value in values.items()}

    wanted = jax.jit(step)(values)
    copies = {name: value + 0 for name, value in values.items()}
    found = jax.jit(step, donate_argnums=0)(copies)
    assert copies["recurrent_weight"].is_deleted()
    for name in values:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-13, atol=1e-15)


def test_exported_and_compiled_ahead_of_time() -> None:
    values, descriptor = make("lstm")
    function = with_mask(loss("lstm", descriptor), values.pop("mask"))
    function = jax.jit(jax.value_and_grad(function))
    wanted = function(values)
    targets = ("zstate_forward", "zstate_gradient")
    allowed = [jax.export.DisabledSafetyCheck.custom_call(target) for target in targets]
    exported = jax.export.export(function, disabled_checks=allowed)(values)
    again = jax.export.deserialize(exported.serialize())
    compiled = function.lower(values).compile()
    for found in (again.call(values), compiled(values)):
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-12)
        for name in values:
            np.testing.assert_allclose(found[1][name], wanted[1][name], rtol=1e-12, atol=1e-14)


RESTORED = """
import sys
import jax.export, numpy as np, zstate.jax
import zstate as zs
folder = sys.argv[1]
values = dict(np.load(f"{folder}/values.npz"))
restored = jax.export.deserialize(open(f"{folder}/program", "rb").read())
descriptor = zs.LSTMDescriptor(training=True, produce_cell=True)
there, back = restored.call(values)
wanted = zs.lstm(**values, descriptor=descriptor, backend="reference")
assert type(there) is type(wanted) and type(back).__name__ == "LSTMGradients"
for found, right in zip(there, wanted):
    np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)
fed = dict(source_gradient=wanted.state, z_state=wanted.training_state, cell_output_fwd=wanted.cell)
wanted = zs.lstm_gradients(**values, **fed, descriptor=descriptor, backend="reference")
for found, right in zip(back, wanted):
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)
"""


def test_named_tuples_are_exported_to_another_process(tmp_path: Path) -> None:
    values = {name: np.asarray(v, "f4") for name, v in make("lstm")[0].items()}
    descriptor = zs.LSTMDescriptor(training=True, produce_cell=True)

    @jax.jit
    def both(values: dict[str, Any]) -> Any:
        there = zj.lstm(**values, descriptor=descriptor)
        assert there.training_state is not None and there.cell is not None
        fed = {"z_state": there.training_state, "cell_output_fwd": there.cell}
        return there, zj.lstm_gradients(
            **values, **fed, source_gradient=there.state, descriptor=descriptor
        )

    targets = ("zstate_forward", "zstate_gradient")
    allowed = [jax.export.DisabledSafetyCheck.custom_call(target) for target in targets]
    exported = jax.export.export(both, disabled_checks=allowed)(values)
    (tmp_path / "program").write_bytes(exported.serialize())
    np.savez(tmp_path / "values.npz", **values)
    done = subprocess.run(
        [sys.executable, "-c", RESTORED, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_an_exported_program_has_its_derivative() -> None:
    values, descriptor = make("gru")
    function = jax.jit(with_mask(loss("gru", descriptor), values.pop("mask")))
    targets = ("zstate_forward", "zstate_gradient")
    allowed = [jax.export.DisabledSafetyCheck.custom_call(target) for target in targets]
    exported = jax.export.export(function, disabled_checks=allowed)(values)
    restored = jax.export.deserialize(exported.serialize(vjp_order=1))
    found, wanted = jax.grad(restored.call)(values), jax.grad(function)(values)
    for name in values:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-12, atol=1e-14)


def test_without_the_engine_an_export_needs_no_allowance() -> None:
    values, descriptor = make("gru")
    function = jax.jit(loss("gru", descriptor, "reference"))
    restored = jax.export.deserialize(jax.export.export(function)(values).serialize())
    np.testing.assert_allclose(restored.call(values), function(values), rtol=1e-12)


def test_symbolic_sizes_are_refused_in_words() -> None:
    shape = jax.export.symbolic_shape("t, 2, 8")
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    function = jax.jit(lambda x: zj.lstm(x, jnp.ones((8, 2), jnp.float32)).state)
    with pytest.raises(zs.ShapeError, match=r"\[lstm\] source: expected sizes .*, got \[t,2,8\]"):
        jax.export.export(function)(x)


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
    jitted(x, R, zs.LSTMDescriptor(forget_gate_last=False))
    assert traces == 2


@contextmanager
def compilations() -> Iterator[list[str]]:
    """The programs that XLA compiles meanwhile."""
    found: list[str] = []

    def listen(event: str, duration: float, **more: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


def test_a_call_without_jit_compiles_once() -> None:
    """Plain calls and their gradients: for equal descriptors there is one program each."""
    x, R = jnp.full((2, 1, 12), 0.3), jnp.full((12, 3), 0.1)

    def call(descriptor: Any) -> Any:
        return jax.grad(lambda R: zj.lstm(x, R, descriptor=descriptor).state.sum())(R)

    with compilations() as first:
        call(zs.LSTMDescriptor(forget_gate_last=True))
    with compilations() as again:
        for _ in range(2):
            call(zs.LSTMDescriptor(forget_gate_last=True))
    assert len(first) >= 2 and not again


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16])
def test_other_float_types_keep_theirs(dtype: Any) -> None:
    values, descriptor = make("gru")
    del values["mask"]
    function = jax.jit(jax.grad(lambda v: loss("gru", descriptor)(v).astype(jnp.float32)))
    cast = {name: value.astype(dtype) for name, value in values.items()}
    gradients = function(cast)
    exact = function({name: value.astype(jnp.float64) for name, value in cast.items()})
    bound = {jnp.float32: 1e-5, jnp.float16: 1e-2, jnp.bfloat16: 8e-2}[dtype]
    for name, value in gradients.items():
        assert value.dtype == dtype
        error = jnp.abs(value.astype(jnp.float64) - exact[name]).max()
        assert error <= bound * jnp.abs(exact[name]).max(), name


@needs_handlers
def test_no_copies_in_a_step_of_training() -> None:
    """The compiled program is two calls of the engine on its own arguments and results."""
    values, descriptor = make("lstm")
    del values["mask"]

    def function(values: Any, dy: Any) -> Any:
        state = zj.lstm(**values, descriptor=replace(descriptor, produce_cell=False)).state
        return (state * dy).sum()

    dy = jnp.ones((T, N, H))
    compiled = jax.jit(jax.grad(function)).lower(values, dy).compile()
    text = compiled.as_text()
    calls = [line for line in text.splitlines() if "custom-call(" in line]
    assert len(calls) == 2
    for line in calls:  # on the source as it came in
        assert re.search(r"custom-call\(%values__source__[.\d]*,", line)
    assert not re.search(r"= \S+ (copy|transpose|dynamic-slice|pad)\(", text)
    # All that is kept for the way back: h, c and z, and some bytes for alignment and tables.
    saved = 8 * T * N * (H + H + 4 * H)
    assert compiled.memory_analysis().temp_size_in_bytes <= saved + 1024


@needs_handlers
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.bfloat16])
@pytest.mark.parametrize("cell", CELLS)
def test_a_source_that_is_data_costs_no_gradient(cell: str, dtype: Any) -> None:
    """The engine leaves its product out, and the other gradients are the same to the bit."""
    values, descriptor = make(cell)
    values = {name: value.astype(dtype) for name, value in values.items()}
    x = values.pop("source")
    function = loss(cell, descriptor)
    mask = values.pop("mask")
    weights = jax.jit(jax.grad(lambda v, x: function({**v, "source": x, "mask": mask})))
    both = jax.jit(jax.grad(lambda v: function({**v, "mask": mask})))({**values, "source": x})
    compiled = weights.lower(values, x).compile()
    (line,) = (each for each in compiled.as_text().splitlines() if "zstate_gradient" in each)
    results = line.split("custom-call(")[0]
    assert results.count(f"[{T},{N},{I}]") == 0 and f"[{N},{H}]" in results
    for name, value in compiled(values, x).items():
        np.testing.assert_array_equal(value, both[name], err_msg=name)


@needs_handlers
def test_no_copy_of_the_source() -> None:
    """The compiled program needs no room beyond its arguments and results."""
    x, R = jnp.ones((64, 16, 128)), jnp.ones((128, 128)) * 0.01
    compiled = jax.jit(lambda x, R: zj.single_gate_rnn(x, R).state).lower(x, R).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 1024


@needs_handlers
def test_settings_reach_the_engine_in_the_handlers() -> None:
    library, before = ffi._load(), zs.get_num_threads()
    for number in (3, before):
        zs.set_num_threads(number)
        assert library.zstate_get_num_threads() == number


def test_a_call_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once as it comes, once with its training state, and once its gradients: not at every step
    of tracing, differentiating and lowering, and not at all for the next program."""
    checked = []
    check = layout._Checker.check
    monkeypatch.setattr(
        layout._Checker,
        "check",
        lambda self, tensors: checked.append(self.label) or check(self, tensors),
    )
    signature._checked.cache_clear()
    for times in (1, 0):
        values, descriptor = make("lstm")
        del values["mask"]  # whose gradient is composed
        jax.jit(jax.grad(loss("lstm", descriptor)))(values)
        assert sorted(checked) == ["lstm"] * 2 * times + ["lstm_gradients"] * times
        checked.clear()
