"""Operators at the ends of their types and beyond: as ONNX Runtime has them, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, parser

import zstate as zs
import zstate.onnx as zo
from tests.onnx.common import close, one_node, runtime
from zstate.types import Array

INF, NAN = np.inf, np.nan
INT_MIN = np.iinfo(np.int32).min


def floats(*values: Any) -> Array:
    return np.array(values, np.float32)


def some(*shape: int) -> Array:
    return np.random.default_rng(3).uniform(1, 2, shape).astype(np.float32)


def node(kind: str, *inputs: Array, fed: int = 1, opset: int = 17, **attributes: Any) -> Any:
    """A model of one node, the first ``fed`` inputs of which are fed, and its feeds."""
    arrays = {f"x{k}": array for k, array in enumerate(inputs)}
    names = tuple(arrays)[:fed]
    model, feeds = one_node(kind, arrays, ["y"], fed=names, **attributes)
    model.opset_import[0].version = opset
    model.graph.output[0].CopyFrom(helper.make_empty_tensor_value_info("y"))
    return model, feeds


@pytest.mark.parametrize(
    "drawn",
    [
        node("ReduceMin", np.array([[200, 3], [7, 255]], np.uint8), axes=[1], opset=13),
        node("ReduceMin", np.array([INT_MIN, 5], np.int32), axes=[0]),
        node("ArgMin", np.array([[5, INT_MIN, 7]], np.int32), axis=1),
        node("ArgMin", np.array([3, 0, 200], np.uint8), axis=0),
        node("ReduceLogSumExp", floats([1, INF], [-INF, -INF], [-INF, 2]), axes=[1]),
        node("PRelu", floats(INF, -INF, 2, -2, 0), floats(0.5, 0.5, INF, INF, INF), fed=2),
        node("ReduceMean", np.zeros((2, 0), np.int32), axes=[1]),
        node("ReduceMean", np.zeros((2, 0), np.int64), axes=[1]),
        node("Clip", floats(INF, -INF, NAN, 1)),
        node("Clip", floats(INF, -INF, 1), np.array(0, np.float32), fed=1),
        node("Gemm", floats([1, 2]), floats([3], [4]), floats([NAN]), fed=3, beta=0.0),
        node("Pow", floats(-1, 1, 2), np.array([2**31 - 1, 5, 3], np.int32), fed=2),
        node("Pad", np.array([1, 2]), np.array([1, 1]), np.array(2**53 + 1), fed=1),
        node("Div", np.array([-7, 7, 2**62 + 1]), np.array([2, -2, 3]), fed=2),
        node(
            "BatchNormalization",
            *(
                np.random.default_rng(3).uniform(1, 2, (1, 2, 3)[k > 0 :]).astype("f")
                for k in range(5)
            ),
            opset=7,
            spatial=0,
        ),
    ],
    ids=lambda drawn: drawn[0].graph.node[0].op_type,
)
def test_as_onnxruntime(drawn: Any) -> None:
    model, feeds = drawn
    with np.errstate(all="ignore"):
        found = zo.load(model).run(feeds)
    wanted = runtime(model, feeds)
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        if array.dtype.kind == "f":
            np.testing.assert_allclose(found[name], array, rtol=1e-6)
        else:
            np.testing.assert_array_equal(found[name], array)


def refusal_of(model: Any, feeds: Any) -> str:
    with pytest.raises(zs.ZStateError) as error:
        zo.load(model).run(feeds)
    return str(error.value)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_integer_division_by_zero(dtype: str) -> None:
    arrays = np.array([5, 6], dtype), np.array([2, 0], dtype)
    assert "integers other than 0" in refusal_of(*node("Div", *arrays, fed=2))
    assert "integers other than 0" in refusal_of(*node("Div", *arrays, fed=1))


def test_the_least_integer_divided_by_minus_one_wraps() -> None:
    """As sums and products of integers do. ONNX Runtime's process ends by it."""
    model, feeds = node("Div", np.array([INT_MIN], np.int32), np.array([-1], np.int32), fed=2)
    np.testing.assert_array_equal(zo.load(model).run(feeds)["y"], [INT_MIN])


def test_an_empty_minimum_is_called_one() -> None:
    message = refusal_of(*node("ReduceMin", floats()[:0], axes=[0]))
    assert "minimum" in message and "maximum" not in message


def test_a_kernel_without_elements() -> None:
    message = refusal_of(*node("Conv", some(1, 2, 6), some(1, 2, 0), fed=2))
    assert "[Conv] W: expected a known shape [M,C/group,K,…]" in message


def test_pads_for_another_rank() -> None:
    message = refusal_of(*node("Pad", floats([1, 2]), np.array([1] * 6), fed=1))
    assert "two for each of the axes [0, 1]" in message


