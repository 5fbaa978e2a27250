"""`zstate check --mpsgraph`: what it prints and writes, what ends a child, and its exit status."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tests.mpsgraph.stand_ins import Variation, module
from tests.mpsgraph.variations import VARIATIONS
from zstate import cli, pyobjc
from zstate.cli import check_mpsgraph
from zstate.errors import BackendError
from zstate.mpsgraph.calling import Call, Framework
from zstate.mpsgraph.checking import left_out, mpsgraph_cases, run_case
from zstate.mpsgraph.child import Children
from zstate.mpsgraph.decisions import PROBES
from zstate.mpsgraph.probes import Finding, draw
from zstate.mpsgraph.report import Report, as_json, as_markdown, decisions_table, print_report

ROOT = Path(__file__).parents[2]
ABORTED = "exit status 3" if os.name == "nt" else "SIGABRT"
BY_NAME = {probe.name: probe for probe in PROBES}


@pytest.fixture(autouse=True)
def paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children find the tests; tables are not broken."""
    there = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(there))
    monkeypatch.setenv("COLUMNS", "200")


def few(monkeypatch: pytest.MonkeyPatch, probes: list[str], cases: int) -> None:
    """Check with these probes and the first cases of each cell."""
    chosen = {cell: every[:cases] for cell, every in mpsgraph_cases().items()}
    monkeypatch.setattr(check_mpsgraph, "PROBES", [BY_NAME[name] for name in probes])
    monkeypatch.setattr(check_mpsgraph, "mpsgraph_cases", lambda: chosen)


def test_the_facade_agrees_in_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, page = tmp_path / "report.json", tmp_path / "report.md"
    words = ["check", "--mpsgraph", "--module", "zstate.pyobjc", "--seed", "5"]
    assert cli.main([*words, "--json", str(data), "--markdown", str(page)]) == 0
    printed = capsys.readouterr().out
    report = json.loads(data.read_text())
    assert report["seed"] == 5 and report["facts"]["modules"] == "zstate.pyobjc"
    assert [each["name"] for each in report["probes"]] == list(BY_NAME)
    cases = {
        (cell, dtype, case.title, part)
        for cell, every in mpsgraph_cases().items()
        for dtype in ("float32", "float16", "bfloat16")
        for case in every
        for part in ("forward", "zState", "gradients")
    }
    found = report["cases"]
    assert {(each["cell"], each["dtype"], each["title"], each["part"]) for each in found} == cases
    assert len(found) == len(cases)
    assert report["summary"] == {"agrees": len(PROBES) + len(cases)}
    for text in (printed, page.read_text()):
        assert f"agrees: {len(PROBES) + len(cases)}" in text
        for fact in ("zstate.pyobjc", "macOS", "PyObjC", "device", "--seed 5"):
            assert fact in text
        # Nothing is claimed about what was not run.
        assert "nothing here was run on MPSGraph itself" in text


def test_a_framework_that_crashes_hangs_and_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["LSTM: R of a wrong shape", "RNN: mask of shape [N,H]", "GRU: flipZ = NO"]
    few(monkeypatch, [*names, "RNN: zState"], 1)
    data, page = tmp_path / "report.json", tmp_path / "report.md"
    words = ["check", "--mpsgraph", "--module", "tests.mpsgraph.misbehaving", "--timeout", "3"]
    assert cli.main([*words, "--json", str(data), "--markdown", str(page)]) == 1
    capsys.readouterr()
    report = json.loads(data.read_text())
    verdicts = {each["name"]: (each["verdict"], each["text"]) for each in report["probes"]}
    assert verdicts == {
        names[0]: ("crashed", f"{ABORTED}: MPSGraph.mm: failed assertion 'a shape'"),
        names[1]: ("timed out", "no answer within 3 s"),
        names[2]: ("unavailable", "there is no MPSGraphGRUDescriptor"),
        "RNN: zState": ("agrees", ""),
    }
    by_cell = {(each["cell"], each["verdict"]) for each in report["cases"]}
    assert by_cell == {
        ("single_gate_rnn", "agrees"),
        ("lstm", "agrees"),
        ("gru", "unavailable"),
    }
    text = page.read_text()
    assert "| LSTM: R of a wrong shape | crashed | raises an exception | " in text
    assert "timed out: 1" in text and "crashed: 1" in text


