"""save: a graph as an ONNX file that other runtimes run with the same results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np

from ..arrays import NUMPY
from ..errors import DTypeError, GraphError, OptionError, ZStateError, refusal
from ..graph import Graph, Tensor
from ..graph.ops import CONSTANT, PLACEHOLDER, VARIABLE
from ..graph.ops.base import axes_of, known
from ..graph.ops.recurrent import FORWARD, title_of
from ..graph.storage import replacing
from ..graph.tensor import Node
from ..layout import describe
from ..types import Array
from .operators.elementwise import PLAIN
from .package import onnx_package
from .quantised import KIND

LABEL = "onnx.save"
OPSET, IR_VERSION = 17, 8
END = 2**63 - 1
Value: TypeAlias = Any  # an array that may become an initialiser, or the name of a value


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
    with replacing(path) as file:
        file.write(data)


class Exporter:
    """Nodes and initialisers of the file as they come; ``emit`` adds one node."""

    int8 = False  # whether recurrent weights are to be in 8 bits

    def __init__(self, graph: Graph, outputs: Mapping[str, Tensor], *, int8: bool = False) -> None:
        self.onnx = onnx_package()
        self.int8 = int8
        if not isinstance(outputs, Mapping):
            expected = "{name: tensor}"
            raise DTypeError(refusal(LABEL, "outputs", expected, describe(outputs)))
        if not outputs:
            raise GraphError(refusal(LABEL, "outputs", "at least one", "none"))
        for name, tensor in outputs.items():
            graph.own(LABEL, f"outputs[{name!r}]", tensor)
            if not isinstance(name, str) or not name:
                raise GraphError(refusal(LABEL, "outputs", "names", repr(name)))
        self.outputs = dict(outputs)
        self.graph_nodes = graph.needed(outputs.values())
        for name in (*outputs, *(node.name for node in self.graph_nodes)):
            if name != name.encode(errors="replace").decode():
                expected = "names without lone surrogates, which UTF-8 cannot hold"
                raise OptionError(refusal(LABEL, "name", expected, ascii(name)))
        self.readers: dict[Tensor, list[Node]] = {}
        for node in self.graph_nodes:
            for tensor in node.inputs:
                self.readers.setdefault(tensor, []).append(node)
        self.names: dict[Tensor, Any] = {}
        self.arrays: dict[Tensor, Array] = {}  # of what depends on constants and variables alone
        self.axis_names = graph.axis_names
        self.nodes: list[Any] = []
        self.initialisers: dict[str, Any] = {}
        self._used: dict[str, int] = dict.fromkeys(outputs, 1)  # and how many were made of it
        self._known: dict[Any, Any] = {}  # the result of a node by what it computes
        self._outside: tuple[list[Any], dict[Any, Any]] = ([], {})

    def model(self) -> Any:
        """The ModelProto."""
        helper = self.onnx.helper
        inputs = []
        for node in self.graph_nodes:
            if node.op is PLACEHOLDER:
                inputs.append(self._declared(node.results[0], self._name(node.results[0].name)))
                self.names[node.results[0]] = inputs[-1].name
        for node in self.graph_nodes:
            if node.op in (PLACEHOLDER, CONSTANT, VARIABLE) or node.results[0] in self.names:
                continue
            if self._folded(node):
                continue
            try:
                found = self._written(node)
            except (ZStateError, ImportError) as error:
                raise type(error)(
                    f"[{LABEL}] node {node.name!r} ({node.op.name}): {error}"
                ) from error
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
        arrays = [self._array(tensor) for tensor in node.inputs]
        if not arrays or node.op.prepare is None or node.op.name in FORWARD:
            return False
        given = [array for array in arrays if array is not None]
        shapes = [known(tensor.shape) for tensor in node.results]
        if len(given) < len(arrays) or None in shapes:
            return False
        count = sum(math.prod(shape) for shape in shapes if shape is not None)
        if count > sum(array.size for array in given):  # the file would grow
            return False
        self.arrays.update(zip(node.results, node.evaluated(given), strict=True))
        return True

    def named(self, value: Value, hint: str = "constant") -> Any:
        return self.constant(value, hint) if isinstance(value, np.ndarray) else value

    def constant(self, array: Any, hint: str = "constant") -> Any:
        """The name of a new initialiser; small ones without a name of their own are shared."""
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        is_shared = hint == "constant" and array.size < 64
        key = (array.dtype.name, array.shape, array.tobytes() if is_shared else hint)
        if is_shared and key in self._known:
            return self._known[key]
        name = self._name(hint)
        found = self.onnx.numpy_helper.from_array(array)
        found.name = name
        self.initialisers[name] = found
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
        names = [self._name(f"{kind}_{len(self.nodes)}") for _ in range(count)]
        self.nodes.append(
            self.onnx.helper.make_node(kind, values, names, name=names[0], **attributes)
        )
        self._known[key] = names[0] if count == 1 else names
        return self._known[key]

    # Of arrays at once, of values by nodes.

    def take(self, value: Value, index: Array, axis: int) -> Value:
        if not isinstance(value, np.ndarray):
            return self.emit("Gather", value, index.astype(np.int64), axis=axis)
        return np.take(value, index, axis)

    def reshape(self, value: Value, *shape: int) -> Value:
        if not isinstance(value, np.ndarray):
            return self.emit("Reshape", value, self.ints(*shape))
        return value.reshape(shape)

    def transpose(self, value: Value, *axes: int) -> Value:
        if not isinstance(value, np.ndarray):
            return self.emit("Transpose", value, perm=axes)
        return np.transpose(value, axes)

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        arrays = [value for value in values if isinstance(value, np.ndarray)]
        if len(arrays) == len(values):
            return np.concatenate(arrays, axis)
        return self.emit("Concat", *values, axis=axis)

    def part(self, value: Value, start: int, stop: int, axis: int) -> Value:
        """value[start:stop] along an axis, which is not negative."""
        if not isinstance(value, np.ndarray):
            bounds = (self.ints(start), self.ints(stop), self.ints(axis))
            return self.emit("Slice", value, *bounds)
        return value[(slice(None),) * axis + (slice(start, stop),)]

    def nth(self, value: Value, index: int, length: int, axis: int) -> Value:
        """The index-th part of this length along an axis."""
        return self.part(value, index * length, (index + 1) * length, axis)

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

    # The body of a Scan: what is emitted between the two calls is in it.

    def begin_body(self) -> None:
        self._outside = self.nodes, self._known
        self.nodes, self._known = [], {}

    def end_body(self) -> tuple[list[Any], list[tuple[str, Any]]]:
        """The body's nodes, and the values from outside that it cannot read by their names."""
        nodes = self.nodes
        self.nodes, self._known = self._outside
        return nodes, []

    def new_name(self, hint: str) -> str:
        return self._name(hint)

    def type_number(self, dtype: str) -> int:
        return int(self.onnx.helper.np_dtype_to_tensor_dtype(NUMPY.dtype(dtype)))

    def _written(self, node: Node) -> Sequence[Value | None]:
        if node.op.name in FORWARD:
            from .writing import recurrent

            return recurrent(self, node)
        if node.op.name not in ROWS:
            expected = "an operation that ONNX has"
            raise OptionError(refusal(LABEL, "operation", expected, title_of(node)))
        found: Any = ROWS[node.op.name](self, node, *[self.name(t) for t in node.inputs])
        return list(found) if isinstance(found, list) else [found]

    def _name(self, hint: str) -> str:
        name = hint
        while name in self._used:
            name = f"{hint}_{self._used[hint]}"
            self._used[hint] += 1
        self._used[name] = 1
        return name

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
        made = {name: node for node in self.nodes for name in node.output}
        renamed: dict[str, str] = {}
        kept = []
        for node in self.nodes:
            if node.op_type == "Identity" and node.output[0] in self.outputs:
                (source,) = node.input
                if source in made and source not in renamed and source not in self.outputs:
                    renamed[source] = node.output[0]
                    continue
            kept.append(node)
        for node in kept:
            for names in (node.input, node.output):
                for place, name in enumerate(names):
                    if name in renamed:
                        names[place] = renamed[name]
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
    bodies = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    inner = (name for body in bodies for each in body.node for name in _names_read(each))
    return {*node.input, *inner}


