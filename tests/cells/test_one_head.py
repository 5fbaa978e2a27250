"""A recurrent weight may have an axis for its one head; its gradient has the axis then."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import zstate as zs
from zstate import cells
from zstate.cells import MadeCell
from zstate.errors import EquationError, ShapeError

T, N, I, H = 4, 3, 2, 5
WAYS: list[dict[str, bool]] = [{}, {"reverse": True}, {"bidirectional": True}]
by_way = pytest.mark.parametrize("way", WAYS, ids=str)


@cells.cell(gates="z", steps="k")
def leaky(x: Any, R: Any, h: Any, k: Any) -> Any:
    return k * h + (1 - k) * cells.tanh(x.z + R.z @ h)


def drawn(gates: int, way: dict[str, bool]) -> tuple[dict[str, Any], Any]:
    """Inputs, and the recurrent weight with the axis."""
    rng = np.random.default_rng(gates)
    D = 2 if way.get("bidirectional") else 1
    given = {
        "source": rng.normal(size=(T, N, I)),
        "recurrent_weight": rng.normal(size=(D, gates * H, H)[2 - D :]),
        "input_weight": rng.normal(size=(D * gates * H, I)),
        "bias": rng.normal(size=D * gates * H),
    }
    return given, given["recurrent_weight"][..., None, :, :]


@pytest.mark.parametrize("backend", ["reference", "native", None])
@by_way
def test_built_in_operations_on_arrays(way: dict[str, bool], backend: str | None) -> None:
    given, blocks = drawn(4, way)
    given["resets"] = np.random.default_rng(0).random((T, N)) < 0.3
    options = {"descriptor": zs.LSTMDescriptor(training=True, **way), "backend": backend}
    results = []
    for weight in (given["recurrent_weight"], blocks):
        own = {**given, "recurrent_weight": weight}
        out = zs.lstm(**own, **options, heads=1)
        dh = np.cos(out.state)
        saved = {"z_state": out.training_state, "cell_output_fwd": out.cell}
        results.append((out, zs.lstm_gradients(**own, source_gradient=dh, **saved, **options)))
    for flat, block in zip(*results, strict=True):
        for name, value in flat._asdict().items():
            if value is not None:
                same = getattr(block, name)
                assert name != "recurrent_weight" or same.shape == blocks.shape
                np.testing.assert_array_equal(same.reshape(value.shape), value)


@pytest.mark.parametrize("cell", [cells.cifg, leaky], ids=repr)
@by_way
def test_cells_on_arrays_and_tensors(cell: MadeCell, way: dict[str, bool]) -> None:
    given, blocks = drawn(3 if cell is cells.cifg else 1, way)
    if cell is leaky:
        given["k"] = np.random.default_rng(1).uniform(size=(T, N, 1))
    wanted = cell(**given, **way, training=True)
    found = cell(**{**given, "recurrent_weight": blocks}, **way, training=True, heads=1)
    np.testing.assert_array_equal(found.h, wanted.h)
    both = [
        cell.gradients(
            **{**given, "recurrent_weight": R}, out=out, state_gradients={"h": out.h}, **way
        )
        for R, out in ((given["recurrent_weight"], wanted), (blocks, found))
    ]
    assert both[1].recurrent_weight.shape == blocks.shape
    np.testing.assert_array_equal(
        both[1].recurrent_weight.reshape(both[0].recurrent_weight.shape), both[0].recurrent_weight
    )
    tensors = {name: torch.tensor(value) for name, value in given.items()}
    R = torch.tensor(blocks, requires_grad=True)
    h = cell(**{**tensors, "recurrent_weight": R}, **way).h
    (h * h.detach()).sum().backward()
    assert R.grad is not None and R.grad.shape == blocks.shape
    np.testing.assert_allclose(R.grad.numpy(), both[1].recurrent_weight, rtol=1e-11, atol=1e-12)


@by_way
def test_jax(way: dict[str, bool]) -> None:
    jax = pytest.importorskip("jax")
    import zstate.jax as zj

    given, blocks = drawn(3, way)
    given = {name: value.astype(np.float32) for name, value in given.items()}
    blocks = blocks.astype(np.float32)
    options = zs.GRUDescriptor(**way)
    own = {name: value for name, value in given.items() if name != "recurrent_weight"}

    def loss(R: Any) -> Any:
        return (zj.gru(recurrent_weight=R, **own, descriptor=options).state ** 2).sum()

    wanted, flat = jax.value_and_grad(loss)(given["recurrent_weight"])
    found, block = jax.value_and_grad(loss)(blocks)
    assert block.shape == blocks.shape and float(found) == float(wanted)
    np.testing.assert_array_equal(np.asarray(block).reshape(flat.shape), np.asarray(flat))
    source = jax.numpy.asarray(own.pop("source"))
    state = zs.gru(source, blocks, **own, descriptor=options).state
    assert float((state**2).sum()) == float(wanted)
    lengths = np.array([2, 4, 1])
    some = [
        zj.gru(source, R, **own, descriptor=options, lengths=lengths).state
        for R in (given["recurrent_weight"], blocks)
    ]
    np.testing.assert_array_equal(*map(np.asarray, some))


@by_way
def test_graph(way: dict[str, bool]) -> None:
    given, blocks = drawn(3, way)
    results = []
    for weight in (given["recurrent_weight"], blocks):
        g = zs.Graph()
        own = {name: g.constant(value) for name, value in given.items()}
        R = own["recurrent_weight"] = g.variable(weight)
        h, _ = g.recurrent(cells.cifg, **own, **way)
        gradient = g.gradients(g.reduction_sum(h * h), [R])[R]
        options = zs.GRUDescriptor(training=True, **way)
        state, z = g.gru(**own, descriptor=options)
        by_hand = g.gru_gradients(
            **own, source_gradient=state, z_state=z, output_fwd=state, descriptor=options
        )
        assert by_hand[1].shape == weight.shape == gradient.shape
        targets = [h, gradient, *by_hand]
        found = g.run({}, targets)
        results.append([found[target] for target in targets])
    for flat, block in zip(*results, strict=True):
        np.testing.assert_array_equal(block.reshape(flat.shape), flat)


def test_other_shapes_are_refused_as_before() -> None:
    given, blocks = drawn(4, {})
    for weight in (np.concatenate([blocks] * 2), blocks[None], blocks[:, :-1]):
        got = re.escape(str(list(weight.shape)).replace(" ", ""))
        message = rf"\[lstm\] recurrent_weight: expected \[4H,H\] = \[20,5\], got {got}"
        with pytest.raises(ShapeError, match=message):
            zs.lstm(**{**given, "recurrent_weight": weight})


def test_a_value_per_step_with_the_name_of_a_gate() -> None:
    message = r"\[a\] steps: 'z' is already the name of a gate"
    with pytest.raises(EquationError, match=message):

        @cells.cell(gates="f z", steps="z")
        def a(x: Any, R: Any, h: Any, z: Any) -> Any:
            return x.f + R.f @ h + z
