"""Pictures: boxes that say what they are, weights as lines in them, arrows that end on boxes; large
graphs folded, with every node in one box."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

import zstate as zs

SVG = "{http://www.w3.org/2000/svg}"


def training_graph(layers: int) -> zs.Graph:
    """A model with so many layers, its gradients and its updates."""
    g = zs.Graph()
    rng = np.random.default_rng(0)
    x = g.placeholder(shape=(None, 2, 4), dtype="float64", name="x")
    y = g.placeholder(shape=(2, 4), dtype="float64", name="y")
    parameters, h = [], x
    for k in range(layers):
        R = g.variable(rng.normal(size=(16, 4)), name=f"layer{k}.R")
        W = g.variable(rng.normal(size=(16, 4)), name=f"layer{k}.W")
        parameters += [R, W]
        (h,) = g.lstm(h, recurrent_weight=R, input_weight=W, name=f"layer{k}")
    P = g.variable(rng.normal(size=(4, 4)), name="P")
    logits = h[-1] @ P
    loss = g.soft_max_cross_entropy(logits, y, axis=-1, name="loss")
    gradients = g.gradients(of=loss, with_respect_to=[*parameters, P])
    norm = sum(g.reduction_sum(g.square(d)) for d in gradients.values())
    scale = 1.0 / (g.square_root(norm) + 1e-6)
    for variable, d in gradients.items():
        rate = g.reshape(scale, ())
        g.assign(variable, g.stochastic_gradient_descent(0.1, variable, d * rate))
    return g


def boxes(picture: str) -> list[tuple[float, list[str]]]:
    """(top, names of the nodes) of every box."""
    root = ElementTree.fromstring(picture)
    found = []
    for group in root.iter(f"{SVG}g"):
        rect, title = group.find(f"{SVG}rect"), group.find(f"{SVG}title")
        assert rect is not None and title is not None and title.text is not None
        lines = [line for line in title.text.split("\n") if re.fullmatch(r"\w+ \S+", line)]
        found.append((float(rect.get("y", "nan")), [line.split()[1] for line in lines]))
    return found


def arrows(picture: str) -> list[list[tuple[float, float]]]:
    """The corners of every arrow."""
    root = ElementTree.fromstring(picture)
    found = []
    for path in root.findall(f"{SVG}path"):
        assert path.get("marker-end") == "url(#arrow)"
        numbers = [float(n) for n in re.findall(r"-?[\d.]+", path.get("d", ""))]
        found.append(list(zip(numbers[::2], numbers[1::2], strict=True)))
    return found


@pytest.mark.parametrize("layers", [2, 3])
def test_a_large_graph_is_folded(layers: int) -> None:
    g = training_graph(layers)
    assert len(g.nodes) > 60
    picture = g.to_svg()
    assert picture == g.to_svg(fold=True)
    found = boxes(picture)
    assert len(found) <= 10 + 5 * layers < len(g.nodes) / 3
    drawn = sorted(name for _, names in found for name in names)
    assert drawn == sorted(node.name for node in g.nodes)  # each in one box
    for line in arrows(picture):
        assert line[0][1] < line[-1][1]  # from above to below
    heads = [names for _, names in found if any(n.startswith("stochastic") for n in names)]
    assert len(heads) == 1  # all updates in one box
    for k in range(layers):
        assert sum(f"layer{k}" in names for _, names in found) == 1


def test_a_large_graph_can_be_unfolded_and_a_small_one_folded() -> None:
    g = training_graph(2)
    operations = [n for n in g.nodes if n.op.name not in ("variable", "constant", "assign")]
    assert len(boxes(g.to_svg(fold=False))) == len(operations)
    assert g.to_dot(fold=False).count("fillcolor") == len(operations)
    assert g.to_dot().count("fillcolor") == len(boxes(g.to_svg()))
    small = zs.Graph()
    x = small.placeholder(shape=(2,), name="x")
    small.square(x + 1.0, name="y")
    assert len(boxes(small.to_svg())) == 3
    assert [names for _, names in boxes(small.to_svg(fold=True))] == [
        ["constant_1", "x", "addition_2"],
        ["y"],
    ]


def test_graphs_without_feeds_and_without_nodes_are_drawn() -> None:
    g = zs.Graph()
    assert boxes(g.to_svg(fold=True)) == []
    v = g.variable(np.zeros(2), name="v")
    g.assign(v, v + 1.0)
    assert sorted(name for _, names in boxes(g.to_svg(fold=True)) for name in names) == [
        "addition_2",
        "assign_3",
        "constant_1",
        "v",
    ]


def test_reprs_help() -> None:
    g = training_graph(1)
    x, y = g.nodes[0].results[0], g.nodes[1].results[0]
    assert repr(g) == (
        f"<Graph of {len(g.nodes)} nodes: feeds [x float64[?,2,4], y float64[2,4]], 3 variables>"
    )
    loss = next(t for n in g.nodes for t in n.results if t.name == "loss:loss")
    program = g.compile({x: ((5, 2, 4), "float64"), y: ((2, 4), "float64")}, [loss])
    assert repr(program) == (
        f"<Executable of {len(program.nodes)} nodes: [x float64[5,2,4], y float64[2,4]] -> "
        "[loss:loss float64[]], 3 variables>"
    )
