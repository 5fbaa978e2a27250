"""Flax's cells, of linen and nnx, and zstate's operations give the same with the same weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("flax")
import flax
import flax.linen as nn
import jax
from flax import nnx

import zstate as zs
import zstate.convert as zc
from zstate.types import Array

from .common import (
    ACT,
    H,
    I,
    N,
    T,
    as_list,
    close,
    draw,
    halves,
    ours,
    products,
    random_layer,
    states,
    title,
)

_CELLS = {
    "SimpleCell": "single_gate_rnn",
    "LSTMCell": "lstm",
    "OptimizedLSTMCell": "lstm",
    "GRUCell": "gru",
}
_FUNCTIONS = {"tanh": nn.tanh, "sigmoid": nn.sigmoid, "relu": nn.relu}
_KINDS = {"tanh": ACT.TANH, "sigmoid": ACT.SIGMOID, "relu": ACT.RELU}
_CASES = [
    case | words
    for case in products(name=list(_CELLS), direction=["forward", "reverse", "bidirectional"])
    for words in (
        {"activation": "tanh", "gate": "sigmoid"},
        {"activation": "relu", "gate": "tanh"},
    )
]


def _module(options: dict[str, Any]) -> Any:
    facts = {"activation_fn": _FUNCTIONS[options["activation"]]}
    if options["name"] != "SimpleCell":
        facts["gate_fn"] = _FUNCTIONS[options["gate"]]
    cell = getattr(nn, options["name"])
    if options["direction"] == "bidirectional":
        return nn.Bidirectional(nn.RNN(cell(H, **facts)), nn.RNN(cell(H, **facts)), time_major=True)
    reverse = options["direction"] == "reverse"
    return nn.RNN(cell(H, **facts), time_major=True, reverse=reverse)


def _run(
    module: Any, params: Any, layer: zc.Layer, source: Array, initial: dict[str, Array]
) -> Array:
    """The carry is h, or (c, h) for the LSTM; a pair of them for two directions."""
    carries: list[Any] = []
    for index in range(layer.directions):
        h = halves(layer, initial["init_state"])[index]
        if layer.cell == "lstm":
            carries.append((halves(layer, initial["init_cell"])[index], h))
        else:
            carries.append(h)
    carry = tuple(carries) if layer.directions == 2 else carries[0]
    return np.asarray(module.apply({"params": params}, source, initial_carry=carry))


@pytest.mark.parametrize("options", _CASES, ids=title)
def test_loaded(options: dict[str, Any], rng: np.random.Generator) -> None:
    module = _module(options)
    source = draw(rng, (T, N, I))
    params = module.init(jax.random.key(0), source)["params"]
    params = jax.tree_util.tree_map(lambda leaf: jax.numpy.asarray(draw(rng, leaf.shape)), params)
    facts = {"activation_fn": _FUNCTIONS[options["activation"]]}
    if options["name"] != "SimpleCell":
        facts["gate_fn"] = options["gate"]
    if options["direction"] == "reverse":
        facts["reverse"] = True
    for weights in (params, {"params": params}):
        layer = zc.load(weights, source="flax", **facts)
        assert isinstance(layer, zc.Layer)
        assert layer.cell == _CELLS[options["name"]]
        initial = states(rng, [layer])
        expected = _run(module, params, layer, source, initial[0])
        close(ours([layer], source, initial), expected)


@pytest.mark.parametrize("options", _CASES, ids=title)
def test_saved(options: dict[str, Any], rng: np.random.Generator) -> None:
    cell = _CELLS[options["name"]]
    one, gate = _KINDS[options["activation"]], _KINDS[options["gate"]]
    direction = options["direction"]
    fields: dict[str, Any] = {
        "bidirectional": direction == "bidirectional",
        "reverse": direction == "reverse",
    }
    if cell == "single_gate_rnn":
        fields["activation"] = one
    elif cell == "lstm":
        fields |= {f"{name}_gate_activation": gate for name in ("input", "forget", "output")}
        fields |= {"cell_gate_activation": one, "activation": one}
    else:
        fields |= {"update_gate_activation": gate, "reset_gate_activation": gate}
        fields |= {"output_gate_activation": one, "reset_after": True}
    layer = random_layer(rng, cell, bias=bool(rng.integers(2)), **fields)
    facts = zc.facts(layer, target="flax")
    words = {k: v for k, v in facts.items() if k.endswith("_fn")}
    assert facts.get("reverse", False) == (direction == "reverse")
    module = _module(
        {
            **options,
            "activation": words["activation_fn"],
            "gate": words.get("gate_fn", "sigmoid"),
        }
    )
    weights = zc.save(layer, target="flax")
    params = flax.traverse_util.unflatten_dict(weights, sep="/")
    if direction != "bidirectional":
        params = {"cell": params}
    source, initial = draw(rng, (T, N, I)), states(rng, [layer])
    wanted = jax.tree_util.tree_structure(module.init(jax.random.key(0), source)["params"])
    assert jax.tree_util.tree_structure(params) == wanted
    close(_run(module, params, layer, source, initial[0]), ours([layer], source, initial))


def test_the_cells_of_a_model_are_a_list(rng: np.random.Generator) -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.RNN(nn.GRUCell(2), time_major=True)(
                nn.RNN(nn.LSTMCell(H), time_major=True)(x)
            )

    source = draw(rng, (T, N, I))
    variables = Model().init(jax.random.key(1), source)
    layers = as_list(zc.load(variables, source="flax"))
    names = [name.split("_")[0] for name in variables["params"]]
    assert [layer.cell for layer in layers] == [_CELLS[name] for name in names]
    stack = sorted(layers, key=lambda layer: -layer.hidden)
    close(ours(stack, source, [{}, {}]), np.asarray(Model().apply(variables, source)))


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"gate_fn": nn.hard_sigmoid}, "gate_fn='hard_sigmoid'.*slope is 1/6"),
        ({"activation_fn": nn.gelu}, "activation_fn: expected one of.*'gelu'"),
        ({"reverse": True, "keep_order": True}, "keep_order=True"),
        ({"residual": True}, "residual=True"),
    ],
)
def test_refused(facts: dict[str, Any], message: str, rng: np.random.Generator) -> None:
    params = nn.GRUCell(2).init(jax.random.key(0), np.ones((1, 2)), np.ones((1, 3)))
    with pytest.raises(zs.OptionError, match=message):
        zc.load(params, source="flax", **facts)


# flax.nnx: other names, one kernel for all gates in most cells, and no second bias in its GRU.


def _nnx(options: dict[str, Any], rng: np.random.Generator) -> Any:
    facts = {"activation_fn": _FUNCTIONS[options["activation"]]}
    if options["name"] != "SimpleCell":
        facts["gate_fn"] = _FUNCTIONS[options["gate"]]

    def made() -> Any:
        cell = getattr(nnx, options["name"])(I, H, rngs=nnx.Rngs(0), **facts)
        reverse = options["direction"] == "reverse"
        module = nnx.RNN(cell, time_major=True, reverse=reverse, rngs=nnx.Rngs(0))
        state = nnx.state(module, nnx.Param)
        nnx.update(module, jax.tree_util.tree_map(lambda leaf: draw(rng, leaf.shape), state))
        return module

    if options["direction"] == "bidirectional":
        return nnx.Bidirectional(made(), made(), time_major=True, rngs=nnx.Rngs(0))
    return made()


@pytest.mark.parametrize("options", _CASES, ids=title)
def test_nnx(options: dict[str, Any], rng: np.random.Generator) -> None:
    module = _nnx(options, rng)
    told = {"activation_fn": options["activation"]}
    if options["name"] != "SimpleCell":
        told["gate_fn"] = options["gate"]
    reverse = {"reverse": True} if options["direction"] == "reverse" else {}
    state = nnx.state(module)
    forms: list[tuple[Any, dict[str, Any]]] = [(module, {}), (state, told | reverse)]
    forms.append((nnx.to_pure_dict(state), told | reverse))
    if options["direction"] == "forward":
        forms.append((module.cell, {}))
    source = draw(rng, (T, N, I))
    for weights, facts in forms:
        layer = zc.load(weights, source="flax", **facts)
        assert isinstance(layer, zc.Layer)
        assert layer.cell == _CELLS[options["name"]]
        initial = states(rng, [layer])
        carries: list[Any] = []
        for index in range(layer.directions):
            h = halves(layer, initial[0]["init_state"])[index]
            c = initial[0].get("init_cell")
            carries.append(h if c is None else (halves(layer, c)[index], h))
        carry = tuple(carries) if layer.directions == 2 else carries[0]
        expected = np.asarray(module(source, initial_carry=carry))
        close(ours([layer], source, initial), expected)


def test_what_of_nnx_is_refused() -> None:
    def rnn(**facts: Any) -> Any:
        return nnx.RNN(nnx.SimpleCell(I, H, rngs=nnx.Rngs(0), **facts))

    with pytest.raises(zs.OptionError, match="SimpleCell, LSTMCell.*got Linear"):
        zc.load(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), source="flax")
    with pytest.raises(zs.OptionError, match="residual=True"):
        zc.load(rnn(residual=True), source="flax")
    with pytest.raises(zs.OptionError, match="merge_fn: expected nnx's own"):
        zc.load(nnx.Bidirectional(rnn(), rnn(), merge_fn=max), source="flax")
    with pytest.raises(zs.OptionError, match="same options in both directions"):
        zc.load(nnx.Bidirectional(rnn(), rnn(activation_fn=nn.relu)), source="flax")
