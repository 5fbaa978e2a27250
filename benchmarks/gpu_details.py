"""Beside the rows of the CUDA engine: the machine, options, calls, scans and first calls."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import replace
from typing import Any

import torch
from on_gpu import seconds

from zstate import functional
from zstate.backends.cuda import launch
from zstate.backends.cuda.passes import pass_of, training
from zstate.backends.cuda.placement import Scan
from zstate.backends.cuda.placements import placements
from zstate.bench.contenders import Call, Case, functions, inputs_of, tensors
from zstate.bench.contest import numbers
from zstate.bench.gpu import graphed
from zstate.bench.rows import GATES, Row
from zstate.cells import LSTM
from zstate.descriptors import Activation, LSTMDescriptor

# N and H of the scans that are compared with what the exchange alone costs.
_SCANS = [(16, 128), (16, 256), (64, 512), (16, 768), (64, 1024)]
_BFLOAT16 = torch.bfloat16


def details(seed: int) -> dict[str, Any]:
    """All of it, microseconds unless a name says otherwise."""
    return {
        "scan": scans(seed),
        "options": options_cost(seed),
        "host": [host(cell, training, seed) for cell in GATES for training in (False, True)],
        "first_call_ms": first_call(),
    }


def machine() -> dict[str, Any]:
    """The device and its software."""
    from cuda.bindings import driver

    version = driver.cuDriverGetVersion()[1]
    return {
        "processor": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "driver": f"CUDA {version // 1000}.{version % 1000 // 10}",
        "float32": "TF32",
    }


def _case(row: Row, training: bool) -> Case:
    return Case(row, training, "bfloat16", device="cuda")


def _ours(row: Row, training: bool, seed: int) -> Call:
    case = _case(row, training)
    return functions(case, numbers(case, seed))


def scans(seed: int) -> list[dict[str, Any]]:
    """The two scans of an LSTM in bfloat16 alone, per step, as the profiler sees them.

    The forward scan saves what training needs.
    """
    found = []
    for N, H in _SCANS:
        row = Row("LSTM", 256, N, H, states=False)
        call = _ours(row, True, seed)
        call()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(5):
                call()
            torch.cuda.synchronize()
        times = [event.device_time for event in profile.events() if event.name == "scan"]
        forward, backward = sorted(times[0::2])[2], sorted(times[1::2])[2]
        found.append({"N": N, "H": H, "forward": forward / row.T, "backward": backward / row.T})
    return found


def options_cost(seed: int) -> dict[str, float]:
    """A step of training with mask, peepholes and other activations, and without."""
    row = Row("LSTM", 256, 16, 256, states=False)
    case = _case(row, training=True)
    data = tensors(case, numbers(case, seed))
    inputs = inputs_of(row, data)
    hard = Activation.HARD_SIGMOID
    plain = LSTMDescriptor(training=True)
    other = replace(plain, input_gate_activation=hard, forget_gate_activation=hard)
    more = {
        "mask": (torch.rand(row.T, row.N, row.H, device="cuda") < 0.8).to(_BFLOAT16),
        "peephole": torch.randn(4 * row.H, device="cuda").mul_(0.1).to(_BFLOAT16),
    }

    def train(fed: dict[str, Any], descriptor: LSTMDescriptor) -> Any:
        there = functional.lstm(**fed, descriptor=descriptor)
        return functional.lstm_gradients(
            **fed,
            source_gradient=data.dy,
            z_state=there.training_state,
            cell_output_fwd=there.cell,
            descriptor=descriptor,
        )

    found = {}
    for name, fed, descriptor in (("without", inputs, plain), ("with", inputs | more, other)):
        train(fed, descriptor)
        graph = graphed(lambda fed=fed, descriptor=descriptor: train(fed, descriptor))  # type: ignore[misc]
        found[name] = seconds(graph.replay) / row.T * 1e6
    return found


def host(cell: str, training: bool, seed: int) -> dict[str, Any]:
    """What a plain call of 64 steps takes on the host and on the device."""
    row = Row(cell, 64, 16, 256, states=False)
    call = _ours(row, training, seed)
    for _ in range(3):
        call()
    device = seconds(graphed(call).replay)
    rounds = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(10):
            call()
        rounds.append((time.perf_counter() - start) / 10)
    torch.cuda.synchronize()
    mode = "training" if training else "inference"
    return {"row": row.title, "mode": mode, "host": min(rounds) * 1e6, "device": device * 1e6}


def first_call() -> dict[str, float]:
    """Milliseconds until a new configuration is ready: compiled, and from the cache on disk."""
    options = training(LSTM, LSTMDescriptor(), backward=True)
    scan = Scan(pass_of(options).form, "bfloat16", 640, 24, 1)
    device = torch.cuda.current_device()
    before, found = os.environ.get("ZSTATE_CACHE_DIR"), {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ZSTATE_CACHE_DIR"] = folder
        for name in ("compiled", "cached"):
            start = time.perf_counter()
            best = placements(scan, launch.chip_of(device), in_steps=True)[0]
            launch.Kernel(scan, options, best, device)
            found[name] = (time.perf_counter() - start) * 1e3
    if before is None:
        del os.environ["ZSTATE_CACHE_DIR"]
    else:
        os.environ["ZSTATE_CACHE_DIR"] = before
    return found