def test_celu_in_bfloat16_is_rounded_once() -> None:
    import ml_dtypes

    wide = np.linspace(-4, 1, 101).astype(ml_dtypes.bfloat16)
    model, feeds = node("Celu", wide, opset=12, alpha=0.7)
    exact = wide.astype(np.float64)
    alpha = float(np.float32(0.7))
    wanted = np.maximum(exact, 0) + np.minimum(0, alpha * np.expm1(exact / alpha))
    found = zo.load(model).run(feeds)["y"]
    np.testing.assert_array_equal(found, wanted.astype(ml_dtypes.bfloat16))


def test_the_default_bounds_of_clip_6_are_those_of_float32() -> None:
    """In float64 as well, which ONNX Runtime does not clip before opset 11."""
    model, feeds = node("Clip", np.array([INF, -INF, 1e300, 2]), opset=6)
    most = float(np.finfo(np.float32).max)
    np.testing.assert_array_equal(zo.load(model).run(feeds)["y"], [most, -most, most, 2])
    for opset in (6, 9, 12):
        model, feeds = node("Clip", np.array([INF, -INF, NAN, 2], np.float16), opset=opset)
        np.testing.assert_array_equal(zo.load(model).run(feeds)["y"], runtime(model, feeds)["y"])
    model, feeds = node("Clip", np.array([INF, 1e300]), opset=13)
    np.testing.assert_array_equal(zo.load(model).run(feeds)["y"], runtime(model, feeds)["y"])


@pytest.mark.parametrize(
    ("model", "opset"),
    [
        (node("Concat", some(2, 2), some(2, 2), fed=2), 3),  # along axis 1
        (node("Dropout", some(2)), 6),  # in training
        (node("PRelu", some(1, 2, 2), some(2), fed=2), 6),  # a slope for each channel
        (node("Selu", some(2)), 5),  # of other numbers
        (node("Add", some(2), some(2), fed=2), 6),
    ],
    ids=lambda each: each[0].graph.node[0].op_type if isinstance(each, tuple) else "",
)
def test_what_was_another_operator_is_refused(model: Any, opset: int) -> None:
    model, feeds = model
    model.opset_import[0].version = opset
    with pytest.raises(zs.OptionError, match=rf"opset_import: expected opset 7 .*, got {opset}"):
        zo.load(model)
    with pytest.raises(Exception, match="NOT_IMPLEMENTED"):
        runtime(model, feeds)


def recurrent(kind: str, gates: int, lengths: list[int] | None = None, **rest: Any) -> Any:
    rng = np.random.default_rng(5)
    arrays = {
        "X": rng.normal(size=(3, 2, 2)).astype(np.float32),
        "W": rng.normal(size=(1, gates * 2, 2)).astype(np.float32),
        "R": rng.normal(size=(1, gates * 2, 2)).astype(np.float32),
        "B": floats(),
        "lengths": np.array(lengths or [], np.int32),
    }
    fed = ("X", "lengths") if lengths else ("X",)
    return one_node(kind, arrays, ["Y", "Y_h"], fed=fed, hidden_size=2, **rest)


@pytest.mark.parametrize(("kind", "gates"), [("RNN", 1), ("LSTM", 4), ("GRU", 3)])
@pytest.mark.parametrize("unknown", [False, True])
def test_lengths(kind: str, gates: int, unknown: bool) -> None:
    model, feeds = recurrent(kind, gates, [3, 1], unknown=unknown)
    close(zo.load(model).run(feeds), runtime(model, feeds))
    for lengths in ([3, -1], [4, 1]):
        message = refusal_of(*recurrent(kind, gates, lengths, unknown=unknown))
        assert f"[{kind}] sequence_lens: expected 0 to 3, got" in message
    message = refusal_of(*recurrent(kind, gates, [3], unknown=unknown))
    assert f"[{kind}] sequence_lens: expected [2], got [1]" in message


def test_reverse_sequence_refuses_lengths() -> None:
    for lengths in ([3, -1], [4, 1]):
        model, feeds = node(
            "ReverseSequence",
            floats(*[[1, 2]] * 3),
            np.array(lengths),
            fed=2,
            time_axis=0,
            batch_axis=1,
        )
        assert "[ReverseSequence] sequence_lens: expected 0 to 3" in refusal_of(model, feeds)


@pytest.mark.parametrize(("kind", "gates"), [("RNN", 1), ("LSTM", 4), ("GRU", 3)])
def test_a_clip_of_zero_is_a_clip(kind: str, gates: int) -> None:
    assert "does not clip" in refusal_of(*recurrent(kind, gates, clip=0.0))


def test_a_constant_keeps_its_value_under_another_name() -> None:
    """Also where a node has read it before, and so made a tensor of it."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        m (int64[2] z, float[6] x) => (float[2, 3] y, int64[2] w) {
            c = Constant <value_ints = [2, 3]> ()
            w = Add(z, c)
            shape = Identity(c)
            y = Reshape(x, shape)
        }"""
    )
    feeds = {"z": np.array([1, 1]), "x": some(6)}
    close(zo.load(model).run(feeds), runtime(model, feeds))
