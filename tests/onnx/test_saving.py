"""Saved graphs run in onnxruntime with the same results; what ONNX cannot say is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import zstate as zs
import zstate.onnx as zo
from tests.graph.op_cases import CASES
from tests.onnx.common import close, runtime
from zstate.types import Array

GATES = {"single_gate_rnn": 1, "lstm": 4, "gru": 3}
DESCRIPTORS = {
    "single_gate_rnn": zs.SingleGateRNNDescriptor,
    "lstm": zs.LSTMDescriptor,
    "gru": zs.GRUDescriptor,
}
KINDS = {"RNN", "LSTM", "GRU", "Scan"}
T, N, I, H = 5, 3, 4, 6


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    return np.random.default_rng(int(request.config.option.hypothesis_seed))


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return (rng.normal(size=shape) * 0.25).astype(np.float32)


def options(rng: np.random.Generator, cell: str) -> dict[str, Any]:
    def coin(chance: float = 0.5) -> bool:
        return bool(rng.random() < chance)

    found: dict[str, Any] = {"bidirectional": coin(), "reverse": coin(), "training": coin(0.2)}
    if coin():
        for name in DESCRIPTORS[cell].activation_fields:
            found[name] = zs.Activation(int(rng.integers(5)))
    if cell == "lstm":
        names = ("forget_gate_last", "produce_cell", "peephole_on_new_cell")
        found |= {name: coin() for name in names}
    if cell == "gru":
        found |= {"reset_gate_first": coin(), "reset_after": coin(), "flip_z": coin(0.25)}
    return found


def layer(
    rng: np.random.Generator, cell: str, descriptor: Any
) -> tuple[zs.Graph, dict[str, zs.Tensor], dict[zs.Tensor, Array], bool]:
    """A graph with one recurrent node, its outputs, its feeds, and whether it has a mask or a
    peephole."""
    g = zs.Graph()
    count = 2 if descriptor.bidirectional else 1
    rows = GATES[cell] * H
    is_projected = rng.random() < 0.25
    width = count * rows if is_projected else I
    sizes = (None, None, width) if rng.random() < 0.5 else (T, N, width)
    x = g.placeholder(shape=sizes, name="x")
    feeds = {x: normal(rng, T, N, width)}
    shapes = {
        "recurrent_weight": (2, rows, H) if count == 2 else (rows, H),
        "input_weight": (count * rows, I),
        "bias": (count * rows,),
        "init_state": (N, count * H),
    }
    if is_projected:
        del shapes["input_weight"]
    if cell == "lstm":
        shapes |= {"init_cell": (N, count * H), "peephole": (2, 4 * H) if count == 2 else (4 * H,)}
    if cell == "gru" and descriptor.reset_after:
        shapes["secondary_bias"] = (count * H,)
    inputs = {}
    for name, shape in shapes.items():
        chance = 1.0 if name.endswith("weight") else 0.2 if name == "peephole" else 0.6
        if rng.random() < chance:
            array = normal(rng, *shape)
            if rng.random() < 0.7:
                inputs[name] = g.variable(array, name=name)
            else:  # something that the model computes
                inputs[name] = g.placeholder(shape=shape, name=name)
                feeds[inputs[name]] = array
    if rng.random() < 0.2:
        inputs["mask"] = mask = g.placeholder(shape=(T, 1, count * H), name="mask")
        feeds[mask] = (rng.random((T, 1, count * H)) < 0.7).astype(np.float32)
    results = getattr(g, cell)(x, **inputs, descriptor=descriptor, name="layer")
    outputs = {"h": results[0] * 2.0, "plain": results[0]}
    if cell == "lstm" and len(results) > 1 and rng.random() < 0.5:
        outputs["c"] = results[1]
    elif cell == "lstm" and len(results) > 1:
        outputs["c"] = g.strided_slice(results[1], [-1, 0, 0], [None, None, H])
        if count == 2:
            outputs["c_back"] = g.strided_slice(results[1], [0, 0, H], [1, None, None])
    return g, outputs, feeds, bool({"mask", "peephole"} & set(inputs))


def test_random_layers(rng: np.random.Generator, tmp_path: Path) -> None:
    seen: dict[str, int] = dict.fromkeys(KINDS, 0)
    path = tmp_path / "layer.onnx"
    for number in range(300):
        cell = list(GATES)[number % 3]
        descriptor = DESCRIPTORS[cell](**options(rng, cell))
        g, outputs, feeds, is_special = layer(rng, cell, descriptor)
        zo.save(g, outputs, path)
        saved = onnx.load(path)
        onnx.checker.check_model(saved, full_check=True)
        (kind,) = KINDS & {node.op_type for node in saved.graph.node}
        seen[kind] += 1
        if is_special or getattr(descriptor, "flip_z", False):
            assert kind == "Scan"
        found = runtime(path, {tensor.name: array for tensor, array in feeds.items()})
        wanted = g.run(feeds, list(outputs.values()))
        named = {name: wanted[tensor] for name, tensor in outputs.items()}
        close(found, named, f"{number}: {descriptor}")
        loaded = zo.load(path)  # a Scan that save wrote comes back as a recurrent node
        names = [n.op.name for n in loaded.graph.nodes if n.op.name in GATES]
        assert len(names) == (descriptor.bidirectional and kind == "Scan") + 1
        fed = {tensor.name: array for tensor, array in feeds.items()}
        close(loaded.run(fed), named, f"{number}: {descriptor}, loaded")
    assert min(seen.values()) > 10


def _swap_kind(body: Any, old: str, new: str) -> None:
    next(node for node in body.node if node.op_type == old).op_type = new


def _swap_operands(body: Any) -> None:
    node = [node for node in body.node if node.op_type == "Mul"][-1]
    node.input[:] = list(node.input)[::-1]


def _gates_in_another_order(body: Any) -> None:
    (node,) = [node for node in body.node if node.op_type == "Split"]
    node.output[:] = list(node.output)[::-1]


ALTERED: dict[str, Any] = {
    "another operation": lambda body: _swap_kind(body, "Mul", "Div"),
    "another activation": lambda body: _swap_kind(body, "Sigmoid", "Elu"),
    "another operand": _swap_operands,
    "another order": _gates_in_another_order,
    "a node more": lambda body: body.node.append(
        onnx.helper.make_node("Neg", [body.input[0].name], ["more"])
    ),
    "an output less": lambda body: body.output.pop(),
    "a result twice": lambda body: body.output[0].CopyFrom(body.output[1]),
}


STILL_A_STEP = ("another operand", "another order", "a node more")


@pytest.mark.parametrize("how", ALTERED)
def test_another_scan_is_that_scan_or_refused_by_name(
    how: str, rng: np.random.Generator, tmp_path: Path
) -> None:
    g = zs.Graph()
    x, mask = g.placeholder(shape=(T, N, 4 * H), name="x"), g.placeholder(shape=(T, 1, H), name="m")
    R, p = g.variable(normal(rng, 4 * H, H)), g.variable(normal(rng, 4 * H))
    descriptor = zs.LSTMDescriptor(produce_cell=True)
    h, c = g.lstm(x, recurrent_weight=R, mask=mask, peephole=p, descriptor=descriptor)
    path = tmp_path / "scan.onnx"
    zo.save(g, {"h": h, "c": c}, path)
    model = onnx.load(path)
    assert len(zo.load(model).outputs) == 2
    (node,) = [node for node in model.graph.node if node.op_type == "Scan"]
    (body,) = [a.g for a in node.attribute if a.name == "body"]
    ALTERED[how](body)
    if how in STILL_A_STEP:
        feeds = {"x": normal(rng, T, N, 4 * H), "m": normal(rng, T, 1, H)}
        close(zo.load(model).run(feeds), runtime(model, feeds))
        return
    with pytest.raises(zs.ZStateError, match=rf"node '{node.name}' \(Scan\)"):
        zo.load(model)


def test_what_onnx_has_is_not_a_scan(rng: np.random.Generator, tmp_path: Path) -> None:
    for cell in GATES:
        g = zs.Graph()
        x = g.placeholder(shape=(None, None, I), name="x")
        weights = {
            "recurrent_weight": g.variable(normal(rng, GATES[cell] * H, H)),
            "input_weight": g.variable(normal(rng, GATES[cell] * H, I)),
        }
        (h, *_) = getattr(g, cell)(x, **weights)
        zo.save(g, {"h": h}, tmp_path / "plain.onnx")
        kinds = {node.op_type for node in onnx.load(tmp_path / "plain.onnx").graph.node}
        assert kinds == {cell.upper().removeprefix("SINGLE_GATE_"), "Squeeze"}


# Gradient operations and the like, which ONNX has no operator for; and what onnxruntime lacks.
NOT_SAVED = {
    *(
        "scatter",
        "scatter_along_axis",
        "put_slice",
        "stochastic_gradient_descent",
        "adam",
        "assign",
    ),
    *("soft_max_cross_entropy", "soft_max_cross_entropy_gradient", "pad_around_gradient"),
    *("soft_max_cross_entropy_labels_gradient",),
}


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.op for case in CASES])
def test_every_op_of_the_graph(number: int, tmp_path: Path) -> None:
    """The graph's own cases, in float32, with known and with unknown sizes."""
    case = CASES[number]
    narrow = [a.astype(np.float32) if a.dtype == np.float64 else a for a in case.inputs]
    for is_unknown in (False, True):
        g = zs.Graph()
        inputs = [
            g.placeholder(
                shape=[None] * a.ndim if is_unknown else a.shape, dtype=a.dtype.name, name=f"in{k}"
            )
            for k, a in enumerate(narrow)
        ]
        try:
            results = case.build(g, *inputs)
        except zs.ZStateError:
            if is_unknown or case.op in ("read", "assign") or "entropy_" in case.op:
                return  # this case needs known sizes, or float64
            raise
        results = results if isinstance(results, list) else [results]
        outputs = {f"out{k}": tensor for k, tensor in enumerate(results)}
        path = tmp_path / "op.onnx"
        symmetric = any(n.attributes.get("mode") == "symmetric" for n in g.nodes)
        if case.op in NOT_SAVED or symmetric:
            with pytest.raises(zs.ZStateError, match=r"\[onnx.save\] node"):
                zo.save(g, outputs, path)
            return
        zo.save(g, outputs, path)
        feeds = dict(zip(inputs, narrow, strict=True))
        wanted = g.run(feeds, results)
        again = zo.load(path).run({tensor.name: array for tensor, array in feeds.items()})
        close(again, {name: wanted[tensor] for name, tensor in outputs.items()})
        try:
            found = runtime(path, {tensor.name: array for tensor, array in feeds.items()})
        except Exception as error:
            if "NOT_IMPLEMENTED" in str(error):
                pytest.skip("onnxruntime has no such type for this operator")
            raise
        close(found, {name: wanted[tensor] for name, tensor in outputs.items()})


