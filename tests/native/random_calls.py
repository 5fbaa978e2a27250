"""Random calls of the native engine, checked against the reference, that know which ways they took.

Every fast path of the engine marks itself (csrc/runtime/paths.h). ``check_random_call`` draws a
call whose size is meant for one of the paths and whose cell, options, inputs, float type, lengths,
threads and repetition are random, compares every result with the reference backend in float64, and
returns the paths that it took. As a script, it makes many calls in a process of its own and fails
if a path was never taken:

    python tests/native/random_calls.py [--isa NAME …] [--calls N] [--seconds S] [--seed S]

Some of the cells are made up (tests/cells/made_up.py). The tests run it for every instruction set,
`make sanitize` under the sanitizers. With `--cells N` all N calls are of such cells, in every float
type and on each instruction set in turn; all failures are reported, each with the number that draws
it again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import zstate as zs
from zstate import backends, operations
from zstate.backends import native
from zstate.cells import CELLS, Cell
from zstate.extensions import extended
from zstate.layout import bind
from zstate.operations import Operation, operations_of
from zstate.types import float_dtype

if __package__ in (None, ""):  # as a script; not tests/ itself, which has a folder torch
    sys.path.append(str(Path(__file__).parents[2]))
from tests.cells.made_up import make

Rng = np.random.Generator
Arrays = dict[str, Any]
_FORWARDS = (operations.SINGLE_GATE_RNN, operations.LSTM_FORWARD, operations.GRU_FORWARD)
_NEED_TORCH = frozenset({"team_of_openmp", "known_call_on_tensors"})
_KEEPING = frozenset({"forget_gate_activation", "update_gate_activation"})
# Largest error over the largest value, of results and of gradients: rounding of sums, then of
# storage. A misplaced row is wrong by its own size.
_BOUNDS = {
    "float64": (1e-11, 1e-10),
    "float32": (2e-5, 1e-4),
    "float16": (4e-3, 8e-3),
    "bfloat16": (3e-2, 6e-2),
}

# Sizes T, N, I, H (least and most of each) for the paths that depend on them.
_SIZES: dict[str, tuple[tuple[int, int], ...]] = {
    "empty": ((0, 1), (0, 2), (0, 3), (1, 20)),
    "small": ((1, 12), (1, 9), (1, 40), (1, 70)),
    "few sequences": ((3, 12), (2, 7), (1, 5), (1, 40)),
    "few rows": ((1, 3), (1, 1), (1, 60), (1, 60)),
    "one step": ((1, 1), (1, 6), (1, 40), (1, 60)),
    "one sequence": ((4, 30), (1, 1), (1, 40), (1, 90)),
    "many sequences": ((2, 6), (64, 90), (1, 30), (1, 40)),
    "many rows": ((50, 70), (36, 44), (1, 20), (64, 72)),
    "wide input": ((2, 4), (2, 9), (515, 700), (3, 40)),
    "wide layer": ((2, 4), (2, 5), (3, 9), (70, 130)),
}
# Weights beyond the caches: rare, since the reference takes its time.
_LARGE: dict[str, tuple[tuple[int, int], ...]] = {
    "large weights, one row": ((1, 1), (1, 1), (1024, 1100), (1024, 1060)),
    "large weights": ((2, 2), (2, 3), (450, 470), (1200, 1230)),
}


@lru_cache(maxsize=256)
def by_step(cell: Cell) -> frozenset[str]:
    """What has a row per step and sequence."""
    states = {name for s in cell.states for name in (s.name, s.output, s.gradient)}
    return frozenset({"source", "z_state", "training_state", *states})


@lru_cache(maxsize=256)
def by_sequence(cell: Cell) -> frozenset[str]:
    """What has a row per sequence."""
    return frozenset({"state_gradient", *(state.initial for state in cell.states)})


@dataclass(frozen=True)
class Draw:
    """One call: T steps of N sequences, I inputs, H units; ``lengths`` where they differ."""

    operation: Operation
    descriptor: Any
    dtype: str
    size: tuple[int, int, int, int]
    present: frozenset[str]
    lengths: tuple[int, ...] = ()

    @property
    def directions(self) -> int:
        return 2 if self.descriptor.bidirectional else 1


def draw(
    rng: Rng, sizes: dict[str, tuple[tuple[int, int], ...]], kind: str, made_up: float = 0.2
) -> Draw:
    """``made_up``: how often the cell is one that nobody has written."""
    operation = _FORWARDS[int(rng.integers(3))]
    dtype = str(rng.choice(["float32", "float32", "float64", "float16", "bfloat16"]))
    if rng.random() < made_up and kind not in _LARGE:
        # At a kink or a jump, rounding decides.
        operation, _ = operations_of(make(rng, smooth=dtype != "float64", means=0.2))
    T, N, I, H = (int(rng.integers(low, high + 1)) for low, high in sizes[kind])
    large = kind in _LARGE
    if large and operation is operations.SINGLE_GATE_RNN:
        operation = operations.LSTM_FORWARD
    options: dict[str, Any] = {}
    usual = rng.random() < 0.5
    for name in operation.cell.descriptor.__dataclass_fields__:
        if name.endswith("activation"):
            # Bounded, and a gate that keeps the state is never negative: else the 16-bit types
            # overflow.
            kinds = [3, 4] if name in _KEEPING else [2, 3, 4]
            if not usual or operation is operations.SINGLE_GATE_RNN:
                options[name] = zs.Activation(int(rng.choice(kinds)))
        elif name != "heads":
            options[name] = bool(rng.random() < 0.5)
        elif operation.cell in CELLS and rng.random() < 0.15 and not large:
            options[name] = int(rng.integers(2, 5))
            H = options[name] * max(H // options[name], 1)
    if kind == "large weights":
        options["bidirectional"], dtype = True, "float32"
    optional = [name for name in operation.inputs if name not in operation.required]
    present = {name for name in optional if rng.random() < 0.5} | set(operation.required)
    if kind == "large weights":
        present.add("input_weight")
    if not options.get("reset_after"):
        present.discard("secondary_bias")
    if rng.random() < 0.5:
        present.discard("resets")  # which change what is computed in one place
    lengths: tuple[int, ...] = ()
    if rng.random() < 0.5 and not large and T * N > 0:
        options["reverse"] = False  # lengths are given for one direction or both, forwards
        # Long ones, short ones and ties, in any mixture; the longest has T.
        drawn = rng.integers(1, T + 1, N)
        drawn[int(rng.integers(N))] = T
        lengths = tuple(sorted(drawn.tolist(), reverse=True))
    descriptor = operation.cell.descriptor(**options)
    return Draw(operation, descriptor, dtype, (T, N, I, H), frozenset(present), lengths)


def make_inputs(rng: Rng, d: Draw) -> Arrays:
    """Random inputs of the forward operation, by name; none of them zero."""
    T, N, I, H = d.size
    D, G = d.directions, len(d.operation.cell.gates)
    rows = (sum(d.lengths),) if d.lengths else (T, N)
    shapes = {
        "source": (*rows, I if "input_weight" in d.present else D * G * H),
        "recurrent_weight": _weight_shape(d, G, H),
        "input_weight": (D * G * H, I),
        "bias": (D * G * H,),
        "shift": (D * H,),
        "scale": (D, G * H)[2 - D :],
        **{state.initial: (N, D * H) for state in d.operation.cell.states},
        "peephole": (D, G * H)[2 - D :],
        "secondary_bias": (D * H,),
        "mask": tuple(n if rng.random() < 0.5 else 1 for n in (T, N, D * H)),
    }
    # So small that the layer forgets: one that amplifies would amplify rounding too.
    scales = {
        "recurrent_weight": 0.4 / H**0.5,
        "input_weight": 0.7 / max(I, 1) ** 0.5,
        "peephole": 0.2,
        "scale": 0.2,
    }
    found = {
        name: _array(rng, shapes[name], d.dtype, scales.get(name, 0.6))
        for name in d.operation.inputs
        if name in d.present and name != "resets"
    }
    if "resets" in d.present:
        found["resets"] = rng.random((T, N)) < 0.3
        if d.lengths:  # none behind a sequence's end
            found["resets"] &= np.arange(T)[:, None] < np.array(d.lengths)
    return found


def _weight_shape(d: Draw, gates: int, hidden: int) -> tuple[int, ...]:
    heads = d.descriptor.heads
    units = hidden // heads
    blocks = (heads, gates * units, units)[heads == 1 :]
    return (2, *blocks) if d.directions == 2 else blocks


def _array(rng: Rng, shape: tuple[int, ...], dtype: str, scale: float) -> Any:
    values = rng.standard_normal(shape).astype(np.float32) * np.float32(scale)
    array = values.astype(float_dtype(dtype))
    # Now and then an array that the engine cannot walk as it is.
    return np.asfortranarray(array) if rng.random() < 0.15 else array


def function_of(operation: Operation) -> Any:
    """The function of the interface, or what it does for a cell that has none."""
    if operation.cell in CELLS:
        return getattr(zs, operation.name)

    def function(descriptor: Any, backend: str | None = None, **inputs: Any) -> Any:
        values = tuple(inputs.get(name) for name in operation.inputs)
        values, _ = extended(operation, values, descriptor, 1)
        return backends.prepare(operation, values, descriptor, backend or "native").run(values)

    return function


def on_native(d: Draw, operation: Operation, inputs: Arrays, rng: Rng) -> Arrays:
    """The results of one call of the engine, by name; equal lengths are called several ways."""
    values = tuple(inputs.get(name) for name in operation.inputs)
    if d.lengths:
        if "resets" in inputs:
            dtype = inputs["source"].dtype
            like = np.zeros((*inputs["resets"].shape, 1), dtype)
            *_, resets = extended(operation, (like, inputs["resets"]), d.descriptor, 1)[0]
            values = (*values[:-1], resets)
        T, N = d.size[:2]
        sizes = tuple(sum(length > t for length in d.lengths) for t in range(T))
        # Checked as if no step were missing.
        whole = tuple(
            np.broadcast_to(value[:1], (T, N, value.shape[-1]))
            if name in by_step(operation.cell)
            else value
            for name, value in zip(operation.inputs, values, strict=True)
            if value is not None
        )
        names = [n for n, v in zip(operation.inputs, values, strict=True) if v is not None]
        by_name = dict(zip(names, whole, strict=True))
        layout = bind(operation, tuple(map(by_name.get, operation.inputs)), d.descriptor)
        packed = native.packed(layout, values, sizes)
        return {name: value for name, value in packed._asdict().items() if value is not None}
    function = function_of(operation)
    first = function(**inputs, descriptor=d.descriptor)
    again = function(**inputs, descriptor=d.descriptor)
    named = {name: value for name, value in first._asdict().items() if value is not None}
    for name, value in again._asdict().items():
        assert (value is None) == (name not in named)
        if value is not None and value.tobytes() != named[name].tobytes():
            raise AssertionError(f"{name}: a repeated call gives other bits: {d}")
    if "zstate.torch" in sys.modules and d.dtype != "bfloat16" and operation.cell in CELLS:
        _same_on_tensors(d, function, inputs, named)
    return named


def _same_on_tensors(d: Draw, function: Any, inputs: Arrays, named: Arrays) -> None:
    import torch

    tensors = {name: torch.from_numpy(value) for name, value in inputs.items()}
    for _ in range(2):
        for name, value in function(**tensors, descriptor=d.descriptor)._asdict().items():
            if value is not None and value.numpy().tobytes() != named[name].tobytes():
                raise AssertionError(f"{name}: tensors give other bits: {d}")


def on_reference(d: Draw, operation: Operation, inputs: Arrays, dtype: str = "float64") -> Arrays:
    """The same in float64 on the reference backend; different lengths, sequence by sequence."""
    wide = {name: np.asarray(value, dtype=dtype) for name, value in inputs.items()}
    function = function_of(operation)

    def run(tensors: Arrays) -> Arrays:
        result = function(**tensors, descriptor=d.descriptor, backend="reference")
        named = zip(operation.result._fields, result, strict=True)
        return {name: value for name, value in named if value is not None}

    if not d.lengths:
        return run(wide)
    T, N = d.size[:2]
    sizes = [sum(length > t for length in d.lengths) for t in range(T)]
    starts = np.cumsum([0, *sizes])
    joined: Arrays = {}
    for n, length in enumerate(d.lengths):
        rows = starts[:length] + n
        own = {
            name: _of_sequence(operation.cell, name, value, rows, n, N)
            for name, value in wide.items()
        }
        for name, value in run(own).items():
            _join(joined, operation.cell, name, value, rows, n, int(starts[-1]), N)
    return joined


def _of_sequence(cell: Cell, name: str, value: Any, rows: Any, n: int, N: int) -> Any:
    if name in by_step(cell):
        return value[rows][:, None]
    if name in by_sequence(cell):
        return value[n : n + 1]
    if name == "resets":
        return value[: len(rows), n : n + 1]
    if name == "mask":
        value = value[: len(rows)] if value.shape[0] > 1 else value
        return value[:, n : n + 1] if value.shape[1] == N else value
    return value


def _join(
    joined: Arrays, cell: Cell, name: str, value: Any, rows: Any, n: int, total: int, N: int
) -> None:
    if name in by_step(cell):
        whole = joined.setdefault(name, np.zeros((total, value.shape[-1])))
        whole[rows] = value[:, 0]
    elif name in by_sequence(cell):
        joined.setdefault(name, np.zeros((N, value.shape[-1])))[n] = value[0]
    else:
        joined[name] = joined.get(name, 0) + value


def compare(d: Draw, found: Arrays, wanted: Arrays, bound: float) -> None:
    assert found.keys() == wanted.keys(), (d, found.keys(), wanted.keys())
    for name, value in wanted.items():
        mine = np.asarray(found[name], dtype=np.float64)
        if mine.shape != value.shape:
            raise AssertionError(f"{name}: shape {mine.shape}, not {value.shape}: {d}")
        error = np.abs(mine - value).max(initial=0.0)
        if not error <= bound * max(np.abs(value).max(initial=0.0), 1e-3):  # a NaN fails too
            raise AssertionError(f"{name}: off by {error}: {d}")


def _is_tame(d: Draw, inputs: Arrays, wanted: Arrays) -> bool:
    """Whether no state grows and grows, one that the call does not return included, and rounding
    does not either: in some cells it doubles at every step."""
    if not d.descriptor.training:
        every = replace(d, descriptor=replace(d.descriptor, training=True))
        wanted = on_reference(every, d.operation, inputs)
    if not all(np.abs(value).max(initial=0.0) < 30 for value in wanted.values()):
        return False
    if d.dtype != "float32":
        return True
    rounded = on_reference(d, d.operation, inputs, "float32")
    off = max(np.abs(rounded[name] - wanted[name]).max(initial=0.0) for name in rounded)
    return bool(off < _BOUNDS[d.dtype][0] / 4)


def check_random_call(rng: Rng, d: Draw) -> bool:
    """The forward operation, with or without training, and then its gradients; False where the cell
    grows too fast to be compared.
    """
    forward, gradient = _BOUNDS[d.dtype]
    inputs = make_inputs(rng, d)
    results = on_native(d, d.operation, inputs, rng)
    wanted = on_reference(d, d.operation, inputs)
    if d.operation.cell not in CELLS and not _is_tame(d, inputs, wanted):
        return False
    compare(d, results, wanted, forward)
    if not d.descriptor.training:
        return True
    cell = d.operation.cell
    _, operation = operations_of(cell)
    D, (_, N, _, H) = d.directions, d.size
    back = dict(inputs)
    # The reference gets what the engine saved, so that both differentiate the same.
    back |= {name: results[result] for name, result in cell.fed_back.items()}
    for state in cell.states:
        for name in dict.fromkeys((state.gradient, state.last_gradient)):
            if rng.random() < 0.5 and name not in operation.required:
                last = name != state.gradient or (rng.random() < 0.5 and not d.lengths)
                last &= name == state.last_gradient
                shape = (N, D * H) if last else results["state"].shape
                back[name] = _array(rng, shape, d.dtype, 0.6)
    back["source_gradient"] = _array(rng, results["state"].shape, d.dtype, 0.6)
    back = {name: back[name] for name in operation.inputs if name in back}
    compare(d, on_native(d, operation, back, rng), on_reference(d, operation, back), gradient)
    return True


_OF_MADE_UP = ("small", "few sequences", "few rows", "one step", "one sequence", "empty")


def draw_made_up(number: int) -> tuple[Rng, Draw]:
    """A call of a cell that nobody has written, now and then with heads; and what draws its inputs.
    The same for the same number."""
    rng, further = np.random.default_rng(number), np.random.default_rng([number, 1])
    d = draw(rng, _SIZES, _OF_MADE_UP[number % len(_OF_MADE_UP)], made_up=1.0)
    heads = int(further.integers(2, 5)) if further.random() < 0.15 else 1
    *sizes, H = d.size
    T, N, I = sizes
    if heads > 1:  # of one unit: R is a parameter then, which needs one text for all calls
        H = heads * max(H // heads, 2)
    size = (T, N, I, H)
    return rng, replace(d, descriptor=replace(d.descriptor, heads=heads), size=size)


def check_made_up(number: int, threads: int) -> tuple[Draw, bool]:
    """One such call, and whether it was compared."""
    rng, d = draw_made_up(number)
    before = zs.get_num_threads()
    zs.set_num_threads(threads)
    try:
        with np.errstate(all="ignore"):  # one that grows and grows is not compared
            return d, check_random_call(rng, d)
    finally:
        zs.set_num_threads(before)


def run_made_up(count: int, seconds: float, seed: int, isas: list[str]) -> int:
    """Many of them, with a line of progress every ten seconds; the number of failures."""
    os.environ.setdefault("ZSTATE_ALWAYS_SHARE", "1")
    counts: Counter[str] = Counter()
    begin = shown = time.monotonic()
    done = failures = 0
    for number in range(seed, seed + count):
        isa, threads = isas[number % len(isas)], 1 + number // len(isas) % 3
        native._native.use_isa(isa)
        try:
            d, compared = check_made_up(number, threads)
        except Exception as failure:
            failures += 1
            print(f"number {number}, {isa}, {threads} threads: {failure!r}", flush=True)
        else:
            heads = "heads" if d.descriptor.heads > 1 else "one head"
            gradients = "gradients too" if d.descriptor.training else "forward alone"
            seen = (isa, d.dtype, heads, gradients if compared else "grows too fast to be compared")
            counts.update(seen)
        done += 1
        now = time.monotonic()
        if now - shown > 10:
            shown = now
            rate = done / (now - begin)
            print(f"{done} of {count}, {failures} failures, {rate:.0f} per second", flush=True)
        if now - begin > seconds:
            break
    for what, times in sorted(counts.items()):
        print(f"{what:40} {times:6}")
    print(
        f"{done} calls of made-up cells, numbers {seed} to {seed + done - 1}: {failures} failures"
    )
    return failures


def check_random_product(rng: Rng, transposed: int) -> None:
    """A matrix product with its operands row-major (0), the first (1) or the second transposed."""
    rows, columns, length = (int(n) for n in rng.choice([1, 7, 33, 100, 300], 3))
    rows = max(rows, -(-(1 << 18) // (columns * length)))  # smaller ones are NumPy's
    dtype = rng.choice(["f4", "f8"])
    a = rng.standard_normal((rows, length)).astype(dtype)
    b = rng.standard_normal((length, columns)).astype(dtype)
    wanted = a.astype("f8") @ b.astype("f8")
    a = np.asfortranarray(a) if transposed == 1 else a
    b = np.asfortranarray(b) if transposed == 2 else b
    error = np.abs(native.product(a, b) - wanted).max()
    if not error <= (1e-4 if dtype == "f4" else 1e-12) * length:
        raise AssertionError(f"product {rows}x{length}x{columns} {dtype}: off by {error}")


class Runner:
    """Makes calls one after the other and counts how many of them took each path."""

    def __init__(self, module: Any, seed: int, seconds: float) -> None:
        os.environ.setdefault("ZSTATE_ALWAYS_SHARE", "1")  # all its threads for every call
        self.module, self.rng = module, np.random.default_rng(seed)
        self.end = time.monotonic() + seconds
        self.counts: Counter[str] = Counter()
        self.calls = 0
        self.impossible: frozenset[str] = frozenset()  # the paths that need what is not installed

    def out_of_time(self) -> bool:
        return time.monotonic() > self.end

    def missed(self) -> list[str]:
        possible = [path for path in self.module.paths() if path not in self.impossible]
        return [path for path in possible if not self.counts[path]]

    def count(self, call: Any, *arguments: Any) -> None:
        self.module.forget_paths()
        zs.set_num_threads(int(self.rng.integers(1, 4)))
        call(*arguments)
        self.counts.update(self.module.paths_taken())
        self.calls += 1

    def run(self, calls: int, isas: list[str]) -> None:
        kinds = list(_SIZES)  # in turn: every path gets its sizes, however few calls there are
        for k in range(calls):
            if self.out_of_time():
                return
            self.module.use_isa(isas[k // len(kinds) % len(isas)])
            d = draw(self.rng, _SIZES, kinds[k % len(kinds)])
            self.count(check_random_call, self.rng, d)
            self.count(check_random_product, self.rng, k % 3)

    def run_large(self, isas: list[str]) -> None:
        for isa in isas:
            self.module.use_isa(isa)
            for kind in _LARGE:
                drawn = draw(self.rng, _LARGE, kind)
                trained = replace(drawn.descriptor, training=True)
                self.count(check_random_call, self.rng, replace(drawn, descriptor=trained))

    def run_beside_others(self, calls: int) -> None:
        """Calls from several threads beside one that holds the team most of the time."""
        failures: list[BaseException] = []
        ended = threading.Event()
        shapes = ((100, 64, 512), (512, 128))
        x, R = (_array(self.rng, shape, "float32", 0.1) for shape in shapes)
        wanted = zs.lstm(x, R, backend="native").state

        def hold() -> None:
            while not ended.is_set():
                if not np.array_equal(zs.lstm(x, R, backend="native").state, wanted):
                    failures.append(AssertionError("a call beside others gave other numbers"))
                    return

        def work(seed: int) -> None:
            rng = np.random.default_rng(seed)
            try:
                for _ in range(calls):
                    check_random_call(rng, draw(rng, _SIZES, "many rows"))
            except BaseException as failure:
                failures.append(failure)

        self.module.forget_paths()
        zs.set_num_threads(2)
        threads = [
            threading.Thread(target=work, args=(int(s),)) for s in self.rng.integers(2**31, size=3)
        ]
        holder = threading.Thread(target=hold)
        for thread in (holder, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        ended.set()
        holder.join()
        if failures:
            raise failures[0]
        self.counts.update(self.module.paths_taken())
        self.calls += 3 * calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--isa",
        nargs="+",
        help="instruction sets, each of which must take every path; without, all of this machine's "
        "in turn, which take them together",
    )
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--cells", type=int, metavar="N", help="N calls of made-up cells instead")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    options = parser.parse_args()
    seed = (
        options.seed if options.seed is not None else int(np.random.default_rng().integers(2**31))
    )
    print(f"seed {seed}", file=sys.stderr, flush=True)
    module = native._native
    if options.cells is not None:
        isas = options.isa or module.supported_isas()
        raise SystemExit(bool(run_made_up(options.cells, options.seconds, seed, isas)))
    groups = [[isa] for isa in options.isa] if options.isa else [module.supported_isas()]
    runners = [(Runner(module, seed + k, options.seconds), isas) for k, isas in enumerate(groups)]
    for runner, isas in runners:
        runner.run(options.calls // 2, isas)
        runner.run_large(isas)
        runner.run_beside_others(2)
    if find_spec("torch"):
        import zstate.torch  # noqa: F401, from here on the engine computes on torch's threads
    else:
        for runner, _ in runners:
            runner.impossible = _NEED_TORCH
    for runner, isas in runners:
        runner.run(options.calls - options.calls // 2, isas)
        while runner.missed() and runner.calls < 10 * options.calls and not runner.out_of_time():
            runner.run(len(_SIZES), isas)
    named = [(", ".join(isas), runner) for runner, isas in runners]
    counts = {name: {p: each.counts[p] for p in module.paths()} for name, each in named}
    if options.json:
        print(json.dumps({"calls": sum(each.calls for _, each in named), "paths": counts}))
    for name, runner in named:
        if not options.json:
            for path, count in counts[name].items():
                print(f"{path:40} {count:6}")
            print(f"{runner.calls} calls, all right, on {name}")
        if runner.missed() and not runner.out_of_time():
            missed = ", ".join(runner.missed())
            raise SystemExit(f"seed {seed}: no call took {missed} on {name}")


if __name__ == "__main__":
    main()
