"""Graphs as Swift: a file parses, calls what Apple publishes, and means what the graph means."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("tree_sitter_swift")

import zstate as zs
from tests.graph.op_case import Case, built
from tests.graph.op_cases import CASES, IDS
from zstate import cli, pyobjc
from zstate.graph.ops import OPS
from zstate.mpsgraph.published import methods_for_op, methods_of
from zstate.operations import OPERATIONS

from .reader import Swift, unescaped

T, N, I, H = 3, 2, 4, 5
ACT = zs.Activation


def _arrays(path: Path) -> dict[str, bytes]:
    """The raw arrays of a safetensors file, read as the format's page describes it."""
    import json

    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    return {
        name: whole[8 + length :][slice(*entry["data_offsets"])]
        for name, entry in header.items()
        if name != "__metadata__"
    }


def run_file(text: str, path: Path, feeds: dict[str, Any]) -> tuple[dict[str, Any], Swift]:
    """What the file's step returns, by name, and the file; feeds go by the placeholders' names."""
    swift = Swift(text)
    graph, fed, values = swift.build(_arrays(path))
    names = re.findall(r"^    model\.(\w+): feed\((\"(?:[^\"\\]|\\.)*\"), \[", text, re.MULTILINE)
    assert {name for name, _ in names} == set(fed)
    device = pyobjc.MPSGraphDevice.deviceWithMTLDevice_(pyobjc.MTLCreateSystemDefaultDevice())
    kinds = {v: k for k, v in vars(pyobjc).items() if k.startswith("MPSDataType")}
    given = {}
    for name, literal in names:
        array = feeds[unescaped(literal)]
        tensor = fed[name]
        assert kinds[tensor.dataType()].lower().endswith(array.dtype.name.replace("bool", "bool"))
        data = pyobjc.NSData.dataWithBytes_length_(array.tobytes(), array.nbytes)
        given[tensor] = pyobjc.MPSGraphTensorData.alloc().initWithDevice_data_shape_dataType_(
            device, data, array.shape or [1], tensor.dataType()
        )
    targets = [tensor for _, tensor in values["returned"]]
    found = graph.runWithFeeds_targetTensors_targetOperations_(
        given, targets, [operation for _, operation in values["stored"]] or None
    )
    return {name: np.array(found[tensor]) for name, tensor in values["returned"]}, swift


