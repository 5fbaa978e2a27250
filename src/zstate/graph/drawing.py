"""What a picture of a program shows: boxes, each with the weights that it reads, and arrows.

A box says the operation, the name where the caller gave one, and the results with their shapes.
Variables and constants have no box of their own: they are lines of the boxes that read them.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..arrays import NUMPY
from ..errors import visible
from ..layout import brackets
from .ops import ASSIGN, CONSTANT, VARIABLE
from .tensor import Node, Tensor, result_name

if TYPE_CHECKING:
    from .executable import Executable
    from .graph import Graph

# Light enough for black text; distinct to colour-blind eyes too, and their titles differ.
COLOURS = {
    "feed": "#dbeafe",
    "weight": "#fef3c7",
    "layer": "#d1fae5",
    "gradient": "#fde6d5",
    "update": "#ede9fe",
    "other": "#ffffff",
}
_MOST_NODES = 60  # that are drawn one by one unless the caller says otherwise
_MOST_UNFOLDED = 200  # where folding leaves next to nothing
_UPDATES = ("adam", "stochastic_gradient_descent")
_HEADS = (
    "placeholder",
    "matrix_multiplication",
    "soft_max_cross_entropy",
    "soft_max_cross_entropy_gradient",
)
_SYMMETRIC = ("addition", "multiplication", "minimum", "maximum")
_LONGEST = 56  # characters of a line
_MOST_LINES = 6  # of weights in a folded box, and of what it writes


@dataclass(frozen=True)
class Program:
    """What is drawn at a time. ``results`` are the names of what it returns, ``writes`` those of
    the variables that a tensor is stored in."""

    name: str
    nodes: Sequence[Node]
    results: Mapping[Tensor, Sequence[str]] = field(default_factory=dict)
    writes: Mapping[Tensor, Sequence[str]] = field(default_factory=dict)


@dataclass(eq=False)
class Box:
    """What is drawn as one: a node, or a part of the program. ``inputs`` are the boxes that it
    reads, with the names of the operands and the tensors."""

    title: str
    lines: list[str]
    kind: str
    nodes: list[Node]
    inputs: dict[Box, tuple[str, list[Tensor]]] = field(default_factory=dict)

    @property
    def hint(self) -> str:
        """Every node in it, with what it gives."""
        lines = []
        for node in self.nodes:
            lines.append(visible(f"{node.op.name} {node.name}"))
            lines += [kind_of(tensor) for tensor in node.results]
        return "\n".join(lines)


def program_of(saved: Graph | Executable, name: str = "", targets: Any = None) -> Program:
    """All of a graph, or what these targets of it need; the steps of an executable."""
    from .executable import Executable

    if isinstance(saved, Executable):
        results = _by_tensor(zip(saved.targets, saved.target_names, strict=True))
        writes = _by_tensor((tensor, variable.name) for variable, tensor in saved.updates)
        return Program(name, saved.nodes, results, writes)
    if targets is None:
        return Program(name, saved.nodes)
    return Program(name, saved.needed(targets), _by_tensor((t, t.name) for t in targets))


def boxes_of(program: Program, fold: bool | None) -> list[Box]:
    """The boxes, each behind those that it reads.

    ``fold`` None means: where there are more nodes than a reader can follow.
    """
    is_folded = len(program.nodes) > _MOST_NODES if fold is None else fold
    parts = _parts(program.nodes) if is_folded else {node: [node] for node in program.nodes}
    groups = _repeats(list(parts.values())) if is_folded else [(p, 1) for p in parts.values()]
    read = Counter(tensor for node in program.nodes for tensor in node.inputs)
    drawn: dict[Node, Box] = {}  # the box of each node that has one
    listed: set[Node] = set()  # weights that are in the hint of a box
    boxes = []
    for nodes, times in groups:
        inner = [node for node in nodes if not _is_given(node) or not read[node.results[0]]]
        if not inner:
            continue  # weights that a later box reads
        inputs = {t: None for node in inner for t in node.inputs}
        weights = {t.node: None for t in inputs if t.node not in drawn and _is_given(t.node)}
        if inner[0].op is ASSIGN and len(inner) == 1 and inner[0].inputs[1].node in drawn:
            # An assign is not a box, but a line in the box that makes the value.
            box = drawn[inner[0]] = drawn[inner[0].inputs[1].node]
            box.lines.append(f"→ {_name(inner[0].inputs[0].name)}")
        else:
            box = _box(program, inner, times, weights, read)
            boxes.append(box)
        box.nodes += [node for node in (*weights, *inner) if node not in listed]
        listed.update(weights)
        drawn.update(dict.fromkeys(inner, box))
        for node in inner:
            _connect(box, node, drawn, not is_folded)
        if box.kind == "other" and any(source.kind == "gradient" for source in box.inputs):
            box.kind = "gradient"  # what is computed from gradients belongs to the backward pass
    if fold is None and is_folded and len(boxes) < 3 and len(program.nodes) <= _MOST_UNFOLDED:
        return boxes_of(program, False)  # no layers, products or losses to fold by
    return boxes


def _box(
    program: Program, nodes: list[Node], times: int, weights: Iterable[Node], read: Counter[Tensor]
) -> Box:
    head = next((node for node in nodes if _is_update(node)), nodes[0])
    many = len(nodes) > 1
    box = Box(_title(nodes, head, times), [], _kind(head), [])
    if _is_named(head):
        box.lines.append(_name(head.name))
    updates = [node for node in nodes if _is_update(node)]
    used = [t for t in head.results if read[t] or t in program.results or t in program.writes]
    if len(updates) < 2:
        for tensor in used or head.results:
            box.lines.append(_cut(f"{visible(result_name(tensor))} {kind_of(tensor)}".strip()))
    if many:
        counts = Counter(node.op.name for node in nodes if node.op is not head.op)
        others = [f"{n} × {name}" if n > 1 else name for name, n in counts.most_common(3)]
        others += ["…"] if len(counts) > 3 else []
        box.lines += [_cut(f"and {', '.join(others)}", 60)] if others else []
    if not (many and updates):  # they write what they read
        said = (_weight(nodes[0], node, many) for node in weights)
        box.lines += _some([line for line in said if line], many)
    made = [tensor for node in nodes for tensor in node.results]
    stored = [name for tensor in made for name in program.writes.get(tensor, ())]
    stored += [node.inputs[0].name for node in nodes if many and node.op is ASSIGN]
    values = {
        t.name
        for node in updates
        for k, t in enumerate(node.inputs)
        if node.op.operand(node, k) == "values"
    }
    stored.sort(key=lambda name: name not in values)  # parameters before what Adam keeps of them
    box.lines += _some([f"→ {_name(name)}" for name in stored], many)
    for tensor in made:
        box.lines += [f"result{_result(name, tensor)}" for name in program.results.get(tensor, ())]
    return box


def _result(name: str, tensor: Tensor) -> str:
    """The name of a result, unless the graph made it up."""
    if re.fullmatch(rf"{tensor.node.op.name}_\d+(:\w+)?", name):
        name = result_name(tensor)
    return f": {_name(name)}" if name else ""


def _title(nodes: list[Node], head: Node, times: int) -> str:
    made = head.attributes.get("cell")
    title = head.op.name if made is None else f"{head.op.name} ({made.__name__})"
    if times > 1:
        heads = [node.op.name for node in nodes if _is_head(node)]
        title = ", ".join(heads[: len(heads) // times]) or title
        return f"{_cut(title)} × {times}"
    updates = sum(node.op is head.op for node in nodes) if _is_update(head) else 1
    return visible(title + (f" × {updates}" if updates > 1 else ""))


def _connect(box: Box, node: Node, drawn: Mapping[Node, Box], says_operands: bool) -> None:
    """The arrows of what a node reads of other boxes."""
    sources = [t for t in node.inputs if t.node in drawn and drawn[t.node] is not box]
    is_told = "names" in node.attributes or len(set(sources)) > 1
    says_operands &= is_told and node.op.name not in (*_SYMMETRIC, *_UPDATES)
    for k, tensor in enumerate(node.inputs):
        if tensor not in sources:
            continue
        label, tensors = box.inputs.get(drawn[tensor.node], ("", []))
        if says_operands:
            label = ", ".join(filter(None, (label, visible(node.op.operand(node, k)))))
        if tensor not in tensors:
            tensors.append(tensor)
        box.inputs[drawn[tensor.node]] = (label, tensors)


def _weight(reader: Node, weight: Node, many: bool) -> str:
    """A line for a variable or a constant: the operand, its name, its shape; or its one value."""
    tensor = weight.results[0]
    operand = next(
        (reader.op.operand(reader, k) for k, t in enumerate(reader.inputs) if t is tensor), ""
    )
    said = f"{_name(weight.name)} {brackets(tensor.shape)}"
    if weight.op is CONSTANT and not _is_named(weight):
        if many:
            return ""
        said = f"constant {brackets(tensor.shape)}"
        if all(size == 1 for size in tensor.shape):
            said = _number(NUMPY.asarray(weight.attributes["store"].value).item())
    return _cut(said if many or not operand else f"{visible(operand)}: {said}")


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _parts(nodes: Sequence[Node]) -> dict[Node, list[Node]]:
    """One part per step that a reader knows by name, with what is computed from it up to the next:
    {head: nodes}. Such steps are feeds, layers, products, losses, the gradient of each, and all
    updates as one.

    A node belongs to the last head that it depends on. So a part reads only parts with an earlier
    head, and no two read each other. They are in the order of their heads, with the updates last.
    """
    place = {node: k for k, node in enumerate(nodes)}
    heads: dict[Node, Node] = {}
    updates: Node | None = None
    for node in nodes:
        above = [heads[t.node] for t in node.inputs if t.node in heads]
        if _is_update(node) or (updates is not None and updates in above):
            updates = updates or node
            place[updates] = len(nodes)
            heads[node] = updates
        elif _is_head(node):
            heads[node] = node
        elif above:
            heads[node] = max(above, key=place.__getitem__)
    # What depends on no head (constants, variables, and what is made from them) goes with the first
    # part that reads it.
    given: dict[Node, Node] = {}
    for node in reversed(nodes):
        head = heads.get(node) or given.setdefault(node, node)
        for tensor in node.inputs:
            if tensor.node not in heads:
                known = given.get(tensor.node, head)
                given[tensor.node] = min(known, head, key=place.__getitem__)
    found = {**given, **heads}
    parts: dict[Node, list[Node]] = {}
    for node in sorted(nodes, key=lambda each: place[found[each]]):
        parts.setdefault(found[node], []).append(node)
    # The head first: it names the part.
    return {head: sorted(part, key=lambda each: each is not head) for head, part in parts.items()}


def _repeats(parts: list[list[Node]]) -> list[tuple[list[Node], int]]:
    """Parts that come three times or more in a row, alone or as a sequence of up to eight, as one:
    the steps of a layer that was unrolled. Neighbours in the order, so no two boxes read each
    other."""
    signs = [_sign(part) for part in parts]
    found: list[tuple[list[Node], int]] = []
    k = 0
    while k < len(parts):
        best, period = 1, 1
        for size in range(1, 9):
            times = 1
            while signs[k : k + size] == signs[k + times * size : k + (times + 1) * size]:
                times += 1
            if times > 2 and times * size > best * period:
                best, period = times, size
        run = parts[k : k + best * period]
        found.append(([node for part in run for node in part], best))
        k += len(run)
    return found


def _sign(part: list[Node]) -> Any:
    """What repeated parts have in common: operations, shapes, weights, names of the user's."""
    return [
        (
            node.op.name,
            [tensor.info for tensor in node.results],
            [t.name for t in node.inputs if t.node.op is VARIABLE],
            node.name if _is_named(node) else "",
        )
        for node in part
        if not _is_given(node)
    ]


