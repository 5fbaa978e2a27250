"""Convolutions of many places, which read their windows by one table of indices: beside ONNX
Runtime, and as C."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import zstate.onnx as zo
from tests.graph.test_c import Compiled
from tests.onnx.common import close, runtime
from zstate.graph.c import to_c


def model(
    rng: np.random.Generator,
    kernel: list[int],
    groups: int,
    known: bool,
    most_pads: int = 2,
    most_channels: int = 3,
) -> Any:
    """A Conv with random strides, dilations and pads, and its input."""
    count, channels = len(kernel), groups * int(rng.integers(1, most_channels + 1))
    dilations = [int(rng.integers(1, 3)) for _ in kernel]
    sizes = [
        (k - 1) * d + 1 + int(rng.integers(0, 9)) for k, d in zip(kernel, dilations, strict=True)
    ]
    x = rng.normal(size=(int(rng.integers(1, 4)), channels, *sizes)).astype(np.float32)
    shape = ["N", channels, *(sizes if known else [f"L{k}" for k in range(count)])]
    weight = rng.normal(size=(groups * 2, channels // groups, *kernel)).astype(np.float32)
    node = helper.make_node(
        "Conv",
        ["x", "w"],
        ["y"],
        strides=[int(rng.integers(1, 4)) for _ in kernel],
        dilations=dilations,
        pads=[int(rng.integers(0, most_pads + 1)) for _ in range(2 * count)],
        group=groups,
    )
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "conv",
        [value("x", TensorProto.FLOAT, shape)],
        [value("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8), {"x": x}


@pytest.mark.parametrize("part", range(4))
def test_many_places(part: int) -> None:
    rng = np.random.default_rng(part)
    for kernel in ([64], [80], [200], [8, 8], [5, 16], [63], [7, 9]):
        groups, known = int(rng.integers(1, 3)), bool(rng.random() < 0.7)
        proto, given = model(rng, kernel, groups, known)
        loaded = zo.load(proto)
        by_table = groups == 1 and known and np.prod(kernel) >= 64
        assert any(node.op.name == "gather" for node in loaded.graph.nodes) == by_table
        close(loaded.run(given), runtime(proto, given))


def test_tables_stay_small() -> None:
    """However large the input that a file of a few bytes speaks of."""
    proto, _ = model(np.random.default_rng(1), [64], 1, True)
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 2**40
    nodes = zo.load(proto).graph.nodes
    assert sum(node.op.name == "strided_slice" or node.op.name == "slice" for node in nodes) >= 64


@pytest.mark.parametrize("seed", range(4))
def test_as_c(seed: int, tmp_path: Path) -> None:
    """The spectrum of a signal, say: one channel."""
    if not shutil.which("gcc"):
        pytest.skip("no gcc")
    proto, given = model(
        np.random.default_rng(seed), [64 + seed], 1, True, most_pads=0, most_channels=1
    )
    loaded = zo.load(proto)
    x, y = loaded.inputs["x"], loaded.outputs["y"]
    one = given["x"][:1]
    program = loaded.graph.compile({x: (one.shape, "float32")}, [y])
    header = to_c(program, "model").text
    (found,) = Compiled(program, header, tmp_path, "gcc").step(one)
    np.testing.assert_allclose(found, loaded.run({"x": one})["y"], rtol=1e-4, atol=1e-4)
