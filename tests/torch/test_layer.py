"""A layer that autograd records as one step gives what its operations one by one give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import zstate.torch as zt
from zstate.torch import dispatch
from zstate.torch.dispatch import Route

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "RNN": (zt.RNN, {}),
    "LSTM": (zt.LSTM, {"peephole": True, "return_cells": True}),
    "LSTM, cells unseen": (zt.LSTM, {}),
    "LSTM, new cell": (zt.LSTM, {"peephole": True, "peephole_on_new_cell": True}),
    "GRU": (zt.GRU, {}),
    "GRU, reset before": (zt.GRU, {"reset_after": False}),
    "no bias": (zt.GRU, {"bias": False}),
}
kinds = pytest.mark.parametrize("kind", KINDS)
directions = pytest.mark.parametrize("both", [False, True])


def make(kind: str, both: bool, **more: Any) -> Any:
    torch.manual_seed(1)
    cell, options = KINDS[kind]
    return cell(3, 4, bidirectional=both, dtype=torch.float64, **options, **more)


def states(layer: Any, batch: int) -> Any:
    """Initial states that want gradients, as the layer takes them."""
    shape = (layer.directions * layer.num_layers, batch, 4)
    found = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    return found if isinstance(layer, zt.LSTM) else found[0]


def flat(results: Any) -> list[Tensor]:
    if isinstance(results, Tensor):
        return [results]
    return [tensor for each in results for tensor in flat(each)]


def call(layer: Any, steps: int) -> tuple[list[Tensor], list[Tensor]]:
    """What a layer gives, and what it depends on."""
    torch.manual_seed(2)
    x = torch.randn(steps, 2, 3, dtype=torch.float64, requires_grad=True)
    initial = states(layer, 2)
    results = flat(layer(x, initial))
    return results, [x, *flat(initial), *layer.parameters()]


def weighted(results: list[Tensor]) -> Tensor:
    """A number that depends on every value differently."""
    return sum((r * (torch.arange(r.numel()).view(r.shape) + 1).cos()).sum() for r in results)  # type: ignore[return-value]


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> Any:
    """From now on every operation is recorded by itself."""
    choose = dispatch.choose

    def chosen(call: dispatch.Call, tensors: dispatch.Tensors) -> Route:
        return Route.DISPATCHED if call == "layer" else choose(call, tensors)

    return lambda: monkeypatch.setattr(dispatch, "choose", chosen)


@kinds
@directions
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("subset", [[0], [1], [-1], [0, 1], [1, -1], [0, 1, -1], [-2, -1]])
def test_gradients_of_some_outputs(
    kind: str, both: bool, steps: int, subset: list[int], one_by_one: Any
) -> None:
    layer = make(kind, both)
    results, inputs = call(layer, steps)
    found = torch.autograd.grad(weighted([results[k] for k in subset]), inputs, allow_unused=True)
    assert type(results[0].grad_fn).__name__ == "RecordedBackward"
    one_by_one()
    others, inputs = call(layer, steps)
    for result, other in zip(results, others, strict=True):
        assert torch.equal(result, other)
    wanted = torch.autograd.grad(weighted([others[k] for k in subset]), inputs, allow_unused=True)
    for one, other in zip(found, wanted, strict=True):
        one, other = (g if g is not None else torch.zeros(1) for g in (one, other))
        torch.testing.assert_close(
            one.expand_as(other) if one.dim() == 1 else one, other.expand_as(one)
        )


@kinds
@directions
def test_gradients_of_gradients(kind: str, both: bool, one_by_one: Any) -> None:
    layer = make(kind, both)

    def second() -> tuple[Tensor, ...]:
        results, inputs = call(layer, 3)
        first = torch.autograd.grad(weighted(results), inputs, create_graph=True)
        return torch.autograd.grad(weighted(list(first)), inputs)

    found = second()
    one_by_one()
    for one, other in zip(found, second(), strict=True):
        torch.testing.assert_close(one, other)


@directions
def test_several_gradients_at_once(both: bool) -> None:
    layer = make("LSTM", both)
    results, inputs = call(layer, 3)
    several = torch.randn(5, *results[0].shape, dtype=torch.float64)
    found = torch.autograd.grad(
        results[0], inputs, several, is_grads_batched=True, retain_graph=True
    )
    for k in range(5):
        one = torch.autograd.grad(results[0], inputs, several[k], retain_graph=True)
        for each, wanted in zip(found, one, strict=True):
            torch.testing.assert_close(each[k], wanted)


@directions
def test_only_what_is_wanted_gets_a_gradient(both: bool) -> None:
    layer = make("GRU", both)
    layer.weight_hh_l0.requires_grad_(False)
    x = torch.randn(3, 2, 3, dtype=torch.float64)
    layer(x)[0].sum().backward()
    assert x.grad is None and layer.weight_hh_l0.grad is None
    assert layer.weight_ih_l0.grad is not None and layer.bias_hh_l0.grad is not None


@directions
@pytest.mark.parametrize("steps", [1, 3])
def test_the_last_states_are_copies(both: bool, steps: int) -> None:
    layer = make("LSTM, cells unseen", both)
    (output, h_n, c_n), inputs = call(layer, steps)
    kept = output.clone()
    wanted = torch.autograd.grad(output.sum(), inputs, retain_graph=True)
    with torch.no_grad():
        h_n.zero_()
        c_n.zero_()
    assert torch.equal(output, kept)
    for one, other in zip(torch.autograd.grad(output.sum(), inputs), wanted, strict=True):
        assert torch.equal(one, other)


@directions
@pytest.mark.parametrize("lengths", [None, [0, 0]])
def test_the_last_states_of_no_steps_are_copies(both: bool, lengths: list[int] | None) -> None:
    layer = make("LSTM, cells unseen", both)
    initial = [state.detach() for state in states(layer, 2)]
    kept = [state.clone() for state in initial]
    with torch.no_grad():
        for state in layer(torch.randn(0, 2, 3, dtype=torch.float64), initial, lengths)[1]:
            state.zero_()
    assert all(map(torch.equal, initial, kept))


def test_a_weight_that_changed_before_the_gradient_is_refused() -> None:
    layer = make("RNN", False)
    output, _ = layer(torch.randn(3, 2, 3, dtype=torch.float64))
    with torch.no_grad():
        layer.weight_hh_l0.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@directions
def test_checkpoints_and_hooks_on_what_is_saved(both: bool) -> None:
    layer = make("LSTM", both)
    x = torch.randn(3, 2, 3, dtype=torch.float64, requires_grad=True)
    wanted = torch.autograd.grad(layer(x)[0].sum(), x)[0]
    again: Any = checkpoint(lambda x: layer(x)[0], x, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(again.sum(), x)[0], wanted)
    again = checkpoint(lambda x: layer(x, lengths=torch.tensor([3, 3]))[0], x, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(again.sum(), x)[0], wanted)
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = layer(x)[0]
    assert len(packed) > 2
    assert torch.equal(torch.autograd.grad(output.sum(), x)[0], wanted)


def test_a_subclass_sees_every_operation() -> None:
    seen: list[str] = []

    class Watching(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(getattr(function, "__name__", ""))
            return super().__torch_function__(function, types, args, kwargs or {})

    layer = make("RNN", False)
    x = torch.randn(3, 2, 3, dtype=torch.float64)
    output = layer(x.as_subclass(Watching))[0]
    assert seen and torch.equal(output.as_subclass(Tensor), layer(x)[0])


def test_a_mode_sees_the_operator() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    layer = make("RNN", False)
    with Watch():
        layer(torch.randn(3, 2, 3, dtype=torch.float64))[0].sum().backward()
    assert "zstate.single_gate_rnn.default" in seen
    assert "zstate.single_gate_rnn_gradients.default" in seen


def test_inference_tensors() -> None:
    layer = make("GRU", True)
    x = torch.randn(3, 2, 3, dtype=torch.float64)
    wanted = layer(x)[0]
    with torch.inference_mode():
        found = layer(x)[0]
    assert found.is_inference() and torch.equal(found, wanted)
