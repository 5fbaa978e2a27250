"""Cells from equations in a graph: numbers, gradients, programs, copies, files, exports."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
import torch

import zstate as zs
import zstate.onnx as zo
from tests.cells.made_up import shapes_of_call
from tests.graph.test_files import rewrite
from zstate import cells, cli
from zstate.errors import DescriptorError, DTypeError, GraphError, OptionError, ShapeError

T, N, I, H = 4, 3, 2, 5
WAYS: list[dict[str, Any]] = [{}, {"reverse": True}, {"bidirectional": True}]


@cells.cell(gates="i f z o", states="h c", parameters="p_i p_o", initial={"c": 0.5})
def peeping(x: Any, R: Any, h: Any, c: Any, p_i: Any, p_o: Any) -> Any:
    i = cells.sigmoid(x.i + R.i @ h + p_i * c)
    f = cells.sigmoid(x.f + R.f @ h)
    z = cells.tanh(x.z + R.z @ h)
    new = f * c + i * z
    return cells.sigmoid(x.o + R.o @ h + p_o * c) * cells.tanh(new), new


CELLS = [peeping, cells.mgu, cells.cifg, cells.slstm]
by_cell = pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.__name__)
by_way = pytest.mark.parametrize("way", WAYS, ids=str)


def drawn(cell: cells.MadeCell, way: dict[str, Any], dtype: Any = "float64") -> dict[str, Any]:
    """Random inputs of a call with everything that the cell takes."""
    rng = np.random.default_rng(len(way) + 10)
    directions = 2 if way.get("bidirectional") else 1
    shapes = shapes_of_call(cell.definition, (T, N, I, H), directions)
    return {name: (rng.normal(size=s) / 2).astype(dtype) for name, s in shapes.items()}


def built(
    cell: cells.MadeCell, given: dict[str, Any], unknown: bool = False, **options: Any
) -> tuple[dict[str, zs.Tensor], list[zs.Tensor]]:
    """The placeholders by name, and the node's results."""
    g = zs.Graph()
    fed = {
        name: g.placeholder(
            shape=(None,) * array.ndim if unknown and array.ndim == 3 else array.shape,
            dtype=array.dtype.name,
            name=name,
        )
        for name, array in given.items()
    }
    return fed, g.recurrent(cell, **fed, **options)  # type: ignore[arg-type]


def same_bits(found: Any, wanted: Any) -> None:
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", ["float64", "float32", ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("unknown", [False, True], ids=["known", "unknown"])
@by_way
@by_cell
def test_a_node_gives_what_the_call_gives(
    cell: cells.MadeCell, way: dict[str, Any], unknown: bool, dtype: Any
) -> None:
    given = drawn(cell, way, dtype)
    for left_out in ((), ("mask", "bias"), ("init_c", "init_m", "init_n")):
        some = {name: array for name, array in given.items() if name not in left_out}
        fed, results = built(cell, some, unknown, **way)
        wanted = cell(**some, **way)
        states = [each.name for each in cell.definition.states]
        assert [tensor.name.split(":")[1] for tensor in results] == states
        found = results[0].graph.run({fed[name]: some[name] for name in some}, results)
        for name, tensor in zip(states, results, strict=True):
            same_bits(found[tensor], getattr(wanted, name))
    if dtype == "float64":
        feeds = {fed[name]: torch.tensor(some[name]) for name in some}
        on_torch = results[0].graph.run(feeds, results)
        for tensor in results:
            assert torch.equal(on_torch[tensor], torch.tensor(found[tensor]))


