"""The pictures at the end of a run: the same units in every gate, and characters of any script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.inspect.pages import lstm_in_torch
from zstate.train import Run, Settings, plots

TEXT = "天地玄黃，宇宙洪荒。 \U000f1234\n" * 40  # the last one is in no font


def test_every_panel_shows_the_same_units_and_every_character(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    from matplotlib.axes import Axes

    panels: list[Any] = []
    labels: list[str] = []
    draw, tick = Axes.imshow, Axes.set_xticks
    monkeypatch.setattr(
        Axes, "imshow", lambda self, x, **k: (panels.append(np.asarray(x)), draw(self, x, **k))[1]
    )
    monkeypatch.setattr(
        Axes,
        "set_xticks",
        lambda self, at, names, **k: (labels.extend(names), tick(self, at, names, **k)),
    )
    settings = Settings("lstm", hidden=30, embedding=4, window=8, batch=4, total=1)
    run = Run.create(tmp_path / "run", settings, TEXT)
    list(run.train(1))
    plots.draw_all(run)
    text = plots._sentence(run)
    ids = run.corpus.encode(text)
    z, _ = lstm_in_torch(run.model.graph.variables(), ids)
    order = [int(np.abs(z[:, 0].T - row).sum(axis=1).argmin()) for row in panels[0]]
    assert len(set(order)) == 24
    for gate in range(4):
        np.testing.assert_allclose(panels[gate], z[:, gate, order].T, rtol=0, atol=1e-5)
    assert "f\n1\n2\n3\n4" in labels
    assert "⏎" in labels
    assert not [w for w in recwarn if "missing from" in str(w.message)]
