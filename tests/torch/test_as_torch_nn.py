"""Code written for torch.nn's recurrent modules meets ours: isinstance, attributes, quantizers."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import zstate as zs
import zstate.torch as zt

from .modules import CELLS, LAYERS, H, I, N, T, assert_same, flat, states

OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_layers": 2, "bidirectional": True, "batch_first": True, "dropout": 0.5},
    {"bias": False},
]
BEYOND = [
    ("LSTM", {"peephole": True}),
    ("LSTM", {"activations": {"activation": "relu"}}),
    ("GRU", {"reset_after": False}),
    ("RNN", {"recurrent_dropout": 0.5}),
]


def both(kind: str, *args: Any, **options: Any) -> tuple[Any, Any]:
    """torch.nn's module and ours that is one too, with the same weights."""
    theirs, ours = getattr(torch.nn, kind)(*args, **options), getattr(zt.nn, kind)(*args, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


@pytest.mark.parametrize("kind", LAYERS + CELLS)
def test_isinstance(kind: str) -> None:
    base = torch.nn.RNNCellBase if kind in CELLS else torch.nn.RNNBase
    plain, full = getattr(zt, kind)(I, H), getattr(zt.nn, kind)(I, H)
    assert isinstance(plain, base) and not isinstance(plain, getattr(torch.nn, kind))
    assert isinstance(full, getattr(zt, kind)) and isinstance(full, getattr(torch.nn, kind))
    assert repr(full) == repr(plain)


@pytest.mark.parametrize("kind", LAYERS + CELLS)
def test_the_same_numbers_as_torch_nn(kind: str) -> None:
    theirs, ours = both(kind, I, H)
    x = torch.randn(N, I) if kind in CELLS else torch.randn(T, N, I)
    hx = states("LSTM" if "LSTM" in kind else kind, 1, dtype=torch.float32)
    if kind in CELLS:
        hx = tuple(s[0] for s in hx) if isinstance(hx, tuple) else hx[0]
    for module in (ours, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert_same(flat(module(x, hx)), flat(theirs(x, hx)), 1e-6)
    torch.manual_seed(3)
    wanted = getattr(torch.nn, kind)(I, H).state_dict()
    torch.manual_seed(3)
    assert_same([*getattr(zt.nn, kind)(I, H).state_dict().values()], [*wanted.values()], 0.0)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("options", OPTIONS)
def test_what_code_reads_from_a_layer(kind: str, options: dict[str, Any]) -> None:
    theirs, ours = both(kind, I, H, **options)
    names = (
        *("mode", "input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout"),
        *("bidirectional", "proj_size", "_all_weights", "_flat_weights_names"),
    )
    for name in names:
        assert getattr(ours, name) == getattr(theirs, name), name
    ours.double(), theirs.double()
    assert_same(ours._flat_weights, theirs._flat_weights, 0.0)
    for mine, other in zip(ours.all_weights, theirs.all_weights, strict=True):
        assert_same(mine, other, 0.0)
    x = torch.randn(N, T, I, dtype=torch.float64)
    assert ours.get_expected_hidden_size(x, None) == theirs.get_expected_hidden_size(x, None)
    shape = ours.get_expected_hidden_size(x, None)
    hx = (torch.zeros(shape),) * 2 if kind == "LSTM" else torch.zeros(shape)
    ours.check_forward_args(x, hx, None)
    wrong: Any = torch.zeros(shape[0], 1, H)
    wrong = (wrong, wrong) if kind == "LSTM" else wrong
    with pytest.raises(RuntimeError, match="Expected hidden"):
        ours.check_forward_args(x, wrong, None)
    order, hx = torch.tensor([2, 0, 1, 3]), states(kind, 1)
    assert_same(flat(ours.permute_hidden(hx, order)), flat(theirs.permute_hidden(hx, order)), 0.0)


def test_projections_are_listed_too() -> None:
    theirs, ours = both("LSTM", I, H, num_layers=2, proj_size=2)
    assert ours._all_weights == theirs._all_weights
    x = torch.randn(T, N, I)
    assert ours.get_expected_cell_size(x, None) == theirs.get_expected_cell_size(x, None)


@pytest.mark.parametrize(("kind", "options"), BEYOND)
@pytest.mark.parametrize("where", [zt, zt.nn])
def test_weights_that_torch_nn_would_misread(
    kind: str, options: dict[str, Any], where: Any
) -> None:
    """Code that computes with them by torch.nn's equations, as TorchRL's scan does."""
    layer = getattr(where, kind)(I, H, **options)
    (option,) = options
    for name in ("_all_weights", "_flat_weights_names", "_flat_weights"):
        with pytest.raises(zs.ZStateError, match=f"got a layer with {option}"):
            getattr(layer, name)
    # The module itself does not read them.
    copy.deepcopy(layer).double().to("meta")
    # Nor is it refused to those who read whatever there is.
    assert dict(inspect.getmembers(layer))["hidden_size"] == H
    with torch.no_grad():
        x = torch.randn(T, N, I)
        assert torch.equal(torch.jit.trace(layer.eval(), x)(x)[0], layer(x)[0])
    assert len(layer.all_weights[0]) == (5 if option == "peephole" else 4)


def test_the_lists_are_never_out_of_date() -> None:
    layer = zt.nn.GRU(I, H)
    torch.nn.utils.parametrizations.weight_norm(layer, "weight_hh_l0")
    layer.parametrizations.weight_hh_l0.original0.data.mul_(3)
    assert torch.equal(layer._flat_weights[1], layer.weight_hh_l0)
    copied = copy.deepcopy(layer)  # which torch.nn's cannot do: it would copy the list
    x = torch.randn(T, N, I)
    assert torch.equal(copied(x)[0], layer(x)[0])


def initialise(model: torch.nn.Module) -> None:
    """As many scripts have it."""
    for module in model.modules():
        if isinstance(module, torch.nn.LSTM | torch.nn.GRU):
            for name, parameter in module.named_parameters():
                if "weight_ih" in name:
                    torch.nn.init.xavier_uniform_(parameter)
                elif "weight_hh" in name:
                    torch.nn.init.orthogonal_(parameter)
                else:
                    parameter.data.fill_(0)
                    parameter.data[H : 2 * H].fill_(1)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_an_init_loop(kind: str) -> None:
    results = []
    for where in (torch.nn, zt.nn):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(I, I), getattr(where, kind)(I, H, 2))
        initialise(model)
        results.append([*model.state_dict().values()])
    assert_same(results[1], results[0], 0.0)


class Wrapper(torch.nn.Module):
    """A library's module around a layer: what it does depends on the layer's class."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        if not isinstance(self.layer, torch.nn.LSTM):
            raise TypeError("not an LSTM")
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        output, (_, c_n) = self.layer(packed)
        return pad_packed_sequence(output, batch_first=True)[0].sum() + c_n.sum()


def test_replace_for_code_that_asks() -> None:
    wrapper = Wrapper(torch.nn.LSTM(I, H, batch_first=True))
    x, lengths = torch.randn(N, T, I), torch.tensor([3, 6, 1, 5])
    wanted = wrapper(x, lengths)
    _, report = zt.replace(wrapper, as_torch_nn=True)
    assert report.changed == {"layer": "torch.nn.LSTM -> zstate.torch.nn.LSTM"}
    torch.testing.assert_close(wrapper(x, lengths), wanted)
    _, report = zt.replace(wrapper)
    assert report.left == {"layer": "zstate.torch.nn.LSTM is a module of zstate already"}
    zt.restore(wrapper)
    assert type(wrapper.layer) is torch.nn.LSTM


def test_torchrl() -> None:
    torchrl = pytest.importorskip("torchrl.modules")
    tensordict = pytest.importorskip("tensordict")
    steps = {"obs": torch.randn(N, T, I), "is_init": torch.zeros(N, T, 1, dtype=torch.bool)}
    steps["is_init"][:, 0] = steps["is_init"][1, 3] = True
    results = []
    theirs, ours = both("LSTM", I, H, batch_first=True)
    for layer in (theirs, ours):
        module = torchrl.LSTMModule(lstm=layer, in_key="obs", out_key="out")
        with torchrl.set_recurrent_mode(True):
            data = tensordict.TensorDict({k: v.clone() for k, v in steps.items()}, [N, T])
            results.append([module(data)["out"]])
    assert_same(results[1], results[0], 1e-6)


def test_lightning_summary() -> None:
    lightning = pytest.importorskip("lightning.pytorch")

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self, where: Any) -> None:
            super().__init__()
            self.layer = where.LSTM(I, H)
            self.example_input_array = torch.randn(T, N, I)

        def forward(self, x: Tensor) -> Any:
            return self.layer(x)

    tables = [str(lightning.utilities.model_summary.summarize(Model(w))) for w in (torch.nn, zt)]
    assert tables[0] == tables[1]


def quantize(model: torch.nn.Module, *args: Any) -> Any:
    return torch.ao.quantization.quantize_dynamic(model, *args)  # type: ignore[no-untyped-call]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize_per:UserWarning")
@pytest.mark.parametrize("where", [zt, zt.nn])
@pytest.mark.parametrize("kind", ["LSTM", "GRUCell"])
def test_quantize_dynamic_never_drops_options(where: Any, kind: str) -> None:
    options: dict[str, Any] = {"peephole": True} if kind == "LSTM" else {"reset_after": False}
    layer = getattr(where, kind)(I, H, **options)
    model = torch.nn.Sequential(layer, torch.nn.Linear(H, 2))
    left = quantize(model)  # by exact class: ours is not asked for
    assert type(left[0]) is type(layer) and type(left[1]) is not torch.nn.Linear
    x = torch.randn(N, I)
    assert_same(flat(left[0](x)), flat(layer(x)), 0.0)
    qconfig = torch.ao.quantization.default_dynamic_qconfig
    specs: list[Any] = [{type(layer)}, {"0": qconfig}, {"": qconfig}]
    for spec in specs:
        with pytest.raises(zs.ZStateError, match=rf"\[{kind}\] qconfig: .*restore\(model\)"):
            quantize(model, spec)
    layer.qconfig = None  # torch.ao.quantization's own way to leave a module out
    assert type(quantize(model, {"": qconfig})[0]) is type(layer)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_script_is_refused_with_the_way_out() -> None:
    for module in (zt.LSTM(I, H), torch.nn.Sequential(zt.nn.GRUCell(I, H))):
        with pytest.raises(zs.ZStateError, match=r"expected torch\.jit\.trace.*restore\(model\)"):
            torch.jit.script(module)


def test_what_torch_compile_sees() -> None:
    """One graph with zt; with zt.nn the break that torch.nn's classes have, or one if allowed."""
    x = torch.randn(T, N, I)
    for layer, breaks in ((zt.GRU(I, H), 0), (zt.nn.GRU(I, H), 2)):
        torch.compiler.reset()
        model = torch.nn.Sequential(torch.nn.Linear(I, I), layer)
        assert torch._dynamo.explain(model)(x).graph_break_count == breaks
    torch.compiler.reset()
    with torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(x)[0], model(x)[0])
    torch.compiler.reset()
