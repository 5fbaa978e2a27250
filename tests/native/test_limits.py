"""Sizes, numbers and memory at their limits: results or words, never a crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zstate as zs
import zstate.cells as cells
import zstate.torch as zt
from zstate.backends import native

pytestmark = pytest.mark.skipif(
    native.unavailable() is not None, reason="built without a C++ compiler"
)
HUGE = 2**56
CELLS: dict[str, tuple[Any, Any, int]] = {
    "rnn": (zs.single_gate_rnn, zs.single_gate_rnn_gradients, 1),
    "lstm": (zs.lstm, zs.lstm_gradients, 4),
    "gru": (zs.gru, zs.gru_gradients, 3),
}


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_a_batch_that_no_memory_holds_is_empty_without_steps(cell: str, dtype: str) -> None:
    """The sizes of its buffers, which nobody needs, are beyond 64 bits."""
    forward, _, gates = CELLS[cell]
    result = forward(
        np.zeros((0, HUGE, gates), dtype), np.ones((gates, 1), dtype), backend="native"
    )
    assert result.state.shape == (0, HUGE, 1)


@pytest.mark.parametrize("cell", CELLS)
def test_gradients_of_such_a_batch_are_zero(cell: str) -> None:
    _, gradients, gates = CELLS[cell]
    R, W = np.ones((gates, 1), "f4"), np.ones((gates, 3), "f4")
    h, z = np.zeros((0, HUGE, 1), "f4"), np.zeros((0, HUGE, gates), "f4")
    more = {"lstm": (h,), "gru": (h,)}.get(cell, ())
    found = gradients(
        np.zeros((0, HUGE, 3), "f4"), R, h, z, *more, input_weight=W, backend="native"
    )
    assert found.source.shape == (0, HUGE, 3)
    assert not found.recurrent_weight.any() and not found.input_weight.any()


def test_such_a_batch_through_torch() -> None:
    """Tensors first go to a plan, then to the call that is known."""
    x, R = torch.zeros(0, HUGE, 4), torch.ones(4, 1)
    for _ in range(3):
        assert zs.lstm(x, R).state.shape == (0, HUGE, 1)
    for kind in (zt.LSTM, zt.GRU, zt.RNN):
        layer = kind(4, 1)
        with pytest.raises((RuntimeError, MemoryError, ValueError)):  # of the states that it makes
            layer(torch.zeros(0, HUGE, 4))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(("steps", "batch"), [(0, 3), (2, 0), (0, 0)])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("given", [True, False])
def test_calls_without_rows_pass_their_states_on(
    cell: str, steps: int, batch: int, dtype: str, given: bool
) -> None:
    forward, gradients, gates = CELLS[cell]
    r = np.random.default_rng(3)

    def array(*shape: int) -> Any:
        return r.normal(size=shape).astype(dtype)

    H, D = 5, 2
    kind = {
        "rnn": zs.SingleGateRNNDescriptor,
        "lstm": zs.LSTMDescriptor,
        "gru": zs.GRUDescriptor,
    }[cell]
    d = kind(bidirectional=True, training=True)
    more = {"init_state": array(batch, D * H), "bias": array(D * gates * H)}
    if cell == "lstm":
        more |= {"init_cell": array(batch, D * H), "peephole": array(D, gates * H)}
    x, R, W = array(steps, batch, 3), array(D, gates * H, H), array(D * gates * H, 3)
    h, z = array(steps, batch, D * H), array(steps, batch, D * gates * H)
    fed = {"lstm": (h,), "gru": (h,)}.get(cell, ())
    back = dict(more)
    if given:
        back["state_gradient"] = array(batch, D * H)
        if cell == "lstm":
            back["cell_gradient"] = array(batch, D * H)
    for backend in ("native", "reference"):
        out = forward(x, R, input_weight=W, **more, descriptor=d, backend=backend)
        assert out.state.shape == (steps, batch, D * H)
    found, wanted = (
        gradients(x, R, h, z, *fed, input_weight=W, **back, descriptor=d, backend=backend)
        for backend in ("native", "reference")
    )
    for name, value in wanted._asdict().items():
        mine = getattr(found, name)
        assert (mine is None) == (value is None), name
        if value is not None:
            np.testing.assert_array_equal(mine, value, err_msg=name)
    assert given == bool(found.init_state.any()) or batch == 0


def test_rows_in_more_places_than_there_are() -> None:
    rows = np.zeros(0, "i8")
    with pytest.raises(MemoryError):
        native.unpack_rows(np.zeros((0, 1), "f4"), rows, 2**40, 2**40)
    with pytest.raises((MemoryError, ValueError)):
        native.unpack_rows(np.zeros((0, 1), "f4"), rows, 2**40, 2**15)
    with pytest.raises((MemoryError, ValueError)):
        native.fused("add_rows", np.ones((1, 2**10), "f4"), np.zeros(1, "i8"), 2**60)


def test_such_a_batch_from_a_saved_graph(tmp_path: Path) -> None:
    graph = zs.Graph()
    x = graph.placeholder(shape=(0, HUGE, 4))
    y = graph.lstm(x, recurrent_weight=graph.constant(np.ones((4, 1), "f4")))
    graph.compile({x: ((0, HUGE, 4), "float32")}, [y[0]]).save(tmp_path / "huge")
    (found,) = zs.Executable.load(tmp_path / "huge").run([np.zeros((0, HUGE, 4), "f4")])
    assert found.shape == (0, HUGE, 1)


@pytest.mark.parametrize("count", [np.int64(2), np.uint8(2), 2])
def test_any_whole_number_counts_threads(count: Any) -> None:
    before = zs.get_num_threads()
    try:
        zs.set_num_threads(count)
        assert zs.get_num_threads() == 2
    finally:
        zs.set_num_threads(before)


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (2**31, zs.OptionError, "[set_num_threads] expected at most 2147483647, got 2147483648"),
        (0, zs.OptionError, "[set_num_threads] expected at least 1, got 0"),
        (2.0, zs.DTypeError, "[set_num_threads] expected an integer, got float 2.0"),
        (True, zs.DTypeError, "[set_num_threads] expected an integer, got bool True"),
    ],
)
def test_an_impossible_number_of_threads_is_refused(
    value: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        zs.set_num_threads(value)
    assert str(caught.value) == text


def test_tensors_without_memory_are_no_known_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage that was given back, and PyTorch's own zeros that have none: the engine would read
    where nothing is. The caller then refuses them, or makes zeros of them."""
    torch.manual_seed(0)
    known: list[Any] = []
    repeat = native._native.repeat_tensors

    def spy(*call: Any) -> Any:
        known.append(call)
        return repeat(*call)

    x = torch.randn(2, 3, 3)
    with monkeypatch.context() as patched:
        patched.setattr("zstate.torch.tensors.run_known_tensors", spy)
        for _ in range(2):
            zs.lstm(x, torch.randn(16, 4), input_weight=torch.randn(16, 3))
    operation, (_, *others), descriptor = known[-1]
    freed = x.clone()
    freed.untyped_storage().resize_(0)
    assert repeat(operation, (x, *others), descriptor) is not None
    for source in (freed, torch._efficientzerotensor((2, 3, 3))):
        assert repeat(operation, (source, *others), descriptor) is None


def test_a_cell_of_more_than_a_thousand_operations() -> None:
    def grown(tanh: Any, a: Any, h: Any, c: Any) -> Any:
        total = a
        for k in range(40):
            value = h * (0.1 + 0.01 * k)
            for _ in range(15):
                value = tanh(value * c + a)
            total = total + value
        return tanh(total)

    @cells.cell(gates="f", states="h c")
    def long(x, R, h, c):
        new = grown(cells.tanh, x.f + R.f @ h, h, c)
        return new, 0.5 * c + new

    rng = np.random.default_rng(3)
    x, R, h, c = (rng.standard_normal(s) * 0.5 for s in ((3, 2, 5), (5, 5), (2, 5), (2, 5)))
    found = long(x, R, init_h=h, init_c=c, backend="native")
    for step, value in enumerate(x):
        h = grown(np.tanh, value + h @ R.T, h, c)
        c = 0.5 * c + h
        np.testing.assert_allclose(found.h[step], h, atol=1e-12)
