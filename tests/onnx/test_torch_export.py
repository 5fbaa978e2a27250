"""torch.onnx.export(dynamo=True) of zstate.torch's layers writes plain recurrent nodes."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import zstate as zs
import zstate.onnx as zo
import zstate.torch as zt
from tests.onnx.common import runtime
from zstate import cells

pytest.importorskip("onnxscript", reason="torch's exporter needs onnxscript")
pytestmark = pytest.mark.filterwarnings("ignore")
T, N, I, H = 7, 3, 4, 5
LENGTHS = torch.tensor([7, 2, 4])


class Model(torch.nn.Module):
    """A layer, and a linear one behind it."""

    def __init__(self, layer: torch.nn.Module, width: int, with_states: bool) -> None:
        super().__init__()
        self.layer, self.out, self.with_states = layer, torch.nn.Linear(width, 2), with_states

    def forward(self, x: Any, lengths: Any = None) -> Any:
        y, states = self.layer(x) if lengths is None else self.layer(x, lengths=lengths)
        return (self.out(y), states) if self.with_states else self.out(y)


def check(
    model: torch.nn.Module, feeds: dict[str, Any], dynamic: Any, path: Path, has_table: bool = True
) -> set[str]:
    """The kinds of nodes in the exported file, whose outputs are the model's: onnxruntime's, and
    those of the file as zstate loads it."""
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    more = {"custom_translation_table": zo.torch_translations()} if has_table else {}
    program = torch.onnx.export(
        model.eval(),
        tuple(feeds.values()),
        dynamo=True,
        dynamic_shapes=dynamic,
        verbose=False,
        **more,
    )
    program.save(str(path))
    with torch.no_grad():
        wanted = torch.utils._pytree.tree_leaves(model(*feeds.values()))
    arrays = {name: tensor.numpy() for name, tensor in feeds.items()}
    for found in (runtime(path, arrays), zo.load(path).run(arrays)):
        for array, tensor in zip(found.values(), wanted, strict=True):
            np.testing.assert_allclose(array, tensor.numpy(), rtol=0, atol=2e-6)
    return {node.op_type for node in onnx.load(path).graph.node}


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_layers_with_a_table(kind: str, tmp_path: Path) -> None:
    """A table changes nothing where ONNX has a node."""
    dynamic = {"x": {0: torch.export.Dim("T"), 1: torch.export.Dim("N")}}
    model = Model(getattr(zt, kind)(I, H, bidirectional=True), 2 * H, True)
    kinds = check(model, {"x": torch.randn(T, N, I)}, dynamic, tmp_path / "m.onnx")
    assert kind in kinds and "Scan" not in kinds


class Parts(torch.nn.Module):
    """What a table of translations gets: one operation, its states and, of an LSTM, its cells."""

    def __init__(self, kind: str, options: dict[str, Any], bidirectional: bool) -> None:
        super().__init__()
        self.function = {"RNN": zs.single_gate_rnn, "LSTM": zs.lstm, "GRU": zs.gru}[kind]
        fields = {"bidirectional": bidirectional, **options}
        fields |= {"produce_cell": True} if kind == "LSTM" else {}
        names = {"RNN": zs.SingleGateRNNDescriptor, "LSTM": zs.LSTMDescriptor}
        self.descriptor = names.get(kind, zs.GRUDescriptor)(**fields)
        count, rows = 1 + bidirectional, {"RNN": 1, "LSTM": 4, "GRU": 3}[kind] * H
        shapes: dict[str, tuple[int, ...]] = {
            "recurrent_weight": (2, rows, H) if bidirectional else (rows, H),
            "input_weight": (count * rows, I),
            "bias": (count * rows,),
            "init_state": (N, count * H),
        }
        if options.get("reset_after"):
            shapes["secondary_bias"] = (count * H,)
        if "peephole_on_new_cell" in options:
            shapes["peephole"] = (2, rows) if bidirectional else (rows,)
        for name, shape in shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.empty(shape)))

    def forward(self, x: Any) -> Any:
        found = self.function(x, **dict(self.named_parameters()), descriptor=self.descriptor)
        return [each for each in found if each is not None]


HARD = zs.Activation.HARD_SIGMOID
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("RNN", {"activation": zs.Activation.TANH}),
    ("RNN", {"activation": HARD}),
    ("LSTM", {}),
    ("LSTM", {"forget_gate_last": True, "input_gate_activation": HARD}),
    ("LSTM", {"peephole_on_new_cell": False}),
    ("LSTM", {"peephole_on_new_cell": True}),
    ("GRU", {"reset_after": True, "reset_gate_first": True}),
    ("GRU", {"flip_z": True, "reset_after": True}),
    ("GRU", {"update_gate_activation": HARD}),
]


@pytest.mark.parametrize(
    ("kind", "options", "bidirectional"),
    [(*variant, k % 2 == 1) for k, variant in enumerate(VARIANTS)],
)
def test_operations_by_the_table(
    kind: str, options: dict[str, Any], bidirectional: bool, tmp_path: Path
) -> None:
    """Every cell and option, and every cell in one direction and both; the Scan that holds what
    ONNX has no node for is read back."""
    model = Parts(kind, options, bidirectional)
    kinds = check(model, {"x": torch.randn(T, N, I)}, None, tmp_path / "m.onnx")
    loaded = zo.load(tmp_path / "m.onnx")
    names = {"RNN": "single_gate_rnn", "LSTM": "lstm", "GRU": "gru"}
    assert names[kind] in [node.op.name for node in loaded.graph.nodes]
    assert (
        kind in kinds
        or [node.op_type for node in onnx.load(tmp_path / "m.onnx").graph.node].count("Scan")
        == 1 + bidirectional
    )


@pytest.mark.parametrize(
    ("kind", "bidirectional"), [("RNN", True), ("LSTM", False), ("LSTM", True), ("GRU", False)]
)
def test_the_default_exporter(kind: str, bidirectional: bool, tmp_path: Path) -> None:
    """Without a table a layer is a node of ONNX's own, lengths and last states and all."""
    layer = getattr(zt, kind)(I, H, num_layers=2, bidirectional=bidirectional)
    model = Model(layer, H * (1 + bidirectional), True)
    feeds = {"x": torch.randn(T, N, I), "lengths": LENGTHS}
    steps, batch = torch.export.Dim("T"), torch.export.Dim("N")
    dynamic = {"x": {0: steps, 1: batch}, "lengths": {0: batch}}
    kinds = check(model, feeds, dynamic, tmp_path / "m.onnx", has_table=False)
    assert kind in kinds and not kinds & {"Scan", "Gather", "Slice", "Split", "Pad", "Where"}
    nodes = onnx.load(tmp_path / "m.onnx").graph.node
    assert [node.op_type for node in nodes].count(kind) == 2 and len(nodes) < 16


