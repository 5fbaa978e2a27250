"""The table of the graph's ops in ONNX: each row emits the nodes that are one node of the graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, TypeAlias

import numpy as np

from ..arrays import NUMPY
from ..errors import OptionError, refusal
from ..graph import Tensor
from ..graph.ops import CONSTANT, VARIABLE
from ..graph.ops.base import axes_of, known
from ..graph.tensor import Node
from ..types import Array
from .emitter import END, Emitter, Value
from .operators.elementwise import PLAIN

LABEL = "onnx.save"
Row: TypeAlias = Callable[..., Any]  # an emitter, a node and its inputs' names to its results


def _named(kind: str, *attributes: str, **others: Any) -> Row:
    """One node, with these attributes of the graph's node, and with others."""

    def row(e: Emitter, node: Node, *inputs: str) -> Any:
        return e.emit(
            kind, *inputs, **{name: node.attributes[name] for name in attributes}, **others
        )

    return row


def _with_ints(kind: str, attribute: str, **others: Any) -> Row:
    """One node whose last input is an attribute of the graph's node."""

    def row(e: Emitter, node: Node, x: str) -> Any:
        return e.emit(kind, x, e.ints(*np.atleast_1d(node.attributes[attribute])), **others)

    return row


def _number(node: Node, value: float) -> Array:
    """A number of the type of a node's last input."""
    return np.asarray(value, NUMPY.dtype(node.inputs[-1].dtype))


def _axes(node: Node) -> list[int]:
    return list(axes_of(LABEL, node.attributes["axes"], len(node.inputs[0].shape)))


def _arithmetic(kind: str) -> Row:
    """Two operands; the end of a layer normalisation is one node with all that leads to it."""

    def row(e: Emitter, node: Node, a: str, b: str) -> Any:
        product, bias = (node, []) if kind == "Mul" else (node.inputs[0].node, [node.inputs[1]])
        found = _normalised(product)
        if found is None:
            return e.emit(kind, a, b)
        x, axis, epsilon = found
        weights = [product.inputs[1], *bias]
        if any(each.shape != known(x.shape[axis:]) for each in weights):
            return e.emit(kind, a, b)
        names = [e.name(each) for each in (x, *weights)]
        return e.emit("LayerNormalization", *names, axis=axis, epsilon=epsilon)

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
    if axes != [last, last] or not last or epsilon.op is not CONSTANT or found[2].inputs[1].shape:
        return None
    return x, last[0], float(epsilon.attributes["store"].value)


def _reduction(kind: str) -> Row:
    def row(e: Emitter, node: Node, x: str) -> Any:
        axes = _axes(node)
        if not axes:
            return e.emit("Identity", x)
        if kind == "ReduceSum":  # the only one whose axes are an input in this opset
            return e.emit(kind, x, e.ints(*axes), keepdims=1)
        return e.emit(kind, x, axes=axes, keepdims=1)

    return row


def _over_bools(kind: str) -> Row:
    """All or any of bools, which ONNX reduces as numbers only: their product, or their sum, which
    have a value of no elements too."""
    return lambda e, node, x: e.cast(_reduction(kind)(e, node, e.cast(x, "int32")), "bool")


def _place(kind: str) -> Row:
    whole = _named(kind, "axis", keepdims=1)
    return lambda e, node, x: e.cast(whole(e, node, x), "int32")


def _arg_sort(e: Emitter, node: Node, x: str) -> Any:
    axis = node.attributes["axis"] % len(node.inputs[0].shape)
    largest = int(node.attributes["descending"])
    _, places = e.emit("TopK", x, e.size(x, axis), count=2, axis=axis, largest=largest)
    return e.cast(places, "int32")


def _floor_modulo(e: Emitter, node: Node, a: str, b: str) -> Any:
    """The remainder with the divisor's sign, from one with the dividend's, both of them exact."""
    rest, zero = e.emit("Mod", a, b, fmod=1), _number(node, 0)
    signs = e.emit("Mul", e.emit("Sign", rest), e.emit("Sign", b))
    found = e.emit("Where", e.emit("Less", signs, zero), e.emit("Add", rest, b), rest)
    return e.emit("Where", e.emit("Equal", b, zero), zero, found)


