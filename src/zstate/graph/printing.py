"""A graph as text, in Graphviz's language, and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from html import escape
from typing import TYPE_CHECKING, Any

from ..descriptors import Activation, Descriptor
from ..layout import brackets
from .ops import CONSTANT, PLACEHOLDER, VARIABLE
from .tensor import Node, Tensor

if TYPE_CHECKING:
    from .graph import Graph

_COLOURS = {"placeholder": "#dbeafe", "constant": "#f1f5f9", "variable": "#fef3c7"}
_RECURRENT = "#dcfce7"
_OTHER = "#ffffff"


def to_text(graph: Graph) -> str:
    """One line a node: its results with their shapes, its operation, inputs and attributes."""
    lines = [f"graph of {len(graph.nodes)} nodes"]
    for node in graph.nodes:
        results = ", ".join(f"{t.name} {_kind(t)}" for t in node.results)
        names = node.attributes.get("names")
        inputs = [
            f"{names[k]}={tensor.name}" if names else tensor.name
            for k, tensor in enumerate(node.inputs)
        ]
        lines.append(f"  {results} = {node.op.name}({', '.join(inputs + _settings(node))})")
    return "\n".join(lines)


def listed(tensors: Sequence[Tensor], names: Sequence[str] | None = None) -> str:
    """Names, types and shapes in a line, the first few of many."""
    shown = [
        f"{name} {_kind(tensor)}"
        for tensor, name in zip(tensors, names or [t.name for t in tensors], strict=True)
    ]
    more = [f"… {len(shown) - 4} more"] if len(shown) > 4 else []
    return f"[{', '.join(shown[:4] + more)}]"


def to_dot(graph: Graph) -> str:
    """One box a node, one arrow an input."""
    numbers = {node: k for k, node in enumerate(graph.nodes)}
    lines = ["digraph zstate {", "  node [shape=box, style=filled, fontname=Helvetica];"]
    for node, number in numbers.items():
        text = "\n".join([node.name, *(_kind(tensor) for tensor in node.results)])
        lines.append(f"  n{number} [label={_quoted(text)}, fillcolor={_quoted(_colour(node))}];")
    for node, number in numbers.items():
        for k, tensor in enumerate(node.inputs):
            label = _quoted(node.op.operand(node, k))
            lines.append(f"  n{numbers[tensor.node]} -> n{number} [label={label}];")
    return "\n".join([*lines, "}"])


def to_svg(graph: Graph) -> str:
    """Rows by depth: every node stands below the nodes that it reads."""
    width, height, gap = 190, 44, 30
    depth: dict[Node, int] = {}
    rows: dict[int, list[Node]] = {}
    for node in graph.nodes:
        depth[node] = 1 + max((depth[t.node] for t in node.inputs), default=-1)
    for node in graph.nodes:
        # What is given stands right above its first reader, not all of it in the first row.
        if not node.inputs:
            readers = [depth[n] for n in graph.nodes if any(t.node is node for t in n.inputs)]
            depth[node] = max(0, min(readers, default=1) - 1)
        rows.setdefault(depth[node], []).append(node)
    at: dict[Node, tuple[int, int]] = {}
    for row, nodes in sorted(rows.items()):
        nodes.sort(key=lambda n: _middle([at[t.node][0] for t in n.inputs if t.node in at]))
        for column, node in enumerate(nodes):
            at[node] = (gap + column * (width + gap), gap + row * (height + 2 * gap))
    right = max((x for x, _ in at.values()), default=0) + width + gap
    bottom = max((y for _, y in at.values()), default=0) + height + gap
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{right}" height="{bottom}" '
        f'viewBox="0 0 {right} {bottom}" font-family="Helvetica, sans-serif" font-size="11">'
    ]
    for node in graph.nodes:
        for tensor in node.inputs:
            (x1, y1), (x2, y2) = at[tensor.node], at[node]
            x1, y1, x2 = x1 + width // 2, y1 + height, x2 + width // 2
            bend = (y1 + y2) // 2
            parts.append(
                f'<path d="M{x1},{y1} C{x1},{bend} {x2},{bend} {x2},{y2}" '
                'fill="none" stroke="#64748b"/>'
            )
    for node, (x, y) in at.items():
        kinds = " ".join(_kind(tensor) for tensor in node.results)
        parts.append(
            f"<g><title>{escape(node.op.name)} {escape(node.name)}\n{escape(kinds)}</title>"
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" '
            f'fill="{_colour(node)}" stroke="#334155"/>'
            f'<text x="{x + 8}" y="{y + 18}" font-weight="bold">{escape(_short(node.name))}</text>'
            f'<text x="{x + 8}" y="{y + 35}">{escape(_short(kinds))}</text></g>'
        )
    return "\n".join([*parts, "</svg>\n"])


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
