"""Nodes and initialisers of an ONNX graph, as they are made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..arrays import NUMPY
from ..graph import Tensor
from ..graph.tensor import Node
from ..types import Array
from .package import onnx_package

END = 2**63 - 1
Value: TypeAlias = Any  # an array that may become an initialiser, or the name of a value


class Emitter:
    """Collects what is emitted; ``emit`` adds one node. ``taken``: names that are in use."""

    def __init__(self, taken: Iterable[str] = (), *, int8: bool = False) -> None:
        self.onnx = onnx_package()
        self.int8 = int8  # whether recurrent weights are to be in 8 bits
        self.outputs: dict[str, Tensor] = {}
        self.readers: dict[Tensor, list[Node]] = {}
        self.names: dict[Tensor, Any] = {}
        self.nodes: list[Any] = []
        self.initialisers: dict[str, Any] = {}
        self._used: dict[str, int] = dict.fromkeys(taken, 1)  # and how many were made of it
        self._known: dict[Any, Any] = {}  # the result of a node by what it computes
        self._outside: tuple[list[Any], dict[Any, Any]] = ([], {})

    def name(self, tensor: Tensor) -> Any:
        """The name of a tensor's value."""
        return self.names[tensor]

    def value(self, tensor: Tensor) -> Value:
        """The array of a tensor whose value is known, else its name."""
        return self.name(tensor)

    def new_name(self, hint: str) -> str:
        name = hint
        while name in self._used:
            name = f"{hint}_{self._used[hint]}"
            self._used[hint] += 1
        self._used[name] = 1
        return name

    def type_number(self, dtype: str) -> int:
        return int(self.onnx.helper.np_dtype_to_tensor_dtype(NUMPY.dtype(dtype)))

    def named(self, value: Value, hint: str = "constant") -> Any:
        return self.constant(value, hint) if isinstance(value, np.ndarray) else value

    def constant(self, array: Any, hint: str = "constant") -> Any:
        """The name of a new initialiser; small ones without a name of their own are shared."""
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        is_shared = hint == "constant" and array.size < 64
        key = (array.dtype.name, array.shape, array.tobytes() if is_shared else hint)
        if is_shared and key in self._known:
            return self._known[key]
        name = self.new_name(hint)
        self.initialisers[name] = self.onnx.numpy_helper.from_array(array, name)
        if is_shared:
            self._known[key] = name
        return name

    def known(self, name: str) -> Any:
        """The array of an initialiser; None for another value."""
        found = self.initialisers.get(name)
        return None if found is None else self.onnx.numpy_helper.to_array(found)

    def ints(self, *values: int) -> Any:
        return self.constant(np.array(values, np.int64))

    def emit(self, kind: str, *inputs: Value, count: int = 1, **attributes: Any) -> Any:
        """The name of the result of a node, or the names of several; equal nodes are one."""
        values = [self.named(value) for value in inputs]
        key = (kind, *values, repr(attributes))
        if kind != "Identity" and key in self._known:  # which gives a value a second name
            return self._known[key]
        names = [self.new_name(f"{kind}_{len(self.nodes)}") for _ in range(count)]
        self.nodes.append(
            self.onnx.helper.make_node(kind, values, names, name=names[0], **attributes)
        )
        self._known[key] = names[0] if count == 1 else names
        return self._known[key]

    def cast(self, value: Value, dtype: str) -> Any:
        return self.emit("Cast", value, to=self.type_number(dtype))

    def flip(self, value: Value, axes: Sequence[int]) -> Value:
        back = [-1] * len(axes)
        bounds = (self.ints(*back), self.ints(*[-END] * len(axes)), self.ints(*axes))
        return self.emit("Slice", value, *bounds, self.ints(*back))

    def size(self, value: Value, axis: int) -> Value:
        """[1]: the size of an axis, when the model runs."""
        return self.emit("Gather", self.emit("Shape", value), self.ints(axis))

    def mean(self, value: Value) -> Value:
        """Over the last axis, which stays."""
        return self.emit("ReduceMean", value, axes=[-1])

    # Of arrays at once, of values by nodes.

    def take(self, value: Value, index: Array, axis: int) -> Value:
        if isinstance(value, np.ndarray):
            return np.take(value, index, axis)
        return self.emit("Gather", value, index.astype(np.int64), axis=axis)

    def reshape(self, value: Value, *shape: int) -> Value:
        if isinstance(value, np.ndarray):
            return value.reshape(shape)
        return self.emit("Reshape", value, self.ints(*shape))

    def transpose(self, value: Value, *axes: int) -> Value:
        if isinstance(value, np.ndarray):
            return np.transpose(value, axes)
        return self.emit("Transpose", value, perm=axes) if axes else value

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        if all(isinstance(value, np.ndarray) for value in values):
            return np.concatenate(values, axis)
        return self.emit("Concat", *values, axis=axis)

    def part(self, value: Value, start: int, stop: int, axis: int) -> Value:
        """value[start:stop] along an axis, which is not negative."""
        if isinstance(value, np.ndarray):
            return value[(slice(None),) * axis + (slice(start, stop),)]
        return self.emit("Slice", value, self.ints(start), self.ints(stop), self.ints(axis))

    def nth(self, value: Value, index: int, length: int, axis: int) -> Value:
        """The index-th part of this length along an axis."""
        return self.part(value, index * length, (index + 1) * length, axis)

    # The body of a Scan: what is emitted between the two calls is in it.

    def begin_body(self) -> None:
        self._outside = self.nodes, self._known
        self.nodes, self._known = [], {}

    def end_body(self) -> tuple[list[Any], list[tuple[str, Any]]]:
        """The body's nodes, and the values from outside that it cannot read by their names."""
        nodes = self.nodes
        self.nodes, self._known = self._outside
        return nodes, []
