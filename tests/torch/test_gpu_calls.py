"""How calls on a GPU are known again, on tensors that only say that they are on one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import zstate as zs
from zstate import backends
from zstate.backends import cuda
from zstate.operations import LSTM_FORWARD, LSTM_GRADIENTS, Operation
from zstate.torch import tensors as under_test

T, N, H = 3, 2, 4
PLAIN = zs.LSTMDescriptor()


class OnGpu(Tensor):
    """A CPU tensor that says otherwise."""

    is_cuda = True  # type: ignore[assignment]
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


def on_gpu(*shape: int, grad: bool = False) -> Tensor:
    made = torch.randn(shape).as_subclass(OnGpu)
    return made.requires_grad_(grad)


class Runs:
    """Stands for the CUDA backend: which layouts it was asked for, and what its runners got."""

    def __init__(self) -> None:
        self.layouts: list[Any] = []
        self.calls: list[tuple[Tensor | None, ...]] = []

    def prepare(self, layout: Any) -> Callable[[Any], tuple[Tensor | None, ...]]:
        self.layouts.append(layout)
        fields = layout.operation.result._fields

        def run(inputs: Any) -> tuple[Tensor | None, ...]:
            self.calls.append(inputs)
            return tuple(inputs[0] if name == fields[0] else None for name in fields)

        return run


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    found = Runs()
    monkeypatch.setattr(under_test, "PLAIN_TYPES", (OnGpu,))
    table: dict[Any, Any] = {}
    monkeypatch.setattr(under_test, "PREPARED", table)
    monkeypatch.setattr(backends, "PREPARED", table)
    monkeypatch.setattr(backends, "choose", lambda layout, backend: cuda)
    monkeypatch.setattr(cuda, "prepare", found.prepare)
    return found


def inputs(operation: Operation = LSTM_FORWARD, **given: Tensor) -> tuple[Tensor | None, ...]:
    """The required tensors of a call, and those given."""
    required = {"source": (T, N, 4 * H), "recurrent_weight": (4 * H, H)}
    if operation is LSTM_GRADIENTS:
        required |= {"source_gradient": (T, N, H), "z_state": (T, N, 4 * H)}
        required |= {"cell_output_fwd": (T, N, H)}
    made = {name: on_gpu(*shape) for name, shape in required.items()}
    return tuple({**made, **given}.get(name) for name in operation.inputs)


def test_a_call_is_known_after_the_first(runs: Runs) -> None:
    first, second = inputs(), inputs()
    assert under_test.run_known(LSTM_FORWARD, first, PLAIN, None) is None
    found = under_test.compute(LSTM_FORWARD, first, PLAIN, None)
    assert isinstance(found, zs.LSTMResult) and found.state is first[0] and found.cell is None
    again = under_test.run_known(LSTM_FORWARD, second, PLAIN, None)
    assert isinstance(again, zs.LSTMResult) and again.state is second[0]
    assert under_test.compute(LSTM_FORWARD, second, PLAIN, None)[0] is second[0]
    assert len(runs.layouts) == 1 and len(runs.calls) == 3


def test_another_signature_is_another_call(runs: Runs) -> None:
    under_test.compute(LSTM_FORWARD, inputs(), PLAIN, None)
    others: list[tuple[Any, ...]] = [
        (inputs(source=on_gpu(T + 1, N, 4 * H)), PLAIN, None),
        (inputs(init_state=on_gpu(N, H)), PLAIN, None),
        (inputs(), zs.LSTMDescriptor(training=True), None),
        (inputs(), PLAIN, "cuda"),
    ]
    for tensors, descriptor, backend in others:
        assert under_test.run_known(LSTM_FORWARD, tensors, descriptor, backend) is None
        under_test.compute(LSTM_FORWARD, tensors, descriptor, backend)
        assert under_test.run_known(LSTM_FORWARD, tensors, descriptor, backend) is not None
    assert len(runs.layouts) == 1 + len(others)


def test_others_who_have_a_say_are_left_theirs(runs: Runs) -> None:
    under_test.compute(LSTM_FORWARD, inputs(), PLAIN, None)
    recorded = inputs(source=on_gpu(T, N, 4 * H, grad=True))
    assert under_test.run_known(LSTM_FORWARD, recorded, PLAIN, None) is None
    with torch.no_grad():
        assert under_test.run_known(LSTM_FORWARD, recorded, PLAIN, None) is not None
    torch.set_autocast_enabled("cuda", True)  # torch.autocast does nothing without a GPU
    try:
        assert under_test.run_known(LSTM_FORWARD, inputs(), PLAIN, None) is None
    finally:
        torch.set_autocast_enabled("cuda", False)
    stranger = inputs(recurrent_weight=torch.randn(4 * H, H))
    assert under_test.run_known(LSTM_FORWARD, stranger, PLAIN, None) is None
    on_cpu = tuple(None if t is None else t.as_subclass(Tensor) for t in inputs())
    assert under_test.run_known(LSTM_FORWARD, on_cpu, PLAIN, None) is None


def test_a_gradient_is_known_again(runs: Runs) -> None:
    tensors = inputs(LSTM_GRADIENTS)
    under_test.compute(LSTM_GRADIENTS, tensors, PLAIN, None)
    again = under_test.run_known(LSTM_GRADIENTS, tensors, PLAIN, None)
    assert isinstance(again, zs.LSTMGradients) and again.source is tensors[0]


def test_a_wrong_shape_is_refused_by_name(runs: Runs) -> None:
    wrong = inputs(recurrent_weight=on_gpu(4 * H, H + 1))
    with pytest.raises(zs.ShapeError, match=r"\[lstm\] recurrent_weight: expected"):
        under_test.compute(LSTM_FORWARD, wrong, PLAIN, None)
    assert not runs.layouts


def test_the_table_is_bounded(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_MOST_PREPARED", 3)
    for steps in range(1, 9):
        under_test.compute(LSTM_FORWARD, inputs(source=on_gpu(steps, N, 4 * H)), PLAIN, None)
        assert len(backends.PREPARED) <= 3


def test_a_sparse_tensor_is_not_the_known_call() -> None:
    dense = (torch.randn(T, N, 4 * H), torch.randn(4 * H, H), *[None] * 6)
    sparse = (dense[0].to_sparse(), *dense[1:])
    one, other = (backends.signature(LSTM_FORWARD, each, PLAIN, None) for each in (dense, sparse))
    assert one is not None and other is not None and one != other
