"""Packed sequences: the engine's one call against each sequence alone, and what surrounds it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

import zstate as zs
import zstate.torch as zt
from zstate import operations
from zstate.backends import native
from zstate.descriptors import AnyDescriptor
from zstate.layout import DESCRIPTORS, bind
from zstate.operations import Operation
from zstate.torch.sequences.packed import Packed, PackedStep, from_lengths, serves

FORWARDS = {
    "rnn": operations.SINGLE_GATE_RNN,
    "lstm": operations.LSTM_FORWARD,
    "gru": operations.GRU_FORWARD,
}
# Lengths of many kinds: all equal, all different, ties, one long sequence, a single one.
BATCHES = [[4, 4, 4], [9, 8, 5, 3, 1], [7, 7, 2, 2, 2, 1, 1], [20, 1, 1], [6], [1, 1]]

pytestmark = pytest.mark.skipif(
    native.unavailable() is not None, reason="built without the native engine"
)


def sizes_of(lengths: list[int]) -> tuple[int, ...]:
    return tuple(sum(length > step for length in lengths) for step in range(max(lengths)))


def make_inputs(
    operation: Operation, lengths: list[int], both: bool, dtype: torch.dtype, **size: int
) -> list[Tensor | None]:
    """Every input that the operation has, as leaves."""
    directions, gates = 2 if both else 1, len(operation.cell.gates)
    batch, inputs, hidden = len(lengths), size.get("inputs", 3), size.get("hidden", 5)
    wide = directions * hidden
    shapes = {
        "source": (sum(lengths), inputs),
        "recurrent_weight": (2, gates * hidden, hidden) if both else (gates * hidden, hidden),
        "input_weight": (gates * wide, inputs),
        "bias": (gates * wide,),
        "init_state": (batch, wide),
        "init_cell": (batch, wide),
        "mask": (max(lengths), batch, wide),
        "peephole": (2, gates * hidden) if both else (gates * hidden,),
        "secondary_bias": (wide,),
        "resets": (sum(lengths), directions),
    }
    generator = torch.Generator().manual_seed(sum(lengths))
    found: list[Tensor | None] = []
    for name in operation.inputs:
        value = torch.randn(shapes[name], generator=generator, dtype=torch.float64) * 0.5
        chosen = name in ("mask", "resets")
        if chosen:
            value = (value > (-0.3 if name == "mask" else 0.3)).double()
        value = value.to(dtype)
        found.append(value if chosen else value.requires_grad_())
    return found


def descriptors(cell: str, both: bool) -> list[AnyDescriptor]:
    kind = DESCRIPTORS[FORWARDS[cell].cell.name]
    plain = kind(bidirectional=both)
    if cell == "lstm":
        new_cell = replace(plain, produce_cell=True, peephole_on_new_cell=True)
        return [replace(plain, produce_cell=True), replace(plain, forget_gate_last=True), new_cell]
    if cell == "gru":
        return [replace(plain, reset_after=True), replace(plain, reset_gate_first=True)]
    return [plain]


def one_by_one(
    operation: Operation,
    tensors: tuple[Tensor | None, ...],
    descriptor: AnyDescriptor,
    sizes: tuple[int, ...],
) -> Any:
    return PackedStep(operation, descriptor, sizes).differentiable(*tensors)


def in_one_call(
    operation: Operation, tensors: Any, descriptor: AnyDescriptor, sizes: tuple[int, ...]
) -> Any:
    return Packed(sizes).run(operation, tensors, descriptor)


def results_and_gradients(
    way: Any,
    operation: Operation,
    inputs: list[Tensor | None],
    descriptor: AnyDescriptor,
    lengths: list[int],
) -> list[Tensor]:
    """h, or h and c, and the gradient of every input from them."""
    results = way(operation, tuple(inputs), descriptor, sizes_of(lengths))
    results = results[: 2 if getattr(descriptor, "produce_cell", False) else 1]
    generator = torch.Generator().manual_seed(1)
    weights = [
        torch.randn(r.shape, generator=generator, dtype=torch.float64).to(r.dtype) for r in results
    ]
    leaves = [leaf for leaf in inputs if leaf is not None and leaf.requires_grad]
    return [*results, *torch.autograd.grad(results, leaves, weights)]


def without_secondary(operation: Operation, descriptor: Any, inputs: list[Any]) -> list[Any]:
    if "secondary_bias" in operation.inputs and not descriptor.reset_after:
        inputs[operation.inputs.index("secondary_bias")] = None
    return inputs


@pytest.mark.parametrize("both", [False, True], ids=["forward", "both"])
@pytest.mark.parametrize("cell", FORWARDS)
def test_like_each_sequence_alone(isa: str, cell: str, both: bool) -> None:
    operation = FORWARDS[cell]
    for lengths, descriptor in product(BATCHES, descriptors(cell, both)):
        inputs = make_inputs(operation, lengths, both, torch.float64)
        inputs = without_secondary(operation, descriptor, inputs)
        found = results_and_gradients(in_one_call, operation, inputs, descriptor, lengths)
        wanted = results_and_gradients(one_by_one, operation, inputs, descriptor, lengths)
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 1e-5), (torch.float16, 8e-3), (torch.bfloat16, 6e-2)]
)
@pytest.mark.parametrize("cell", FORWARDS)
def test_every_float_type(isa: str, cell: str, dtype: torch.dtype, bound: float) -> None:
    operation, lengths = FORWARDS[cell], BATCHES[1]
    descriptor = descriptors(cell, True)[0]
    found, wanted = (
        results_and_gradients(
            in_one_call, operation, make_inputs(operation, lengths, True, kind), descriptor, lengths
        )
        for kind in (dtype, torch.float64)
    )
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == dtype
        error = (one.double() - other).detach().abs().max()
        assert error <= bound * other.detach().abs().max()


@pytest.mark.parametrize("cell", FORWARDS)
def test_the_same_bits_for_every_thread_count(cell: str) -> None:
    operation, before = FORWARDS[cell], zs.get_num_threads()
    lengths = sorted(range(1, 38), reverse=True)
    descriptor = descriptors(cell, True)[0]
    inputs = make_inputs(operation, lengths, True, torch.float32, inputs=33, hidden=40)
    runs = []
    try:
        for count in (1, 2, 3):
            zs.set_num_threads(count)
            runs.append(results_and_gradients(in_one_call, operation, inputs, descriptor, lengths))
    finally:
        zs.set_num_threads(before)
    for each in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(each, runs[0], strict=True))


def test_a_source_that_is_projected_already() -> None:
    operation, lengths = operations.LSTM_FORWARD, BATCHES[1]
    descriptor = zs.LSTMDescriptor()
    for dtype, bound in ((torch.float64, 1e-10), (torch.bfloat16, 5e-2)):
        inputs = make_inputs(operation, lengths, False, dtype, inputs=20)
        inputs[operation.inputs.index("input_weight")] = None
        found = results_and_gradients(in_one_call, operation, inputs, descriptor, lengths)
        wanted = results_and_gradients(one_by_one, operation, inputs, descriptor, lengths)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=bound, atol=bound)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [([3, 4], "do not grow"), ([3, 0], "at least 1"), ([2, 1], "N first"), ([3], "T of them")],
)
def test_the_engine_refuses_batch_sizes(sizes: list[int], message: str) -> None:
    values = (np.zeros((2, 3, 1)), np.zeros((1, 1)), np.zeros((1, 1)), *[None] * 4)
    layout = bind(operations.SINGLE_GATE_RNN, values, None)
    with pytest.raises(ValueError, match=message):
        native.packed(layout, values, tuple(sizes))


def test_every_step_has_its_row() -> None:
    generator = torch.Generator().manual_seed(0)
    for steps, batch in product((1, 7, 30), (1, 5, 40)):
        lengths = torch.randint(0, steps + 1, (batch,), generator=generator)
        lengths[0] = steps
        found = from_lengths(lengths)
        assert found is not None
        packed, order = found
        inside = {t * batch + n for n in range(batch) for t in range(int(lengths[n]))}
        assert set(order.rows.tolist()) == inside and len(order.rows) == len(inside)
        data = order.rows[:, None]  # each row says where it comes from
        known = lengths[order.sequences]
        ends = (known - 1) * batch + order.sequences
        assert torch.equal(packed.last(data, None)[:, 0], ends)
        turned = packed.turn(data)
        assert torch.equal(turned[: len(known), 0], ends)
        assert torch.equal(packed.turn(turned), data)
    assert from_lengths(torch.zeros(3, dtype=torch.int64)) is None


@pytest.mark.parametrize("both", [False, True])
def test_batched_gradients_through_lengths(both: bool) -> None:
    layer = zt.LSTM(3, 4, bidirectional=both).double()
    x = torch.randn(5, 3, 3, dtype=torch.float64, requires_grad=True)
    output = layer(x, lengths=torch.tensor([2, 5, 3]))[0]
    gradients = torch.randn(4, *output.shape, dtype=torch.float64)
    together = torch.autograd.grad(
        output, [x, *layer.parameters()], gradients, retain_graph=True, is_grads_batched=True
    )
    for k, gradient in enumerate(gradients):
        alone = torch.autograd.grad(output, [x, *layer.parameters()], gradient, retain_graph=True)
        for one, other in zip(together, alone, strict=True):
            torch.testing.assert_close(one[k], other)


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_the_padded_way_gives_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the engine, and under a mode that watches: padding and all."""
    lengths = torch.tensor([3, 0, 6, 1])
    options: dict[str, Any] = {"proj_size": 2} if kind == "LSTM" else {}
    layer = getattr(zt, kind)(3, 4, num_layers=2, bidirectional=True, **options).double()
    x = torch.randn(6, 4, 3, dtype=torch.float64)
    packed = pack_padded_sequence(x, torch.tensor([3, 2, 6, 1]), enforce_sorted=False)
    assert serves(layer.operation, layer.descriptor, False, x)
    wanted = layer(x, lengths=lengths)[0], layer(packed)[0].data
    monkeypatch.setattr(native, "_REASON", "a test says so")
    assert not serves(layer.operation, layer.descriptor, False, x)
    found = layer(x, lengths=lengths)[0], layer(packed)[0].data
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_something_that_watches_gets_each_sequence_alone() -> None:
    class Watched(Tensor):
        pass

    layer = zt.GRU(3, 4).double()
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    lengths = torch.tensor([5, 2])
    wanted = layer(x, lengths=lengths)[0]
    layer.weight_hh_l0 = torch.nn.Parameter(layer.weight_hh_l0.data.as_subclass(Watched))
    torch.testing.assert_close(layer(x, lengths=lengths)[0].as_subclass(Tensor), wanted)


def test_autocast_reaches_packed_sequences() -> None:
    layer = zt.LSTM(3, 4)
    x, lengths = torch.randn(5, 2, 3), torch.tensor([5, 2])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(x, lengths=lengths)[0]
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()
    assert layer.weight_hh_l0.grad is not None and layer.weight_hh_l0.grad.dtype == torch.float32
    torch.testing.assert_close(output.float(), layer(x, lengths=lengths)[0], rtol=0.1, atol=0.05)