def _is_finite(e: Emitter, node: Node, x: str) -> Any:
    return e.emit("Not", e.emit("Or", e.emit("IsNaN", x), e.emit("IsInf", x)))


def _truncate(e: Emitter, node: Node, x: str) -> Any:
    return e.emit("Mul", e.emit("Sign", x), e.emit("Floor", e.emit("Abs", x)))


def _logarithm(base: float) -> Row:
    return lambda e, node, x: e.emit("Div", e.emit("Log", x), _number(node, math.log(base)))


def _slice(e: Emitter, node: Node, x: str) -> Any:
    a = node.attributes
    ends = [END if end is None else end for end in a["ends"]]
    if not ends:
        return e.emit("Identity", x)
    axes = e.ints(*range(len(ends)))
    return e.emit("Slice", x, e.ints(*a["starts"]), e.ints(*ends), axes, e.ints(*a["strides"]))


def _pad(e: Emitter, node: Node, x: str) -> Any:
    a = node.attributes
    pads = e.ints(*a["left"], *a["right"])
    if "mode" not in a:
        return e.emit("Pad", x, pads, _number(node, a["value"]))
    modes = {"reflect": "reflect", "clamp_to_edge": "edge"}
    if a["mode"] not in modes:
        raise OptionError(refusal("pad_tensor", "padding_mode", "one that ONNX has", a["mode"]))
    return e.emit("Pad", x, pads, mode=modes[a["mode"]])


def _one_hot(e: Emitter, node: Node, indices: str) -> Any:
    a = node.attributes
    values = np.array([a["off_value"], a["on_value"]], NUMPY.dtype(a["dtype"]))
    depth = np.array(a["depth"], np.int64)
    return e.emit("OneHot", e.cast(indices, "int64"), depth, values, axis=a["axis"])


def _stack(e: Emitter, node: Node, *tensors: str) -> Any:
    axis = node.attributes["axis"]
    return e.emit("Concat", *[e.emit("Unsqueeze", x, e.ints(axis)) for x in tensors], axis=axis)


def _split(e: Emitter, node: Node, x: str) -> Any:
    sizes, axis = node.attributes["sizes"], node.attributes["axis"]
    return e.emit("Split", x, e.ints(*sizes), count=len(sizes), axis=axis)


def _split_evenly(e: Emitter, node: Node, x: str) -> Any:
    if not node.attributes["even"]:
        expected = "equal parts, because opset 17 has no others of an unknown size"
        raise OptionError(refusal("split_evenly", "count", expected, "unequal ones"))
    return e.emit("Split", x, count=node.attributes["count"], axis=node.attributes["axis"])


def _squeeze(e: Emitter, node: Node, x: str) -> Any:
    axes = _axes(node)
    return e.emit("Squeeze", x, e.ints(*axes)) if axes else e.emit("Identity", x)


def _expand_dims(e: Emitter, node: Node, x: str) -> Any:
    axes = node.attributes["axes"]
    return e.emit("Unsqueeze", x, e.ints(*axes)) if axes else e.emit("Identity", x)


def _read(e: Emitter, node: Node, x: str) -> Any:
    if node.inputs[0].node.op is not VARIABLE:
        raise OptionError(refusal("read", "variable", "one without an assign", "one with"))
    return e.emit("Identity", x)


# Rows of graph/ops/sized.py, whose sizes are texts; ``likes`` are the tensors that they read.


def _size(e: Emitter, text: str, likes: Sequence[str]) -> str:
    """[1]: the size that a text stands for."""

    def value(factor: str) -> Any:
        place, dot, axis = factor.partition(".")
        return e.size(likes[int(place)], int(axis)) if dot else e.ints(int(factor))

    terms = [term.removeprefix("1*").split("*") for term in text.partition("|")[0].split("+")]
    products = [reduce(partial(e.emit, "Mul"), map(value, factors)) for factors in terms]
    return str(reduce(partial(e.emit, "Add"), products))


def _sizes(e: Emitter, texts: Sequence[str], likes: Sequence[str]) -> Value:
    found = [_size(e, text, likes) for text in texts]
    return e.emit("Concat", *found, axis=0) if found else e.ints()


