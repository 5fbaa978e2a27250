"""Copies: of a graph, of its tensors and of a program, by copy and by pickle."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import zstate as zs
from zstate.graph.ops import OPS

WAYS = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
}
X = np.random.default_rng(3).normal(size=(4, 2, 3)).astype(np.float32)


def learner() -> tuple[zs.Graph, dict[str, zs.Tensor]]:
    """A layer, its loss and one step of training, which has run once."""
    weight = np.random.default_rng(4).normal(0, 0.5, (3, 3)).astype(np.float32)
    g = zs.Graph()
    x = g.placeholder(shape=(None, 2, 3), name="x")
    R = g.variable(weight, name="R")
    (h,) = g.single_gate_rnn(x, recurrent_weight=R)
    loss = g.mean(g.square(h), name="loss")
    gradient = g.gradients(of=loss, with_respect_to=[R])[R]
    step = g.assign(R, g.stochastic_gradient_descent(0.1, R, gradient), name="step")
    g.run({x: X}, [loss])
    return g, {"x": x, "loss": loss, "step": step}


def trained(g: zs.Graph) -> list[float]:
    """The losses of three steps; the tensors are found by name."""
    named = {tensor.name: tensor for node in g.nodes for tensor in node.results}
    loss = named["loss"]
    return [g.run({named["x"]: X}, [loss], [named["step"]])[loss].item() for _ in range(3)]


@pytest.mark.parametrize("way", WAYS)
def test_a_graph(way: str) -> None:
    g, _ = learner()
    before = g.variables()["R"]
    again = WAYS[way](g)
    assert str(again) == str(g) and repr(again) == repr(g)
    losses = trained(again)
    assert losses[0] > losses[1] > losses[2]
    np.testing.assert_array_equal(g.variables()["R"], before)  # each has its own
    assert trained(g) == losses
    np.testing.assert_array_equal(g.variables()["R"], again.variables()["R"])
    first, second = g.placeholder(shape=()), again.placeholder(shape=())
    assert first.name == second.name  # both count on


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_tensors_come_with_their_graph(way: str) -> None:
    g, tensors = learner()
    again, by_name = WAYS[way]((g, tensors))
    assert all(tensor.graph is again for tensor in by_name.values())
    found = again.run({by_name["x"]: X}, [by_name["loss"]])[by_name["loss"]]
    assert found == g.run({tensors["x"]: X}, [tensors["loss"]])[tensors["loss"]]
    alone = WAYS[way](tensors["loss"])
    assert str(alone.graph) == str(g)


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_a_program(way: str) -> None:
    g, t = learner()
    program = g.compile({t["x"]: (X.shape, "float32")}, [t["loss"]], [t["step"]])
    program.run([X])
    again = WAYS[way](program)
    assert repr(again) == repr(program)
    losses = [again.run([X])[0].item() for _ in range(3)]
    assert losses == [program.run([X])[0].item() for _ in range(3)]
    assert losses[0] > losses[2]


@pytest.mark.parametrize("way", WAYS)
def test_a_long_graph(way: str) -> None:
    """Longer than Python's stack is deep."""
    g = zs.Graph()
    x = y = g.placeholder(shape=(), name="x")
    for _ in range(2000):
        y = g.negative(y)
    again = WAYS[way](g)
    end = again.nodes[-1].results[0]
    assert again.run({again.nodes[0].results[0]: np.float32([7]).reshape(())}, [end])[end] == 7
    assert g.run({x: np.float32([7]).reshape(())}, [y])[y] == 7


@pytest.mark.parametrize("way", WAYS)
def test_a_row_of_the_table_stays_the_same_one(way: str) -> None:
    same: Callable[[Any], Any] = WAYS[way]
    for row in OPS.values():
        assert same(row) is row
