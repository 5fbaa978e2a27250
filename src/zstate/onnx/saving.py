"""save: a graph as an ONNX file that other runtimes run with the same results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import Any

from ..arrays import NUMPY
from ..errors import DTypeError, GraphError, OptionError, located, refusal
from ..graph import Graph, Tensor
from ..graph.ops import CONSTANT, PLACEHOLDER, VARIABLE
from ..graph.ops.recurrent import FORWARD, title_of
from ..graph.storage import replacing
from ..graph.tensor import Node
from ..layout import describe
from ..types import Array
from .emitter import Emitter, Value
from .folding import evaluated
from .package import onnx_package
from .quantised import KIND
from .rows import LABEL, ROWS
from .writing import recurrent

OPSET, IR_VERSION = 17, 8
_UNSUPPORTED = re.compile(
    r"op_type:(\w+), node name: ([^)]*)\).*has unsupported type: tensor\((\w+)\)"
)


def save(
    graph: Graph,
    outputs: Mapping[str, Tensor],
    path: str | PathLike[str],
    weights: str = "float32",
) -> None:
    """Write these tensors, and everything they depend on, as an ONNX model.

    Args:
        graph: the graph; its placeholders become the inputs, its variables and constants the
            initialisers, with their current values.
        outputs: {name: tensor}, the model's outputs, in this order.
        path: the file to write.
        weights: "float32" keeps them as they are; with "int8" an LSTM becomes ONNX Runtime's
            DynamicQuantizeLSTM, which supports no other cell.

    A recurrent node becomes an RNN, LSTM or GRU. A node that these cannot express (a mask, resets,
    heads, different activations for gates that share one, flip_z, a peephole on c[t-1], cells of
    all steps, a cell from equations) becomes a Scan with its equations. What ONNX cannot express,
    such as a gradient operation, raises an error.
    """
    if weights not in ("float32", "int8"):
        raise OptionError(refusal(LABEL, "weights", "'float32' or 'int8'", repr(weights)))
    data = Exporter(graph, outputs, int8=weights == "int8").model().SerializeToString()
    _check_types(data)
    with replacing(path) as file:
        file.write(data)


def _check_types(data: bytes) -> None:
    """Refuse types that an operator does not have in ONNX: other runtimes reject such a file."""
    inference = onnx_package().shape_inference
    try:
        inference.infer_shapes(data, check_type=True)
    except inference.InferenceError as error:
        found = _UNSUPPORTED.search(str(error))
        if found is None:  # what it knows of shapes is of no concern here
            return
        op, node, dtype = found.groups()
        expected = f"a type that {op} has in ONNX (opset {OPSET})"
        raise OptionError(refusal(LABEL, f"node {node!r}", expected, dtype)) from None


class Exporter(Emitter):
    """The model of some tensors of a graph, written node by node."""

    def __init__(self, graph: Graph, outputs: Mapping[str, Tensor], *, int8: bool = False) -> None:
        if not isinstance(outputs, Mapping):
            expected = "{name: tensor}"
            raise DTypeError(refusal(LABEL, "outputs", expected, describe(outputs)))
        if not outputs:
            raise GraphError(refusal(LABEL, "outputs", "at least one", "none"))
        for name, tensor in outputs.items():
            graph.own(LABEL, f"outputs[{name!r}]", tensor)
            if not isinstance(name, str) or not name:
                raise GraphError(refusal(LABEL, "outputs", "names", repr(name)))
        super().__init__(outputs, int8=int8)
        self.outputs = dict(outputs)
        self.graph_nodes = graph.needed(outputs.values())
        for name in (*outputs, *(node.name for node in self.graph_nodes)):
            if name != name.encode(errors="replace").decode():
                expected = "names without lone surrogates, which UTF-8 cannot hold"
                raise OptionError(refusal(LABEL, "name", expected, ascii(name)))
        for node in self.graph_nodes:
            for tensor in node.inputs:
                self.readers.setdefault(tensor, []).append(node)
        self.arrays: dict[Tensor, Array] = {}  # of what depends on constants and variables alone
        self.axis_names = graph.axis_names

    def model(self) -> Any:
        """The ModelProto."""
        helper = self.onnx.helper
        inputs = []
        for node in self.graph_nodes:
            if node.op is PLACEHOLDER:
                inputs.append(self._declared(node.results[0], self.new_name(node.results[0].name)))
                self.names[node.results[0]] = inputs[-1].name
        for node in self.graph_nodes:
            if node.op in (PLACEHOLDER, CONSTANT, VARIABLE) or node.results[0] in self.names:
                continue
            if self._folded(node):
                continue
            with located(f"[{LABEL}] node {node.name!r} ({node.op.name})"):
                found = self._written(node)
            for tensor, value in zip(node.results, found, strict=True):
                if value is not None:
                    self.names[tensor] = self.named(value)
        for name, tensor in self.outputs.items():
            self.nodes.append(helper.make_node("Identity", [self.name(tensor)], [name]))
        outputs = [self._declared(tensor, name) for name, tensor in self.outputs.items()]
        nodes = self._without_unread(self._without_copies())
        read = {name for node in nodes for name in _names_read(node)}
        kept = [tensor for name, tensor in self.initialisers.items() if name in read]
        graph = helper.make_graph(nodes, "zstate", inputs, outputs, kept)
        domains = {"": OPSET, **{node.domain: 1 for node in nodes if node.domain}}
        opsets = [helper.make_opsetid(*each) for each in domains.items()]
        return helper.make_model(
            graph, ir_version=IR_VERSION, opset_imports=opsets, producer_name="zstate"
        )

    def name(self, tensor: Tensor) -> Any:
        """The name of a tensor's value; a constant or a variable becomes an initialiser."""
        if tensor not in self.names:
            if (array := self._array(tensor)) is not None:
                self.names[tensor] = self.constant(array, tensor.name)
            else:
                expected = "a result that ONNX has"
                raise OptionError(refusal(LABEL, f"tensor {tensor.name!r}", expected, "none"))
        return self.names[tensor]

    def value(self, tensor: Tensor) -> Value:
        """The array of what depends on constants and variables alone, else the name."""
        array = self._array(tensor)
        return self.name(tensor) if array is None else array

    def _array(self, tensor: Tensor) -> Array | None:
        if tensor.node.op in (CONSTANT, VARIABLE):
            array: Array = NUMPY.asarray(tensor.node.attributes["store"].value)
            return array
        return self.arrays.get(tensor)

    def _folded(self, node: Node) -> bool:
        """Whether a node only rearranges weights, which are then written as it leaves them."""
        if node.op.name in FORWARD:
            return False
        arrays = [self._array(tensor) for tensor in node.inputs]
        most = sum(array.size for array in arrays if array is not None)  # the file may not grow
        found = evaluated(node, arrays, most)
        if found is not None:
            self.arrays.update(zip(node.results, found, strict=True))
        return found is not None

    def _written(self, node: Node) -> Sequence[Value | None]:
        if node.op.name in FORWARD:
            return recurrent(self, node)
        if node.op.name not in ROWS:
            expected = "an operation that ONNX has"
            raise OptionError(refusal(LABEL, "operation", expected, title_of(node)))
        found: Any = ROWS[node.op.name](self, node, *[self.name(t) for t in node.inputs])
        return list(found) if isinstance(found, list) else [found]

    def _declared(self, tensor: Tensor, name: str) -> Any:
        names = self.axis_names.get(tensor, ())
        names += ("",) * (len(tensor.shape) - len(names))
        sizes = [
            names[axis] or f"{tensor.name}_{axis}" if size is None else size
            for axis, size in enumerate(tensor.shape)
        ]
        number = self.type_number(tensor.dtype)
        return self.onnx.helper.make_tensor_value_info(name, number, sizes)

    def _without_copies(self) -> list[Any]:
        """The nodes, with an output's own name on the result that it is a copy of."""
        free = {name for node in self.nodes for name in node.output} - self.outputs.keys()
        renamed: dict[str, str] = {}
        kept = []
        for node in self.nodes:
            is_copy = node.op_type == "Identity" and node.output[0] in self.outputs
            if is_copy and node.input[0] in free:
                renamed[node.input[0]] = node.output[0]
                free.remove(node.input[0])
            else:
                kept.append(node)
        for node in kept:
            for each in _with_bodies(node):
                each.input[:] = [renamed.get(name, name) for name in each.input]
                each.output[:] = [renamed.get(name, name) for name in each.output]
        return kept

    def _without_unread(self, nodes: list[Any]) -> list[Any]:
        """The nodes that an output depends on, recurrent ones without the results at their end that
        nothing reads."""
        read = set(self.outputs)
        kept = []
        for node in reversed(nodes):
            if read.isdisjoint(node.output):
                continue
            read.update(_names_read(node))
            if node.op_type in ("RNN", "LSTM", "GRU", KIND):
                while node.output[-1] not in read:
                    node.output.pop()
            kept.append(node)
        return kept[::-1]


def _names_read(node: Any) -> set[str]:
    """What a node reads, its body included."""
    return {name for each in _with_bodies(node) for name in each.input}


def _with_bodies(node: Any) -> Iterator[Any]:
    """A node, and those of its body."""
    yield node
    for attribute in node.attribute:
        for each in attribute.g.node:
            yield from _with_bodies(each)
