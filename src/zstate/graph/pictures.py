"""A program as a picture: as SVG, as PNG, and as a page that lays itself out in the browser.

The page's HTML contains no user text: that is in JSON, and the page's script shows it as text.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from html import escape
from typing import Any, BinaryIO

from ..pages import filled, script_data
from .drawing import COLOURS, Program, boxes_of
from .placing import LINE, PAGE, SCRIPTS, Point, picture_of, places_of

_BORDER, _EDGE = "#334155", "#64748b"
_ROUND = 8.0  # the radius of an arrow's turn
_MOST_PIXELS = 4e7  # of a PNG


def to_svg(program: Program, fold: bool | None = None) -> str:
    """The picture, with a hint on every box and arrow that browsers show."""
    picture = picture_of(boxes_of(program, fold))
    places = places_of(picture)
    width, height = math.ceil(places.width), math.ceil(places.height)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="Helvetica, Arial, sans-serif" '
        'font-size="11">',
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="8" '
        f'markerHeight="8" orient="auto"><path d="M0,0.5 L8,4 L0,7.5 z" fill="{_EDGE}"/>'
        "</marker></defs>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for edge, line in zip(picture["edges"], places.lines, strict=True):
        path = " ".join(
            letter + " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            for letter, points in _rounded(line)
        )
        parts.append(
            f'<path d="{path}" fill="none" stroke="{_EDGE}" marker-end="url(#arrow)">'
            f"<title>{escape(edge['hint'])}</title></path>"
        )
    for box, (x, y) in zip(picture["boxes"], places.at, strict=True):
        parts.append(
            f"<g><title>{escape(box['hint'])}</title>"
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{box["width"]}" height="{box["height"]}" '
            f'rx="6" fill="{COLOURS[box["kind"]]}" stroke="{_BORDER}"/>'
        )
        for k, text in enumerate([box["title"], *box["lines"]]):
            weight = ' font-weight="bold" font-size="12"' if k == 0 else ""
            parts.append(
                f'<text x="{x + 10:.1f}" y="{y + 19 + LINE * k:.1f}"{weight}>{escape(text)}</text>'
            )
        parts.append("</g>")
    for edge, label in zip(picture["edges"], places.labels, strict=True):
        if edge["label"] and label is not None:
            parts.append(
                f'<text x="{label[0]:.1f}" y="{label[1] + 4:.1f}" text-anchor="middle" '
                'font-size="10" fill="#475569" stroke="#ffffff" stroke-width="4" '
                f'paint-order="stroke">{escape(edge["label"])}</text>'
            )
    return "\n".join([*parts, "</svg>\n"])


def to_png(program: Program, file: BinaryIO, fold: bool | None = None) -> None:
    """The same picture as pixels, by matplotlib: two pixels per unit, fewer if it is large."""
    from ..train.plots import fonts_for

    figures: Any = importlib.import_module("matplotlib.figure")
    patches: Any = importlib.import_module("matplotlib.patches")
    paths: Any = importlib.import_module("matplotlib.path")
    picture = picture_of(boxes_of(program, fold))
    places = places_of(picture)
    width, height = places.width, places.height
    scale = min(2.0, math.sqrt(_MOST_PIXELS / (width * height)), 2**15 / max(width, height))
    figure = figures.Figure(figsize=(width / 72, height / 72), dpi=72 * scale)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    texts = [text for box in picture["boxes"] for text in (box["title"], *box["lines"])]
    families, _ = fonts_for("".join([*texts, *(edge["label"] for edge in picture["edges"])]))
    style = {"family": families, "parse_math": False}
    for line in places.lines:
        steps = [(letter, point) for letter, points in _rounded(line) for point in points]
        codes = [{"M": 1, "L": 2, "Q": 3}[letter] for letter, _ in steps]
        path = paths.Path([point for _, point in steps], codes)
        look = {"arrowstyle": "-|>", "mutation_scale": 8, "shrinkA": 0, "shrinkB": 0}
        axes.add_patch(patches.FancyArrowPatch(path=path, color=_EDGE, linewidth=1, **look))
    for box, (x, y) in zip(picture["boxes"], places.at, strict=True):
        corners = patches.FancyBboxPatch(
            (x + 6, y + 6),
            box["width"] - 12,
            box["height"] - 12,
            boxstyle="round,pad=6,rounding_size=6",
            facecolor=COLOURS[box["kind"]],
            edgecolor=_BORDER,
        )
        axes.add_patch(corners)
        for k, text in enumerate([box["title"], *box["lines"]]):
            weight = {"weight": "bold", "size": 10} if k == 0 else {"size": 9}
            shown = text.translate({0x2068: None, 0x2069: None})
            axes.text(x + 10, y + 19 + LINE * k, shown, **style, **weight)
    for edge, label in zip(picture["edges"], places.labels, strict=True):
        if edge["label"] and label is not None:
            back = {"facecolor": "white", "edgecolor": "none", "pad": 1}
            place = {"ha": "center", "va": "center", "size": 8, "color": "#475569", "bbox": back}
            axes.text(*label, edge["label"], **style, **place)
    figure.savefig(file, format="png")


def to_html(programs: Sequence[Program], chosen: str = "", unfold: bool = False) -> str:
    """A page with these programs, which it shows one at a time."""
    said = [
        {
            "name": program.name,
            "nodes": len(program.nodes),
            "folded": picture_of(boxes_of(program, None)),
            "all": picture_of(boxes_of(program, False)),
        }
        for program in programs
    ]
    parts = {
        "style": _read("page.css")
        + "".join(f"\n.{kind} rect {{ fill: {colour}; }}" for kind, colour in COLOURS.items()),
        "licence": _read("dagre.LICENSE"),
        "library": _read(SCRIPTS[0]).split("//# sourceMappingURL")[0],
        "script": _read("layout.js") + _read("page.js"),
        "data": script_data({"chosen": chosen, "unfold": unfold, "programs": said}),
    }
    return filled(_read("page.html"), parts)


def _read(name: str) -> str:
    return (PAGE / name).read_text("utf-8")


def _rounded(line: Sequence[Point]) -> list[tuple[str, list[Point]]]:
    """A line through these corners as steps of a path, each corner rounded."""
    corners = [p for k, p in enumerate(line) if k == 0 or math.dist(p, line[k - 1]) > 0.5]
    steps: list[tuple[str, list[Point]]] = [("M", [corners[0]])]
    for before, corner, after in zip(corners, corners[1:], corners[2:], strict=False):
        steps += [("L", [_towards(corner, before)]), ("Q", [corner, _towards(corner, after)])]
    return [*steps, ("L", [corners[-1]])]


def _towards(corner: Point, other: Point) -> Point:
    part = min(_ROUND / math.dist(corner, other), 0.5)
    return (corner[0] + (other[0] - corner[0]) * part, corner[1] + (other[1] - corner[1]) * part)
