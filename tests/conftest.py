"""One seed for the whole run, printed in the header, so that a failing run can be repeated; and the
native engine of every instruction set, for the tests that ask for one.

ZSTATE_TEST_SEED=<the number> repeats a run; without it, every run draws a fresh seed.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import zstate as zs
from zstate.backends import native

try:
    import torch
except ModuleNotFoundError:  # in an emulator: tools/arm.py
    torch = None  # type: ignore[assignment]

# A run in the background may ignore Ctrl-C, and would hand that down to what its tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A test that asks for threads gets them, however little there is to share.
os.environ.setdefault("ZSTATE_ALWAYS_SHARE", "1")

settings.register_profile(
    "zstate",
    deadline=None,
    max_examples=100 * int(os.environ.get("ZSTATE_SOAK", "1")),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("zstate")
if torch:
    torch.set_num_threads(1)  # the tensors are tiny, and the workers share the cores


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Runs before hypothesis reads its option; a worker takes the seed of the run it is part of."""
    given = getattr(config, "workerinput", {}).get("seed") or config.option.hypothesis_seed
    seed = given or os.environ.get("ZSTATE_TEST_SEED") or secrets.randbelow(2**32)
    config.option.hypothesis_seed = str(seed)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hands the seed to a worker of pytest-xdist."""
    node.workerinput["seed"] = node.config.option.hypothesis_seed


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: ZSTATE_TEST_SEED={config.option.hypothesis_seed}"


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Below the failures too: a quiet run has no header, and a cut log no beginning."""
    if exitstatus == pytest.ExitCode.TESTS_FAILED:
        terminalreporter.write_line(pytest_report_header(config))


@pytest.fixture(autouse=True)
def seeded(pytestconfig: pytest.Config) -> None:
    """Tensors that a test draws without a seed of its own come from the run's."""
    if torch:
        torch.manual_seed(int(pytestconfig.option.hypothesis_seed))


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """No test leaves its threads to the next ones, whose tiny calls would wait for them."""
    before = zs.get_num_threads(), torch and torch.get_num_threads()
    yield
    if (zs.get_num_threads(), torch and torch.get_num_threads()) != before:
        zs.set_num_threads(before[0])
        if torch:
            torch.set_num_threads(before[1])


@pytest.fixture(params=[] if native.unavailable() else native._native.supported_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set that this machine and build have, in use while the test runs."""
    before = native._native.isa()
    native._native.use_isa(request.param)
    yield request.param
    native._native.use_isa(before)