@by_way
@by_cell
def test_gradients_of_a_loss_on_any_state(cell: cells.MadeCell, way: dict[str, Any]) -> None:
    given = drawn(cell, way)
    rng = np.random.default_rng(5)
    states = [each.name for each in cell.definition.states]
    for left_out in ((), ("input_weight", "init_c", "init_m")):
        some = {name: array for name, array in given.items() if name not in left_out}
        if "input_weight" in left_out:
            some["source"] = rng.normal(size=(T, N, given["input_weight"].shape[0]))
        out = cell(**some, training=True, **way)
        for chosen in [[name] for name in states] + [states]:
            fed, results = built(cell, some, unknown=True, **way)
            g = results[0].graph
            dy = {name: rng.normal(size=out[0].shape) for name in chosen}
            loss = g.constant(0.0, shape=(), dtype="float64")
            for name, tensor in zip(states, results, strict=True):
                if name in dy:
                    loss = loss + g.reduction_sum(tensor * g.constant(dy[name]))
            others = {name: some[name] for name in some if name not in ("source",)}
            wanted = cell.gradients(some["source"], out=out, state_gradients=dy, **others, **way)
            named = {n: array for n, array in wanted._asdict().items() if array is not None}
            gradients = g.gradients(loss, [fed[name] for name in named])
            found = g.run({fed[name]: some[name] for name in some}, gradients.values())
            for name, array in named.items():
                same_bits(found[gradients[fed[name]]], array)


def test_the_gradient_node_by_hand() -> None:
    given = drawn(peeping, {}, "float32")
    out = peeping(**given, training=True)
    wanted = peeping.gradients(**given, out=out, state_gradients={"h": out.h, "c": out.c})
    g = zs.Graph()
    fed = {name: g.constant(array) for name, array in given.items()}
    h, c, z = g.recurrent(peeping, **fed, training=True)
    saved = {"z_state": z, "h_output_fwd": h, "c_output_fwd": c}
    found = g.recurrent_gradients(
        peeping, **fed, **saved, source_gradient=h, c_gradient=c, name="back"
    )
    assert [tensor.name for tensor in found] == [f"back:{n}" for n in wanted._fields]
    for tensor, array in zip(found, wanted, strict=True):
        same_bits(g.run({}, [tensor])[tensor], array)


def test_built_in_cells_by_name() -> None:
    rng = np.random.default_rng(0)
    g = zs.Graph()
    x, R = g.constant(rng.normal(size=(T, N, 4 * H))), g.constant(rng.normal(size=(4 * H, H)))
    s = g.constant(rng.normal(size=(N, H)))
    for cell in (cells.LSTM, "lstm"):
        found = g.recurrent(cell, x, recurrent_weight=R, init_cell=s, reverse=True, training=True)
        wanted = g.lstm(
            x,
            recurrent_weight=R,
            init_cell=s,
            descriptor=zs.LSTMDescriptor(reverse=True, training=True),
        )
        assert [t.node.op.name for t in found] == ["lstm"] * 3
        values = g.run({}, [*found, *wanted])
        for a, b in zip(found, wanted, strict=True):
            same_bits(values[a], values[b])


def learner(cell: cells.MadeCell) -> tuple[zs.Graph, zs.Tensor, zs.Tensor, zs.Tensor]:
    """A layer, its loss, and a step of training."""
    given = drawn(cell, {}, "float32")
    g = zs.Graph()
    x = g.placeholder(shape=(None, N, I), name="x")
    own = {each.name: g.variable(given[each.name]) for each in cell.definition.own}
    R = g.variable(given["recurrent_weight"], name="R")
    W = g.constant(given["input_weight"])
    states = g.recurrent(cell, x, recurrent_weight=R, input_weight=W, **own, name="layer")
    loss = g.mean(g.square(states[-1] - 0.3), name="loss")
    gradient = g.gradients(loss, [R])[R]
    step = g.assign(R, g.stochastic_gradient_descent(0.5, R, gradient), name="step")
    return g, x, loss, step


def losses(g: zs.Graph) -> list[float]:
    named = {tensor.name: tensor for node in g.nodes for tensor in node.results}
    feeds = {named["x"]: drawn(cells.mgu, {}, "float32")["source"]}
    loss, step = named["loss"], named["step"]
    return [g.run(feeds, [loss], [step])[loss].item() for _ in range(3)]


