"""What was saved comes back as it was; a file that was cut, changed or made up is refused."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import zstate as zs
from zstate import cli
from zstate.graph import storage as codec
from zstate.graph.files import _checksum
from zstate.types import Array, float_dtype


def model() -> tuple[zs.Graph, dict[str, zs.Tensor]]:
    """One node or more of every family, gradients and an update of a variable."""
    g = zs.Graph()
    rng = np.random.default_rng(3)
    tokens = g.placeholder(shape=(None, 2), dtype="int32", name="tokens")
    table = g.variable(rng.normal(size=(5, 4)), name="table")
    R = g.variable(rng.normal(size=(9, 3)), name="R")
    W = g.variable(rng.normal(size=(9, 4)), name="W")
    d = zs.GRUDescriptor(reset_after=True, output_gate_activation=zs.Activation.HARD_SIGMOID)
    (h,) = g.gru(
        g.gather(table, tokens), recurrent_weight=R, input_weight=W, descriptor=d, name="gru"
    )
    state = g.random_philox_state(seed=4, name="state")
    drawn, after = g.random_normal((1, 2, 3), state, dtype="float64")
    y = g.soft_max(h * drawn, axis=-1)
    last = g.strided_slice(y, [-1, 0, 0], [None, 2, 3], [1, 1, 2])
    loss = g.reduction_sum(g.square(last), name="loss")
    gradients = g.gradients(of=loss, with_respect_to=[table, R, W])
    for variable, gradient in gradients.items():
        g.assign(variable, g.stochastic_gradient_descent(0.1, variable, gradient), name="update")
    g.assign(state, after, name="next")
    return g, {"tokens": tokens, "loss": loss}


FED = np.array([[0, 1], [4, 2], [3, 3]], np.int32)


def effects(g: zs.Graph) -> list[zs.Tensor]:
    return [node.results[0] for node in g.nodes if node.op.name == "assign"]


def by_name(g: zs.Graph, name: str) -> zs.Tensor:
    return next(t for node in g.nodes for t in node.results if t.name == name)


def trained(g: zs.Graph, steps: int) -> list[float]:
    tokens, loss = by_name(g, "tokens"), by_name(g, "loss")
    return [
        float(g.run({tokens: FED}, [loss], operations=effects(g))[loss].item())
        for _ in range(steps)
    ]


def test_a_graph_comes_back_with_the_state_of_its_variables(tmp_path: Path) -> None:
    g, _ = model()
    first = trained(g, 2)
    g.save(tmp_path / "g.safetensors")
    loaded = zs.Graph.load(tmp_path / "g.safetensors")
    assert str(loaded) == str(g)
    assert first[0] != first[1]
    assert trained(loaded, 3) == trained(g, 3)
    for name, value in g.variables().items():
        np.testing.assert_array_equal(loaded.variables()[name], value)


def test_an_option_beyond_mpsgraph_comes_back(tmp_path: Path) -> None:
    g = zs.Graph()
    rng = np.random.default_rng(5)
    x = g.placeholder(shape=(None, 2, 8), dtype="float64", name="x")
    R, p = g.constant(rng.normal(size=(8, 2))), g.constant(rng.normal(size=8))
    d = zs.LSTMDescriptor(peephole_on_new_cell=True)
    (h,) = g.lstm(x, recurrent_weight=R, peephole=p, descriptor=d, name="layer")
    assert "LSTMDescriptor(peephole_on_new_cell)" in str(g)
    g.save(tmp_path / "g.safetensors")
    loaded = zs.Graph.load(tmp_path / "g.safetensors")
    assert str(loaded) == str(g)
    fed, again = rng.normal(size=(3, 2, 8)), by_name(loaded, h.name)
    found = loaded.run({by_name(loaded, "x"): fed}, [again])[again]
    np.testing.assert_array_equal(found, g.run({x: fed}, [h])[h])


def test_a_program_comes_back_on_its_own(tmp_path: Path) -> None:
    g, at = model()
    program = g.compile({at["tokens"]: ((3, 2), "int32")}, [at["loss"]], operations=effects(g))
    program.save(tmp_path / "p.safetensors")
    loaded = zs.Executable.load(tmp_path / "p.safetensors")
    assert loaded.memory == program.memory
    assert loaded.target_names == ["loss"]
    for _ in range(3):
        np.testing.assert_array_equal(loaded.run([FED])[0], program.run([FED])[0])
    before = g.variables()["R"]
    loaded.run([FED])
    np.testing.assert_array_equal(g.variables()["R"], before)
    np.testing.assert_array_equal(program.variables["R"], before)


def test_reads_after_loading_see_the_assign(tmp_path: Path) -> None:
    g = zs.Graph()
    v = g.variable(np.zeros(2), name="v")
    g.assign(v, v + 1.0)
    g.save(tmp_path / "g")
    loaded = zs.Graph.load(tmp_path / "g")
    read = loaded.read(by_name(loaded, "v"))
    assert loaded.run({}, [read])[read].tolist() == [1, 1]


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "bfloat16", "int64", "int32", "uint8", "bool"]
)
def test_every_type_and_the_package_safetensors_agree(dtype: str, tmp_path: Path) -> None:
    g = zs.Graph()
    value = np.array([[0, 1, 2], [3, 4, 5]]).astype(float_dtype(dtype))
    g.constant(value, name="c")
    g.save(tmp_path / "g")
    loaded = zs.Graph.load(tmp_path / "g")
    found = loaded.run({}, [by_name(loaded, "c")]).popitem()[1]
    assert found.dtype == value.dtype
    assert (found == value).all()
    with safetensors.safe_open(tmp_path / "g", framework="pt") as file:
        assert file.metadata()["format"] == "zstate"
        (name,) = file.keys()
        assert file.get_tensor(name).tolist() == value.tolist()


def test_files_of_the_package_can_be_read(tmp_path: Path) -> None:
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(7)}
    safetensors.numpy.save_file(arrays, tmp_path / "f", metadata={"x": "y"})
    found, metadata = codec.read(tmp_path / "f")
    assert metadata == {"x": "y"}
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
    with pytest.raises(zs.GraphError, match="expected a file that zstate saved, got another"):
        zs.Graph.load(tmp_path / "f")


def test_a_truncated_file_is_refused_at_every_length(tmp_path: Path) -> None:
    model()[0].save(tmp_path / "g")
    whole = (tmp_path / "g").read_bytes()
    for length in [*range(40), *range(40, len(whole), 997), len(whole) - 1]:
        (tmp_path / "cut").write_bytes(whole[:length])
        with pytest.raises(zs.GraphError, match=r"\[load\] .*cut': expected a whole safetensors"):
            zs.Graph.load(tmp_path / "cut")


def test_a_changed_byte_is_refused_wherever_it_is(tmp_path: Path) -> None:
    model()[0].save(tmp_path / "g")
    whole = (tmp_path / "g").read_bytes()
    wanted = str(model()[0])
    rng = np.random.default_rng(0)
    for place in {*range(8, 60), *rng.integers(60, len(whole), 200).tolist(), len(whole) - 1}:
        changed = bytearray(whole)
        changed[place] ^= 0x15
        (tmp_path / "bad").write_bytes(changed)
        outcome = loaded_or_message(tmp_path / "bad")
        # A space of the header's padding may change, the graph may not.
        assert outcome == wanted or outcome.startswith("[load] "), place


def loaded_or_message(path: Path) -> str:
    try:
        return str(zs.Graph.load(path))
    except zs.GraphError as error:
        return str(error)


def rewrite(path: Path, change: Callable[[dict[str, Any], dict[str, Array]], object]) -> None:
    """Change the structure and make the checksum fit, as somebody who knows the format would."""
    arrays, metadata = codec.read(path)
    structure = json.loads(metadata["structure"])
    change(structure, arrays)
    text = json.dumps(structure)
    metadata.update(structure=text, sha256=_checksum(text, arrays))
    codec.write(path, arrays, metadata)


def node(structure: dict[str, Any], op: str) -> Any:
    return next(entry for entry in structure["nodes"] if entry["op"] == op)


TAMPERINGS: dict[str, Callable[[dict[str, Any], dict[str, Array]], object]] = {
    "unknown op": lambda s, a: node(s, "gru").update(op="eval"),
    "later input": lambda s, a: node(s, "gather").update(inputs=[[99, 0], [0, 0]]),
    "negative input": lambda s, a: node(s, "gather").update(inputs=[[-1, 0], [0, 0]]),
    "no such result": lambda s, a: node(s, "gather").update(inputs=[[1, 5], [0, 0]]),
    "too few inputs": lambda s, a: node(s, "multiplication")["inputs"].pop(),
    "wrong type": lambda s, a: node(s, "gather")["attributes"].update(axis="0"),
    "a bool for a number": lambda s, a: node(s, "gather")["attributes"].update(axis=True),
    "axis outside": lambda s, a: node(s, "gather")["attributes"].update(axis=9),
    "extra attribute": lambda s, a: node(s, "gather")["attributes"].update(code="x"),
    "no attribute": lambda s, a: node(s, "gather")["attributes"].clear(),
    "shape": lambda s, a: node(s, "soft_max").update(results=[[[None, 2, 4], "float64"]]),
    "dtype": lambda s, a: node(s, "placeholder").update(results=[[[None, 2], "object"]]),
    "descriptor": lambda s, a: node(s, "gru")["attributes"]["descriptor"].update(kind="os.system"),
    "activation": lambda s, a: node(s, "gru")["attributes"]["descriptor"].update(
        reset_gate_activation=9
    ),
    "names": lambda s, a: node(s, "gru")["attributes"].update(names=["source", "x", "bias"]),
    "assign to a result": lambda s, a: node(s, "assign").update(
        inputs=[node(s, "assign")["inputs"][1]] * 2
    ),
    "missing array": lambda s, a: a.pop("n1"),
    "spare array": lambda s, a: a.update(n999=np.zeros(2)),
    "array of another shape": lambda s, a: a.update(n1=np.zeros((5, 5))),
    "no nodes": lambda s, a: s.pop("nodes"),
    "nodes of another kind": lambda s, a: s.update(nodes=[1, 2]),
}


@pytest.mark.parametrize("change", TAMPERINGS.values(), ids=TAMPERINGS)
def test_a_made_up_structure_is_refused(
    change: Callable[[dict[str, Any], dict[str, Array]], object], tmp_path: Path
) -> None:
    model()[0].save(tmp_path / "g")
    rewrite(tmp_path / "g", lambda s, a: None)
    zs.Graph.load(tmp_path / "g")  # the rewriting itself is no reason to refuse
    rewrite(tmp_path / "g", change)
    with pytest.raises(zs.GraphError, match=r"\[load\] .*: expected a file that zstate saved, got"):
        zs.Graph.load(tmp_path / "g")


PROGRAM_TAMPERINGS: dict[str, Callable[[dict[str, Any], dict[str, Array]], object]] = {
    "feeds": lambda s, a: s.update(feeds=[]),
    "targets": lambda s, a: s.update(targets=[[999, 0]]),
    "names": lambda s, a: s.update(target_names=[]),
    "updates": lambda s, a: s["updates"][0].reverse(),
    "unknown size": lambda s, a: node(s, "placeholder").update(results=[[[None, 2], "int32"]]),
}


@pytest.mark.parametrize("change", PROGRAM_TAMPERINGS.values(), ids=PROGRAM_TAMPERINGS)
def test_a_made_up_program_is_refused(
    change: Callable[[dict[str, Any], dict[str, Array]], object], tmp_path: Path
) -> None:
    g, at = model()
    feeds: Any = {at["tokens"]: ((3, 2), "int32")}
    g.compile(feeds, [at["loss"]], operations=effects(g)).save(tmp_path / "p")
    rewrite(tmp_path / "p", change)
    with pytest.raises(zs.GraphError, match=r"\[load\] .*: expected a file that zstate saved, got"):
        zs.Executable.load(tmp_path / "p")


def test_other_versions_and_kinds_are_named(tmp_path: Path) -> None:
    g, _ = model()
    g.save(tmp_path / "g")
    with pytest.raises(zs.GraphError, match="expected a saved executable, got a saved graph"):
        zs.Executable.load(tmp_path / "g")
    arrays, metadata = codec.read(tmp_path / "g")
    codec.write(tmp_path / "g", arrays, {**metadata, "version": "2"})
    with pytest.raises(zs.GraphError, match="expected format version 1, got version '2'"):
        zs.Graph.load(tmp_path / "g")


@pytest.mark.parametrize(
    "content",
    [
        (b"[]", b""),
        (b"{", b""),
        (b'{"__metadata__":{"a":1}}', b""),
        (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b""),
        (b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', b"xxxx"),
        (b'{"a":{"dtype":"F9","shape":[],"data_offsets":[0,4]}}', b"xxxx"),
        (b'{"a":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}}', b"xxxx"),
        (b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}', b"xxxx"),
        (b'{"a":{"dtype":"F32"}}', b"xxxx"),
        (b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[4,4]}}', b"xxxx"),
        (b"{}  ", b"xxxx"),
    ],
    ids=lambda content: content[0].decode(),
)
def test_bad_headers_are_refused(content: tuple[bytes, bytes], tmp_path: Path) -> None:
    header, data = content
    (tmp_path / "f").write_bytes(struct.pack("<Q", len(header)) + header + data)
    with pytest.raises(
        zs.GraphError, match=r"\[load\] .*f': expected a whole safetensors file, got one that"
    ):
        zs.Graph.load(tmp_path / "f")


def test_arrays_of_any_memory_layout(tmp_path: Path) -> None:
    whole = np.arange(24.0).reshape(2, 3, 4)
    arrays = {
        "turned": whole.T,
        "spaced": whole[..., ::2],
        "backwards": whole[::-1],
        "repeated": np.broadcast_to(whole[0, 0], (3, 4)),
        "swapped": whole.astype(">f8"),
        "none": whole[:0],
        "number": np.array(7.0),
    }
    codec.write(tmp_path / "f", arrays, {})
    found, metadata = codec.read(tmp_path / "f")
    assert metadata == {}
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        assert found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array, name)


def test_a_file_of_the_first_writer_still_loads() -> None:
    """Written by zstate's own code, before the package did it; the format is the same."""
    loaded = zs.Graph.load(Path(__file__).parent / "data" / "graph_v1.safetensors")
    names = {tensor.name: tensor for node in loaded.nodes for tensor in node.results}
    fed = {names["x"]: np.ones((2, 2, 4), np.float32)}
    found = loaded.run(fed, [names["loss"], names["half"], names["flags"]])
    assert found[names["loss"]].item() == pytest.approx(3.7065015, rel=1e-5)
    assert found[names["half"]].dtype == float_dtype("bfloat16")
    assert found[names["half"]].tolist() == [0.5, -2.0]
    assert found[names["flags"]].tolist() == [True, False, True]
    weights = np.random.default_rng(3).normal(size=(9, 3)).astype(np.float32)
    np.testing.assert_array_equal(loaded.variables()["R"], weights)


