"""These tests need a CUDA device and NVIDIA's cuda-core; `make test-gpu` runs them."""

from __future__ import annotations

import pytest

collect_ignore: list[str] = []
try:
    import torch
    from cuda.bindings import driver  # noqa: F401

    _REASON = None if torch.cuda.is_available() else "torch sees no CUDA device"
except ImportError as error:
    _REASON = str(error)
if _REASON is not None:
    collect_ignore = ["test_engine.py", "test_behaviour.py", "test_products.py", "test_bench.py"]
    collect_ignore += ["test_made_up.py", "test_graph.py"]


@pytest.fixture(autouse=True)
def full_precision() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.fixture(autouse=True)
def stop_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    from zstate import backends
    from zstate.backends.cuda import launch

    monkeypatch.setattr(launch, "DEBUG", True)
    backends.PREPARED.clear()  # what was prepared for a call is kept there