@pytest.mark.parametrize(
    ("x", "epsilon", "weight", "bias"),
    [
        ((2, 3, 4), (1,), (4,), (4,)),
        ((2, 3, 4), (3, 1), (4,), (4,)),
        ((1, 3, 4), (), (2, 3, 4), (4,)),
        ((2, 3, 4), (), (5, 2, 3, 4), (3, 4)),
    ],
)
def test_a_normalisation_that_broadcasts(
    rng: np.random.Generator, tmp_path: Path, x: Any, epsilon: Any, weight: Any, bias: Any
) -> None:
    """ONNX's node has one epsilon, and does not repeat x."""
    g = zs.Graph()
    source = g.placeholder(shape=x, name="x")
    small = rng.uniform(0.1, 1, epsilon).astype(np.float32)
    factor, more, fed = normal(rng, *weight), normal(rng, *bias), normal(rng, *x)
    away = source - g.mean(source, axes=[-1])
    scale = g.square_root(g.mean(g.square(away), axes=[-1]) + g.constant(small))
    found = away * g.reciprocal(scale) * g.variable(factor) + g.variable(more)
    zo.save(g, {"y": found}, tmp_path / "n.onnx")
    wide = fed.astype(np.float64)
    scale = np.sqrt(wide.var(axis=-1, keepdims=True) + small)
    wanted = (wide - wide.mean(axis=-1, keepdims=True)) / scale * factor + more
    close(runtime(tmp_path / "n.onnx", {"x": fed}), {"y": wanted.astype(np.float32)})


