"""A graph as text, and in Graphviz's language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ..cells import MadeCell
from ..descriptors import Activation, Descriptor
from ..errors import visible
from .drawing import COLOURS, Program, boxes_of, kind_of
from .ops import CONSTANT, PLACEHOLDER, VARIABLE
from .tensor import Node, Tensor

if TYPE_CHECKING:
    from .graph import Graph


def to_text(graph: Graph) -> str:
    """One line per node: its results with their shapes, its operation, inputs and attributes."""
    lines = [f"graph of {len(graph.nodes)} nodes"]
    for node in graph.nodes:
        results = ", ".join(f"{t.name} {kind_of(t)}" for t in node.results)
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
        visible(f"{name} {kind_of(tensor)}")
        for tensor, name in zip(tensors, names or [t.name for t in tensors], strict=True)
    ]
    more = [f"… {len(shown) - 4} more"] if len(shown) > 4 else []
    return f"[{', '.join(shown[:4] + more)}]"


def to_dot(program: Program, fold: bool | None = None) -> str:
    """One box per operation and one arrow per input; folded, one box per part of the program."""
    boxes = boxes_of(program, fold)
    numbers = {box: k for k, box in enumerate(boxes)}
    lines = ["digraph zstate {", "  node [shape=box, style=filled, fontname=Helvetica];"]
    for box, number in numbers.items():
        text = _quoted("\n".join([box.title, *box.lines]))
        lines.append(f"  n{number} [label={text}, fillcolor={_quoted(COLOURS[box.kind])}];")
    for box, number in numbers.items():
        for source, (operand, _) in box.inputs.items():
            label = f" [label={_quoted(operand)}]" if operand else ""
            lines.append(f"  n{numbers[source]} -> n{number}{label};")
    return "\n".join([*lines, "}"])


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


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
