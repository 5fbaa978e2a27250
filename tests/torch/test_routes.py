"""Random calls that know which way they took: every route of dispatch.py, against torch.nn."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._python_dispatch import TorchDispatchMode

import zstate.torch as zt
from zstate.backends import native
from zstate.torch import dispatch
from zstate.torch.dispatch import Route

from .modules import LAYERS

pytestmark = pytest.mark.skipif(native.unavailable() is not None, reason="no native engine")

# Packed calls are not made inside transforms, where lengths cannot be read.
REACHED = {
    "operation": set(Route),
    "gradients": set(Route),
    "layer": set(Route),
    "packed": {Route.ENGINE, Route.RECORDED, Route.DISPATCHED},
}
BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 8e-3, torch.bfloat16: 6e-2}
BATCHES = ("whole", "equal lengths", "different lengths", "packed", "cell")

Function = Callable[[Tensor], Tensor]


class Watch(TorchDispatchMode):
    """A mode that changes nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Own(torch.Tensor):
    """A subclass that changes nothing."""


class Draw:
    """A layer of ours and torch.nn's in float64 with the same weights, and an input for both."""

    def __init__(self, number: random.Random, batch: str, dtype: torch.dtype) -> None:
        torch.manual_seed(number.randrange(2**31))
        kind, inputs, hidden = number.choice(LAYERS), number.randint(1, 6), number.randint(1, 9)
        steps, size = number.randint(1, 6), number.randint(1, 5)
        options = {} if batch == "cell" else {"bidirectional": number.random() < 0.5}
        name = kind + "Cell" * (batch == "cell")
        self.ours = getattr(zt, name)(inputs, hidden, dtype=dtype, **options)
        self.theirs = getattr(torch.nn, name)(inputs, hidden, dtype=torch.float64, **options)
        self.theirs.load_state_dict(self.ours.state_dict())
        shape = (size, inputs) if batch == "cell" else (steps, size, inputs)
        self.x, self.batch = torch.randn(shape).to(dtype), batch
        rows = (size,) if batch == "cell" else (2 if options["bidirectional"] else 1, size)
        states = [torch.randn(*rows, hidden).to(dtype) for _ in range(2)]
        self.states = tuple(states) if kind == "LSTM" else states[0]
        least = steps if batch == "equal lengths" else 1
        lengths = sorted((number.randint(least, steps) for _ in range(size)), reverse=True)
        self.lengths = torch.tensor([steps, *lengths[1:]])
        self.dtype = dtype

    def function(self, x: Tensor) -> Tensor:
        """Our output."""
        if self.batch == "cell":
            result = self.ours(x, self.states)
            return result[0] if isinstance(result, tuple) else result
        if self.batch == "whole":
            return self.ours(x, self.states)[0]  # type: ignore[no-any-return]
        if self.batch == "packed":
            packed = pack_padded_sequence(x, self.lengths)
            return self.ours(packed, self.states)[0].data  # type: ignore[no-any-return]
        return self.ours(x, self.states, self.lengths)[0]  # type: ignore[no-any-return]

    def wanted(self, x: Tensor) -> Tensor:
        """torch.nn's output, in float64."""
        states = self.states
        states = tuple(s.double() for s in states) if isinstance(states, tuple) else states.double()
        if self.batch in ("cell", "whole"):
            result = self.theirs(x, states)
            return result[0] if isinstance(result, tuple) else result
        packed = self.theirs(pack_padded_sequence(x, self.lengths), states)[0]
        if self.batch == "packed":
            return packed.data  # type: ignore[no-any-return]
        return torch.nn.utils.rnn.pad_packed_sequence(packed)[0]

    def compare(self, found: Tensor, wanted: Tensor) -> None:
        assert found.dtype == self.dtype
        scale = max(1.0, float(wanted.detach().abs().max()))
        bound = BOUNDS[self.dtype] * scale
        torch.testing.assert_close(found.double(), wanted, rtol=0, atol=bound)


def weighted(output: Tensor) -> Tensor:
    return (output.double() * torch.arange(output.numel()).view(output.shape).cos()).sum()


