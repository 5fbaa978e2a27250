"""Large results live in blocks that the native engine keeps: reused when nobody holds them, never
before; as many as one allows; and plain NumPy arrays in every other way."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import zstate as zs
from zstate.backends import native

pytestmark = pytest.mark.skipif(
    native.unavailable() is not None, reason="built without a C++ compiler"
)
DEFAULT = 512 << 20


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    zs.set_kept_memory(0)
    zs.set_kept_memory(DEFAULT)
    yield
    zs.set_kept_memory(DEFAULT)


def layer(seed: int, steps: int = 40) -> zs.LSTMResult:
    """An LSTM of 64 sequences and 128 units: 1.3 MB of h, 5.2 MB of zState."""
    r = np.random.default_rng(seed)
    x, R, h0, c0 = (
        (r.random(shape, "f4") - 0.5) / 4
        for shape in ((steps, 64, 512), (512, 128), (64, 128), (64, 128))
    )
    d = zs.LSTMDescriptor(training=True)
    return zs.lstm(x, R, init_state=h0, init_cell=c0, descriptor=d, backend="native")


def kept() -> int:
    return int(native._native.kept_memory())


def test_a_block_is_used_again_once_nobody_holds_it() -> None:
    first = layer(0)
    places = {array.ctypes.data for array in first}
    expected = [array.copy() for array in first]
    second = layer(1)
    assert places.isdisjoint(array.ctypes.data for array in second)
    assert all(np.array_equal(a, b) for a, b in zip(first, expected, strict=True))
    first_state = first.state[3:5]  # a view holds its block
    del first
    third = layer(2)
    again = {array.ctypes.data for array in third}
    assert len(places & again) == 2
    assert np.array_equal(first_state, expected[0][3:5])


@pytest.mark.parametrize("steps", [32, 40, 127, 128, 129, 1000])
def test_blocks_of_every_size_are_used_again(steps: int) -> None:
    """128 steps are 4 MB of h: at a power of two, and around it."""
    layer(0, steps)
    before = kept()
    for seed in range(3):
        layer(seed, steps)
    assert kept() == before


def test_at_most_the_limit_is_kept() -> None:
    zs.set_kept_memory(6 << 20)
    for seed in range(3):
        layer(seed)
        assert kept() <= 6 << 20
    held = layer(3)
    zs.set_kept_memory(0)
    assert kept() == 0
    del held
    assert kept() == 0
    layer(4)
    assert kept() == 0


def test_smaller_results_do_not_hold_much_larger_blocks() -> None:
    layer(0, steps=200)
    before = kept()
    held = layer(1, steps=40)
    assert before - kept() < sum(array.nbytes for array in held)


def test_a_result_is_a_plain_array() -> None:
    state = layer(0).state
    assert state.flags.owndata and state.flags.writeable and state.base is None
    assert state.ctypes.data % 64 == 0
    assert np.array_equal(pickle.loads(pickle.dumps(state)), state)
    before = state.copy()
    state.resize((80, 64, 128), refcheck=False)
    assert np.array_equal(state[:40], before) and not state[40:].any()
    state.resize((1, 2, 128), refcheck=False)
    assert np.array_equal(state[0], before[0, :2])


def test_threads_take_and_give_at_once() -> None:
    expected = {seed: layer(seed).state for seed in range(4)}
    wrong: list[int] = []

    def work(seed: int) -> None:
        for _ in range(30):
            if not np.array_equal(layer(seed).state, expected[seed]):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (-1, zs.OptionError, "[set_kept_memory] expected at least 0, got -1"),
        (1.5, zs.DTypeError, "[set_kept_memory] expected an integer, got float 1.5"),
        (True, zs.DTypeError, "[set_kept_memory] expected an integer, got bool True"),
    ],
)
def test_an_impossible_limit_is_refused(value: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        zs.set_kept_memory(value)  # type: ignore[arg-type]
    assert str(caught.value) == text


def test_any_size_is_a_limit() -> None:
    zs.set_kept_memory(1 << 200)
    layer(0)
    assert kept() > 0
