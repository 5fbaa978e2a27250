"""load: an ONNX model as a graph with named inputs, outputs and parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ..arrays import NUMPY
from ..errors import DTypeError, GraphError, OptionError, ShapeError, ZStateError, located, refusal
from ..graph import Graph, Tensor
from ..graph.ops.base import agree
from ..layout import brackets, describe
from ..types import FLOAT_NAMES, Array
from .folding import MOST_FOLDED, Folding, roots
from .model import Model, as_array, drop_unused
from .node import Node
from .nodes import translate
from .quantised import is_quantised, plain
from .reading import LABEL, array_of, read_model, type_name

_ODD = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
_OF_ONNX = ("", "ai.onnx")  # the names of its own domain


class NeedsValueError(OptionError):
    """A value that has to be known when the model is loaded depends on these inputs."""

    names: tuple[str, ...] = ()


def load(
    source: str | PathLike[str] | Any, *, constants: Mapping[str, Array] | None = None
) -> Model:
    """Load an ONNX file, or an ``onnx.ModelProto``, as a graph.

    Args:
        source: a path or a ModelProto. External data is read only from the file's own folder.
        constants: values that fix inputs for good, such as a shape that is an input.

    A node, an attribute or a type that the graph does not have raises an error that names the node.
    """
    model, folder = read_model(source)
    if not isinstance(constants, Mapping | None):
        expected = "{name of an input: array}"
        raise DTypeError(refusal(LABEL, "constants", expected, describe(constants)))
    with _well_formed(f"[{LABEL}] model: expected a well-formed one, got "):
        found = Importer(model, folder, dict(constants or {})).model()
    return found


@contextmanager
def _well_formed(expected: str) -> Iterator[None]:
    """What only a malformed model makes Python and NumPy raise becomes an error of zstate."""
    try:
        yield
    except ZStateError:
        raise
    except (*_ODD, RecursionError, MemoryError) as error:
        raise GraphError(f"{expected}{str(error) or type(error).__name__}") from error


class Importer:
    """The values of a model by name: tensors of the graph, and arrays."""

    def __init__(self, model: Any, folder: Path | None, constants: dict[str, Array]) -> None:
        self.graph = Graph()
        self.folder = folder
        self.proto = model.graph
        opsets = [each.version for each in model.opset_import if each.domain in _OF_ONNX]
        self.opset = opsets[-1] if opsets else 0
        if self.opset < 1:
            expected = "an opset of ONNX itself"
            raise OptionError(refusal(LABEL, "opset_import", expected, str(self.opset)))
        self.functions = {(f.domain, f.name) for f in model.functions}
        self.tensors: dict[str, Tensor] = {}
        self.arrays: dict[str, Array] = {}
        self.initialisers: set[str] = set()
        self.parameters: dict[str, Tensor] = {}
        self.shared: dict[Any, dict[str, Tensor]] = {}  # weights that several nodes use
        self.names: dict[str, list[tuple[str, int]]] = {}  # of sizes: the axes of inputs they name
        self.readers: dict[str, list[Any]] = {}
        for node in self.proto.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.folding = Folding(self.graph)
        self.inputs = self._read_inputs(constants)

    def model(self) -> Model:
        """The whole model, every node translated."""
        for proto in self.proto.node:
            where = f"[{LABEL}] node {Node(self, proto).name!r} ({proto.op_type})"
            with located(where), _well_formed("malformed: "):
                self.take(proto)
        outputs = {}
        for value in self.proto.output:
            if not self._exists(value.name):
                raise GraphError(
                    refusal(LABEL, f"output {value.name!r}", "a result", "no such name")
                )
            outputs[value.name] = found = self.tensor(value.name)
            self.graph.axis_names.setdefault(found, _axis_names(value))
        drop_unused(self.graph, outputs, self.parameters)
        return Model(self.graph, self.inputs, outputs, self.parameters, self.names)

    def take(self, proto: Any) -> None:
        """Translate a node, and keep its results."""
        if is_quantised(proto):
            proto = plain(self, proto)
        node = Node(self, proto)
        if proto.domain not in _OF_ONNX or (proto.domain, proto.op_type) in self.functions:
            expected = "an operator of ONNX itself"
            raise OptionError(refusal(node.kind, "domain", expected, repr(proto.domain)))
        before = len(self.graph.nodes)
        results = self.folding.settled(translate(node), self.graph.nodes[before:])
        self._keep(node, results)
        node.finish()

    def add_array(self, tensor: Any) -> None:
        """Keep an initialiser, the model's or that of a body."""
        if self._exists(tensor.name):
            raise GraphError(f"[{LABEL}] duplicate tensor name {tensor.name!r}")
        self.arrays[tensor.name] = array_of(tensor, self.folder)

    def alias(self, name: str, outside: str) -> None:
        """A second name for a value, inside the body of a node."""
        if self._exists(name):
            raise GraphError(refusal(LABEL, f"value {name!r}", "a new name", "one in use"))
        if outside in self.arrays and outside not in self.initialisers:
            self.arrays[name] = self.arrays[outside]
        else:
            self.tensors[name] = self.tensor(outside)

    def tensor(self, name: str) -> Tensor:
        """A value as a tensor of the graph; an initialiser of floats is a parameter."""
        if name in self.tensors:
            return self.tensors[name]
        if name in self.arrays:
            array = self.arrays[name]
            if name in self.initialisers and array.ndim and array.dtype.name in FLOAT_NAMES:
                self.parameters[name] = found = self.graph.variable(array, name=name)
            else:
                found = self.graph.constant(array)
        else:
            raise GraphError(
                refusal(LABEL, f"value {name!r}", "a result of an earlier node", "no such name")
            )
        self.tensors[name] = found
        return found

    def values(self, name: str) -> Any:
        """The array of a value, or its array of sizes; None if the run computes it."""
        if name in self.arrays:
            return self.arrays[name]
        return self.folding.sizes.get(self.tensors[name]) if name in self.tensors else None

    def known(self, name: str) -> Array:
        """A value that must be known by now, because the graph's shapes depend on it."""
        if name in self.arrays:
            return self.arrays[name]
        tensor = self.tensor(name)
        if found := roots(tensor):
            error = NeedsValueError(
                f"value {name!r}: expected one that is known when the model is loaded, got one "
                f"that depends on {', '.join(found)}"
            )
            error.names = tuple(name for name in found if name in self.inputs)
            raise error
        expected = f"at most {MOST_FOLDED} elements in a value that shapes depend on"
        raise OptionError(refusal(LABEL, f"value {name!r}", expected, str(tensor)))

    def is_own(self, name: str, proto: Any, index: int) -> bool:
        """Whether an initialiser is read as this input of this node, and of nodes like it, only."""
        if name not in self.initialisers or name not in self.arrays or name in self.tensors:
            return False
        if any(value.name == name for value in self.proto.output):
            return False
        return all(
            reader.op_type == proto.op_type
            and [k for k, each in enumerate(reader.input) if each == name] == [index]
            and reader.attribute == proto.attribute
            and list(reader.input[1:4]) == list(proto.input[1:4])
            for reader in self.readers[name]
        )

    def _exists(self, name: str) -> bool:
        return name in self.tensors or name in self.arrays

    def _keep(self, node: Node, results: Sequence[Any]) -> None:
        for name, result in zip(node.outputs, results, strict=False):
            if not name:
                continue
            if self._exists(name):
                raise GraphError(refusal(node.kind, f"output {name!r}", "a new name", "one in use"))
            if isinstance(result, Tensor):
                self.tensors[name] = result
            elif isinstance(result, np.ndarray):
                self.arrays[name] = result
        for name in node.outputs[len(results) :]:
            if name:
                raise OptionError(refusal(node.kind, f"output {name!r}", "no such output", "one"))

    def _read_inputs(self, constants: dict[str, Array]) -> dict[str, Tensor]:
        for tensor in self.proto.initializer:
            self.add_array(tensor)
            self.initialisers.add(tensor.name)
        if self.proto.sparse_initializer:
            raise OptionError(refusal(LABEL, "initialisers", "dense ones", "a sparse one"))
        inputs: dict[str, Tensor] = {}
        for value in self.proto.input:
            name, what, kind = value.name, f"input {value.name!r}", value.type.tensor_type
            if name in self.arrays:  # a default value; ONNX before IR 4 lists all of them
                continue
            if name in inputs:
                raise GraphError(f"[{LABEL}] duplicate {what}")
            if not value.type.HasField("tensor_type"):
                raise OptionError(refusal(LABEL, what, "a tensor", "another kind of value"))
            if name in constants:
                given = as_array(LABEL, what, constants.pop(name), type_name(kind.elem_type, what))
                self.arrays[name] = _fixed(NUMPY.asarray(given), kind, what)
            else:
                inputs[name] = self.tensors[name] = self._placeholder(value, what)
        if constants:
            expected = f"inputs of the model: {', '.join(v.name for v in self.proto.input)}"
            raise OptionError(refusal(LABEL, "constants", expected, ", ".join(constants)))
        return inputs

    def _placeholder(self, value: Any, what: str) -> Tensor:
        kind = value.type.tensor_type
        if not kind.HasField("shape"):
            raise ShapeError(refusal(LABEL, what, "a number of dimensions", "none"))
        sizes = _sizes(kind)
        for size in sizes:
            if size is not None and size < 0:
                raise ShapeError(refusal(LABEL, what, "sizes", str(size)))
        dtype = type_name(kind.elem_type, what)
        tensor = self.graph.placeholder(shape=sizes, dtype=dtype, name=value.name)
        self.graph.axis_names[tensor] = names = _axis_names(value)
        for axis, name in enumerate(names):
            if name:
                self.names.setdefault(name, []).append((value.name, axis))
        return tensor


def _sizes(kind: Any) -> list[int | None]:
    return [each.dim_value if each.HasField("dim_value") else None for each in kind.shape.dim]


def _fixed(array: Array, kind: Any, what: str) -> Array:
    """The value of an input, which has to be of the type and shape that the model declares."""
    dtype, sizes = type_name(kind.elem_type, what), tuple(_sizes(kind))
    if array.dtype.name != dtype or (kind.HasField("shape") and not agree(array.shape, sizes)):
        got = f"{array.dtype}{brackets(array.shape)}"
        raise DTypeError(refusal(LABEL, what, f"{dtype}{brackets(sizes)}", got))
    return array


def _axis_names(value: Any) -> tuple[str, ...]:
    return tuple(size.dim_param for size in value.type.tensor_type.shape.dim)
