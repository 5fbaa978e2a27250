"""The main job on a GPU: steps of zstate's graph against torch.nn, and where the time goes.

Three models, TF32 (float32) and bfloat16; torch.nn with fused Adam, captured as a CUDA graph, and
with --eager and --compiled also so. Then the kernels of a captured step, and many runs of a small
program.

    python benchmarks/graph_on_gpu.py --profile 12
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from on_gpu import require_gpu

import zstate as zs
from zstate.bench import training
from zstate.bench.gpu import tf32
from zstate.train import Run, Settings, default_text


def table(kinds: list[str], ways: dict[str, training.Way], steps: int) -> None:
    """One line per model and type, and the geometric mean of the ratios."""
    for kind in kinds:
        ratios = []
        for name, settings in training.MODELS.items():
            began = time.perf_counter()
            with tf32():
                model = replace(settings, type=kind, total=steps)
                found = training.contest(model, "cuda", steps, ways)
            ours = found.pop("zstate")
            text = f"{kind:9}{name:24} zstate {ours.milliseconds:7.3f} ms {ours.bits:.4f} bits"
            for way, theirs in found.items():
                ratio = theirs.milliseconds / ours.milliseconds
                text += f" | {way} {theirs.milliseconds:7.3f} ms ({ratio:.2f}) {theirs.bits:.4f}"
                if way == "torch captured":
                    ratios.append(ratio)
            print(f"{text}   [{time.perf_counter() - began:.0f} s]", flush=True)
        if ratios:
            mean = statistics.geometric_mean(ratios)
            print(
                f"{kind:9}geometric mean of captured: {mean:.2f}, least {min(ratios):.2f}",
                flush=True,
            )


def profile(kind: str, rows: int) -> None:
    """The kernels of a captured step, by their time."""
    device = torch.device("cuda", torch.cuda.current_device())
    for name, settings in training.MODELS.items():
        with tempfile.TemporaryDirectory() as folder, tf32():
            run = training.run_of(replace(settings, type=kind), str(device), Path(folder))
            fed = [training.batch_of(run, step, device) for step in range(10)]
            step = training.OurSteps(run)
            for batch in fed:
                step(batch)
            torch.cuda.synchronize()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
                for batch in fed:
                    step(batch)
                torch.cuda.synchronize()
        lines = [
            (event.device_time_total / len(fed), event.count / len(fed), event.key)
            for event in found.key_averages()
        ]
        total = sum(line[0] for line in lines)
        count = sum(line[1] for line in lines)
        print(f"-- {kind} {name}: {total:.0f} us in {count:.0f} kernels; {step.program.why_plain}")
        for each, times, key in sorted(lines, reverse=True)[:rows]:
            print(f"   {each:8.1f} us {times:6.1f} x  {key[:100]}")


def many_runs(seconds: float) -> None:
    """A small captured program, again and again: memory before and after, microseconds per run."""
    g = zs.Graph()
    x = g.placeholder(shape=(4,), dtype="float32", name="x")
    v = g.variable(np.zeros(4, np.float32), name="v")
    program = g.compile(
        {x: ((4,), "float32")}, [g.tanh(v + x)], [g.assign(v, v * 0.5 + x)], device="cuda"
    )
    feed = torch.ones(4, device="cuda")
    for _ in range(100):
        program.run([feed])
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0], _resident()
    began, runs = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(1000):
            program.run([feed])
        runs += 1000
        torch.cuda.synchronize()
    spent = time.perf_counter() - began
    after = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0], _resident()
    print(f"{runs} runs, {spent / runs * 1e6:.1f} us each; bytes allocated, free, resident:")
    print(f"  before {before}\n  after  {after}", flush=True)


def whole_runs() -> None:
    """What `zstate train` does on a GPU, from the first step to the last checkpoint."""
    for name, settings in {
        "zstate train --device cuda": Settings(),
        "… --layers 2 --hidden 1024 --type bfloat16": Settings(
            layers=2, hidden=1024, type="bfloat16"
        ),
    }.items():
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            run = Run.create(Path(folder) / "run", settings, default_text(), device="cuda")
            ready = time.perf_counter()
            points = list(run.train(100))
            ended = time.perf_counter()
        bits = points[-1].valid_bits
        print(
            f"{name}: {ended - ready:.2f} s for {len(points)} steps and 9 validations, "
            f"{ready - began:.2f} s before; {bits:.3f} bits per character", flush=True
        )  # fmt: skip


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--types", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--profile", type=int, metavar="ROWS", default=0)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--runs", type=float, metavar="SECONDS", default=0)
    options = parser.parse_args()
    require_gpu()
    chosen = {"captured": True, "eager": options.eager, "compiled": options.compiled}
    every, asked = training.ON_GPU | training.WAYS, [way for way, on in chosen.items() if on]
    ways = {f"torch {way}": every[f"torch {way}"] for way in asked}
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    if options.steps:
        table(options.types, ways, options.steps)
    if options.whole:
        whole_runs()
    if options.profile:
        for kind in options.types:
            profile(kind, options.profile)
    if options.runs:
        many_runs(options.runs)


if __name__ == "__main__":
    main()
