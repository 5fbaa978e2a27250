"""Random calls on jax arrays against the float64 reference.

Options × types × jit × which gradients × lengths.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zstate as zs
import zstate.jax as zj
from tests.native import random_calls
from tests.native.random_calls import Draw, on_reference
from zstate import verify
from zstate.backends import native
from zstate.cli import check
from zstate.heads import diagonal
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
    whole[inside(d)] = packed
    return whole


def inside(d: Draw) -> np.ndarray[Any, Any]:
    """[T,N]: where a sequence has a step."""
    T, N = d.size[:2]
    return np.arange(T)[:, None] < np.array(d.lengths or [T] * N)


def test_random_calls(pytestconfig: pytest.Config) -> None:
    """Forward, the gradient operation, and derivatives of some of the inputs."""
    rng = np.random.default_rng(int(pytestconfig.option.hypothesis_seed))
    makes_dx = set()
    for number in range(CALLS):
        if number % 40 == 39:
            jax.clear_caches()  # every call has programs of its own
        d = random_calls.draw(rng, SIZES, ["small", "small", "one step"][number % 3], 0.0)
        forward, gradient = random_calls._BOUNDS[d.dtype]
        inputs = random_calls.make_inputs(rng, d)
        jitted = number % 8 != 0  # as a whole it compiles faster than operation by operation
        more = {"lengths": np.array(d.lengths)} if d.lengths else {}
        # NaN in the padding must not reach any result.
        whole = inputs | ({"source": padded(d, inputs["source"])} if d.lengths else {})
        results = call(d, d.operation, whole, jitted, **more)
        compare(d, results, on_reference(d, d.operation, inputs), forward)
        if number % 2:
            makes_dx.add(check_derivatives(rng, d, inputs, whole, more, gradient))
        elif d.descriptor.training and not d.lengths:
            operation = OPERATIONS[f"{d.operation.name}_gradients"]
            back = inputs | {n: np.asarray(results[r]) for n, r in operation.cell.fed_back.items()}
            shape = results["state"].shape
            back["source_gradient"] = random_calls._array(rng, shape, d.dtype, 0.6)
            back["state_gradient"] = random_calls._array(rng, shape[1:], d.dtype, 0.6)
            back = {name: back[name] for name in operation.inputs if name in back}
            found = call(d, operation, back, jitted)
            compare(d, found, on_reference(d, operation, back), gradient)
    if zj.unavailable() is None:
        assert makes_dx >= {True, False}


def compare(d: Draw, found: dict[str, Any], wanted: dict[str, Any], bound: float) -> None:
    """The reference has the rows of sequences of different lengths, and zstate.jax zeros beyond."""
    if d.lengths:
        rows = {name for name, value in wanted.items() if value.shape[:1] == (sum(d.lengths),)}
        rows &= random_calls.by_step(d.operation.cell)
        wanted = {n: np.nan_to_num(padded(d, v)) if n in rows else v for n, v in wanted.items()}
    random_calls.compare(d, found, wanted, bound)


def check_derivatives(
    rng: Any, d: Draw, inputs: Any, whole: Any, more: dict[str, Any], bound: float
) -> bool | None:
    """jax.vjp with respect to some of the inputs against the reference's gradient operation.

    That gets what zstate.jax saves, so that both differentiate the same. Returns whether the engine
    computed dx, which it leaves out where nobody asks; None where the engine was not called.
    """
    names = [name for name in inputs if name not in ("mask", "resets")]
    moved = {name for name in names if rng.random() < 0.5} or {str(rng.choice(names))}
    trained = replace(d, descriptor=replace(d.descriptor, training=True))
    saved = call(trained, d.operation, whole, True, **more)
    kinds = {"source_gradient": "state"}
    if d.operation.name == "lstm" and (d.descriptor.produce_cell or d.descriptor.training):
        kinds["cell_gradient"] = "cell"
    incoming = {
        name: random_calls._array(rng, saved[result].shape, d.dtype, 0.6)
        for name, result in kinds.items()
    }
    for value in incoming.values():
        value[~inside(d)] = np.nan
    function = getattr(zj, d.operation.name)

    @jax.jit
    def gradients(values: Any, moving: Any, incoming: Any) -> Any:
        def run(moving: Any) -> Any:
            results = function(**values, **moving, descriptor=d.descriptor, **more)
            return {name: getattr(results, result) for name, result in kinds.items()}

        return jax.vjp(run, moving)[1](incoming)[0]

    values = {name: jnp.asarray(value) for name, value in whole.items()}
    still = {name: value for name, value in values.items() if name not in moved}
    moving = {name: values[name] for name in moved}
    arrays = {name: jnp.asarray(value) for name, value in incoming.items()}
    found = gradients(still, moving, arrays)
    operation = OPERATIONS[f"{d.operation.name}_gradients"]
    back = {name: saved[result] for name, result in operation.cell.fed_back.items()} | incoming
    if d.lengths:
        back = {name: np.asarray(value)[inside(d)] for name, value in back.items()}
    back = inputs | back
    back = {name: back[name] for name in operation.inputs if name in back}
    wanted = on_reference(trained, operation, back)
    compare(d, found, {name: wanted[name] for name in moved}, bound)
    program = gradients.lower(still, moving, arrays).as_text()
    made = re.search(r'@zstate_gradient\(.*results = "([^"]*)"', program)
    if made is None:
        return None
    makes_dx = "source" in made[1].split()
    heads, cell = d.descriptor.heads, d.operation.cell
    if heads > 1 and (heads < d.size[3] or diagonal(cell) is None):
        return None  # one call per head, whose source is that head's gates
    assert makes_dx == ("source" in moved or "input_weight" not in inputs)
    return makes_dx


@pytest.mark.parametrize("cell", verify.CASES)
def test_the_cases_of_zstate_check(cell: str, pytestconfig: pytest.Config) -> None:
    """All options, jitted; in one float type each, another at the next commit."""
    seed = int(pytestconfig.option.hypothesis_seed)
    for number, case in enumerate(verify.CASES[cell]):
        kinds = verify.FLOAT_TYPES[:]
        if not os.environ.get("ZSTATE_SOAK"):
            kinds = [kinds[(seed + number) % len(kinds)]]
        for kind in kinds:
            error = verify.worst_error(case, "jax", kind, seed % 1000)
            assert error <= check._BOUNDS[kind], (case.title, kind)


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
    tables = native._TABLES
    assert tables is not None
    opcodes = {name: k for name, k in tables.opcodes.items() if "tanh" not in name}
    monkeypatch.setattr(native, "_TABLES", replace(tables, opcodes=opcodes))
    x, R = jnp.full((2, 1, 12), 0.3), jnp.full((12, 3), 0.2)
    wanted = zs.lstm(np.asarray(x), np.asarray(R), backend="reference").state
    np.testing.assert_allclose(zj.lstm(x, R).state, wanted, rtol=1e-13)
    if zj.unavailable() is None:
        with pytest.raises(zs.BackendError, match="it has no function 'add_tanh'"):
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


@pytest.mark.parametrize("make", [list, tuple, np.array, jnp.array])
def test_lengths_that_are_known_are_checked_inside_jit(make: Any) -> None:
    x, R = jnp.ones((4, 2, 3)), 0.2 * jnp.eye(3)
    for wrong in (5, -1):
        given = make([4, wrong])

        def states(x: Any, given: Any = given) -> Any:
            return zj.single_gate_rnn(x, R, lengths=given).state

        def last(x: Any, given: Any = given) -> Any:
            return zj.last_states(x, given)

        for function in (states, jax.jit(states), last, jax.jit(last)):
            with pytest.raises(zs.ShapeError, match=f"numbers from 0 to T = 4, got {wrong}"):
                function(x)
    right = make([4, 1])
    found = jax.jit(lambda x: zj.single_gate_rnn(x, R, lengths=right).state)(x)
    np.testing.assert_array_equal(found, zj.single_gate_rnn(x, R, lengths=right).state)
    assert found[:, 0].all() and found[0].all() and not found[1:, 1].any()


def test_lengths_that_are_traced_are_clipped() -> None:
    x, R = jnp.ones((300, 3, 3)), 0.2 * jnp.eye(3)
    function = jax.jit(lambda x, lengths: zj.single_gate_rnn(x, R, lengths=lengths).state)
    wanted = function(x, jnp.array([300, 0, 7]))
    np.testing.assert_array_equal(function(x, jnp.array([1000, -4, 7])), wanted)
    small = function(x, jnp.array([100, -4, 7], jnp.int8))  # T is beyond its type
    assert small[99, 0].all() and not small[100:, 0].any() and not small[:, 1].any()


def test_last_states_without_steps() -> None:
    states = jnp.zeros((0, 3, 4))
    assert zj.last_states(states, [0, 0, 0]).shape == (3, 4)


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


def test_calls_from_several_threads() -> None:
    """The engine's team serves one of them at a time, and the others compute alone."""
    rng = np.random.default_rng(1)
    R = jnp.asarray(rng.standard_normal((256, 64)) * 0.1)
    sources = [jnp.asarray(rng.standard_normal((20, 8, 256))) for _ in range(4)]
    function = jax.jit(jax.value_and_grad(lambda x: (zj.lstm(x, R).state ** 2).sum()))
    wanted = [jax.tree.map(np.asarray, function(x)) for x in sources]

    def repeat(number: int) -> None:
        for _ in range(10):
            value, gradient = function(sources[number])
            assert value == wanted[number][0]
            np.testing.assert_array_equal(gradient, wanted[number][1])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(repeat, range(4)))


WITHOUT_HANDLERS = """
import ctypes, warnings
right = ctypes.CDLL
def missing(path, *rest, **more):
    if path and "zstate_xla" in path:
        raise OSError("no such file")
    return right(path, *rest, **more)
ctypes.CDLL = missing
import jax, jax.numpy as jnp, numpy as np, zstate as zs
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    import zstate.jax as zj
assert [each.category for each in found] == [zs.SlowBackendWarning], found
assert "built without its XLA handlers" in str(found[0].message)
assert "no such file" in zj.unavailable()
x, R = np.full((2, 1, 12), 0.3, "f4"), np.full((12, 3), 0.2, "f4")
found = jax.jit(lambda x, R: zj.lstm(x, R).state)(x, R)
np.testing.assert_allclose(found, zs.lstm(x, R).state, rtol=1e-6)
try:
    zj.lstm(jnp.asarray(x), R, backend="native")
except zs.BackendError as error:
    assert "built without its XLA handlers" in str(error)
else:
    raise AssertionError("no refusal")
"""


def test_without_the_handlers_it_warns_and_computes() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_HANDLERS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
