"""`zstate graph`: a large graph is drawn in a few boxes, without cycles, and can be unfolded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import zstate as zs
from zstate import cli
from zstate.cli.folding import LARGE, _groups, fold
from zstate.train import Run, Settings

TEXT = "the cat sat on the mat. the dog ate the cat.\n" * 60
SIZES = {"hidden": 8, "embedding": 4, "window": 16, "batch": 4}


@pytest.fixture(scope="module", params=[("lstm", 1), ("gru", 3)])
def training(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> zs.Graph:
    cell, layers = request.param
    settings = Settings(cell=cell, layers=layers, **SIZES)
    return Run.create(tmp_path_factory.mktemp("run") / "r", settings, TEXT).model.graph


def test_the_training_graph_fits_on_a_page(training: zs.Graph) -> None:
    folded = fold(training)
    assert len(training.nodes) > 150 and len(folded.nodes) <= 40
    names = [node.name for node in folded.nodes]
    cell = "lstm" if any("lstm" in name for name in names) else "gru"
    layers = sum("gradients_" in name for name in names)
    for k in range(layers):
        of_layer = [name for name in names if name.startswith(f"layer{k}: {cell}")]
        assert len(of_layer) == 4  # training, its gradient, validation, sampling
    assert sum(name.startswith("adam, ") for name in names) == 1
    assert {"train.tokens", "train.targets", "train.keep"} <= set(names)


def test_nothing_is_lost_and_arrows_lead_forward(training: zs.Graph) -> None:
    groups, _ = _groups(training)
    for node in training.nodes:
        for tensor in node.inputs:
            assert groups[tensor.node] <= groups[node]
    folded = fold(training)
    drawn: set[object] = set()
    for node in folded.nodes:
        assert all(tensor.node in drawn for tensor in node.inputs)
        drawn.add(node)
    inside = sum(int(n.name.rpartition(" +")[2]) if " +" in n.name else 0 for n in folded.nodes)
    assert len(folded.nodes) + inside == len(training.nodes)


def test_unfolding(training: zs.Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count = len(training.nodes)
    file, out = tmp_path / "g", tmp_path / "g.svg"
    training.save(file)
    few = len(fold(training).nodes)
    for words, boxes in (([], few), (["--unfold"], count), (["--unfold", "layer0: *"], None)):
        assert cli.main(["graph", str(file), "--svg", str(out), *words]) == 0
        assert f"wrote {count} nodes" in capsys.readouterr().out
        drawn = out.read_text().count("<rect ")
        assert drawn == boxes or (boxes is None and few < drawn < count)
    assert cli.main(["graph", str(file), "--dot", str(tmp_path / "g.dot")]) == 0
    assert f"in {few} boxes (--unfold shows all)" in capsys.readouterr().out
    assert (tmp_path / "g.dot").read_text().count("fillcolor") == few


def test_a_small_graph_is_drawn_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(2, 1, 3), dtype="float64", name="x")
    g.single_gate_rnn(x, recurrent_weight=g.variable(np.eye(3)))
    assert len(g.nodes) < LARGE
    g.save(tmp_path / "g")
    assert cli.main(["graph", str(tmp_path / "g"), "--svg", str(tmp_path / "s")]) == 0
    assert "boxes" not in capsys.readouterr().out
    assert (tmp_path / "s").read_text() == g.to_svg()
    assert cli.main(["graph", str(tmp_path / "g")]) == 0
    assert capsys.readouterr().out == f"{g}\n"


def test_a_graph_of_anything_folds() -> None:
    """Parts without an anchor, an optimiser alone, and gradients of gradients."""
    g = zs.Graph()
    w = g.variable(np.ones((3, 3)), name="w")
    x = g.placeholder(shape=(3, 3), dtype="float64")
    loss = g.reduction_sum(g.square(g.tanh(x @ w) @ w))
    first = g.gradients(of=loss, with_respect_to=[w])[w]
    second = g.gradients(of=g.reduction_sum(g.square(first)), with_respect_to=[w])[w]
    g.assign(w, g.stochastic_gradient_descent(0.1, w, second))
    g.variable(np.ones(3)) * 2.0
    groups, _ = _groups(g)
    assert all(groups[t.node] <= groups[n] for n in g.nodes for t in n.inputs)
    assert len(fold(g).nodes) < len(g.nodes)
    assert len(fold(zs.Graph()).nodes) == 0
