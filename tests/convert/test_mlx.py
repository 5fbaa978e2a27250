"""MLX's layers and zstate's operations give the same with the same weights, both ways."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core")
nn = pytest.importorskip("mlx.nn")

import zstate as zs  # noqa: E402
import zstate.convert as zc  # noqa: E402
from zstate.types import Array  # noqa: E402

from .common import (  # noqa: E402
    ACT,
    H,
    I,
    N,
    T,
    close,
    draw,
    ours,
    products,
    random_layer,
    states,
    title,
)

_LAYERS = {"single_gate_rnn": "RNN", "lstm": "LSTM", "gru": "GRU"}
_KINDS = {"tanh": ACT.TANH, "relu": ACT.RELU, "sigmoid": ACT.SIGMOID}
_CASES = [
    *products(cell=["single_gate_rnn"], bias=[False, True], nonlinearity=list(_KINDS)),
    *products(cell=["lstm", "gru"], bias=[False, True]),
]


def _made(cell: str, **facts: Any) -> Any:
    if "nonlinearity" in facts:
        facts["nonlinearity"] = getattr(nn, facts["nonlinearity"])
    return getattr(nn, _LAYERS[cell])(I, H, **facts)


def _run(layer: Any, source: Array, initial: dict[str, Array]) -> Array:
    """MLX is batch-major."""
    begin = [mx.array(array) for array in initial.values()]
    result = layer(mx.array(np.ascontiguousarray(source.swapaxes(0, 1))), *begin)
    return np.array(result[0] if isinstance(result, tuple) else result).swapaxes(0, 1)


@pytest.mark.parametrize("options", _CASES, ids=title)
def test_loaded(options: dict[str, Any], rng: np.random.Generator) -> None:
    theirs = _made(**options)
    drawn = {k: mx.array(draw(rng, v.shape)) for k, v in theirs.parameters().items()}
    theirs.load_weights(list(drawn.items()))
    source = draw(rng, (T, N, I))
    facts = {k: v for k, v in options.items() if k != "cell"}
    for layer in (zc.load(theirs, source="mlx"), zc.load(drawn, source="mlx", **facts)):
        assert isinstance(layer, zc.Layer)
        initial = states(rng, [layer])
        close(ours([layer], source, initial), _run(theirs, source, initial[0]))


@pytest.mark.parametrize("options", _CASES, ids=title)
def test_saved(options: dict[str, Any], rng: np.random.Generator) -> None:
    cell = options["cell"]
    fields: dict[str, Any] = {"reset_after": True} if cell == "gru" else {}
    if cell == "single_gate_rnn":
        fields = {"activation": _KINDS[options["nonlinearity"]]}
    layer = random_layer(rng, cell, bias=options["bias"], **fields)
    theirs = _made(cell, **zc.facts(layer, target="mlx"))
    weights = zc.save(layer, target="mlx")
    assert set(weights) == set(theirs.parameters())
    theirs.load_weights([(name, mx.array(array)) for name, array in weights.items()])
    source, initial = draw(rng, (T, N, I)), states(rng, [layer])
    close(_run(theirs, source, initial[0]), ours([layer], source, initial))


def test_other_modules_are_refused() -> None:
    with pytest.raises(zs.OptionError, match="Linear"):
        zc.load(nn.Linear(2, 3), source="mlx")