def _named(kind: str) -> Callable[..., Any]:
    return lambda e, node, *inputs: e.emit(kind, *inputs)


def _axes(node: Node) -> list[int]:
    return list(axes_of(LABEL, node.attributes["axes"], len(node.inputs[0].shape)))


def _arithmetic(kind: str) -> Callable[..., Any]:
    """Two operands; the end of a layer normalisation is one node with all that leads to it."""

    def row(e: Exporter, node: Node, a: str, b: str) -> Any:
        source, last = node.inputs[0].node, node.inputs[1]
        found = _normalised(node) if kind == "Mul" else _normalised(source)
        if found is None or last.shape != (known(node.inputs[0].shape[found[1] :]) or None):
            return e.emit(kind, a, b)
        x, axis, epsilon = found
        weights = [b] if kind == "Mul" else [e.name(source.inputs[1]), b]
        name = e.name(x)
        return e.emit("LayerNormalization", name, *weights, axis=axis, epsilon=epsilon)

    return row


def _normalised(node: Node) -> tuple[Tensor, int, float] | None:
    """x, the first axis and epsilon if a node is (x - mean) · 1/√(variance + epsilon) · weight."""

    def made(tensor: Tensor, *kinds: str) -> Tensor | None:
        """The first input behind these nodes, from the last to the first."""
        for kind in kinds:
            if tensor.node.op.name != kind:
                return None
            found.append(tensor.node)
            tensor = tensor.node.inputs[0]
        return tensor

    found: list[Node] = []
    if node.op.name != "multiplication":
        return None
    inner = node.inputs[0].node
    if inner.op.name != "multiplication" or inner.inputs[0].node.op.name != "subtraction":
        return None
    away, scale = inner.inputs
    x, mean = away.node.inputs
    root = ("reciprocal", "square_root", "addition", "mean", "square")
    if made(scale, *root) is not away or made(mean, "mean") is not x:
        return None
    epsilon, rank = found[2].inputs[1].node, len(x.shape)
    axes = [axes_of(LABEL, each.attributes["axes"], rank) for each in (found[3], found[5])]
    last = tuple(range(axes[0][0], rank)) if axes[0] else ()
    if axes != [last, last] or not last or epsilon.op is not CONSTANT:
        return None
    return x, last[0], float(epsilon.attributes["store"].value)


