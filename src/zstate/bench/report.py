"""How results are shown: tables in the terminal, JSON, and a bar chart."""

from __future__ import annotations

import json
import math
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .rows import Row
from .timing import Timing

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


OWN_FLOAT = "float32"


@dataclass
class Measured:
    """One row in one mode: the timing and the error of every contender that took part.

    Contenders are named "torch" or "zstate", or "torch graph" for the replay of a CUDA graph.
    "float32" is zstate's own layer beside one with smaller weights, and no peer.
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

    def rate(self, name: str) -> float:
        return self.row.flops(self.training) / self.timings[name].seconds


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def _time(timing: Timing | None, spread: bool) -> str:
    if timing is None:
        return ""
    ms = timing.seconds * 1e3
    return f"{ms:{'.3g' if ms < 1000 else ',.0f'}}" + (f" ±{timing.spread:.0%}" if spread else "")


def table(
    measured: list[Measured], names: list[str], training: bool, sgemm: float, width: int
) -> Table:
    """One mode: the ratio to the best peer, times in ms, the rate and its share of sgemm.

    What does not fit into ``width`` is left out, column by column; the ratio never is.
    """
    from rich import box
    from rich.table import Table

    shown = [each for each in measured if each.training == training]
    names = [name for name in names if any(name in each.timings for each in shown)]
    forms = [(names, True, True), (names, False, True), (names, False, False)]
    forms += [(names[:count], False, False) for count in range(len(names) - 1, -1, -1)]
    columns = _columns(shown, *forms[0], sgemm)
    for form in forms:
        columns = _columns(shown, *form, sgemm)
        if sum(max(map(len, column)) + 3 for column in columns) <= width:
            break
    mode = "training (forward + all gradients)" if training else "inference"
    spread = " ± spread" if any("±" in text for column in columns for text in column) else ""
    found = Table(title=f"{mode}: ms, best median{spread}", title_justify="left", box=box.SIMPLE)
    found.padding, found.pad_edge = (0, 1), False
    for k, (header, *_) in enumerate(columns):
        found.add_column(header, justify="right" if k else "left", no_wrap=True)
    for cells in zip(*(column[1:] for column in columns), strict=True):
        found.add_row(*cells)
    return found


def _columns(
    measured: list[Measured], names: list[str], spread: bool, rates: bool, sgemm: float
) -> list[list[str]]:
    """The columns of a table, each with its header first, the most important ones first."""
    columns = [
        ["T×N×H, I = H", *(each.row.title for each in measured)],
        ["× best peer", *("" if (r := each.ratio) is None else f"{r:.2f}" for each in measured)],
    ]
    for name in names:
        columns.append([name, *(_time(each.timings.get(name), spread) for each in measured)])
    if rates:
        found = [each.rate("zstate") if "zstate" in each.timings else None for each in measured]
        columns += [
            ["GFLOP/s", *("" if rate is None else f"{rate / 1e9:.0f}" for rate in found)],
            ["of sgemm", *("" if rate is None else f"{rate / sgemm:.0%}" for rate in found)],
        ]
    return columns


def line(each: Measured) -> str:
    """One row in one mode: microseconds per step."""
    mode = "training " if each.training else "inference"
    if not each.timings:
        return f"{each.type} {mode} {each.row.title}: wrong, not timed; errors {each.errors}"
    times = [f"{n} {t.seconds / each.row.T * 1e6:.2f}" for n, t in each.timings.items()]
    ratio = "" if each.ratio is None else f"; {each.ratio:.2f} times the best peer"
    return f"{each.type} {mode} {each.row.title}: {', '.join(times)}{ratio}"


def summary(console: Console, measured: list[Measured]) -> None:
    """The geometric means, and the row that does worst, by float type and mode."""
    kinds = dict.fromkeys((each.type, each.training) for each in measured)
    for kind, training in sorted(kinds, key=lambda key: key[1]):
        ratios = {
            each.row.title: each.ratio
            for each in measured
            if (each.type, each.training) == (kind, training) and each.ratio is not None
        }
        if not ratios:
            continue
        mean, worst = geometric_mean(list(ratios.values())), min(ratios, key=lambda r: ratios[r])
        mode = "training" if training else "inference"
        console.print(
            f"{kind} {mode}: {mean:.2f} times the best peer "
            f"(geometric mean of {_rows(len(ratios))}); lowest {ratios[worst]:.2f} ({worst})",
            soft_wrap=True,
        )


def peers(console: Console, measured: list[Measured]) -> None:
    """The geometric mean against each peer, by float type and mode."""
    for kind, training in dict.fromkeys((each.type, each.training) for each in measured):
        own = [each for each in measured if (each.type, each.training) == (kind, training)]
        names = dict.fromkeys(name for each in own for name in each.timings if name != "zstate")
        found = []
        for name in names:
            both = [t for t in (each.timings for each in own) if {name, "zstate"} <= t.keys()]
            mean = geometric_mean([t[name].seconds / t["zstate"].seconds for t in both])
            found.append(f"{name} {mean:.2f} ({_rows(len(both))})")
        mode = "training" if training else "inference"
        console.print(f"{kind} {mode}, times each peer: {', '.join(found)}", soft_wrap=True)


def _rows(number: int) -> str:
    return "1 row" if number == 1 else f"{number} rows"


def cpu_machine(sgemm: float | None, threads: int) -> dict[str, Any]:
    """What the CPU's rows were measured on; ``sgemm`` in flop/s, where it was."""
    rate = {} if sgemm is None else {"sgemm_gflops": sgemm / 1e9}
    return {"processor": _processor(), "threads": threads, **rate}


