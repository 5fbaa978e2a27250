"""A small tagger under torch.compile(fullgraph=True) and torch.export: one graph, equal results."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

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


def check_compiled(model: Tagger, backend: str, lengths: Tensor | None) -> None:
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
    with torch.no_grad():
        torch.testing.assert_close(compiled(words, lengths), model(words, lengths))


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole", "lengths"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("LSTM", {"bidirectional": True, "peephole": True}),
        ("LSTM", {"peephole": True, "peephole_on_new_cell": True}),
        ("LSTM", {"proj_size": 2, "bidirectional": False}),
        ("GRU", {"bidirectional": True}),
        ("RNN", {"nonlinearity": "relu"}),
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
    check_compiled(Tagger("LSTM", bidirectional=True), "inductor", LENGTHS)


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
