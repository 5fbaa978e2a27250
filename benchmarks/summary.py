"""The table and the pictures of docs/performance.md, from the stored results.

python benchmarks/summary.py docs/images
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import matplotlib.pyplot as plt

from zstate.bench.report import write_chart
from zstate.bench.rows import Row, is_compute_bound, is_tiny

RESULTS = Path(__file__).parent / "results"
BEST = "fastest of PyTorch, ONNX Runtime, JAX"
GRAPH = "torch.nn as a CUDA graph"
GPU = ("bfloat16", "float32 (TF32)", "float16")


def row_of(stored: dict[str, Any]) -> Row:
    return Row(**{each.name: stored[each.name] for each in fields(Row) if each.name in stored})


def is_any(row: Row) -> bool:
    return True


def is_usual(row: Row) -> bool:
    return row.group == "GPU"


# Engine, stored results, type, name of the peer; zstate's contender, the peers' contenders; rows.
GRAPHED = (GRAPH, "zstate graph", ("torch graph",))
PEERS = ("torch", "onnxruntime", "jax")
LINES = [
    ("CPU", "cpu", "float32", BEST, "zstate", PEERS, is_any),
    ("CPU, `zstate.torch`", "cpu_torch", "float32", "torch.nn", "zstate", ("torch",), is_any),
    *(("H200", "h200", kind, *GRAPHED, is_usual) for kind in GPU),
    *(("H200, compute-bound", "h200", kind, *GRAPHED, is_compute_bound) for kind in GPU),
    *(("H200, tiny", "h200", kind, *GRAPHED, is_tiny) for kind in GPU),
    ("H200, `zstate.torch`", "h200_torch", "bfloat16", *GRAPHED, is_any),
]
COLOURS = {"inference": "#4c78a8", "training": "#f58518"}


def ratios(
    file: str,
    dtype: str,
    mode: str,
    ours: str,
    peers: tuple[str, ...],
    wanted: Callable[[Row], bool],
) -> list[float]:
    """How many times as fast as the fastest of `peers`, one number per row that was timed."""
    rows = json.loads((RESULTS / f"{file}.json").read_text())["rows"]
    return [
        min(row["ms"][peer] for peer in peers if peer in row["ms"]) / row["ms"][ours]
        for row in rows
        if row["type"] == dtype.split()[0]
        and row["mode"] == mode
        and ours in row["ms"]
        and wanted(row_of(row))
    ]


def main() -> None:
    figure, axes = plt.subplots(figsize=(9, 0.7 * len(LINES)))
    print("| engine | type | against | inference | lowest row | training | lowest row |")
    print("|---|---|---|---|---|---|---|")
    for k, (engine, file, dtype, peer, ours, peers, wanted) in enumerate(LINES):
        cells = [engine, dtype, peer]
        for (mode, colour), offset in zip(COLOURS.items(), (-0.17, 0.17), strict=True):
            found = ratios(file, dtype, mode, ours, peers, wanted)
            mean = geometric_mean(found)
            cells += [f"{mean:.2f}", f"{min(found):.2f}"]
            axes.plot(found, [k + offset] * len(found), "o", color=colour, alpha=0.35, ms=4)
            axes.plot(
                mean, k + offset, "|", color=colour, ms=13, mew=3, label=mode if k == 0 else None
            )
            axes.annotate(
                f"{mean:.2f}",
                (mean, k + offset),
                (0, 8 if offset < 0 else -15),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
        print(f"| {' | '.join(cells)} |")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    ticks = [0.5, 1, 2, 5, 10, 20]
    axes.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
    axes.minorticks_off()
    labels = [f"{engine.replace('`', '')}\n{dtype}" for engine, _, dtype, *_ in LINES]
    axes.set_yticks(range(len(LINES)), labels, fontsize=8)
    axes.set_ylim(len(LINES) - 0.35, -0.6)
    axes.set_xlabel("times as fast as the peer; dots: sizes, bars: geometric means", fontsize=9)
    axes.legend(loc="lower right")
    figure.tight_layout()
    folder = Path(sys.argv[1])
    figure.savefig(folder / "speed.png", dpi=120)
    content = json.loads((RESULTS / "h200.json").read_text())
    for name, wanted in (("h200", is_usual), ("h200_compute_bound", is_compute_bound)):
        rows = [row for row in content["rows"] if wanted(row_of(row))]
        write_chart(folder / f"{name}.png", content | {"rows": rows})


if __name__ == "__main__":
    main()
