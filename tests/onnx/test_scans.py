"""Recurrent nodes that become a Scan, out and back: resets, heads, masks, any cell, sizes known
and unknown. onnxruntime, and the file as zstate loads it, give what the reference gives."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import zstate as zs
import zstate.cells as cells
import zstate.onnx as zo
from tests.cells import made_up
from tests.onnx.common import runtime
from zstate.types import Array

BUILT_IN = {
    "lstm": (zs.lstm, zs.LSTMDescriptor, 4),
    "gru": (zs.gru, zs.GRUDescriptor, 3),
    "single_gate_rnn": (zs.single_gate_rnn, zs.SingleGateRNNDescriptor, 1),
}
LIBRARY = [
    *(cells.mgu, cells.cifg, cells.slstm, cells.layer_norm_lstm, cells.layer_norm_gru),
    *(cells.block_gru, cells.indrnn, cells.diagonal_gru),
]


class Layer:
    """A random call of a random cell, and its node in a graph."""

    def __init__(self, rng: np.random.Generator) -> None:
        draw = rng.integers(3)
        self.cell: Any = rng.choice([*BUILT_IN]) if draw == 0 else rng.choice(LIBRARY)
        if draw == 2:
            self.cell = made_up.make_by_decorator(rng, smooth=True)
        self.steps, self.batch = int(rng.integers(1, 6)), int(rng.integers(1, 4))
        self.heads, self.units = int(rng.choice([1, 1, 2, 3])), int(rng.choice([1, 2, 4]))
        self.both = bool(rng.random() < 0.4)
        self.options = {"bidirectional": self.both, "reverse": bool(rng.random() < 0.4)}
        built_in = BUILT_IN.get(self.cell) if isinstance(self.cell, str) else None
        # onnxruntime has no Softplus in float64, and no RNN, LSTM or GRU.
        single = built_in or "soft" in str(self.cell) or "log_sig" in str(self.cell)
        self.dtype = "float32" if single else str(rng.choice(["float32", "float64"]))
        if built_in:
            self._draw_options(rng, built_in[1])
            self.gates, self.states = built_in[2], ["init_state"]
            self.states += ["init_cell"] if self.cell == "lstm" else []
            own = self._own(rng)
        else:
            self.gates = len(self.cell.definition.gates)
            self.states = [state.initial for state in self.cell.definition.states]
            own = {each.name: (self.width,) for each in self.cell.definition.own}
        self.arrays = self._arrays(rng, own)

    @property
    def width(self) -> int:
        return self.heads * self.units * (2 if self.both else 1)

    def _draw_options(self, rng: np.random.Generator, descriptor: Any) -> None:
        switches = {
            "lstm": ("forget_gate_last", "peephole_on_new_cell"),
            "gru": ("reset_gate_first", "reset_after", "flip_z"),
        }
        for name in switches.get(self.cell, ()):
            self.options[name] = bool(rng.random() < 0.5)
        for name in descriptor.activation_fields if rng.random() < 0.5 else ():
            self.options[name] = zs.Activation(int(rng.integers(5)))
        self.options["training"] = bool(rng.random() < 0.2)
        if self.cell == "lstm":
            self.options["produce_cell"] = True

    def _own(self, rng: np.random.Generator) -> dict[str, tuple[int, ...]]:
        if rng.random() < 0.5:
            return {}
        if self.cell == "lstm":
            return {"peephole": (2, 2 * self.width) if self.both else (4 * self.width,)}
        return {"secondary_bias": (self.width,)} if self.options.get("reset_after") else {}

    def _arrays(self, rng: np.random.Generator, own: dict[str, tuple[int, ...]]) -> Any:
        steps, batch, rows = self.steps, self.batch, self.gates * self.width
        blocks = (self.heads,) if self.heads > 1 else ()
        projected = rng.random() < 0.3
        shapes = {
            "source": (steps, batch, rows if projected else 3),
            "recurrent_weight": ((2,) * self.both + blocks) + (self.gates * self.units, self.units),
            "input_weight": (rows, 3),
            "bias": (rows,),
            "mask": (steps, batch if rng.random() < 0.5 else 1, self.width),
            **dict.fromkeys(self.states, (batch, self.width)),
            **own,
        }
        left_out = {"input_weight"} if projected else set()
        left_out |= {n for n in ("bias", "mask", *self.states) if rng.random() < 0.4}
        found = {
            name: (rng.normal(size=shape) * 0.4).astype(self.dtype)
            for name, shape in shapes.items()
            if name not in left_out
        }
        if rng.random() < 0.6:
            kind = rng.choice(["bool", "int32", "float32"])
            found["resets"] = (rng.random((steps, batch)) < 0.35).astype(kind)
        if "init_n" in found:  # what the sLSTM divides by
            found["init_n"] = 1 + abs(found["init_n"])
        return found

    def wanted(self) -> list[Array]:
        """By the reference, in float64."""
        wide = {n: a if n == "resets" else a.astype("float64") for n, a in self.arrays.items()}
        if isinstance(self.cell, str):
            function, kind, _ = BUILT_IN[self.cell]
            found = function(
                **wide, heads=self.heads, descriptor=kind(**self.options), backend="reference"
            )
        else:
            found = self.cell(**wide, heads=self.heads, backend="reference", **self.options)
        return [array for array in found[: len(self.states)] if array is not None]

    def saved(self, rng: np.random.Generator, path: Path) -> dict[str, Array]:
        """Writes the node, and gives its feeds: some inputs are placeholders, some variables."""
        g, unknown = zs.Graph(), bool(rng.random() < 0.5)
        tensors, feeds = {}, {}
        for name, array in self.arrays.items():
            per_step = name in ("source", "mask", "resets", *self.states)
            if name != "source" and rng.random() < 0.5:
                tensors[name] = g.constant(array) if per_step else g.variable(array)
                continue
            open_axes = {"source": 2, "resets": 2, "mask": 1}.get(name, int(per_step))
            shape = (None,) * open_axes + array.shape[open_axes:]
            shape = shape if unknown else array.shape
            tensors[name] = g.placeholder(shape=shape, dtype=array.dtype.name, name=name)
            feeds[name] = array
        if isinstance(self.cell, str):
            descriptor = BUILT_IN[self.cell][1](**self.options)
            found = getattr(g, self.cell)(**tensors, heads=self.heads, descriptor=descriptor)
        else:
            found = g.recurrent(self.cell, **tensors, heads=self.heads, **self.options)
        states = found[: len(self.states)]
        zo.save(g, {f"out{k}": tensor for k, tensor in enumerate(states)}, path)
        return feeds


def close(found: list[Array], wanted: list[Array], dtype: str, what: str) -> None:
    for array, exact in zip(found, wanted, strict=True):
        assert array.shape == exact.shape and array.dtype == dtype, what
        top = 1 + np.abs(exact).max(initial=0)
        bound = 5e-6 if dtype == "float32" else 1e-12
        np.testing.assert_allclose(array / top, exact / top, rtol=0, atol=bound, err_msg=what)


def check(rng: np.random.Generator, path: Path) -> str:
    """One layer, out and back; the kind of node that it became."""
    layer = Layer(rng)
    wanted = layer.wanted()
    what = f"{layer.cell} {layer.heads}×{layer.units} {layer.options} {sorted(layer.arrays)}"
    feeds = layer.saved(rng, path)
    saved = onnx.load(path)
    onnx.checker.check_model(saved, full_check=True)
    kinds = [node.op_type for node in saved.graph.node]
    close([*runtime(path, feeds).values()], wanted, layer.dtype, what)
    loaded = zo.load(path)
    close([*loaded.run(feeds).values()], wanted, layer.dtype, f"{what}, loaded")
    is_scan = "Scan" in kinds
    own = layer.cell if isinstance(layer.cell, str) else "recurrent"
    if is_scan and layer.cell is cells.indrnn:
        own = "single_gate_rnn"  # whose equations these are
    names = [node.op.name for node in loaded.graph.nodes]
    assert names.count(own) == 1 + (is_scan and layer.both), what
    if is_scan and own == "recurrent":
        cell = next(n.attributes["cell"] for n in loaded.graph.nodes if n.op.name == own)
        assert cell.__name__ == layer.cell.__name__
    return "Scan" if is_scan else own


@pytest.mark.parametrize("part", range(3))
def test_random_cells(part: int, pytestconfig: pytest.Config, tmp_path: Path) -> None:
    rng = np.random.default_rng([int(pytestconfig.option.hypothesis_seed), part])
    kinds = Counter(check(rng, tmp_path / "layer.onnx") for _ in range(20))
    assert kinds["Scan"] > 12


OTHER_KINDS = (
    *("Add", "Sub", "Mul", "Div", "Max", "Min", "Tanh", "Sigmoid", "Relu", "Neg", "Abs", "Exp"),
    *("Softplus", "Identity", "MatMul", "Where", "Greater", "GreaterOrEqual", "ReduceMean"),
    *("HardSigmoid", "Sqrt"),
)


def alter(rng: np.random.Generator, scan: Any) -> None:
    """Another operator, operand or order, an attribute less, another direction."""
    (body,) = [attribute.g for attribute in scan.attribute if attribute.name == "body"]
    node = body.node[int(rng.integers(len(body.node)))]
    values = [name for each in body.node for name in (*each.output, *each.input)]
    directions = [attribute for attribute in scan.attribute if "directions" in attribute.name]
    how = rng.integers(5)
    if how == 0:
        node.op_type = str(rng.choice(OTHER_KINDS))
    elif how == 1:
        node.input[int(rng.integers(len(node.input)))] = str(rng.choice(values))
    elif how == 2:
        names = node.input if len(node.output) == 1 else node.output
        names[:] = list(names)[::-1]
    elif how == 3 and node.attribute:
        del node.attribute[0]
    else:
        ints = directions[int(rng.integers(len(directions)))].ints
        ints[0] = 1 - ints[0]


def check_altered(rng: np.random.Generator, path: Path) -> str:
    """Whether an altered body was refused, here or there, or computes the same here as there."""
    layer = Layer(rng)
    feeds = layer.saved(rng, path)
    model = onnx.load(path)
    scans = [node for node in model.graph.node if node.op_type == "Scan"]
    for _ in range(int(rng.integers(1, 3)) if scans else 0):
        alter(rng, scans[0])
    try:
        found = zo.load(model).run(feeds)
    except zs.ZStateError:
        return "refused"
    try:
        wanted = runtime(model, feeds)
    except Exception:  # onnxruntime's own
        return "refused there"
    for name, array in wanted.items():  # a cell of any equations may make a difference larger
        np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-4, err_msg=name)
    return "same"


def test_altered_bodies(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    rng = np.random.default_rng([int(pytestconfig.option.hypothesis_seed), 99])
    with np.errstate(all="ignore"):
        kinds = Counter(check_altered(rng, tmp_path / "altered.onnx") for _ in range(60))
    assert kinds["refused"] > 10 and kinds["same"] > 5


def test_a_body_that_doubles_costs_no_more_than_its_nodes(tmp_path: Path) -> None:
    """Two hundred times a value by itself: what is kept per value must not double each time."""
    g = zs.Graph()
    x, R = g.placeholder(shape=(2, 1, 4), name="x"), g.variable(np.full((4, 2), 0.1, np.float32))
    (h,) = g.recurrent(cells.mgu, x, recurrent_weight=R)
    zo.save(g, {"h": h}, tmp_path / "m.onnx")
    model = onnx.load(tmp_path / "m.onnx")
    (scan,) = [node for node in model.graph.node if node.op_type == "Scan"]
    (body,) = [attribute.g for attribute in scan.attribute if attribute.name == "body"]
    last = next(node.output[0] for node in body.node if node.op_type == "MatMul")
    ends = [node for node in body.node if node.op_type == "Identity"]
    nodes = [node for node in body.node if node.op_type != "Identity"]
    for k in range(200):
        nodes.append(onnx.helper.make_node("Mul", [last, last], [f"square_{k}"]))
        last = f"square_{k}"
    nodes.append(onnx.helper.make_node("Add", [ends[0].input[0], last], ["end"]))
    for node in ends:
        node.input[0] = "end"
    del body.node[:]
    body.node.extend([*nodes, *ends])
    feeds = {"x": np.ones((2, 1, 4), np.float32)}
    found, wanted = zo.load(model).run(feeds)["h"], runtime(model, feeds)["h"]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    body.node.extend(onnx.helper.make_node("Neg", ["end"], [f"more_{k}"]) for k in range(4096))
    with pytest.raises(zs.ZStateError, match=r"\(Scan\).*one step of a cell.*nodes"):
        zo.load(model)


@cells.cell(gates="z")
def bounded(x, R, h):
    return cells.minimum(cells.maximum(x.z + R.z @ h, -0.5), 0.25)


@pytest.mark.parametrize("form", ["one", "several", "attributes"])
def test_clip_in_a_body(form: str, tmp_path: Path) -> None:
    """As one node, as two with a bound each, and with bounds that only opset 6 had."""
    rng = np.random.default_rng(4)
    g = zs.Graph()
    x = g.placeholder(shape=(None, 2, 3), dtype="float64", name="x")
    (h,) = g.recurrent(bounded, x, recurrent_weight=g.variable(rng.normal(size=(3, 3))))
    zo.save(g, {"h": h}, tmp_path / "m.onnx")
    model = onnx.load(tmp_path / "m.onnx")
    (scan,) = [node for node in model.graph.node if node.op_type == "Scan"]
    (body,) = [attribute.g for attribute in scan.attribute if attribute.name == "body"]
    low, high = (next(n for n in body.node if n.op_type == kind) for kind in ("Max", "Min"))
    low.op_type = high.op_type = "Clip"
    value, lower, upper, end = (low.input[0], low.input[1], high.input[1], high.output[0])
    if form == "one":
        high.CopyFrom(onnx.helper.make_node("Clip", [value, lower, upper], [end]))
        body.node.remove(low)
    elif form == "several":
        high.CopyFrom(onnx.helper.make_node("Clip", [low.output[0], "", upper], [end]))
    else:
        low.attribute.append(onnx.helper.make_attribute("min", -0.5))
        with pytest.raises(zs.ZStateError, match=r"one step of a cell.*got Clip with"):
            zo.load(model)
        return
    feeds = {"x": rng.normal(size=(5, 2, 3))}
    loaded = zo.load(model)
    np.testing.assert_allclose(loaded.run(feeds)["h"], runtime(model, feeds)["h"], rtol=1e-12)
    (node,) = [each for each in loaded.graph.nodes if each.op.name == "recurrent"]
    assert "minimum(maximum(" in str(node.attributes["cell"])
