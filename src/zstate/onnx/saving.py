"""save: a graph as an ONNX file that other runtimes run with the same results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np

from ..arrays import NUMPY
from ..errors import GraphError, OptionError, ZStateError, refusal
from ..graph import Graph, Tensor
from ..graph.ops import CONSTANT, PLACEHOLDER, VARIABLE
from ..graph.ops.base import axes_of
from ..graph.ops.recurrent import FORWARD
from ..graph.tensor import Node
from ..types import Array
from .package import onnx_package

LABEL = "onnx.save"
OPSET, IR_VERSION = 17, 8
_END = 2**63 - 1
Value: TypeAlias = Any  # an array that may become an initialiser, or the name of a value


def save(graph: Graph, outputs: Mapping[str, Tensor], path: str | PathLike[str]) -> None:
    """Write what these tensors depend on as an ONNX model.

    Args:
        graph: the graph; its placeholders become the inputs, its variables and constants the
            initialisers, with the values that they have now.
        outputs: {name: tensor}, the outputs of the model in this order.
        path: of the file.

    A recurrent node becomes an RNN, LSTM or GRU; one that these cannot express (a mask, an
    activation of its own for a gate, flip_z, a peephole on c[t-1], cells of all steps) becomes a
    Scan with its equations. What ONNX cannot express, a gradient operation for one, is refused.
    """
    data = Exporter(graph, outputs).model().SerializeToString()
    with open(path, "wb") as file:
        file.write(data)


class Exporter:
    """Nodes and initialisers of the file as they come; ``emit`` adds one node."""

    def __init__(self, graph: Graph, outputs: Mapping[str, Tensor]) -> None:
        self.onnx = onnx_package()
        if not outputs:
            raise GraphError(refusal(LABEL, "outputs", "at least one", "none"))
        for name, tensor in outputs.items():
            graph.own(LABEL, f"outputs[{name!r}]", tensor)
            if not isinstance(name, str) or not name:
                raise GraphError(refusal(LABEL, "outputs", "names", repr(name)))
        self.outputs = dict(outputs)
        self.graph_nodes = graph.needed(outputs.values())
        self.readers: dict[Tensor, list[Node]] = {}
        for node in self.graph_nodes:
            for tensor in node.inputs:
                self.readers.setdefault(tensor, []).append(node)
        self.names: dict[Tensor, Any] = {}
        self.nodes: list[Any] = []
        self.initialisers: dict[str, Any] = {}
        self._used: set[str] = set(outputs)
        self._outside: list[Any] = []

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
        graph = helper.make_graph(
            self._without_copies(), "zstate", inputs, outputs, [*self.initialisers.values()]
        )
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(
            graph, ir_version=IR_VERSION, opset_imports=[opset], producer_name="zstate"
        )

    def name(self, tensor: Tensor) -> Any:
        """The name of a tensor's value; a constant or a variable becomes an initialiser."""
        if tensor not in self.names:
            if tensor.node.op in (CONSTANT, VARIABLE):
                array = NUMPY.asarray(tensor.node.attributes["store"].value)
                self.names[tensor] = self.constant(array, tensor.name)
            else:
                expected = "a result that ONNX has"
                raise OptionError(refusal(LABEL, f"tensor {tensor.name!r}", expected, "none"))
        return self.names[tensor]

    def value(self, tensor: Tensor) -> Value:
        """The array of a constant or a variable, else the name."""
        if tensor.node.op in (CONSTANT, VARIABLE):
            array: Array = NUMPY.asarray(tensor.node.attributes["store"].value)
            return array
        return self.name(tensor)

    def named(self, value: Value, hint: str = "constant") -> Any:
        return self.constant(value, hint) if isinstance(value, np.ndarray) else value

    def constant(self, array: Any, hint: str = "constant") -> Any:
        """The name of a new initialiser."""
        name = self._name(hint)
        found = self.onnx.numpy_helper.from_array(
            np.ascontiguousarray(array).reshape(np.shape(array))
        )
        found.name = name
        self.initialisers[name] = found
        return name

    def ints(self, *values: int) -> Any:
        return self.constant(np.array(values, np.int64))

    def emit(self, kind: str, *inputs: Value, count: int = 1, **attributes: Any) -> Any:
        """The name of the result of a new node, or the names of several."""
        names = [self._name(f"{kind}_{len(self.nodes)}") for _ in range(count)]
        values = [self.named(value) for value in inputs]
        self.nodes.append(
            self.onnx.helper.make_node(kind, values, names, name=names[0], **attributes)
        )
        return names[0] if count == 1 else names

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

    def flip(self, value: Value, axes: Sequence[int]) -> Value:
        back = [-1] * len(axes)
        bounds = (self.ints(*back), self.ints(*[-_END] * len(axes)), self.ints(*axes))
        return self.emit("Slice", value, *bounds, self.ints(*back))

    def size(self, value: Value, axis: int) -> Value:
        """[1]: the size of an axis, when the model runs."""
        return self.emit("Gather", self.emit("Shape", value), self.ints(axis))

    # The body of a Scan: what is emitted between the two calls is in it.

    def begin_body(self) -> None:
        self._outside, self.nodes = self.nodes, []

    def end_body(self) -> tuple[list[Any], list[tuple[str, Any]]]:
        """The body's nodes, and the values from outside that it cannot read by their names."""
        nodes, self.nodes = self.nodes, self._outside
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
            raise OptionError(refusal(LABEL, "operation", expected, node.op.name))
        found: Any = ROWS[node.op.name](self, node, *[self.name(t) for t in node.inputs])
        return list(found) if isinstance(found, list) else [found]

    def _name(self, hint: str) -> str:
        name, number = hint, 1
        while name in self._used:
            name, number = f"{hint}_{number}", number + 1
        self._used.add(name)
        return name

    def _declared(self, tensor: Tensor, name: str) -> Any:
        sizes = [
            f"{tensor.name}_{axis}" if size is None else size
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


def _named(kind: str) -> Callable[..., Any]:
    return lambda e, node, *inputs: e.emit(kind, *inputs)


def _axes(node: Node) -> list[int]:
    return list(axes_of(LABEL, node.attributes["axes"], len(node.inputs[0].shape)))


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
    ends = [_END if end is None else end for end in a["ends"]]
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
    for term in text.split("+"):
        product: Any = None
        for factor in term.split("*"):
            if "." in factor:
                place, axis = map(int, factor.split("."))
                value = e.size(likes[place], axis)
            else:
                value = e.ints(int(factor))
            product = value if product is None else e.emit("Mul", product, value)
        total = product if total is None else e.emit("Add", total, product)
    return str(total)


def _sizes(e: Exporter, node: Node, likes: Sequence[str]) -> Value:
    sizes = [_size(e, text, likes) for text in node.attributes["sizes"]]
    return e.emit("Concat", *sizes, axis=0) if sizes else e.ints()


def _range_to(e: Exporter, node: Node, *likes: str) -> Any:
    bounds = [_size(e, text, likes) for text in node.attributes["sizes"]]
    return e.emit("Range", *[e.emit("Squeeze", bound, e.ints(0)) for bound in bounds])


ROWS: dict[str, Callable[..., Any]] = {
    "addition": _named("Add"),
    "subtraction": _named("Sub"),
    "multiplication": _named("Mul"),
    "division": _named("Div"),
    "power": _named("Pow"),
    "maximum": _named("Max"),
    "minimum": _named("Min"),
    "equal": _named("Equal"),
    "not_equal": lambda e, node, a, b: e.emit("Not", e.emit("Equal", a, b)),
    "less_than": _named("Less"),
    "less_than_or_equal_to": _named("LessOrEqual"),
    "greater_than": _named("Greater"),
    "greater_than_or_equal_to": _named("GreaterOrEqual"),
    "select": _named("Where"),
    "negative": _named("Neg"),
    "absolute": _named("Abs"),
    "sign": _named("Sign"),
    "square": lambda e, node, x: e.emit("Mul", x, x),
    "exponent": _named("Exp"),
    "logarithm": _named("Log"),
    "square_root": _named("Sqrt"),
    "reciprocal": _named("Reciprocal"),
    "tanh": _named("Tanh"),
    "sigmoid": _named("Sigmoid"),
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
    "reshape_to": lambda e, node, x, *likes: e.emit("Reshape", x, _sizes(e, node, likes)),
    "broadcast_to": lambda e, node, x, *likes: e.emit("Expand", x, _sizes(e, node, likes)),
    "sizes": lambda e, node, *likes: _sizes(e, node, likes),
    "range_to": _range_to,
}