def _is_given(node: Node) -> bool:
    return node.op in (CONSTANT, VARIABLE)


def _is_update(node: Node) -> bool:
    return node.op.name in _UPDATES


def _is_named(node: Node) -> bool:
    return re.fullmatch(rf"{node.op.name}_\d+", node.name) is None


def _is_head(node: Node) -> bool:
    """Whether a reader looks for this node: a feed, a layer, a loss, what has a name of its own."""
    if _is_given(node):
        return False
    return _is_named(node) or "descriptor" in node.attributes or node.op.name in _HEADS


def _kind(node: Node) -> str:
    """What its colour says."""
    name = node.op.name
    if name == "placeholder":
        return "feed"
    if _is_given(node):
        return "weight"
    if name.endswith(("_gradient", "_gradients")):
        return "gradient"
    if _is_update(node):
        return "update"
    return "layer" if "descriptor" in node.attributes else "other"


def kind_of(tensor: Tensor) -> str:
    return f"{tensor.dtype}{brackets(tensor.shape)}"


def _name(name: str) -> str:
    """A name that no direction of writing leaves its place by."""
    name = _cut(visible(name), _LONGEST - 16)
    turns = any(unicodedata.bidirectional(c) in ("R", "AL", "AN") for c in name)
    return f"\u2068{name}\u2069" if turns else name


def _cut(text: str, length: int = _LONGEST) -> str:
    """Long text without its middle: names that begin alike often differ at their ends."""
    if len(text) <= length:
        return text
    return f"{text[: length // 2]}…{text[-(length // 2 - 1) :]}"


def _some(lines: list[str], many: bool) -> list[str]:
    if not many or len(lines) <= _MOST_LINES + 1:
        return lines
    return [*lines[:_MOST_LINES], f"… {len(lines) - _MOST_LINES} more"]


def _by_tensor(pairs: Iterable[tuple[Tensor, str]]) -> dict[Tensor, list[str]]:
    found: dict[Tensor, list[str]] = {}
    for tensor, name in pairs:
        found.setdefault(tensor, []).append(name)
    return found