def _reduction(kind: str) -> Callable[..., Any]:
    def row(e: Exporter, node: Node, x: str) -> Any:
        axes = _axes(node)
        if not axes:
            return e.emit("Identity", x)
        if kind == "ReduceSum":  # the only one whose axes are an input in this opset
            return e.emit(kind, x, e.ints(*axes), keepdims=1)
        return e.emit(kind, x, axes=axes, keepdims=1)

    return row


def _slice(e: Exporter, node: Node, x: str) -> Any:
    a = node.attributes
    ends = [END if end is None else end for end in a["ends"]]
    if not ends:
        return e.emit("Identity", x)
    axes = e.ints(*range(len(ends)))
    return e.emit("Slice", x, e.ints(*a["starts"]), e.ints(*ends), axes, e.ints(*a["strides"]))


def _pad(e: Exporter, node: Node, x: str) -> Any:
    a = node.attributes
    pads = e.ints(*a["left"], *a["right"])
    if "mode" not in a:
        value = np.array(a["value"], NUMPY.dtype(node.inputs[0].dtype))
        return e.emit("Pad", x, pads, value)
    modes = {"reflect": "reflect", "clamp_to_edge": "edge"}
    if a["mode"] not in modes:
        raise OptionError(refusal("pad_tensor", "padding_mode", "one that ONNX has", a["mode"]))
    return e.emit("Pad", x, pads, mode=modes[a["mode"]])


def _one_hot(e: Exporter, node: Node, indices: str) -> Any:
    a = node.attributes
    values = np.array([a["off_value"], a["on_value"]], NUMPY.dtype(a["dtype"]))
    whole = e.emit("Cast", indices, to=e.type_number("int64"))
    return e.emit("OneHot", whole, np.array(a["depth"], np.int64), values, axis=a["axis"])


def _place(kind: str) -> Callable[..., Any]:
    def row(e: Exporter, node: Node, x: str) -> Any:
        found = e.emit(kind, x, axis=node.attributes["axis"], keepdims=1)
        return e.emit("Cast", found, to=e.type_number("int32"))

    return row


def _stack(e: Exporter, node: Node, *tensors: str) -> Any:
    axis = node.attributes["axis"]
    return e.emit("Concat", *[e.emit("Unsqueeze", x, e.ints(axis)) for x in tensors], axis=axis)


def _split(e: Exporter, node: Node, x: str) -> Any:
    sizes, axis = node.attributes["sizes"], node.attributes["axis"]
    found = e.emit("Split", x, e.ints(*sizes), count=len(sizes), axis=axis)
    return [found] if isinstance(found, str) else found


def _squeeze(e: Exporter, node: Node, x: str) -> Any:
    axes = _axes(node)
    return e.emit("Squeeze", x, e.ints(*axes)) if axes else e.emit("Identity", x)


def _expand_dims(e: Exporter, node: Node, x: str) -> Any:
    axes = node.attributes["axes"]
    return e.emit("Unsqueeze", x, e.ints(*axes)) if axes else e.emit("Identity", x)


