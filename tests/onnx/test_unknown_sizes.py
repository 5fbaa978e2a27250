"""Sizes that are unknown when a model is loaded are never guessed: what depends on one, a result or
a refusal, waits for the run. The expectations are ONNX Runtime's, or counted by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import zstate as zs
import zstate.onnx as zo
from tests.onnx.common import close, one_node, runtime
from zstate.types import Array

HEAD = '<ir_version: 8, opset_import: ["": 17]> m '


def draw(*shape: int) -> Array:
    return np.random.default_rng(7).normal(size=shape).astype(np.float32)


def same(text: str, *feeds: dict[str, Array]) -> Any:
    proto = onnx.parser.parse_model(HEAD + text)
    model = zo.load(proto)
    for each in feeds:
        close(model.run(each), runtime(proto, each))
    return model


def test_expand() -> None:
    same(
        "(float[N,1,4] x) => (float[A,B,C] y) <int64[3] s = {1,5,1}> { y = Expand(x, s) }",
        {"x": draw(3, 1, 4)},
        {"x": draw(1, 1, 4)},
    )
    model = same("(float[N] x) => (float[M] y) <int64[1] s = {5}> { y = Expand(x, s) }")
    with pytest.raises(zs.ShapeError):
        model.run({"x": draw(3)})


def test_the_shape_of_a_slice_that_does_not_fit() -> None:
    """x[1:5] of three rows has two."""
    same(
        """(float[N] x) => (float[M] y, int64[1] s) <int64[1] a = {1}, int64[1] b = {5}>
        { y = Slice(x, a, b) s = Shape(y) }""",
        {"x": draw(3)},
        {"x": draw(9)},
        {"x": draw(1)},
    )


@pytest.mark.parametrize(
    ("start", "end", "step"), [(-9, -99, -1), (-2, -99, -2), (7, 0, -1), (-5, 4, 2), (-1, -99, -1)]
)
def test_slices_with_steps(start: int, end: int, step: int) -> None:
    same(
        f"""(float[N,M] x) => (float[A,B] y)
        <int64[1] a = {{{start}}}, int64[1] b = {{{end}}},
         int64[1] c = {{1}}, int64[1] d = {{{step}}}>
        {{ y = Slice(x, a, b, c, d) }}""",
        *({"x": draw(2, size)} for size in range(6)),
    )


def test_a_slice_up_to_the_size_of_another_tensor(tmp_path: Path) -> None:
    text = """(float[N,4] x, float[M] z) => (float[A,4] y) <int64[1] a = {0}>
    { s = Shape(z) y = Slice(x, a, s, a) }"""
    feeds = [{"x": draw(5, 4), "z": draw(size)} for size in (3, 7, 0)]
    model = same(text, *feeds)
    zo.save(model.graph, model.outputs, tmp_path / "again.onnx")
    for each in feeds:
        close(runtime(tmp_path / "again.onnx", each), model.run(each))


def test_gradients_of_slices_and_parts() -> None:
    """Of Σ y · w: w where y comes from, 0 elsewhere."""
    model = same(
        """(float[N,4] x) => (float[A,4] y, float[B,4] p, float[C,4] q)
        <int64[1] a = {-2}, int64[1] b = {-99}, int64[1] c = {0}, int64[1] d = {-2}>
        { y = Slice(x, a, b, c, d) p, q = Split <axis = 0> (x) }""",
        {"x": draw(6, 4)},
    )
    g, x = model.graph, model.inputs["x"]
    w, v = draw(3, 4), draw(3, 4) + 1
    loss = g.reduction_sum(model.outputs["y"] * g.constant(w))
    loss = loss + g.reduction_sum(model.outputs["q"] * g.constant(v))
    gradient = g.gradients(of=loss, with_respect_to=[x])[x]
    wanted = np.zeros((6, 4), np.float32)
    wanted[[4, 2, 0]] = w
    wanted[3:] += v
    np.testing.assert_allclose(g.run({x: draw(6, 4)}, [gradient])[gradient], wanted, rtol=1e-6)


def test_reshape_to_a_size_that_does_not_fit() -> None:
    model = same(
        "(float[N] x, float[M] z) => (float[A] y) { s = Shape(z) y = Reshape(x, s) }",
        {"x": draw(3), "z": draw(3)},
    )
    with pytest.raises(zs.ShapeError):
        model.run({"x": draw(3), "z": draw(4)})


def test_reshape_to_what_is_left() -> None:
    model = same(
        "(float[N,2,3] x) => (float[A,B] y) <int64[2] s = {0,-1}> { y = Reshape(x, s) }",
        {"x": draw(4, 2, 3)},
    )
    assert model.outputs["y"].shape == (None, 6)
    with pytest.raises(zs.ShapeError, match=r"\[Reshape\] data beside -1"):
        model.run({"x": draw(0, 2, 3)})  # which ONNX Runtime refuses as well


def test_reshape_to_a_computed_zero(tmp_path: Path) -> None:
    """As a zero that the file has: the size of the same axis, unless zeros are allowed."""
    for option in ("", "<allowzero = 1>"):
        text = f"""(float[A,B,C] x, float[M] z) => (float[D,E] y) <int64[2] ac = {{0, 2}}>
        {{ s = Shape(x) t = Gather(s, ac) n = Shape(z) m = Mul(n, t)
          y = Reshape {option} (x, m) }}"""
        feeds = [{"x": draw(0, 2, 0), "z": draw(1)}, {"x": draw(3, 1, 5), "z": draw(1)}]
        model = same(text, *feeds)
        zo.save(model.graph, model.outputs, tmp_path / "again.onnx")
        for each in feeds:
            close(runtime(tmp_path / "again.onnx", each), model.run(each))
            close(zo.load(tmp_path / "again.onnx").run(each), model.run(each))
    model = same(
        "(float[A,B] x, float[M] z) => (float[C,D] y) <int64[1] left = {-1}>"
        "{ s = Shape(z) m = Concat <axis = 0> (s, left) y = Reshape(x, m) }",
        {"x": draw(6, 4), "z": draw(0)},
        {"x": draw(6, 4), "z": draw(3)},
    )
    with pytest.raises(zs.ShapeError):
        model.run({"x": draw(6, 4), "z": draw(5)})


@pytest.mark.parametrize(
    ("shape", "x"), [("left, a, one", (2, 3, 0)), ("left, b, a", (2, 3, 0)), ("left, a", (2, 0, 3))]
)
def test_nothing_left_in_a_model_that_is_saved_again(
    shape: str, x: tuple[int, ...], tmp_path: Path
) -> None:
    model = same(
        f"""(float[A,B,C] x) => (float[{",".join("DEF"[: shape.count(",") + 1])}] y)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] left = {{-1}}>
        {{ s = Shape(x) a = Gather(s, zero) b = Gather(s, one)
          m = Concat <axis = 0> ({shape}) y = Reshape(x, m) }}""",
        {"x": draw(*x)},
        {"x": draw(2, 3, 4)},
    )
    zo.save(model.graph, model.outputs, tmp_path / "again.onnx")
    for each in ({"x": draw(*x)}, {"x": draw(2, 3, 4)}):
        close(runtime(tmp_path / "again.onnx", each), model.run(each))
        close(zo.load(tmp_path / "again.onnx").run(each), model.run(each))


def test_flatten_of_an_empty_tensor() -> None:
    same(
        "(float[A,B,C] x) => (float[D,E] y) { y = Flatten <axis = 2> (x) }",
        *({"x": draw(*shape)} for shape in ((0, 3, 2), (2, 3, 0), (2, 3, 4))),
    )
    same("(float[N,0] x) => (float[D,E] y) { y = Flatten(x) }", {"x": draw(2, 0)})


def test_one_name_with_two_sizes_is_refused() -> None:
    model = same(
        "(float[N] a, float[N] b) => (int64[1] s, int64[1] t) { s = Shape(a) t = Shape(b) }",
        {"a": draw(3), "b": draw(3)},
    )
    with pytest.raises(
        zs.ShapeError, match="one size, which the model calls 'N', got 3 for axis 0 of 'a', 4"
    ):
        model.run({"a": draw(3), "b": draw(4)})
    # The graph itself makes nothing of names.
    g, feeds = model.graph, {model.inputs["a"]: draw(3), model.inputs["b"]: draw(4)}
    found = g.run(feeds, [model.outputs["t"]])
    np.testing.assert_array_equal(found[model.outputs["t"]], [4])


def test_squeeze_without_axes_is_refused() -> None:
    text = "(float[N,3] x) => (float[M] y) { y = Squeeze(x) }"
    with pytest.raises(zs.ShapeError, match=r"\(Squeeze\).*axes: expected axes"):
        zo.load(onnx.parser.parse_model(HEAD + text))


def test_a_kernel_larger_than_its_input() -> None:
    text = """(float[N,1,T] x) => (float[N,1,U] y) <float[1,1,3] w = {1,2,3}> { y = Conv(x, w) }"""
    model = same(text, {"x": draw(2, 1, 5)}, {"x": draw(2, 1, 3)})
    with pytest.raises(zs.ShapeError, match=r"\[Conv\] X with its padding: expected .*≥3\], got"):
        model.run({"x": draw(2, 1, 2)})


def test_parts_that_are_not_equal() -> None:
    model = same(
        "(float[N] x) => (float[A] y, float[B] z) { y, z = Split <axis = 0> (x) }",
        {"x": draw(4)},
        {"x": draw(0)},
    )
    with pytest.raises(zs.ShapeError, match="2 equal parts"):
        model.run({"x": draw(3)})


def test_a_program_whose_shape_is_not_the_graph_s_is_refused() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(None,), name="x")
    y = x[1:5]
    assert y.shape == (4,)
    with pytest.raises(zs.ShapeError, match=r"expected \[4\], got \[2\]"):
        g.run({x: draw(3)}, [y])


def test_sizes_sliced_backwards() -> None:
    same(
        """(float[A,B] x) => (int64[N] y)
        <int64[1] a = {-9}, int64[1] b = {-99}, int64[1] c = {0}, int64[1] d = {-1}>
        { s = Shape(x) y = Slice(s, a, b, c, d) }""",
        {"x": draw(3, 5)},
    )


def test_slices_of_unknown_sizes_in_swift() -> None:
    model = same(
        """(float[N,4] x) => (float[A,4] y) <int64[1] a = {-2}, int64[1] b = {9223372036854775807}>
        { y = Slice(x, a, b) }""",
        {"x": draw(5, 4)},
        {"x": draw(1, 4)},
    )
    text = model.graph.to_swift("Last", targets=[*model.outputs.values()])
    assert "starts: [-2, 0], ends: [0, 4], strides: [1, 1], startMask: 0, endMask: 1" in text


@pytest.mark.parametrize(("kind", "gates"), [("RNN", 1), ("LSTM", 4), ("GRU", 3)])
def test_weights_of_unknown_sizes(kind: str, gates: int) -> None:
    """hidden_size tells H; whether all the weights have it is seen by the run."""
    rows = gates * 2
    arrays = {"X": (3, 2, 4), "W": (1, rows, 4), "R": (1, rows, 2), "B": (1, 2 * rows)}
    if kind == "LSTM":
        arrays |= {"lengths": (0,), "h": (0,), "c": (0,), "P": (1, 6)}
    fed = tuple(name for name, shape in arrays.items() if 0 not in shape)
    given = {name: draw(*shape) * 0.4 for name, shape in arrays.items()}
    proto, feeds = one_node(
        kind, given, ["Y", "Y_h"], fed=fed, unknown=True, hidden_size=2, direction="forward"
    )
    model = zo.load(proto)
    close(model.run(feeds), runtime(proto, feeds))
    for name in fed[1:]:
        with pytest.raises(zs.ShapeError, match=rf"\[{kind}\] {name}: expected"):
            model.run({**feeds, name: np.repeat(feeds[name], 2, axis=1)})
    del proto.graph.node[0].attribute[:]
    with pytest.raises(
        zs.ShapeError, match=rf"\[{kind}\] R: expected \[D,G·H,H\] whose H is known"
    ):
        zo.load(proto)


def test_sizes_divided_by_sizes() -> None:
    """By 0 as well, which ONNX Runtime refuses."""
    model = same(
        """(float[N,4] x, float[M,N] z) => (int64[2] ones, float[M] y, float[A,B] w)
        <int64 zero = {0}, int64 one = {1}, int64[1] at = {0}, int64[1] four = {4}, float c = {0}>
        { s = Shape(x) ones = Div(s, s)
          t = Shape(z) n = Gather(t, one) m = Gather(t, zero) both = Mul(n, m)
          left = Div(both, n) l = Unsqueeze(left, at) y = ConstantOfShape(l)
          r = Concat <axis = 0> (four, l) w = Expand(c, r) }""",
        {"x": draw(3, 4), "z": draw(2, 3)},
        {"x": draw(1, 4), "z": draw(0, 1)},
    )
    feeds = {"x": draw(0, 4), "z": draw(2, 0)}
    with pytest.raises(zs.ZStateError, match="integer_division.*other than 0"):
        model.run(feeds, ["ones"])
    for name in ("y", "w"):
        with pytest.raises(zs.ShapeError, match=r"\[Div\] B: expected \[≥0,≥1\], got \[2,0\]"):
            model.run(feeds, [name])


REVERSED = """(float[{x}] x, float[{z}] z) => (float[a,b,c] y)
<int64[1] time = {{{time}}}, int64[1] batch = {{{batch}}}>
{{ s = Shape({like}) t = Gather(s, time) r = Shape(x) n = Gather(r, batch) lengths = Expand(t, n)
   y = ReverseSequence <time_axis = {time}, batch_axis = {batch}> (x, lengths) }}"""


@pytest.mark.parametrize("sizes", ["T,N,2", "T,3,2", "4,N,2", "4,3,2"])
@pytest.mark.parametrize("time", [0, 1])
def test_sequences_reversed_whole(sizes: str, time: int) -> None:
    """What tf2onnx makes of a reversal, and what only looks like one."""
    shape, less = ((4, 3, 2), (3, 3, 2)) if time == 0 else ((3, 4, 2), (3, 3, 2))
    x = sizes if time == 0 else ",".join([*sizes.split(",")[1::-1], "2"])
    words = {"time": time, "batch": 1 - time, "x": x}
    feeds = {"x": draw(*shape), "z": draw(*shape)}
    model = same(REVERSED.format(**words, z="A,B,2", like="x"), feeds)
    names = [node.op.name for node in model.graph.nodes]
    assert "reverse" in names and "gather_along_axis" not in names
    model = same(REVERSED.format(**words, z="A,B,2", like="z"), feeds, {**feeds, "z": draw(*less)})
    assert "gather_along_axis" in [node.op.name for node in model.graph.nodes]
