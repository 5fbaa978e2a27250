"""A voice detector from its ONNX file, chunk by chunk: zstate.onnx beside onnxruntime.

    python benchmarks/voice_detector.py

Built like those in use, with random weights: a spectrum by convolution, four convolutions over it,
two LSTM layers of 128 units that keep their states, and a probability. A chunk has 512 samples (32
ms at 16 kHz) and one sequence. Both sides read the same file, or its LSTMs in int8 as each of them
makes it. They are compared over 50 chunks before anything is timed.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnxruntime.quantization import quantize_dynamic
from torch import nn

import zstate as zs
import zstate.onnx as zo
from zstate.bench.timing import Protocol, measure

CHUNK, WINDOW, UNITS = 512, 256, 128
BOUNDS = {"float32": 1e-5, "int8": 5e-2}  # of the probability
Arrays = dict[str, Any]


class Detector(nn.Module):
    """x [1,512] and the states h, c [2,1,128] to a probability [1,1] and the new states."""

    def __init__(self) -> None:
        super().__init__()
        bins, angle = WINDOW // 2 + 1, 2 * math.pi * torch.arange(WINDOW) / WINDOW
        waves = torch.outer(torch.arange(bins), angle)
        basis = torch.cat([waves.cos(), waves.sin()]) * torch.hann_window(WINDOW)
        self.register_buffer("basis", basis[:, None])  # [2·129,1,256]
        sizes = [(bins, 128, 1), (128, 64, 2), (64, 64, 2), (64, 128, 1)]
        layers = [nn.Conv1d(i, o, 3, stride, padding=1) for i, o, stride in sizes]
        self.encoder = nn.Sequential(*(part for each in layers for part in (each, nn.ReLU())))
        self.lstm = nn.LSTM(128, UNITS, num_layers=2)
        self.head = nn.Linear(UNITS, 1)
        for weight in self.parameters():  # so that the probability moves
            weight.data.mul_(2.5)

    def forward(self, x: Any, h: Any, c: Any) -> tuple[Any, Any, Any]:
        padded = nn.functional.pad(x[:, None], (0, WINDOW // 2))
        waves = nn.functional.conv1d(padded, self.basis, stride=WINDOW // 2)
        real, imaginary = waves.chunk(2, 1)
        features = self.encoder((real * real + imaginary * imaginary + 1e-9).sqrt())  # [1,128,T]
        y, (h, c) = self.lstm(features.permute(2, 0, 1), (h, c))
        return torch.sigmoid(self.head(y[-1].relu())), h, c


def written(path: Path) -> None:
    torch.manual_seed(0)
    states = torch.zeros(2, 1, UNITS)
    names = {"input_names": ["x", "h", "c"], "output_names": ["p", "h_out", "c_out"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inputs = (torch.zeros(1, CHUNK), states, states)
        torch.onnx.export(Detector().eval(), inputs, path, dynamo=False, **names)


def quantised(path: Path) -> Path:
    """The file with its LSTMs in int8, as onnxruntime makes them."""
    model, small = onnx.load(path), path.with_name("int8.onnx")
    onnx.helper.set_model_props(model, {"onnx.quant.pre_process": "onnxruntime.quant"})
    onnx.save(model, path)
    quantize_dynamic(path, small, op_types_to_quantize=["LSTM"])
    return small


def runners(path: Path, threads: int) -> dict[str, Callable[[Arrays], list[Any]]]:
    """From feeds to p, h and c, by name."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    names = ["p", "h_out", "c_out"]

    def theirs(file: Path) -> Callable[[Arrays], list[Any]]:
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        return lambda feeds: session.run(names, feeds)

    def ours(weights: str) -> Callable[[Arrays], list[Any]]:
        model = zo.load(path).prepare(weights)

        def run(feeds: Arrays) -> list[Any]:
            found = model.run(feeds)
            return [found[name] for name in names]

        return run

    return {
        "zstate float32": ours("float32"),
        "onnxruntime float32": theirs(path),
        "zstate int8": ours("int8"),
        "onnxruntime int8": theirs(quantised(path)),
    }


def stream(run: Callable[[Arrays], list[Any]], chunks: Any) -> Any:
    h = c = np.zeros((2, 1, UNITS), np.float32)
    found = []
    for chunk in chunks:
        p, h, c = run({"x": chunk, "h": h, "c": c})
        found.append(np.array(p))
    return np.concatenate(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--block", type=float, default=0.3, help="seconds per block")
    options = parser.parse_args()
    zs.set_num_threads(options.threads)
    chunks = np.random.default_rng(0).normal(size=(50, 1, CHUNK)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "detector.onnx")
        written(path)
        runs = runners(path, options.threads)
        wanted = stream(runs["onnxruntime float32"], chunks)
        for name, run in runs.items():
            error = float(abs(stream(run, chunks) - wanted).max())
            print(f"{name:20} largest difference of the probability {error:.1e}")
            assert error <= BOUNDS[name.split()[1]], name
        calls = {name: (lambda run=run: stream(run, chunks[:10])) for name, run in runs.items()}
        times = measure(calls, Protocol(options.block, rounds=5))
        for name, timing in times.items():
            print(f"{name:20} {timing.seconds * 1e5:8.1f} us per chunk")


if __name__ == "__main__":
    main()
