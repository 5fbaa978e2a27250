"""zstate.coreml: the MIL program, evaluated op by op in NumPy, gives what the graph gives.

Core ML computes on Apple's machines only. What is proven here: coremltools accepts every program
(its own checks of shapes and types run while it is built), the program means what the graph means,
before and after coremltools' passes, and what MIL cannot say is refused by node.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("coremltools")

import zstate as zs
from tests.graph.op_case import Case, built
from tests.graph.op_cases import CASES, IDS
from zstate import cli, coreml

from .evaluator import evaluate

T, N, I, H = 4, 2, 3, 5
ACT = zs.Activation
# What inference has no use for: losses, updates, and what only gradients consist of.
REFUSED = {
    **{
        op: rf"node '.*' \({op}\)"
        for op in (
            *("scatter", "scatter_along_axis", "put_slice", "soft_max_cross_entropy"),
            *("adam", "stochastic_gradient_descent"),
        )
    },
    "soft_max_cross_entropy_gradient": r"node '.*' \(soft_max_cross_entropy\)",
    "pad_around_gradient": r"node '.*' \(scatter\)",
    **{op: rf"node '.*' \({op}\)" for op in ("modulo", "rint", "asinh", "acosh")},
    "integer_division": r"node '.*' \(integer_division\)",
    "assign": "one that assigns to 'variable_",
}


def _single(array: Any) -> Any:
    kind = {"f": np.float32, "i": np.int32}.get(array.dtype.kind)
    return array if kind is None else array.astype(kind)


def _check(program: zs.Executable, feeds: list[Any], tolerance: float = 1e-6) -> None:
    names = [tensor.name.replace(":", "_").replace(".", "_") for tensor in program.feeds]
    expected = program.run(feeds)
    given = [np.atleast_1d(feed) for feed in feeds]
    found = evaluate(coreml.mil_program(program), dict(zip(names, given, strict=True)))
    assert len(found) == len(expected)
    for array, other in zip(found.values(), map(np.atleast_1d, expected), strict=True):
        assert array.shape == other.shape
        np.testing.assert_allclose(array, other, rtol=tolerance, atol=tolerance)


def _compiled(g: zs.Graph, inputs: list[zs.Tensor], targets: list[zs.Tensor]) -> zs.Executable:
    return g.compile({t: (t.shape, t.dtype) for t in inputs}, targets)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_every_op(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    # The cases are in float64, which Core ML lacks.
    inputs = [_single(a) for a in case.inputs]
    stored = zs.Graph._stored

    def narrow(self: zs.Graph, op: Any, value: Any, *rest: Any) -> zs.Tensor:
        return stored(self, op, _single(value) if isinstance(value, np.ndarray) else value, *rest)

    monkeypatch.setattr(zs.Graph, "_stored", narrow)
    if case.op == "cast":
        case = case._replace(build=lambda g, a: g.cast(g.cast(a, "int32"), "float32"))
    if case.op == "one_hot":
        case = case._replace(
            build=lambda g, i: g.one_hot(i, 5, axis=1, on_value=2.0, off_value=-1.0)
        )
    is_bool = [a.dtype == bool for a in inputs]
    if any(is_bool):  # which cannot be fed
        inputs = [a.astype(np.float32) if b else a for a, b in zip(inputs, is_bool, strict=True)]
        build = case.build
        case = case._replace(
            build=lambda g, *tensors: build(
                g, *(g.not_equal(t, 0.0) if b else t for t, b in zip(tensors, is_bool, strict=True))
            )
        )
    g, fed, targets = built(case._replace(inputs=inputs))
    fed = [t for t in fed if t.node in g.needed(targets)]
    program = _compiled(g, fed, targets)
    feeds = [inputs[int(t.name[2:])] for t in fed]
    if case.op in REFUSED:
        with pytest.raises(zs.ZStateError, match=REFUSED[case.op]):
            coreml.mil_program(program)
    else:
        _check(program, feeds, 1e-5)


CELLS: dict[Any, str] = {
    zs.SingleGateRNNDescriptor: "single_gate_rnn",
    zs.LSTMDescriptor: "lstm",
    zs.GRUDescriptor: "gru",
}


def _recurrent(
    cell: str,
    descriptor: Any,
    rng: np.random.Generator,
    has: tuple[str, ...] = (),
    fed: tuple[str, ...] = (),
) -> tuple[zs.Executable, list[Any]]:
    """A program of one layer, its weights random; ``has`` names the optional tensors, ``fed`` the
    weights that are fed."""
    gates = {"single_gate_rnn": 1, "lstm": 4, "gru": 3}[cell]
    count = 2 if descriptor.bidirectional else 1
    width = I if "input_weight" in has else count * gates * H
    shapes = {
        "recurrent_weight": (gates * H, H) if count == 1 else (2, gates * H, H),
        "input_weight": (count * gates * H, I),
        "bias": (count * gates * H,),
        "mask": (T, 1, count * H),
        "peephole": (4 * H,) if count == 1 else (2, 4 * H),
        "secondary_bias": (count * H,),
        "init_state": (N, count * H),
        "init_cell": (N, count * H),
    }
    g = zs.Graph()
    draw = lambda shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    feeds = [draw((T, N, width))]
    inputs = [g.placeholder(shape=(T, N, width), name="source")]
    tensors = {}
    for name in ("recurrent_weight", *has):
        value = draw(shapes[name])
        if name.startswith("init_") or name in fed:
            inputs.append(g.placeholder(shape=value.shape, name=name))
            feeds.append(value)
            tensors[name] = inputs[-1]
        else:
            tensors[name] = g.variable(value, name=name)
    results = getattr(g, cell)(inputs[0], **tensors, descriptor=descriptor, name="layer")
    targets = [results[0]]
    if cell == "lstm" and descriptor.produce_cell:
        targets.append(results[1][-1])
    return _compiled(g, inputs, targets), feeds


@pytest.mark.parametrize(
    ("cell", "options", "directions"),
    [
        (cell, options, directions)
        for cell, choices in {
            "single_gate_rnn": [{"activation": kind} for kind in ACT],
            "lstm": [
                {"produce_cell": True},
                {"forget_gate_last": True, "activation": ACT.RELU},
                {"cell_gate_activation": ACT.NONE, "training": True, "produce_cell": True},
            ],
            "gru": [{}, {"reset_gate_first": True, "output_gate_activation": ACT.RELU}],
        }.items()
        for options in choices
        for directions in ({}, {"reverse": True}, {"bidirectional": True})
    ],
    ids=str,
)
def test_layers(cell: str, options: dict[str, Any], directions: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    kind = {name: kind for kind, name in CELLS.items()}[cell]
    states = ("init_state", "init_cell") if cell == "lstm" else ("init_state",)
    if directions.get("bidirectional"):
        options = {**options, **({"produce_cell": False} if cell == "lstm" else {})}
    descriptor = kind(**options, **directions)
    for has in ((), ("bias",), ("input_weight", "bias", *states)):
        _check(*_recurrent(cell, descriptor, rng, has), tolerance=1e-5)


LOOPS: list[Any] = [
    zs.SingleGateRNNDescriptor(activation=ACT.HARD_SIGMOID),
    zs.LSTMDescriptor(output_gate_activation=ACT.TANH, activation=ACT.NONE, produce_cell=True),
    zs.LSTMDescriptor(forget_gate_last=True, training=True),
    zs.GRUDescriptor(reset_after=True),
    zs.GRUDescriptor(flip_z=True, reset_gate_first=True, update_gate_activation=ACT.HARD_SIGMOID),
]


@pytest.mark.parametrize("directions", [{}, {"reverse": True}, {"bidirectional": True}], ids=str)
@pytest.mark.parametrize("descriptor", LOOPS, ids=repr)
def test_loops(descriptor: Any, directions: dict[str, bool]) -> None:
    """What MIL's own operations cannot express: masks, peepholes, fed weights, all cells."""
    cell = CELLS[type(descriptor)]
    descriptor = dataclasses.replace(descriptor, **directions)
    rng = np.random.default_rng(5)
    own = {"lstm": ("peephole", "init_cell"), "gru": ("secondary_bias",)}.get(cell, ())
    if not getattr(descriptor, "reset_after", True):
        own = ()
    for has in (("mask",), ("input_weight", "bias", "init_state", "mask", *own)):
        program, feeds = _recurrent(cell, descriptor, rng, has, fed=("recurrent_weight", "bias"))
        _check(program, feeds, 1e-5)
        kinds = {op.op_type for op in coreml.mil_program(program).functions["main"].operations}
        assert "while_loop" in kinds and not kinds & {"rnn", "lstm", "gru"}


