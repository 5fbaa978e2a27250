"""Sizes that are open when a model is loaded: computed shapes, their gradients, and files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import zstate as zs
import zstate.onnx as zo
from tests.onnx.common import close, runtime
from zstate.graph.ops.sized import size_of
from zstate.types import Array

HEAD = '<ir_version: 8, opset_import: ["": 17]> m '
# x [A,B,4] to [B,2·A,2] and on, by arithmetic on its shape.
RESHAPED = (
    HEAD
    + """(float[A, B, 4] x) => (float[C, D, 2] y, float[D, E] z, int64[N] places)
<int64 zero = {0}, int64 one = {1}, int64[1] axis = {0}, int64[1] two = {2}>
{
    shape = Shape(x)
    a0 = Gather(shape, zero)      b0 = Gather(shape, one)
    a = Unsqueeze(a0, axis)       b = Unsqueeze(b0, axis)
    twice = Mul(a, two)
    wanted = Concat <axis = 0> (b, twice, two)
    y = Reshape(x, wanted)
    all = Mul(a0, b0)
    whole = Unsqueeze(all, axis)
    rows = Concat <axis = 0> (b, whole)
    zeros = ConstantOfShape(rows)
    flat = ReduceSum(y, two)
    z0 = ReduceMean <axes = [0, 1, 2], keepdims = 0> (flat)
    z = Add(zeros, z0)
    places = Range(zero, all, one)
}"""
)


def draw(*shape: int) -> Array:
    return np.random.default_rng(5).normal(size=shape).astype(np.float32)


def test_computed_shapes() -> None:
    proto = onnx.parser.parse_model(RESHAPED)
    model = zo.load(proto)
    assert model.outputs["y"].shape == (None, None, 2)
    for sizes in ((3, 5), (1, 7), (5, 3)):
        feeds = {"x": draw(*sizes, 4)}
        close(model.run(feeds), runtime(proto, feeds))


def test_gradients_pass_through_open_sizes(tmp_path: Path) -> None:
    """Σ y · w with y a reshape of x: the gradient is w in the shape of x."""
    model = zo.load(onnx.parser.parse_model(RESHAPED))
    g, x = model.graph, model.inputs["x"]
    weight = draw(5, 6, 2)
    loss = g.reduction_sum(model.outputs["y"] * g.constant(weight))
    gradient = g.gradients(of=loss, with_respect_to=[x])[x]
    found = g.run({x: draw(3, 5, 4)}, [gradient])[gradient]
    np.testing.assert_array_equal(found, weight.reshape(3, 5, 4))
    g.save(tmp_path / "graph.zstate")
    again = zs.Graph.load(tmp_path / "graph.zstate")
    assert str(again) == str(g)


def test_saved_again_with_open_sizes(tmp_path: Path) -> None:
    model = zo.load(onnx.parser.parse_model(RESHAPED))
    zo.save(model.graph, model.outputs, tmp_path / "again.onnx")
    feeds = {"x": draw(3, 5, 4)}
    close(runtime(tmp_path / "again.onnx", feeds), model.run(feeds))


def test_an_open_size_may_turn_out_to_be_one() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(None, 1), name="x")
    y = g.broadcast(x, (1, 3))
    np.testing.assert_array_equal(g.run({x: np.ones((1, 1), np.float32)}, [y])[y], np.ones((1, 3)))
    with pytest.raises(zs.ShapeError):
        g.run({x: np.ones((2, 1), np.float32)}, [y])


@pytest.mark.parametrize(
    ("text", "expected"), [("7", 7), ("2*0.1+-1", 9), ("1.0", None), ("0.0*0.1", 20), ("0", 0)]
)
def test_sizes_as_text(text: str, expected: int | None) -> None:
    assert size_of(text, [(4, 5), (None,)], "test") == expected


@pytest.mark.parametrize("text", ["", "x", "0.5", "3.0", "1e3", "2**2", "__import__('os')"])
def test_wrong_texts_are_refused(text: str) -> None:
    with pytest.raises(zs.ZStateError):
        size_of(text, [(4, 5)], "test")


def test_an_input_that_decides_a_shape_is_fixed_or_named() -> None:
    proto = onnx.parser.parse_model(
        HEAD + "(float[6] x, int64[2] s) => (float[A, B] y) { y = Reshape(x, s) }"
    )
    with pytest.raises(zo.NeedsValueError, match="depends on s") as error:
        zo.load(proto)
    assert error.value.names == ("s",)
    model = zo.load(proto, constants={"s": np.array([2, 3])})
    assert list(model.inputs) == ["x"]
    assert model.run({"x": np.arange(6, dtype=np.float32)})["y"].shape == (2, 3)
