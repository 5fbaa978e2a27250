"""replace and restore: models change to our modules and back, or say why not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils import prune

import zstate as zs
import zstate.torch as zt
from tests.torch.modules import LAYERS, H, I, N, T, assert_same, pair


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


class WeightDropped(torch.nn.Module):
    """A layer whose recurrent weight is a plain tensor, recomputed in front of each call.

    As AWD-LSTM's and fastai's are: the parameter stands outside, or inside under another name.
    """

    def __init__(self, layer: torch.nn.Module, inside: bool) -> None:
        super().__init__()
        self.layer = layer
        self.owner = [layer if inside else self]
        weight = layer.weight_hh_l0
        del layer.weight_hh_l0
        self.owner[0].register_parameter("weight_hh_l0_raw", torch.nn.Parameter(weight.detach()))
        layer.weight_hh_l0 = weight.detach().clone()

    def forward(self, x: Tensor) -> Tensor:
        raw = self.owner[0].weight_hh_l0_raw
        self.layer.weight_hh_l0 = torch.nn.functional.dropout(raw, 0.5, self.training)
        output: Tensor = self.layer(x)[0]
        return output


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("kind", LAYERS)
def test_a_weight_dropped_layer_is_left_alone(kind: str, inside: bool) -> None:
    theirs, ours = pair(kind, I, H)
    models = [WeightDropped(layer, inside) for layer in (theirs, ours)]
    _, report = zt.replace(models[0])
    assert type(models[0].layer) is type(theirs) and not report.changed
    assert report.left == {"layer": "its weight_hh_l0 is not a parameter"}
    _, report = zt.restore(models[1])
    assert type(models[1].layer) is type(ours) and list(report.left) == ["layer"]
    x = torch.randn(T, N, I)
    results = []
    for model in models:  # and around ours it works as around torch.nn's
        torch.manual_seed(1)
        output = model(x)
        output.square().sum().backward()
        results.append([output, *(p.grad for _, p in sorted(model.named_parameters()))])
    assert_same(results[1], results[0], 1e-5)


def test_a_layer_that_was_changed_is_left_alone() -> None:
    layers = {name: torch.nn.LSTM(I, H, proj_size=2) for name in ("method", "buffer", "child")}
    layers["method"].forward = lambda x: (x, None)
    layers["buffer"].register_buffer("scale", torch.ones(1))
    layers["child"].norm = torch.nn.LayerNorm(H)
    layers["saved"] = torch.nn.LSTM(I, H)
    layers["saved"].register_state_dict_post_hook(lambda *_: None)
    layers["pruned"] = torch.nn.LSTM(I, H)
    prune.l1_unstructured(layers["pruned"], "weight_hh_l0", 0.3)  # type: ignore[no-untyped-call]
    _, report = zt.replace(torch.nn.ModuleDict(layers))
    assert report.left == {
        "method": "it has a forward of its own",
        "buffer": "it has a scale of its own",
        "child": "it has a norm of its own",
        "saved": "it has hooks, which would be lost",
        "pruned": "it has hooks, which would be lost",
    }
    marked = torch.nn.LSTM(I, H)
    marked._is_hf_initialized = True  # a mark goes along
    new, report = zt.replace(marked)
    assert report.changed and new._is_hf_initialized is True


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


@pytest.mark.parametrize("model", [None, 3, "model", torch.nn.LSTM])
def test_what_is_no_module_is_refused(model: Any) -> None:
    for label, function in (("replace", zt.replace), ("restore", zt.restore)):
        with pytest.raises(zs.DTypeError, match=rf"\[{label}\] model: expected a torch.nn.Module"):
            function(model)


def test_completion_shows_the_modules_of_torch_nn() -> None:
    assert "nn" in dir(zt) and "nn" not in zt.__all__