def test_a_framework_with_another_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    variation, expected = VARIATIONS["the other flipZ"]

    class InThisProcess:
        def __init__(self, *_: Any) -> None:
            self.facts = {"modules": "stand_in"}
            self.run = Framework([module(variation)]).run

        def __enter__(self) -> InThisProcess:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    few(monkeypatch, [*expected, "GRU: gate order"], 1)
    monkeypatch.setattr(check_mpsgraph, "Children", InThisProcess)
    data, page = tmp_path / "report.json", tmp_path / "report.md"
    files = ["--json", str(data), "--markdown", str(page)]
    assert cli.main(["check", "--mpsgraph", "--seed", "1", *files]) == 1
    probes = json.loads(data.read_text())["probes"]
    found = {each["name"]: each["reading"] for each in probes if each["verdict"] == "differs"}
    assert found == expected
    printed = capsys.readouterr().out
    for name, label in expected.items():
        for text in (printed, page.read_text().replace("\\", "")):
            line = next(line for line in text.splitlines() if name in line)
            cells = [cell.strip() for cell in re.split(r"[|│]", line)[1:-1]]
            assert cells == [name, "differs", BY_NAME[name].ours, label]
    assert re.search(r"GRU +│ float32 +│ forward +│ 0 of 1 ", printed)


