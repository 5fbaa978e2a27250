"""Every fast path of the native engine is right: random calls that know which ways they took, on
every instruction set; and the batches whose rows once landed in the wrong places."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import zstate.torch as zt
from zstate.backends import native

pytestmark = pytest.mark.skipif(
    native.unavailable() is not None, reason="built without a C++ compiler"
)
SCRIPT = Path(__file__).parent / "random_calls.py"


@pytest.mark.parametrize("half", [0, 1])
def test_random_calls_take_every_path(half: int, pytestconfig: pytest.Config) -> None:
    """On every instruction set by itself; every other one of them in a process of its own:
    importing zstate.torch changes the threads for good."""
    isas = native._native.supported_isas()[half::2]
    if not isas:
        pytest.skip("there is only one instruction set")
    seed = int(pytestconfig.option.hypothesis_seed) % 2**31
    command = [sys.executable, str(SCRIPT), "--isa", *isas, "--calls", "80", "--json"]
    found = subprocess.run(
        [*command, "--seed", str(seed)],
        env={**os.environ, "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    paths = json.loads(found.stdout)["paths"]
    assert set(paths) == set(isas)
    for isa, counts in paths.items():
        assert set(counts) == set(native._native.paths()), isa
        assert min(counts.values()) > 0, isa


# Lengths whose rows lie 4, 6, 7, 9, 12 places apart and the like: the first gap and the last row
# look evenly spaced, those between are not.
LENGTHS = [[7, 3, 5], [10, 3, 1], [12, 6, 9, 4, 7], [5, 4, 2, 1]]
BOUNDS = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("kind", [zt.RNN, zt.LSTM, zt.GRU])
@pytest.mark.parametrize("recorded", [False, True])
def test_rows_of_unequal_sequences(
    isa: str, dtype: torch.dtype, kind: type, recorded: bool
) -> None:
    torch.manual_seed(0)
    states = 2 if kind is zt.LSTM else 1
    for k, lengths in enumerate(LENGTHS):
        both = k % 2 == 1
        layer = kind(3, 17, bidirectional=both).to(dtype)
        x = torch.randn(max(lengths), len(lengths), 3, dtype=dtype)
        hx = [torch.randn(1 + both, len(lengths), 17, dtype=dtype) for _ in range(states)]
        with torch.set_grad_enabled(recorded):
            output, _ = layer(x, tuple(hx) if states == 2 else hx[0], torch.tensor(lengths))
            for n, length in enumerate(lengths):
                own = tuple(h[:, n : n + 1].contiguous() for h in hx)
                alone, _ = layer(x[:length, n : n + 1], own if states == 2 else own[0])
                assert not output[length:, n].any()
                torch.testing.assert_close(
                    output[:length, n], alone[:, 0], rtol=0, atol=BOUNDS[dtype]
                )