def _read(e: Exporter, node: Node, x: str) -> Any:
    if node.inputs[0].node.op is not VARIABLE:
        raise OptionError(refusal("read", "variable", "one without an assign", "one with"))
    return e.emit("Identity", x)


def _over_bools(kind: str) -> Callable[..., Any]:
    """All or any of bools, which ONNX reduces as numbers only."""

    def row(e: Exporter, node: Node, x: str) -> Any:
        numbers = e.emit("Cast", x, to=e.type_number("int32"))
        return e.emit("Cast", _reduction(kind)(e, node, numbers), to=e.type_number("bool"))

    return row


def _floor_modulo(e: Exporter, node: Node, a: str, b: str) -> Any:
    found = e.emit("Sub", a, e.emit("Mul", e.emit("Floor", e.emit("Div", a, b)), b))
    zero = np.asarray(0, NUMPY.dtype(node.inputs[1].dtype))
    return e.emit("Where", e.emit("Equal", b, zero), zero, found)


def _is_finite(e: Exporter, node: Node, x: str) -> Any:
    return e.emit("Not", e.emit("Or", e.emit("IsNaN", x), e.emit("IsInf", x)))


def _logarithm(base: float) -> Callable[..., Any]:
    return lambda e, node, x: e.emit(
        "Div", e.emit("Log", x), np.asarray(math.log(base), NUMPY.dtype(node.inputs[0].dtype))
    )


def _arg_sort(e: Exporter, node: Node, x: str) -> Any:
    axis = node.attributes["axis"] % len(node.inputs[0].shape)
    largest = int(node.attributes["descending"])
    _, places = e.emit("TopK", x, e.size(x, axis), count=2, axis=axis, largest=largest)
    return e.emit("Cast", places, to=e.type_number("int32"))


def _size(e: Exporter, text: str, likes: Sequence[str]) -> str:
    """[1]: a size that a row of sized.py computes from shapes."""
    total: Any = None
    for term in text.partition("|")[0].split("+"):
        product: Any = None
        for factor in term.split("*"):
            if "." in factor:
                place, axis = map(int, factor.split("."))
                value = e.size(likes[place], axis)
            elif factor == "1" and term != "1":
                continue
            else:
                value = e.ints(int(factor))
            product = value if product is None else e.emit("Mul", product, value)
        total = product if total is None else e.emit("Add", total, product)
    return str(total)


def _sizes(e: Exporter, node: Node, likes: Sequence[str]) -> Value:
    sizes = [_size(e, text, likes) for text in node.attributes["sizes"]]
    return e.emit("Concat", *sizes, axis=0) if sizes else e.ints()


def _reshape_to(e: Exporter, node: Node, x: str, *likes: str) -> Any:
    texts = node.attributes["sizes"]
    own = [f"1*{k}.{{}}" for k, like in enumerate(node.inputs[1:]) if like is node.inputs[0]]
    sizes = [  # 0 keeps an axis as it is
        "0" if text in [each.format(axis) for each in own] else text
        for axis, text in enumerate(texts)
    ]
    if "0" in texts or any("." in text for text in sizes):
        # "a|b": where a is 0, b is the size of x's own axis, as ONNX has it without allowzero
        allows = {} if any("|" in text for text in texts) else {"allowzero": 1}
        return e.emit("Reshape", x, _sizes(e, node, likes), **allows)
    return e.emit("Reshape", x, e.ints(*map(int, sizes)))


def _range_to(e: Exporter, node: Node, *likes: str) -> Any:
    bounds = [_size(e, text, likes) for text in node.attributes["sizes"]]
    return e.emit("Range", *[e.emit("Squeeze", bound, e.ints(0)) for bound in bounds])


def _slice_to(e: Exporter, node: Node, x: str, *likes: str) -> Any:
    texts, axes = node.attributes["sizes"], node.attributes["axes"]
    bounds = [
        e.emit("Concat", *[_size(e, text, likes) for text in part], axis=0)
        for part in (texts[: len(axes)], texts[len(axes) :])
    ]
    return e.emit("Slice", x, *bounds, e.ints(*axes), e.ints(*node.attributes["strides"]))


def _split_evenly(e: Exporter, node: Node, x: str) -> Any:
    if not node.attributes["even"]:
        expected = "equal parts, because opset 17 has no others of an unknown size"
        raise OptionError(refusal("split_evenly", "count", expected, "unequal ones"))
    count, axis = node.attributes["count"], node.attributes["axis"]
    found = e.emit("Split", x, count=count, axis=axis)
    return [found] if isinstance(found, str) else found


