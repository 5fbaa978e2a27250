"""A repeated call goes to its plan without a check: it must still be the call that was checked."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import zstate as zs
from zstate.backends import native
from zstate.operations import OPERATIONS

pytestmark = pytest.mark.skipif(
    native.unavailable() is not None, reason="built without a C++ compiler"
)


def arrays(steps: int = 2, batch: int = 3, hidden: int = 5, dtype: str = "float32") -> list[Any]:
    """source, recurrent_weight, input_weight, bias, init_state of a single-gate RNN."""
    rng = np.random.default_rng(steps * 100 + batch * 10 + hidden)
    shapes = [(steps, batch, 4), (hidden, hidden), (hidden, 4), (hidden,), (batch, hidden)]
    return [(rng.standard_normal(shape) / 2).astype(dtype) for shape in shapes]


def call(values: list[Any], **options: Any) -> Any:
    x, R, W, b, h0 = values
    return zs.single_gate_rnn(x, R, input_weight=W, bias=b, init_state=h0, **options)


def known(values: list[Any], descriptor: Any = None) -> bool:
    """Whether such a call would be repeated."""
    tensors = (*values, None, None)
    return native.run_known(OPERATIONS["single_gate_rnn"], tensors, descriptor) is not None


def test_a_repeated_call_gives_the_numbers_of_a_checked_one() -> None:
    values = arrays()
    first = call(values)
    assert known(values)
    changed = [array * np.float32(0.5) for array in values]
    again = call(changed)
    assert type(again) is type(first)
    assert again.training_state is None
    expected = call(changed, backend="reference").state
    np.testing.assert_allclose(again.state, expected, rtol=1e-6, atol=1e-6)
    assert again.state.base is None and again.state.flags.owndata


@pytest.mark.parametrize("place", range(5))
def test_another_shape_is_not_the_known_call(place: int) -> None:
    values = arrays()
    call(values)
    wrong = list(values)
    wrong[place] = np.concatenate([values[place], values[place]], axis=-1)
    assert not known(wrong)
    with pytest.raises(zs.ShapeError, match=r"\[single_gate_rnn\]"):
        call(wrong)


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("dtype", ["float64", "int32", ">f4"])
def test_another_type_is_not_the_known_call(place: int, dtype: str) -> None:
    values = arrays()
    call(values)
    wrong = list(values)
    wrong[place] = values[place].astype(dtype)
    assert not known(wrong)
    with pytest.raises(zs.DTypeError, match=r"\[single_gate_rnn\]"):
        call(wrong)


@pytest.mark.parametrize("wrong", [None, [1.0], np.ma.masked_array(np.ones((2, 3, 4), "f"))])
def test_what_is_no_array_is_not_the_known_call(wrong: Any) -> None:
    values = arrays()
    call(values)
    assert not known([wrong, *values[1:]])
    with pytest.raises(zs.DTypeError, match=r"\[single_gate_rnn\] source"):
        call([wrong, *values[1:]])


def test_one_more_input_is_not_the_known_call() -> None:
    values = arrays()
    plain = call(values).state
    mask = np.full((5,), 0.25, "float32")
    masked = call(values, mask=mask).state
    expected = call(values, mask=mask, backend="reference").state
    np.testing.assert_allclose(masked, expected, rtol=1e-6, atol=1e-6)
    assert not np.allclose(masked, plain)


def test_another_descriptor_is_not_the_known_call() -> None:
    values = arrays()
    relu = zs.SingleGateRNNDescriptor(activation=zs.Activation.RELU)
    tanh = zs.SingleGateRNNDescriptor(activation=zs.Activation.TANH)
    for descriptor in (relu, tanh, relu, tanh, None):
        expected = call(values, descriptor=descriptor, backend="reference").state
        for _ in range(2):
            got = call(values, descriptor=descriptor).state
            np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


def test_a_known_call_with_other_strides() -> None:
    values = arrays(3, 4, 6)
    expected = call(values).state
    wide = [np.zeros((*array.shape[:-1], 2 * array.shape[-1]), "float32") for array in values]
    for array, value in zip(wide, values, strict=True):
        array[..., ::2] = value
    strided = [array[..., ::2] for array in wide]
    assert known(strided)
    np.testing.assert_array_equal(call(strided).state, expected)
    unaligned = np.empty(values[0].nbytes + 1, "uint8")[1:].view("float32").reshape(3, 4, 4)
    unaligned[...] = values[0]
    np.testing.assert_array_equal(call([unaligned, *values[1:]]).state, expected)
    backwards = [values[0][::-1], *values[1:]]
    expected = call(backwards, backend="reference").state
    np.testing.assert_allclose(call(backwards).state, expected, rtol=1e-6, atol=1e-6)


def test_a_backend_that_was_asked_for_is_used() -> None:
    values = arrays()
    call(values)
    with pytest.raises(zs.BackendError, match="expected None or one of"):
        call(values, backend="naitve")


def test_many_signatures_stay_right() -> None:
    """More than are remembered, from several threads at once, while others are forgotten."""
    failures: list[str] = []

    def work(first: int) -> None:
        for steps in range(first, first + 300):
            values = arrays(steps % 37 + 1, steps % 3 + 1, steps % 7 + 1, "float64")
            descriptor = zs.SingleGateRNNDescriptor(activation=zs.Activation.TANH)
            got = [call(values, descriptor=descriptor).state for _ in range(2)]
            want = call(values, descriptor=descriptor, backend="reference").state
            if not all(np.allclose(state, want, rtol=1e-9, atol=1e-9) for state in got):
                failures.append(f"{steps}")

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 300, 600, 900)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
