"""Files that are broken or mean harm are refused with errors of zstate's own, and quickly."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import zstate as zs
import zstate.onnx as zo
from tests.onnx.test_loops import STEPS
from tests.onnx.test_loops import model as loop_model
from tests.onnx.test_saving import recurrent_model
from zstate.graph import Graph
from zstate.graph.ops import CONSTANT
from zstate.onnx import folding, loading, nodes

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


def text(body: str) -> Any:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]>\n{body}')


def repeated(kind: str, count: int) -> str:
    """s1 = kind(s, s), s2 = kind(s1, s1), and so on."""
    names = ["s", *(f"s{k + 1}" for k in range(count))]
    return (
        " ".join(f"{b} = {kind}({a}, {a})" for a, b in pairwise(names))
        + f" y = Identity({names[-1]})"
    )


SIZES = "m (float[N] x) => (int64[M] y) {{ s = Shape(x) {} }}"
CONSTANTS = "m () => (int64[M] y) <int64[1] s = {{1}}> {{ {} }}"
LARGE = {
    "a size times itself": (text(SIZES.format(repeated("Mul", 27))), "64 axes"),
    "twice a size, and so on": (text(SIZES.format(repeated("Add", 70))), "int64"),
    "sizes beside themselves": (text(SIZES.format(repeated("Concat<axis = 0>", 27))), ""),
    "constants beside themselves": (text(CONSTANTS.format(repeated("Concat<axis = 0>", 31))), ""),
    "Tile": (
        text("m (float[1] x) => (float[M] y) <int64[1] r = {4194304}> { y = Tile(x, r) }"),
        "",
    ),
    "Range": (
        text(
            "m () => (int64[M] y) <int64 a = {0}, int64 b = {2147483647}, int64 c = {1}>"
            "{ y = Range(a, b, c) }"
        ),
        "",
    ),
    "OneHot": (
        text(
            "m (int64[2] x) => (float[M, K] y) <int64 d = {2147483647}, float[2] v = {0.0, 1.0}>"
            "{ y = OneHot(x, d, v) }"
        ),
        "",
    ),
    "a wide kernel": (
        text(
            "m (float[1, 1, 4194304] x) => (float[a, b, c] y) <int64[3] s = {1, 1, 4194304}>"
            "{ w = ConstantOfShape(s) y = Conv(x, w) }"
        ),
        "places",
    ),
    "many groups": (
        text(
            "m (float[1, 4194304, 1] x) => (float[a, b, c] y) <int64[3] s = {4194304, 1, 1}>"
            "{ w = ConstantOfShape(s) y = Conv <group = 4194304> (x, w) }"
        ),
        "places",
    ),
    "many groups of no weights": (
        text(
            "m (float[1, C, 3] x) => (float[a, b, c] y) <float[0, 1, 1] w = {}>"
            "{ y = Conv <group = 67108864> (x, w) }"
        ),
        "places",
    ),
    "a wide kernel of no weights": (
        text(
            "m (float[1, 0, L] x) => (float[a, b, c] y) <float[1, 0, 16777216] w = {}>"
            "{ y = Conv(x, w) }"
        ),
        "places",
    ),
    "many outputs": (
        text("m (float[4] x) => (float[M] y) { y = Split <num_outputs = 2147483647> (x) }"),
        "num_outputs",
    ),
    "a wide layer": (
        text(
            "m (float[1, 1, 1] x) => (float[a, b, c, d] y)"
            "<float one = {1}, int64[3] s = {1, 1073741824, 1},"
            " int64[3] r = {1, 1073741824, 268435456}>"
            "{ w = Expand(one, s) q = Expand(one, r)"
            " y, h = LSTM <hidden_size = 268435456> (x, w, q) }"
        ),
        "",
    ),
    "peepholes of a wide layer": (
        text(
            "m (float[1, 1, 1] x, float[1, K, 1] w, float[1, K, H] q, float[1, M] p)"
            "=> (float[a, b, c, d] y)"
            "{ y, h = LSTM <hidden_size = 268435456> (x, w, q, , , , , p) }"
        ),
        "",
    ),
    "a wide gate without a product": (
        text(
            "m (float[T, N, 16384] x, float[8192, 8192] R, float[N, 8192] first)"
            "=> (float[T, N, 8192] y) <int64[2] s = {8192, 8192}>"
            "{ last, y = Scan <num_scan_inputs = 1, body = step (float[N, 8192] h, float[N, 16384]"
            " g) => (float[N, 8192] state, float[N, 8192] out)"
            " { a, b = Split <axis = 1> (g, s) r = MatMul(h, R) t = Add(a, r) u = Mul(b, t)"
            " state = Tanh(u) out = Identity(state) }> (first, x) }"
        ),
        "",
    ),
    "a long shape": (
        text(
            "m (float[1] x) => (float[M] y) <int64[1] s = {2147483648}>"
            "{ i = ConstantOfShape <value = int64[1] {1}> (s) y = Reshape(x, i) }"
        ),
        "elements",
    ),
    "a constant": (
        text(
            "m () => (float[N] y) <int64[2] s = {1099511627776, 1099511627776}>"
            "{ y = ConstantOfShape(s) }"
        ),
        "ConstantOfShape",
    ),
    "a range": (
        text(
            "m () => (int64[N] y) <int64 a = {0}, int64 b = {1099511627776}, int64 c = {1}>"
            "{ y = Range(a, b, c) }"
        ),
        "Range",
    ),
}


@pytest.mark.parametrize("what", LARGE)
def test_a_small_file_loads_small(what: str) -> None:
    """What it describes may be large: that is left to the run, or refused, but not computed."""
    model, said = LARGE[what]
    tracemalloc.start()
    try:
        if said:
            refused(model, said)
        else:
            assert len(zo.load(model).graph.nodes) < 100
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()


def test_the_constants_of_a_model_stay_within_a_budget(monkeypatch: Any) -> None:
    monkeypatch.setattr(folding, "MOST_FOLDED", 64)
    monkeypatch.setattr(folding, "MOST_FOLDED_IN_ALL", 256)
    body = repeated("Concat<axis = 0>", 9)  # 2, 4, … 512 elements
    model = zo.load(text(CONSTANTS.format(body)))
    sizes = [node.results[0].shape[0] or 0 for node in model.graph.nodes if node.op is CONSTANT]
    assert max(sizes) == 64 and sum(sizes) <= 256
    np.testing.assert_array_equal(model.run({})["y"], np.ones(512, np.int64))
    body = " ".join(f"t{k} = Add(s, s)" for k in range(300)) + " y = Identity(t299)"
    model = zo.load(text(CONSTANTS.format(body)))
    assert [node.op.name for node in model.graph.nodes] == ["constant", "addition"]
    np.testing.assert_array_equal(model.run({})["y"], [2])


def pairs(count: int) -> Any:
    """Add and Reshape in turn, every shape computed from the one before."""
    lines = [f"s{k + 1} = Add(s{k}, zero) x{k + 1} = Reshape(x{k}, s{k + 1})" for k in range(count)]
    return text(
        "m (float[2, 3] x0) => (float[3, 2] y) <int64[2] s0 = {3, 2}, int64[2] zero = {0, 0}>"
        f"{{ {' '.join(lines)} y = Identity(x{count}) }}"
    )


def test_loading_is_linear_in_the_nodes(monkeypatch: Any) -> None:
    """Loading may not walk over the graph, or compile a part of it, for each of its nodes."""
    walked = []
    needed = Graph.needed

    def counted(graph: Any, targets: Any) -> Any:
        walked.append(len(graph.nodes))
        return needed(graph, targets)

    monkeypatch.setattr(Graph, "needed", counted)
    model = zo.load(pairs(150))
    assert sum(walked) < 10 * 150
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(model.run({"x0": x})["y"], x.reshape(3, 2))


def test_ranges_that_the_run_counts() -> None:
    """A range above the budget is the same numbers, without a constant in the model."""
    model = zo.load(
        text(
            "m (float[N] x) => (int64[M] y, float[K] z, int64[L] w)"
            "<int64 a = {5}, int64 b = {200005}, int64 c = {2}, int64 zero = {0},"
            " float d = {3}, float e = {-70000.5}, float f = {-1}>"
            "{ y = Range(a, b, c) z = Range(d, e, f) s = Size(x) w = Range(zero, s, c) }"
        )
    )
    found = model.run({"x": np.zeros(140001, np.float32)})
    np.testing.assert_array_equal(found["y"], np.arange(5, 200005, 2))
    np.testing.assert_array_equal(found["z"], np.arange(3, -70000.5, -1, dtype=np.float32))
    np.testing.assert_array_equal(found["w"], np.arange(0, 140001, 2))
    assert all(
        np.size(n.attributes["store"].value) < 10 for n in model.graph.nodes if n.op is CONSTANT
    )


def test_more_dimensions_than_arrays_have() -> None:
    def many(m: Any) -> None:
        m.graph.initializer[0].dims[:] = [1] * 68 + [3, 2]

    refused(changed(many), "at most 32 dimensions")

    def fed(m: Any) -> None:
        for _ in range(68):
            m.graph.input[0].type.tensor_type.shape.dim.add().dim_value = 1

    refused(changed(fed), "at most 32 dimensions")
    ones = ", ".join(["1"] * 70)
    refused(
        text(f"m (float[1] x) => (float[M] y) <int64[70] s = {{{ones}}}> {{ y = Reshape(x, s) }}"),
        "at most 32 dimensions",
    )
    whole = f"m () => (float[M] y) <int64[70] s = {{{ones}}}> {{ y = ConstantOfShape(s) }}"
    refused(text(whole), "at most 32 dimensions")
    axes = ", ".join(str(k) for k in range(70))
    body = "{ s = Shape(x) t = Unsqueeze(s, a) y = Size(t) }"
    refused(text(f"m (float[N] x) => (int64 y) <int64[70] a = {{{axes}}}> {body}"), "Unsqueeze")


def test_no_memory_and_no_depth_are_errors_of_zstate(monkeypatch: Any) -> None:
    for error in (MemoryError, RecursionError, OverflowError):

        def fails(node: Any, error: type[Exception] = error) -> Any:
            raise error

        monkeypatch.setitem(nodes.ROWS, "Tanh", fails)
        refused(parser.parse_model(TEXT), error.__name__)
        monkeypatch.setattr(loading, "array_of", fails)
        with pytest.raises(zs.GraphError, match="onnx.load"):
            zo.load(parser.parse_model(TEXT))
        monkeypatch.undo()


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


def bent(whole: Any, rng: np.random.Generator) -> Any:
    """A model of which one number, name, kind of node or type is another."""
    model = onnx.ModelProto()
    model.CopyFrom(whole)
    graph = model.graph
    node = graph.node[rng.integers(len(graph.node))]
    names = [name for each in graph.node for name in (*each.input, *each.output)]
    number = int(rng.choice([-(2**63), 2**63 - 1, -1, 0, 1, 70, 2**31, 2**40]))
    change = rng.integers(5)
    if change == 0 and node.attribute:
        attribute = node.attribute[rng.integers(len(node.attribute))]
        attribute.i = number
        if attribute.ints:
            attribute.ints[rng.integers(len(attribute.ints))] = number
    elif change == 1:
        node.input[rng.integers(len(node.input))] = str(rng.choice([*names, ""]))
    elif change == 2:
        node.op_type = str(rng.choice([*nodes.ROWS]))
    elif change == 3:
        graph.input[0].type.tensor_type.elem_type = int(rng.integers(20))
    else:
        kind = graph.input[rng.integers(len(graph.input))].type.tensor_type
        kind.shape.dim[rng.integers(len(kind.shape.dim))].dim_value = abs(number) % 2**62
    return model


def test_models_with_something_else_in_its_place() -> None:
    rng = np.random.default_rng(5)
    wholes = [loop_model(rng, cell) for cell in STEPS]
    wholes += [recurrent_model(rng, kind, "bidirectional") for kind in ("RNN", "LSTM", "GRU")]
    loaded = 0
    for number in range(1500):
        with suppress(zs.ZStateError):  # any other exception fails the test
            zo.load(bent(wholes[number % len(wholes)], rng))
            loaded += 1
    assert 50 < loaded < 1450
