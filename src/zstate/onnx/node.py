"""One ONNX node while it is translated: its inputs, known or not, and its attributes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import GraphError, OptionError, refusal
from ..graph import Graph, Tensor
from ..graph.ops.base import axis_of
from ..types import Array
from .package import onnx_package
from .reading import LABEL, array_of
from .sizes import Size

if TYPE_CHECKING:
    from .loading import Importer


class Node:
    """A node of the model. ``finish`` refuses the attributes that nothing has read."""

    def __init__(self, owner: Importer, proto: Any) -> None:
        self.owner: Importer = owner
        self.graph: Graph = owner.graph
        self.proto = proto
        self.kind: str = proto.op_type
        self.inputs = list(proto.input)
        self.outputs = list(proto.output)
        self.name = proto.name or next((name for name in self.outputs if name), "")
        self.opset = owner.opset
        self._attributes = {attribute.name: attribute for attribute in proto.attribute}
        self._unread = dict.fromkeys(self._attributes)

    def has(self, index: int) -> bool:
        return index < len(self.inputs) and bool(self.inputs[index])

    def wants(self, index: int) -> bool:
        """Whether an output has a name, and so may have a reader."""
        return index < len(self.outputs) and bool(self.outputs[index])

    def given(self, index: int) -> str:
        """The name of an input that the operator must have."""
        if not self.has(index):
            raise GraphError(refusal(self.kind, f"input {index}", "a tensor", "none"))
        return str(self.inputs[index])

    def tensor(self, index: int) -> Tensor:
        return self.owner.tensor(self.given(index))

    def tensors(self) -> list[Tensor]:
        """All inputs, of an operator that takes any number."""
        return [self.tensor(index) for index in range(len(self.inputs))]

    def optional(self, index: int) -> Tensor | None:
        return self.tensor(index) if self.has(index) else None

    def known(self, index: int) -> Array:
        """An input whose value has to be known by now."""
        return self.owner.known(self.given(index))

    def sizes(self, index: int) -> list[int | Size]:
        """An input that lists sizes: numbers, or what shapes will tell."""
        found = self.owner.values(self.given(index))
        return [
            each if isinstance(each, Size) else int(each)
            for each in np.ravel(self.known(index) if found is None else found).tolist()
        ]

    def ints(self, index: int) -> list[int]:
        """An input that lists integers, all of them known by now."""
        found = self.sizes(index)
        for each in found:
            if isinstance(each, Size):
                raise OptionError(refusal(self.kind, f"input {index}", "known sizes", repr(each)))
        return [each for each in found if not isinstance(each, Size)]

    def axes(self, index: int = 1) -> list[int] | None:
        """Axes: an attribute in older opsets, an input since; None if neither is given."""
        if self.has(index):
            return self.ints(index)
        found: list[int] | None = self.attribute("axes")
        return found

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute as a number, a string, a list or an array."""
        attribute = self._read(name)
        if attribute is None:  # attributes are float32, and so are the values they default to
            return float(np.float32(default)) if isinstance(default, float) else default
        onnx = onnx_package()
        if attribute.type == onnx.AttributeProto.TENSOR:
            return array_of(attribute.t, self.owner.folder)
        if attribute.ref_attr_name or attribute.type in (
            onnx.AttributeProto.GRAPH,
            onnx.AttributeProto.GRAPHS,
        ):
            raise OptionError(refusal(self.kind, name, "a value", "a graph or a reference"))
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            return value.decode()
        if isinstance(value, int | float):
            return value
        return [each.decode() if isinstance(each, bytes) else each for each in value]

    def _read(self, name: str) -> Any:
        self._unread.pop(name, None)
        return self._attributes.get(name)

    def subgraph(self, name: str) -> Any:
        """An attribute that is a graph."""
        attribute = self._read(name)
        if attribute is None or attribute.type != onnx_package().AttributeProto.GRAPH:
            raise GraphError(refusal(self.kind, name, "a graph", "none"))
        return attribute.g

    def finish(self) -> None:
        """Refuse what was not looked at."""
        if self._unread:
            raise OptionError(
                refusal(self.kind, "attributes", "those it knows", ", ".join(self._unread))
            )

    def size(self, tensor: Tensor, axis: int) -> int | Size:
        """The size of an axis, which is its own: a name that it shares with another is a claim,
        which ``Model.run`` checks."""
        axis = axis_of(LABEL, "axis", axis, len(tensor.shape))
        size = tensor.shape[axis]
        return Size.axis(tensor, axis) if size is None else size

    def shape(self, tensor: Tensor) -> list[int | Size]:
        return [self.size(tensor, axis) for axis in range(len(tensor.shape))]


Row = Callable[[Node], Sequence[Any]]  # of the table of operators: a node to its results
