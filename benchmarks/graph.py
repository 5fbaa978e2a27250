"""What the graph itself costs: building and differentiating 5,000 nodes, and each node at run time.

python benchmarks/graph.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

import zstate as zs


def best(job: Callable[[], object], tries: int = 5) -> float:
    times = []
    for _ in range(tries):
        began = time.perf_counter()
        job()
        times.append(time.perf_counter() - began)
    return min(times)


def chain(nodes: int) -> tuple[zs.Graph, zs.Tensor, zs.Tensor]:
    g = zs.Graph()
    x = g.placeholder(shape=(4,), dtype="float64")
    y = x
    while len(g.nodes) < nodes:
        y = g.tanh(y * x)
    return g, x, y


def main() -> None:
    nodes = 5000
    print(f"build {nodes} nodes          {best(lambda: chain(nodes)):.3f} s (limit 0.5)")
    g, x, y = chain(nodes)
    seconds = best(lambda: g.gradients(of=y, with_respect_to=[x]))
    print(f"differentiate them        {seconds:.3f} s (limit 1)")
    g, x, y = chain(nodes)
    array = np.full(4, 0.5)
    program = g.compile({x: ((4,), "float64")}, [y])

    def bare() -> None:
        value = array
        for _ in range(nodes // 2):
            value = np.tanh(np.multiply(value, array))

    cost = (best(lambda: program.run([array])) - best(bare)) / nodes
    print(f"run, beside the functions {cost * 1e6:.2f} µs a node (limit 5)")


main()
