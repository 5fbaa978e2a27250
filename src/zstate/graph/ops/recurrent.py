"""The recurrent rows, from the table of operations; the engines compute them.

The derivative of a forward row is its gradient operation. It needs the training state, so a node
without ``training`` gets a twin that has it; compiling makes one node of both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ... import functional
from ...errors import GraphError
from ...layout import TensorInfo, check
from ...operations import OPERATIONS, Operation
from .base import Attributes, Derivative, Infos, Op
from .like import zeros_like

if TYPE_CHECKING:
    from ...arrays import Namespace
    from ..graph import Graph
    from ..tensor import Node, Tensor


def _row(operation: Operation) -> Op:
    """A row; its attributes are the descriptor, and the names of the inputs passed."""

    def infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
        named = dict(zip(attributes["names"], inputs, strict=True))
        layout = check(operation, named, attributes["descriptor"], label)
        results = {}
        for name in layout.result_names():
            # A gradient has the shape of its input, whichever of the accepted forms that had.
            shape = named[name].shape if operation.is_gradient else layout.partial_shape(name)
            results[name] = TensorInfo(shape, layout.dtype)
        return results

    def prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
        names, descriptor = attributes["names"], attributes["descriptor"]
        places = [names.index(name) if name in names else None for name in operation.inputs]

        def evaluate(*arrays: Any) -> tuple[Any, ...]:
            tensors = tuple([None if place is None else arrays[place] for place in places])
            result = functional.run(operation, tensors, descriptor, None)
            return tuple([array for array in result if array is not None])

        return evaluate

    return Op(
        operation.name,
        infer,
        prepare,
        None if operation.is_gradient else _derivative(operation),
        operands=operation.inputs,
        kinds={"names": "names", "descriptor": "descriptor"},
    )


def _derivative(operation: Operation) -> Derivative:
    backward = OPERATIONS[f"{operation.name}_gradients"]

    def derivative(
        g: Graph, node: Node, gradients: list[Tensor | None], needs: list[bool]
    ) -> list[Tensor | None]:
        incoming = dict(zip(_result_names(node), gradients, strict=True))
        if incoming.get("training_state") is not None:
            raise GraphError(
                f"[gradients] training_state of {node.name!r}: expected a loss that does not "
                "depend on it, got one that does: it is saved for the gradient operation only"
            )
        trained = g.training_twin(node)
        results = dict(zip(_result_names(trained), trained.results, strict=True))
        inputs = dict(zip(node.attributes["names"], node.inputs, strict=True))
        if incoming["state"] is None:
            incoming["state"] = zeros_like(g, node.results[0])
        for name, result in operation.cell.fed_back.items():
            inputs[name] = results[result]
        if "input_weight" not in inputs:
            # Of a projected source only the shape is needed, which zState has as well: so its
            # buffer, as large as zState, is free behind the forward operation.
            inputs["source"] = results["training_state"]
        for name, result in operation.cell.incoming.items():
            gradient = incoming.get(result)
            if gradient is not None:
                inputs[name] = gradient
        names = tuple(name for name in backward.inputs if name in inputs)
        attributes = {"names": names, "descriptor": trained.attributes["descriptor"]}
        found = g.add_node(
            RECURRENT[backward.name], tuple(inputs[name] for name in names), attributes, None
        )
        by_name = {tensor.name.rpartition(":")[2]: tensor for tensor in found}
        return [by_name.get(name) for name in node.attributes["names"]]

    return derivative


def _result_names(node: Node) -> list[str]:
    return [tensor.name.rpartition(":")[2] for tensor in node.results]


def with_training(attributes: Attributes) -> dict[str, Any]:
    """The attributes of the twin that keeps its training state."""
    return {**attributes, "descriptor": replace(attributes["descriptor"], training=True)}


def normal(descriptor: Any) -> Any:
    """With training the cell always comes, so produce_cell makes no difference."""
    if descriptor.training and hasattr(descriptor, "produce_cell"):
        return replace(descriptor, produce_cell=False)
    return descriptor


RECURRENT = {name: _row(operation) for name, operation in OPERATIONS.items()}
FORWARD = {name for name, operation in OPERATIONS.items() if not operation.is_gradient}
ROWS = tuple(RECURRENT.values())