def test_all_cells() -> None:
    """MIL's lstm gives the last step's cell: whoever reads more gets a loop."""
    g = zs.Graph()
    x = g.placeholder(shape=(T, N, 4 * H), name="x")
    weight = g.variable(np.random.default_rng(1).normal(size=(4 * H, H)).astype(np.float32))
    feeds = [np.random.default_rng(2).normal(size=(T, N, 4 * H)).astype(np.float32)]
    for reverse in (False, True):
        d = zs.LSTMDescriptor(produce_cell=True, reverse=reverse)
        h, c = g.lstm(x, recurrent_weight=weight, descriptor=d, name="layer")
        for targets, is_loop in (
            ([h], False),
            ([h, c[-1]], False),
            ([c[T - 1 :, 0, ::2]], False),
            ([c], True),
            ([c[0]], True),
            ([h, c[-1], c + 1.0], True),
        ):
            program = _compiled(g, [x], targets)
            _check(program, feeds, 1e-5)
            made = coreml.mil_program(program).functions["main"].operations
            assert ("while_loop" in {op.op_type for op in made}) == is_loop


def test_other_refusals() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(T, N, 4 * H), name="x")
    weight = g.variable(np.ones((4 * H, H), np.float32))
    d = zs.LSTMDescriptor(training=True)
    h, _, z = g.lstm(x, recurrent_weight=weight, descriptor=d, name="layer")
    for targets, message in (
        ([z], "MIL has no layer:training_state: a package is for inference"),
        ([z + 1.0], "'addition_.*: MIL has no layer:training_state"),
        (
            g.lstm_gradients(
                x,
                recurrent_weight=weight,
                source_gradient=h,
                z_state=z,
                cell_output_fwd=h,
                descriptor=d,
                name="back",
            ),
            r"layer:training_state",
        ),
        ([g.cast(h, "float64")], "'cast_.*float64"),
        ([g.reshape(h, (1, 1, 1, T, N, H))], "'reshape_.*at most 5 dimensions"),
        ([g.constant(2**40, dtype="int64") + g.cast(h, "int64")], "integers that fit int32"),
    ):
        with pytest.raises(zs.ZStateError, match=message):
            coreml.mil_program(_compiled(g, [x], targets))
    v = g.variable(np.ones((T, N, H), np.float32), name="kept")
    updating = g.compile({x: (x.shape, x.dtype)}, [h], [g.assign(v, h)])
    with pytest.raises(zs.GraphError, match="without operations, got one that assigns to 'kept'"):
        coreml.mil_program(updating)
    half = g.placeholder(shape=(2,), dtype="float16", name="half")
    with pytest.raises(zs.DTypeError, match="node 'half' .placeholder.*float16"):
        coreml.mil_program(_compiled(g, [half], [half + half]))


