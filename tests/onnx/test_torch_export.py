"""torch.onnx.export(dynamo=True) of zstate.torch's layers writes plain recurrent nodes."""

from __future__ import annotations

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


def check(model: Model, feeds: dict[str, Any], dynamic: Any, path: Path) -> set[str]:
    """The kinds of nodes in the exported file, whose outputs are the model's."""
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    program = torch.onnx.export(
        model.eval(),
        tuple(feeds.values()),
        dynamo=True,
        dynamic_shapes=dynamic,
        custom_translation_table=zo.torch_translations(),
        verbose=False,
    )
    program.save(str(path))
    with torch.no_grad():
        wanted = torch.utils._pytree.tree_leaves(model(*feeds.values()))
    found = runtime(path, {name: tensor.numpy() for name, tensor in feeds.items()})
    for array, tensor in zip(found.values(), wanted, strict=True):
        np.testing.assert_allclose(array, tensor.numpy(), rtol=0, atol=2e-6)
    return {node.op_type for node in onnx.load(path).graph.node}


@pytest.mark.parametrize("with_lengths", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_layers(kind: str, bidirectional: bool, with_lengths: bool, tmp_path: Path) -> None:
    layer = getattr(zt, kind)(I, H, num_layers=2, bidirectional=bidirectional)
    model = Model(layer, H * (1 + bidirectional), False)
    feeds = {"x": torch.randn(T, N, I)}
    dynamic: dict[str, Any] | None = {"x": {0: torch.export.Dim("T"), 1: torch.export.Dim("N")}}
    if with_lengths:
        feeds["lengths"] = LENGTHS
        dynamic = None
    kinds = check(model, feeds, dynamic, tmp_path / "m.onnx")
    assert kind in kinds and "Scan" not in kinds


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_last_states(kind: str, tmp_path: Path) -> None:
    """An LSTM's last cell comes from a Scan beside the node; the others need none."""
    for lengths in ({}, {"lengths": LENGTHS}):
        model = Model(getattr(zt, kind)(I, H, bidirectional=True), 2 * H, True)
        kinds = check(model, {"x": torch.randn(T, N, I), **lengths}, None, tmp_path / "m.onnx")
        assert kind in kinds and ("Scan" in kinds) == (kind == "LSTM")


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


def test_zstate_loads_what_was_exported(tmp_path: Path) -> None:
    model = Model(zt.LSTM(I, H, num_layers=2, bidirectional=True), 2 * H, False)
    feeds = {"x": torch.randn(T, N, I)}
    check(model, feeds, None, tmp_path / "m.onnx")
    loaded = zo.load(tmp_path / "m.onnx")
    (found,) = loaded.run({"x": feeds["x"].numpy()}).values()
    np.testing.assert_allclose(found, model(feeds["x"]).detach().numpy(), rtol=0, atol=2e-6)