def local() -> cells.MadeCell:
    @cells.cell(gates="z", states="h s", initial={"s": 2.0})
    def inner(x: Any, R: Any, h: Any, s: Any) -> Any:
        new = 0.5 * s + cells.tanh(x.z + R.z @ h)
        return cells.tanh(new), new

    return inner


def test_a_program_runs_the_layer_once() -> None:
    g, x, loss, step = learner(peeping)
    program = g.compile({x: ((T, N, I), "float32")}, [loss], [step])
    assert [n.op.name for n in program.nodes].count("recurrent") == 1
    assert losses(copy.deepcopy(g))[0] == program.run([drawn(peeping, {}, "float32")["source"]])[0]


def test_cells_on_the_same_tensors_are_no_twins() -> None:
    g = zs.Graph()
    rng = np.random.default_rng(1)
    x, R = g.constant(rng.normal(size=(T, N, 2 * H))), g.variable(rng.normal(size=(2 * H, H)))

    @cells.cell(gates="f z")
    def other(x: Any, R: Any, h: Any) -> Any:
        return cells.tanh(x.f + R.f @ h) * cells.sigmoid(x.z + R.z @ h)

    (first,) = g.recurrent(cells.mgu, x, recurrent_weight=R)
    second, _ = g.recurrent(other, x, recurrent_weight=R, training=True)
    values = g.run({}, [first, second])
    arrays = (g.run({}, [x])[x], g.variables()["variable_1"])
    same_bits(values[first], cells.mgu(*arrays).h)
    same_bits(values[second], other(*arrays).h)


@pytest.mark.parametrize("way", ["copy", "deepcopy", "pickle"])
@pytest.mark.parametrize("cell", [cells.slstm, local()], ids=lambda cell: cell.__name__)
def test_copies(cell: cells.MadeCell, way: str) -> None:
    g, *_ = learner(cell)
    again = pickle.loads(pickle.dumps(g)) if way == "pickle" else getattr(copy, way)(g)
    assert str(again) == str(g)
    found = losses(again)
    assert found[0] > found[1] > found[2] and found == losses(g)


@pytest.mark.parametrize("cell", [*CELLS, local()], ids=lambda cell: cell.__name__)
def test_files(cell: cells.MadeCell, tmp_path: Path) -> None:
    g, x, loss, step = learner(cell)
    program = g.compile({x: ((T, N, I), "float32")}, [loss], [step])
    g.save(tmp_path / "g")
    program.save(tmp_path / "p")
    again = zs.Graph.load(tmp_path / "g")
    assert str(again) == str(g)
    nodes = [node for node in again.nodes if "cell" in node.attributes]
    made = {node.attributes["cell"] for node in nodes}
    assert len(nodes) == 3 and len(made) == 1  # the layer, its twin, their gradient
    (found,) = made
    assert found is not cell and found.definition.key == cell.definition.key
    assert str(found) == str(cell) and repr(found) == repr(cell)
    given = drawn(cell, {})
    for a, b in zip(found(**given, training=True), cell(**given, training=True), strict=True):
        same_bits(a, b)
    source = drawn(cell, {}, "float32")["source"]
    loaded = zs.Executable.load(tmp_path / "p")
    values = [loaded.run([source])[0].item() for _ in range(3)]
    assert values == losses(again) == losses(g)


