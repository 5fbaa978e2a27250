"""What a check of a framework found, as JSON, as a Markdown page and as tables for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..errors import visible
from .calling import APPLE
from .checking import BOUNDS, CaseResult
from .probes import BOUND, SHORT, Finding, Probe

if TYPE_CHECKING:
    from rich.console import Console

_GOOD = ("agrees", "unavailable")  # what a framework does not have cannot differ
_NOT_APPLE = "These modules are not Apple's: nothing here was run on MPSGraph itself."


@dataclass(frozen=True)
class Report:
    """All findings, with what they were found on."""

    facts: dict[str, str]
    seed: int
    findings: list[Finding]
    cases: list[CaseResult]
    without: frozenset[str] = frozenset()  # inputs that no case has, after what probes found

    @property
    def verdicts(self) -> Counter[str]:
        found = [each.verdict for each in self.findings]
        return Counter(found + [each.verdict for each in self.cases])

    @property
    def status(self) -> int:
        """The exit status: 0 if something agrees and nothing differs."""
        bad = [verdict for verdict in self.verdicts if verdict not in _GOOD]
        return 0 if self.verdicts["agrees"] and not bad else 1

    @property
    def summary(self) -> str:
        return ", ".join(f"{verdict}: {count}" for verdict, count in self.verdicts.most_common())

    @property
    def note(self) -> str:
        """A warning where the modules are not PyObjC's."""
        return "" if self.facts["modules"] == ", ".join(APPLE) else _NOT_APPLE

    @property
    def cases_note(self) -> str:
        names = ", ".join(sorted(self.without))
        return f"Without {names}: see the probes of its shape [N,H]." if names else ""

    @property
    def all_facts(self) -> dict[str, str]:
        return {"zstate": __version__, **self.facts, "seed": f"--seed {self.seed}"}


def as_json(report: Report) -> dict[str, Any]:
    """Everything, for a machine."""
    return {
        "zstate": __version__,
        "seed": report.seed,
        "facts": report.facts,
        "note": report.note,
        "bounds": {**BOUNDS, "probes": BOUND},
        "without": sorted(report.without),
        "summary": dict(report.verdicts),
        "probes": [
            {
                "name": each.probe.name,
                "question": each.probe.question,
                "zstate": each.probe.ours,
                "alternatives": list(each.probe.readings)[1:],
                "verdict": each.verdict,
                "reading": each.reading,
                "error": each.error,
                "text": each.text,
            }
            for each in report.findings
        ],
        "cases": [asdict(each) for each in report.cases],
    }


def _found(finding: Finding) -> str:
    """What a framework does, in a few words."""
    return ": ".join(part for part in (finding.reading, finding.text) if part)


def _case_rows(cases: Iterable[CaseResult]) -> Iterator[tuple[str, ...]]:
    """Cell, type, part, how many cases agree, worst error, bound, and those that do not agree."""
    groups: dict[tuple[str, str, str], list[CaseResult]] = {}
    for each in cases:
        groups.setdefault((each.cell, each.dtype, each.part), []).append(each)
    for (cell, dtype, part), group in groups.items():
        good = [each for each in group if each.verdict == "agrees"]
        error = max((each.error for each in group if each.error is not None), default=None)
        others = "; ".join(
            f"{each.title}: {each.verdict}" for each in group if each.verdict != "agrees"
        )
        numbers = ("" if error is None else f"{error:.1e}", f"{BOUNDS[dtype]:.0e}")
        yield (SHORT[cell], dtype, part, f"{len(good)} of {len(group)}", *numbers, others)


_CASES = "The cases of `zstate check`, against the oracle in float64."
_CASE_COLUMNS = ("cell", "type", "part", "agree", "worst error", "bound", "other cases")
_PROBE_COLUMNS = ("probe", "verdict", "zstate", "found")


def as_markdown(report: Report) -> str:
    """A page to attach to an issue."""
    rows = [
        (each.probe.name, each.verdict, each.probe.ours, _found(each)) for each in report.findings
    ]
    texts = [
        (f"{SHORT[each.cell]}, {each.dtype}, {each.title}, {each.part}", each.verdict, each.text)
        for each in report.cases
        if each.text
    ]
    parts = [
        "# zstate check --mpsgraph",
        report.note,
        _table(("", ""), report.all_facts.items()),
        report.summary,
        "## Decisions",
        "One probe per decision that Apple's pages leave open or state in two ways. "
        f"A reading agrees if its relative error is at most {BOUND:.0e}.",
        _table(_PROBE_COLUMNS, rows),
        "## Cases",
        " ".join(filter(None, [_CASES, report.cases_note])),
        _table(_CASE_COLUMNS, _case_rows(report.cases)),
    ]
    if texts:
        parts += ["## What other cases said", _table(("case", "verdict", "text"), texts)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(_cell(text) for text in line)} |" for line in lines)


def _cell(text: str) -> str:
    """Text that keeps to its cell and its characters: results have brackets, stars and bars."""
    for mark in "\\|*_[<`&~$":
        text = text.replace(mark, f"\\{mark}")
    return visible(" ".join(text.split()))


def decisions_table(probes: Iterable[Probe]) -> str:
    """The decisions for the documentation, cells with the same readings in one row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for probe in probes:
        key = (probe.decision, probe.question, probe.ours, probe.others)
        rows.setdefault(key, []).append(SHORT[probe.cell])
    return _table(
        ("decision", "cells", "question", "zstate's reading", "alternatives", "MPSGraph on a Mac"),
        (
            (decision, ", ".join(cells), question, ours, others, "open: no report yet")
            for (decision, question, ours, others), cells in rows.items()
        ),
    )


def print_report(report: Report, console: Console) -> None:
    """The tables, for a terminal."""
    from rich.markup import escape
    from rich.table import Table

    for name, value in report.all_facts.items():
        console.print(f"{name}: {escape(value)}", highlight=False)
    if report.note:
        console.print(report.note)
    cases, probes = Table(title="cases"), Table(title="decisions")
    for table, columns in ((probes, _PROBE_COLUMNS), (cases, _CASE_COLUMNS)):
        for column in columns:
            table.add_column(column, overflow="fold")
    for each in report.findings:
        row = (each.probe.name, each.verdict, each.probe.ours)
        # A reading that agrees need not be read twice.
        found = each.text if each.reading == each.probe.ours else _found(each)
        probes.add_row(*(escape(text) for text in (*row, found)), style=_style(each.verdict))
    for line in _case_rows(report.cases):
        cases.add_row(*(escape(text) for text in line), style=_style(line[-1] and "differs"))
    console.print(probes, cases, sep="\n")
    if report.without:
        console.print(report.cases_note, markup=False)
    console.print(report.summary, highlight=False)


def _style(verdict: str) -> str | None:
    return None if verdict in ("", *_GOOD) else "bold red"
