"""Heads, cells from equations, layer norm and resets on a GPU: checked, then timed as CUDA graphs.

    PYTHONPATH=src python benchmarks/cells_on_gpu.py
    PYTHONPATH=src python benchmarks/cells_on_gpu.py --cells layer_norm_lstm,lstm

Microseconds per step, forward and training, of the scan with its weight gradients, without the
input product. Before a row is timed, every result of its first steps is compared with float64:
its error must be at most three times that of torch's operations in the same type.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from on_gpu import require_gpu, seconds

from zstate import cells, pipeline
from zstate.backends import cuda
from zstate.bench.gpu import graphed
from zstate.cells import GRU, LSTM, Cell
from zstate.extensions import extended
from zstate.layout import bind
from zstate.operations import Operation, operations_of

Tensors = dict[str, torch.Tensor]
TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "tf32": torch.float32}
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "tf32": 2.0**-10}
CHECKED = 12  # steps: float64 is a loop of small operations


class Row(NamedTuple):
    """A layer with this many heads of d units."""

    cell: str
    heads: int
    d: int
    N: int = 16
    T: int = 1024
    type: str = "bfloat16"
    resets: bool = False

    @property
    def definition(self) -> Cell:
        built_in = {"lstm": LSTM, "gru": GRU}
        return built_in.get(self.cell) or getattr(cells, self.cell).definition


HEADS = ((48, 16), (24, 32), (12, 64), (6, 128), (4, 192), (3, 256), (1, 768))
ROWS = [
    *(Row(cell, *size) for cell in ("lstm", "slstm") for size in HEADS),
    *(Row("lstm", 48, 16, 1), Row("slstm", 12, 64, 64), Row("slstm", 6, 128, 256, 256)),
    *(Row("slstm", 5, 100, 16, 1024, "float16"), Row("lstm", 7, 30, 33, 512)),
    *(Row("slstm", 12, 64, 16, 1024, "tf32"), Row("lstm", 6, 128, 16, 1024, "tf32")),
    *(Row("lstm", 768, 1), Row("indrnn", 768, 1), Row("diagonal_gru", 2048, 1, 256, 256)),
    *(Row(cell, 1, 256, 16, 256) for cell in ("lstm", "layer_norm_lstm", "gru", "layer_norm_gru")),
    *(Row(f"layer_norm_{cell}", 1, 256, 16, 256, "float16") for cell in ("lstm", "gru")),
    *(Row("layer_norm_lstm", 1, *size) for size in ((128, 64, 256), (512, 32, 256), (60, 5, 512))),
    *(Row("lstm", 1, 256, 16, 256, resets=True), Row("gru", 1, 256, 16, 256, resets=True)),
]


def inputs_of(row: Row, steps: int) -> Tensors:
    """The inputs of the gradient operation, except the forward results."""
    cell, H = row.definition, row.heads * row.d
    gates, random = len(cell.gates) * H, torch.Generator("cuda").manual_seed(1)

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        values = torch.randn(shape, device="cuda", generator=random) * scale
        return values.to(TYPES[row.type])

    block = (len(cell.gates) * row.d, row.d)
    weight = block if row.heads == 1 else (row.heads, *block)
    given = {
        "source": normal(steps, row.N, gates),
        "recurrent_weight": normal(*weight, scale=row.d**-0.5),
        "source_gradient": normal(steps, row.N, H),
    }
    given |= {each.name: 1 + normal(H, scale=0.2) for each in cell.own if each.required}
    # As states are behind some steps: the sLSTM's n is above 0.
    given |= {state.initial: normal(row.N, H, scale=0.3).abs() + 0.5 for state in cell.states}
    if row.resets:
        starts = torch.rand(steps, row.N, device="cuda", generator=random) < 0.02
        given["resets"] = starts.to(TYPES[row.type])
    return given


def runs(operation: Operation, given: Tensors, row: Row, training: bool, engine: bool) -> Any:
    """The function that runs a call, and its inputs."""
    descriptor: Any = row.definition.descriptor(training=training, heads=row.heads)
    tensors = tuple(given.get(name) for name in operation.inputs)
    tensors, descriptor = extended(operation, tensors, descriptor, row.heads)
    layout = bind(operation, tensors, descriptor)
    assert not engine or cuda.refuses(layout) is None, cuda.refuses(layout)
    run = cuda.prepare(layout) if engine else lambda values: pipeline.run(layout, values)
    return run, tensors


def call(
    row: Row, given: Tensors, training: bool = True, engine: bool = True
) -> Callable[..., Any]:
    """Forward, or a training step: all results by name."""
    forward, backward = operations_of(row.definition)
    run, tensors = runs(forward, given, row, training, engine)
    made: list[Any] = []

    def step(there: Tensors | None = None) -> Tensors:
        found = there or dict(zip(forward.result._fields, run(tensors), strict=True))
        if not training:
            return found
        back = {name: found[result] for name, result in row.definition.fed_back.items()}
        if not made:
            made.append(runs(backward, given | back, row, training, engine)[0])
        fed = given | back
        values = [fed.get(name) for name in backward.inputs]
        values[-1] = tensors[-1]  # resets, as engines get them
        named = zip(backward.result._fields, made[0](tuple(values)), strict=True)
        return found | {f"gradient of {name}": value for name, value in named}

    return step


def check(row: Row) -> str:
    """The result with the largest error; raises if it is too large."""
    row = row._replace(T=min(row.T, CHECKED))
    given = inputs_of(row, row.T)
    wide = {name: tensor.double() for name, tensor in given.items()}
    found = call(row, given)()
    fed = {name: value for name, value in found.items() if "gradient" not in name}
    there = {name: None if value is None else value.double() for name, value in fed.items()}
    exact = call(row, wide, engine=False)(there) | call(row, wide, False, False)()
    control = call(row, given, engine=False)(fed) | call(row, given, False, False)()
    worst = (0.0, "")
    for name, right in exact.items():
        if right is None or found[name] is None:
            continue
        ours, theirs = (float((x[name].double() - right).norm()) for x in (found, control))
        size = float(right.norm()) or 1.0
        bound = max(3 * theirs / size, ROUNDING[row.type])
        assert ours / size <= bound, (row, name, ours / size, theirs / size)
        worst = max(worst, (ours / size, name))
    return f"{worst[0]:.1e} in {worst[1]}"


def measure(row: Row) -> str:
    times = []
    for training in (False, True):
        step = call(row, inputs_of(row, row.T), training)
        step()
        times.append(seconds(graphed(step).replay) / row.T * 1e6)
    return f"{times[0]:8.2f} {times[1]:8.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=int, help="check one row, so that it is compiled")
    parser.add_argument("--cells", default="", help="comma-separated cells; all by default")
    options = parser.parse_args()
    require_gpu()
    chosen, wanted = options.only, [name for name in options.cells.split(",") if name]
    torch.backends.cuda.matmul.allow_tf32 = True
    if chosen is not None:
        print(check(ROWS[chosen]), flush=True)
        call(ROWS[chosen], inputs_of(ROWS[chosen], ROWS[chosen].T), training=False)()
        return

    def checked(number: int) -> subprocess.CompletedProcess[str]:  # kernels compile side by side
        command = [sys.executable, __file__, "--only", str(number)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    numbers = [k for k, row in enumerate(ROWS) if not wanted or row.cell in wanted]
    with ThreadPoolExecutor(min(12, os.cpu_count() or 1)) as pool:
        checks = list(pool.map(checked, numbers))
    print(f"{torch.cuda.get_device_name()}: us per step, forward and training; largest error")
    for row, done in zip((ROWS[k] for k in numbers), checks, strict=True):
        found = f"not timed: {done.stderr.strip()[-200:]}"
        if done.returncode == 0:
            found = f"{measure(row)}   {done.stdout.strip()}"
        print(f"{row.cell:16} {row.heads:5} x {row.d:<4} N {row.N:<4} T {row.T:<5}", end="")
        print(f"{row.type:9}{'resets' if row.resets else '':7} {found}", flush=True)
    sys.exit(any(done.returncode for done in checks))


if __name__ == "__main__":
    main()
