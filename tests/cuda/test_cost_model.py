"""The costs by which placements are chosen, and the script that fits them."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.cuda.forms import scan as scan_of
from zstate.backends.cuda import cost_model
from zstate.backends.cuda.cost_model import MODES, Costs, Group
from zstate.backends.cuda.placement import CLUSTER, GRID, Chip, Scan
from zstate.backends.cuda.placements import placements

H200 = Chip(132, 232448, (9, 0))
KNOWN = {
    Group(GRID, False, 2): Costs(
        tile=0.21, mma=3e-4, warp=0.012, wait=0.3, block=0.17, deep=0.07, reduced_row=0.2
    ),
    Group(CLUSTER, False, 2): Costs(
        read=4e-4, point=0.014, total=0.004, backward=0.05, pair=0.4, reduction=0.3
    ),
}


@pytest.fixture(scope="module")
def script() -> Any:
    path = Path(__file__).parents[2] / "benchmarks" / "fit_cost_model.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def synthetic(script: Any) -> list[Any]:
    """Times as they would be if the known costs were true."""
    truth = cost_model.model_of((9, 0))._replace(costs=KNOWN)
    sizes = [(64, 16), (256, 64), (512, 256), (1024, 40), (2048, 64)]
    scans = [
        scan_of(cell, backward, "bfloat16", hidden, batch, 1)
        for cell in ("lstm", "gru", "single_gate_rnn")
        for backward in (False, True)
        for hidden, batch in sizes
    ]
    scans += [
        Scan(form, "bfloat16", hidden, batch, 1)
        for form in script.FORMS
        if any(phase.reduces for phase in form.phases)
        for hidden, batch in sizes
    ]
    return [
        script.Row(scan, each, cost_model.microseconds(scan, H200, each, truth))
        for scan in scans
        for each in placements(scan, H200)[::5]
        if cost_model.group_of(scan, each) in KNOWN
    ]


def test_a_fit_recovers_known_costs(script: Any, tmp_path: Path) -> None:
    """From a file of measurements to a file of costs."""
    rows = synthetic(script)
    times, costs = tmp_path / "times.json", tmp_path / "costs.json"
    chip = {"multiprocessors": 132, "shared_bytes": 232448, "capability": [9, 0]}
    data = {"device": "made up", "chip": chip, "rows": [script.written(row) for row in rows]}
    times.write_text(json.dumps(data))
    script.fit_file(times, costs)
    entry = json.loads(costs.read_text())["9.0"]
    assert entry["device"] == "made up"
    fitted = cost_model.read(entry)
    for group, known in KNOWN.items():
        assert np.allclose(fitted.costs[group], known, rtol=1e-2, atol=1e-6), group
    shipped = cost_model.model_of((9, 0))
    others = set(shipped.costs) - set(KNOWN)
    assert others and all(fitted.costs[group] == shipped.costs[group] for group in others)


def test_a_row_survives_its_file(script: Any) -> None:
    row = synthetic(script)[0]
    assert script.read(json.loads(json.dumps(script.written(row)))) == row


def test_costs_are_not_negative(script: Any) -> None:
    A = np.array([[1.0, 1.0, 0.0], [1.0, -1.0, 0.0], [0.0, 1.0, 0.0]])
    assert np.allclose(script.nonnegative_least_squares(A, A @ [2, 3, 0]), [2, 3, 0])
    # Unbounded, x would be (1, -1, ·); with the second at zero, the first is the mean of 0 and 2.
    assert np.allclose(script.nonnegative_least_squares(A, A @ [1, -1, 0]), [1, 0, 0])


def test_the_costs_of_the_package() -> None:
    model = cost_model.model_of((9, 0))
    assert len(model.costs) == len(MODES) * 2 * 2 - 4  # tiles for many rows, and for one
    assert all(cost >= 0 for costs in model.costs.values() for cost in costs)
    assert cost_model.model_of((8, 6)) == model  # no fit of its own
    assert cost_model.read(cost_model.written("H200", model)) == model


def test_a_model_decides_by_its_own_costs() -> None:
    """Twice the costs, twice the time, where everything stays in L2."""
    scan = scan_of("lstm", False, "bfloat16", 256, 16, 1)
    best = placements(scan, H200)[0]
    model = cost_model.model_of((9, 0))
    doubled = {g: Costs(*(2 * cost for cost in costs)) for g, costs in model.costs.items()}
    twice = cost_model.microseconds(scan, H200, best, model._replace(costs=doubled))
    assert math.isclose(twice, 2 * best.microseconds)