def test_a_graph_and_a_folder_that_is_missing(tmp_path: Path) -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(2,), name="x")
    y = g.tanh(x)
    with pytest.raises(zs.DTypeError, match=r"program: expected a program, from Graph\.compile"):
        coreml.save(g, tmp_path / "M.mlpackage")  # type: ignore[arg-type]
    path = tmp_path / "no" / "M.mlpackage"
    with pytest.raises(zs.GraphError) as raised:
        coreml.save(_compiled(g, [x], [y]), path)
    assert str(raised.value) == f"[save] '{path}': cannot be written: No such file or directory"
    lost = g.soft_max_cross_entropy(x, x, axis=0, name="loss")
    with pytest.raises(zs.OptionError) as raised_by_node:
        coreml.mil_program(_compiled(g, [x], [lost]))
    where = "[coreml.save] node 'loss' (soft_max_cross_entropy)"
    assert str(raised_by_node.value) == f"{where}: MIL has no soft_max_cross_entropy"


def test_a_modulo_by_zero() -> None:
    g = zs.Graph()
    a, b = (g.placeholder(shape=(3,), name=name) for name in "ab")
    arrays = [np.array(values, np.float32) for values in ([5.0, -5.0, 2.0], [3.0, 0.0, -3.0])]
    _check(_compiled(g, [a, b], [g.floor_modulo(a, b)]), arrays)


def test_tensors_without_dimensions(tmp_path: Path) -> None:
    g = zs.Graph()
    x, s = g.placeholder(shape=(2, 3), name="x"), g.placeholder(shape=(), name="s")
    targets = [x * s, s + 1.0, g.reshape(g.reduction_sum(x), ()) * s]
    targets += [g.expand_dims(s * 3.0, axes=[0, 1]), g.stack([s, s + 2.0], axis=0) * 2.0]
    targets += [g.broadcast(s - 1.0, (2, 2)), g.squeeze(g.reduction_sum(x)) + s]
    program = _compiled(g, [x, s], targets)
    _check(program, [np.ones((2, 3), np.float32), np.array(2.5, np.float32)])
    coreml.save(program, tmp_path / "S.mlpackage")


