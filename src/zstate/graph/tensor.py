"""The two things a graph is made of: nodes, and the tensors that they give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..layout import TensorInfo, brackets
from ..types import PartialShape

if TYPE_CHECKING:
    from .graph import Graph
    from .ops import Op


class Store:
    """Where a constant or a variable keeps its array; a program shares it with its graph."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


@dataclass(eq=False)
class Node:
    """One operation in a graph: its row of the op table, inputs, attributes and results."""

    graph: Graph = field(repr=False)
    op: Op
    name: str
    inputs: tuple[Tensor, ...]
    attributes: Mapping[str, Any]
    results: list[Tensor] = field(default_factory=list)


class Tensor:
    """A result of a node: a shape (None: known at run time), a type, no data.

    ``+ - * / ** @`` and unary minus build nodes, with numbers as constants of the same type.
    """

    __slots__ = ("dtype", "name", "node", "shape")

    def __init__(self, node: Node, name: str, info: TensorInfo) -> None:
        self.node = node
        self.name = name
        self.shape: PartialShape = info.shape
        self.dtype = info.dtype

    @property
    def graph(self) -> Graph:
        return self.node.graph

    @property
    def info(self) -> TensorInfo:
        return TensorInfo(self.shape, self.dtype)

    def __add__(self, other: Tensor | float) -> Tensor:
        return self.graph.addition(self, other)

    def __radd__(self, other: float) -> Tensor:
        return self.graph.addition(other, self)

    def __sub__(self, other: Tensor | float) -> Tensor:
        return self.graph.subtraction(self, other)

    def __rsub__(self, other: float) -> Tensor:
        return self.graph.subtraction(other, self)

    def __mul__(self, other: Tensor | float) -> Tensor:
        return self.graph.multiplication(self, other)

    def __rmul__(self, other: float) -> Tensor:
        return self.graph.multiplication(other, self)

    def __truediv__(self, other: Tensor | float) -> Tensor:
        return self.graph.division(self, other)

    def __rtruediv__(self, other: float) -> Tensor:
        return self.graph.division(other, self)

    def __pow__(self, other: Tensor | float) -> Tensor:
        return self.graph.power(self, other)

    def __neg__(self) -> Tensor:
        return self.graph.negative(self)

    def __matmul__(self, other: Tensor) -> Tensor:
        return self.graph.matrix_multiplication(self, other)

    def __repr__(self) -> str:
        return f"<Tensor {self.name} {self.dtype}{brackets(self.shape)}>"