TAMPERINGS: dict[str, tuple[Any, str]] = {
    "function": (lambda a: a.update(cell=a["cell"].replace("tanh", "eval")), "eval"),
    "python": (lambda a: a.update(cell="__import__('os')"), "line 1"),
    "deep": (lambda a: a.update(cell=a["cell"] + "\nq = " + "(" * 999), "at most 50"),
    "long": (lambda a: a.update(cell=a["cell"] + "\n" * 99999), "characters"),
    "no text": (lambda a: a.update(cell=None), "kind cell"),
    "another cell": (lambda a: a.update(cell=cells_text(cells.cifg)), "expected"),
    "no cell": (lambda a: a.pop("cell"), "attributes"),
    "another descriptor": (
        lambda a: a.update(descriptor={**a["descriptor"], "kind": "GRUDescriptor"}),
        "CellDescriptor",
    ),
    "other options": (lambda a: a["descriptor"].update(training=1), "training"),
    "no parameter": (
        lambda a: a.update(names=["bias" if n == "p_i" else n for n in a["names"]]),
        "p_i",
    ),
}


def cells_text(cell: cells.MadeCell) -> str:
    from zstate.cells.text import write_cell

    return write_cell(cell)


@pytest.mark.parametrize(("change", "says"), TAMPERINGS.values(), ids=TAMPERINGS)
def test_a_made_up_file_is_refused(change: Any, says: str, tmp_path: Path) -> None:
    learner(peeping)[0].save(tmp_path / "g")

    def tamper(structure: Any, _: Any) -> None:
        node = next(each for each in structure["nodes"] if each["op"] == "recurrent")
        change(node["attributes"])

    rewrite(tmp_path / "g", lambda *_: None)
    zs.Graph.load(tmp_path / "g")  # the rewriting itself is no reason to refuse
    rewrite(tmp_path / "g", tamper)
    with pytest.raises(
        GraphError, match=r"\[load\] .*: expected a file that zstate saved, got"
    ) as f:
        zs.Graph.load(tmp_path / "g")
    assert says in str(f.value)


def test_built_in_rows_take_no_other_descriptor(tmp_path: Path) -> None:
    g = zs.Graph()
    g.gru(g.placeholder(shape=(2, 1, 6)), recurrent_weight=g.placeholder(shape=(6, 2)))
    g.save(tmp_path / "g")

    def tamper(structure: Any, _: Any) -> None:
        options = {"kind": "CellDescriptor", "training": False}
        structure["nodes"][-1]["attributes"]["descriptor"] = options

    rewrite(tmp_path / "g", tamper)
    with pytest.raises(GraphError, match="expected GRUDescriptor"):
        zs.Graph.load(tmp_path / "g")


