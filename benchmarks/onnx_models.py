"""Loaded ONNX models against onnxruntime on the CPU, in inference: the rows of `zstate bench`.

    python benchmarks/onnx_models.py [row, such as "lstm 64x16x128", or a glob]

A row's layer is saved as ONNX; onnxruntime and zstate.onnx read the same file. The third column is
the functional call on the same numbers, which shows what the graph around it costs. Results are
compared before anything is timed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime

import zstate as zs
import zstate.onnx as zo
from zstate.bench.contenders import OPERATIONS, inputs_of
from zstate.bench.rows import ROWS, Row, choose, make_data
from zstate.bench.timing import Protocol, measure
from zstate.errors import OptionError

PROTOCOL = Protocol(0.3, rounds=3)
USUAL = "lstm 64x1x64,lstm 64x16x128,lstm 128x32x256,gru 64x16x128,rnn 64x16x128,*1x1x256"


def compare(row: Row, path: Path) -> None:
    inputs = inputs_of(row, make_data(row, 0))
    x = inputs.pop("source")
    method = OPERATIONS[row.cell]
    g = zs.Graph()
    source = g.placeholder(shape=x.shape, name="x")
    weights = {name: g.variable(array, name=name) for name, array in inputs.items()}
    (state, *_) = getattr(g, method)(source, **weights, descriptor=row.descriptor)
    zo.save(g, {"y": state}, path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = zs.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    model = zo.load(path)
    feeds = {"x": x}
    calls = {
        "onnxruntime": lambda: session.run(None, feeds)[0],
        "zstate.onnx": lambda: model.run(feeds)["y"],
        "functional": lambda: getattr(zs, method)(x, **inputs, descriptor=row.descriptor).state,
    }
    wanted = calls["onnxruntime"]()
    for name, call in calls.items():
        np.testing.assert_allclose(call(), wanted, rtol=1e-3, atol=1e-3, err_msg=name)
    ms = {name: timing.seconds * 1e3 for name, timing in measure(calls, PROTOCOL).items()}
    theirs, loaded, plain = ms.values()
    cells = [row.title, *(f"{value:.3g}" for value in ms.values())]
    print(f"| {' | '.join(cells)} | {theirs / loaded:.2f} | {theirs / plain:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", default=[USUAL], help="such as 'lstm 64x16x128'; globs")
    try:
        rows = choose(ROWS, ",".join(parser.parse_args().rows))
    except OptionError as error:
        sys.exit(str(error))
    print("| T×N×H | onnxruntime ms | zstate.onnx ms | functional ms | ratio | functional ratio |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for row in rows:
            compare(row, Path(folder) / "row.onnx")


if __name__ == "__main__":
    main()
