"""``Model.prepare``: a loaded model whose recurrent layers have packed weights, for inference.

Its nodes are built again in a graph of their own, where a prepared node stands for each recurrent
one: it reads the source and the initial states, and holds a :class:`zstate.Prepared`. That gives
the first state of every step, but of each other state only the last one, here [1,N,D·H]. So what
reads such a state must be a slice that keeps no more of it.

T time, N batch, H hidden units, D directions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..arrays import NUMPY, Namespace
from ..convert.layer import Layer
from ..errors import OptionError, located, refusal
from ..graph import Graph, Tensor
from ..graph.ops import PLACEHOLDER
from ..graph.ops.base import Attributes, Infos, Op
from ..graph.ops.recurrent import FORWARD, operation_of, title_of
from ..graph.tensor import Node, result_name
from ..layout import TensorInfo
from ..prepared.model import Prepared, check_weights, prepare
from ..types import Array
from .model import Model, drop_unused


def prepared(model: Model, weights: str) -> Model:
    """The model with packed weights; see :meth:`Model.prepare`."""
    check_weights(weights)
    if not any(node.op.name in FORWARD for node in model.graph.nodes):
        raise OptionError(refusal("prepare", "model", "one with a recurrent layer", "none"))
    graph = Graph()
    known: dict[Tensor, Tensor] = {}
    for node in model.graph.nodes:
        op, inputs, attributes = node.op, node.inputs, node.attributes
        if op.name in FORWARD:
            with located(f"[prepare] node {node.name!r} ({title_of(node)})"):
                op, (inputs, attributes) = PREPARED, _made(model, node, weights)
        given = tuple(known[tensor] for tensor in inputs)
        found = graph.add_node(op, given, attributes, node.name)
        known.update(zip(node.results, found, strict=True))

    def moved(table: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: known[tensor] for name, tensor in table.items()}

    outputs, parameters = moved(model.outputs), moved(model.parameters)
    drop_unused(graph, outputs, parameters)
    return Model(graph, moved(model.inputs), outputs, parameters, model._names)


Made = tuple[tuple[Tensor, ...], dict[str, Any]]  # the inputs of a prepared node, its attributes


def _made(model: Model, node: Node, weights: str) -> Made:
    """The prepared node for a recurrent one."""
    operation = operation_of(node.op.name, node.attributes)
    if node.results[0].dtype != "float32":
        raise OptionError(refusal("prepare", "source", "float32", node.results[0].dtype))
    for tensor in node.results[1:]:
        _check_readers(model, node, tensor)
    inputs = dict(zip(node.attributes["names"], node.inputs, strict=True))
    initial = {each.initial for each in operation.cell.states}
    fed = {name: tensor for name, tensor in inputs.items() if name in {"source", *initial}}
    others = {name: tensor for name, tensor in inputs.items() if name not in fed}
    cell = node.attributes.get("cell", node.op.name)
    layer = Layer(cell, node.attributes["descriptor"], _values(model.graph, others))
    attributes = {
        "model": prepare(layer, weights),
        "names": tuple(fed),
        "states": tuple(each.initial for each in operation.cell.states),
        "results": tuple(result_name(tensor) for tensor in node.results),
    }
    return tuple(fed.values()), attributes


def _values(graph: Graph, tensors: dict[str, Tensor]) -> dict[str, Array]:
    """The arrays of weights; some are computed from what the file has."""
    for name, tensor in tensors.items():
        roots = [n.name for n in graph.needed([tensor]) if n.op is PLACEHOLDER]
        if roots:
            got = f"one that depends on {', '.join(roots)}"
            raise OptionError(refusal("prepare", name, "one that is known before a run", got))
    found = graph.run({}, tensors.values())
    return {name: found[tensor] for name, tensor in tensors.items()}


def _check_readers(model: Model, node: Node, tensor: Tensor) -> None:
    """Refuse a use of any but the last of a layer's cells."""
    count = 2 if node.attributes["descriptor"].bidirectional else 1
    readers = [each for each in model.graph.nodes if tensor in each.inputs]
    is_output = tensor in model.outputs.values()
    if is_output or not all(_keeps_the_last(each, tensor, count) for each in readers):
        expected = "a use of only its last step"
        raise OptionError(refusal("prepare", result_name(tensor), expected, "a use of every step"))


def _keeps_the_last(reader: Node, tensor: Tensor, count: int) -> bool:
    """Whether a node takes of [T,N,D·H], whatever T is, what each direction ends with."""
    if reader.op.name not in ("slice", "strided_slice"):
        return False
    batch, width = (size or 1 for size in tensor.shape[1:])
    for steps in (5, 1):
        marked = np.zeros((steps, batch, width), np.float32)
        marked[-1, :, : width // count] = 1
        marked[0, :, width // count :] = 1
        assert reader.op.prepare is not None
        info = TensorInfo(marked.shape, "float32")
        found = reader.op.prepare(NUMPY, [info], reader.attributes)(marked)
        if len(found) != 1 or not found.size or not found.all():
            return False
    return True


def _infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    steps, batch, _ = inputs[0].shape
    shape = (batch, attributes["model"].width)
    first, *others = attributes["results"]
    return {
        first: TensorInfo((steps, *shape), "float32"),
        **{name: TensorInfo((1, *shape), "float32") for name in others},
    }


def _prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    model: Prepared = attributes["model"]
    names, count = attributes["names"], len(attributes["results"])
    places = [names.index(each) if each in names else None for each in attributes["states"]]
    begins_itself = len(names) == 1

    def evaluate(*arrays: Any) -> Sequence[Any]:
        states = [None if place is None else arrays[place] for place in places]
        output, last = model(arrays[0], None if begins_itself else states)
        return (output, *(each[None] for each in last[1:count]))

    return evaluate


# It is no row of the op table: no file holds packed weights, and there are no derivatives.
PREPARED = Op("prepared", _infer, _prepare, operands=("source", "initial state"))
