"""load: an ONNX model as a graph with named inputs, outputs and parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ..arrays import NUMPY, is_array, namespace_of
from ..errors import DTypeError, GraphError, OptionError, ShapeError, ZStateError, refusal
from ..graph import Executable, Graph, Tensor
from ..graph.ops import CONSTANT, PLACEHOLDER, VARIABLE
from ..graph.ops.base import axis_of, known
from ..layout import brackets, describe
from ..types import FLOAT_NAMES, Array
from .package import onnx_package
from .quantised import is_quantised, plain
from .reading import LABEL, array_of, read_model, type_name
from .sizes import Size, Sizes, sized_node

_MOST_PROGRAMS = 32  # that run() keeps: a bound, not a policy
# Limits on what is computed while a model is loaded: elements per constant, and elements in all.
# Larger constants are left to the run, because a file of a few bytes may describe any size.
MOST_FOLDED, MOST_FOLDED_IN_ALL = 2**16, 2**22


# What Python and NumPy raise on values that no well-formed model has.
ODD = (
    *(ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError),
    *(RecursionError, MemoryError),
)


class NeedsValueError(OptionError):
    """A value that has to be known when the model is loaded depends on these inputs."""

    names: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Model:
    """An ONNX model as a graph.

    Args:
        graph: the graph; print it, compile it, differentiate it, add to it.
        inputs: its placeholders under the model's names, in the model's order.
        outputs: its results under the model's names, in the model's order.
        parameters: its variables, under the names of the initialisers they come from. The weights
            of a recurrent node are in zstate's gate order and layout.
    """

    graph: Graph
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    parameters: dict[str, Tensor]
    _names: dict[str, list[tuple[str, int]]] = field(default_factory=dict, repr=False)
    # By what was asked for and fed: a program, and whether all of it was plain NumPy arrays.
    _programs: dict[Any, tuple[Executable, bool]] = field(default_factory=dict, repr=False)

    def run(
        self, feeds: Mapping[str, Array], targets: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """{name: array} of the outputs, or of those named, from {name: array} of the inputs."""
        wanted = tuple(self.outputs if targets is None else targets)
        try:  # the short way: a program that ran with such arrays before
            program, is_plain = self._programs[_key(wanted, feeds)]
        except (AttributeError, TypeError, KeyError):
            feeds = self._checked(wanted, feeds)
            program, is_plain = self._compiled(wanted, feeds)
        arrays = [*feeds.values()]
        found = program.run_checked(NUMPY, arrays) if is_plain else program.run(arrays)
        return dict(zip(wanted, found, strict=True))

    def prepare(self, weights: str = "float32") -> Model:
        """The same model for inference, with the weights of its recurrent layers packed once.

        ``weights``: "float32", "bfloat16" or "int8", as in :func:`zstate.prepare`. The returned
        model runs on the CPU, does not share this one's parameters, and cannot be saved or
        differentiated. A layer that cannot be prepared raises an error that names the node.
        """
        from .preparing import prepared

        return prepared(self, weights)

    def _checked(self, wanted: tuple[str, ...], feeds: Mapping[str, Any]) -> dict[str, Array]:
        """The feeds, lists and numbers among them as arrays of the type that the model declares."""
        if not isinstance(feeds, Mapping):
            expected = "{name of an input: array}"
            raise GraphError(refusal("onnx.Model.run", "feeds", expected, describe(feeds)))
        for name in wanted:
            if name not in self.outputs:
                expected = f"outputs of the model: {', '.join(self.outputs)}"
                raise GraphError(refusal("onnx.Model.run", "targets", expected, repr(name)))
        found = {}
        for name, value in feeds.items():
            if name not in self.inputs:
                expected = f"inputs of the model: {', '.join(self.inputs)}"
                raise GraphError(refusal("onnx.Model.run", "feeds", expected, repr(name)))
            found[name] = as_array("onnx.Model.run", name, value, self.inputs[name].dtype)
        return found

    def _compiled(
        self, wanted: tuple[str, ...], feeds: Mapping[str, Array]
    ) -> tuple[Executable, bool]:
        """The program for these arrays, which is kept, and whether all of them are NumPy's."""
        key = _key(wanted, feeds)
        if key in self._programs:
            return self._programs[key]
        infos = {self.inputs[n]: namespace_of(value).info(value) for n, value in feeds.items()}
        self._check_names({name: infos[self.inputs[name]][0] for name in feeds})
        try:
            program = self.graph.compile(infos, [self.outputs[name] for name in wanted])
        except ZStateError as error:  # a feed was refused in the name of a call that is not theirs
            text = str(error).replace("[compile]", "[onnx.Model.run]", 1)
            raise type(error)(text) from error
        is_plain = all(type(value) is np.ndarray for value in feeds.values())
        self._programs[key] = program, is_plain
        if len(self._programs) > _MOST_PROGRAMS:
            del self._programs[next(iter(self._programs))]
        return program, is_plain

    def _check_names(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Axes of one name have one size."""
        for name, axes in self._names.items():
            fed = [(n, axis) for n, axis in axes if n in shapes and axis < len(shapes[n])]
            if len({shapes[n][axis] for n, axis in fed}) > 1:
                expected = f"one size, which the model calls {name!r}"
                got = ", ".join(f"{shapes[n][axis]} for axis {axis} of {n!r}" for n, axis in fed)
                raise ShapeError(refusal("onnx.Model.run", "feeds", expected, got))


def _key(wanted: tuple[str, ...], feeds: Mapping[str, Any]) -> tuple[Any, ...]:
    return (wanted, *[(name, a.shape, a.dtype, a.__class__) for name, a in feeds.items()])


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
    try:
        return Importer(model, folder, dict(constants or {})).model()
    except ZStateError:
        raise
    except ODD as error:
        got = str(error) or type(error).__name__
        raise GraphError(refusal(LABEL, "model", "a well-formed one", got)) from error


class Node:
    """One ONNX node while it is translated: its inputs, known or not, and its attributes."""

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

    def tensor(self, index: int) -> Tensor:
        if not self.has(index):
            raise GraphError(refusal(self.kind, f"input {index}", "a tensor", "none"))
        return self.owner.tensor(self.inputs[index])

    def optional(self, index: int) -> Tensor | None:
        return self.tensor(index) if self.has(index) else None

    def known(self, index: int) -> Array:
        """An input whose value has to be known by now."""
        if not self.has(index):
            raise GraphError(refusal(self.kind, f"input {index}", "a tensor", "none"))
        return self.owner.known(self.inputs[index])

    def sizes(self, index: int) -> list[int | Size]:
        """An input that lists sizes: numbers, or what shapes will tell."""
        found = self.owner.symbols.get(self.inputs[index])
        return [
            each if isinstance(each, Size) else int(each)
            for each in np.ravel(self.known(index) if found is None else found.values).tolist()
        ]

    def ints(self, index: int) -> list[int]:
        """An input that lists integers, all of them known by now."""
        found = self.sizes(index)
        for each in found:
            if isinstance(each, Size):
                raise OptionError(refusal(self.kind, f"input {index}", "known sizes", repr(each)))
        return [each for each in found if not isinstance(each, Size)]

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
        return self.owner.size(tensor, axis)

    def shape(self, tensor: Tensor) -> list[int | Size]:
        return [self.owner.size(tensor, axis) for axis in range(len(tensor.shape))]


Row = Callable[[Node], Sequence[Any]]  # of the table of operators: a node to its results


class Importer:
    """The values of a model by name: tensors of the graph, arrays, and arrays of sizes."""

    def __init__(self, model: Any, folder: Path | None, constants: dict[str, Array]) -> None:
        self.graph = Graph()
        self.folder = folder
        self.proto = model.graph
        self.opset = 0
        for entry in model.opset_import:
            if entry.domain in ("", "ai.onnx"):
                self.opset = entry.version
        if self.opset < 1:
            expected = "an opset of ONNX itself"
            raise OptionError(refusal(LABEL, "opset_import", expected, str(self.opset)))
        self.functions = {(f.domain, f.name) for f in model.functions}
        self.tensors: dict[str, Tensor] = {}
        self.arrays: dict[str, Array] = {}
        self.symbols: dict[str, Sizes] = {}
        self.initialisers: set[str] = set()
        self.parameters: dict[str, Tensor] = {}
        self.shared: dict[Any, dict[str, Tensor]] = {}  # weights that several nodes use
        self.names: dict[str, list[tuple[str, int]]] = {}  # of sizes: the axes of inputs they name
        self.readers: dict[str, list[Any]] = {}
        for node in self.proto.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.folded = 0  # elements of the constants computed so far
        self.inputs = self._read_inputs(constants)

    def model(self) -> Model:
        """The whole model, every node translated."""
        for proto in self.proto.node:
            where = f"{LABEL}] node {Node(self, proto).name!r} ({proto.op_type}"
            try:
                self.take(proto)
            except NeedsValueError as error:
                wrapped = NeedsValueError(f"[{where}): {error}")
                wrapped.names = error.names
                raise wrapped from error
            except ZStateError as error:
                raise type(error)(f"[{where}): {error}") from error
            except ODD as error:
                got = str(error) or type(error).__name__
                raise GraphError(f"[{where}): malformed: {got}") from error
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
        from .nodes import translate

        if is_quantised(proto):
            proto = plain(self, proto)
        node = Node(self, proto)
        if proto.domain not in ("", "ai.onnx") or (proto.domain, proto.op_type) in self.functions:
            expected = "an operator of ONNX itself"
            raise OptionError(refusal(node.kind, "domain", expected, repr(proto.domain)))
        before = len(self.graph.nodes)
        self._keep(node, self._settled(translate(node), before))
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
        if outside in self.symbols:
            self.symbols[name] = self.symbols[outside]
        elif outside in self.arrays and outside not in self.initialisers:
            self.arrays[name] = self.arrays[outside]
        else:
            self.tensors[name] = self.tensor(outside)

    def tensor(self, name: str) -> Tensor:
        """A value as a tensor of the graph; an initialiser of floats is a parameter."""
        if name in self.tensors:
            return self.tensors[name]
        if name in self.arrays:
            array = self.arrays[name]
            if name in self.initialisers and array.ndim and type_kind(array) == "f":
                self.parameters[name] = found = self.graph.variable(array, name=name)
            else:
                found = self.graph.constant(array)
        elif name in self.symbols:
            values, dtype = self.symbols[name]
            found = sized_node(self.graph, "sizes", None, [*np.ravel(values)])
            if np.ndim(values) != 1:
                found = self.graph.reshape(found, np.shape(values))
            if dtype != found.dtype:
                found = self.graph.cast(found, dtype)
        else:
            raise GraphError(
                refusal(LABEL, f"value {name!r}", "a result of an earlier node", "no such name")
            )
        self.tensors[name] = found
        return found

    def known(self, name: str) -> Array:
        """A value that must be known by now, because the graph's shapes depend on it."""
        if name in self.arrays:
            return self.arrays[name]
        tensor = self.tensor(name)
        roots = self._roots(tensor)
        if roots:
            error = NeedsValueError(
                f"value {name!r}: expected one that is known when the model is loaded, got one "
                f"that depends on {', '.join(roots)}"
            )
            error.names = tuple(root for root in roots if root in self.inputs)
            raise error
        expected = f"at most {MOST_FOLDED} elements in a value that shapes depend on"
        raise OptionError(refusal(LABEL, f"value {name!r}", expected, str(tensor)))

    def _roots(self, tensor: Tensor) -> list[str]:
        """What keeps a value from being known: inputs, parameters, nodes, and sizes left open."""
        found: dict[str, None] = {}
        waiting = [tensor.node]
        seen = dict.fromkeys(waiting)
        for node in waiting:
            if node.op.name in ("sizes", "range_to"):  # they read shapes, not values
                found["sizes that are open"] = None
                continue
            if node.op in (PLACEHOLDER, VARIABLE) or (node.op.prepare is None and node.inputs):
                found[node.name] = None
            new = dict.fromkeys(each.node for each in node.inputs if each.node not in seen)
            seen.update(new)
            waiting.extend(new)
        return [*found]

    def _settled(self, results: Sequence[Any], before: int) -> Sequence[Any]:
        """The results of a node as arrays if all that it reads is constant and they are small."""
        values: dict[Tensor, Array] = {}
        for node in self.graph.nodes[before:]:
            found = self._computed(node, values)
            if found is None:
                return results
            values.update(zip(node.results, found, strict=True))
        return [values.get(each, each) if isinstance(each, Tensor) else each for each in results]

    def _computed(self, node: Any, values: Mapping[Tensor, Array]) -> Sequence[Array] | None:
        """The arrays of a node of the graph; None if its inputs are unknown, or they too large."""
        if node.op is CONSTANT:
            return [node.attributes["store"].value]
        inputs = [values.get(each, constant_value(each)) for each in node.inputs]
        shapes = [known(each.shape) for each in node.results]
        count = sum(math.prod(shape) for shape in shapes if shape is not None)
        if (
            not inputs
            or node.op.prepare is None
            or any(array is None for array in inputs)
            or None in shapes
            or count > MOST_FOLDED
            or self.folded + count > MOST_FOLDED_IN_ALL
        ):
            return None
        self.folded += count
        found: Sequence[Array] = node.evaluated(inputs)
        return found

    def size(self, tensor: Tensor, axis: int) -> int | Size:
        """The size of an axis, which is its own: a name that it shares with another is a claim,
        which ``Model.run`` checks."""
        axis = axis_of(LABEL, "axis", axis, len(tensor.shape))
        size = tensor.shape[axis]
        return Size.axis(tensor, axis) if size is None else size

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
        return any(name in each for each in (self.tensors, self.arrays, self.symbols))

    def _keep(self, node: Node, results: Sequence[Any]) -> None:
        for name, result in zip(node.outputs, results, strict=False):
            if not name:
                continue
            if self._exists(name):
                raise GraphError(refusal(node.kind, f"output {name!r}", "a new name", "one in use"))
            if isinstance(result, Tensor):
                self.tensors[name] = result
            elif isinstance(result, Sizes):
                self.symbols[name] = result
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
        inputs = {}
        for value in self.proto.input:
            if value.name in self.arrays:  # a default value; ONNX before IR 4 lists all of them
                continue
            what = f"input {value.name!r}"
            if value.name in inputs:
                raise GraphError(f"[{LABEL}] duplicate {what}")
            if not value.type.HasField("tensor_type"):
                raise OptionError(refusal(LABEL, what, "a tensor", "another kind of value"))
            kind = value.type.tensor_type
            if value.name in constants:
                given, dtype = constants.pop(value.name), type_name(kind.elem_type, what)
                self.arrays[value.name] = NUMPY.asarray(as_array(LABEL, what, given, dtype))
                continue
            if not kind.HasField("shape"):
                raise ShapeError(refusal(LABEL, what, "a number of dimensions", "none"))
            dtype = type_name(kind.elem_type, what)
            sizes: list[int | None] = []
            for size in kind.shape.dim:
                if size.HasField("dim_value") and size.dim_value < 0:
                    raise ShapeError(refusal(LABEL, what, "sizes", str(size.dim_value)))
                sizes.append(size.dim_value if size.HasField("dim_value") else None)
            tensor = self.graph.placeholder(shape=sizes, dtype=dtype, name=value.name)
            inputs[value.name] = self.tensors[value.name] = tensor
            self.graph.axis_names[tensor] = _axis_names(value)
            for axis, size in enumerate(kind.shape.dim):
                if size.dim_param:
                    self.names.setdefault(size.dim_param, []).append((value.name, axis))
        if constants:
            expected = f"inputs of the model: {', '.join(v.name for v in self.proto.input)}"
            raise OptionError(refusal(LABEL, "constants", expected, ", ".join(constants)))
        return inputs


def drop_unused(graph: Graph, outputs: Mapping[str, Tensor], parameters: dict[str, Tensor]) -> None:
    """Nodes that no output needs are no part of a model: they told a value at load."""
    needed = {*graph.needed(outputs.values())}
    graph.nodes[:] = [node for node in graph.nodes if node in needed or node.op is PLACEHOLDER]
    for name, tensor in [*parameters.items()]:
        if tensor.node not in needed:
            del parameters[name]


def _axis_names(value: Any) -> tuple[str, ...]:
    return tuple(size.dim_param for size in value.type.tensor_type.shape.dim)


def as_array(label: str, what: str, value: Any, dtype: str) -> Array:
    """An array as it is; numbers and lists of them as one of this type, if that holds them."""
    if is_array(value):
        array: Array = value
        return array
    try:
        with np.errstate(invalid="ignore", over="ignore"):
            found = np.asarray(value)
            is_real = found.dtype.kind in "biuf"  # a cast of complex numbers would warn
            array = found.astype(NUMPY.dtype(dtype)) if is_real else found
        holds = is_real and (dtype in FLOAT_NAMES or np.array_equal(found, array))
    except (TypeError, ValueError, OverflowError):
        holds = False
    if not holds:
        expected = f"an array, or numbers of {dtype}"
        raise DTypeError(refusal(label, what, expected, describe(value)))
    return array


def constant_value(tensor: Tensor) -> Array | None:
    """The array of a constant."""
    return tensor.node.attributes["store"].value if tensor.node.op is CONSTANT else None


def type_kind(array: Array) -> str:
    """ "f" for the four float types, else NumPy's letter; bfloat16 has no letter of its own."""
    return "f" if array.dtype.name == "bfloat16" else array.dtype.kind


def shown(sizes: Sequence[int | Size]) -> str:
    """Sizes for a message."""
    return brackets([size if isinstance(size, int) else None for size in sizes])
