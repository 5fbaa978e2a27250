"""What pictures show, against graphs made by hand; where boxes and arrows stand; hostile names."""

from __future__ import annotations

import importlib.util
import io
import itertools
import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import zstate as zs
from zstate.graph import pictures
from zstate.graph.drawing import Box, boxes_of, program_of
from zstate.graph.pictures import _rounded
from zstate.graph.placing import Places, _by_dagre, _in_rows, picture_of, places_of

from .test_names import NAMES, _graph

LAYOUTS = [
    pytest.param(_in_rows, id="rows"),
    pytest.param(
        _by_dagre,
        id="dagre",
        marks=pytest.mark.skipif(
            importlib.util.find_spec("quickjs") is None, reason="quickjs is not installed"
        ),
    ),
]


def shown(boxes: list[Box]) -> list[list[str]]:
    return [[box.title, *box.lines] for box in boxes]


def arrows(boxes: list[Box]) -> set[tuple[int, str, int]]:
    return {
        (boxes.index(source), label, k)
        for k, box in enumerate(boxes)
        for source, (label, _) in box.inputs.items()
    }


def learner() -> tuple[zs.Graph, zs.Tensor, list[zs.Tensor]]:
    g = zs.Graph()
    x = g.placeholder(shape=(5, 2, 3), name="x")
    R = g.variable(np.zeros((16, 4), np.float32), name="encoder.R")
    W = g.variable(np.zeros((16, 3), np.float32), name="encoder.W")
    start = g.variable(0.0, shape=(2, 4), name="start")
    (h,) = g.lstm(x, recurrent_weight=R, input_weight=W, init_state=start * 0.5, name="encoder")
    carried = g.assign(start, g.reshape(h[-1], (2, 4)))
    return g, g.reduction_sum(g.square(h), name="total"), [carried]


def test_a_box_says_the_operation_the_name_the_results_and_the_weights() -> None:
    g, _, _ = learner()
    boxes = boxes_of(program_of(g), None)
    assert shown(boxes) == [
        ["placeholder", "x", "float32[5,2,3]"],
        ["multiplication", "float32[2,4]", "primary: start [2,4]", "secondary: 0.5"],
        [
            "lstm",
            "encoder",
            "state float32[5,2,4]",
            "recurrent_weight: encoder.R [16,4]",
            "input_weight: encoder.W [16,3]",
        ],
        ["slice", "float32[1,2,4]"],
        ["squeeze", "float32[2,4]"],
        ["reshape", "float32[2,4]", "→ start"],
        ["square", "float32[5,2,4]"],
        ["reduction_sum", "total", "float32[1,1,1]"],
    ]
    assert [box.kind for box in boxes][:3] == ["feed", "other", "layer"]
    assert arrows(boxes) == {
        *((0, "source", 2), (1, "init_state", 2), (2, "", 3), (3, "", 4), (4, "", 5)),
        *((2, "", 6), (6, "", 7)),
    }
    drawn = [node for box in boxes for node in box.nodes]
    assert sorted(node.name for node in drawn) == sorted(node.name for node in g.nodes)


def test_a_program_names_its_results_and_targets_choose() -> None:
    g, total, effects = learner()
    x = g.nodes[0].results[0]
    program = g.compile({x: ((5, 2, 3), "float32")}, [total], effects)
    boxes = boxes_of(program_of(program), None)
    assert ["reduction_sum", "total", "float32[1,1,1]", "result: total"] in shown(boxes)
    assert [box.title for box in boxes if "→ start" in box.lines] == ["squeeze"]
    chosen = boxes_of(program_of(g, "", [total]), None)
    assert [box.title for box in chosen] == [
        *("placeholder", "multiplication", "lstm", "square", "reduction_sum")
    ]
    assert (
        g.to_svg(targets=[total]).count("<g>") == g.to_dot(targets=[total]).count("fillcolor") == 5
    )
    with pytest.raises(zs.GraphError, match="to_svg"):
        zs.Graph().to_svg(targets=[total])


@pytest.mark.parametrize(("value", "said"), [(1e-6, "1e-06"), (0.9, "0.9"), (123456789.0, "1.23")])
def test_a_number_keeps_its_size(value: float, said: str) -> None:
    g = zs.Graph()
    g.placeholder(shape=(2,), name="x") + value  # type: ignore[unused-ignore]
    assert shown(boxes_of(program_of(g), None))[1][-1].startswith(f"secondary: {said}")


def test_unrolled_steps_are_one_box() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(30, 1, 2, 4), name="x")
    R = [g.variable(np.zeros((4, 4), np.float32), name=f"R{k}") for k in range(2)]
    states: list[zs.Tensor | None] = [None, None]
    for t in range(30):
        y = x[t]
        for k in range(2):
            (y,) = g.single_gate_rnn(y, recurrent_weight=R[k], init_state=states[k])
            states[k] = g.reshape(y, (2, 4))
    g.reduction_sum(y, name="total")
    found = shown(boxes_of(program_of(g), None))
    assert [lines[0] for lines in found[-2:]] == [
        "single_gate_rnn, single_gate_rnn × 30",
        "reduction_sum",
    ]
    assert found[-2][-2:] == ["R0 [4,4]", "R1 [4,4]"]
    assert len(found) <= 5


def test_updates_are_one_box_and_gradients_have_a_colour() -> None:
    from .test_pictures import training_graph

    boxes = boxes_of(program_of(training_graph(2)), True)
    (update,) = [box for box in boxes if box.kind == "update"]
    assert update.title == "stochastic_gradient_descent × 5"
    assert {"→ layer0.R", "→ layer1.W", "→ P"} <= set(update.lines)
    assert {"lstm_gradients", "soft_max_cross_entropy_gradient"} <= {
        box.title for box in boxes if box.kind == "gradient"
    }


