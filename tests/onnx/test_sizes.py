"""Sizes that are open when a model is loaded: computed shapes, their gradients, and files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

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


def test_graph_files_of_sizes_that_are_numbers(tmp_path: Path) -> None:
    """Nodes that read the shape of no other tensor."""
    proto = onnx.parser.parse_model(
        HEAD
        + """(float[A,B,C] x, int64[M] indices) => (float[D,E] y, float[F,G,H] z, float[P,Q] hot)
        <int64[1] one = {1}, int64[1] two = {2}, int64[1] end = {-1}, int64[3] size = {2, 1, 3},
         int64[2] shape = {3, 4}, int64[1] depth = {4}, float[2] values = {-1.5, 2.5},
         float[2,2,2] w = {0.5, -3, 1, 2, -0.5, 0.25, 4, -1}>
        { part = Slice(x, one, end, two) whole = Expand(part, size) y = Reshape(whole, shape)
          z = Conv(whole, w) hot = OneHot(indices, depth, values) }"""
    )
    model = zo.load(proto)
    g = model.graph
    loss = g.reduction_sum(g.square(model.outputs["y"])) + g.reduction_sum(model.outputs["z"])
    gradient = g.gradients(loss, [model.inputs["x"]])[model.inputs["x"]]
    g.save(tmp_path / "graph.zstate")
    again = zs.Graph.load(tmp_path / "graph.zstate")
    assert str(again) == str(g)
    feeds = {"x": draw(1, 2, 5), "indices": np.array([3, 0, -2])}
    tensors = {each.name: each for node in again.nodes for each in node.results}
    targets = [tensors[each.name] for each in model.outputs.values()]
    values = {tensors[name]: array for name, array in feeds.items()}
    found = again.run(values, [*targets, tensors[gradient.name]])
    close(
        dict(zip(model.outputs, map(found.__getitem__, targets), strict=True)),
        runtime(proto, feeds),
    )
    wanted = g.run({model.inputs[name]: array for name, array in feeds.items()}, [gradient])
    np.testing.assert_array_equal(found[tensors[gradient.name]], wanted[gradient])


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
    ("text", "expected"),
    [
        ("7", 7),
        ("2*0.1+-1", 9),
        ("1.0", None),
        ("0.0*0.1", 20),
        ("0", 0),
        ("0.0|7", 4),
        ("0*0.0|7", 7),
        ("1.0|7", None),
        ("0|1.0", None),
    ],
)
def test_sizes_as_text(text: str, expected: int | None) -> None:
    assert size_of(text, [(4, 5), (None,)], "test") == expected


@pytest.mark.parametrize(
    "text", ["", "x", "|3", "0|x", "0.5", "3.0", "1e3", "2**2", "__import__('os')"]
)
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
    wrong: dict[str, Any] = {
        "float64[2]": np.array([2.5, 3.5]),
        "int64[3]": np.array([2, 3, 1]),
        "int32[2]": np.array([2, 3], np.int32),
    }
    for got, value in wrong.items():
        expected = re.escape(f"[onnx.load] input 's': expected int64[2], got {got}")
        with pytest.raises(zs.DTypeError, match=expected):
            zo.load(proto, constants={"s": value})
    for constants in (3, [1]):
        with pytest.raises(zs.DTypeError, match=r"constants: expected {name of an input: array}"):
            zo.load(proto, constants=constants)  # type: ignore[arg-type]


def test_a_shape_that_open_sizes_decide_says_so() -> None:
    """Not what made the tensor whose size it is."""
    proto = onnx.parser.parse_model(
        HEAD
        + """(float[N, T] x, int64[1] n) => (float[A] y) <float[1] w = {2}, int64[1] two = {2}>
        { made = Mul(x, w) s = Shape(made) a = Max(s, two) b = Mul(a, n) y = Reshape(x, b) }"""
    )
    with pytest.raises(zo.NeedsValueError, match=r"depends on n, sizes that are open$") as error:
        zo.load(proto)
    assert error.value.names == ("n",)


ARITHMETIC = {
    "allowzero": ("int64[3]", "y = Reshape <allowzero = 1> (s, three)"),
    "a zero that copies": ("int64[3, 1]", "y = Reshape (s, zero_one)"),
    "product": ("int64", "y = ReduceProd <noop_with_empty_axes = 0, keepdims = 0> (s)"),
    "product of nothing": ("int64[3]", "y = ReduceProd <noop_with_empty_axes = 1> (s)"),
    "cast": ("int32[3]", "y = Cast <to = 6> (s)"),
    "cast and back": ("int64[3]", "c = Cast <to = 6> (s) y = Cast <to = 7> (c)"),
    "cast, settled": ("int32[3]", "c = Cast <to = 6> (s) d = Sub(c, c) y = Add(c, d)"),
    "cast, then a sum": ("int32[3]", "c = Cast <to = 6> (s) y = Add(c, narrow)"),
    "cast, then a float": ("float[3]", "c = Cast <to = 6> (s) y = Cast <to = 1> (c)"),
    "mask": ("bool[T]", "c = Cast <to = 6> (t) r = Range(n0, c, n1) y = Less(r, narrow)"),
    "half": ("int64[3]", "y = Div(s, two)"),
    "half of less than 0": ("int64[4]", "k = Concat <axis = 0> (s, below) y = Div(k, two)"),
}


@pytest.mark.parametrize("case", [*ARITHMETIC])
def test_arithmetic_on_open_sizes(case: str, tmp_path: Path) -> None:
    """The numbers and the types of onnxruntime, also from the model that save makes of it."""
    result, nodes = ARITHMETIC[case]
    proto = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]> m (float[N, T, 3] x) => ({result} y)
        <int64[1] three = {{3}}, int64[2] zero_one = {{0, 1}}, int64 one = {{1}}, int64 two = {{2}},
         int64[1] below = {{-3}}, int32 narrow = {{2}}, int32 n0 = {{0}}, int32 n1 = {{1}}>
        {{ s = Shape(x) t = Gather(s, one) {nodes} }}"""
    )
    model = zo.load(proto)
    zo.save(model.graph, outputs=model.outputs, path=tmp_path / "again.onnx")
    again = zo.load(tmp_path / "again.onnx")
    for shape in ((2, 5, 3), (7, 1, 3)):
        wanted = runtime(proto, feeds := {"x": draw(*shape)})
        for found in (model.run(feeds), again.run(feeds)):
            close(found, wanted)
            assert found["y"].dtype == wanted["y"].dtype
