"""Runs `zstate bench`, and measures and writes what only docs/performance.md shows.

    python benchmarks/publish.py --json benchmarks/results/cpu.json --chart docs/images/cpu.png

Takes the options of `zstate bench`, and --json, --chart and --no-growth. On the CPU it also times
NumPy's sgemm and how zstate's cost grows with T, N and H; on a GPU many more sizes, and the cost of
options, calls and scans (gpu_details.py). With --through jax, flax and cuDNN take part.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import on_gpu

from zstate.backends.native import set_num_threads
from zstate.bench import report
from zstate.bench.contenders import CONTENDERS, Call, Case, Contender, functions
from zstate.bench.report import Measured
from zstate.bench.rows import GPU_ROWS, Data, Row, make_data
from zstate.bench.timing import Protocol, measure
from zstate.cli import bench
from zstate.cli.arguments import check_ending, check_writable, keep_typed
from zstate.errors import OptionError, ZStateError, refusal

BASE = Row("LSTM", 64, 16, 128)
PICTURES = (".png", ".svg", ".pdf")
INFERENCE_ONLY = ("onnxruntime", "openvino")


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    keep_typed(parser)
    bench.add_arguments(parser)
    chart = "draw the ratios (.png, .svg or .pdf)"
    parser.add_argument("--chart", type=Path, metavar="FILE", help=chart)
    growth = "skip the cost over T, N and H (on a GPU: of options, calls, scans), as --only does"
    parser.add_argument("--no-growth", action="store_true", help=growth)
    return parser.parse_args(arguments)


def publish(options: argparse.Namespace) -> int:
    """`zstate bench`, then the files; 1 if zstate gave a wrong result."""
    add_peers()
    if options.device == "cuda":
        GPU_ROWS[:] = on_gpu.all_rows()
    cases, peers = bench.cases_of(options)
    check_files(options, cases, peers)
    found = bench.measured(options)
    print_means(found)
    alone = options.no_growth or options.only or options.weights or options.streaming
    beside = {} if alone else further(cases[0], options)
    content = {"machine": machine(cases[0], options), "rows": report.as_rows(found), **beside}
    if options.json:
        report.write_json(options.json, content)
    if options.chart and any(row["ratio"] is not None for row in content["rows"]):
        from charts import write_chart

        write_chart(options.chart, content)
    elif options.chart:
        print("--chart: nothing to draw, because no peer gave a correct result", file=sys.stderr)
    return 1 if any("zstate" not in each.timings for each in found) else 0


def add_peers() -> None:
    """Add flax's cells and cuDNN to the peers of --through jax."""

    def maker(name: str) -> Callable[[Case, Data], Call | None]:
        def make(case: Case, data: Data) -> Call | None:
            import jax_peers

            from zstate.bench import jax_layers

            return jax_layers.calls(case, data, jax_peers.LAYERS[name])

        return make

    packages = {"flax": ("jax", "flax"), "nnx": ("jax", "flax"), "cudnn": ("jax",)}
    for name, needed in packages.items():
        CONTENDERS[name] = Contender(maker(name), ("jax",), needed)


