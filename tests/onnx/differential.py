"""Random nodes through ONNX Runtime and through zstate.onnx, with sizes known and unknown.

A node whose sizes are unknown runs a second time, with one size changed wherever it stands.

``python -m tests.onnx.differential --count 50000 --seed 1`` runs it at length and prints what
differs; ``--case KIND:NUMBER`` repeats one. Where ONNX Runtime has no kernel, or refuses, the onnx
package's reference evaluator is the second opinion: zstate refuses too, or agrees with it.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import re
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnxruntime
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import zstate as zs
from tests.onnx.common import GATES
from tests.onnx.drawn_nodes import RECIPES, Case, draw_case
from zstate.onnx import load
from zstate.types import Array

MODES = ("known", "unknown", "named", "again")  # again: unknown, with a second run's sizes
_HALVES = ("float16", "bfloat16")
# Steps of a 16-bit type that a result computed in float32 and rounded once may be away.
_HALF_STEP = 0.5 * 1.05
_SUMS = ("MatMul", "Gemm", "Conv", "ReduceL1", "ReduceL2", "ReduceSum", "ReduceSumSquare")


def _is_empty(case: Case) -> bool:
    return any(not a.size for a in case.feeds.values())


def _has(test: Callable[[Array], Array]) -> Callable[[Case], bool]:
    """Whether ``test`` holds for a float that the node is fed."""
    return lambda case: any(
        bool(test(a.astype(np.float64)).any())
        for a in case.inputs
        if a is not None and a.dtype.kind not in "iub"
    )


def _is_far_backwards(case: Case) -> bool:
    if len(case.inputs) < 5:  # the last ones are steps
        return False
    _, _, ends, _, steps = (np.asarray(each) for each in case.inputs)
    return bool(((ends >= 2**31 - 1) & (steps < 0)).any())


def _is_large(case: Case) -> bool:
    return any(a.size > 20 for a in case.feeds.values())


_EMPTY = ("ONNX Runtime keeps an axis of an empty tensor that is given from the back", _is_empty)
_SKIPS = ("ONNX Runtime skips NaN where it does not come first", _has(np.isnan))
# Where the reference evaluator may be right instead of ONNX Runtime: why, and in which cases.
SIDED: dict[str, list[tuple[str, Callable[[Case], bool]]]] = {
    **{f"Reduce{name}": [_EMPTY] for name in ("L1", "L2", "LogSum", "Prod", "Sum", "SumSquare")},
    **{f"Reduce{name}": [_EMPTY, _SKIPS] for name in ("LogSumExp", "Max", "Min")},
    "ArgMax": [_EMPTY, _SKIPS],
    "ArgMin": [_EMPTY, _SKIPS],
    "Clip": [("ONNX Runtime takes a bound of NaN for none", _has(np.isnan))],
    "Gemm": [("ONNX Runtime forgets beta where there is nothing to multiply", _is_empty)],
    "LayerNormalization": [("its mean is NaN where it is infinite", _has(np.isinf))],
    "MatMul": [("ONNX Runtime does not broadcast empty batches", _is_empty)],
    "ReduceMean": [_EMPTY, ("of no elements ONNX Runtime gives 0", _is_empty)],
    "ReduceProd": [_EMPTY, ("in its order the product before a 0 may be infinite", _is_large)],
    "Slice": [("a last place of 2^31 - 1 is the first one, going backwards", _is_far_backwards)],
}
# What zstate refuses though ONNX Runtime computes it, as patterns of "KIND: message".
REFUSED = (
    r"^(RNN|LSTM|GRU): .* zstate does not (clip|couple)",
    r"ax[ie]s: expected an axis of .* \[empty\]$",  # ONNX Runtime looks at none
    r"at least one element.* \[empty\]$",  # an extreme, or a soft maximum, of none
    r"^Reduce(L2|LogSum|LogSumExp): .* float64, got u?int",
    r"^Squeeze: .* a size is unknown",  # the number of dimensions would depend on the run
    r"^Conv: .* (W: expected a known shape|known sizes, got an unknown one)",
    r"^PRelu: .* a shape that broadcasts to",  # ONNX Runtime broadcasts x as well
    r"^Tile: .* at least 1, got 0",
    r"^MatMul: .* a shape that broadcasts with .* \[empty\]$",  # ONNX Runtime looks at none
    r"^Concat: .* outside axis .* \[empty\]$",  # of another shape
    r"^Pad: .* with (reflect|clamp_to_edge) beside axis .* \[empty\]$",
)


@dataclass(frozen=True)
class Difference:
    """What zstate did otherwise, with sizes of one mode."""

    mode: str
    what: str


def runtime(case: Case) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        case.model("unknown").SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found: list[Array] = session.run(None, case.feeds)
    return found


# Where the reference evaluator is not what ONNX writes


class PRelu(OpRun):  # type: ignore[misc]
    """0 is not multiplied with the slope, which may be infinite."""

    def _run(self, x: Array, slope: Array) -> tuple[Array]:
        return (np.where(x < 0, slope * x, x).astype(x.dtype),)


class Slice(OpRun):  # type: ignore[misc]
    """Bounds are clamped to the axis before a step backwards, too."""

    def _run(
        self, x: Array, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None
    ) -> tuple[Array]:
        axes = range(len(starts)) if axes is None else axes
        for k, axis in enumerate(axes):
            size, step = x.shape[axis], 1 if steps is None else int(steps[k])
            low, high = (0, size) if step > 0 else (-1, size - 1)
            start, end = (int(v) + size * bool(v < 0) for v in (starts[k], ends[k]))
            places = range(min(max(start, 0), high), max(low, min(end, high)), step)
            x = np.take(x, np.array(places, np.int64), axis=axis)
        return (x,)


def reference(case: Case) -> list[Array]:
    found = ReferenceEvaluator(case.model(), new_ops=[PRelu, Slice]).run(None, case.feeds)
    return [np.asarray(each) for each in found]


def expected(case: Case) -> tuple[list[Array] | None, str]:
    """The results, or None for a refusal; and who says so."""
    try:
        return runtime(_widened(case)), "onnxruntime"
    except Exception as error:  # its exceptions have no common class of their own
        why = str(error)
    second = _second_opinion(case) if case.kind not in GATES else None  # it ignores lengths
    return (None, why) if second is None else (second, f"reference ({why[:100]})")


def _widened(case: Case) -> Case:
    """Of 16 bits, results are rounded once, from float32; casts and the ends of a type are not."""
    if case.kind in ("Cast", "CastLike", "Clip"):
        return case
    return replace(
        case,
        inputs=[
            a.astype(np.float32) if a is not None and a.dtype.name in _HALVES else a
            for a in case.inputs
        ],
    )


def actual(case: Case, mode: str) -> list[Array]:
    model = load(case.model("unknown" if mode == "again" else mode))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        if mode == "again":
            with contextlib.suppress(zs.ZStateError):
                model.run(case.feeds)
            case = case.resized()
        return list(model.run(case.feeds).values())


def compare(case: Case) -> tuple[list[Difference], list[str]]:
    """What differs, and the refusals of what ONNX Runtime computes."""
    differences: list[Difference] = []
    refusals: list[str] = []
    first, second = expected(case), expected(case.resized())
    for mode in MODES:
        at, (wanted, who) = (case.resized(), second) if mode == "again" else (case, first)
        try:
            found = actual(case, mode)
        except zs.ZStateError as error:
            if wanted is not None and who == "onnxruntime":
                refusals.append(f"{mode}: {error}")
                text = f"{case.kind}: {error}" + (" [empty]" if _is_empty(at) else "")
                if not any(re.search(pattern, text) for pattern in REFUSED):
                    differences.append(Difference(mode, f"refused: {error}"))
            continue
        except Exception as error:
            what = f"{type(error).__name__} instead of an error of zstate's: {error}"
            differences.append(Difference(mode, what))
            continue
        if wanted is None:
            what = f"gave {[a.shape for a in found]}, where a refusal is expected: {who}"
            differences.append(Difference(mode, what))
            continue
        what = _differences(at, found, wanted)
        if what and who == "onnxruntime" and any(fits(at) for _, fits in SIDED.get(case.kind, [])):
            other = _second_opinion(at)
            if other is not None and not _differences(at, found, other):
                continue
        if what:
            differences.append(Difference(mode, f"{what} [{who}]"))
    return differences, refusals


def _second_opinion(case: Case) -> list[Array] | None:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            found = reference(_widened(case))
        except Exception:  # of any kind, as its operators are plain NumPy
            return None
    if case.kind.startswith("Reduce"):  # NumPy widens sums of integers, which ONNX does not
        kind = case.feeds["x0"].dtype
        found = [a.astype(kind) if a.dtype.kind in "iu" else a for a in found]
        if case.kind == "ReduceMean" and kind.kind in "iu" and _is_empty(case):  # NaN as an integer
            found = [np.zeros_like(a) for a in found]
    if case.kind == "LayerNormalization":  # the mean and the scale are of stash_type
        found[1:] = [a.astype(np.float32) for a in found[1:]]
    return found


def _differences(case: Case, found: list[Array], wanted: list[Array]) -> str:
    pairs = enumerate(zip(found, wanted, strict=True))
    parts = [(k, _difference(case, ours, theirs)) for k, (ours, theirs) in pairs]
    return "; ".join(f"output {k}: {what}" for k, what in parts if what)


def _difference(case: Case, ours: Array, theirs: Array) -> str:
    if ours.shape != theirs.shape:
        return f"shape {ours.shape} for {theirs.shape}"
    half = ours.dtype.name in _HALVES and theirs.dtype == np.float32
    if ours.dtype != theirs.dtype and not half:
        return f"type {ours.dtype} for {theirs.dtype}"
    if ours.dtype.kind in "iub":
        return "" if np.array_equal(ours, theirs) else f"{ours.tolist()} for {theirs.tolist()}"
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    with np.errstate(all="ignore"):
        bound = _bound(case, ours.dtype, b, theirs.astype(ours.dtype).astype(np.float64))
        is_near = np.isfinite(b) & (abs(a - b) <= bound)
        fits = (a == b) | (np.isnan(a) & np.isnan(b)) | is_near
        if half:  # what float32 holds and 16 bits do not
            fits |= a == theirs.astype(ours.dtype).astype(np.float64)
    return "" if fits.all() else f"{ours.tolist()} for {theirs.tolist()}"


def _bound(case: Case, dtype: Any, wanted: Array, rounded: Array) -> Array:
    """How far a result may be away: some roundings of sums, of 16 bits half a step beside."""
    inputs = [abs(a.astype(np.float64)) for a in case.inputs if a is not None]
    tops = [float(a[np.isfinite(a)].max(initial=0)) for a in inputs] or [0.0]
    scale = max(1.0, *tops)
    if case.kind in _SUMS:
        scale = scale**2
    unit = 2e-14 if dtype == np.float64 else 4e-6
    if case.kind in ("LayerNormalization", "BatchNormalization"):
        unit *= 300  # 1 / √epsilon
        scale = scale**2
    bound = unit * np.maximum(abs(wanted), scale)
    if dtype.name in _HALVES:
        bits = {"float16": 10, "bfloat16": 7}[dtype.name]
        exponent = np.floor(np.log2(np.where(wanted == 0, 1, abs(wanted))))
        step = np.exp2(np.maximum(exponent, {"float16": -14, "bfloat16": -126}[dtype.name]) - bits)
        bound = bound / 4 + _HALF_STEP * step
    return bound


def drawn(kind: str, number: int, seed: int) -> Case:
    return draw_case(np.random.default_rng([seed, zlib.crc32(kind.encode()), number]), kind)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="comparisons: nodes times modes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", help="operators")
    parser.add_argument("--show", type=int, default=3, help="differences to print per operator")
    parser.add_argument("--case", help="KIND:NUMBER, with the values")
    parser.add_argument("--refusals", action="store_true")
    arguments = parser.parse_args()
    if arguments.case:
        kind, number = arguments.case.split(":")
        case = drawn(kind, int(number), arguments.seed)
        print(case, *[f"x{k} = {a!r}" for k, a in enumerate(case.inputs)], sep="\n")
        print(*expected(case), *compare(case), sep="\n")
        return
    kinds = arguments.only or sorted(RECIPES)
    found: dict[str, int] = collections.Counter()
    refused: dict[str, int] = collections.Counter()
    total = 0
    while total < arguments.count:
        kind, number = kinds[total // len(MODES) % len(kinds)], total // len(MODES) // len(kinds)
        case = drawn(kind, number, arguments.seed)
        differences, refusals = compare(case)
        for refusal in refusals:
            refused[kind] += 1
            if arguments.refusals and refused[kind] <= arguments.show:
                print("refused", f"{kind}:{number}", case, refusal, sep=" | ")
        if differences:
            found[kind] += 1
            if found[kind] <= arguments.show:
                print(f"{kind}:{number}", case, *differences, sep="\n    ", flush=True)
        total += len(MODES)
    print(f"{total} comparisons, seed {arguments.seed}: {sum(found.values())} nodes differ")
    print("differ:", dict(found))
    print("refused though ONNX Runtime computes them:", dict(refused))


if __name__ == "__main__":
    main()
