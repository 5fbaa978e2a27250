"""replace and restore: models change to our modules and back, or say why not."""

from __future__ import annotations

import torch
from torch import Tensor

import zstate.torch as zt
from tests.torch.modules import H, I, N, T


class Tagger(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(20, I)
        self.layer = torch.nn.LSTM(I, H, num_layers=2, bidirectional=True, batch_first=True)
        self.cells = torch.nn.ModuleList([torch.nn.GRUCell(2 * H, H), torch.nn.RNNCell(H, H)])
        self.again = self.layer

    def forward(self, words: Tensor) -> Tensor:
        output, _ = self.layer(self.embedding(words))
        return torch.as_tensor(self.cells[1](self.cells[0](output[:, -1])))


def test_replace_and_restore() -> None:
    class Own(torch.nn.LSTM):
        pass

    model = Tagger()
    model.own = Own(I, H)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    words = torch.randint(20, (N, T))
    wanted = model(words)
    same, report = zt.replace(model)
    assert same is model and model.again is model.layer
    assert isinstance(model.layer, zt.LSTM) and isinstance(model.cells[0], zt.GRUCell)
    assert set(report.changed) == {"layer", "cells.0", "cells.1"}
    assert report.left == {"own": "Own is a subclass, which may compute something else"}
    assert "own: left alone" in str(report)
    torch.testing.assert_close(model(words), wanted)
    model(words).sum().backward()
    optimiser.step()  # it still holds the parameters that the model computes with
    changed = model(words)
    assert not torch.allclose(changed, wanted)
    _, back = zt.restore(model)
    assert type(model.layer) is torch.nn.LSTM and model.again is model.layer
    assert set(back.changed) == {"layer", "cells.0", "cells.1"} and not back.left
    torch.testing.assert_close(model(words), changed)


def test_replace_says_why_not() -> None:
    hooked, parametrized = torch.nn.GRU(I, H), torch.nn.GRU(I, H)
    hooked.register_forward_hook(lambda *_: None)
    torch.nn.utils.parametrizations.weight_norm(parametrized, "weight_hh_l0")
    model = torch.nn.ModuleDict({"hooked": hooked, "parametrized": parametrized})
    _, report = zt.replace(model)
    assert report.left["hooked"] == "it has hooks, which would be lost"
    assert "parametrized" in report.left and not report.changed
    ours = torch.nn.ModuleList(
        [zt.LSTM(I, H, peephole=True), zt.GRU(I, H, reset_after=False), zt.RNN(I, H),
         zt.LSTMCell(I, H, peephole=True), zt.LSTM(I, H, peephole_on_new_cell=True)]
    )  # fmt: skip
    _, report = zt.restore(ours)
    assert report.left == {
        "0": "torch.nn has no peephole",
        "1": "torch.nn has no reset_after",
        "3": "torch.nn has no peephole",
        "4": "torch.nn has no peephole_on_new_cell",
    }
    alone, _ = zt.replace(torch.nn.LSTM(I, H, num_layers=2, proj_size=2, dropout=0.5))
    assert type(alone) is zt.LSTM and alone.dropout == 0.5 and alone.proj_size == 2
