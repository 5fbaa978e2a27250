"""zstate.jax on a GPU: the CUDA engine inside XLA programs, against the oracle in float64."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the tests share the device

import ml_dtypes
import numpy as np
import pytest

import zstate as zs
from zstate import verify
from zstate.operations import OPERATIONS

jax = pytest.importorskip("jax")
if jax.default_backend() != "gpu":
    pytest.skip("JAX sees no GPU", allow_module_level=True)

import jax.numpy as jnp  # noqa: E402

import zstate.jax as zj  # noqa: E402
from zstate.jax import cuda  # noqa: E402

assert cuda.unavailable() is None, cuda.unavailable()

# JAX's type, its precision of products, and the bound of `zstate check`, or of TF32.
TYPES = {
    "float32": (np.float32, "highest", 1e-5),
    "tf32": (np.float32, "default", 5e-3),
    "bfloat16": (ml_dtypes.bfloat16, "default", 4e-2),
    "float16": (np.float16, "default", 5e-3),
}
# A group of blocks, a cluster, and a grid whose weight partly comes from L2.
LARGE = [
    verify.Case("cluster", zs.LSTMDescriptor(training=True), sizes=(6, 24, 40, 256)),
    verify.Case("clusters", zs.GRUDescriptor(training=True, reset_after=True, bidirectional=True),
                sizes=(5, 70, 64, 320)),
    verify.Case("grid", zs.LSTMDescriptor(training=True), sizes=(4, 40, 64, 1000)),
    verify.Case("wide grid", zs.GRUDescriptor(training=True), sizes=(3, 20, 64, 1537)),
    verify.Case("rnn", zs.SingleGateRNNDescriptor(training=True, reverse=True),
                sizes=(9, 3, 30, 77)),
]  # fmt: skip
CASES = [case for cases in verify.CASES.values() for case in cases] + LARGE


def as_jax(array: Any) -> Any:
    return jnp.asarray(array)


def jitted(operation: Any, descriptor: Any, precision: str, values: dict[str, Any]) -> Any:
    """The results by name, and the text of the program."""

    def function(values: dict[str, Any]) -> Any:
        return getattr(zj, operation.name)(**values, descriptor=descriptor)

    with jax.default_matmul_precision(precision):
        lowered = jax.jit(function).lower(values)
    results = lowered.compile()(values)
    assert "zstate_launch" in lowered.as_text()
    return {n: np.asarray(v) for n, v in results._asdict().items() if v is not None}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{verify.cell_name(c.descriptor)} {c.title}")
def test_calls(case: verify.Case, kind: str) -> None:
    dtype, precision, bound = TYPES[kind]
    name = verify.cell_name(case.descriptor)
    forward, gradient = OPERATIONS[name], OPERATIONS[f"{name}_gradients"]
    rounded = {n: a.astype(dtype) for n, a in verify.make_inputs(case, 5).items()}
    given = {n: as_jax(a) for n, a in rounded.items()}
    there = jitted(forward, case.descriptor, precision,
                   {n: v for n, v in given.items() if n in forward.inputs})  # fmt: skip
    fed = {n: there[r] for n, r in gradient.cell.fed_back.items()}
    back = jitted(
        gradient, case.descriptor, precision, given | {n: as_jax(v) for n, v in fed.items()}
    )
    exact = {n: a.astype(np.float64) for n, a in rounded.items()}
    wide = {n: v.astype(np.float64) for n, v in there.items()}
    wanted = verify.run_forward(case, exact, "reference")
    wanted_back = verify.run_backward(case, exact, wide, "reference")
    for found, oracle in ((there, wanted), (back, wanted_back)):
        assert found.keys() == oracle.keys()
        for result, value in oracle.items():
            assert verify.relative_error(found[result], value) < bound, result


def lstm_inputs(T: int = 12, N: int = 8, H: int = 64) -> dict[str, Any]:
    rng = np.random.default_rng(2)
    shapes = {"source": (T, N, 16), "recurrent_weight": (4 * H, H), "input_weight": (4 * H, 16),
              "bias": (4 * H,), "init_state": (N, H), "init_cell": (N, H)}  # fmt: skip
    return {n: jnp.asarray(rng.normal(size=s) * 0.2, jnp.float32) for n, s in shapes.items()}


def loss(values: dict[str, Any], **more: Any) -> Any:
    found = zj.lstm(**values, **more)
    return jnp.sum(jnp.sin(found.state) * jnp.arange(found.state.size).reshape(found.state.shape))


def close(found: Any, wanted: Any, bound: float = 2e-5) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert verify.relative_error(np.asarray(one), np.asarray(other)) < bound


def test_transformations() -> None:
    """grad, vmap, scan around it, remat: each against plain JAX operations in full precision."""
    values = lstm_inputs()
    with jax.default_matmul_precision("highest"):
        plain = jax.jit(jax.grad(lambda v: loss(v, backend="reference")))(values)
        close(jax.jit(jax.grad(loss))(values), plain)
        close(jax.jit(jax.grad(jax.checkpoint(loss)))(values), plain)
        close(jax.grad(loss)(values), plain)  # operation by operation
        many = {n: jnp.stack([v, 0.5 * v, -v]) for n, v in values.items()}
        for name in values:
            axes = {n: 0 if n == name else None for n in values}
            mixed = {n: many[n] if n == name else values[n] for n in values}
            found = jax.jit(jax.vmap(jax.grad(loss), in_axes=(axes,)))(mixed)
            wanted = [jax.grad(loss)({**values, name: each}) for each in many[name]]
            close(found, jax.tree.map(lambda *each: jnp.stack(each), *wanted))


def test_lengths() -> None:
    values, lengths = lstm_inputs(), np.array([12, 1, 5, 7, 12, 3, 2, 9])
    with jax.default_matmul_precision("highest"):
        found = jax.jit(lambda v, n: zj.lstm(**v, lengths=n))(values, lengths)
        wanted = zj.lstm(**values, lengths=lengths, backend="reference")
    close([each for each in found if each is not None], [e for e in wanted if e is not None])


@pytest.mark.parametrize("hidden", [64, 1000])
def test_many_calls_in_one_program(hidden: int) -> None:
    """As a command buffer (a CUDA graph) where XLA makes one: many runs, always the same bits."""
    values = lstm_inputs(H=hidden)

    @jax.jit
    def stacked(values: dict[str, Any]) -> Any:
        state = zj.lstm(**values).state
        for _ in range(6):
            again = {**values, "source": state[:, :, :16]}
            state = zj.lstm(**again).state
        return state

    first = np.asarray(stacked(values))
    wanted = values
    with jax.default_matmul_precision("highest"):
        for _ in range(7):
            state = zj.lstm(**wanted, backend="reference").state
            wanted = {**values, "source": state[:, :, :16]}
    assert verify.relative_error(first, np.asarray(state)) < 5e-3
    for _ in range(50):
        assert np.array_equal(np.asarray(stacked(values)), first)


def test_exported_and_loaded() -> None:
    values = lstm_inputs()
    allowed = [jax.export.DisabledSafetyCheck.custom_call("zstate_launch")]
    exported = jax.export.export(jax.jit(loss), disabled_checks=allowed)(values)
    again = jax.export.deserialize(bytes(exported.serialize()))
    close(again.call(values), jax.jit(loss)(values), 1e-6)


def test_nothing_of_torch_is_needed() -> None:
    import subprocess
    import sys

    code = (
        "import sys, jax, jax.numpy as jnp, zstate.jax as zj\n"
        "sys.modules['torch'] = None\n"
        "x = jnp.ones((3, 2, 8)); r = jnp.ones((8, 8)) * 0.1\n"
        "print(float(jax.jit(lambda x: zj.single_gate_rnn(x, r, backend='cuda').state.sum())(x)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=200
    )
    assert found.returncode == 0, found.stderr