class WithState(torch.nn.Module):
    """A layer from given states, on sequences some of which are empty, and a cell behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.cell = (
            zt.GRU(I, H, batch_first=True, dtype=torch.float32),
            zt.LSTMCell(H, 3),
        )

    def forward(self, x: Any, lengths: Any, h: Any) -> Any:
        y, last = self.layer(x, h, lengths=lengths)
        return y, last, self.cell(last[0])


def test_empty_sequences_keep_their_state_and_cells_are_nodes(tmp_path: Path) -> None:
    feeds = {
        "x": torch.randn(N, T, I),
        "lengths": torch.tensor([0, 7, 3]),
        "h": torch.randn(1, N, H),
    }
    kinds = check(WithState(), feeds, None, tmp_path / "m.onnx", has_table=False)
    assert {"GRU", "LSTM"} <= kinds


def test_without_a_table_the_error_says_where_to_get_one() -> None:
    model = Model(zt.LSTM(I, H, peephole=True), H, False).eval()
    gc.collect()
    with pytest.raises(RuntimeError, match=r"zstate.onnx.torch_translations\(\)"):
        torch.onnx.export(model, (torch.randn(T, N, I),), dynamo=True, verbose=False)


def test_what_onnx_has_no_node_for(tmp_path: Path) -> None:
    layer = zt.GRU(
        I, H, batch_first=True, activations={"update_gate_activation": zs.Activation.HARD_SIGMOID}
    )
    kinds = check(Model(layer, H, False), {"x": torch.randn(N, T, I)}, None, tmp_path / "m.onnx")
    assert "Scan" in kinds and "GRU" not in kinds


@pytest.mark.parametrize("on_new_cell", [False, True])
def test_peepholes(on_new_cell: bool, tmp_path: Path) -> None:
    layer = zt.LSTM(I, H, peephole=True, peephole_on_new_cell=on_new_cell)
    kinds = check(Model(layer, H, False), {"x": torch.randn(T, N, I)}, None, tmp_path / "m.onnx")
    assert "Scan" in kinds and "LSTM" not in kinds  # ONNX has no peephole on the cell gate


class WithResets(torch.nn.Module):
    """A layer that begins anew in the middle of its rows."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any, resets: Any, lengths: Any = None) -> Any:
        return self.layer(x, lengths=lengths, resets=resets)