def test_remainders_are_exact(tmp_path: Path) -> None:
    """Of a large number, and by an infinite one."""
    a = np.array([1e7 + 1, -1e7 - 1, 3e38, 5.0, -5.0, 5.5, -5.5, 4.0], np.float32)
    b = np.array([1.5, 1.5, -0.7, np.inf, np.inf, -2.0, 2.0, 0.0], np.float32)
    g = zs.Graph()
    tensors = [g.placeholder(shape=(8,), name=name) for name in "ab"]
    zo.save(g, {"y": g.floor_modulo(*tensors)}, tmp_path / "m.onnx")
    found = runtime(tmp_path / "m.onnx", {"a": a, "b": b})
    np.testing.assert_array_equal(found["y"], [*np.remainder(a[:7], b[:7]), 0])


def test_any_and_all_of_none(tmp_path: Path) -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(2, None), dtype="bool", name="x")
    outputs = {"any": g.reduction_or(x, axes=[1]), "all": g.reduction_and(x, axes=[1])}
    zo.save(g, outputs, tmp_path / "b.onnx")
    for bools in (np.zeros((2, 0), bool), np.array([[0, 1], [1, 1]], bool)):
        wanted = {"any": bools.any(1, keepdims=True), "all": bools.all(1, keepdims=True)}
        for found in (
            runtime(tmp_path / "b.onnx", {"x": bools}),
            zo.load(tmp_path / "b.onnx").run({"x": bools}),
        ):
            assert {name: a.tolist() for name, a in found.items()} == {
                name: a.tolist() for name, a in wanted.items()
            }


