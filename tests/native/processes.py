"""Python in a process of its own, for what would disturb the tests around it."""

from __future__ import annotations

import os
import subprocess
import sys


def fresh(code: str, **environment: str | None) -> subprocess.CompletedProcess[str]:
    """With these variables of the environment; None takes one away."""
    variables = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={name: value for name, value in variables.items() if value is not None},
        timeout=120,
        check=False,
    )


LSTM = """
import os, numpy as np, zstate as zs
r = np.random.default_rng(0)
def lstm(T=4, N=2, H=32, **more):
    x, R = r.standard_normal((T, N, 4 * H), "f4"), r.standard_normal((4 * H, H), "f4")
    return x, R, zs.lstm(x, R, backend="native", **more)
"""
