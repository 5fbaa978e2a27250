"""Folds a large graph into a few boxes: one per layer, per gradient and for the optimiser.

An *anchor* is a recurrent operation, a product with a weight, a loss, or the gradient of one. Each
anchor forms a group with the nodes that prepare its inputs and those that follow from its results.
There are three stages: forward; gradients and what depends on them; optimisers and what depends on
those. Groups are numbered so that every edge leads to the same or a higher number, which rules out
cycles.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from ..graph import Graph, Tensor
from ..graph.ops import PLACEHOLDER, VARIABLE
from ..graph.tensor import Node

LARGE = 40  # graphs with more nodes than this are folded
_OPTIMISERS = ("adam", "stochastic_gradient_descent")
_FORWARD, _GRADIENTS, _UPDATE = range(3)  # the stages
_ALL = 10**9  # the number of the group that joins several others of its stage

Group = tuple[int, int]  # the stage, and the number of the anchor in it


@dataclass(eq=False)
class _Box:
    """The operation of a folded node."""

    name: str

    def operand(self, node: Node, index: int) -> str:
        return ""


@dataclass
class Folded:
    """Nodes that can be drawn as those of a graph."""

    nodes: list[Node] = field(default_factory=list)


def fold(graph: Graph, unfold: str | None = None) -> Folded:
    """The graph with one node per group; groups whose name matches the glob stay unfolded."""
    groups, anchors = _groups(graph)
    members: dict[Group, list[Node]] = {}
    for node in graph.nodes:
        members.setdefault(groups[node], []).append(node)
    readers: dict[Tensor, set[Group]] = {}
    for node in graph.nodes:
        for tensor in node.inputs:
            readers.setdefault(tensor, set()).add(groups[node])
    folded, made = Folded(), dict[Tensor, Tensor]()

    def add(name: str, op: Any, inputs: Iterable[Tensor], results: list[Tensor], of: Node) -> None:
        node = Node(graph, op, name, tuple(made[tensor] for tensor in inputs), of.attributes)
        node.results = [Tensor(node, tensor.name, tensor.info) for tensor in results]
        made.update(zip(results, node.results, strict=True))
        folded.nodes.append(node)

    for group, nodes in sorted(members.items()):
        anchor = anchors.get(group) or next((n for n in nodes if n.inputs), nodes[0])
        name = _name(group, anchor, nodes)
        within = [node for node in nodes if node.op is not PLACEHOLDER]
        if len(within) < 2 or (unfold is not None and fnmatchcase(name, unfold)):
            within = []
        inner = set(within)
        for node in nodes:
            if node not in inner:
                add(node.name, node.op, node.inputs, node.results, node)
        if within:
            inputs = dict.fromkeys(t for n in within for t in n.inputs if t.node not in inner)
            outer = [t for n in within for t in n.results if readers.get(t, set()) - {group}]
            outer.sort(key=lambda tensor: tensor.node is not anchor)
            title = f"{name} +{len(within) - 1}"
            add(title, _Box(anchor.op.name), inputs, outer or anchor.results[:1], anchor)
    return folded


def _groups(graph: Graph) -> tuple[dict[Node, Group], dict[Group, Node]]:
    """The group of every node, and the anchor of those groups that have one."""
    found: dict[Node, Group] = {}
    anchors: dict[Group, Node] = {}
    twins: dict[Any, Group] = {}
    for number, node in enumerate(graph.nodes):
        before = [found[tensor.node] for tensor in node.inputs if tensor.node in found]
        stage = max([_stage(node), *(stage for stage, _ in before)])
        numbers = {k for s, k in before if s == stage}
        if stage == _UPDATE or (stage == _GRADIENTS and _ALL in numbers):
            found[node] = (stage, _ALL)
        elif _is_anchor(node, stage) or (stage and not numbers):
            # A recurrent node and its twin that keeps the training state are one layer.
            key = (node.op, node.inputs) if "descriptor" in node.attributes else node
            found[node] = twins.setdefault(key, (stage, number))
            anchors.setdefault(found[node], node)
        elif numbers:
            joins = stage == _GRADIENTS and len(numbers) > 1
            found[node] = (stage, _ALL if joins else max(numbers))
    first: dict[Node, Group] = {}  # group that reads a node
    for node in reversed(graph.nodes):
        # Nodes that depend on no anchor join their first reader.
        group = found.setdefault(node, first.get(node, (_FORWARD, _ALL)))
        for tensor in node.inputs:
            first[tensor.node] = min(group, first.get(tensor.node, group))
    return found, anchors


def _stage(node: Node) -> int:
    if node.op.name in _OPTIMISERS:
        return _UPDATE
    is_gradient = node.op.name.endswith(("_gradient", "_gradients"))
    return _GRADIENTS if is_gradient else _FORWARD


def _is_anchor(node: Node, stage: int) -> bool:
    if "descriptor" in node.attributes or "cross_entropy" in node.op.name:
        return True
    is_product = node.op.name == "matrix_multiplication"
    return is_product and stage == _FORWARD and any(t.node.op is VARIABLE for t in node.inputs)


def _name(group: Group, anchor: Node, nodes: list[Node]) -> str:
    if group == (_UPDATE, _ALL):
        kinds = [node.op.name for node in nodes if node.op.name in _OPTIMISERS]
        return f"{kinds[0]}, {len(kinds)} tensors" if kinds else "updates"
    if group[1] == _ALL:
        return "joined gradients" if group[0] == _GRADIENTS else "the rest"
    weights = [t.name for t in anchor.inputs if t.node.op is VARIABLE]
    prefix = weights[0].rpartition(".")[0] or weights[0] if weights else ""
    return f"{prefix}: {anchor.name}" if prefix else anchor.name
