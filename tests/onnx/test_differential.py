"""Every operator that zstate.onnx reads, on random nodes, against ONNX Runtime.

``python -m tests.onnx.differential`` runs the same at length; a failure names the seed and the case
that it repeats with ``--seed`` and ``--case``.
"""

from __future__ import annotations

import pytest

from tests.onnx.differential import compare, drawn
from tests.onnx.drawn_nodes import RECIPES
from zstate.onnx.nodes import ROWS

_EACH = 10  # nodes of each operator, each of them four times: sizes known, unknown, named, changed


def test_every_operator_has_a_recipe() -> None:
    """Scan and Loop have tests of their own."""
    assert {*RECIPES} == {*ROWS} - {"Loop", "Scan"}


@pytest.mark.parametrize("kind", sorted(RECIPES))
def test_against_onnxruntime(kind: str, pytestconfig: pytest.Config) -> None:
    seed = int(pytestconfig.option.hypothesis_seed)
    for number in range(_EACH):
        case = drawn(kind, number, seed)
        differences, _ = compare(case)
        assert not differences, (f"--seed {seed} --case {kind}:{number}: {case}", differences)
