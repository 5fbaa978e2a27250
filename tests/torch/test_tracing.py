"""Graphs made by looking on: torch.jit.trace and torch.fx record the layers, ONNX is refused."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

import zstate as zs
import zstate.torch as zt

from .modules import CELLS, LAYERS

I, H = 3, 4

pytestmark = [
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]


class Model(torch.nn.Module):
    """A layer between two others, as users have it; results of all kinds."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        self.before = torch.nn.Linear(I, I)
        self.layer = getattr(zt, kind)(I, H, **options)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        output, last = self.layer(self.before(x))
        return output, last[-1] if isinstance(last, tuple) else last


def trace(function: Any, *inputs: Tensor) -> Any:
    return torch.jit.trace(function, inputs)  # type: ignore[no-untyped-call]


def assert_records(traced: Any, function: Any, *inputs: Tensor) -> None:
    """The trace computes what the function computes on inputs it has not seen."""
    wanted, found = function(*inputs), traced(*inputs)
    if isinstance(wanted, Tensor):
        wanted, found = (wanted,), (found,)
    for one, other in zip(wanted, found, strict=True):
        torch.testing.assert_close(other, one)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"num_layers": 2}])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("steps", [1, 5])
def test_a_traced_layer(kind: str, options: dict[str, Any], grad: bool, steps: int) -> None:
    torch.manual_seed(0)
    model = Model(kind, **options)
    with torch.set_grad_enabled(grad):
        traced = trace(model, torch.randn(steps, 2, I))
        file = io.BytesIO()
        torch.jit.save(traced, file)  # type: ignore[no-untyped-call]
        file.seek(0)
        loaded = torch.jit.load(file)  # type: ignore[no-untyped-call]
        for each in (traced, loaded):
            assert_records(each, model, torch.randn(7, 3, I))
            assert_records(each, model, torch.randn(1, 3, I))


@pytest.mark.parametrize("kind", LAYERS)
def test_a_trace_has_gradients(kind: str) -> None:
    torch.manual_seed(0)
    model = Model(kind)
    with torch.no_grad():
        traced = trace(model, torch.randn(5, 2, I))
    x = torch.randn(6, 3, I, requires_grad=True)
    wanted = torch.autograd.grad(model(x)[0].square().sum(), [x, *model.parameters()])
    found = torch.autograd.grad(traced(x)[0].square().sum(), [x, *traced.parameters()])
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", CELLS)
def test_a_traced_cell(kind: str) -> None:
    cell = getattr(zt, kind)(I, H)
    with torch.no_grad():
        assert_records(trace(cell, torch.randn(2, I)), cell, torch.randn(5, I))


@pytest.mark.parametrize("both", [False, True])
def test_traced_lengths(both: bool) -> None:
    layer = zt.GRU(I, H, bidirectional=both).requires_grad_(False)

    def function(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        output, h_n = layer(x, lengths=lengths)
        return output, h_n

    with torch.no_grad():
        traced = trace(function, torch.randn(5, 2, I), torch.tensor([5, 2]))
        assert_records(traced, function, torch.randn(5, 2, I), torch.tensor([1, 4]))


def test_a_traced_packed_sequence() -> None:
    layer = zt.LSTM(I, H).requires_grad_(False)

    def function(x: Tensor, lengths: Tensor) -> Tensor:
        data: Tensor = layer(pack_padded_sequence(x, lengths))[0].data
        return data

    with torch.no_grad():
        traced = trace(function, torch.randn(5, 2, I), torch.tensor([5, 2]))
        assert_records(traced, function, torch.randn(5, 2, I), torch.tensor([5, 4]))


@pytest.mark.parametrize("grad", [False, True])
def test_a_traced_operation(grad: bool) -> None:
    def function(x: Tensor, R: Tensor) -> Tensor:
        state: Any = zs.lstm(x, R).state  # type: ignore[arg-type]
        return state.tanh()  # type: ignore[no-any-return]

    with torch.set_grad_enabled(grad):
        weight = torch.randn(4 * H, H, requires_grad=grad)
        for _ in range(2):  # a known call too
            zs.lstm(torch.randn(5, 2, 4 * H), weight)  # type: ignore[arg-type]
        traced = trace(function, torch.randn(5, 2, 4 * H), weight)
        assert_records(traced, function, torch.randn(6, 3, 4 * H), torch.randn(4 * H, H))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", [*LAYERS, *CELLS])
@pytest.mark.parametrize("grad", [False, True])
def test_onnx_is_refused_with_the_way_out(kind: str, grad: bool) -> None:
    pytest.importorskip("onnx")
    module = getattr(zt, kind)(I, H)
    x = torch.randn(2, I) if kind in CELLS else torch.randn(5, 2, I)
    with (
        torch.set_grad_enabled(grad),
        pytest.raises(zs.ZStateError, match=r"zstate\.torch\.restore\(model\)"),
    ):
        torch.onnx.export(module, (x,), io.BytesIO(), dynamo=False)


@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_is_a_leaf_of_torch_fx(kind: str) -> None:
    class Unpacking(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([getattr(zt, kind)(I, H, num_layers=2)])

        def forward(self, x: Tensor) -> Tensor:
            output, _ = self.layers[0](x)
            again, _ = self.layers[0](x, None, lengths=[3, 1])
            return output + again

    model = Unpacking()
    graph = torch.fx.symbolic_trace(model)
    assert [n.target for n in graph.graph.nodes if n.op == "call_module"] == ["layers.0"] * 2
    x = torch.randn(3, 2, I)
    assert torch.equal(graph(x), model(x))


@pytest.mark.parametrize("kind", CELLS)
def test_a_cell_is_a_leaf_of_torch_fx(kind: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(I, I), getattr(zt, kind)(I, H))
    graph = torch.fx.symbolic_trace(model)
    assert [n.target for n in graph.graph.nodes if n.op == "call_module"] == ["0", "1"]
    x = torch.randn(2, I)
    for one, other in zip(graph(x), model(x), strict=True):
        assert torch.equal(one, other)


def test_a_function_on_a_proxy_is_refused() -> None:
    with pytest.raises(zs.ZStateError, match=r"\[lstm\] source: expected .*, got .*Proxy"):
        torch.fx.symbolic_trace(lambda x: zs.lstm(x, torch.randn(4 * H, H)))  # type: ignore[arg-type]