def test_without_the_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model()[0].save(tmp_path / "g")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=r"pip install 'zstate\[files\]'"):
        zs.Graph.load(tmp_path / "g")


def test_a_crash_while_writing_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    g, _ = model()
    g.save(tmp_path / "g")
    before = (tmp_path / "g").read_bytes()
    trained(g, 1)

    def crash(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", crash)
    with pytest.raises(OSError, match="no space left"):
        g.save(tmp_path / "g")
    assert (tmp_path / "g").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["g"]


def test_the_command_prints_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    g, at = model()
    g.save(tmp_path / "g")
    assert cli.main(["graph", str(tmp_path / "g")]) == 0
    assert "gru:state float64[?,2,3] = gru(source=" in capsys.readouterr().out
    assert cli.main(["graph", str(tmp_path / "g"), "--svg", str(tmp_path / "g.svg")]) == 0
    from xml.etree import ElementTree

    root = ElementTree.fromstring((tmp_path / "g.svg").read_text())
    boxes = root.findall("{http://www.w3.org/2000/svg}g/{http://www.w3.org/2000/svg}rect")
    paths = root.findall("{http://www.w3.org/2000/svg}path")
    operations = [n for n in g.nodes if n.op.name not in ("constant", "variable", "assign")]
    assert len(boxes) == len(operations)
    assert len(paths) == len(
        {(t.node, n) for n in operations for t in n.inputs if t.node in operations}
    )
    assert len({(box.get("x"), box.get("y")) for box in boxes}) == len(boxes)
    g.compile({at["tokens"]: ((3, 2), "int32")}, [at["loss"]]).save(tmp_path / "p")
    dot = tmp_path / "p.dot"
    assert cli.main(["graph", str(tmp_path / "p"), "--dot", str(dot)]) == 0
    assert dot.read_text().startswith("digraph zstate {")
    (tmp_path / "g").write_bytes(b"nothing")
    assert cli.main(["graph", str(tmp_path / "g")]) == 2
    assert "expected a whole safetensors file" in capsys.readouterr().err
