"""Check every row against float64, then time it beside torch.nn replayed as a CUDA graph.

    python benchmarks/gpu.py [--json FILE] [--types bfloat16,float32] [--cells lstm,gru,rnn]

Microseconds per time step, median; projection and weight gradients included. "ours" and "graph" are
replays of CUDA graphs, "plain" is ours called plainly. "error" is the largest error over that of a
loop of torch operations in the same type: at most 2 is asked for.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
# Not this folder: in it this file would be taken for NVIDIA's package of the same name.
sys.path[:1] = [str(ROOT / "src"), str(ROOT / "tests" / "gpu")]

import harness  # noqa: E402

import zstate as zs  # noqa: E402
from zstate import verify  # noqa: E402
from zstate.backends.cuda import engine, launch, plain  # noqa: E402
from zstate.backends.cuda.options import Options  # noqa: E402
from zstate.backends.cuda.planner import Problem, plans  # noqa: E402

ROWS = [
    (256, 1, 128),
    (256, 16, 256),
    (1024, 8, 256),
    (256, 256, 256),
    (1024, 1, 512),
    (256, 64, 512),
    (1024, 16, 768),
    (256, 64, 1024),
    (256, 128, 1024),
    (256, 32, 2048),
]
NETS: dict[str, Any] = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn": torch.nn.RNN}
NAMES = {"lstm": "lstm", "gru": "gru", "rnn": "single_gate_rnn"}
ABSENT = frozenset(
    {"mask", "peephole", "init_state", "init_cell", "state_gradient", "cell_gradient"}
)


def descriptor(cell: str, training: bool) -> Any:
    if cell == "lstm":
        return zs.LSTMDescriptor(training=training)
    if cell == "gru":
        return zs.GRUDescriptor(training=training, reset_after=True)
    return zs.SingleGateRNNDescriptor(training=training, activation=zs.Activation.TANH)


def inputs(cell: str, size: tuple[int, int, int], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    T, N, H = size
    gates = {"lstm": 4, "gru": 3, "rnn": 1}[cell]
    shapes = {
        "source": (T, N, H),
        "recurrent_weight": (gates * H, H),
        "input_weight": (gates * H, H),
        "bias": (gates * H,),
        "source_gradient": (T, N, H),
    }
    if cell == "gru":
        shapes["secondary_bias"] = (H,)
    small = H**-0.5
    scale = {"recurrent_weight": small, "input_weight": small, "bias": 0.1, "secondary_bias": 0.1}
    return {
        name: (torch.randn(shape, device="cuda") * scale.get(name, 1.0)).to(dtype)
        for name, shape in shapes.items()
    }


class Ours:
    """The two operations on fixed tensors."""

    def __init__(
        self, cell: str, size: tuple[int, int, int], dtype: str, runner: Any = engine
    ) -> None:
        T, N, H = size
        self.name, self.dtype, self.runner = NAMES[cell], dtype, runner
        self.case = verify.Case("row", descriptor(cell, True), ABSENT, (T, N, H, H))
        self.plain_case = verify.Case("row", descriptor(cell, False), ABSENT, (T, N, H, H))
        self.inputs = inputs(cell, size, harness.TYPES[dtype])
        self._infer = harness.make_call(self.name, self.plain_case, self.inputs, dtype)
        self._forward = harness.make_call(self.name, self.case, self.inputs, dtype)
        self._backward: Any = None

    def infer(self) -> Any:
        return self.runner.forward(self._infer)

    def train(self) -> Any:
        there = self.runner.forward(self._forward)
        fed = {"z_state": there["training_state"], "output_fwd": there["state"]}
        if "cell" in there:
            fed["cell_output_fwd"] = there["cell"]
        if self._backward is None:
            self._backward = harness.make_call(
                self.name + "_gradients", self.case, {**self.inputs, **fed}, self.dtype
            )
        # The layout, and with it the kernel, is that of the first call.
        call = type(self._backward)(self._backward.layout, {**self._backward.tensors, **fed})
        return there, self.runner.backward(call)


class Peer:
    """torch.nn with one layer, all gradients."""

    def __init__(self, cell: str, size: tuple[int, int, int], dtype: str) -> None:
        T, N, H = size
        self.net = NETS[cell](H, H, device="cuda", dtype=harness.TYPES[dtype])
        self.net.flatten_parameters()
        self.x = torch.randn(T, N, H, device="cuda").to(harness.TYPES[dtype]).requires_grad_()
        self.dy = torch.randn_like(self.x)
        self.wanted = [self.x, *self.net.parameters()]

    def infer(self) -> Any:
        with torch.no_grad():
            return self.net(self.x)[0]

    def train(self) -> Any:
        return torch.autograd.grad(self.net(self.x)[0], self.wanted, self.dy)


def check(cell: str, size: tuple[int, int, int], dtype: str) -> float:
    """The largest error over that of torch's own loop in the same type, on a few steps."""
    T, N, H = size
    few = (min(T, 24), N, H)
    ours = Ours(cell, few, dtype)
    there, grads = ours.train()
    wide = Ours(cell, few, "float64", plain)
    wide.inputs = {name: tensor.double() for name, tensor in ours.inputs.items()}
    exact = plain.forward(harness.make_call(ours.name, wide.case, wide.inputs, "float64"))
    control = plain.forward(harness.make_call(ours.name, ours.case, ours.inputs, dtype))
    doubled = {name: tensor.double() for name, tensor in there.items()}
    exact_back = harness.back(ours.case, wide.inputs, doubled, "float64", plain)
    control_back = harness.back(ours.case, ours.inputs, there, dtype, plain)
    floor = 1.2e-7
    ratios = [
        harness.error(there[n], exact[n]) / max(harness.error(control[n], exact[n]), floor)
        for n in exact
    ]
    ratios += [
        harness.error(grads[n], want) / max(harness.error(control_back[n], want), floor)
        for n, want in exact_back.items()
    ]
    return max(ratios)


