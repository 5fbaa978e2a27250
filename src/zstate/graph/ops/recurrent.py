"""The recurrent rows, from the table of operations; the engines compute them.

Cells from equations share the rows "recurrent" and "recurrent_gradients": a node holds its cell.
The derivative of a forward row is its gradient operation. It needs the training state, so a node
without ``training`` gets a twin that has it; compiling makes one node of both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ... import functional
from ...cells.decorator import CellDescriptor, MadeCell
from ...errors import DTypeError, GraphError, OptionError, refusal
from ...extensions import resets_info
from ...layout import TensorInfo, cell_of, check, check_descriptor
from ...operations import OPERATIONS, Operation, operations_of
from ..tensor import result_name
from .base import Attributes, Derivative, Gradients, Infos, Op
from .like import zeros_like

if TYPE_CHECKING:
    from ...arrays import Namespace
    from ..graph import Graph
    from ..tensor import Node


MADE = "recurrent"  # the row of every cell from equations


def operation_of(op: str, attributes: Attributes) -> Operation:
    """The operation of a node of these rows."""
    if op in OPERATIONS:
        return OPERATIONS[op]
    forward, backward = operations_of(attributes["cell"].definition)
    return forward if op == MADE else backward


def title_of(node: Node) -> str:
    """What a node computes, by the name that a reader knows: for a cell from equations, its own."""
    made = "cell" in node.attributes
    return operation_of(node.op.name, node.attributes).name if made else node.op.name


def refuse_extensions(node: Node, where: str) -> None:
    """Refuse a node with resets or heads, for a format whose layers have neither."""
    if "resets" in node.attributes["names"]:
        raise OptionError(refusal(title_of(node), "resets", f"none, as {where} has none", "some"))
    heads = node.attributes["descriptor"].heads
    if heads != 1:
        raise OptionError(
            refusal(title_of(node), "heads", f"1, as {where} has no more", str(heads))
        )


def _row(row: str, operands: tuple[str, ...], **kinds: str) -> Op:
    """A row; its attributes are the descriptor, the names of the inputs passed, a cell."""

    def infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
        operation = operation_of(row, attributes)
        named = dict(zip(attributes["names"], inputs, strict=True))
        descriptor = check_descriptor(operation, attributes["descriptor"], label)
        for parameter in operation.cell.own:
            if parameter.required and parameter.name not in named:
                expected = f"a parameter of {operation.cell.name}, [D·H]"
                raise DTypeError(refusal(label, parameter.name, expected, "None"))
        behind = dict(named)
        if "resets" in named:
            behind["resets"] = resets_info(label, named["resets"], named["source"], descriptor)
        layout = check(operation, behind, descriptor, label)
        results = {}
        for name in layout.result_names():
            # A gradient has the shape of its input, in whichever accepted form that was passed.
            shape = named[name].shape if operation.is_gradient else layout.partial_shape(name)
            results[name] = TensorInfo(shape, layout.dtype)
        return results

    def prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
        operation = operation_of(row, attributes)
        names, descriptor = attributes["names"], attributes["descriptor"]
        places = [names.index(each) if each in names else None for each in operation.inputs]

        def evaluate(*arrays: Any) -> tuple[Any, ...]:
            tensors = tuple([None if place is None else arrays[place] for place in places])
            result = functional.run(operation, tensors, descriptor, None)
            return tuple([array for array in result if array is not None])

        made: MadeCell | None = attributes.get("cell")
        if made is None or all(f"init_{state}" in names for state in made.initial):
            return evaluate

        def evaluate_filled(*arrays: Any) -> tuple[Any, ...]:
            """With the cell's own initial values; nobody asked for their gradients."""
            given = dict(zip(names, arrays, strict=True))
            filled = made.initial_values(given, descriptor.bidirectional, descriptor.heads)
            tensors = tuple(map((given | filled).get, operation.inputs))
            result = functional.run(operation, tensors, descriptor, None)
            left_out = filled if operation.is_gradient else ()
            kept = zip(result._fields, result, strict=True)
            return tuple([a for each, a in kept if a is not None and each not in left_out])

        return evaluate_filled

    return Op(
        row,
        infer,
        prepare,
        None if row.endswith("_gradients") else _derivative(f"{row}_gradients"),
        operands=operands,
        kinds={"names": "names", "descriptor": "descriptor", **kinds},
    )


def _derivative(row: str) -> Derivative:
    """The derivative of a forward row: a node of its gradient row."""

    def derivative(g: Graph, node: Node, gradients: Gradients, needs: list[bool]) -> Gradients:
        incoming = dict(zip(_result_names(node), gradients, strict=True))
        if incoming.get("training_state") is not None:
            raise GraphError(
                f"[gradients] training_state of {node.name!r}: expected a loss that does not "
                "depend on it, got one that does: it is saved for the gradient operation only"
            )
        trained = g.training_twin(node)
        results = dict(zip(_result_names(trained), trained.results, strict=True))
        inputs = dict(zip(node.attributes["names"], node.inputs, strict=True))
        backward = operation_of(row, node.attributes)
        first = backward.cell.states[0].name
        if incoming[first] is None:
            incoming[first] = zeros_like(g, node.results[0])
        for name, result in backward.cell.fed_back.items():
            inputs[name] = results[result]
        if "input_weight" not in inputs:
            # Only the shape of a projected source is needed, and zState has the same one: so the
            # source's buffer, as large as zState, is free after the forward operation.
            inputs["source"] = results["training_state"]
        for name, result in backward.cell.incoming.items():
            gradient = incoming.get(result)
            if gradient is not None:
                inputs[name] = gradient
        names = tuple(name for name in backward.inputs if name in inputs)
        attributes = {**trained.attributes, "names": names}
        found = g.add_node(RECURRENT[row], tuple(inputs[name] for name in names), attributes, None)
        by_name = {result_name(tensor): tensor for tensor in found}
        return [by_name.get(name) for name in node.attributes["names"]]

    return derivative


def _result_names(node: Node) -> list[str]:
    return [result_name(tensor) for tensor in node.results]


def with_training(attributes: Attributes) -> dict[str, Any]:
    """The attributes of the twin that keeps its training state."""
    return {**attributes, "descriptor": replace(attributes["descriptor"], training=True)}


def normal(attributes: Attributes) -> dict[str, Any]:
    """Without the option to return every state if training returns them anyway."""
    descriptor = attributes["descriptor"]
    if not descriptor.training or isinstance(descriptor, CellDescriptor):  # gives every one anyway
        return dict(attributes)
    option = cell_of(descriptor).keeps_states
    changes = {option: False} if option else {}
    return {**attributes, "descriptor": replace(descriptor, **changes)}


RECURRENT = {name: _row(name, operation.inputs) for name, operation in OPERATIONS.items()}
for _name in (MADE, f"{MADE}_gradients"):
    RECURRENT[_name] = _row(_name, ("source", "recurrent_weight"), cell="cell")
BACKWARD = {name for name in RECURRENT if name.endswith("_gradients")}
FORWARD = set(RECURRENT) - BACKWARD
ROWS = tuple(RECURRENT.values())
