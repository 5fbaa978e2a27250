"""The table and the picture that docs/performance.md leads with, from the stored results.

python benchmarks/summary.py docs/images/speed.png
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import geometric_mean

import matplotlib.pyplot as plt

RESULTS = Path(__file__).parent / "results"
BEST = "fastest of PyTorch, ONNX Runtime, JAX"
GRAPH = "torch.nn as a CUDA graph"
# Engine, stored results, type, name of the peer; zstate's contender and the peers' contenders.
LINES = [
    ("CPU", "cpu", "float32", BEST, "zstate", ("torch", "onnxruntime", "jax")),
    ("CPU, `zstate.torch`", "cpu_torch", "float32", "torch.nn", "zstate", ("torch",)),
    ("H200", "h200", "bfloat16", GRAPH, "zstate graph", ("torch graph",)),
    ("H200", "h200", "float32 (TF32)", GRAPH, "zstate graph", ("torch graph",)),
    ("H200", "h200", "float16", GRAPH, "zstate graph", ("torch graph",)),
    ("H200, `zstate.torch`", "h200_torch", "bfloat16", GRAPH, "zstate graph", ("torch graph",)),
]
COLOURS = {"inference": "#4c78a8", "training": "#f58518"}


def ratios(file: str, dtype: str, mode: str, ours: str, peers: tuple[str, ...]) -> list[float]:
    """How many times as fast as the fastest of `peers`, one number per row of the benchmark."""
    rows = json.loads((RESULTS / f"{file}.json").read_text())["rows"]
    return [
        min(row["ms"][peer] for peer in peers if peer in row["ms"]) / row["ms"][ours]
        for row in rows
        if row["type"] == dtype.split()[0] and row["mode"] == mode
    ]


def main() -> None:
    figure, axes = plt.subplots(figsize=(9, 4.2))
    print("| engine | type | against | inference | lowest row | training | lowest row |")
    print("|---|---|---|---|---|---|---|")
    for k, (engine, file, dtype, peer, ours, peers) in enumerate(LINES):
        cells = [engine, dtype, peer]
        for (mode, colour), offset in zip(COLOURS.items(), (-0.17, 0.17), strict=True):
            found = ratios(file, dtype, mode, ours, peers)
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
    figure.savefig(sys.argv[1], dpi=120)


if __name__ == "__main__":
    main()
