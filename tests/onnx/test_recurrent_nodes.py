"""RNN, LSTM and GRU nodes with every attribute give what onnxruntime gives."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import zstate as zs
import zstate.onnx as zo
from tests.onnx.common import Drawn, close, runtime
from zstate.types import Array


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Drawn from the run's seed, which is printed at the top."""
    return np.random.default_rng(int(request.config.option.hypothesis_seed))


def test_a_thousand_random_nodes(rng: np.random.Generator) -> None:
    kinds: set[Any] = set()
    for number in range(1000):
        drawn = Drawn(rng)
        model, feeds = drawn.model()
        close(zo.load(model).run(feeds), runtime(model, feeds), f"{number}: {drawn.attributes}")
        kinds.add(
            (drawn.kind, drawn.attributes["direction"], drawn.arrays["sequence_lens"].size > 0)
        )
    assert len(kinds) == 18


def turned(array: Array, axes: tuple[int, ...]) -> Array:
    return np.ascontiguousarray(array.transpose(axes))


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_batch_first_is_the_transposed_node(kind: str, rng: np.random.Generator) -> None:
    """onnxruntime does not run layout = 1, so the same node with layout = 0 is the oracle."""
    for _ in range(20):
        drawn = Drawn(rng, kind)
        plain, feeds = drawn.model()
        wanted = runtime(plain, feeds)
        drawn.attributes["layout"] = 1
        for name in ("X", "initial_h", "initial_c"):
            if name in drawn.arrays and drawn.arrays[name].size:
                drawn.arrays[name] = turned(drawn.arrays[name], (1, 0, 2))
        model, feeds = drawn.model()
        found = zo.load(model).run(feeds)
        back = {
            name: turned(a, (1, 2, 0, 3) if a.ndim == 4 else (1, 0, 2)) for name, a in found.items()
        }
        close(back, wanted)


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_what_a_node_cannot_say_here_is_refused_by_its_name(
    kind: str, rng: np.random.Generator
) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"clip": 1.5}, "clip"),
        ({"activations": ["Softsign"] * 6, "direction": "bidirectional"}, "Softsign"),
        ({"direction": "sideways"}, "direction"),
        ({"hidden_size": 77}, "77"),
        ({"made_up": 1}, "made_up"),
    ]
    if kind == "LSTM":
        wrong.append(({"input_forget": 1}, "input_forget"))
    for attributes, said in wrong:
        drawn = Drawn(rng, kind)
        if kind != "LSTM" and "activations" in attributes:
            attributes["activations"] = attributes["activations"][: 2 if kind == "RNN" else 4]
        drawn.attributes.pop("activation_alpha", None)
        drawn.attributes.pop("activation_beta", None)
        drawn.attributes.pop("activations", None)
        if attributes.get("direction") == "bidirectional":
            while drawn.arrays["W"].shape[0] != 2:
                drawn = Drawn(rng, kind)
        drawn.attributes |= attributes
        model, _ = drawn.model()
        with pytest.raises(zs.ZStateError, match="'the_node'") as error:
            zo.load(model)
        assert said in str(error.value)


def test_a_hard_sigmoid_of_another_slope_is_refused(rng: np.random.Generator) -> None:
    drawn = Drawn(rng, "RNN")
    while drawn.attributes["direction"] == "bidirectional":
        drawn = Drawn(rng, "RNN")
    drawn.attributes |= {
        "activations": ["HardSigmoid"],
        "activation_alpha": [0.3],
        "activation_beta": [0.5],
    }
    with pytest.raises(zs.ZStateError, match="'the_node'.*alpha=0.3"):
        zo.load(drawn.model()[0])


def test_peepholes(rng: np.random.Generator, tmp_path: Path) -> None:
    """ONNX's output gate looks at c[t]; a node with peepholes is written as it was read."""
    for _ in range(20):
        drawn = Drawn(rng, "LSTM")
        count, _, hidden = drawn.arrays["R"].shape
        drawn.arrays["P"] = rng.normal(size=(count, 3 * hidden)).astype(np.float32)
        for name in ("activations", "activation_alpha", "activation_beta"):
            drawn.attributes.pop(name, None)
        drawn.fed = ("X",)
        drawn.arrays["sequence_lens"] = drawn.arrays["sequence_lens"][:0]
        model, feeds = drawn.model()
        loaded, wanted = zo.load(model), runtime(model, feeds)
        (node,) = [node for node in loaded.graph.nodes if node.op.name == "lstm"]
        assert node.attributes["descriptor"].peephole_on_new_cell
        close(loaded.run(feeds), wanted)
        zo.save(loaded.graph, loaded.outputs, tmp_path / "again.onnx")
        saved = onnx.load(tmp_path / "again.onnx")
        assert [node.op_type for node in saved.graph.node].count("LSTM") == 1
        close(runtime(tmp_path / "again.onnx", feeds), wanted)


def test_shared_weights_stay_one_parameter(rng: np.random.Generator) -> None:
    """Two nodes with the same initialisers train one set of weights."""
    drawn = Drawn(rng, "GRU", direction="forward")
    while drawn.arrays["W"].shape[0] != 1 or "R" in drawn.fed:
        drawn = Drawn(rng, "GRU", direction="forward")
    model, feeds = drawn.model()
    second = onnx.NodeProto()
    second.CopyFrom(model.graph.node[0])
    second.name, second.output[0], second.output[1] = "again", "Z", "Z_h"
    model.graph.node.append(second)
    extra = model.graph.output.add()
    extra.CopyFrom(model.graph.output[0])
    extra.name = "Z"
    loaded = zo.load(model)
    found = loaded.run(feeds)
    np.testing.assert_array_equal(found["Y"], found["Z"])
    assert [n.name for n in loaded.graph.nodes if n.op.name == "variable"].count("W") == 1


def test_one_direction_after_the_other_covers_every_order(rng: np.random.Generator) -> None:
    """Lengths of every value within one batch, for each direction."""
    for kind, word in itertools.product(
        ["RNN", "LSTM", "GRU"], ["forward", "reverse", "bidirectional"]
    ):
        drawn = Drawn(rng, kind)
        while drawn.attributes["direction"] != word:
            drawn = Drawn(rng, kind)
        steps, batch, _ = drawn.arrays["X"].shape
        drawn.arrays["sequence_lens"] = (np.arange(batch) % steps + 1).astype(np.int32)
        model, feeds = drawn.model()
        close(zo.load(model).run(feeds), runtime(model, feeds), f"{kind} {word}")
