"""docs/convert.md shows the table of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

import zstate.convert as zc
from zstate.convert.options import known_facts
from zstate.convert.table import CELLS, GRU, LSTM, RNN

_PAGE = (Path(__file__).parents[2] / "docs" / "convert.md").read_text(encoding="utf-8")
_BIASES = {
    "one": "one",
    "two": "two, added",
    "joined": "two in one array, added",
    "rows": "one; two rows with reset_after",
    "candidate": "one, and one inside the reset",
}
_FORMS = {True: "after", False: "before"}


def _cells(name: str, row: zc.Framework) -> list[str]:
    """One row of the page's table of conventions."""
    kinds: dict[str, list[str]] = {}
    for cell in CELLS:
        short = {RNN: "RNN", LSTM: "LSTM", GRU: "GRU"}[cell]
        kinds.setdefault(_BIASES[row.bias[cell]], []).append(short)
    biases = [
        text if len(kinds) == 1 else f"{', '.join(cells)}: {text}" for text, cells in kinds.items()
    ]
    kernels = "`[I+H,G·H]`, joint" if "joint" in row.names[LSTM] else "`[G·H,I]`, `[G·H,H]`"
    if row.transposed and "joint" not in row.names[LSTM]:
        kernels = "`[I,G·H]`, `[H,G·H]`"
    if len(row.names[LSTM].get("input", ())) > 1:
        kernels = "`[I,H]`, `[H,H]` for each gate"
    return [
        f'`"{name}"`',
        ", ".join(row.gates[LSTM]),
        ", ".join(row.gates[GRU]),
        kernels,
        "; ".join(biases),
        " or ".join(_FORMS[form] for form in row.reset_after),
        "1-z" if row.flip_z else "z",
    ]


def _rows(heading: str) -> dict[str, list[str]]:
    """A table of the page, by its first column."""
    section = _PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row for row in cells}


@pytest.mark.parametrize("name", list(zc.FRAMEWORKS))
def test_conventions(name: str) -> None:
    assert _rows("The table")[f'`"{name}"`'] == _cells(name, zc.FRAMEWORKS[name])


@pytest.mark.parametrize("name", list(zc.FRAMEWORKS))
def test_names(name: str) -> None:
    row = zc.FRAMEWORKS[name]
    told = _rows("Names and facts")[f'`"{name}"`']
    for cell in CELLS:
        for role, names in row.names[cell].items():
            if role != "peephole":
                assert all(f"`{each}" in told[1] for each in names), (cell, role)
    facts = {fact for cell in CELLS for fact in known_facts(row, cell)}
    assert {word.strip("`") for word in told[3].split(", ")} == facts
    reverse = f"`{row.reverse}`" if row.reverse else "not supported"
    assert told[2].endswith(reverse)


def test_there_are_no_other_rows() -> None:
    names = {f'`"{name}"`' for name in zc.FRAMEWORKS}
    assert set(_rows("The table")) == set(_rows("Names and facts")) == names