def as_json(measured: list[Measured], machine: dict[str, Any], **further: Any) -> dict[str, Any]:
    """Everything that was measured, with what it was measured on."""
    system = {"system": platform.platform(), "python": platform.python_version()}
    return {
        "machine": {**system, **machine},
        "rows": [
            {
                **asdict(each.row),
                "mode": "training" if each.training else "inference",
                "type": each.type,
                "ms": {name: t.seconds * 1e3 for name, t in each.timings.items()},
                "spread": {name: t.spread for name, t in each.timings.items()},
                "error": each.errors,
                "best_peer": each.best_peer,
                "ratio": each.ratio,
            }
            for each in measured
        ],
        **further,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), "")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """One line per row, so that a row that changes is one changed line."""
    parts = []
    for name, value in content.items():
        text = json.dumps(value)
        if isinstance(value, list):
            text = "[\n  {}\n ]".format(",\n  ".join(map(json.dumps, value)))
        parts.append(f" {json.dumps(name)}: {text}")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def write_chart(path: Path, content: dict[str, Any]) -> None:
    """A bar per row and mode: how many times faster than the best peer, on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [row for row in content["rows"] if row["ratio"] is not None]
    kinds = list(dict.fromkeys(row["type"] for row in rows))
    labels = list(dict.fromkeys(_label(row) for row in rows))
    figure, panels = plt.subplots(
        1,
        len(kinds),
        squeeze=False,
        sharey=True,
        figsize=(3 + 6 * len(kinds), 0.34 * len(labels) + 1.6),
    )
    for axes, kind in zip(panels[0], kinds, strict=True):
        _draw(axes, labels, [row for row in rows if row["type"] == kind])
        axes.set_title(", ".join([*_title(content["machine"]), kind]), fontsize=9)
    panels[0][0].set_ylim(len(labels) - 0.4, -0.6)  # the first row on top, and no empty bands
    peers = dict.fromkeys(row["best_peer"].split()[0] for row in rows)
    figure.supxlabel(f"speed relative to the fastest peer ({', '.join(peers)})", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=130 if len(kinds) == 1 else 90)
    plt.close(figure)


def _title(machine: dict[str, Any]) -> list[str]:
    threads = [f"{machine['threads']} threads"] if "threads" in machine else []
    return [machine["processor"], *threads]


def _draw(axes: Any, labels: list[str], rows: list[dict[str, Any]]) -> None:
    """The bars of one float type."""
    for mode, offset, colour in (("inference", -0.2, "#4c78a8"), ("training", 0.2, "#f58518")):
        found = {_label(row): row["ratio"] for row in rows if row["mode"] == mode}
        at = [labels.index(label) + offset for label in found]
        bars = axes.barh(
            at, [v - 1 for v in found.values()], 0.38, left=1, color=colour, label=mode
        )
        axes.bar_label(bars, [f" {value:.2f} " for value in found.values()], fontsize=7)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    ticks = [0.5, 1, 2, 5, 10, 20]
    axes.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(left=0.4)
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.legend(loc="best")


def _label(row: dict[str, Any]) -> str:
    both = " both ways" if row["bidirectional"] else ""
    return f"{row['cell']} {row['T']}×{row['N']}×{row['H']}{both}"
