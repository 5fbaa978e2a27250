"""A graph as text, in Graphviz's language, and as a picture."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from html import escape
from typing import TYPE_CHECKING, Any

from ..cells import MadeCell
from ..descriptors import Activation, Descriptor
from ..errors import visible
from ..layout import brackets
from .ops import CONSTANT, PLACEHOLDER, VARIABLE
from .tensor import Node, Tensor

if TYPE_CHECKING:
    from .graph import Graph

_COLOURS = {"placeholder": "#dbeafe", "constant": "#f1f5f9", "variable": "#fef3c7"}
_RECURRENT = "#dcfce7"
_OTHER = "#ffffff"
_MOST_NODES = 60  # that are drawn one by one unless the caller says so
_UPDATES = ("adam", "stochastic_gradient_descent")
_HEADS = (
    "placeholder",
    "matrix_multiplication",
    "soft_max_cross_entropy",
    "soft_max_cross_entropy_gradient",
)


def to_text(graph: Graph) -> str:
    """One line per node: its results with their shapes, its operation, inputs and attributes."""
    lines = [f"graph of {len(graph.nodes)} nodes"]
    for node in graph.nodes:
        results = ", ".join(f"{t.name} {_kind(t)}" for t in node.results)
        names = node.attributes.get("names")
        inputs = [
            f"{names[k]}={tensor.name}" if names else tensor.name
            for k, tensor in enumerate(node.inputs)
        ]
        line = f"  {results} = {node.op.name}({', '.join(inputs + _settings(node))})"
        lines.append(visible(line))
    for made in {
        node.attributes["cell"]: None for node in graph.nodes if "cell" in node.attributes
    }:
        lines += [f"cell {made.__name__}", *(f"  {line}" for line in str(made).splitlines())]
    return "\n".join(lines)


def listed(tensors: Sequence[Tensor], names: Sequence[str] | None = None) -> str:
    """Names, types and shapes in a line, the first few of many."""
    shown = [
        visible(f"{name} {_kind(tensor)}")
        for tensor, name in zip(tensors, names or [t.name for t in tensors], strict=True)
    ]
    more = [f"… {len(shown) - 4} more"] if len(shown) > 4 else []
    return f"[{', '.join(shown[:4] + more)}]"


def to_dot(graph: Graph, fold: bool | None = None) -> str:
    """One box per node and one arrow per input; folded, one box per part of the graph."""
    boxes = _boxes(graph, fold)
    numbers = {box: k for k, box in enumerate(boxes)}
    lines = ["digraph zstate {", "  node [shape=box, style=filled, fontname=Helvetica];"]
    for box, number in numbers.items():
        text = _quoted("\n".join([box.title, *box.lines]))
        lines.append(f"  n{number} [label={text}, fillcolor={_quoted(box.colour)}];")
    for box, number in numbers.items():
        for source, operand in box.inputs:
            label = f" [label={_quoted(operand)}]" if operand else ""
            lines.append(f"  n{numbers[source]} -> n{number}{label};")
    return "\n".join([*lines, "}"])


def to_svg(graph: Graph, fold: bool | None = None) -> str:
    """Rows by depth: every box stands below those that it reads."""
    boxes = _boxes(graph, fold)
    width, gap = 230, 30
    height = 14 + 17 * max((1 + len(box.lines) for box in boxes), default=1)
    depth: dict[_Box, int] = {}
    readers: dict[_Box, list[_Box]] = {}
    rows: dict[int, list[_Box]] = {}
    for box in boxes:
        depth[box] = 1 + max((depth[source] for source, _ in box.inputs), default=-1)
        for source, _ in box.inputs:
            readers.setdefault(source, []).append(box)
    for box in boxes:
        # What is given stands right above its first reader, not all of it in the first row.
        if not box.inputs:
            first = min((depth[reader] for reader in readers.get(box, ())), default=1)
            depth[box] = max(0, first - 1)
        rows.setdefault(depth[box], []).append(box)
    at: dict[_Box, tuple[int, int]] = {}
    for row, members in sorted(rows.items()):
        members.sort(key=lambda one: _middle([at[s][0] for s, _ in one.inputs if s in at]))
        for column, box in enumerate(members):
            at[box] = (gap + column * (width + gap), gap + row * (height + 2 * gap))
    right = max((x for x, _ in at.values()), default=0) + width + gap
    bottom = max((y for _, y in at.values()), default=0) + height + gap
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{right}" height="{bottom}" '
        f'viewBox="0 0 {right} {bottom}" font-family="Helvetica, sans-serif" font-size="11">'
    ]
    for box in boxes:
        for source, _ in box.inputs:
            (x1, y1), (x2, y2) = at[source], at[box]
            x1, y1, x2 = x1 + width // 2, y1 + height, x2 + width // 2
            bend = (y1 + y2) // 2
            parts.append(
                f'<path d="M{x1},{y1} C{x1},{bend} {x2},{bend} {x2},{y2}" '
                'fill="none" stroke="#64748b"/>'
            )
    for box, (x, y) in at.items():
        parts.append(
            f"<g><title>{escape(box.hint)}</title>"
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" '
            f'fill="{box.colour}" stroke="#334155"/>'
            f'<text x="{x + 8}" y="{y + 18}" font-weight="bold">{escape(_short(box.title))}</text>'
        )
        for k, line in enumerate(box.lines):
            parts.append(f'<text x="{x + 8}" y="{y + 35 + 17 * k}">{escape(_short(line))}</text>')
        parts.append("</g>")
    return "\n".join([*parts, "</svg>\n"])


@dataclass(eq=False)
class _Box:
    """What is drawn as one: a node, or a part of the graph. ``inputs`` are those drawn before it,
    with the name of the operand."""

    title: str
    lines: list[str]
    colour: str
    hint: str
    inputs: list[tuple[_Box, str]] = field(default_factory=list)


def _boxes(graph: Graph, fold: bool | None) -> list[_Box]:
    """``fold`` None means: where there are more nodes than a reader can follow."""
    if len(graph.nodes) > _MOST_NODES if fold is None else fold:
        return _folded(graph)
    drawn: dict[Node, _Box] = {}
    for node in graph.nodes:
        kinds = [_kind(tensor) for tensor in node.results]
        hint = "\n".join([_title(node), " ".join(kinds)])
        inputs = [(drawn[t.node], node.op.operand(node, k)) for k, t in enumerate(node.inputs)]
        drawn[node] = _Box(_label(node), kinds, _colour(node), hint, inputs)
    return list(drawn.values())


def _folded(graph: Graph) -> list[_Box]:
    """One box per step that a reader knows by name, with what is computed from it up to the next.

    Such steps are feeds, layers, products, losses, the gradient of each, and all updates as one.
    """
    parts = _parts(graph)
    members: dict[Node, list[Node]] = {}
    for node, head in parts.items():
        members.setdefault(head, []).append(node)
    drawn: dict[Node, _Box] = {}
    for head in members:
        others = [node for node in members[head] if node is not head]
        lines = [" ".join(_kind(tensor) for tensor in head.results)]
        if others:
            counts = Counter(node.op.name for node in others)
            plural = "s" if len(others) > 1 else ""
            lines.append(f"and {len(others)} more node{plural}")
            lines.append(", ".join(f"{count} {name}" for name, count in counts.most_common(3)))
        sources = {parts[t.node]: None for node in members[head] for t in node.inputs}
        inputs = [(drawn[source], "") for source in sources if source is not head]
        hint = "\n".join(map(_title, members[head]))
        drawn[head] = _Box(_label(head), lines, _colour(head), hint, inputs)
    return list(drawn.values())


def _parts(graph: Graph) -> dict[Node, Node]:
    """The head of the part that each node belongs to: the last head that it depends on.

    So a part reads only parts with an earlier head, and no two read each other. The parts come in
    the order of their heads, that of the updates last.
    """
    place = {node: k for k, node in enumerate(graph.nodes)}
    heads: dict[Node, Node] = {}
    updates: Node | None = None
    for node in graph.nodes:
        above = [heads[t.node] for t in node.inputs if t.node in heads]
        if node.op.name in _UPDATES or (updates is not None and updates in above):
            updates = updates or node
            place[updates] = len(graph.nodes)
            heads[node] = updates
        elif _is_head(node):
            heads[node] = node
        elif above:
            heads[node] = max(above, key=place.__getitem__)
    # What depends on no head (constants, variables, and what is made of them) goes with the first
    # part that reads it.
    given: dict[Node, Node] = {}
    for node in reversed(graph.nodes):
        head = heads.get(node) or given.setdefault(node, node)
        for tensor in node.inputs:
            if tensor.node not in heads:
                known = given.get(tensor.node, head)
                given[tensor.node] = min(known, head, key=place.__getitem__)
    found = {**given, **heads}
    return {node: found[node] for node in sorted(graph.nodes, key=lambda n: place[found[n]])}


def _is_head(node: Node) -> bool:
    """Whether a reader looks for this node: a feed, a layer, a loss, what has a name of its own."""
    if node.op in (CONSTANT, VARIABLE):
        return False
    is_named = re.fullmatch(rf"{node.op.name}_\d+", node.name) is None
    return is_named or "descriptor" in node.attributes or node.op.name in _HEADS


def _title(node: Node) -> str:
    return visible(f"{node.op.name} {_label(node)}")


def _label(node: Node) -> str:
    made = node.attributes.get("cell")
    return visible(node.name if made is None else f"{node.name} ({made.__name__})")


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dtype}{brackets(tensor.shape)}"


def _colour(node: Node) -> str:
    return _RECURRENT if "descriptor" in node.attributes else _COLOURS.get(node.op.name, _OTHER)


def _settings(node: Node) -> list[str]:
    """The attributes that say something: not the names of inputs, not the data."""
    if node.op in (PLACEHOLDER, CONSTANT, VARIABLE):
        return []
    return [f"{name}={_value(value)}" for name, value in node.attributes.items() if name != "names"]


def _value(value: Any) -> str:
    if isinstance(value, MadeCell):
        return value.__name__
    if not isinstance(value, Descriptor):
        return str(value)
    changed: Mapping[str, Any] = {
        field.name: getattr(value, field.name)
        for field in fields(value)  # type: ignore[arg-type]
        if getattr(value, field.name) != field.default
    }
    options = [
        name if chosen is True else f"{name}={_activation(chosen)}"
        for name, chosen in changed.items()
    ]
    return f"{type(value).__name__}({', '.join(options)})"


def _activation(value: Any) -> str:
    return value.name.lower() if isinstance(value, Activation) else str(value)


def _middle(places: list[int]) -> float:
    return sum(places) / len(places) if places else float("inf")


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _short(text: str) -> str:
    return text if len(text) <= 30 else text[:29] + "…"
