"""How results are shown: a table per type and mode, the geometric means, and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .contenders import OWN_FLOAT
from .rows import Row
from .timing import Timing

if TYPE_CHECKING:
    from rich.console import Console, Group


@dataclass
class Measured:
    """One row in one mode: the timing and the error of every contender that took part.

    Contenders are named "torch" or "zstate", or "torch graph" for the replay of a CUDA graph.
    """

    row: Row
    training: bool
    timings: dict[str, Timing] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    type: str = "float32"

    def _best(self, ours: bool) -> str | None:
        found = {
            name: timing.seconds
            for name, timing in self.timings.items()
            if name.startswith("zstate") == ours and name != OWN_FLOAT
        }
        return min(found, key=lambda name: found[name]) if found else None

    @property
    def best_peer(self) -> str | None:
        return self._best(False)

    @property
    def ratio(self) -> float | None:
        """How many times faster than the best peer; None without peers or without zstate."""
        peer, ours = self.best_peer, self._best(True)
        if peer is None or ours is None:
            return None
        return self.timings[peer].seconds / self.timings[ours].seconds

    @property
    def mode(self) -> str:
        return "training" if self.training else "inference"


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def kinds(measured: list[Measured]) -> Iterator[tuple[str, list[Measured]]]:
    """The rows of each mode and type, with its name."""
    found = dict.fromkeys((m.training, m.type) for m in measured)
    for training, kind in sorted(found, key=lambda key: key[0]):
        shown = [m for m in measured if (m.training, m.type) == (training, kind)]
        yield f"{kind} {shown[0].mode}", shown


def table(name: str, measured: list[Measured], width: int, streams: bool = False) -> Group:
    """Rows of one type and mode: the ratio to the best peer, times in ms, and the rate.

    What does not fit into ``width`` is left out, column by column; the ratio never is. Streams
    have microseconds per step instead.
    """
    from rich import box
    from rich.console import Group
    from rich.table import Table

    names = list(dict.fromkeys(name for each in measured for name in each.timings))
    forms = [(names, True, True), (names, False, True), (names, False, False)]
    forms += [(names[:count], False, False) for count in range(len(names) - 1, -1, -1)]
    for form in forms:
        columns = _columns(measured, *form, streams)
        if sum(max(map(len, column)) + 3 for column in columns) <= width:
            break
    further = ", median / 99th percentile" if streams else ", best median"
    further += " ± spread" if any("±" in text for column in columns for text in column) else ""
    title = f"{name}: {'µs per step' if streams else 'ms'}{further}"
    found = Table(box=box.SIMPLE)
    found.padding, found.pad_edge = (0, 1), False
    for k, (header, *_) in enumerate(columns):
        found.add_column(header, justify="right" if k else "left", no_wrap=True)
    for cells in zip(*(column[1:] for column in columns), strict=True):
        found.add_row(*cells)
    return Group(title, found)  # a title of the table would wrap at its width


def _columns(
    measured: list[Measured], names: list[str], spread: bool, rates: bool, streams: bool
) -> list[list[str]]:
    """The columns of a table, each with its header first, the most important ones first."""
    columns = [
        ["T×N×H, I = H", *(each.row.title for each in measured)],
        ["× best peer", *("" if (r := each.ratio) is None else f"{r:.2f}" for each in measured)],
    ]
    for name in names:
        columns.append([name, *(_time(each, name, spread, streams) for each in measured)])
    if rates and not streams:
        columns.append(["GFLOP/s", *map(_rate, measured)])
    return columns


def _time(each: Measured, name: str, spread: bool, streams: bool) -> str:
    timing = each.timings.get(name)
    if timing is None:
        return ""
    if streams:
        us = 1e6 / each.row.T
        return f"{timing.seconds * us:.3g} / {timing.high * us:.3g}"
    ms = timing.seconds * 1e3
    return f"{ms:{'.3g' if ms < 1000 else ',.0f'}}" + (f" ±{timing.spread:.0%}" if spread else "")


def _rate(each: Measured) -> str:
    timing = each.timings.get("zstate")
    return "" if timing is None else f"{each.row.flops(each.training) / timing.seconds / 1e9:.0f}"


def summary(console: Console, measured: list[Measured]) -> None:
    """The geometric means, and the row that does worst, by type and mode."""
    for name, shown in kinds(measured):
        ratios = {each.row.title: r for each in shown if (r := each.ratio) is not None}
        if not ratios:
            continue
        mean, worst = geometric_mean(list(ratios.values())), min(ratios, key=lambda r: ratios[r])
        count = "1 row" if len(ratios) == 1 else f"{len(ratios)} rows"
        console.print(
            f"{name}: {mean:.2f} times the best peer "
            f"(geometric mean of {count}); lowest {ratios[worst]:.2f} ({worst})",
            soft_wrap=True,
        )


def as_rows(measured: list[Measured]) -> list[dict[str, Any]]:
    """Everything that was measured; times in milliseconds."""
    return [
        {
            **asdict(each.row),
            "mode": each.mode,
            "type": each.type,
            "ms": {name: t.seconds * 1e3 for name, t in each.timings.items()},
            "spread": {name: t.spread for name, t in each.timings.items()},
            "p99_ms": {name: t.high * 1e3 for name, t in each.timings.items()},
            "error": each.errors,
            "best_peer": each.best_peer,
            "ratio": each.ratio,
        }
        for each in measured
    ]


def write_json(path: Path, content: dict[str, Any]) -> None:
    """One line per row, so that a row that changes is one changed line."""
    parts = []
    for name, value in content.items():
        text = json.dumps(value)
        if isinstance(value, list):
            text = "[\n  {}\n ]".format(",\n  ".join(map(json.dumps, value)))
        parts.append(f" {json.dumps(name)}: {text}")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
