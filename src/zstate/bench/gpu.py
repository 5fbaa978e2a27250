"""The CUDA engine beside torch.nn, plainly called and as CUDA graphs: checked first, then timed.

A contender is called on the same tensors as the others, in a float type that the row is measured
in. Before anything is timed, zstate's results (for training, h and every gradient) are compared
with float64 on the first steps of the row: their error must be at most twice that of torch.nn in
the same type, or lie within the rounding of that type.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from ..backends import cuda
from . import contenders
from .report import Measured
from .rows import GATES, Data, Row
from .timing import Timing

Call = Callable[[], Any]
TYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float16": torch.float16}
# One rounding to the type in which a result is stored, or, for float32, in which products are
# taken (TF32): where torch.nn does better by luck, it is no measure.
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-11}
_CHECKED_STEPS = 32  # float64 is a loop of small operations
_REPEATS, _FEWER = 9, 5
_LONG = 5e-3  # seconds: a call that takes longer varies less


def unavailable() -> str | None:
    """Why this machine cannot run the benchmark, or None."""
    return cuda.unavailable()


def machine() -> dict[str, Any]:
    """The device and its software."""
    return {
        "processor": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "driver": _driver(),
        "float32": "TF32",
    }


def _driver() -> str:
    from cuda.bindings import driver

    version = driver.cuDriverGetVersion()[1]
    return f"CUDA {version // 1000}.{version % 1000 // 10}"


def make_tensors(row: Row, dtype: torch.dtype, seed: int) -> Data:
    """The numbers of a row on the current device: weights of a realistic size."""
    random = torch.Generator("cuda").manual_seed(seed)
    gates, both, small = GATES[row.cell], row.directions, row.H**-0.5

    def normal(*shape: int, scale: float = 1.0) -> Any:
        return torch.randn(shape, device="cuda", generator=random).mul_(scale).to(dtype)

    return Data(
        x=normal(row.T, row.N, row.H),
        W=normal(both * gates * row.H, row.H, scale=small),
        R=normal(gates * row.H, row.H, scale=small),
        b=normal(both * gates * row.H, scale=0.1),
        b2=normal(both * row.H, scale=0.1),
        h0=normal(row.N, both * row.H, scale=0.5),
        c0=normal(row.N, both * row.H, scale=0.5),
        dy=normal(row.T, row.N, both * row.H),
    )


def _calls(row: Row, data: Data, training: bool, modules: bool) -> dict[str, Call]:
    """All contenders; zstate through its functions, or its modules."""
    theirs = contenders.layer_calls(getattr(torch.nn, row.cell), row, data, training)
    if modules:
        from .. import torch as own

        ours = contenders.layer_calls(getattr(own, row.cell), row, data, training)
    else:
        ours = contenders.zstate_calls("cuda")(row, data, training, 1)  # type: ignore[assignment]
    return {"zstate": ours, "torch": theirs}


def measure(row: Row, kind: str, training: bool, seed: int, modules: bool = False) -> Measured:
    """Check, then time, one row in one type."""
    found = Measured(row, training, type=kind)
    found.errors, is_right = check(row, kind, training, seed, modules)
    if not is_right:
        return found
    for name, call in _calls(row, make_tensors(row, TYPES[kind], seed), training, modules).items():
        for _ in range(2):
            call()
        found.timings[name] = timed(call)
        graph = graphed(call)
        found.timings[f"{name} graph"] = timed(graph.replay)
        del graph, call
    return found


def check(
    row: Row, kind: str, training: bool, seed: int, modules: bool
) -> tuple[dict[str, float], bool]:
    """The largest error of each contender, and whether every result of zstate is within bounds."""
    few = replace(row, T=min(row.T, _CHECKED_STEPS))
    data = make_tensors(few, TYPES[kind], seed)
    wide = Data(**{name: tensor.double() for name, tensor in vars(data).items()})
    exact = contenders.zstate_calls("cuda")(few, wide, training, 1)
    assert exact is not None
    wanted = exact()
    found = {}
    for name, call in _calls(few, data, training, modules).items():
        results = zip(call(), wanted, strict=True)
        found[name] = [relative_error(result, right) for result, right in results]
    pairs = zip(found["zstate"], found["torch"], strict=True)
    is_right = all(within(ours, theirs, ROUNDING[kind]) for ours, theirs in pairs)
    return {name: max(each) for name, each in found.items()}, is_right


def within(ours: float, theirs: float, rounding: float) -> bool:
    """Whether an error is at most twice the peer's, or one rounding of the type."""
    return ours <= max(2 * theirs, rounding)


def relative_error(result: Any, wanted: torch.Tensor) -> float:
    """The error's norm over the result's; a list is a tensor by directions."""
    tensor: torch.Tensor = torch.cat(result) if isinstance(result, list) else result
    wanted = wanted.double()
    difference = tensor.detach().double().reshape(wanted.shape) - wanted
    return float(difference.norm() / wanted.norm().clamp_min(1e-300))


def timed(call: Call, repeats: int | None = None) -> Timing:
    """Seconds on the device, from before the call until it is through: the median."""
    torch.cuda.synchronize()

    def sampled(count: int) -> list[float]:
        pairs = []
        for _ in range(count):
            pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            pair[0].record()
            call()
            pair[1].record()
            pairs.append(pair)
        torch.cuda.synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in pairs]

    samples = sampled(_FEWER if repeats is None else repeats)
    if repeats is None and min(samples) < _LONG:
        samples += sampled(_REPEATS - _FEWER)
    samples.sort()
    median = statistics.median(samples)
    return Timing(median, samples[-1] / samples[0] - 1)


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


def measure_all(
    rows: list[Row], kinds: list[str], modes: list[bool], seed: int, modules: bool
) -> Iterator[Measured]:
    """Every row in every type and mode. float32 means TF32, for everybody."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    try:
        for kind in kinds:
            for row in rows:
                for training in modes:
                    yield measure(row, kind, training, seed, modules)
                gc.collect()
                torch.cuda.empty_cache()
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