def _same(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == (expected.shape or found.shape) and found.size == expected.size
    np.testing.assert_allclose(
        found.reshape(expected.shape), expected, rtol=tolerance, atol=tolerance
    )


def _check(
    g: zs.Graph, feeds: dict[zs.Tensor, Any], targets: list[zs.Tensor], folder: Path
) -> Swift:
    """The file of a graph gives what the graph gives."""
    text = g.to_swift("Model", targets=targets)
    assert text == g.to_swift("Model", targets=targets)
    g.save(folder / "Model.safetensors")
    names = {tensor.name: array for tensor, array in feeds.items()}
    found, swift = run_file(text, folder / "Model.safetensors", names)
    expected = g.run(feeds, targets)
    assert list(found) == [tensor.name for tensor in targets]
    for tensor in targets:
        _same(found[tensor.name], expected[tensor])
    return swift


def _single(array: Any) -> Any:
    return array.astype(np.float32) if array.dtype.kind == "f" else array


@pytest.fixture
def _in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cases are in float64, which MPSGraph lacks."""
    stored, cast, one_hot = zs.Graph._stored, zs.Graph.cast, zs.Graph.one_hot

    def narrow(self: zs.Graph, op: Any, value: Any, *rest: Any) -> zs.Tensor:
        return stored(self, op, _single(value) if isinstance(value, np.ndarray) else value, *rest)

    def narrow_cast(self: zs.Graph, tensor: Any, dtype: str, **rest: Any) -> zs.Tensor:
        return cast(self, tensor, dtype.replace("64", "32"), **rest)

    def narrow_one_hot(
        self: zs.Graph, *args: Any, dtype: str = "float32", **rest: Any
    ) -> zs.Tensor:
        return one_hot(self, *args, dtype=dtype.replace("64", "32"), **rest)

    monkeypatch.setattr(zs.Graph, "_stored", narrow)
    monkeypatch.setattr(zs.Graph, "cast", narrow_cast)
    monkeypatch.setattr(zs.Graph, "one_hot", narrow_one_hot)


# Apple publishes no method for the gradient of a loss with respect to its labels, and does not say
# how its division rounds integers.
REFUSED = {"soft_max_cross_entropy_labels_gradient", "integer_division"}
# Made only while sizes are unknown, or with a state that is not MPSGraph's.
WITHOUT_METHOD = {
    *REFUSED,
    *("sum_like", "mean_like", "slice_gradient", "concat_gradient", "pad_around_gradient"),
    *("gather_gradient", "gather_along_axis_gradient", "reshape_to", "broadcast_to", "sizes"),
    *("range_to", "random_tensor", "slice_to", "slice_to_gradient", "split_evenly"),
    *("recurrent", "recurrent_gradients"),  # cells from equations
    *("expect_sizes", "mean_over_processes"),
}


def test_the_same_tensors_in_other_places_are_another_call() -> None:
    g = zs.Graph()
    x, R = g.placeholder(shape=(2, 1, 12)), g.placeholder(shape=(12, 3))
    s = g.placeholder(shape=(1, 3))
    g.lstm(x, recurrent_weight=R, init_state=s)
    g.lstm(x, recurrent_weight=R, init_cell=s, descriptor=zs.LSTMDescriptor(training=True))
    assert g.to_swift("Model").count("graph.LSTM(") == 2


def test_every_op_has_a_case_or_no_method() -> None:
    tried = {*OPERATIONS, *(case.op for case in CASES), "placeholder", "constant", "variable"}
    made = tried | {"reshape_like", "broadcast_like"}  # the cases' own, with unknown sizes
    assert set(OPS) - made <= WITHOUT_METHOD


@pytest.mark.usefixtures("_in_float32")
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_every_op(case: Case, tmp_path: Path) -> None:
    case = case._replace(inputs=[_single(a) for a in case.inputs])
    for unknown in (False, True):
        try:
            g, fed, targets = built(case, unknown)
        except zs.ZStateError:
            assert unknown
            continue
        feeds = {t: a for t, a in zip(fed, case.inputs, strict=True) if t.node in g.needed(targets)}
        if case.op in REFUSED:
            with pytest.raises(zs.OptionError, match=rf"node '.*' \({case.op}\)"):
                g.to_swift("Model", targets=targets)
            continue
        if not unknown or _is_written(g, targets):
            _check(g, feeds, targets, tmp_path)


def _is_written(g: zs.Graph, targets: list[zs.Tensor]) -> bool:
    """Whether it is, or a node is refused for its sizes."""
    try:
        g.to_swift("Model", targets=targets)
    except zs.ZStateError as refusal:
        return not re.match(r"\[to_swift\] node '.*' \(\w+\): .*sizes", str(refusal))
    return True


def _layer(
    g: zs.Graph, op: str, descriptor: Any, has: tuple[str, ...]
) -> tuple[list[zs.Tensor], dict[zs.Tensor, Any]]:
    """A recurrent operation with these optional tensors, everything fed; gradients behind their
    forward operation."""
    rng = np.random.default_rng(4)
    gates = {"single_gate_rnn": 1, "lstm": 4, "gru": 3}[op.removesuffix("_gradients")]
    d = 2 if descriptor.bidirectional else 1
    double = (2,) if d == 2 else ()
    shapes = {
        "source": (T, N, I if "input_weight" in has else d * gates * H),
        "recurrent_weight": (*double, gates * H, H),
        "input_weight": (d * gates * H, I),
        "bias": (d * gates * H,),
        "peephole": (*double, 4 * H),
        "secondary_bias": (d * H,),
        "mask": (T, N, d * H),
        "source_gradient": (T, N, d * H),
    }
    feeds: dict[zs.Tensor, Any] = {}
    tensors: dict[str, zs.Tensor] = {}
    for name in ("source", "recurrent_weight", *has):
        shape = shapes.get(name, (N, d * H))
        tensors[name] = g.placeholder(shape=shape, name=name)
        feeds[tensors[name]] = rng.normal(size=shape).astype(np.float32)
    forward = OPERATIONS[op.removesuffix("_gradients")]
    passed = {name: t for name, t in tensors.items() if name in forward.inputs}
    results = getattr(g, forward.name)(**passed, descriptor=descriptor, name="layer")
    if not OPERATIONS[op].is_gradient:
        return results, feeds
    tensors["z_state"] = results[-1]
    if op == "lstm_gradients":
        tensors["cell_output_fwd"] = results[1]
    if op == "gru_gradients":
        tensors["output_fwd"] = results[0]
    tensors["source_gradient"] = g.placeholder(shape=shapes["source_gradient"], name="dY")
    feeds[tensors["source_gradient"]] = rng.normal(size=(T, N, d * H)).astype(np.float32)
    return getattr(g, op)(**tensors, descriptor=descriptor, name="back"), feeds


KINDS: dict[str, Any] = {
    "single_gate_rnn": zs.SingleGateRNNDescriptor,
    "lstm": zs.LSTMDescriptor,
    "gru": zs.GRUDescriptor,
}


@pytest.mark.parametrize("op", OPERATIONS)
def test_every_published_form(op: str, tmp_path: Path) -> None:
    """With what each of the 20 methods takes, no more: the file calls that method."""
    training = op.endswith("_gradients")
    kind = KINDS[op.removesuffix("_gradients")]
    made = 0
    for method in methods_for_op(op):
        labels = [re.sub("[A-Z]", lambda m: f"_{m[0].lower()}", p.label) for p in method.parameters]
        has = tuple(name for name in OPERATIONS[op].optional if name in labels)
        options = {"reset_after": True} if "secondary_bias" in has else {}
        g = zs.Graph()
        results, feeds = _layer(g, op, kind(training=training, **options), has)
        swift = _check(g, feeds, results, tmp_path)
        assert swift.calls[method.selector] == 1, method.selector
        made += 1
    assert made == (4 if training and op != "gru_gradients" else 3)


@pytest.mark.parametrize("cell", KINDS)
@pytest.mark.parametrize("directions", [{"reverse": True}, {"bidirectional": True}], ids=str)
def test_descriptors(cell: str, directions: dict[str, bool], tmp_path: Path) -> None:
    """Every property away from its default is set, and none at its default."""
    kind = KINDS[cell]
    options: dict[str, Any] = dict(directions)
    for field, activation in zip(kind.activation_fields, itertools.cycle(ACT)):
        if getattr(kind(), field) != activation:
            options[field] = activation
    options |= {"lstm": {"forget_gate_last": True, "produce_cell": True}}.get(cell, {})
    flags = {"gru": ("reset_gate_first", "reset_after", "flip_z")}.get(cell, ())
    options |= dict.fromkeys(flags, True)
    g = zs.Graph()
    has = ("input_weight", "bias", "init_state", "mask", *(("peephole",) if cell == "lstm" else ()))
    results, feeds = _layer(g, cell, kind(**options), has)
    swift = _check(g, feeds, results, tmp_path)
    assert sum(name.startswith(f"MPSGraph{kind.__name__}.") for name in swift.calls) == len(options)
    g = zs.Graph()
    results, feeds = _layer(g, cell, kind(), ())
    assert not any("Descriptor." in name for name in _check(g, feeds, results, tmp_path).calls)


def _trained(cell: str) -> tuple[zs.Graph, dict[zs.Tensor, Any], zs.Tensor]:
    """A model with a loss, gradients and an optimiser; the layer itself is without training."""
    rng = np.random.default_rng(2)
    g = zs.Graph()
    tokens = g.placeholder(shape=(T, N), dtype="int32", name="tokens")
    targets = g.placeholder(shape=(T, N), dtype="int32", name="targets")
    gates = {"single_gate_rnn": 1, "lstm": 4, "gru": 3}[cell]
    shapes = {"table": (7, gates * H), "R": (gates * H, H), "P": (H, 7), "h0": (N, H)}
    table, R, P, h0 = parameters = [
        g.variable(rng.normal(size=shape).astype(np.float32), name=name)
        for name, shape in shapes.items()
    ]
    x = g.gather(table, tokens)
    (h,) = getattr(g, cell)(x, recurrent_weight=R, init_state=h0, name="layer")
    logits = g.reshape(h, (T * N, H)) @ P
    labels = g.one_hot(g.reshape(targets, (T * N,)), 7)
    loss = g.soft_max_cross_entropy(logits, labels, axis=-1, name="loss")
    gradients = g.gradients(loss, parameters)
    for p in parameters:
        g.assign(p, g.stochastic_gradient_descent(0.3, p, gradients[p]))
    feeds = {t: rng.integers(0, 7, (T, N)).astype(np.int32) for t in (tokens, targets)}
    return g, feeds, loss


@pytest.mark.parametrize("cell", KINDS)
def test_a_training_step(cell: str, tmp_path: Path) -> None:
    """The whole graph is written: the loss is returned, the variables are stored."""
    g, feeds, loss = _trained(cell)
    path = tmp_path / "model.safetensors"
    g.save(path)
    text = g.to_swift("Model", weights="model.safetensors")
    assert zs.Graph.load(path).to_swift("Model", weights="model.safetensors") == text
    swift = Swift(text)
    swift.check_calls()
    graph, _, values = swift.build(_arrays(path))
    assert [name for name, _ in values["returned"]] == ["loss:loss"]
    assert len(values["stored"]) == 4
    family = {"single_gate_rnn": "singleGateRNN"}.get(cell, cell.upper())
    recurrent = [s for s in swift.calls if s.startswith((f"{family}With", f"{family}Grad"))]
    assert len(recurrent) == 2 and sum(swift.calls[s] for s in recurrent) == 2
    operations = [node.results[0] for node in g.nodes if node.op.name == "assign"]
    for _ in range(2):
        loss_now = g.run(feeds, [loss], operations)[loss]
        again = graph.runWithFeeds_targetTensors_targetOperations_(
            {values[t.name]: a for t, a in feeds.items()},
            [tensor for _, tensor in values["returned"]],
            [operation for _, operation in values["stored"]],
        )
        (value,) = again.values()
        _same(np.array(value), loss_now)
    for name, value in g.variables().items():
        _same(graph._graph.variables()[name], value)


def test_a_compiled_program(tmp_path: Path) -> None:
    g, feeds, loss = _trained("lstm")
    operations = [node.results[0] for node in g.nodes if node.op.name == "assign"]
    program = g.compile({t: (a.shape, a.dtype.name) for t, a in feeds.items()}, [loss], operations)
    path = tmp_path / "p.safetensors"
    program.save(path)
    text = program.to_swift("Program", weights=path.name)
    assert zs.Executable.load(path).to_swift("Program", weights=path.name) == text
    found, swift = run_file(text, path, {tensor.name: array for tensor, array in feeds.items()})
    _same(found["loss:loss"], program.run(list(feeds.values()))[0])
    assert swift.calls["assignVariable:withValueOfTensor:name:"] == 4


def test_unknown_sizes_and_tensors_without_dimensions(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    g = zs.Graph()
    x = g.placeholder(shape=(None, None, 3), name="x")
    s = g.placeholder(shape=(), name="s")
    k = g.placeholder(shape=(), dtype="int32", name="k")
    table = g.variable(rng.normal(size=(4, 3)).astype(np.float32))
    targets = [
        x[-1],
        x[1:, :-1, ::2],
        x[-2:],
        g.reduction_sum(s) + s,
        g.stack([s, s * 2.0], axis=0),
        g.expand_dims(s, axes=[0, 1]),
        g.gather(table, k),
        g.one_hot(k, 5),
        g.squeeze(g.reduction_sum(table)),
        g.broadcast(g.reshape(s, (1,)), (2, 3)),
        g.constant(np.arange(3, dtype=np.int32))
        + g.constant(2**60, dtype="int64")[None].node.graph.constant(1, dtype="int32"),
    ]
    feeds = {
        x: rng.normal(size=(4, 2, 3)).astype(np.float32),
        s: np.array(1.5, np.float32),
        k: np.array(2, np.int32),
    }
    _check(g, feeds, targets, tmp_path)


def test_names_and_numbers(tmp_path: Path) -> None:
    names = ["class", "self", "graph", "weights", "returned", "a b", "a_b", "7up", "größe", "€"]
    names += ['quote"\\(1)\n\t', "Model", "x", "x", "let x = 1; //", "\u202ehidden", "_", "_2"]
    g = zs.Graph()
    total = g.placeholder(shape=(2,), name="x")
    feeds = {total: np.array([1, 2], np.float32)}
    made = total
    for name in names:
        made = g.addition(made, 0.1, name=name)
    numbers = [0.1, -0.0, 1e-30, -2.5e20, float("inf"), float("-inf"), 16777216.0, 3.0]
    for number in numbers:
        made = g.maximum(made, g.constant(np.full(2, number, np.float32)), name="last")
    swift = _check(g, feeds, [made], tmp_path)
    assert swift.calls["constantWithScalar:dataType:"] == 1  # 0.1, however often
    big = g.constant(np.array([2**60 + 1, 2**60 + 1]))  # no Double
    swift = _check(g, {}, [big + big], tmp_path)
    assert swift.calls["constantWithData:shape:dataType:"] == 1


def test_assigns_and_reads(tmp_path: Path) -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(2,), name="x")
    v = g.variable(np.array([1, 2], np.float32), name="v")
    before = g.read(v)
    g.assign(v, x * 5.0)
    last = g.assign(v, v + x)
    after = g.addition(g.read(v), last, name="after")
    g.save(tmp_path / "m")
    text = g.to_swift("Model")
    array = np.array([3, 4], np.float32)
    found, swift = run_file(text, tmp_path / "m", {"x": array})
    assert swift.calls["assignVariable:withValueOfTensor:name:"] == 1
    assert swift.calls["readVariable:name:"] == 1
    expected = g.run({x: array}, [before, after], [last])
    assert list(found) == [before.name, "after"]
    for tensor, value in expected.items():
        _same(found[tensor.name], value)


def _refused() -> list[tuple[str, Any]]:
    def wide(g: zs.Graph) -> zs.Tensor:
        return g.cast(g.placeholder(shape=(2,), name="x"), "float64", name="wide")

    def random(g: zs.Graph) -> zs.Tensor:
        return g.random_uniform((2,), g.random_philox_state(seed=1), name="drawn")[0]

    def cells(g: zs.Graph) -> zs.Tensor:
        x = g.placeholder(shape=(T, N, 4 * H), name="x")
        R = g.variable(np.ones((4 * H, H), np.float32))
        _, c = g.lstm(x, recurrent_weight=R, descriptor=zs.LSTMDescriptor(produce_cell=True))
        return g.gradients(g.reduction_sum(g.square(c)), [x])[x]

    def unknown(g: zs.Graph) -> zs.Tensor:
        x = g.placeholder(shape=(None, 3), name="x")
        b = g.placeholder(shape=(1, 3), name="b")
        return g.gradients(g.reduction_sum(x * b), [b])[b]

    return [
        (r"node 'wide' \(cast\): .*float64", wide),
        (r"node 'drawn' \(random_tensor\): .*state", random),
        (r"\(lstm_gradients\): .*cell_gradient.*last step's cell, got one of all steps", cells),
        (r"\(sum_like\): .*give the placeholders sizes \(`zstate graph --shape`\), or", unknown),
    ]


@pytest.mark.parametrize(("message", "build"), _refused(), ids=lambda v: getattr(v, "__name__", ""))
def test_refused_by_node(
    message: str, build: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    g = zs.Graph()
    target = build(g)
    with pytest.raises(zs.ZStateError, match=rf"\[to_swift\] .*{message}") as raised:
        g.to_swift("Model", targets=[target])
    assert not re.search(r"\): \[\w+\]", str(raised.value))  # no second label
    g.save(tmp_path / "m")
    (tmp_path / "M.swift").write_text("old")
    assert cli.main(["graph", str(tmp_path / "m"), "--swift", str(tmp_path / "M.swift")]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert (tmp_path / "M.swift").read_text() == "old" and len(list(tmp_path.iterdir())) == 2


def test_the_other_peephole_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    if "peephole_on_new_cell" in zs.LSTMDescriptor.__dataclass_fields__:
        descriptor = zs.LSTMDescriptor(peephole_on_new_cell=True)
    else:
        monkeypatch.setattr(zs.LSTMDescriptor, "peephole_on_new_cell", True, raising=False)
        descriptor = zs.LSTMDescriptor()
    g = zs.Graph()
    (h, *_), _ = _layer(g, "lstm", descriptor, ("peephole",))
    with pytest.raises(zs.OptionError, match=r"node 'layer' \(lstm\): .*peephole_on_new_cell"):
        g.to_swift("Model", targets=[h])


def test_refused_names_and_targets() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(2,))
    for name in ("my model", "class", "", 3):
        with pytest.raises(zs.OptionError, match="a name that Swift allows"):
            g.to_swift(name, targets=[x + 1.0])  # type: ignore[arg-type]
    with pytest.raises(zs.GraphError, match="targets: expected at least one tensor, got none"):
        zs.Graph().to_swift("Model")
    with pytest.raises(zs.GraphError, match="of another graph"):
        zs.Graph().to_swift("Model", targets=[x])


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    g, _, _ = _trained("gru")
    path, out = tmp_path / "model.safetensors", tmp_path / "My-Model.swift"
    g.save(path)
    assert cli.main(["graph", str(path), "--swift", str(out)]) == 0
    text = out.read_text()
    assert f"wrote {len(text.splitlines())} lines of Swift" in capsys.readouterr().out
    assert text == g.to_swift("My_Model", weights="model.safetensors")
    assert cli.main(["graph", str(path), "--swift", str(out), "--target", "layer"]) == 0
    (target,) = [t for node in g.nodes if node.name == "layer" for t in node.results]
    assert out.read_text() == g.to_swift("My_Model", targets=[target], weights=path.name)
    assert cli.main(["graph", str(path), "--swift", str(out), "--target", "lair"]) == 2
    assert "--target: expected the name of a tensor" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["My-Model.swift", "model.safetensors"]


def test_the_page_shows_what_is_written() -> None:
    page = (Path(__file__).parents[2] / "docs" / "swift.md").read_text(encoding="utf-8")
    (code,), (shown, app) = (
        re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
        for language in ("python", "swift")
    )
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    assert shown in namespace["text"]
    for used, written in (
        ("Scorer(weights: Safetensors(contentsOf: url))", "init(weights: Safetensors)"),
        ("Safetensors(contentsOf: url)", "init(contentsOf url: URL)"),
        ("model.step([model.x: ", "_ feeds: [MPSGraphTensor: MPSGraphTensorData]"),
        ("model.x", "let x: MPSGraphTensor"),
        ("model.returned[0].tensor", "let returned: [(name: String, tensor: MPSGraphTensor)]"),
    ):
        assert used in app and written in namespace["text"]


@pytest.mark.parametrize(
    ("found", "other"),
    [
        ("recurrentWeight: R", "recurrentWeights: R"),  # no such label
        ("recurrentWeight: R, ", ""),  # one is missing
        ("sourceGradient: reshape_", "zState: encoder[2], sourceGradient: reshape_"),  # twice
        ("primary: rows, secondary: P", "secondary: P, primary: rows"),  # another order
        ("recurrentWeight: R", "recurrentWeight: nil"),  # not optional
        ("secondary: P", "secondary: encoder"),  # a list for a tensor
        ("secondary: P", "secondary: Q"),  # not made
        ("axis: 0, batchDimensions: 0", "axis: 0.5, batchDimensions: 0"),
        ("shape: [256, 64]", 'shape: ["256", 64]'),
        ("dataType: .int32", "dataType: .float64"),  # no such case
        ("graph.oneHot(", "graph.hotOne("),  # no such method
        ("descriptor.training", "descriptor.trained"),  # no such property
        ("descriptor.training = true", "descriptor.training = .tanh"),
        ("MPSGraphLSTMDescriptor()", "MPSGraphGRUDescriptor()"),  # of another method
        ('weights.data("n2", count: 1728)', 'weights.data("n2", count: 1727)'),
        ("let rows = ", "let table = "),  # made before
        ("stored = [", "held = ["),  # no such member
        ("let rows = graph", "let rows = = graph"),  # no Swift
    ],
)
def test_the_reader_tells(found: str, other: str) -> None:
    """A wrong call, name or argument in a file that is right otherwise."""
    folder = Path(__file__).parents[2] / "examples"
    text = (folder / "language_model.swift").read_text(encoding="utf-8")
    sizes = dict(re.findall(r'weights\.data\("(n\d+)", count: (\d+)\)', text))
    arrays = {name: bytes(int(size)) for name, size in sizes.items()}
    Swift(text).build(arrays)
    assert found in text
    with pytest.raises((AssertionError, LookupError, AttributeError, ValueError)):
        Swift(text.replace(found, other, 1)).build(arrays)


def test_nothing_stands_in_for_what_the_facade_has() -> None:
    from .absent import METHODS

    offered = {row.selector for row in methods_of("MPSGraph") if row.kind == "offered"}
    assert not offered & set(METHODS)


_TEMPLATE_WORDS = ["«FEEDS»", "«LINES»", "«TARGETS»", "«NAME»", "«MEMBERS»", "«UPDATES»"]
_NAMES = st.one_of(
    st.sampled_from([*_TEMPLATE_WORDS, '"), evil("', "\\(evil())", "a\nb", "*/", "//", "]", "\\"]),
    st.text(max_size=30),
    st.text(st.characters(categories=["Cs", "Cc", "Cf", "Zl", "Zp", "Zs"]), max_size=4),
    st.just("long" * 1000),
)


@given(_NAMES, _NAMES, _NAMES)
@example("«TARGETS»", 'x", y)] } ; evil() /*', "«FEEDS»")
@settings(max_examples=60)
def test_names_stay_in_their_literals(first: str, second: str, weights: str) -> None:
    """Whatever a graph's names, the file parses to the same statements, and its literals say
    them."""

    def graph(first: str, second: str) -> zs.Graph:
        g = zs.Graph()
        x = g.placeholder(shape=(1, 2, 3), name=first)
        v = g.variable(np.arange(9, dtype=np.float32).reshape(3, 3), name=second)
        g.assign(v, v * 2.0, name=second)
        g.lstm(x @ v @ g.constant(np.ones((3, 12), np.float32)), recurrent_weight=_square(g))
        g.tanh(x, name=second)
        return g

    def kinds(swift: Swift) -> list[str]:
        found = [node.type for node in _walk(swift.root) if node.is_named]
        return [kind for kind in found if "str" not in kind and kind != "comment"]

    g, weights = graph(first, second), weights or "w"
    if re.search("[\ud800-\udfff]", first + second + weights):
        with pytest.raises(zs.OptionError, match=r"\[to_swift\] .*lone surrogates"):
            g.to_swift("Model", weights=weights)
        return
    swift = Swift(g.to_swift("Model", weights=weights))
    swift.check_calls()
    literals = [
        unescaped(node.text.decode())
        for node in _walk(swift.root)
        if node.type == "line_string_literal"
    ]
    target = next(node.name for node in g.nodes if node.op.name == "tanh")
    assert {target, weights, g.nodes[0].name} <= set(literals)
    if first and second:
        assert kinds(swift) == kinds(Swift(graph("x", "y").to_swift("Model", weights="w")))


def _square(g: zs.Graph) -> zs.Tensor:
    return g.constant(np.linspace(0, 1, 36, dtype=np.float32).reshape(12, 3))


def _walk(node: Any) -> list[Any]:
    return [node, *itertools.chain.from_iterable(map(_walk, node.children))]
