"""A small tagger under torch.compile(fullgraph=True) and torch.export: one graph, equal results."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import forward_ad

import zstate.torch as zt

WORDS, T, N = 30, 7, 3
LENGTHS = torch.tensor([7, 2, 4])


class Tagger(torch.nn.Module):
    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, 6)
        self.layer = getattr(zt, kind)(6, 5, num_layers=2, **options)
        self.head = torch.nn.Linear(10 if options.get("bidirectional") else 5, 4)

    def forward(self, words: Tensor, lengths: Tensor | None = None) -> Tensor:
        output = self.layer(self.embedding(words), lengths=lengths)[0]
        return torch.as_tensor(self.head(output.relu()))


def gradients(model: Any, output: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(output.sin().sum(), list(model.parameters())))


def check_compiled(
    model: Tagger, backend: str, lengths: Tensor | None, without_gradients: bool = True
) -> Any:
    torch._dynamo.reset()
    count = CompileCounterWithBackend(backend)
    compiled = torch.compile(model, fullgraph=True, backend=count)
    words = torch.randint(WORDS, (T, N))
    wanted, found = model(words, lengths), compiled(words, lengths)
    assert count.frame_count == 1
    names = {str(node.target) for node in count.graphs[0].graph.nodes}
    assert any(name.startswith("zstate.") for name in names)
    torch.testing.assert_close(found, wanted)
    for mine, other in zip(gradients(model, found), gradients(model, wanted), strict=True):
        torch.testing.assert_close(mine, other)
    if without_gradients:
        with torch.no_grad():
            torch.testing.assert_close(compiled(words, lengths), model(words, lengths))
    return compiled


# Every option, whole sequences and lengths with every kind of layer.
@pytest.mark.parametrize(
    ("kind", "options", "lengths"),
    [
        ("LSTM", {"bidirectional": True, "peephole": True}, LENGTHS),
        ("LSTM", {"peephole": True, "peephole_on_new_cell": True}, None),
        ("LSTM", {"proj_size": 2, "bidirectional": False}, LENGTHS),
        ("GRU", {"bidirectional": True}, None),
        ("GRU", {"bias": False}, LENGTHS),
        ("RNN", {"nonlinearity": "relu"}, None),
        ("RNN", {"bidirectional": True}, LENGTHS),
    ],
)
def test_one_graph(kind: str, options: dict[str, Any], lengths: Tensor | None) -> None:
    if options.get("proj_size"):
        model = Tagger(kind, **options)
        model.head = torch.nn.Linear(2, 4)
    else:
        model = Tagger(kind, **options)
    check_compiled(model, "aot_eager", lengths)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_one_graph_with_inductor() -> None:
    model = Tagger("LSTM", bidirectional=True)
    compiled = check_compiled(model, "inductor", LENGTHS, without_gradients=False)
    # The two biases have the same gradient, but not in the same memory: it is changed in place.
    results = []
    for function in (model, compiled):
        model.zero_grad()
        for seed in range(2):
            words = torch.randint(WORDS, (T, N), generator=torch.Generator().manual_seed(seed))
            function(words, LENGTHS).sin().sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        results.append([parameter.grad for parameter in model.parameters()])
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other)


def test_forward_mode_is_not_lost_in_a_graph() -> None:
    """torch takes the forward derivative of an operator to be zero, and says nothing."""
    layer = zt.GRU(4, 5, dtype=torch.float64)
    x, moved = torch.randn(2, T, N, 4, dtype=torch.float64)

    def derivative(x: Tensor) -> Any:
        return torch.func.jvp(lambda x: layer(x)[0], (x,), (moved,))[1]

    by_difference = (layer(x + 1e-6 * moved)[0] - layer(x - 1e-6 * moved)[0]) / 2e-6
    for function in (derivative, torch.compile(derivative, backend="aot_eager")):
        torch.testing.assert_close(function(x), by_difference, rtol=1e-6, atol=1e-8)
    output = torch.compile(lambda x: layer(x)[0], backend="aot_eager")
    output(x)  # compiled without it, then used with it
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(output(forward_ad.make_dual(x, moved))).tangent
    torch.testing.assert_close(tangent, by_difference, rtol=1e-6, atol=1e-8)
    exported = torch.export.export(layer, (x,)).module()
    with pytest.raises(RuntimeError, match=r"\[gru\] torch.ops.zstate: .* forward-mode"):
        torch.func.jvp(lambda x: exported(x)[0], (x,), (moved,))


FIRST = """
import torch
import zstate.cells
x, R = torch.randn(5, 2, 8), torch.randn(8, 4)
function = lambda x, R: zstate.cells.mgu(x, R).h
found = torch.compile(function, fullgraph=True, backend="aot_eager")(x, R)
torch.testing.assert_close(found, function(x, R))
import zstate.torch
for layer in (zstate.torch.LSTM(8, 4, bidirectional=True), zstate.torch.GRU(8, 4, bias=False)):
    found = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(found, layer(x))
"""


def test_the_first_call_compiles_without_a_warning() -> None:
    command = [sys.executable, "-W", "error::UserWarning", "-c", FIRST]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_recurrent_dropout_compiles() -> None:
    torch._dynamo.reset()
    layer = zt.GRU(4, 5, recurrent_dropout=0.5)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    output, _ = compiled(torch.randn(T, N, 4))
    assert output.isfinite().all()


def test_cells_compile() -> None:
    torch._dynamo.reset()
    cell = zt.LSTMCell(4, 5)
    x, h, c = torch.randn(3, 4), torch.randn(3, 5), torch.randn(3, 5)
    compiled = torch.compile(cell, fullgraph=True, backend="aot_eager")
    for mine, other in zip(compiled(x, (h, c)), cell(x, (h, c)), strict=True):
        torch.testing.assert_close(mine, other)


def test_export_of_a_tagger() -> None:
    model = Tagger("LSTM", bidirectional=True).eval()
    steps, batch = torch.export.Dim("T", min=2), torch.export.Dim("N", min=2)
    exported = torch.export.export(
        model, (torch.randint(WORDS, (T, N)),), dynamic_shapes=({0: steps, 1: batch},)
    )
    words = torch.randint(WORDS, (T + 4, N + 2))
    torch.testing.assert_close(exported.module()(words), model(words))


def test_a_negative_length_in_a_graph_has_no_steps() -> None:
    """Its value is not known while the call is read; outside of a graph it is refused."""
    layer = zt.LSTM(4, 5)
    x, wrong = torch.randn(T, N, 4), torch.tensor([7, -2, 4])
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, lengths=wrong), layer(x, lengths=wrong.clamp(min=0)))
