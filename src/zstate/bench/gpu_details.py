"""What the table of the CUDA engine's rows does not show: options, calls, scans, first calls."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from .. import functional
from ..backends.cuda import launch
from ..backends.cuda.passes import pass_of, training
from ..backends.cuda.placement import Scan
from ..backends.cuda.placements import placements
from ..cells import LSTM
from ..descriptors import Activation, LSTMDescriptor
from . import contenders
from .gpu import graphed, make_tensors, timed
from .rows import GATES, Row

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


def _ours(row: Row, training: bool, seed: int) -> Callable[[], Any]:
    call = contenders.zstate_calls("cuda")(row, make_tensors(row, _BFLOAT16, seed), training, 1)
    assert call is not None
    return call


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
    data = make_tensors(row, _BFLOAT16, seed)
    inputs: dict[str, Any] = contenders.zstate_inputs(row, data)
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
        found[name] = timed(graph.replay).seconds / row.T * 1e6
    return found


def host(cell: str, training: bool, seed: int) -> dict[str, Any]:
    """What a plain call of 64 steps takes on the host and on the device."""
    row = Row(cell, 64, 16, 256, states=False)
    call = _ours(row, training, seed)
    for _ in range(3):
        call()
    device = timed(graphed(call).replay).seconds
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
