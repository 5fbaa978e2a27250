"""The engine on torch's OpenMP threads: the same bits, forks, threads that call at once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from zstate.backends import native
from zstate.torch.tensors import share_threads

pytestmark = pytest.mark.skipif(
    native.unavailable() is not None or not share_threads(),
    reason="without the native engine, or torch without an OpenMP that can be found",
)

COMMON = """
import hashlib, os, sys, threading
import numpy as np
import zstate as zs

def digest(threads):
    zs.set_num_threads(threads)
    rng = np.random.default_rng(0)
    x, R, W = (rng.normal(size=s).astype("f4") for s in [(9, 30, 48), (256, 64), (256, 48)])
    d = zs.LSTMDescriptor(training=True)
    h, c, z = zs.lstm(x, R, input_weight=W, descriptor=d)
    g = zs.lstm_gradients(x, R, h, z, c, input_weight=W, descriptor=d)
    return hashlib.sha256(b"".join(a.tobytes() for a in (h, c, z, g[0], g[1], g[2]))).hexdigest()
"""


def fresh(code: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", COMMON + code],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_same_bits_as_on_its_own_threads() -> None:
    own = fresh("print({digest(n) for n in (1, 2, 3)})")
    code = "import torch; torch.set_num_threads(2); torch.randn(999, 999).sum()\n"
    shared = fresh(
        "import zstate.torch\n"
        + code
        + "print({digest(n) for n in (1, 2, 3, torch.get_num_threads())})"
    )
    assert own == shared and len(own.split(",")) == 1


def test_a_forked_child_has_threads_of_its_own() -> None:
    """The runtime's threads do not exist in a child, and it would wait for them."""
    text = fresh(
        """
import zstate.torch
before = digest(2)
child = os.fork()
if child == 0:
    os._exit(0 if digest(2) == before else 1)
print(os.waitpid(child, 0)[1], digest(2) == before)
"""
    )
    assert text.split() == ["0", "True"]


def test_threads_that_call_at_once() -> None:
    text = fresh(
        """
import zstate.torch
wanted, found = digest(2), []
def call():
    for _ in range(20):
        found.append(digest(2))
threads = [threading.Thread(target=call) for _ in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(found), set(found) == {wanted})
"""
    )
    assert text.split() == ["120", "True"]


def test_without_openmp_the_engine_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.__config__, "parallel_info", lambda: "native thread pool")
    assert not share_threads()
