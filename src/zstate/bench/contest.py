"""One case: every contender is checked against float64, and those that are right are timed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..prepared.parts import rounded
from ..types import Array
from ..verify import relative_error
from .contenders import CONTENDERS, Call, Case, functions
from .report import Measured
from .rows import Data, Row, make_data
from .timing import Protocol, Timing, apart, measure, together

# How far from float64 a result may be, relative to its size: the rounding of float32, or of
# prepared weights; on a GPU one rounding to the type of the results, or, for float32, to that of
# the products (TF32).
BOUNDS = {
    "cpu": {"float32": 1e-4, "bfloat16": 2e-2, "int8": 0.1},
    "cuda": {"float32": 2.0**-11, "bfloat16": 2.0**-8, "float16": 2.0**-11},
}
_CHECKED_STEPS = 32  # on a GPU: float64 is a loop of small operations there
_CHECKED_CHUNKS = 3  # of streams, whose states must be handed on


def contest(case: Case, names: list[str], protocol: Protocol, seed: int) -> Measured:
    """Check the named contenders, then time those that are right."""
    brief, on_gpu = case, case.device == "cuda"
    if on_gpu:
        brief = replace(case, row=replace(case.row, T=min(case.row.T, _CHECKED_STEPS)))
    data = numbers(brief, seed)
    errors, calls = checked(brief, names, data)
    found = Measured(case.row, case.training, {}, errors, case.type)
    if not on_gpu:
        found.timings = measure(calls, protocol, apart if case.way == "streamed" else together)
    else:
        right = list(calls)
        calls.clear()
        for name in right:  # one after the other, because each fills the memory
            found.timings |= _whole(case, name, data, protocol)
    return found


def checked(case: Case, names: list[str], data: Data) -> tuple[dict[str, float], dict[str, Call]]:
    """The errors of the contenders, and the calls of those that are right.

    On a GPU, an error of at most twice the control's is right as well.
    """
    control = "" if case.device == "cpu" else "jax" if case.way == "jax" else "torch"
    wanted = oracle(case, data)
    calls: dict[str, Call] = {}
    errors: dict[str, list[float]] = {}
    for name in dict.fromkeys([*names, control] if control else names):
        call = CONTENDERS[name].make(case, data)
        if call is not None:
            calls[name], errors[name] = call, errors_of(case, data, call, wanted)
    bounds = [BOUNDS[case.device][case.type]] * len(wanted)
    controls = errors.get(control, [0.0] * len(wanted))
    right = {name for name in calls if all(map(within, errors[name], controls, bounds))}
    worst = {name: float(np.max(errors[name])) for name in names if name in errors}
    return worst, {name: calls[name] for name in names if name in right}


def within(error: float, control: float, bound: float) -> bool:
    """Whether an error is within the bound, or at most twice the control's."""
    return error <= max(2 * control, bound)


def _whole(case: Case, name: str, data: Data, protocol: Protocol) -> dict[str, Timing]:
    """All steps on a GPU, repeating those that were checked: jitted, or plain and as a CUDA
    graph."""
    x, dy = (np.resize(each, (case.row.T, *each.shape[1:])) for each in (data.x, data.dy))
    call = CONTENDERS[name].make(case, replace(data, x=x, dy=dy))
    assert call is not None
    if case.way == "jax":
        return measure({name: call}, protocol)
    from . import gpu

    gpu.free()
    graph = gpu.graphed(call)
    return measure({name: call, f"{name} graph": graph.replay}, protocol, gpu.on_device)


def oracle(case: Case, data: Data) -> list[Array]:
    """The results that every contender must give, in float64."""
    wide = Data(**{name: value.astype(np.float64) for name, value in vars(data).items()})
    if case.device == "cuda" and case.way != "jax":
        run = functions(replace(case, type="float64"), wide)
    else:
        run = functions(replace(case, device="cpu"), wide, "reference")
    return [_numpy(result) for result in run()]


def errors_of(case: Case, data: Data, call: Call, wanted: list[Array]) -> list[float]:
    """The relative error of every result, of all chunks if the data have several."""
    count = len(data.x) // case.row.T
    parts = [in_order(call()) for _ in range(count)]
    if len(parts[0]) != len(wanted):
        return [float("nan")] * len(wanted)
    errors = []
    for k, right in enumerate(wanted):
        shape = (len(right) // count, *right.shape[1:])
        whole = np.concatenate([as_array(case.row, part[k], shape) for part in parts])
        errors.append(relative_error(whole, right))
    return errors


def numbers(case: Case, seed: int) -> Data:
    """The row's arrays in float32; on a GPU with values that its type has."""
    chunks = _CHECKED_CHUNKS if case.way == "streamed" else 1
    data = make_data(replace(case.row, T=chunks * case.row.T), seed)
    if case.device == "cpu" or case.type == "float32":
        return data
    return Data(
        **{
            name: rounded(v) if case.type == "bfloat16" else v.astype("f2").astype("f4")
            for name, v in vars(data).items()
        }
    )


def in_order(results: Any) -> list[Any]:
    """A contender's results; one that keeps them in another layout returns a function."""
    found: list[Any] = results() if callable(results) else results
    return found


def as_array(row: Row, result: Any, shape: tuple[int, ...]) -> Array:
    """A contender's result in zstate's layout."""
    if isinstance(result, tuple):  # ONNX has y as [T,D,N,H]
        result = np.moveaxis(result[1], 1, 2)
    elif isinstance(result, list):
        result = np.concatenate([_numpy(part) for part in result])
    array = _numpy(result)
    if array.shape != shape and array.ndim == 3:  # PyTorch has states as [D,N,H]
        array = np.concatenate(list(array), axis=1)
    return array.reshape(shape)


def _numpy(value: Any) -> Array:
    """An array of any library; NumPy has no bfloat16 for torch."""
    found: Array = np.asarray(value.double().cpu() if hasattr(value, "cpu") else value)
    return found