def _tagger(folder: Path) -> tuple[Path, zs.Executable, list[Any]]:
    """A model of several ops in a file: embedding, three layers, the last state, a projection."""
    rng = np.random.default_rng(8)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    g = zs.Graph()
    tokens = g.placeholder(shape=(None, N), dtype="int32", name="tokens")
    x = g.gather(g.variable(draw(7, I), name="table"), tokens)
    d = zs.LSTMDescriptor(bidirectional=True)
    (h,) = g.lstm(
        x,
        recurrent_weight=g.variable(draw(2, 4 * H, H)),
        input_weight=g.variable(draw(8 * H, I)),
        bias=g.variable(draw(8 * H)),
        descriptor=d,
    )
    (h,) = g.gru(
        h, recurrent_weight=g.variable(draw(3 * H, H)), input_weight=g.variable(draw(3 * H, 2 * H))
    )
    (h,) = g.gru(  # a loop
        h,
        recurrent_weight=g.variable(draw(3 * H, H)),
        input_weight=g.variable(draw(3 * H, H)),
        secondary_bias=g.variable(draw(H)),
        descriptor=zs.GRUDescriptor(reset_after=True),
    )
    logits = g.addition(g.variable(draw(3)), h[-1] @ g.variable(draw(H, 3)), name="logits")
    g.save(folder / "tagger.safetensors")
    program = g.compile({tokens: ((T, N), "int32")}, [logits])
    return folder / "tagger.safetensors", program, [rng.integers(0, 7, (T, N)).astype(np.int32)]


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import coremltools as ct

    path, program, feeds = _tagger(tmp_path)
    out = tmp_path / "Tagger.mlpackage"
    shape = ["--shape", f"tokens={T},{N}"]
    for _ in range(2):  # the second one replaces the first
        assert cli.main(["graph", str(path), "--coreml", str(out), *shape]) == 0
    assert capsys.readouterr().out.startswith("wrote ")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["Tagger.mlpackage", path.name]
    spec = ct.models.MLModel(str(out), skip_model_load=True).get_spec().description
    assert [i.name for i in spec.input] == ["tokens"] and [o.name for o in spec.output] == [
        "logits"
    ]
    assert list(spec.input[0].type.multiArrayType.shape) == [T, N]
    # What is in the package after coremltools' passes still means the same.
    model = ct.convert(
        coreml.mil_program(program),
        convert_to="mlprogram",
        compute_precision=ct.precision.FLOAT32,
        minimum_deployment_target=ct.target.iOS16,
        skip_model_load=True,
    )
    kinds = {op.op_type for op in model._mil_program.functions["main"].operations}
    assert {"lstm", "gru", "while_loop"} <= kinds
    found = evaluate(model._mil_program, {"tokens": feeds[0]})["logits"]
    np.testing.assert_allclose(found, program.run(feeds)[0], rtol=1e-5, atol=1e-5)


def test_a_saved_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, program, _ = _tagger(tmp_path)
    path, out = tmp_path / "program", tmp_path / "P.mlpackage"
    program.save(path)
    for more in (["--target", "logits"], ["--shape", "tokens=4,2"]):
        assert cli.main(["graph", str(path), "--coreml", str(out), *more]) == 2
        assert "a saved program has its own targets and sizes" in capsys.readouterr().err
    assert cli.main(["graph", str(path), "--coreml", str(out)]) == 0
    assert out.is_dir()


def test_a_refusal_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _, _ = _tagger(tmp_path)
    for arguments, message in (
        ([str(tmp_path / "Tagger.mlpackage")], "'tokens'.*--shape"),
        ([str(tmp_path / "Tagger.zip"), "--shape", "tokens=4,2"], "ends in .mlpackage"),
        ([str(tmp_path / "T.mlpackage"), "--shape", "x=4,2"], "x"),
    ):
        assert cli.main(["graph", str(path), "--coreml", *arguments]) == 2
        error = capsys.readouterr().err
        assert re.search(message, error), error
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@given(st.lists(st.text(max_size=8), min_size=4, max_size=4))
@example(["x y", "x_y", "x y", "«x»"])
@example(["", "\ud800", "\n", "1"])
@example(["func", "main", "true", "a" * 3000])
@settings(max_examples=20)
def test_names(names: list[str]) -> None:
    """Whatever the names, feeds and targets keep their places and no two share one."""
    g = zs.Graph()
    x, y = (g.placeholder(shape=(2,), name=name) for name in names[:2])
    weight = g.variable(np.float32([2, 3]), name=names[2])
    targets = [g.tanh(x * weight, name=names[2]), g.sigmoid(y, name=names[3])]
    feeds = [np.float32([0.1, -2]), np.float32([0.3, 4])]
    program = _compiled(g, [x, y], targets)
    made = coreml.mil_program(program)
    inputs = list(made.functions["main"].inputs)
    outputs = evaluate(made, dict(zip(inputs, feeds, strict=True)))
    for array, expected in zip(outputs.values(), program.run(feeds), strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-6)
    found = [*inputs, *outputs]
    assert len(set(found)) == 4 and all(re.fullmatch(r"[A-Za-z_]\w*", n, re.ASCII) for n in found)
