"""`zstate graph`: a large graph is drawn in a few boxes and can be unfolded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import zstate as zs
from zstate import cli
from zstate.train import Run, Settings

TEXT = "the cat sat on the mat. the dog ate the cat.\n" * 60


@pytest.mark.parametrize(("cell", "layers"), [("lstm", 1), ("gru", 3)])
def test_unfolding(
    cell: str, layers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(cell, layers, hidden=8, embedding=4, window=16, batch=4)
    graph = Run.create(tmp_path / "r", settings, TEXT).model.graph
    count = len(graph.nodes)
    assert count > 150
    file = tmp_path / "g"
    graph.save(file)
    for option, box in (("--svg", "<rect "), ("--dot", "fillcolor")):
        out = tmp_path / "out"
        assert cli.main(["graph", str(file), option, str(out)]) == 0
        assert f"wrote {count} nodes, folded (--unfold shows all)" in capsys.readouterr().out
        assert out.read_text().count(box) <= 60
        assert cli.main(["graph", str(file), option, str(out), "--unfold"]) == 0
        assert f"wrote {count} nodes to " in capsys.readouterr().out
        assert out.read_text().count(box) == count


def test_a_small_graph_is_drawn_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(2, 1, 3), dtype="float64", name="x")
    g.single_gate_rnn(x, recurrent_weight=g.variable(np.eye(3)))
    g.save(tmp_path / "g")
    assert cli.main(["graph", str(tmp_path / "g"), "--svg", str(tmp_path / "s")]) == 0
    assert "folded" not in capsys.readouterr().out
    assert (tmp_path / "s").read_text() == g.to_svg()
    assert cli.main(["graph", str(tmp_path / "g")]) == 0
    assert capsys.readouterr().out == f"{g}\n"