@pytest.mark.parametrize(
    ("kind", "with_lengths"), [("RNN", True), ("LSTM", False), ("LSTM", True), ("GRU", True)]
)
def test_resets(kind: str, with_lengths: bool, tmp_path: Path) -> None:
    feeds = {"x": torch.randn(T, N, I), "resets": torch.rand(T, N) < 0.4}
    steps, batch = torch.export.Dim("T"), torch.export.Dim("N")
    dynamic = {name: {0: steps, 1: batch} for name in feeds}
    if with_lengths:
        feeds["lengths"], dynamic["lengths"] = LENGTHS, {0: batch}
    layer = getattr(zt, kind)(I, H, bidirectional=with_lengths)
    assert "Scan" in check(WithResets(layer), feeds, dynamic, tmp_path / "m.onnx")


@cells.cell(gates="z", steps="k")
def timed(x, R, h, k):
    return cells.tanh(x.z + R.z @ (h * k))


class WithSteps(torch.nn.Module):
    """A layer with values per step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = zt.Recurrent(timed, I, H)

    def forward(self, x: Any, k: Any, lengths: Any) -> Any:
        return self.layer(x, lengths=lengths, steps={"k": k})


@pytest.mark.parametrize("with_steps", [False, True])
def test_lengths_leave_the_steps_open(with_steps: bool, tmp_path: Path) -> None:
    """The file runs with other sizes than those it was exported with."""
    torch.manual_seed(2)
    model = WithSteps() if with_steps else WithResets(zt.LSTM(I, H, bidirectional=True))
    second = "k" if with_steps else "resets"

    def feeds(steps: int, batch: int) -> dict[str, Any]:
        values = torch.rand(steps, batch, H) if with_steps else torch.rand(steps, batch) < 0.4
        lengths = torch.randint(1, steps + 1, (batch,))
        return {"x": torch.randn(steps, batch, I), second: values, "lengths": lengths}

    steps, batch = torch.export.Dim("T"), torch.export.Dim("N")
    dynamic = {"x": {0: steps, 1: batch}, second: {0: steps, 1: batch}, "lengths": {0: batch}}
    path = tmp_path / "m.onnx"
    check(model, feeds(T, N), dynamic, path)
    given = feeds(T + 4, N + 1)
    with torch.no_grad():
        wanted = torch.utils._pytree.tree_leaves(model(*given.values()))
    arrays = {name: tensor.numpy() for name, tensor in given.items()}
    for found in (runtime(path, arrays), zo.load(path).run(arrays)):
        for array, tensor in zip(found.values(), wanted, strict=True):
            np.testing.assert_allclose(array, tensor.numpy(), rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("cell", "options"),
    [
        (cells.slstm, {"heads": 2, "bidirectional": True}),
        (cells.layer_norm_gru, {"num_layers": 2}),
        (cells.cifg, {"heads": 6}),
    ],
    ids=["slstm", "layer_norm_gru", "cifg"],
)
def test_cells_from_equations(cell: Any, options: dict[str, Any], tmp_path: Path) -> None:
    batch = torch.export.Dim("N")
    feeds = {"x": torch.randn(T, N, I), "resets": torch.rand(T, N) < 0.4, "lengths": LENGTHS}
    dynamic = {"x": {1: batch}, "resets": {1: batch}, "lengths": {0: batch}}
    layer = zt.Recurrent(cell, I, 6, **options)
    assert "Scan" in check(WithResets(layer), feeds, dynamic, tmp_path / "m.onnx")
    assert "recurrent" in [node.op.name for node in zo.load(tmp_path / "m.onnx").graph.nodes]


class InBlocks(torch.nn.Module):
    """A recurrent weight of heads."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads, units = heads, 6 // heads
        self.weight = torch.nn.Parameter(torch.empty(heads, 3 * units, units))

    def forward(self, x: Any) -> Any:
        return zs.gru(x, self.weight, heads=self.heads).state


