"""Launches, with a driver that only notes what it was given."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from zstate.backends.cuda import launch
from zstate.errors import BackendError


class Driver:
    """Keeps every configuration that was made, and the words of every launch."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=0)

    def __init__(self) -> None:
        self.configs: list[Any] = []
        self.launches: list[tuple[Any, Any, list[int]]] = []
        self.status = 0

    def CUlaunchConfig(self) -> Any:
        self.configs.append(SimpleNamespace())
        return self.configs[-1]

    def CUstream(self, handle: int) -> int:
        return handle

    def cuLaunchKernelEx(self, config: Any, function: Any, pointers: int, extra: int) -> Any:
        first = ctypes.c_void_p.from_address(pointers).value
        assert first is not None
        words = list((ctypes.c_int64 * 3).from_address(first))
        self.launches.append((config, function, words))
        return (self.status,)

    def cuGetErrorName(self, status: int) -> tuple[int, bytes]:
        return 0, b"CUDA_ERROR_LAUNCH_FAILED"

    def cuGetErrorString(self, status: int) -> tuple[int, bytes]:
        return 0, b"unspecified launch failure"


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(launch, "driver", made)
    return made


def test_one_configuration_per_stream(driver: Driver) -> None:
    run = launch.Launch("function", blocks=6, threads=128, shared=512, words=3, attributes=["a"])
    for stream, words in ((7, (1, 2, 3)), (9, (4, 5, 6)), (7, (7, 8, 9))):
        run(stream, words)
    assert [config.hStream for config in driver.configs] == [7, 9]
    first, second = driver.configs
    assert [config for config, _, _ in driver.launches] == [first, second, first]
    assert [words for _, _, words in driver.launches] == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert (first.gridDimX, first.blockDimX, first.sharedMemBytes) == (6, 128, 512)
    assert (first.attrs, first.numAttrs) == (["a"], 1)


def test_words_that_are_fewer_than_the_kernel_takes(driver: Driver) -> None:
    run = launch.Launch("function", 1, 32, 0, words=2, most_words=3)
    run(0, (5, 6))
    assert driver.launches[0][2] == [5, 6, 0]


def test_a_refused_launch_says_why(driver: Driver) -> None:
    driver.status = 719
    with pytest.raises(BackendError, match="CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure"):
        launch.Launch("function", 1, 32, 0, words=3)(0, (1, 2, 3))


def test_a_repeated_launch_changes_one_word(driver: Driver) -> None:
    """Beside other launches of the same function, and of another repetition."""
    run = launch.Launch("function", 1, 32, 0, words=3)
    one, other = (run.repeated(7, words, place=1) for words in ((1, 2, 3), (4, 5, 6)))
    one(20)
    other(50)
    run(7, (7, 8, 9))
    one(21)
    found = [words for _, _, words in driver.launches]
    assert found == [[1, 20, 3], [4, 50, 6], [7, 8, 9], [1, 21, 3]]
    assert len(driver.configs) == 1
    driver.status = 719
    with pytest.raises(BackendError, match="CUDA_ERROR_LAUNCH_FAILED"):
        one(22)
