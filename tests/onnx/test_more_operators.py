"""TopK, Einsum, GatherElements and arithmetic of integers give what onnxruntime gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import helper

import zstate as zs
import zstate.onnx as zo
from tests.onnx.common import close, runtime, value
from zstate.types import Array

RNG = np.random.default_rng(11)


def normal(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


def whole(low: int, high: int, *shape: int, dtype: Any = np.int64) -> Array:
    return RNG.integers(low, high, shape).astype(dtype)


def check(
    kind: str,
    arrays: list[Array],
    fed: int,
    outputs: int = 1,
    sizes: tuple[bool, ...] = (True, False),
    **attributes: Any,
) -> None:
    """A node of which the first ``fed`` inputs are inputs of the model, sizes known and unknown."""
    names = [f"i{k}" for k in range(len(arrays))]
    results = [f"o{k}" for k in range(outputs)]
    feeds = dict(zip(names[:fed], arrays, strict=False))
    for is_known in sizes:
        graph = helper.make_graph(
            [helper.make_node(kind, names, results, **attributes)],
            "one",
            [value(n, a, None if is_known else [None] * a.ndim) for n, a in feeds.items()],
            [onnx.ValueInfoProto(name=name) for name in results],
            [onnx.numpy_helper.from_array(a, n) for n, a in zip(names, arrays, strict=True)][fed:],
        )
        model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
        close(zo.load(model).run(feeds), runtime(model, feeds), f"{kind} {attributes} {is_known}")


@pytest.mark.parametrize("largest", [0, 1])
def test_top_k(largest: int) -> None:
    ties = whole(0, 4, 3, 7)
    for array in (normal(3, 7), ties, ties.astype(np.float32), whole(-(2**62), 2**62, 3, 7)):
        for axis, count in ((1, 3), (-1, 7), (0, 1), (0, 3), (1, 0)):
            check("TopK", [array, np.array([count])], 1, 2, axis=axis, largest=largest)


def test_top_k_of_more_than_there_are() -> None:
    with pytest.raises(zs.ShapeError, match="TopK"):
        check("TopK", [normal(3), np.array([4])], 1, 2)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij , jk", [(2, 3), (3, 4)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("bhid,bhjd->bhij", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("bld,dhk->blhk", [(2, 3, 4), (4, 5, 6)]),
        ("i,j->ji", [(3,), (4,)]),
        ("i,i->", [(3,), (3,)]),
        ("i,i->i", [(3,), (3,)]),
        ("ij->", [(2, 3)]),
        ("ijk->kj", [(2, 3, 4)]),
        ("ii->i", [(3, 3)]),
        ("ii->", [(3, 3)]),
        ("...ii->...i", [(2, 3, 3)]),
        ("...ij,...jk->...ik", [(2, 5, 3, 4), (2, 5, 4, 6)]),
        ("i...j,j...->...i", [(2, 5, 3), (3, 5)]),
        ("b...i,oi->b...o", [(2, 5, 3, 4), (6, 4)]),
        ("ij,ij,ij->j", [(2, 3)] * 3),
        ("ab,bc,cd->ad", [(2, 3), (3, 4), (4, 5)]),
        ("abc,abd,ac->b", [(2, 3, 4), (2, 3, 5), (2, 4)]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    check("Einsum", [normal(*s) for s in shapes], len(shapes), equation=equation)
    if len(shapes) == 2:
        integers = [whole(-9, 9, *s) for s in shapes]
        check("Einsum", integers, 2, equation=equation)


def test_einsum_without_sense() -> None:
    for equation in ("ij->k", "ij->ii", "i->i", "i,j->ij", "ij", "i1->i"):
        with pytest.raises(zs.ZStateError, match="Einsum"):
            check("Einsum", [normal(2, 3)] * (1 + (equation == "ij")), 1, equation=equation)


def test_gather_elements_of_a_part() -> None:
    """Indices that leave out the last places of other axes, where the sizes are known."""
    x = normal(3, 4, 5)
    check("GatherElements", [x, whole(-5, 5, 2, 3, 7)], 2, sizes=(True,), axis=2)
    check("GatherElements", [x, whole(-3, 3, 9, 4, 1)], 1, axis=0)
    check(
        "GatherElements",
        [whole(0, 9, 3, 4), whole(-4, 4, 3, 2, dtype=np.int32)],
        2,
        sizes=(True,),
        axis=1,
    )


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_whole_numbers(dtype: Any) -> None:
    check("ReduceMean", [whole(-99, 99, 3, 4, dtype=dtype)], 1, axes=[1])
    check("ReduceMean", [np.full((2, 3), np.iinfo(np.int32).max, dtype)], 1, axes=[1], keepdims=0)
    pair = [whole(-99, 99, *s, dtype=dtype) for s in ((2, 3, 4), (4, 5))]
    check("MatMul", pair, 2)
    check("MatMul", [whole(-9, 9, 4, dtype=dtype), pair[1]], 1)
    large = np.iinfo(dtype).max // 7
    check("MatMul", [np.array([[large, -large]], dtype), np.array([[3], [4]], dtype)], 2)


@pytest.mark.parametrize("sizes", [((2, 2), (1, 3)), ((2, 1), (2, 3)), (("n", "k"), ("j", 3))])
def test_whole_numbers_of_other_inner_sizes_are_refused(sizes: Any) -> None:
    """Not broadcast, although a size is 1."""
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    inputs = [helper.make_tensor_value_info(n, 6, s) for n, s in zip("ab", sizes, strict=True)]
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    with pytest.raises(zs.ZStateError, match="expected"):
        zo.load(model).run({"a": np.ones((2, 2), np.int32), "b": np.ones((1, 3), np.int32)})


def test_no_cast_to_the_type_that_a_tensor_has() -> None:
    nodes = "c = Cast <to = 7> (i) d = CastLike (c, i) y = Gather(x, d) z = OneHot(d, depth, two)"
    model = zo.load(
        onnx.parser.parse_model(
            f"""<ir_version: 8, opset_import: ["": 17]>
            m (float[N] x, int64[M] i) => (float[M] y, float[M,3] z)
            <int64 depth = {{3}}, float[2] two = {{0, 1}}> {{ {nodes} }}"""
        )
    )
    assert "cast" not in [node.op.name for node in model.graph.nodes]
    found = model.run({"x": normal(4), "i": np.array([-1, 2])})
    np.testing.assert_array_equal(found["z"], [[0, 0, 1], [0, 0, 1]])