@pytest.mark.parametrize("heads", [2, 6])
def test_heads(heads: int, tmp_path: Path) -> None:
    feeds = {"x": torch.randn(T, N, 18)}
    assert "Scan" in check(InBlocks(heads), feeds, None, tmp_path / "m.onnx")


maximum, minimum, relu = cells.maximum, cells.minimum, cells.relu


@cells.cell(gates="z")
def lower_first(x, R, h):
    return maximum(minimum(x.z + R.z @ h, 0.4), -0.2)


@cells.cell(gates="z")
def above_zero(x, R, h):
    return minimum(relu(x.z + R.z @ h), 0.6) + relu(maximum(minimum(h, 0.5), -0.5))


@cells.cell(gates="z")
def several(x, R, h):
    return minimum(minimum(maximum(maximum(x.z + R.z @ h, -0.5), -0.3), 0.4), 0.6)


@pytest.mark.parametrize(
    "layer",
    [
        *(getattr(zt, kind)(I, H, clip=0.3) for kind in ("RNN", "LSTM", "GRU")),
        zt.LSTM(I, H, clip={"h": 0.2, "c": 0.4}, bidirectional=True),
        zt.Recurrent(cells.slstm, I, H, clip=0.4),
        *(zt.Recurrent(cell, I, H) for cell in (lower_first, above_zero, several)),
    ],
    ids=["RNN", "LSTM", "GRU", "both states", "slstm", "lower_first", "above_zero", "several"],
)
def test_values_within_bounds(layer: Any, tmp_path: Path) -> None:
    """The exporter joins Max, Min and Relu to Clip."""
    feeds = {"x": torch.randn(T, N, I) * 3}
    model = Model(layer, H * (1 + layer.bidirectional), True)
    assert "Scan" in check(model, feeds, None, tmp_path / "m.onnx")
    (scan, *_) = [n for n in onnx.load(tmp_path / "m.onnx").graph.node if n.op_type == "Scan"]
    (body,) = [each.g for each in scan.attribute if each.name == "body"]
    assert "Clip" in [node.op_type for node in body.node]


def test_a_clipped_layer_reads_back_as_the_same_cell(tmp_path: Path) -> None:
    """That of the file that ``save`` writes, in which Max and Min stay."""
    check(
        Model(zt.GRU(I, H, clip=0.3), H, True),
        {"x": torch.randn(T, N, I)},
        None,
        tmp_path / "torch.onnx",
    )
    first = zo.load(tmp_path / "torch.onnx")
    zo.save(first.graph, first.outputs, tmp_path / "again.onnx")
    texts = [
        [str(n.attributes["cell"]) for n in model.graph.nodes if n.op.name == "recurrent"]
        for model in (first, zo.load(tmp_path / "again.onnx"))
    ]
    assert texts[0] == texts[1] and "minimum(maximum(" in texts[0][0]
