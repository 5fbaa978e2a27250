"""The recurrent nodes of an ONNX graph, and whether they are a stack.

Every value of the graph gets a meaning as the nodes are read in order: the steps that a layer
gives, with the order of their axes; its last states; sizes; initial states. Nodes that only move
these to where the next layer expects them are part of a stack. Any other node is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..types import Array
from .contents import Contents, shown
from .limits import Budget
from .objects import ONNX_INPUTS, Piece, is_recurrent, onnx_constants, onnx_piece

# A source has its axes by number until a layer takes it; F is D·H, or I.
_SOURCE: tuple[Any, ...] = (0, 1, 2)
# Nodes that take values elsewhere as they are.
_MOVES = (
    "Transpose Squeeze Unsqueeze Reshape Identity Concat Slice Split Gather Expand Tile Cast "
    "Flatten"
).split()
# Nodes that compute sizes from sizes.
_SIZES = [*_MOVES, *"Shape Add Sub Mul Div ConstantOfShape Range Equal Where".split()]


@dataclass(frozen=True)
class _Steps:
    """What a layer gives at every step, or the source; ``axes`` are T, N and D, H or F."""

    maker: str  # the name of a node or of an input of the graph
    axes: tuple[Any, ...]
    directions: int = 1
    width: int = -1  # H, or F of a source


@dataclass(frozen=True)
class _Known:
    """A value that belongs to no step: a state at the end, a size, zeros, an input's state."""

    kind: str  # "state", "size", "zeros" or "given"


@dataclass(frozen=True)
class _Other:
    """What something beside the stack has made."""

    maker: str


_Value = _Steps | _Known | _Other


@contextmanager
def reading(path: str, budget: Budget) -> Iterator[Contents]:
    """The recurrent nodes of a file."""
    from ..onnx.reading import array_of, read_model  # imports onnx

    budget.take(budget.size, path)
    model, folder = read_model(path)
    yield contents(model.graph, lambda _, tensor: array_of(tensor, folder))


def contents(graph: Any, array_of: Callable[[str, Any], Array]) -> Contents:
    """The recurrent nodes of a graph, and how they are connected."""
    reader = _Reader(graph, array_of)
    for node in graph.node:
        reader.read(node)
    reader.check_outputs()
    return reader