def check_files(options: argparse.Namespace, cases: list[Case], peers: list[str]) -> None:
    """Before measuring anything, reject a file that could not be written afterwards."""
    for option, path in (("--json", options.json), ("--chart", options.chart)):
        if path is not None:
            check_writable("publish", option, path)
    if options.chart is None:
        return
    check_ending("publish", "--chart", options.chart, PICTURES)
    if all(case.training for case in cases):
        peers = [name for name in peers if name not in INFERENCE_ONLY]
    if not peers:
        raise OptionError(
            refusal("publish", "--chart", "at least one peer to compare with", "none")
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise OptionError("[publish] --chart needs matplotlib: pip install matplotlib")


def print_means(found: list[Measured]) -> None:
    """The geometric mean against each peer, by type and mode."""
    for name, shown in report.kinds(found):
        peers = dict.fromkeys(n for each in shown for n in each.timings if n != "zstate")
        means = []
        for peer in peers:
            both = [t for each in shown if {peer, "zstate"} <= (t := each.timings).keys()]
            mean = report.geometric_mean([t[peer].seconds / t["zstate"].seconds for t in both])
            means.append(f"{peer} {mean:.2f} ({len(both)})")
        print(f"{name}, times each peer (rows): {', '.join(means)}")


def machine(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """What the rows were measured on."""
    system = {"system": platform.platform(), "python": platform.python_version()}
    if case.device == "cuda":
        return system | (jax_machine() if case.way == "jax" else gpu_machine())
    rate = sgemm_rate(Protocol(block_of(options), rounds=options.rounds), case.threads)
    print(f"sgemm, NumPy's 2048×2048 product on {case.threads} threads: {rate / 1e9:.0f} GFLOP/s")
    return system | {
        "processor": processor(),
        "threads": case.threads,
        "sgemm_gflops": rate / 1e9,
    }


def gpu_machine() -> dict[str, Any]:
    import gpu_details

    return gpu_details.machine()


def jax_machine() -> dict[str, Any]:
    import jax

    device = jax.devices("gpu")[0]
    return {
        "processor": device.device_kind,
        "jax": jax.__version__,
        "platform": getattr(device.client, "platform_version", "").replace("\n", ", "),
        "float32": "TF32",
    }


def block_of(options: argparse.Namespace) -> float:
    return Protocol.block if options.block is None else float(options.block)


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), "")


def sgemm_rate(protocol: Protocol, threads: int) -> float:
    """The float32 rate in flop/s of NumPy's BLAS on a large product, on so many threads.

    BLAS chooses its own number of threads, often 1 in a container or under OMP_NUM_THREADS. So the
    product is also timed in parts, one per thread, and the faster way counts.
    """
    size = 2048
    rng = np.random.default_rng(0)
    a = rng.standard_normal((size, size), np.float32)
    b = rng.standard_normal((size, size), np.float32)
    out = np.empty((size, size), np.float32)

    def product(part: int, parts: int) -> None:
        rows = slice(part * size // parts, (part + 1) * size // parts)
        np.matmul(a[rows], b, out=out[rows])

    with ThreadPoolExecutor(threads) as pool:
        ways: dict[str, Callable[[], object]] = {"one call": lambda: product(0, 1)}
        if threads > 1:
            ways["a call per thread"] = lambda: list(
                pool.map(lambda part: product(part, threads), range(threads))
            )
        found = measure(ways, protocol)
    return 2.0 * size**3 / min(timing.seconds for timing in found.values())


def further(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """The measurements beside the rows."""
    if case.device == "cpu":
        protocol = Protocol(block_of(options), rounds=options.rounds)
        return {"growth": growth(case.threads, protocol)}
    if case.way == "jax":
        return {}
    import gpu_details

    found = gpu_details.details(options.seed)
    print(json.dumps(found, indent=1))
    return found


def growth(threads: int, protocol: Protocol) -> list[dict[str, Any]]:
    """How zstate's own cost grows with T, N and H, one at a time."""
    print(f"growth from {BASE.title}, training: ms, µs per step, GFLOP/s")
    found = []
    set_num_threads(threads)
    for letter, sizes in (("T", (16, 64, 256)), ("N", (1, 4, 16, 64)), ("H", (32, 128, 512))):
        for size in sizes:
            changed: dict[str, Any] = {letter: size}
            row = replace(BASE, **changed)
            call = functions(Case(row, training=True), make_data(row, 0))
            seconds = measure({"zstate": call}, protocol)["zstate"].seconds
            rate = row.flops(True) / seconds / 1e9
            title = f"{row.T}×{row.N}×{row.H}"
            print(f"{title:12} {seconds * 1e3:8.3g} {seconds / row.T * 1e6:8.2f} {rate:6.0f}")
            found.append({"letter": letter, "row": title, "ms": seconds * 1e3, "gflops": rate})
    return found


def main(arguments: list[str] | None = None) -> int:
    """2 after an error, as from `zstate bench`."""
    options = parsed(arguments)
    try:
        if options.train:
            raise OptionError("[publish] --train writes no files: zstate bench --train")
        return publish(options)
    except ZStateError as error:
        print(f"publish: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