def gradient(function: Function, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    (found,) = torch.autograd.grad(weighted(function(x)), x)
    return found


def forward_only(draw: Draw) -> None:
    with torch.no_grad():
        first, second = draw.function(draw.x), draw.function(draw.x)
        draw.compare(first, draw.wanted(draw.x.double()))
    assert torch.equal(first, second)  # the second call is a known one


def backward(draw: Draw) -> None:
    wanted = gradient(draw.wanted, draw.x.double())
    for _ in range(2):
        draw.compare(gradient(draw.function, draw.x), wanted)


def double_backward(draw: Draw) -> None:
    def second(function: Function, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        (first,) = torch.autograd.grad(weighted(function(x)), x, create_graph=True)
        return torch.autograd.grad(weighted(first), x)[0]

    draw.compare(second(draw.function, draw.x), second(draw.wanted, draw.x.double()))


def batched_gradients(draw: Draw) -> None:
    x = draw.x.detach().requires_grad_()
    output = draw.function(x)
    several = torch.randn(3, *output.shape).to(draw.dtype)
    (found,) = torch.autograd.grad(output, x, several, is_grads_batched=True)
    x = draw.x.double().requires_grad_()
    output = draw.wanted(x)
    for each, one in zip(found, several, strict=True):
        draw.compare(each, torch.autograd.grad(output, x, one.double(), retain_graph=True)[0])


def func_grad(draw: Draw) -> None:
    found = torch.func.grad(lambda x: weighted(draw.function(x)))(draw.x)
    draw.compare(found, gradient(draw.wanted, draw.x.double()))


def func_vmap(draw: Draw) -> None:
    many = torch.stack([draw.x, -draw.x])
    found = torch.func.vmap(draw.function)(many)
    for each, x in zip(found, many, strict=True):
        draw.compare(each, draw.wanted(x.double()))


def func_jvp(draw: Draw) -> None:
    moved = torch.randn_like(draw.x)
    _, found = torch.func.jvp(draw.function, (draw.x,), (moved,))
    _, wanted = torch.autograd.functional.jvp(draw.wanted, draw.x.double(), moved.double())  # type: ignore[no-untyped-call]
    draw.compare(found, wanted)


def forward_over_reverse(draw: Draw) -> None:
    def first(x: Tensor) -> Tensor:
        return torch.func.grad(lambda x: weighted(draw.function(x)))(x)  # type: ignore[no-any-return]

    moved = torch.randn_like(draw.x)
    _, found = torch.func.jvp(first, (draw.x,), (moved,))
    _, wanted = torch.autograd.functional.hvp(  # type: ignore[no-untyped-call]
        lambda x: weighted(draw.wanted(x)), draw.x.double(), moved.double()
    )
    draw.compare(found, wanted)


def forward_mode_in_backward(draw: Draw) -> None:
    x = draw.x.detach().requires_grad_()
    output = draw.function(x)
    with forward_ad.dual_level():
        moved = torch.randn_like(output)
        incoming = forward_ad.make_dual(torch.randn_like(output), moved)
        (result,) = torch.autograd.grad(output, x, incoming)
        found = forward_ad.unpack_dual(result).tangent
    assert found is not None
    x = draw.x.double().requires_grad_()
    draw.compare(found, torch.autograd.grad(draw.wanted(x), x, moved.double())[0])


def inside_a_mode(draw: Draw) -> None:
    with Watch():
        found = gradient(draw.function, draw.x)
    draw.compare(found, gradient(draw.wanted, draw.x.double()))


def on_a_subclass(draw: Draw) -> None:
    with torch.no_grad():
        found = draw.function(draw.x.as_subclass(Own))
    draw.compare(found.as_subclass(Tensor), draw.wanted(draw.x.double()))


WAYS = (
    *(forward_only, backward, double_backward, batched_gradients, func_grad, func_vmap),
    *(func_jvp, forward_over_reverse, forward_mode_in_backward, inside_a_mode, on_a_subclass),
)
# pack_padded_sequence reads its lengths, and has no rule for transforms.
NOT_PACKED = {func_grad, func_vmap, func_jvp, forward_over_reverse, on_a_subclass}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, Route, torch.dtype]]:
    """How often each route was taken, by call, route and the type that was drawn."""
    counts: Counter[tuple[str, Route, torch.dtype]] = Counter()
    counts.dtype = torch.float32  # type: ignore[attr-defined]
    choose = dispatch.choose

    def counted(call: dispatch.Call, tensors: dispatch.Tensors) -> Route:
        route = choose(call, tensors)
        counts.update([(call, route, counts.dtype)])  # type: ignore[attr-defined]
        return route

    monkeypatch.setattr(dispatch, "choose", counted)
    return counts


def test_random_calls_take_every_route(taken: Any, pytestconfig: pytest.Config) -> None:
    seed = int(pytestconfig.option.hypothesis_seed) % 2**31
    number = random.Random(seed)
    native._native.forget_paths()
    for dtype in BOUNDS:
        taken.dtype = dtype
        for batch in BATCHES:
            for way in WAYS:
                if batch == "packed" and way in NOT_PACKED:
                    continue
                draw = Draw(number, batch, dtype)
                try:
                    way(draw)
                except AssertionError as error:
                    raise AssertionError(f"{way.__name__}, {batch}, {dtype}, {seed=}") from error
    reached: dict[str, set[Route]] = {call: set() for call in REACHED}
    for call, route, _ in taken:
        reached[call].add(route)
    assert reached == REACHED
    for call in REACHED:
        for dtype in BOUNDS:
            for route in REACHED[call] & {Route.ENGINE, Route.RECORDED}:
                assert taken[call, route, dtype], (call, route, dtype)
    assert "known_call_on_tensors" in native._native.paths_taken()


def test_a_layer_away_from_the_cpu_is_routed_once(taken: Any) -> None:
    layer = zt.LSTM(3, 4, bidirectional=True, device="meta")
    output, _ = layer(torch.zeros(2, 1, 3, device="meta"))
    assert output.shape == (2, 1, 8)
    assert taken == Counter({("operation", Route.DISPATCHED, torch.float32): 1})