class _Reader(Contents):
    def __init__(self, graph: Any, array_of: Callable[[str, Any], Array]) -> None:
        self.layers: dict[str, Callable[[], list[Piece]]] = {}
        super().__init__(self.layers)
        self.graph, self.array_of = graph, array_of
        self.tensors: Mapping[str, Any] = onnx_constants(graph)
        inputs = {each.name: each for each in graph.input if each.name not in self.tensors}
        self.values: dict[str, _Value] = {name: _source(each) for name, each in inputs.items()}
        # The sizes of the model's inputs that are no layer's source, and of T and N, where known.
        self.inputs = {
            name: [size.dim_value for size in each.type.tensor_type.shape.dim]
            for name, each in inputs.items()
        }
        self.sizes: dict[Any, int] = {}
        self.last = ""  # the layer before

    def read(self, node: Any) -> None:
        """Give each result of a node its meaning."""
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            for name in node.output:
                if name not in self.tensors:  # a number or a list of them
                    self.values[name] = _Known("size")
            return
        if is_recurrent(node):
            self._layer(node)
            return
        found = self._moved(node)
        if isinstance(found, _Other):
            self.others.append(f"{found.maker} ({node.op_type})")
        self.values |= dict.fromkeys(node.output, found)

    def check_outputs(self) -> None:
        """Only the last layer's steps and the last states of all layers leave a stack."""
        states = []
        steps = False
        for output in self.graph.output:
            value = self.values.get(output.name)
            if isinstance(value, _Known) and value.kind == "state":
                states.append(output.name)
            elif isinstance(value, _Steps) and value.maker == self.last:
                steps = True
            elif not isinstance(value, _Other):  # else it is among the others
                self.wiring.append(f"output {output.name} comes from {_maker(value)}")
        if states and not steps:
            self.passive.append(f"{shown(states)} as the model's result, which is a last state")

    def _layer(self, node: Any) -> None:
        name = node.name or node.output[0]
        if name in self.layers:
            name = f"{name}:{next(filter(None, node.output), len(self.layers))}"
        self.layers[name] = lambda: [onnx_piece(node, self.tensors, self.array_of)]
        attributes = {each.name: each for each in node.attribute}
        batch_first = "layout" in attributes and attributes["layout"].i == 1
        self._check_source(name, node, batch_first)
        for role, given in zip(ONNX_INPUTS[4:7], node.input[4:7], strict=False):
            if given and given not in self.tensors:
                self._check_given(name, role, given)
        directions, width = 1, -1
        if "direction" in attributes and attributes["direction"].s.lower() == b"bidirectional":
            directions = 2
        if "hidden_size" in attributes:
            width = attributes["hidden_size"].i
        axes = ("N", "T", "D", "H") if batch_first else ("T", "D", "N", "H")
        steps = _Steps(name, axes, directions, width)
        results: list[_Value] = [steps, _Known("state"), _Known("state")]
        self.values |= dict(zip(node.output, results, strict=False))
        self.last = name

    def _check_source(self, name: str, node: Any, batch_first: bool) -> None:
        source = self.values.get(node.input[0]) if node.input else None
        first = not self.last
        if isinstance(source, _Steps) and source.maker in self.inputs and first:
            if source.axes[-1:] != (2,) or len(source.axes) != 3:
                self.wiring.append(f"{name} takes {source.maker} turned around")
                return
            sizes = self.inputs.pop(source.maker)
            order = source.axes[:2][::-1] if batch_first else source.axes[:2]
            if len(sizes) == 3:
                self.sizes = {"T": sizes[order[0]], "N": sizes[order[1]]}
            return
        wanted = ("N", "T", "F") if batch_first else ("T", "N", "F")
        if isinstance(source, _Steps) and source.maker == self.last and source.axes == wanted:
            return
        maker = _maker(source)
        if maker == self.last:
            self.wiring.append(f"{name} takes {maker} in another order of its axes")
        else:
            before = self.last or "an input of the model"
            self.wiring.append(f"{name} takes {maker}, not {before}")

    def _check_given(self, name: str, role: str, given: str) -> None:
        value = self.values.get(given)
        if value == _Known("zeros"):
            return
        if (isinstance(value, _Steps) and value.maker in self.inputs) or value == _Known("given"):
            self.passive.append(f"{role} of {name}, which belongs to a call")
            return
        self.wiring.append(f"{name} takes its {role} from {_maker(value)}")

    def _moved(self, node: Any) -> _Value:
        name = node.name or next(filter(None, node.output), node.op_type)
        values = [self._value(given) for given in node.input if given]
        if node.domain not in ("", "ai.onnx") or not values:
            return _Other(name)
        first, others = values[0], values[1:]
        if node.op_type == "Shape":
            return _Known("size")
        if node.op_type == "ConstantOfShape" and first == _Known("size"):
            fills = [each.t for each in node.attribute if each.name == "value"]
            is_zero = not any(np.any(self.array_of(node.name, tensor)) for tensor in fills)
            return _Known("zeros" if is_zero else "size")
        sized = all(isinstance(v, _Known) and v.kind in ("size", "zeros") for v in others)
        if isinstance(first, _Known):
            if first.kind == "size" and node.op_type in _SIZES and sized:
                return first
            if node.op_type == "Concat" and all(each == first for each in others):
                return first
            if node.op_type in _MOVES and node.op_type != "Concat" and sized:
                return first
        elif isinstance(first, _Steps) and sized:
            if node.op_type == "Identity":
                return first
            if node.op_type == "Dropout" and len(node.input) < 3:
                self.passive.append(f"{name} (Dropout, nothing outside training)")
                return first
            axes = self._axes(node, first)
            if axes is not None:
                return _Steps(first.maker, axes, first.directions, first.width)
            if first.maker in self.inputs and node.op_type in _MOVES:
                return _Known("given")  # a part of the initial states
        return _Other(name)

    def _value(self, name: str) -> _Value:
        if name in self.values:
            return self.values[name]
        if name in self.tensors:
            return _Known("size" if self._integers(name) is not None else self._constant(name))
        return _Other(name)

    def _constant(self, name: str) -> str:
        return "size" if np.any(self.array_of(name, self.tensors[name])) else "zeros"

    def _integers(self, name: str) -> list[int] | None:
        """A constant that is a list of integers."""
        tensor = self.tensors.get(name)
        if tensor is None or tensor.data_type not in (6, 7):  # int32 and int64
            return None
        return [int(each) for each in self.array_of(name, tensor).reshape(-1)]

    def _axes(self, node: Any, steps: _Steps) -> tuple[Any, ...] | None:
        """The axes of steps behind a node that joins the directions or turns them around."""
        axes, rank = steps.axes, len(steps.axes)
        if node.op_type == "Transpose":
            order = _attribute(node, "perm") or list(range(rank))[::-1]
            return tuple(axes[k] for k in order) if sorted(order) == list(range(rank)) else None
        if node.op_type == "Squeeze" and steps.directions == 1:
            places = self._operand(node, "axes")
            if places is not None and [axes[k] for k in places if -rank <= k < rank] == ["D"]:
                return tuple("F" if axis == "H" else axis for axis in axes if axis != "D")
        if node.op_type == "Reshape":
            return self._reshaped(node, steps)
        return None

    def _reshaped(self, node: Any, steps: _Steps) -> tuple[Any, ...] | None:
        """[T,N,D,H] as [T,N,D·H]; with one direction D may stand anywhere."""
        axes = steps.axes
        shape = self._operand(node, "shape")
        if steps.directions == 1:
            axes = tuple(axis for axis in axes if axis != "D")
        elif axes[-2:] == ("D", "H"):
            axes = (*axes[:-2], "H")
        wide = tuple("F" if axis == "H" else axis for axis in axes)
        if shape is None or len(shape) != len(wide) or "D" in wide:
            return None
        if 0 in shape and _attribute(node, "allowzero") not in (None, [0]):
            return None
        sizes = {**self.sizes, "F": steps.directions * steps.width}
        free = 0
        for place, (size, axis) in enumerate(zip(shape, wide, strict=True)):
            if size == -1:
                free += 1
            elif (size == 0 and steps.axes[place] != axis) or (size and size != sizes.get(axis)):
                return None
        return wide if free <= 1 else None

    def _operand(self, node: Any, name: str) -> list[int] | None:
        """A list of integers that is a node's second input, or an attribute in old versions."""
        if len(node.input) > 1:
            return self._integers(node.input[1])
        return _attribute(node, name)


def _source(given: Any) -> _Value:
    rank = len(given.type.tensor_type.shape.dim)
    known = given.type.tensor_type.HasField("shape")
    return _Steps(given.name, tuple(range(rank)) if known else _SOURCE)


def _attribute(node: Any, name: str) -> list[int] | None:
    for attribute in node.attribute:
        if attribute.name == name:
            return list(attribute.ints) if attribute.type == 7 else [attribute.i]
    return None


def _maker(value: _Value | None) -> str:
    """Where a value comes from, in words."""
    if isinstance(value, _Known):
        words = {
            "state": "the last state of a layer",
            "size": "what is computed from sizes",
            "given": "a part of an input",
        }
        return words.get(value.kind, "constants")
    return "constants" if value is None else value.maker
