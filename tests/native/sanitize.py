"""The random calls of random_calls.py on the engine built with sanitizers.

Not a pytest module: the address sanitizer must be loaded before Python, so `make sanitize` builds
the engine with it and runs this script: python tests/native/sanitize.py MODULE [SECONDS] [SEED].
A bad access or undefined behaviour ends the process, a wrong number raises, and so does a path of
the engine that no call took. It stands in this folder because Python looks for modules beside a
script first, and tests/ has a folder torch.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np

# PyTorch is not loaded here.
_NEED_TORCH = {"known_call_on_tensors", "team_of_openmp"}


def load_module(path: Path) -> Any:
    """The sanitized module, in the place where the package looks for its own."""
    spec = importlib.util.spec_from_file_location("zstate._native", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["zstate._native"] = module
    spec.loader.exec_module(module)
    return module


def call_graph_ops(rng: np.random.Generator) -> None:
    """One call of each operation for the graph; their numbers are tested in test_graph.py."""
    from zstate.backends import native

    dtype = str(rng.choice(["f4", "f8"]))
    rows, width, table = (int(rng.choice([1, 2, 7, 8, 17, 33, 100])) for _ in range(3))
    a, b = rng.random((2, rows, width)).astype(dtype)
    places = rng.integers(0, table, rows)
    factor = b[:, :1].copy() if rng.random() < 0.5 else 0.5
    both = native.fused("soft_max_cross_entropy", a, b)
    back = native.fused("soft_max_cross_entropy_gradient", factor, a, b)
    arrays = (a, b, a, b, *([a] if rng.random() < 0.5 else []))
    updated = native.fused("adam", arrays, (0.1, 0.9, 0.1, 0.99, 0.01, 1e-8))
    total = native.fused("add_rows", a, places, table)
    taken = native.fused("take_rows", total, places)
    padded = native.unpack_rows(a, np.arange(rows), 2, rows)
    packed = native.pack_rows(padded, np.arange(rows))
    for array in (*both, back, *updated, total, taken, packed):
        if not np.isfinite(array).all():
            raise SystemExit(f"{rows}, {width}, {table} in {dtype}: not finite")


def call_prepared(rng: np.random.Generator) -> None:
    """Layers with packed weights, of each kind."""
    from tests.prepared.drawn import check_random_stack

    for weights in ("float32", "bfloat16", "int8"):
        check_random_stack(rng, weights)


def main() -> None:
    native = load_module(Path(sys.argv[1]))
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else int(np.random.default_rng().integers(2**31))
    isas = native.supported_isas()
    print(f"seed {seed}, instruction sets {isas}", flush=True)
    import zstate

    runner = importlib.import_module("random_calls").Runner(native, seed, seconds)
    with np.errstate(all="ignore"):
        runner.run_large(isas)
        runner.run_beside_others(1)
        runner.run(20, isas)  # in blocks that are kept
        zstate.set_kept_memory(0)  # what a call has given back is not to be touched again
        while not runner.out_of_time() and runner.calls < 4000:
            runner.run(20, isas)
            call_graph_ops(runner.rng)
            call_prepared(runner.rng)
        runner.end += 2 * seconds
        while set(runner.missed()) - _NEED_TORCH and not runner.out_of_time():
            runner.run(20, isas)
    missed = set(runner.missed()) - _NEED_TORCH
    if missed:
        raise SystemExit(f"seed {seed}: no call took {', '.join(sorted(missed))}")
    print(f"sanitize: {runner.calls} random calls, every path taken, without a finding")


main()
