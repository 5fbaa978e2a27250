"""Where the boxes and arrows of a still picture stand: by dagre in QuickJS, as in the page; without
QuickJS in rows."""

from __future__ import annotations

import importlib
import importlib.util
import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import visible
from .drawing import Box, kind_of

PAGE = Path(__file__).with_name("page")
SCRIPTS = ("dagre.min.js", "layout.js")
LINE = 16  # the height of a line of text
_GAP = 26
# What QuickJS's JavaScript lacks compared with a browser's.
_LATER = """
var structuredClone = (value) => JSON.parse(JSON.stringify(value));
Object.hasOwn = (o, k) => Object.prototype.hasOwnProperty.call(o, k);
Array.prototype.at = function (k) { return this[k < 0 ? this.length + k : k]; };
function layOutText(text) { return JSON.stringify(layOut(JSON.parse(text))); }
"""

Point = tuple[float, float]


@dataclass(frozen=True)
class Places:
    """The size of the picture, the left upper corner of every box, the corners of every arrow and
    the middle of its label."""

    width: float
    height: float
    at: Sequence[Point]
    lines: Sequence[Sequence[Point]]
    labels: Sequence[Point | None]


def picture_of(boxes: Sequence[Box]) -> dict[str, Any]:
    """The boxes and arrows as JSON has them, with their sizes."""
    number = {box: k for k, box in enumerate(boxes)}
    return {
        "boxes": [
            {
                "title": box.title,
                "lines": box.lines,
                "kind": box.kind,
                "hint": box.hint,
                "width": 20 + max(_width(box.title, 7.4), *(_width(s, 6.4) for s in box.lines), 60),
                "height": 14 + LINE * (1 + len(box.lines)),
            }
            for box in boxes
        ],
        "edges": [
            {
                "from": number[source],
                "to": number[box],
                "label": label,
                "width": _width(label, 6) + 4,
                "hint": "\n".join(
                    visible(f"{tensor.name} {kind_of(tensor)}") for tensor in tensors
                ),
            }
            for box in boxes
            for source, (label, tensors) in box.inputs.items()
        ],
    }


def has_dagre() -> bool:
    """Whether QuickJS is installed, which runs it."""
    return importlib.util.find_spec("quickjs") is not None


def places_of(picture: dict[str, Any]) -> Places:
    """By dagre where there is QuickJS."""
    return _by_dagre(picture) if has_dagre() else _in_rows(picture)


def _by_dagre(picture: dict[str, Any]) -> Places:
    quickjs: Any = importlib.import_module("quickjs")
    context = quickjs.Context()
    context.set_max_stack_size(2**24)
    for text in (_LATER, *((PAGE / name).read_text("utf-8") for name in SCRIPTS)):
        context.eval(text)
    found = json.loads(context.get("layOutText")(json.dumps(picture)))
    return Places(
        found["width"],
        found["height"],
        [tuple(point) for point in found["at"]],
        [[tuple(point) for point in line["points"]] for line in found["lines"]],
        [line["label"] and tuple(line["label"]) for line in found["lines"]],
    )


def _in_rows(picture: dict[str, Any]) -> Places:
    """Every box below those that it reads, and in each row between them a place for the arrow."""
    boxes, edges = picture["boxes"], picture["edges"]
    depth = [0] * len(boxes)
    first: dict[int, int] = {}
    for edge in edges:  # sorted by the box that they lead to; boxes come after what they read
        depth[edge["to"]] = max(depth[edge["to"]], depth[edge["from"]] + 1)
    for edge in edges:
        first[edge["from"]] = min(first.get(edge["from"], len(boxes)), depth[edge["to"]])
    for k in first.keys() - {edge["to"] for edge in edges}:
        # Feeds stand right above their first reader, not all in the first row.
        depth[k] = first[k] - 1
    at: list[Point] = [(0, 0)] * len(boxes)
    lines: list[list[Point]] = [[] for _ in edges]
    right, top = 40.0, 20.0
    for row in range(max(depth, default=-1) + 1):
        inside = [k for k in range(len(boxes)) if depth[k] == row]
        bottom = top + max(boxes[k]["height"] for k in inside)
        # (where it should be, its width, box, arrow): an arrow that passes through has its own
        # place.
        members = [
            (lines[e][-1][0], 10.0, -1, e)
            for e, edge in enumerate(edges)
            if depth[edge["from"]] < row < depth[edge["to"]]
        ]
        for k in inside:
            above = [lines[e][-1][0] for e, edge in enumerate(edges) if edge["to"] == k]
            wanted = sum(above) / len(above) if above else right / 2
            members.append((wanted, boxes[k]["width"], k, -1))
        x = 20.0
        for wanted, width, k, passing in sorted(members):
            x = max(x, wanted - width / 2)
            middle = x + width / 2
            if k < 0:
                lines[passing] += [(middle, top), (middle, bottom)]
            else:
                at[k] = (x, top)
                under = top + boxes[k]["height"]
                for line, edge in zip(lines, edges, strict=True):
                    if edge["to"] == k:
                        line.append((middle, top))
                    elif edge["from"] == k:
                        line += [(middle, under), (middle, bottom)]
            x += width + _GAP
        right = max(right, x)
        top = bottom + 2.5 * _GAP
    labels = [((a + c) / 2, (b + d) / 2) for *_, (a, b), (c, d) in lines]  # of the last stretch
    return Places(right, max(top - _GAP, 40), at, lines, labels)


def _width(text: str, each: float) -> float:
    """About as wide as a browser draws it; ideographs are two letters wide."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return round(each * (len(text) + wide), 1)
