"""Files that are broken or mean harm are refused with errors of zstate's own, and quickly."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import zstate as zs
import zstate.onnx as zo

TEXT = """<ir_version: 8, opset_import: ["": 17]>
m (float[N, 3] x) => (float[N, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}>
{ a = Tanh(x)  y = MatMul(a, w) }"""


def refused(model: Any, said: str) -> None:
    with pytest.raises(zs.ZStateError) as error:
        zo.load(model)
    assert said in str(error.value)


def changed(change: Callable[[Any], Any]) -> Any:
    model = parser.parse_model(TEXT)
    change(model)
    return model


def test_truncated_files(tmp_path: Path) -> None:
    whole = parser.parse_model(TEXT).SerializeToString()
    path = tmp_path / "cut.onnx"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(zs.ZStateError):
            zo.load(path)


def test_random_bytes(tmp_path: Path) -> None:
    whole = bytearray(parser.parse_model(TEXT).SerializeToString())
    rng = np.random.default_rng(3)
    path = tmp_path / "bent.onnx"
    for _ in range(2000):
        bent = bytearray(whole)
        for place in rng.integers(0, len(bent), 3):
            bent[place] = rng.integers(256)
        path.write_bytes(bent)
        with suppress(zs.ZStateError):  # any other exception fails the test
            zo.load(path)


def test_no_such_file(tmp_path: Path) -> None:
    refused(tmp_path / "none.onnx", "none.onnx")
    refused(tmp_path, "expected a file")


def test_cycles_and_names() -> None:
    refused(changed(lambda m: m.graph.node.reverse()), "an earlier node")

    def cycle(m: Any) -> None:
        m.graph.node[0].input[0] = "y"

    refused(changed(cycle), "an earlier node")

    def twice(m: Any) -> None:
        m.graph.node.append(m.graph.node[0])

    refused(changed(twice), "a new name")

    def missing(m: Any) -> None:
        m.graph.output[0].name = "nowhere"

    refused(changed(missing), "nowhere")


def test_wrong_shapes_name_the_node() -> None:
    def wide(m: Any) -> None:
        m.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 7
        m.graph.node[1].name = "the product"

    refused(changed(wide), "'the product'")

    def negative(m: Any) -> None:
        m.graph.input[0].type.tensor_type.shape.dim[1].dim_value = -7

    refused(changed(negative), "-7")


def test_sizes_that_the_data_does_not_have() -> None:
    for dims in ([1 << 40, 1 << 20], [3, 3], [-3, -2], [0, 2]):

        def claim(m: Any, dims: list[int] = dims) -> None:
            m.graph.initializer[0].dims[:] = dims

        refused(changed(claim), "'w'")

    def raw(m: Any) -> None:
        m.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((3, 2), np.float32), "w"))
        m.graph.initializer[0].raw_data = b"1234"

    refused(changed(raw), "24 bytes")


def test_constants_as_large_as_one_likes() -> None:
    refused(
        parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
m () => (float[N] y) <int64[2] s = {1099511627776, 1099511627776}> { y = ConstantOfShape(s) }"""),
        "ConstantOfShape",
    )
    refused(
        parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
m () => (int64[N] y) <int64 a = {0}, int64 b = {1099511627776}, int64 c = {1}>
{ y = Range(a, b, c) }"""),
        "Range",
    )


def external(tmp_path: Path, location: str, **more: str) -> Path:
    model = parser.parse_model(TEXT)
    tensor = model.graph.initializer[0]
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **more}.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    path = tmp_path / "folder" / "model.onnx"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def test_external_data(tmp_path: Path) -> None:
    path = external(tmp_path, "w.bin", offset="4")
    data = np.arange(7, dtype=np.float32)
    (path.parent / "w.bin").write_bytes(data.tobytes())
    found = zo.load(path).run({"x": np.full((1, 3), 100, np.float32)})["y"]
    np.testing.assert_array_equal(found, [[9, 12]])
    refused(onnx.load(path, load_external_data=False), "without a path")
    (path.parent / "w.bin").write_bytes(data.tobytes()[:-1])
    refused(path, "28 bytes")


def test_external_data_outside_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(24))
    for location in ("../secret.bin", str(tmp_path / "secret.bin"), "", "a/../../secret.bin"):
        refused(external(tmp_path, location), "in the folder of the model")
    path = external(tmp_path, "link.bin")
    (path.parent / "link.bin").symlink_to(tmp_path / "secret.bin")
    refused(path, "in the folder of the model")
    refused(external(tmp_path, "w.bin", offset="-4"), "offset")
    refused(external(tmp_path, "w.bin", offset="many"), "external data")
    refused(external(tmp_path, "w.bin", length="4"), "24 bytes")


def test_operators_and_attributes_that_are_not_there() -> None:
    def other(m: Any) -> None:
        m.graph.node[0].op_type, m.graph.node[0].name = "Det", "the_node"

    refused(changed(other), "'the_node'")

    def attribute(m: Any) -> None:
        m.graph.node[0].attribute.append(helper.make_attribute("made_up", 3))

    refused(changed(attribute), "made_up")

    def domain(m: Any) -> None:
        m.graph.node[0].domain = "com.example"

    refused(changed(domain), "com.example")

    def function(m: Any) -> None:
        m.functions.add().name = "Tanh"

    refused(changed(function), "Tanh")
    refused(changed(lambda m: m.ClearField("opset_import")), "opset")
    refused(changed(lambda m: m.graph.ClearField("output")), "outputs")

    def text(m: Any) -> None:
        m.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING

    refused(changed(text), "STRING")
