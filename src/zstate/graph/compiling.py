"""From a graph to a program: shapes fixed, constants folded, equal nodes merged, the rest dropped.

The needed nodes are built again in a graph of their own (simplified.py), in which every shape is
known, and which lowers, merges and folds whatever is added to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import DTypeError, GraphError, ShapeError, refusal
from ..layout import TensorInfo, brackets, describe
from .executable import Executable
from .methods.core import checked_dtype, checked_shape, label_of, listed
from .ops import ASSIGN, PLACEHOLDER, READ
from .ops.base import agree, known
from .ops.recurrent import FORWARD, normal, operation_of, with_training
from .tensor import Node, Tensor

if TYPE_CHECKING:
    from .graph import Graph

Feeds = Mapping[Tensor, tuple[Sequence[int], str]]


def compile_graph(
    graph: Graph,
    feeds: Feeds,
    targets: Iterable[Tensor],
    operations: Iterable[Tensor],
    made: Callable[..., Executable] = Executable,
) -> Executable:
    """A program for feeds of these shapes and types, as ``made`` makes it of its parts; see
    :meth:`zstate.Graph.compile`."""
    targets, operations = (
        listed("compile", "targets", targets),
        listed("compile", "operations", operations),
    )
    wanted = [graph.own("compile", "targets", tensor) for tensor in targets]
    effects = [graph.own("compile", "operations", tensor) for tensor in operations]
    if not isinstance(feeds, Mapping):
        expected = "{placeholder: (shape, dtype)}"
        raise DTypeError(refusal("compile", "feeds", expected, describe(feeds)))
    fed = {
        graph.own("compile", "feeds", tensor): _checked_feed(tensor, feed)
        for tensor, feed in feeds.items()
    }
    nodes = graph.needed([*wanted, *effects])
    for node in nodes:
        if node.op is PLACEHOLDER and node.results[0] not in fed:
            (tensor,) = node.results
            expected = f"an array {tensor.dtype}{brackets(tensor.shape)}"
            raise GraphError(refusal("compile", f"feed {tensor.name!r}", expected, "nothing"))
    from .simplified import Simplified  # it is a Graph, which itself compiles through this

    simple = Simplified()
    known_as: dict[Tensor, Tensor] = {
        tensor: simple.placeholder(shape=info.shape, dtype=info.dtype, name=tensor.name)
        for tensor, info in fed.items()
    }
    keeps_training = trained_twins(nodes)
    updates: dict[Node, Tensor] = {}
    for node in nodes:
        if node.op is PLACEHOLDER:
            continue
        inputs = tuple(known_as[tensor] for tensor in node.inputs)
        if node.op is READ:
            known_as[node.results[0]] = inputs[0]
        elif node.op is ASSIGN:
            node.op.infer([tensor.info for tensor in inputs], {}, f"assign {node.name!r}")
            updates[inputs[0].node] = inputs[1]
            known_as[node.results[0]] = inputs[1]
        else:
            is_twin = node in keeps_training
            attributes = with_training(node.attributes) if is_twin else node.attributes
            found = simple.add_node(node.op, inputs, attributes, node.name)
            if is_twin:
                # By the operation's names: a folded node has lost its own.
                produced = operation_of(node.op.name, attributes).cell.produced
                by_name = dict(zip(produced(attributes["descriptor"]), found, strict=True))
                found = [by_name[name] for name in produced(node.attributes["descriptor"])]
            for result, tensor in zip(node.results, found, strict=True):
                # What was claimed about a size while another was unknown has to be true.
                if not agree(tensor.shape, result.shape):
                    expected, got = brackets(result.shape), brackets(tensor.shape)
                    label = label_of(node.op.name, node.name)
                    if node.op.name == "slice":
                        got += "; an index tensor[k] that is outside its axis leaves it empty"
                    raise ShapeError(refusal(label, "result", expected, got))
                known_as[result] = tensor
    return made(
        simple,
        [known_as[tensor] for tensor in fed],
        [known_as[tensor] for tensor in wanted],
        list(updates.items()),
        [tensor.name for tensor in wanted],
    )


def _checked_feed(tensor: Tensor, feed: object) -> TensorInfo:
    label = f"feed {tensor.name!r}"
    if tensor.node.op is not PLACEHOLDER:
        got = f"the result of {tensor.node.op.name}"
        raise GraphError(refusal("compile", label, "a placeholder", got))
    if not isinstance(feed, tuple | list) or len(feed) != 2:
        got = repr(feed)[:60] if isinstance(feed, tuple | list) else describe(feed)
        raise DTypeError(refusal("compile", label, "a pair (shape, dtype)", got))
    shape = known(checked_shape(f"compile: {label}", feed[0]))
    if shape is None:
        expected = "a size for every dimension, since a program has fixed shapes"
        raise ShapeError(refusal("compile", label, expected, brackets(feed[0])))
    dtype = checked_dtype(f"compile: {label}", feed[1])
    if dtype != tensor.dtype:
        raise DTypeError(refusal("compile", label, tensor.dtype, dtype))
    if not fits(shape, tensor.shape):
        raise ShapeError(refusal("compile", label, brackets(tensor.shape), brackets(feed[0])))
    return TensorInfo(shape, dtype)


def fits(shape: Sequence[int], pattern: Sequence[int | None]) -> bool:
    """Whether a known shape is one that a partly known one allows."""
    return len(shape) == len(pattern) and all(
        wanted in (None, size) for size, wanted in zip(shape, pattern, strict=True)
    )


def trained_twins(nodes: Sequence[Node]) -> dict[Node, Node]:
    """The recurrent nodes without training beside which one with training has the same inputs,
    and that one."""

    def key(node: Node) -> Any:
        attributes = normal(with_training(node.attributes))
        return node.op, node.inputs, tuple(sorted(attributes.items()))

    layers = [node for node in nodes if node.op.name in FORWARD]
    trained = {key(node): node for node in layers if node.attributes["descriptor"].training}
    others = (node for node in layers if not node.attributes["descriptor"].training)
    return {node: trained[key(node)] for node in others if key(node) in trained}
