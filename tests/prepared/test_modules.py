"""zt.prepare: modules with packed weights give what the modules gave."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import zstate as zs
import zstate.torch as zt
from zstate import cells

MODULES = {
    "torch LSTM": lambda: torch.nn.LSTM(6, 10, 2, bidirectional=True),
    "torch GRU": lambda: torch.nn.GRU(6, 10, batch_first=True),
    "torch RNN": lambda: torch.nn.RNN(6, 10, 2, nonlinearity="relu", bias=False),
    "LSTM": lambda: zt.LSTM(6, 10, 2, peephole=True, batch_first=True),
    "GRU": lambda: zt.GRU(6, 10, bidirectional=True, reset_after=False),
    "heads": lambda: zt.Recurrent(cells.cifg, 6, 10, heads=2, batch_first=True),
    "torch.nn's": lambda: zt.nn.GRU(6, 10, 2),
    "sLSTM": lambda: zt.Recurrent(cells.slstm, 6, 10, 2, bidirectional=True),
    "layer norm": lambda: zt.Recurrent(cells.layer_norm_gru, 6, 10),
}
BOUNDS = {"float32": 2e-6, "bfloat16": 2e-2, "int8": 5e-2}


def same(found: Any, wanted: Any, bound: float) -> None:
    if isinstance(wanted, tuple):
        assert isinstance(found, tuple) and len(found) == len(wanted)
        for each, want in zip(found, wanted, strict=True):
            same(each, want, bound)
        return
    assert found.shape == wanted.shape and not found.requires_grad
    finite = wanted.isfinite()  # sLSTM's m begins with -inf
    assert torch.equal(found[~finite], wanted[~finite])
    found, wanted = found[finite], wanted[finite]
    scale = max([1.0, *wanted.abs().flatten().tolist()])
    assert ((found - wanted).abs() <= bound * scale).all()


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8"])
def test_what_the_module_gave(name: str, weights: str) -> None:
    """With and without states; one sequence; batches of either layout; packed."""
    module = MODULES[name]().eval()
    model, report = zt.prepare(copy.deepcopy(module), weights)
    assert isinstance(model, zt.PreparedLayers) and list(report.changed) == [""]
    assert not list(model.parameters())
    bound = BOUNDS[weights]
    x = torch.randn(5, 3, 6)
    with torch.no_grad():
        output, states = module(x)
        found, ends = model(x)
        same(found, output, bound)
        same(ends, states, bound)
        again = module(x, states)
        same(model(x, states), again, bound)
        same(model(x[:, 0]), module(x[:, 0]), bound)
        lengths = [2, 5, 1] if not module.batch_first else [2, 3, 1, 3, 2]
        padded = torch.nn.utils.rnn.pack_padded_sequence(
            x, torch.tensor(lengths), batch_first=module.batch_first, enforce_sorted=False
        )
        packed, last = module(padded)
        got, end = model(padded)
        same(got.data, packed.data, bound)
        same(end, last, bound)
        assert torch.equal(got.batch_sizes, packed.batch_sizes)
        assert torch.equal(got.sorted_indices, packed.sorted_indices)


class Tagger(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(20, 6)
        self.encoder = torch.nn.LSTM(6, 10)
        self.twice = torch.nn.ModuleList([self.encoder])
        self.head = torch.nn.Linear(10, 4)

    def forward(self, words: torch.Tensor) -> Any:
        return self.head(self.encoder(self.embed(words))[0])


def test_inside_a_model() -> None:
    model = Tagger().eval()
    words = torch.randint(0, 20, (7, 2))
    with torch.no_grad():
        wanted = model(words)
        prepared, report = zt.prepare(model)
        assert prepared is model and model.twice[0] is model.encoder
        assert (model(words) - wanted).abs().max() < 2e-6
    assert str(report) == "encoder: torch.nn.LSTM -> PreparedLayers"
    assert repr(model.encoder.model) in repr(model)
    with pytest.raises(zs.GraphError, match="input: expected a tensor without gradients"):
        model(words)


def test_what_is_left_alone() -> None:
    class Own(torch.nn.LSTM):
        pass

    model = torch.nn.ModuleDict(
        {
            "projected": torch.nn.LSTM(4, 8, proj_size=3),
            "wide": torch.nn.GRU(4, 8, dtype=torch.float64),
            "own": Own(4, 8),
            "zoneout": zt.LSTM(4, 8, zoneout=0.1),
            "cells": zt.LSTM(4, 8, return_cells=True),
        }
    )
    before = dict(model)
    _, report = zt.prepare(model, "int8")
    assert dict(model) == before and not report.changed
    for name, text in {
        "projected": "proj",
        "wide": "not torch.float32",
        "own": "subclass",
        "zoneout": "zoneout or clip",
        "cells": "the cell of every step",
    }.items():
        assert text in report.left[name]


def test_refusals() -> None:
    with pytest.raises(zs.DTypeError, match="model: expected a torch.nn.Module"):
        zt.prepare("model")  # type: ignore[arg-type]
    with pytest.raises(zs.OptionError, match="one of 'float32', 'bfloat16', 'int8'"):
        zt.prepare(torch.nn.LSTM(4, 8), "int4")
    model, _ = zt.prepare(torch.nn.LSTM(4, 8))
    x = torch.zeros(5, 2, 4)
    for given, error, text in (
        ((x[0, 0],), zs.ShapeError, r"input: expected \[T,N,4\] or \[T,4\], got \[4\]"),
        ((x, x), zs.DTypeError, "hx: expected a tuple of state, cell"),
        ((x, (x[:1], None, None)), zs.DTypeError, "hx: expected a tuple of state, cell"),
        ((x, (x, None)), zs.ShapeError, r"hx: expected \[1,N,8\], got \[5,2,4\]"),
        ((x.double(),), zs.DTypeError, "x: expected float32, got float64"),
    ):
        with pytest.raises(error, match=text):
            model(*given)


OURS = {name: make for name, make in MODULES.items() if "torch " not in name} | {
    "both": lambda: zt.LSTM(6, 10, 2, bidirectional=True),
    "one sequence after the other": lambda: zt.RNN(6, 10),
}


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_resets(name: str, weights: str) -> None:
    """With and without states and lengths, whatever the form of the input."""
    torch.manual_seed(11)
    module = OURS[name]().eval()
    model, _ = zt.prepare(copy.deepcopy(module), weights)
    bound, batch_first = BOUNDS[weights], module.batch_first
    steps, batch = 7, 5
    x, resets = torch.randn(steps, batch, 6), torch.rand(steps, batch) < 0.4
    resets[0] = torch.tensor([True, False, True, False, False])
    lengths = torch.tensor([7, 0, 3, 1, 7])
    rows = module.num_layers * module.directions
    given = tuple(torch.randn(rows, batch, 10) for _ in range(module.states))
    if name == "sLSTM":
        given = (*given[:2], given[2].abs() + 1, given[3])
    hx: Any = given if module.states > 1 else given[0]
    if batch_first:
        x, resets = x.transpose(0, 1), resets.T
    with torch.no_grad():
        for states in (None, hx):
            for own in (None, lengths, lengths.tolist(), torch.zeros(batch, dtype=torch.int64)):
                wanted = module(x, states, own, resets)
                same(model(x, states, own, resets), wanted, bound)
        same(model(x, resets=resets * 2.0), module(x, resets=resets), bound)
        one, its = (x[0], resets[0]) if batch_first else (x[:, 0], resets[:, 0])
        same(model(one, resets=its), module(one, resets=its), bound)
        same(model(one, lengths=4, resets=its), module(one, lengths=4, resets=its), bound)
        packed = torch.nn.utils.rnn.pack_padded_sequence(
            x, lengths.clamp(min=1), batch_first=batch_first, enforce_sorted=False
        )
        wanted, found = module(packed, hx, resets=resets), model(packed, hx, resets=resets)
        same(found[0].data, wanted[0].data, bound)
        same(found[1], wanted[1], bound)


def test_other_names_and_forms_of_arguments() -> None:
    module = zt.Recurrent(cells.mgu, 6, 10).eval()
    model, _ = zt.prepare(copy.deepcopy(module))
    x, h = torch.randn(5, 3, 6), torch.randn(1, 3, 10)
    with torch.no_grad():
        same(model(x, states=h), module(x, states=h), 2e-6)
        same(model(x[:, 0], lengths=3), module(x[:, 0], lengths=3), 2e-6)
        for wrong in (torch.ones(4, 3), torch.ones(5)):
            with pytest.raises(zs.ShapeError, match=r"resets: expected \[T,N\] = \[5,3\]"):
                model(x, resets=wrong)
        for batch in (2, 5):
            message = rf"h: expected \[N,10\] = \[3,10\], got \[{batch},10\]"
            with pytest.raises(zs.ShapeError, match=message):
                model(x, torch.ones(1, batch, 10), resets=torch.ones(5, 3))
        with pytest.raises(zs.ShapeError, match=r"x: expected \[T,N,6\], got \[5,3,7\]"):
            model(torch.ones(5, 3, 7), resets=torch.ones(5, 3))
        with pytest.raises(zs.DTypeError, match="resets: expected a torch tensor, got list"):
            model(x, resets=[1])
        with pytest.raises(zs.OptionError, match="states: expected none beside hx"):
            model(x, h, states=h)
        for each in (module, model):
            with pytest.raises(zs.ShapeError, match=r"lengths: expected \[N\] = \[1\], got \[2\]"):
                each(x[:, 0], lengths=[3, 2])
        with pytest.raises(
            zs.DTypeError, match="input: expected a strided tensor, got float32, sp"
        ):
            model(x.to_sparse())


def test_compiled_around_it() -> None:
    model, _ = zt.prepare(torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.GRU(6, 10)))
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        for steps in (5, 3):
            x = torch.randn(steps, 2, 6)
            found, wanted = compiled(x), model(x)
            assert torch.equal(found[0], wanted[0]) and torch.equal(found[1], wanted[1])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_needs_a_graph_is_refused() -> None:
    """A trace would keep the output of its example."""
    (model, _), x = zt.prepare(torch.nn.LSTM(6, 10)), torch.randn(5, 2, 6)
    for run in (
        lambda: torch.jit.trace(model, (x,)),
        lambda: torch.export.export(model, (x,)),
        lambda: torch.func.vmap(model)(x[None]),
        lambda: torch.jit.trace(lambda source: model.model(source)[0], (x,)),
    ):
        with pytest.raises(
            zs.GraphError, match=r"\[prepare\] input: expected a tensor with values"
        ):
            run()