@pytest.mark.parametrize(("steps", "boxes"), [(50, 51), (100, 101), (300, 1)])
def test_what_has_nothing_to_fold_by_is_drawn_as_it_is(steps: int, boxes: int) -> None:
    g = zs.Graph()
    y = g.placeholder(shape=(2,), name="x")
    for _ in range(steps):
        y = g.tanh(y)
    assert len(boxes_of(program_of(g), None)) == boxes


def large(nodes: int) -> zs.Graph:
    rng = np.random.default_rng(3)
    g = zs.Graph()
    made = [g.placeholder(shape=(4, 8), name=f"in{k}") for k in range(3)]
    while len(made) < nodes:
        first, second = (made[-1 - min(int(rng.exponential(5)), len(made) - 1)] for _ in "ab")
        weight = g.variable(np.zeros((8, 8), np.float32), name=f"{'long.' * (len(made) % 9)}W")
        kinds = (lambda: first - second, lambda: g.tanh(first), lambda: first @ weight)  # noqa: B023
        made.append(kinds[int(rng.integers(3))]())
    return g


def crossed(picture: dict[str, Any], places: Places) -> list[tuple[int, int]]:
    """(arrow, box) wherever a line runs through the inside of a box."""
    found = []
    for e, line in enumerate(places.lines):
        corners = [point for _, points in _rounded(line) for point in points]
        steps = np.linspace(0, 1, 40)[:, None]
        pairs = itertools.pairwise(corners)
        dense = np.concatenate([np.array(a) + steps * (np.array(b) - a) for a, b in pairs])
        for k, (x, y) in enumerate(places.at):
            box = picture["boxes"][k]
            inside = (dense > (x + 1, y + 1)) & (
                dense < (x + box["width"] - 1, y + box["height"] - 1)
            )
            if inside.all(axis=1).any():
                found.append((e, k))
    return found


@pytest.mark.parametrize("lay_out", LAYOUTS)
def test_at_200_nodes_no_boxes_overlap_and_arrows_go_from_box_to_box(lay_out: Any) -> None:
    boxes = boxes_of(program_of(large(200)), False)
    picture = picture_of(boxes)
    places = lay_out(picture)
    assert len(boxes) >= 190
    corners = np.array(places.at)
    ends = corners + [(box["width"], box["height"]) for box in picture["boxes"]]
    apart = (ends[:, None] <= corners[None]).any(-1)
    assert (apart | apart.T | np.eye(len(boxes), dtype=bool)).all()
    assert (corners >= 0).all() and (ends <= (places.width, places.height)).all()
    for edge, line in zip(picture["edges"], places.lines, strict=True):
        for k, (x, y), side in ((edge["from"], line[0], 1), (edge["to"], line[-1], 0)):
            assert corners[k, 0] <= x <= ends[k, 0]
            assert y == pytest.approx((corners, ends)[side][k, 1])
        assert all(0 <= x <= places.width for x, _ in line)
    assert crossed(picture, places) == []


@pytest.mark.parametrize("lay_out", LAYOUTS)
@pytest.mark.parametrize("nodes", [0, 1])
def test_next_to_nothing_is_laid_out(lay_out: Any, nodes: int) -> None:
    g = zs.Graph()
    for _ in range(nodes):
        g.placeholder(shape=(2,))
    places = lay_out(picture_of(boxes_of(program_of(g), None)))
    assert len(places.at) == nodes and places.width >= 40 and places.height >= 40


@given(NAMES, NAMES)
@settings(max_examples=25)
def test_names_in_the_page(first: str, second: str) -> None:
    """Whatever the names, the page is the same outside of its JSON, which holds them."""
    pattern = r'(?s)<script type="application/json" id="data">(.*?)</script>'
    page, plain = (_graph(*names)[0].to_html() for names in ((first, second), ("x", "y")))
    page.encode()
    assert re.sub(pattern, "", page, count=1) == re.sub(pattern, "", plain, count=1)
    (text,) = re.findall(pattern, page)
    (program,) = json.loads(text)["programs"]
    assert [box["title"] for box in program["all"]["boxes"]] == [
        *("placeholder", "single_gate_rnn", "tanh", "addition")
    ]
    assert set(re.findall(r"https?://[^\"' ]*", page.replace(text, ""))) == {
        "http://www.w3.org/2000/svg"
    }


def test_names_from_right_to_left_keep_to_their_place() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(2, 3), name="שלום")
    x @ g.variable(np.zeros((3, 3), np.float32), name="مرحبا")
    assert shown(boxes_of(program_of(g), None)) == [
        ["placeholder", "\u2068שלום\u2069", "float32[2,3]"],
        ["matrix_multiplication", "float32[2,3]", "secondary: \u2068مرحبا\u2069 [3,3]"],
    ]


def test_png() -> None:
    pytest.importorskip("matplotlib")
    g, _ = _graph("$x^$ \\frac{", "字\ud800")
    buffer = io.BytesIO()
    pictures.to_png(program_of(g), buffer)
    data = buffer.getvalue()
    assert data.startswith(b"\x89PNG")
    width, height = (int.from_bytes(data[k : k + 4], "big") for k in (16, 20))
    places = places_of(picture_of(boxes_of(program_of(g), None)))
    assert abs(width - 2 * places.width) <= 2 and abs(height - 2 * places.height) <= 2
