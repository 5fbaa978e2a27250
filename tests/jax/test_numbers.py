"""Random calls on jax arrays against the float64 reference: options × types × jit × lengths."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zstate as zs
import zstate.jax as zj
from tests.native import random_calls
from tests.native.random_calls import Draw, on_reference
from zstate.backends import native
from zstate.operations import OPERATIONS

# Most of the time goes into compiling: `make soak` makes many more.
CALLS = 40 * int(os.environ.get("ZSTATE_SOAK", "1"))
SIZES = {
    "small": ((1, 8), (1, 6), (1, 9), (1, 20)),
    "one step": ((1, 1), (1, 4), (1, 9), (1, 20)),
    "no sequence": ((0, 2), (0, 1), (1, 3), (1, 5)),
}


def call(d: Draw, operation: Any, inputs: dict[str, Any], jitted: bool, **more: Any) -> Any:
    function = getattr(zj, operation.name)

    def run(values: dict[str, Any]) -> Any:
        return function(**values, descriptor=d.descriptor, **more)

    values = {name: jnp.asarray(value) for name, value in inputs.items()}
    results = (jax.jit(run) if jitted else run)(values)
    return {name: value for name, value in results._asdict().items() if value is not None}


def padded(d: Draw, packed: Any) -> np.ndarray[Any, Any]:
    """[T,N,X] from the rows of sequences of different lengths; NaN where there is no step."""
    whole = np.full((d.size[0], d.size[1], packed.shape[-1]), np.nan, packed.dtype)
    row = 0
    for t in range(d.size[0]):
        count = sum(length > t for length in d.lengths)
        whole[t, :count] = packed[row : row + count]
        row += count
    return whole


def test_random_calls(pytestconfig: pytest.Config) -> None:
    rng = np.random.default_rng(int(pytestconfig.option.hypothesis_seed))
    for number in range(CALLS):
        d = random_calls.draw(rng, SIZES, ["small", "small", "one step"][number % 3])
        forward, gradient = random_calls._BOUNDS[d.dtype]
        inputs = random_calls.make_inputs(rng, d)
        jitted = number % 8 != 0  # as a whole it compiles faster than operation by operation
        if d.lengths:
            check_lengths(d, inputs, forward)
            continue
        results = call(d, d.operation, inputs, jitted)
        random_calls.compare(d, results, on_reference(d, d.operation, inputs), forward)
        if not d.descriptor.training:
            continue
        operation = OPERATIONS[f"{d.operation.name}_gradients"]
        back = inputs | {n: np.asarray(results[r]) for n, r in operation.cell.fed_back.items()}
        shape = results["state"].shape
        back["source_gradient"] = random_calls._array(rng, shape, d.dtype, 0.6)
        back["state_gradient"] = random_calls._array(rng, shape[1:], d.dtype, 0.6)
        back = {name: back[name] for name in operation.inputs if name in back}
        found = call(d, operation, back, jitted)
        random_calls.compare(d, found, on_reference(d, operation, back), gradient)


def check_lengths(d: Draw, inputs: dict[str, Any], bound: float) -> None:
    """NaN in the padding must not reach any result."""
    wanted = on_reference(d, d.operation, inputs)
    whole = inputs | {"source": padded(d, inputs["source"])}
    results = call(d, d.operation, whole, True, lengths=np.array(d.lengths))
    assert results.keys() == wanted.keys()
    for name, value in results.items():
        expected = np.nan_to_num(padded(d, wanted[name]))
        error = np.abs(np.asarray(value, np.float64) - expected).max()
        assert error <= bound * max(np.abs(expected).max(), 1e-3), (name, d)


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("batch", [0, 2])
def test_empty_sizes(steps: int, batch: int) -> None:
    x, R, h0 = jnp.ones((steps, batch, 8)), jnp.ones((8, 2)), jnp.full((batch, 2), 0.5)
    found = zj.lstm(x, R, init_state=h0, descriptor=zs.LSTMDescriptor(training=True))
    wanted = zs.lstm(
        *map(np.asarray, (x, R)),
        init_state=np.asarray(h0),
        descriptor=zs.LSTMDescriptor(training=True),
        backend="reference",
    )
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-13)


def test_the_functional_interface_takes_jax_arrays() -> None:
    x, R = jnp.ones((2, 1, 3)), jnp.eye(3) * 0.5
    found = zs.single_gate_rnn(x, R)
    assert isinstance(found.state, jax.Array) and found.training_state is None
    np.testing.assert_array_equal(found.state, zj.single_gate_rnn(x, R).state)
    assert isinstance(jax.jit(lambda x: zs.single_gate_rnn(x, R).state)(x), jax.Array)


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_named_backends(backend: str) -> None:
    if backend == "native" and zj.unavailable() is not None:
        pytest.skip("built without the XLA handlers")
    x, R = jnp.ones((2, 1, 3)), jnp.eye(3) * 0.5
    np.testing.assert_allclose(zj.single_gate_rnn(x, R, backend=backend).state[-1], 1.5)


def test_a_cell_that_the_engine_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Composed of JAX's operations; the engine by name refuses it in words."""
    monkeypatch.setattr(native, "CELLS", ("rnn",))
    x, R = jnp.full((2, 1, 12), 0.3), jnp.full((12, 3), 0.2)
    wanted = zs.lstm(np.asarray(x), np.asarray(R), backend="reference").state
    np.testing.assert_allclose(zj.lstm(x, R).state, wanted, rtol=1e-13)
    if zj.unavailable() is None:
        with pytest.raises(zs.BackendError, match="it has no cell 'lstm'"):
            zj.lstm(x, R, backend="native")


