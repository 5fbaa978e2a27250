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
    """A result of a node: a shape (None: known at run time), a type, no data."""

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

    def __repr__(self) -> str:
        return f"<Tensor {self.name} {self.dtype}{brackets(self.shape)}>"