@pytest.mark.parametrize(
    "words",
    [[], ["--module", "no.such"], ["--module", "no.such", "--module", "zstate.pyobjc"]],
)
def test_without_pyobjc(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not words and Path("/System/Library/Frameworks/Metal.framework").exists():
        pytest.skip("a Mac")
    data, page = tmp_path / "report.json", tmp_path / "report.md"
    files = ["--json", str(data), "--markdown", str(page)]
    assert cli.main(["check", "--mpsgraph", *words, *files]) == 2
    caught = capsys.readouterr()
    assert caught.out == "" and not list(tmp_path.iterdir())
    hint = "on a Mac: pip install pyobjc-framework-MetalPerformanceShadersGraph"
    assert (hint in caught.err) == (not words)
    assert "No module named" in caught.err and caught.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--json", "x.json"], "[check] --json needs --mpsgraph"),
        (["--timeout", "3"], "[check] --timeout needs --mpsgraph"),
        (["--module", "x"], "[check] --module needs --mpsgraph"),
        (["--mpsgraph", "--backend", "reference"], "cannot be combined with --backend reference"),
        (["--mpsgraph", "--through", "jax"], "cannot be combined with --through jax"),
        (["--mpsgraph", "--json", "no/such/x"], "[check] --json: expected a file in a folder"),
    ],
)
def test_usage(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", *words]) == 2
    assert expected in capsys.readouterr().err


def test_a_child_that_cannot_start_again() -> None:
    with Children(["tests.mpsgraph.misbehaving"], 60) as children:
        children._modules = ("no.such",)
        assert children.run(draw(BY_NAME["LSTM: R of a wrong shape"], 1)).status == "crashed"
        outcome = children.run(draw(BY_NAME["RNN: zState"], 1))
        assert outcome.status == "crashed" and outcome.text.startswith("no new child")
    with (
        pytest.raises(BackendError, match="no.such: ModuleNotFoundError"),
        Children(["no.such"], 9),
    ):
        pass


def results(variation: Variation, title: str, cell: str) -> dict[str, Any]:
    case = next(case for case in mpsgraph_cases()[cell] if case.title == title)
    found = run_case(case, Framework([module(variation)]), "float32", 3)
    return {each.part: each for each in found}


def test_cases_against_an_independent_loop() -> None:
    """Two computations of all cases that share nothing: zstate's oracle and the tests' own."""
    for cases in mpsgraph_cases().values():
        for case in cases[:-5]:  # kinks in the rest: float32 may take their other side
            for each in run_case(case, Framework([module()]), "float32", 3):
                assert each.verdict == "agrees" and each.error < 1e-5, each


def test_cases_that_differ() -> None:
    found = results(VARIATIONS["the other flipZ"][0], "defaults", "gru")
    assert {each.verdict for each in found.values()} == {"differs"}
    assert found["forward"].error > 1e-2 and found["gradients"].error > 1e-2
    found = results(VARIATIONS["stateGradient first"][0], "defaults", "gru")
    assert [each.verdict for each in found.values()] == ["agrees", "agrees", "differs"]
    found = results(VARIATIONS["zState in another order"][0], "defaults", "lstm")
    assert [each.verdict for each in found.values()] == ["agrees", "differs", "agrees"]
    found = results(VARIATIONS["a gradient for nil"][0], "no initial state", "lstm")
    assert [each.verdict for each in found.values()] == ["agrees", "agrees", "differs"]
    assert "results of shapes" in found["gradients"].text


def test_a_gradient_operation_that_crashes_leaves_the_forward_result() -> None:
    def no_gradients(cell: str, options: Any, incoming: Any) -> Any:
        raise RuntimeError("not today")

    found = results(Variation(incoming=no_gradients), "all inputs", "lstm")
    assert found["forward"].verdict == "agrees"
    assert (found["gradients"].verdict, found["gradients"].text) == (
        "refused",
        "RuntimeError: not today",
    )


def test_inputs_that_a_framework_does_not_take_are_left_out_of_the_cases() -> None:
    probe = BY_NAME["LSTM: cellGradient of shape [N,H]"]
    assert left_out([Finding(probe, "agrees", probe.ours)]) == frozenset()
    assert left_out([Finding(probe, "crashed")]) == {"cell_gradient"}
    seen: list[Call] = []

    class Spy(Framework):
        def run(self, call: Call) -> Any:
            seen.append(call)
            return super().run(call)

    case = mpsgraph_cases()["lstm"][0]
    every = list(run_case(case, Spy([pyobjc]), "float32", 1, {"cell_gradient"}))
    assert {each.verdict for each in every} == {"agrees"}
    assert list(seen[0].incoming) == ["source_gradient", "state_gradient"]


def report_of(*findings: Finding) -> Report:
    return Report({"modules": "x"}, 1, list(findings), [])


def test_exit_status() -> None:
    probe = BY_NAME["LSTM: peephole"]
    good, none = Finding(probe, "agrees", probe.ours), Finding(probe, "unavailable")
    assert report_of(good).status == report_of(good, none).status == 0
    assert report_of(none).status == 1  # nothing was seen to agree
    for verdict in ("differs", "refused", "crashed", "timed out"):
        assert report_of(good, Finding(probe, verdict)).status == 1


def test_inputs_that_were_left_out_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    report = replace(report_of(), without=frozenset({"state_gradient"}))
    print_report(report, Console())
    expected = "Without state_gradient: see the probes of its shape [N,H]."
    assert expected in capsys.readouterr().out
    assert expected in as_markdown(report)
    assert as_json(report)["without"] == ["state_gradient"]


def test_markdown_keeps_to_its_cells() -> None:
    probe = BY_NAME["LSTM: peephole"]
    text = "a | b\n*c* [d](e) `f`"
    page = as_markdown(report_of(Finding(probe, "refused", None, text)))
    line = next(line for line in page.splitlines() if line.startswith("| LSTM: peephole"))
    assert line.endswith(r"| a \| b \*c\* \[d](e) \`f\` |")
    assert len(re.findall(r"(?<!\\)\|", line)) == 5


def test_only_apples_modules_count_as_apples() -> None:
    names = "MetalPerformanceShadersGraph, MetalPerformanceShaders, Metal, Foundation"
    assert as_json(Report({"modules": names}, 1, [], []))["note"] == ""
    assert "not Apple's" in as_json(report_of())["note"]


def test_the_page_of_the_documentation_has_every_decision() -> None:
    page = (ROOT / "docs" / "check-mpsgraph.md").read_text(encoding="utf-8")
    assert decisions_table(PROBES) in page
    assert page.count("open: no report yet") >= len({probe.decision for probe in PROBES})


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("timeout", [60, 10**22])  # a timer takes less than 10**10 seconds
def test_arrays_come_back_as_they_are(timeout: int) -> None:
    """Types and shapes survive the way to the child and back."""
    x = np.arange(8, dtype=np.float16).reshape(1, 2, 4)
    call = Call("lstm", {}, {"source": x, "recurrent_weight": np.ones((4, 1), np.float16)})
    with Children(["zstate.pyobjc"], timeout) as children:
        (h,) = children.run(call).forward
    assert h.dtype == np.float16 and h.shape == (1, 2, 1)
