"""The table and the pictures of docs/performance.md, from the stored results.

python benchmarks/summary.py docs/images
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean
from typing import NamedTuple

import matplotlib.pyplot as plt
from charts import row_of, write_chart
from on_gpu import is_compute_bound, is_tiny

from zstate.bench.rows import Row

RESULTS = Path(__file__).parent / "results"
BEST = "fastest of PyTorch, ONNX Runtime, JAX"
GRAPH = "torch.nn as a CUDA graph"
GPU = ("bfloat16", "float32 (TF32)", "float16")


def is_any(row: Row) -> bool:
    return True


def is_usual(row: Row) -> bool:
    return row.group == "GPU"


class Line(NamedTuple):
    """A row of the table: which stored results it compares with which peers, over which sizes."""

    engine: str
    file: str
    dtype: str
    peer: str  # its name in the table
    ours: str  # our contender
    peers: tuple[str, ...]  # the peers' contenders
    wanted: Callable[[Row], bool]


GRAPHED = (GRAPH, "zstate graph", ("torch graph",))
PEERS = ("torch", "onnxruntime", "jax")
LINES = [
    Line("CPU", "cpu", "float32", BEST, "zstate", PEERS, is_any),
    Line("CPU, `zstate.torch`", "cpu_torch", "float32", "torch.nn", "zstate", ("torch",), is_any),
    *(Line("H200", "h200", kind, *GRAPHED, is_usual) for kind in GPU),
    *(Line("H200, compute-bound", "h200", kind, *GRAPHED, is_compute_bound) for kind in GPU),
    *(Line("H200, tiny", "h200", kind, *GRAPHED, is_tiny) for kind in GPU),
    Line("H200, `zstate.torch`", "h200_torch", "bfloat16", *GRAPHED, is_any),
]
COLOURS = {"inference": "#4c78a8", "training": "#f58518"}


def ratios(line: Line, mode: str) -> list[float]:
    """How many times as fast as the fastest peer, one number per row that was timed."""
    rows = json.loads((RESULTS / f"{line.file}.json").read_text())["rows"]
    return [
        min(row["ms"][peer] for peer in line.peers if peer in row["ms"]) / row["ms"][line.ours]
        for row in rows
        if row["type"] == line.dtype.split()[0]
        and row["mode"] == mode
        and line.ours in row["ms"]
        and line.wanted(row_of(row))
    ]


def draw(lines: list[Line], path: Path) -> None:
    """A dot per size and a bar at the mean, which stands at the right, for every line."""
    figure, axes = plt.subplots(figsize=(10, 0.62 * len(lines) + 1))
    for k, line in enumerate(lines):
        for (mode, colour), offset in zip(COLOURS.items(), (-0.18, 0.18), strict=True):
            found, y = ratios(line, mode), k + offset
            mean = geometric_mean(found)
            axes.plot(found, [y] * len(found), "o", color=colour, alpha=0.35, ms=4, mew=0)
            axes.plot(mean, y, "|", color=colour, ms=13, mew=3, label=None if k else mode)
            axes.text(
                *(1.01, y, f"{mean:.2f}×"),
                transform=axes.get_yaxis_transform(),
                va="center",
                color=colour,
                fontweight="bold",
            )
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    ticks = [0.5, 1, 2, 5, 10, 20]
    axes.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
    axes.minorticks_off()
    labels = [
        f"{each.engine.replace('`', '')}, {each.dtype}\nagainst {each.peer}" for each in lines
    ]
    axes.set_yticks(range(len(lines)), labels, fontsize=9)
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.set_xlabel("speed relative to the peer named at the left; dots: sizes, bars: means")
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the pictures go")
    folder = parser.parse_args().folder
    if not folder.is_dir():
        parser.error(f"no folder {str(folder)!r}")
    print("| engine | type | inference | lowest row | training | lowest row | against |")
    print("|---|---|---|---|---|---|---|")
    for line in LINES:
        cells = [line.engine, line.dtype]
        for mode in COLOURS:
            found = ratios(line, mode)
            cells += [f"{geometric_mean(found):.2f}", f"{min(found):.2f}"]
        print(f"| {' | '.join([*cells, line.peer])} |")
    draw([line for line in LINES if line.engine in ("CPU", "H200")], folder / "speed.png")
    draw(LINES, folder / "speed_all.png")
    content = json.loads((RESULTS / "h200.json").read_text())
    for name, wanted in (("h200", is_usual), ("h200_compute_bound", is_compute_bound)):
        rows = [row for row in content["rows"] if wanted(row_of(row))]
        write_chart(folder / f"{name}.png", content | {"rows": rows})


if __name__ == "__main__":
    main()
