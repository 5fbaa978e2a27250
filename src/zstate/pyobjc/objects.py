"""The objects of a graph: its tensors, its operations and the types of its feeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from ..errors import DTypeError, refusal
from ..graph import Tensor
from ..graph.ops import ASSIGN
from ..graph.tensor import Node
from ..layout import brackets
from .base import NSObject, one_of
from .constants import DATA_TYPE_NUMBERS, type_name
from .ndarrays import Typed, sizes_of


class MPSGraphTensor(NSObject):
    """A tensor of a graph."""

    _tensor: Tensor
    _operation: MPSGraphOperation

    def operation(self) -> MPSGraphOperation:
        """What the tensor is a result of; of a variable, an MPSGraphVariableOp."""
        return self._operation

    def shape(self) -> list[int]:
        """-1 stands for a dimension that is known at run time."""
        return [-1 if size is None else size for size in self._tensor.shape]

    def dataType(self) -> int:
        return DATA_TYPE_NUMBERS[self._tensor.dtype]

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        got = f"{self._tensor}, which has no values before a run; use the data that a run returns"
        raise DTypeError(refusal("np.array", "tensor", "values", got))

    def __repr__(self) -> str:
        tensor = self._tensor
        return f"<MPSGraphTensor {tensor.name} {tensor.dtype}{brackets(tensor.shape)}>"


class MPSGraphOperation(NSObject):
    """An operation of a graph: what gives a tensor, or is done for its effect."""

    _node: Node
    _graph: Any  # the MPSGraph

    def inputTensors(self) -> list[MPSGraphTensor]:
        return [self._graph._wrap(tensor) for tensor in self._node.inputs]

    def outputTensors(self) -> list[MPSGraphTensor]:
        """None of an assign, which is done for its effect."""
        if self._node.op is ASSIGN:
            return []
        return [self._graph._wrap(tensor) for tensor in self._node.results]

    def controlDependencies(self) -> list[MPSGraphOperation]:
        return []

    def graph(self) -> Any:
        return self._graph

    def name(self) -> str:
        return self._node.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._node.name}>"


class MPSGraphVariableOp(MPSGraphOperation):
    """The operation behind a variable."""

    def shape(self) -> list[int]:
        return [int(size or 0) for size in self._node.results[0].shape]

    def dataType(self) -> int:
        return DATA_TYPE_NUMBERS[self._node.results[0].dtype]


class MPSGraphShapedType(Typed):
    """The shape and type of a feed, for compiling."""

    def initWithShape_dataType_(self, shape: Sequence[int], dataType: int) -> MPSGraphShapedType:
        self.setShape_(shape)
        self.setDataType_(dataType)
        return self

    def shape(self) -> list[int]:
        return list(self._shape)

    def setShape_(self, shape: Sequence[int]) -> None:
        self._shape = sizes_of("MPSGraphShapedType", shape)

    def setDataType_(self, dataType: int) -> None:
        type_name("MPSGraphShapedType", dataType)
        self._type = dataType

    def isEqualTo_(self, other: object) -> bool:
        mine = self._shape, self._type
        return isinstance(other, MPSGraphShapedType) and mine == (other._shape, other._type)


def unwrap(label: str, name: str, tensor: object) -> Tensor:
    """The graph's tensor behind a wrapper."""
    found: Tensor = one_of(label, name, MPSGraphTensor, tensor)._tensor
    return found