def _reshape_to(e: Emitter, node: Node, x: str, *likes: str) -> Any:
    texts = node.attributes["sizes"]
    own = [f"1*{k}.{{}}" for k, like in enumerate(likes) if like == x]
    sizes = [  # 0 keeps an axis as it is
        "0" if text in [each.format(axis) for each in own] else text
        for axis, text in enumerate(texts)
    ]
    if any("|" in text for text in texts):
        # "a|b": where a is 0, b is the size of x's own axis, as ONNX has it without allowzero. Then
        # another size of such an axis is what was left, which may be 0 itself.
        rank = len(node.inputs[0].shape)
        sizes = [
            "-1" if axis < rank and "." in text and "|" not in text else text
            for axis, text in enumerate(sizes)
        ]
        return e.emit("Reshape", x, _sizes(e, sizes, likes))
    if "0" in texts or any("." in text for text in sizes):
        return e.emit("Reshape", x, _sizes(e, texts, likes), allowzero=1)
    return e.emit("Reshape", x, e.ints(*map(int, sizes)))


def _range_to(e: Emitter, node: Node, *likes: str) -> Any:
    bounds = [_size(e, text, likes) for text in node.attributes["sizes"]]
    return e.emit("Range", *[e.emit("Squeeze", bound, e.ints(0)) for bound in bounds])


def _slice_to(e: Emitter, node: Node, x: str, *likes: str) -> Any:
    texts, axes = node.attributes["sizes"], node.attributes["axes"]
    bounds = [_sizes(e, part, likes) for part in (texts[: len(axes)], texts[len(axes) :])]
    return e.emit("Slice", x, *bounds, e.ints(*axes), e.ints(*node.attributes["strides"]))


ROWS: dict[str, Row] = {
    **{op: _named(kind) for kind, op in PLAIN.items()},
    "addition": _arithmetic("Add"),
    "multiplication": _arithmetic("Mul"),
    "division": _named("Div"),
    "integer_division": _named("Div"),
    "power": _named("Pow"),
    "maximum": _named("Max"),
    "minimum": _named("Min"),
    "modulo": _named("Mod", fmod=1),
    "floor_modulo": _floor_modulo,
    "not_equal": lambda e, node, a, b: e.emit("Not", e.emit("Equal", a, b)),
    "square": lambda e, node, x: e.emit("Mul", x, x),
    "relu": _named("Relu"),
    "identity": _named("Identity"),
    "is_finite": _is_finite,
    "truncate": _truncate,
    "exponent_base2": lambda e, node, x: e.emit("Pow", _number(node, 2), x),
    "logarithm_base2": _logarithm(2),
    "logarithm_base10": _logarithm(10),
    "cast": lambda e, node, x: e.cast(x, node.attributes["dtype"]),
    "matrix_multiplication": _named("MatMul"),
    "reduction_sum": _reduction("ReduceSum"),
    "mean": _reduction("ReduceMean"),
    "reduction_maximum": _reduction("ReduceMax"),
    "reduction_minimum": _reduction("ReduceMin"),
    "reduction_product": _reduction("ReduceProd"),
    "reduction_and": _over_bools("ReduceProd"),
    "reduction_or": _over_bools("ReduceSum"),
    "reduction_arg_maximum": _place("ArgMax"),
    "reduction_arg_minimum": _place("ArgMin"),
    "arg_sort": _arg_sort,
    "cumulative_sum": _with_ints("CumSum", "axis"),
    "soft_max": _named("Softmax", "axis"),
    "one_hot": _one_hot,
    "gather": _named("Gather", "axis"),
    "gather_along_axis": _named("GatherElements", "axis"),
    "transpose": lambda e, node, x: e.transpose(x, *node.attributes["permutation"]),
    "reshape": _with_ints("Reshape", "shape", allowzero=1),
    "broadcast": _with_ints("Expand", "shape"),
    "expand_dims": _expand_dims,
    "squeeze": _squeeze,
    "concat_tensors": _named("Concat", "axis"),
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
    "broadcast_to": lambda e, node, x, *likes: e.emit(
        "Expand", x, _sizes(e, node.attributes["sizes"], likes)
    ),
    "slice_to": _slice_to,
    "split_evenly": _split_evenly,
    "expect_sizes": lambda e, node, x, *likes: x,
    "expect_lengths": lambda e, node, lengths, tensor: lengths,
    "sizes": lambda e, node, *likes: _sizes(e, node.attributes["sizes"], likes),
    "range_to": _range_to,
}
