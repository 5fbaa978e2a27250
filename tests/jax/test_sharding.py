"""A batch split over four devices: no gathering, and the gradients of weights are summed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import zstate.jax as zj

from .test_transforms import CELLS, loss, make, plain_scan

if len(jax.devices()) < 4:
    pytest.skip("needs four devices", allow_module_level=True)
SPLIT = {"source": 1, "init_state": 0, "init_cell": 0, "mask": 1}


def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()[:4]), ("data",))


def spec(name: str) -> P:
    return P(*(None,) * SPLIT[name], "data") if name in SPLIT else P()


def spread(values: dict[str, Any]) -> dict[str, Any]:
    return {n: jax.device_put(v, NamedSharding(mesh(), spec(n))) for n, v in values.items()}


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_jit_runs_per_shard(cell: str, both: bool) -> None:
    values, descriptor = make(cell, both, batch=8)
    if both:
        del values["mask"]  # its gradient is composed of other operations
    function = jax.value_and_grad(loss(cell, descriptor))
    wanted = jax.jit(function)(values)
    compiled = jax.jit(function).lower(spread(values)).compile()
    found = compiled(spread(values))
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-12)
    for name in values:
        np.testing.assert_allclose(found[1][name], wanted[1][name], rtol=1e-11, atol=1e-13)
    if zj.unavailable() is None and "mask" not in values:
        assert "all-gather" not in compiled.as_text()


def test_the_source_is_not_gathered() -> None:
    if zj.unavailable() is not None:
        pytest.skip("built without the XLA handlers")
    values, descriptor = make("lstm", batch=8)
    del values["mask"]  # its gradient is composed of other operations
    function = jax.value_and_grad(loss("lstm", descriptor))
    text = jax.jit(function).lower(spread(values)).compile().as_text()
    assert "zstate_forward" in text and "zstate_gradient" in text
    assert "all-gather" not in text and "all-reduce" in text


@pytest.mark.parametrize("cell", CELLS)
def test_shard_map(cell: str) -> None:
    values, descriptor = make(cell, batch=8)
    if cell != "lstm":
        del values["mask"]
    specs = {name: spec(name) for name in values}

    def total(values: dict[str, Any]) -> Any:
        def own(values: dict[str, Any]) -> Any:
            return jax.lax.psum(loss(cell, descriptor)(values), "data")

        return jax.shard_map(own, mesh=mesh(), in_specs=(specs,), out_specs=P())(values)

    wanted = jax.jit(jax.value_and_grad(loss(cell, descriptor)))(values)
    found = jax.jit(jax.value_and_grad(total))(values)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-12)
    for name in values:
        np.testing.assert_allclose(found[1][name], wanted[1][name], rtol=1e-11, atol=1e-13)


def test_lengths_are_split_too() -> None:
    values, descriptor = make("gru", both=True, batch=8)
    lengths = jnp.array([5, 1, 0, 3, 2, 5, 4, 1])

    def run(values: dict[str, Any], lengths: Any) -> Any:
        return zj.gru(**values, descriptor=descriptor, lengths=lengths).state

    wanted = run(values, lengths)
    split = jax.device_put(lengths, NamedSharding(mesh(), P("data")))
    np.testing.assert_allclose(jax.jit(run)(spread(values), split), wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("cell", CELLS)
def test_explicit_mesh(cell: str) -> None:
    """The kind that jax.make_mesh makes: splits are parts of types, which JAX checks."""
    values, descriptor = make(cell, batch=8)
    explicit = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    own = {n: jax.device_put(v, NamedSharding(explicit, spec(n))) for n, v in values.items()}

    splits: list[Any] = []

    def states(values: dict[str, Any]) -> Any:
        found = getattr(zj, cell)(**values, descriptor=descriptor).state
        types = jax.typeof(found), jax.typeof(values["source"])
        splits.append([each.sharding.spec[1] for each in types])
        return found

    def steep(values: dict[str, Any], backend: str | None) -> Any:
        """A derivative of the gradients, the mask's among them."""
        function = jax.value_and_grad(loss(cell, descriptor, backend))
        return jax.jvp(function, (values,), (values,))

    def stacked(values: dict[str, Any]) -> Any:
        return jax.vmap(lambda by: states({**values, "source": by * values["source"]}))(
            jnp.array([1.0, 0.5])
        )

    plain = plain_scan(cell, descriptor)
    wanted = jax.jvp(jax.value_and_grad(plain), (values,), (values,))
    each = [np.asarray(states({**values, "source": by * values["source"]})) for by in (1.0, 0.5)]
    with jax.set_mesh(explicit):
        np.testing.assert_allclose(jax.jit(states)(own), each[0], rtol=1e-12)
        np.testing.assert_allclose(jax.jit(stacked)(own), np.stack(each), rtol=1e-12)
        assert splits == 2 * [[None, None]] + 2 * [["data", "data"]]
        for backend in (None, "reference") if cell == "lstm" else (None,):
            found = jax.jit(lambda v, b=backend: steep(v, b))(own)
            for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
                np.testing.assert_allclose(np.asarray(a), b, rtol=1e-10, atol=1e-11)