def timed(function: Callable[[], Any], repeats: int) -> float:
    """Microseconds, median."""
    torch.cuda.synchronize()
    pairs = []
    for _ in range(repeats):
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        function()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in pairs) * 1e3


def graphed(function: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph


def measure(cell: str, size: tuple[int, int, int], dtype: str) -> dict[str, Any]:
    T = size[0]
    row: dict[str, Any] = {"cell": cell, "size": size, "type": dtype}
    row["error"] = check(cell, size, dtype)
    ours, peer = Ours(cell, size, dtype), Peer(cell, size, dtype)
    for mode in ("infer", "train"):
        mine, theirs = getattr(ours, mode), getattr(peer, mode)
        mine()
        theirs()
        graphs = graphed(mine), graphed(theirs)
        for graph in graphs:
            graph.replay()
        row[mode] = timed(graphs[0].replay, 7) / T
        row[mode + " graph"] = timed(graphs[1].replay, 5) / T
        row[mode + " plain"] = timed(mine, 7) / T
        del graphs
    for name, call in (("forward", ours._infer), ("backward", ours._backward)):
        plan = engine._prepared(call).kernel.plan
        row[name + " plan"] = dict(zip(plan._fields, plan, strict=True))
    return row


def host(cell: str) -> list[str]:
    """Whether the host keeps ahead of the device in short calls."""
    found = []
    ours = Ours(cell, (64, 16, 256), "bfloat16")
    for mode in ("infer", "train"):
        mine = getattr(ours, mode)
        for _ in range(3):
            mine()
        graph = graphed(mine)
        device = timed(graph.replay, 20)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(20):
            mine()
        spent = (time.perf_counter() - start) / 20 * 1e6
        torch.cuda.synchronize()
        found.append(f"{mode} {spent:.0f}/{device:.0f}")
    return found


def options_cost() -> str:
    """What a mask, peepholes and other activations cost together: LSTM, N = 16, H = 256."""
    size, found = (256, 16, 256), []
    for full in (False, True):
        ours = Ours("lstm", size, "bfloat16")
        if full:
            hard = zs.Activation.HARD_SIGMOID
            kind = zs.LSTMDescriptor(
                training=True, input_gate_activation=hard, forget_gate_activation=hard
            )
            ours.case = verify.Case("row", kind, ABSENT, (*size, size[2]))
            keep = torch.rand(size, device="cuda") < 0.8
            ours.inputs["mask"] = keep.to(torch.bfloat16)
            ours.inputs["peephole"] = torch.randn(4 * size[2], device="cuda").to(torch.bfloat16)
            ours._forward = harness.make_call("lstm", ours.case, ours.inputs, "bfloat16")
        ours.train()
        found.append(timed(graphed(ours.train).replay, 9) / size[0])
    return f"mask, peepholes, activations: {found[0]:.2f} -> {found[1]:.2f} µs, training"


def first_call() -> str:
    """Milliseconds until a new configuration is ready: compiled, and from the cache on disk."""
    problem = Problem("lstm", True, False, "bfloat16", 640, 24, 1)
    options = Options((0, 1, 2, 3), (3, 3, 2, 3, 2), want_left=True, sum_bias=True)
    device, spent = torch.device("cuda", torch.cuda.current_device()), []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ZSTATE_CACHE_DIR"] = folder
        for _ in range(2):
            start = time.perf_counter()
            launch.Kernel(problem, options, plans(problem, launch.chip_of(device))[0], device)
            spent.append((time.perf_counter() - start) * 1e3)
    return f"a new configuration: compiled in {spent[0]:.0f} ms, from the cache {spent[1]:.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", default="cuda.json")
    parser.add_argument("--types", default="bfloat16,float32,float16")
    parser.add_argument("--cells", default="lstm,gru,rnn")
    chosen = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(0)
    found: list[dict[str, Any]] = []
    print("type cell T×N×H | infer ours graph ratio plain | train ours graph ratio plain | error")
    for dtype in chosen.types.split(","):
        for cell in chosen.cells.split(","):
            for size in ROWS:
                try:
                    row = measure(cell, size, dtype)
                except Exception as error:  # a row that fails must not hide the others
                    print(dtype, cell, size, "FAILED", repr(error)[:300], flush=True)
                    continue
                found.append(row)
                Path(chosen.json).write_text(json.dumps(found, indent=1))
                cells = [
                    f"{row[m]:6.2f} {row[m + ' graph']:6.2f} {row[m + ' graph'] / row[m]:5.2f} "
                    f"{row[m + ' plain']:6.2f}"
                    for m in ("infer", "train")
                ]
                print(
                    dtype, cell, "×".join(map(str, size)), *cells, f"{row['error']:.2f}", sep=" | "
                )
                sys.stdout.flush()
                torch.cuda.empty_cache()
    print(options_cost())
    print(first_call())
    for cell in chosen.cells.split(","):
        print("host µs a call / device µs, T = 64, N = 16, H = 256:", cell, *host(cell))
    for dtype in chosen.types.split(","):
        for mode in ("infer", "train"):
            rows = [row for row in found if row["type"] == dtype]
            if rows:
                ratios = [row[mode + " graph"] / row[mode] for row in rows]
                mean = math.exp(statistics.mean(map(math.log, ratios)))
                slow = sum(ratio < 1 for ratio in ratios)
                print(f"{dtype} {mode}: geometric mean {mean:.2f}, slower rows {slow}")


if __name__ == "__main__":
    main()
