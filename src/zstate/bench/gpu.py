"""How calls on a GPU are timed: by the device's clock, plain and as CUDA graphs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .timing import Call


def on_device(call: Call, count: int) -> list[float]:
    """A sampler: seconds of device time per call."""
    pairs = []
    torch.cuda.synchronize()
    for _ in range(count):
        pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        pair[0].record()
        call()
        pair[1].record()
        pairs.append(pair)
    torch.cuda.synchronize()
    return [start.elapsed_time(end) / 1e3 for start, end in pairs]


def graphed(call: Call) -> torch.cuda.CUDAGraph:
    """A call as a CUDA graph, replayed once."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    graph.replay()
    return graph


def free() -> None:
    """Free the memory of the previous contender."""
    gc.collect()
    torch.cuda.empty_cache()


@contextmanager
def tf32() -> Iterator[None]:
    """Let float32 mean TF32 for all contenders."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before, matmul.allow_tf32 = matmul.allow_tf32, True
    kept = {name: getattr(cudnn, name) for name in ("enabled", "benchmark", "deterministic")}
    try:
        # By its own context manager, because another library may have locked its flags.
        with cudnn.flags(**kept, allow_tf32=True):
            yield
    finally:
        matmul.allow_tf32 = before
