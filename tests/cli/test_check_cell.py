"""`zstate check --cell module:name`: a cell of one's own, checked as the built-in ones are."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zstate as zs
from tests.cli.test_cli import spoil_the_reference
from zstate import cells, cli, verify
from zstate.layout import Layout

SOURCE = """
import zstate.cells as cells

@cells.cell(gates="z", parameters="alpha", initial={"h": 0.25})
def leaky(x, R, h, alpha):
    return (1 - alpha) * h + alpha * cells.tanh(x.z + R.z @ h)

@cells.cell(gates="z c", states="h s")
def kinked(x, R, h, s):
    a, b = cells.relu(x.z + R.z @ h), cells.hard_sigmoid(x.c + R.c @ s)
    return cells.where(a > b, a * 0.5, b), cells.abs(s * b - a) * 0.5

@cells.cell(gates="z", steps="k")
def blended(x, R, h, k):
    return k * h + (1 - k) * cells.tanh(x.z + R.z @ h)

number = 3
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module `mine` in the current folder, which is not on Python's path."""
    (tmp_path / "mine.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each not in ("", str(tmp_path))])
    yield
    for name in ("mine", "broken", "wrong", "leaving", "lazy"):
        sys.modules.pop(name, None)


def test_every_backend_and_type(capsys: pytest.CaptureFixture[str]) -> None:
    cells = ("mine:leaky", "mine:kinked", "mine:blended")
    words = [word for cell in cells for word in ("--cell", cell)]
    assert cli.main(["check", *words, "--seed", "5"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "mine:" in line]
    types = {"float64", "float32", "float16", "bfloat16"}
    for cell in cells:
        found = {(row[0], row[2]) for row in rows if row[1] == cell}
        assert found >= {("differences", "float64"), *(("native", each) for each in types)}
        assert ("reference", "float32") in found
    assert not any("rnn" in row[1] or "lstm" in row[1] for row in rows)
    assert all(row[6] == "ok" for row in rows)


def test_through_jax(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def few(cell: Any) -> list[verify.Case]:
        return [c for c in verify.cases_of(cell) if c.title in ("all inputs", "bidirectional")]

    assert len(few(cells.cifg)) == 2
    monkeypatch.setattr("zstate.cli.check.cases_of", few)
    assert cli.main(["check", "--cell", "mine:leaky", "--through", "jax", "--seed", "6"]) == 0
    assert "jax         mine:leaky float32" in capsys.readouterr().out


def test_in_a_process_of_its_own() -> None:
    """As the installed command does, whose path has no current folder."""
    package = str(Path(zs.__file__).parents[1])
    code = f"import sys; sys.path[0] = {package!r}; from zstate import cli; sys.exit(cli.main())"
    words = ["check", "--cell", "mine:leaky", "--backend", "reference", "--seed", "7"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "4 passed, 0 failed" in done.stdout


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r._replace(alpha=r.alpha * (1 + 1e-5)),
        lambda r: r._replace(source=r.source + 1e-4),
        lambda r: r if r.init_h is None else r._replace(init_h=-r.init_h),
    ],
    ids=["parameter", "source", "initial state"],
)
def test_a_wrong_gradient_is_found(
    change: Callable[[Any], Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def spoiled(layout: Layout, result: Any) -> Any:
        return change(result) if layout.operation.is_gradient else result

    words = ["check", "--cell", "mine:leaky", "--backend", "reference", "--seed", "8"]
    spoil_the_reference(monkeypatch, spoiled)
    assert cli.main(words) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("differences") and "FAILED" in line for line in lines)


def test_what_the_cases_have() -> None:
    cases = {case.title: case for case in verify.cases_of(cells.slstm)}
    whole = verify.make_inputs(cases["all inputs"], 3)
    assert set(np.unique(whole["mask"])) == {0, 1.25}
    for case in cases.values():
        given = verify.make_inputs(case, 3)
        assert all(np.any(array != 0) for array in given.values())
        if "init_n" in given:  # a state that the cell reaches
            assert (given["init_n"] > 0).all() and np.isfinite(given["init_m"]).all()
    ways = [case.descriptor for case in cases.values()]
    assert any(way.reverse for way in ways) and any(way.bidirectional for way in ways)
    both = verify.make_inputs(cases["bidirectional"], 3)
    assert both["c_gradient"].shape == both["source_gradient"].shape
    assert verify.make_inputs(cases["reverse"], 3)["h_gradient"].ndim == 2


BROKEN = """
import zstate.cells as cells

@cells.cell(gates="z")
def wrong(x, R, h):
    return h if h > 0 else x.z + R.z @ h
"""
REFUSED = [
    ("mine", "expected MODULE:NAME"),
    (":leaky", "expected MODULE:NAME"),
    ("mine:", "expected MODULE:NAME"),
    ("theirs:leaky", "No module named 'theirs'"),
    ("..mine:leaky", "a module that can be imported"),
    ("mine:leeky", "expected a cell of mine (leaky, kinked, blended), got no leeky in it"),
    ("mine:number", "expected a cell from zstate.cells.cell, got int 3"),
    ("mine:cells", "expected a cell from zstate.cells.cell, got module"),
    ("zstate.cells:LSTM", "expected a cell from zstate.cells.cell, got"),
    ("broken:x", "expected a module that can be imported, got ZeroDivisionError: division by zero"),
    ("leaving:x", "expected a module that can be imported, got SystemExit: 7"),
    ("lazy:x", "expected a module that can be imported, got ZeroDivisionError: division by zero"),
]


@pytest.mark.parametrize(("spec", "says"), REFUSED, ids=[spec for spec, _ in REFUSED])
def test_refusals(spec: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "leaving.py").write_text("raise SystemExit(7)")
    (tmp_path / "lazy.py").write_text("def __getattr__(name):\n    return {'x': 1 / 0}[name]")
    assert cli.main(["check", "--cell", spec]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"zstate: [check] --cell {spec}: ") and says in printed.err
    assert not printed.out


def test_a_cell_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wrong.py").write_text(BROKEN)
    assert cli.main(["check", "--cell", "wrong:wrong"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("zstate: [wrong] expected equations that are the same")
    assert "wrong.py:6: return h if h > 0 else" in message


def test_not_with_mpsgraph(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--mpsgraph", "--cell", "mine:leaky"]) == 2
    expected = "[check] --mpsgraph: expected MPSGraph's own cells, got --cell mine:leaky"
    assert expected in capsys.readouterr().err
