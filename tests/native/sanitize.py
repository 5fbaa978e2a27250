"""A few thousand random calls of the engine built with sanitizers, checked against the oracle.

Not a pytest module: the address sanitizer must be loaded before Python, so `make sanitize` builds
the engine with it and runs this script: python tests/native/sanitize.py MODULE [SECONDS] [SEED].
A bad access or undefined behaviour ends the process; a wrong number raises. It stands in this
folder because Python looks for modules beside a script first, and tests/ has a folder torch.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


def load_module(path: Path) -> Any:
    """The sanitized module, in the place where the package looks for its own."""
    spec = importlib.util.spec_from_file_location("zstate._native", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["zstate._native"] = module
    spec.loader.exec_module(module)
    return module


def random_case(rng: np.random.Generator, verify: Any, dtype: str) -> Any:
    """A case of zstate.verify with random options, inputs and sizes, down to empty ones."""
    from zstate import Activation
    from zstate.layout import DESCRIPTORS

    kind = DESCRIPTORS[str(rng.choice(list(DESCRIPTORS)))]
    options: dict[str, Any] = {}
    for name in kind.__dataclass_fields__:
        if name.endswith("activation"):
            # What has no bound overflows the 16-bit types.
            kinds = [2, 3, 4] if dtype.endswith("16") else [0, 1, 2, 2, 3, 3, 4]
            options[name] = Activation(int(rng.choice(kinds)))
        else:
            options[name] = bool(rng.random() < 0.4)
    options["training"] = True
    optional = ("input_weight", "bias", "init_state", "init_cell", "mask", "peephole")
    more = ("secondary_bias", "state_gradient", "cell_gradient")
    without = frozenset(name for name in (*optional, *more) if rng.random() < 0.4)
    steps, batch, inputs = (int(rng.choice([0, 1, 1, 2, 3, 5])) for _ in range(3))
    hidden = int(rng.choice([1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 40]))
    batch = int(rng.choice([batch, 7, 13, 25]))
    inputs = int(rng.choice([inputs, 8, 17, 33]))
    both = 2 if options["bidirectional"] else 1
    shape = [s if rng.random() < 0.5 else 1 for s in (steps, batch, both * hidden)]
    mask = tuple(shape[int(rng.integers(0, 3)) :])
    return verify.Case(
        str(rng.integers(2**31)),
        kind(**options),
        without,
        (steps, batch, inputs, hidden),
        bool(rng.random() < 0.5),
        0.5,
        {"mask": mask},
    )


def check(case: Any, dtype: str, verify: Any, seed: int) -> None:
    error = verify.worst_error(case, "native", dtype, seed)
    # Wide bounds: the numbers are proven elsewhere, this is about memory. A NaN fails.
    if not error < {"float64": 1e-9, "float32": 1e-2}.get(dtype, 0.5):
        raise SystemExit(f"error {error} in {dtype}: {case}")


def call_packed(rng: np.random.Generator) -> None:
    """One call each way on sequences of different lengths: only its memory is looked at."""
    import zstate
    from zstate import operations
    from zstate.backends import native
    from zstate.layout import bind

    both = bool(rng.random() < 0.5)
    cells = {
        operations.LSTM_FORWARD: zstate.LSTMDescriptor(bidirectional=both, training=True),
        operations.GRU_FORWARD: zstate.GRUDescriptor(
            bidirectional=both, training=True, reset_after=bool(rng.random() < 0.5)
        ),
    }
    operation, descriptor = list(cells.items())[int(rng.integers(2))]
    lengths = np.sort(rng.integers(1, 9, int(rng.integers(1, 20))))[::-1]
    sizes = tuple((lengths[:, None] > np.arange(lengths[0])).sum(0).tolist())
    gates, D, dtype = len(operation.cell.gates), 1 + both, str(rng.choice(["f2", "f4", "f8"]))
    (I, H), T, N, M = rng.choice([1, 3, 8, 17, 33], 2).tolist(), len(sizes), sizes[0], sum(sizes)
    shapes = {
        "source": (M, I),
        "source_gradient": (M, D * H),
        "cell_output_fwd": (M, D * H),
        "output_fwd": (M, D * H),
        "cell_gradient": (M, D * H),
        "z_state": (M, D * gates * H),
        "recurrent_weight": (D, gates * H, H)[2 - D :],
        "input_weight": (D * gates * H, I),
        "init_state": (N, D * H),
        "init_cell": (N, D * H),
        "mask": (T, N, D * H),
    }
    for each in (operation, operations.OPERATIONS[f"{operation.name}_gradients"]):
        values = tuple(
            np.zeros(shapes[name], dtype) if name in shapes else None for name in each.inputs
        )
        # Checked as N sequences of T steps.
        whole = tuple(
            np.broadcast_to(value[:1], (T, N, value.shape[1]))
            if value is not None and len(value) == M and value.ndim == 2 and name not in _WEIGHTS
            else value
            for name, value in zip(each.inputs, values, strict=True)
        )
        native.packed(bind(each, whole, descriptor), values, sizes)


def call_graph_ops(rng: np.random.Generator) -> None:
    """One call of each operation for the graph, and of the product; their numbers are tested in
    test_graph.py and test_product.py."""
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
    product = native.product(rng.random((200, width)).astype(dtype), a.T)
    for array in (*both, back, *updated, total, taken, product):
        if not np.isfinite(array).all():
            raise SystemExit(f"{rows}, {width}, {table} in {dtype}: not finite")


_WEIGHTS = ("recurrent_weight", "input_weight", "init_state", "init_cell")


def main() -> None:
    native = load_module(Path(sys.argv[1]))
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else int(np.random.default_rng().integers(2**31))
    print(f"seed {seed}, instruction sets {native.supported_isas()}", flush=True)
    import zstate
    from zstate import verify

    zstate.set_kept_memory(0)  # what a call has given back is not to be touched again
    rng = np.random.default_rng(seed)
    end, count = time.monotonic() + seconds, 0
    with np.errstate(all="ignore"):
        while time.monotonic() < end and count < 4000:
            native.use_isa(str(rng.choice(native.supported_isas())))
            zstate.set_num_threads(int(rng.integers(1, 4)))
            dtype = str(rng.choice(verify.FLOAT_TYPES))
            check(random_case(rng, verify, dtype), dtype, verify, seed + count)
            call_packed(rng)
            call_graph_ops(rng)
            count += 1
    print(f"sanitize: {count} random calls, forward and backward, without a finding")


main()
