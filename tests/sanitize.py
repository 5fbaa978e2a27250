"""A few thousand random calls of the engine built with sanitizers, checked against the oracle.

Not a pytest module: the address sanitizer must be loaded before Python, so `make sanitize` builds
the engine with it and runs this script: python tests/sanitize.py MODULE [SECONDS] [SEED].
A bad access or undefined behaviour ends the process; a wrong number raises.
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


def main() -> None:
    native = load_module(Path(sys.argv[1]))
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else int(np.random.default_rng().integers(2**31))
    print(f"seed {seed}, instruction sets {native.supported_isas()}", flush=True)
    import zstate
    from zstate import verify

    rng = np.random.default_rng(seed)
    end, count = time.monotonic() + seconds, 0
    with np.errstate(all="ignore"):
        while time.monotonic() < end and count < 4000:
            native.use_isa(str(rng.choice(native.supported_isas())))
            zstate.set_num_threads(int(rng.integers(1, 4)))
            dtype = str(rng.choice(verify.FLOAT_TYPES))
            check(random_case(rng, verify, dtype), dtype, verify, seed + count)
            count += 1
    print(f"sanitize: {count} random calls, forward and backward, without a finding")


main()
