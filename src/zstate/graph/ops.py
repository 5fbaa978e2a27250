"""The op table: one row an op, with its shape rule and its evaluation.

The shape rule runs when a node is made, so that a wrong shape is refused then; the evaluation runs
on arrays. The recurrent rows come from the table of operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import functional
from ..layout import TensorInfo, check
from ..operations import OPERATIONS, Operation
from ..types import Array

Attributes = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Op:
    """One row: ``infer`` gives the results by name, ``evaluate`` computes them in that order.

    ``label`` is how messages name the node.
    """

    name: str
    infer: Callable[[Sequence[TensorInfo], Attributes, str], dict[str, TensorInfo]]
    evaluate: Callable[[Sequence[Array], Attributes], list[Array]]


def _given(
    inputs: Sequence[TensorInfo], attributes: Attributes, label: str
) -> dict[str, TensorInfo]:
    info: TensorInfo = attributes["info"]
    return {"": info}


def _stored(inputs: Sequence[Array], attributes: Attributes) -> list[Array]:
    return [attributes["store"]["value"]]


def _fed(inputs: Sequence[Array], attributes: Attributes) -> list[Array]:
    raise AssertionError("a placeholder's value comes from the feeds")


PLACEHOLDER = Op("placeholder", _given, _fed)
CONSTANT = Op("constant", _given, _stored)
VARIABLE = Op("variable", _given, _stored)


def _recurrent_row(operation: Operation) -> Op:
    """A recurrent op; its attributes are the descriptor, and the names of the inputs passed."""

    def infer(
        inputs: Sequence[TensorInfo], attributes: Attributes, label: str
    ) -> dict[str, TensorInfo]:
        named = dict(zip(attributes["names"], inputs, strict=True))
        layout = check(operation, named, attributes["descriptor"], label)
        results = {}
        for name in layout.result_names():
            # A gradient has the shape of its input, whichever of the accepted forms that had.
            shape = named[name].shape if operation.is_gradient else layout.partial_shape(name)
            results[name] = TensorInfo(shape, layout.dtype)
        return results

    def evaluate(inputs: Sequence[Array], attributes: Attributes) -> list[Array]:
        named = dict(zip(attributes["names"], inputs, strict=True))
        tensors = tuple(named.get(name) for name in operation.inputs)
        result = functional.run(operation, tensors, attributes["descriptor"], None)
        return [array for array in result if array is not None]

    return Op(operation.name, infer, evaluate)


RECURRENT = {name: _recurrent_row(operation) for name, operation in OPERATIONS.items()}
OPS = {op.name: op for op in (PLACEHOLDER, CONSTANT, VARIABLE, *RECURRENT.values())}
