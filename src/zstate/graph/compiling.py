"""From a graph to a program: shapes fixed, constants folded, equal nodes merged, the rest dropped.

The needed nodes are built again in a graph of their own (simplified.py), in which every shape is
known, and which lowers, merges and folds whatever is added to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import DTypeError, GraphError, ShapeError, refusal
from ..layout import TensorInfo, brackets, describe
from .executable import Executable
from .methods.core import checked_dtype, checked_shape, listed
from .ops import ASSIGN, PLACEHOLDER, READ
from .ops.base import known
from .ops.recurrent import FORWARD, normal, with_training
from .tensor import Node, Tensor

if TYPE_CHECKING:
    from .graph import Graph

Feeds = Mapping[Tensor, tuple[Sequence[int], str]]


def compile_graph(
    graph: Graph, feeds: Feeds, targets: Iterable[Tensor], operations: Iterable[Tensor]
) -> Executable:
    """A program for feeds of these shapes and types; see :meth:`zstate.Graph.compile`."""
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
    from .simplified import Simplified  # it is a Graph, which in turn compiles by this

    simple = Simplified()
    made: dict[Tensor, Tensor] = {
        tensor: simple.placeholder(shape=info.shape, dtype=info.dtype, name=tensor.name)
        for tensor, info in fed.items()
    }
    keeps_training = trained_twins(nodes)
    updates: dict[Node, Tensor] = {}
    for node in nodes:
        if node.op is PLACEHOLDER:
            continue
        inputs = tuple(made[tensor] for tensor in node.inputs)
        if node.op is READ:
            made[node.results[0]] = inputs[0]
        elif node.op is ASSIGN:
            node.op.infer([tensor.info for tensor in inputs], {}, f"assign {node.name!r}")
            updates[inputs[0].node] = inputs[1]
            made[node.results[0]] = inputs[1]
        else:
            is_twin = node in keeps_training
            attributes = with_training(node.attributes) if is_twin else node.attributes
            found = simple.add_node(node.op, inputs, attributes, node.name)
            if is_twin:
                by_name = {tensor.name.rpartition(":")[2]: tensor for tensor in found}
                found = [by_name[result.name.rpartition(":")[2]] for result in node.results]
            made.update(zip(node.results, found, strict=True))
    return Executable(
        simple,
        [made[tensor] for tensor in fed],
        [made[tensor] for tensor in wanted],
        list(updates.items()),
        [tensor.name for tensor in wanted],
    )


def _checked_feed(tensor: Tensor, feed: object) -> TensorInfo:
    label = f"feed {tensor.name!r}"
    if tensor.node.op is not PLACEHOLDER:
        got = f"the result of {tensor.node.op.name}"
        raise GraphError(refusal("compile", label, "a placeholder", got))
    if not isinstance(feed, tuple | list) or len(feed) != 2:
        raise DTypeError(refusal("compile", label, "a pair (shape, dtype)", describe(feed)))
    shape = known(checked_shape("compile", feed[0]))
    dtype = checked_dtype("compile", feed[1])
    if dtype != tensor.dtype:
        raise DTypeError(refusal("compile", label, tensor.dtype, dtype))
    if shape is None or not fits(shape, tensor.shape):
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
    trained = {
        (node.op, node.inputs, normal(node.attributes["descriptor"])): node
        for node in nodes
        if node.op.name in FORWARD and node.attributes["descriptor"].training
    }
    found = {}
    for node in nodes:
        if node.op.name in FORWARD and not node.attributes["descriptor"].training:
            descriptor = normal(with_training(node.attributes)["descriptor"])
            if (node.op, node.inputs, descriptor) in trained:
                found[node] = trained[node.op, node.inputs, descriptor]
    return found