ROWS: dict[str, Callable[..., Any]] = {
    **{op: _named(kind) for kind, op in PLAIN.items()},
    "addition": _arithmetic("Add"),
    "multiplication": _arithmetic("Mul"),
    "division": _named("Div"),
    "integer_division": _named("Div"),
    "power": _named("Pow"),
    "maximum": _named("Max"),
    "minimum": _named("Min"),
    "not_equal": lambda e, node, a, b: e.emit("Not", e.emit("Equal", a, b)),
    "square": lambda e, node, x: e.emit("Mul", x, x),
    "relu": _named("Relu"),
    "identity": _named("Identity"),
    "modulo": lambda e, node, a, b: e.emit("Mod", a, b, fmod=1),
    "floor_modulo": _floor_modulo,
    "logical_and": _named("And"),
    "logical_or": _named("Or"),
    "logical_xor": _named("Xor"),
    "logical_not": _named("Not"),
    "is_nan": _named("IsNaN"),
    "is_infinite": _named("IsInf"),
    "is_finite": _is_finite,
    "floor": _named("Floor"),
    "ceil": _named("Ceil"),
    "truncate": lambda e, node, x: e.emit(
        "Mul", e.emit("Sign", x), e.emit("Floor", e.emit("Abs", x))
    ),
    "rint": _named("Round"),
    "exponent_base2": lambda e, node, x: e.emit(
        "Pow", np.asarray(2, NUMPY.dtype(node.inputs[0].dtype)), x
    ),
    "logarithm_base2": _logarithm(2),
    "logarithm_base10": _logarithm(10),
    **{
        name: _named(name.capitalize())
        for name in (
            *("sin", "cos", "tan", "sinh", "cosh"),
            *("asin", "acos", "atan", "asinh", "acosh", "atanh"),
        )
    },
    "cast": lambda e, node, x: e.emit("Cast", x, to=e.type_number(node.attributes["dtype"])),
    "matrix_multiplication": _named("MatMul"),
    "reduction_sum": _reduction("ReduceSum"),
    "mean": _reduction("ReduceMean"),
    "reduction_maximum": _reduction("ReduceMax"),
    "reduction_minimum": _reduction("ReduceMin"),
    "reduction_product": _reduction("ReduceProd"),
    "reduction_and": _over_bools("ReduceMin"),
    "reduction_or": _over_bools("ReduceMax"),
    "reduction_arg_maximum": _place("ArgMax"),
    "reduction_arg_minimum": _place("ArgMin"),
    "arg_sort": _arg_sort,
    "cumulative_sum": lambda e, node, x: e.emit("CumSum", x, e.ints(node.attributes["axis"])),
    "soft_max": lambda e, node, x: e.emit("Softmax", x, axis=node.attributes["axis"]),
    "one_hot": _one_hot,
    "gather": lambda e, node, x, i: e.emit("Gather", x, i, axis=node.attributes["axis"]),
    "gather_along_axis": lambda e, node, x, i: e.emit(
        "GatherElements", x, i, axis=node.attributes["axis"]
    ),
    "transpose": lambda e, node, x: e.emit("Transpose", x, perm=node.attributes["permutation"]),
    "reshape": lambda e, node, x: e.emit(
        "Reshape", x, e.ints(*node.attributes["shape"]), allowzero=1
    ),
    "broadcast": lambda e, node, x: e.emit("Expand", x, e.ints(*node.attributes["shape"])),
    "expand_dims": _expand_dims,
    "squeeze": _squeeze,
    "concat_tensors": lambda e, node, *x: e.emit("Concat", *x, axis=node.attributes["axis"]),
    "stack": _stack,
    "split": _split,
    "slice": _slice,
    "reverse": lambda e, node, x: e.flip(x, _axes(node)) if _axes(node) else x,
    "pad_tensor": _pad,
    "pad_around": _pad,
    "read": _read,
    "broadcast_like": lambda e, node, x, like: e.emit("Expand", x, e.emit("Shape", like)),
    "reshape_like": lambda e, node, x, like: e.emit(
        "Reshape", x, e.emit("Shape", like), allowzero=1
    ),
    "reshape_to": _reshape_to,
    "broadcast_to": lambda e, node, x, *likes: e.emit("Expand", x, _sizes(e, node, likes)),
    "slice_to": _slice_to,
    "split_evenly": _split_evenly,
    "expect_sizes": lambda e, node, x, *likes: x,
    "expect_lengths": lambda e, node, lengths, tensor: lengths,
    "sizes": lambda e, node, *likes: _sizes(e, node, likes),
    "range_to": _range_to,
}