def test_refusals_come_while_tracing_in_the_same_words() -> None:
    x, R = jnp.ones((2, 1, 3)), jnp.eye(4)
    with pytest.raises(zs.ShapeError) as on_jax:
        jax.jit(lambda x, R: zj.single_gate_rnn(x, R).state)(x, R)
    with pytest.raises(zs.ShapeError) as on_numpy:
        zs.single_gate_rnn(np.asarray(x), np.asarray(R))
    assert str(on_jax.value) == str(on_numpy.value)
    with pytest.raises(zs.BackendError, match="cuda"):
        zj.single_gate_rnn(x, jnp.eye(3), backend="cuda")
    with pytest.raises(zs.DTypeError, match="recurrent_weight"):
        zj.single_gate_rnn(x, [[1.0]])
    with pytest.raises(zs.ShapeError, match=r"lengths: expected \[N\] = \[1\], got \[2\]"):
        zj.single_gate_rnn(x, jnp.eye(3), lengths=jnp.array([1, 2]))
    with pytest.raises(zs.ShapeError, match="lengths: expected numbers from 0 to T = 2, got 3"):
        zj.single_gate_rnn(x, jnp.eye(3), lengths=jnp.array([3]))
    with pytest.raises(zs.DTypeError, match="lengths"):
        zj.single_gate_rnn(x, jnp.eye(3), lengths=jnp.array([1.0]))


@pytest.mark.parametrize("both", [False, True])
def test_last_states(both: bool) -> None:
    rng = np.random.default_rng(0)
    D = 1 + both
    x, R = (
        rng.standard_normal((5, 4, 3)),
        rng.standard_normal((D, 4, 4))[0 if not both else slice(None)],
    )
    W, lengths = rng.standard_normal((D * 4, 3)), np.array([5, 2, 0, 1])
    descriptor = zs.SingleGateRNNDescriptor(bidirectional=both, activation=zs.Activation.TANH)
    states = zj.single_gate_rnn(
        jnp.asarray(x), R, input_weight=W, descriptor=descriptor, lengths=lengths
    ).state
    found = zj.last_states(states, jnp.asarray(lengths), D)
    for n, length in enumerate(lengths):
        if not length:
            assert not found[n].any()
            continue
        alone = zs.single_gate_rnn(
            np.ascontiguousarray(x[:length, n : n + 1]), R, input_weight=W, descriptor=descriptor
        ).state[:, 0]
        np.testing.assert_allclose(found[n, :4], alone[-1, :4], rtol=1e-12)
        if both:
            np.testing.assert_allclose(found[n, 4:], alone[0, 4:], rtol=1e-12)