def test_a_number_is_transposed(tmp_path: Path) -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(), name="x")
    zo.save(g, {"y": g.transpose(x, [])}, tmp_path / "t.onnx")
    assert runtime(tmp_path / "t.onnx", {"x": np.array(2.5, np.float32)})["y"].tolist() == 2.5


@pytest.mark.parametrize("cell", GATES)
def test_a_number_of_features_that_is_not_known(
    rng: np.random.Generator, cell: str, tmp_path: Path
) -> None:
    g = zs.Graph()
    rows, feeds = GATES[cell] * H, {"x": normal(rng, T, N, I)}
    x, W = g.placeholder(shape=(T, N, None), name="x"), g.placeholder(shape=(rows, None), name="W")
    R, feeds["W"] = g.variable(normal(rng, rows, H)), normal(rng, rows, I)
    (h, *_) = getattr(g, cell)(x, recurrent_weight=R, input_weight=W)
    zo.save(g, {"h": h}, tmp_path / "open.onnx")
    wanted = {"h": g.run({x: feeds["x"], W: feeds["W"]}, [h])[h]}
    close(runtime(tmp_path / "open.onnx", feeds), wanted)
    close(zo.load(tmp_path / "open.onnx").run(feeds), wanted)


def test_refusals(tmp_path: Path) -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(T, N, H), name="x")
    weight = g.variable(np.ones((H, H), np.float32))
    descriptor = zs.SingleGateRNNDescriptor(training=True)
    _, z = g.single_gate_rnn(x, recurrent_weight=weight, descriptor=descriptor, name="the_layer")
    with pytest.raises(zs.ZStateError, match="'the_layer'.*training_state"):
        zo.save(g, {"z": z}, tmp_path / "no.onnx")
    open_weight = g.placeholder(shape=(None, None), name="R")
    (h,) = g.single_gate_rnn(x, recurrent_weight=open_weight, name="open")
    expected = r"'open'.*recurrent_weight: expected known sizes, got \[\?,\?\]"
    with pytest.raises(zs.ShapeError, match=expected):
        zo.save(g, {"h": h}, tmp_path / "no.onnx")
    with pytest.raises(zs.ZStateError, match="at least one"):
        zo.save(g, {}, tmp_path / "no.onnx")
    with pytest.raises(zs.ZStateError, match="another graph"):
        zo.save(zs.Graph(), {"z": z}, tmp_path / "no.onnx")
    assert not (tmp_path / "no.onnx").exists()


def test_names_that_are_no_text(tmp_path: Path) -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(2,), name="x\ud83d")
    for outputs in ({"y": g.tanh(x)}, {"y\udc80": g.constant(np.ones(2, np.float32))}):
        with pytest.raises(zs.OptionError, match="name: expected names without lone surrogates"):
            zo.save(g, outputs, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_outputs_may_share_a_tensor_or_be_an_input(tmp_path: Path) -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(2,), name="x")
    y = x + 1.0
    outputs = {"a": y, "b": y, "same": x, "fixed": g.constant(3.0), "x2": y * 2.0}
    zo.save(g, outputs, tmp_path / "shared.onnx")
    found = runtime(tmp_path / "shared.onnx", {"x": np.array([1, 2], np.float32)})
    assert {name: np.ravel(a).tolist() for name, a in found.items()} == {
        "a": [2, 3],
        "b": [2, 3],
        "same": [1, 2],
        "fixed": [3],
        "x2": [4, 6],
    }


