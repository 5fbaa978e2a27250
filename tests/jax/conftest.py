"""JAX with float64, and four devices to split a batch over, for every test of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
jax = pytest.importorskip("jax")


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)
