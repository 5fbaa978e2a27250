"""`zstate train --resume`: to the bit in every configuration, from any directory, beyond the end,
and with the options that the run began with."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import zstate as zs
from zstate.train import Run, Settings

TEXT = "the cat sat on the mat. the dog ate the cat.\n" * 120


# A variable in Fortran order is saved in C order, and small products differ in bits between them:
# whether one is left so depends on the cell and on which of the sizes are equal or small.
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
@pytest.mark.parametrize(
    ("hidden", "embedding", "layers", "dropout"),
    [
        *((hidden, embedding, 1, 0.0) for hidden in (7, 24, 64) for embedding in (5, 32, 64)),
        *((16, 8, 2, 0.3), (64, 32, 2, 0.0), (64, 32, 1, 0.2), (1, 1, 1, 0.0)),
    ],
)
def test_resuming_continues_to_the_bit(
    cell: str, hidden: int, embedding: int, layers: int, dropout: float, tmp_path: Path
) -> None:
    settings = Settings(
        cell, layers, hidden, embedding, window=8, batch=4, dropout=dropout, total=6
    )
    straight = Run.create(tmp_path / "straight", settings, TEXT, None)
    whole = [point.bits for point in straight.train(100)]
    broken = Run.create(tmp_path / "broken", settings, TEXT, None)
    bits = [point.bits for point in itertools.islice(broken.train(3), 4)]
    resumed = Run.resume(tmp_path / "broken", TEXT)
    assert resumed.step == 3
    assert bits[:3] + [point.bits for point in resumed.train(100)] == whole
    ours, theirs = straight.model.graph.variables(), resumed.model.graph.variables()
    for name in ours:
        if not name.startswith("valid"):
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def test_variables_keep_c_order() -> None:
    g = zs.Graph()
    rng = np.random.default_rng(0)
    w = g.variable(rng.normal(size=(3, 5)))
    x = g.placeholder(shape=(5, 3), dtype="float64")
    step = g.assign(w, g.transpose(x, [1, 0]) * 2.0)
    program = g.compile(feeds={x: ((5, 3), "float64")}, targets=[step], operations=[step])
    (found,) = program.run([rng.normal(size=(5, 3))])
    assert found.flags.c_contiguous
    assert w.node.attributes["store"].value.flags.c_contiguous