def test_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    g, *_ = learner(cells.slstm)
    g.save(tmp_path / "g")
    assert cli.main(["graph", str(tmp_path / "g"), "--dot", str(tmp_path / "d")]) == 0
    assert 'label="recurrent (slstm)\\nlayer' in (tmp_path / "d").read_text()
    assert "recurrent (slstm)" in g.to_svg() and "recurrent (slstm)" in g.to_svg(fold=True)
    capsys.readouterr()
    assert cli.main(["graph", str(tmp_path / "g")]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert sum("cell=slstm" in line for line in shown) == 3
    assert shown[-12:] == ["cell slstm", *(f"  {line}" for line in str(cells.slstm).splitlines())]


@by_way
@by_cell
def test_onnx(cell: cells.MadeCell, way: dict[str, Any], tmp_path: Path) -> None:
    given = drawn(cell, way, "float32")
    for left_out in ((), ("mask", "bias", "init_c", "init_m")):
        some = {name: array for name, array in given.items() if name not in left_out}
        _, results = built(cell, some, **way)
        path = tmp_path / f"{len(some)}.onnx"
        zo.save(results[0].graph, outputs={str(k): t for k, t in enumerate(results)}, path=path)
        found = onnxruntime.InferenceSession(path).run(None, some)
        wanted = cell(**some, **way)
        for k, array in enumerate(found):
            np.testing.assert_allclose(array, wanted[k], rtol=2e-5, atol=2e-6)


def test_what_else_is_refused_by_name(tmp_path: Path) -> None:
    g, x, loss, _ = learner(cells.slstm)
    with pytest.raises(OptionError, match=r"'layer' \(recurrent\): MPSGraph has no slstm"):
        g.to_swift("Model")
    R = next(node.results[0] for node in g.nodes if node.name == "R")
    gradient = g.gradients(loss, [R])[R]
    with pytest.raises(GraphError, match="use slstm on torch tensors"):
        g.gradients(g.reduction_sum(gradient), [R])
    pytest.importorskip("coremltools")
    from zstate import coreml

    with pytest.raises(OptionError, match="MIL has no slstm"):
        coreml.save(g.compile({x: ((T, N, I), "float32")}, [loss]), tmp_path / "m.mlpackage")


def test_refusals() -> None:
    g = zs.Graph()
    x, R = g.placeholder(shape=(T, N, 4 * H)), g.placeholder(shape=(4 * H, H))
    p = g.placeholder(shape=(H,))
    layer = {"source": x, "recurrent_weight": R, "p_i": p, "p_o": p}
    g.recurrent(peeping, **layer)  # type: ignore[arg-type]
    cases: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        ("slstm", {}, DTypeError, r"\[recurrent\] cell: expected a cell from .* got str 'slstm'"),
        (lambda x, R, h: h, {}, DTypeError, r"\[recurrent\] cell: .* got function"),
        (peeping, {"p_i": None}, DTypeError, r"\[recurrent 'a'\] p_i: expected a parameter of p"),
        (peeping, {"init_m": p}, OptionError, r"\[recurrent 'a'\] init_m: expected one of source"),
        (peeping, {"bias": p}, ShapeError, r"\[recurrent 'a'\] bias: expected \[4H\] = \[20\]"),
        (peeping, {"mask": np.ones(1)}, DTypeError, r"mask: expected a Tensor of this graph"),
        (peeping, {"reverse": 1}, DescriptorError, r"reverse: expected a bool"),
        (peeping, {"heads": 0}, OptionError, r"\[recurrent 'a'\] heads: expected"),
        (cells.GRU, {}, OptionError, r"\[gru 'a'\] p_i: expected one of source"),
    ]
    for cell, changes, error, says in cases:
        if "'a'" in says:
            changes = {**changes, "name": "a"}
        with pytest.raises(error, match=says):
            g.recurrent(cell, **{**layer, **changes})


@pytest.mark.parametrize("cell", ["lstm", "gru", "single_gate_rnn", cells.cifg], ids=str)
@pytest.mark.parametrize("extension", ["resets", "heads"])
def test_swift_and_core_ml_refuse_resets_and_heads(
    cell: Any, extension: str, tmp_path: Path
) -> None:
    """They must not be left out in silence: the numbers would be others."""
    kind = getattr(cell, "__name__", cell)
    G = {"lstm": 4, "gru": 3, "single_gate_rnn": 1, "cifg": 3}[kind]
    g = zs.Graph()
    x = g.placeholder(shape=(T, N, G * 6), name="x")
    if extension == "resets":
        more: dict[str, Any] = {"resets": g.constant(np.eye(T, N) > 0)}
        R = g.constant(np.ones((G * 6, 6), np.float32))
    else:
        more, R = {"heads": 2}, g.constant(np.ones((2, G * 3, 3), np.float32))
    h = g.recurrent(cell, x, recurrent_weight=R, **more)[0]
    refused = rf"{extension}: expected (none|1), as .* got"
    swift = refused if isinstance(cell, str) else "MPSGraph has no cifg"
    with pytest.raises(OptionError, match=swift):
        g.to_swift("Model")
    pytest.importorskip("coremltools")
    from zstate import coreml

    if extension == "heads":  # resets are refused before, as bools
        with pytest.raises(OptionError, match=refused if isinstance(cell, str) else "no cifg"):
            coreml.save(g.compile({x: ((T, N, G * 6), "float32")}, [h]), tmp_path / "m.mlpackage")
