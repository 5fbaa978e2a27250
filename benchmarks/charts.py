"""A bar chart of stored results: how many times faster than the best peer."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from zstate.bench.rows import Row


def write_chart(path: Path, content: dict[str, Any]) -> None:
    """A bar per row and mode: how many times faster than the best peer, on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [row for row in content["rows"] if row["ratio"] is not None]
    kinds = list(dict.fromkeys(row["type"] for row in rows))
    labels = list(dict.fromkeys(row_of(row).title for row in rows))
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
        found = {row_of(row).title: row["ratio"] for row in rows if row["mode"] == mode}
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


def row_of(stored: dict[str, Any]) -> Row:
    """A row as it was measured."""
    return Row(**{each.name: stored[each.name] for each in fields(Row) if each.name in stored})