def recurrent_model(rng: np.random.Generator, kind: str, direction: str) -> Any:
    """A layer with initial states, its steps normalised and projected, and its last states."""
    count = 2 if direction == "bidirectional" else 1
    rows = {"RNN": 1, "LSTM": 4, "GRU": 3}[kind] * H
    lists = {"LSTM": ("c0", ", c")}
    state, last = lists.get(kind, ("", ""))
    proto = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        m (float[time, batch, {I}] x, float[{count}, batch, {H}] h0, float[{count}, batch, {H}] c0)
        => (float[time, batch, 2] scores,
            float[{count}, batch, {H}] h, float[{count}, batch, {H}] c)
        <int64[3] shape = {{0, 0, {count * H}}}>
        {{
            y, h{last} = {kind} <hidden_size = {H}, direction = "{direction}">
                (x, W, R, B, , h0{", " + state if state else ""})
            {"" if last else "c = Identity(c0)"}
            turned = Transpose <perm = [0, 2, 1, 3]> (y)
            steps = Reshape(turned, shape)
            normal = LayerNormalization <axis = -1, epsilon = 0.001> (steps, gamma, beta)
            weight = Transpose <perm = [1, 0]> (out)
            scores = MatMul(normal, weight)
        }}"""
    )
    shapes = {
        "W": (count, rows, I),
        "R": (count, rows, H),
        "B": (count, 2 * rows),
        "gamma": (count * H,),
        "beta": (count * H,),
        "out": (2, count * H),
    }
    for name, shape in shapes.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(normal(rng, *shape), name))
    return proto


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_a_model_that_only_passes_through_stays_as_it_was(
    rng: np.random.Generator, kind: str, direction: str, tmp_path: Path
) -> None:
    """The same nodes but those that rearrange weights, and the names of its dimensions."""
    proto = recurrent_model(rng, kind, direction)
    loaded = zo.load(proto)
    zo.save(loaded.graph, loaded.outputs, tmp_path / "m.onnx")
    saved = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(saved, full_check=True)
    kinds = sorted(node.op_type for node in saved.graph.node)
    assert kinds == sorted(
        ["LayerNormalization", "MatMul", "Reshape", "Transpose", kind]
        + (["Identity"] if kind != "LSTM" else [])
    )
    for old, new in zip(
        [*proto.graph.input, *proto.graph.output],
        [*saved.graph.input, *saved.graph.output],
        strict=True,
    ):
        assert old.type.tensor_type.shape == new.type.tensor_type.shape
    count = 2 if direction == "bidirectional" else 1
    feeds = {name: normal(rng, count, N, H) for name in ("h0", "c0")}
    feeds = {"x": normal(rng, T, N, I), **feeds}
    close(runtime(saved, feeds), runtime(proto, feeds))


def test_outputs_and_paths_of_another_type(tmp_path: Path) -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(2,), name="x")
    for outputs in ([x], x, None):
        with pytest.raises(zs.DTypeError, match=r"\[onnx.save\] outputs: expected {name: tensor}"):
            zo.save(g, outputs, tmp_path / "m.onnx")  # type: ignore[arg-type]
    with pytest.raises(zs.DTypeError, match=r"\[save\] path: expected a str or a path, got None"):
        zo.save(g, {"y": x}, None)  # type: ignore[arg-type]
    with pytest.raises(OSError, match=r"\[save\] .*: cannot be written: ") as raised:
        zo.save(g, {"y": x}, tmp_path)
    assert isinstance(raised.value, zs.ZStateError)


@pytest.mark.parametrize(
    ("op", "dtype"), [("negative", "uint8"), ("power", "int8"), ("cumulative_sum", "uint8")]
)
def test_types_that_onnx_lacks(op: str, dtype: str, tmp_path: Path) -> None:
    """ONNX Runtime would refuse the file; of a type that ONNX has, it gives the graph's numbers."""

    def saved(dtype: str) -> Array:
        g, path = zs.Graph(), tmp_path / "m.onnx"
        x = g.placeholder(shape=(3,), dtype=dtype, name="x")
        y = {
            "negative": lambda: g.negative(x),
            "power": lambda: g.power(x, x),
            "cumulative_sum": lambda: g.cumulative_sum(x, axis=0),
        }[op]()
        zo.save(g, {"y": y}, path)
        return runtime(onnx.load(path), {"x": np.array([3, 1, 2], dtype)})["y"]

    refused = rf"\[onnx.save\] node '.*': expected a type that \w+ has in ONNX .*, got {dtype}"
    with pytest.raises(zs.OptionError, match=refused):
        saved(dtype)
    assert not list(tmp_path.iterdir())
    wanted = {"negative": [-3, -1, -2], "power": [27, 1, 4], "cumulative_sum": [3, 4, 6]}[op]
    np.testing.assert_array_equal(saved("int64"), wanted)
