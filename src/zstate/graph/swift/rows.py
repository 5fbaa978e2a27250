"""One row per op of the graph whose call is more than its tensors in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...errors import OptionError, ShapeError, refusal
from ...layout import brackets
from ...mpsgraph.published import methods_for_op
from ..ops.base import axes_of
from ..ops.like import windows
from ..tensor import Node, Tensor
from .words import (
    Call,
    axes_text,
    axis_text,
    call,
    call_of,
    camel,
    data_type,
    double_text,
    list_text,
    published,
    shape_text,
)

if TYPE_CHECKING:
    from .writer import Writer

# One row per op whose call is not its tensors in order: (writer, node, name) -> expression.

Row = Callable[["Writer", Node, str], Call]
_FAR = 2**31 - 1  # an end beyond any axis


def _known_shape(tensor: Tensor) -> str:
    if sum(size is None for size in tensor.shape) > 1:
        raise ShapeError(
            refusal(tensor.node.op.name, "shape", "known sizes", brackets(tensor.shape))
        )
    return shape_text(tensor.shape)


def _reshaped(w: Writer, node: Node, name: str) -> Call:
    shape = _known_shape(node.results[0])
    return call("reshape(_:shape:name:)", w.value(node.inputs[0]), shape, name)


def _on_axis(title: str, more: int = 0, *, rank: int = 0) -> Row:
    """A method of the node's tensors and its axis. If input ``rank`` has no dimensions, Swift
    gives it the shape [1]; the result is reshaped to what it is without that axis."""

    def row(w: Writer, node: Node, name: str) -> Call:
        values = [w.value(tensor) for tensor in node.inputs]
        arguments = iter(values)
        method = published()[title]
        parts = []
        for parameter in method.parameters:
            if parameter.type == "[MPSGraphTensor]":
                parts.append(list_text(values))
            elif parameter.type == "MPSGraphTensor":
                parts.append(next(arguments))
            elif parameter.label == "batchDimensions":
                parts.append("0")
            else:
                parts.append(name if parameter.label == "name" else axis_text(node, more))
        made = call_of(method, *parts)
        if node.inputs[rank].shape:
            return made
        return call("reshape(_:shape:name:)", made, _known_shape(node.results[0]), "nil")

    return row


def _arguments(title: str, *names: str) -> Row:
    """A method of the node's tensors and of lists among its attributes."""

    def row(w: Writer, node: Node, name: str) -> Call:
        values = [w.value(tensor) for tensor in node.inputs]
        lists = [shape_text(node.attributes[key]) for key in names]
        return call(title, *values, *lists, name)

    return row


def _broadcast(w: Writer, node: Node, name: str) -> Call:
    value, shape = w.value(node.inputs[0]), shape_text(node.attributes["shape"])
    return call("broadcast(_:shape:name:)", value, shape, name)


def _expand_dims(w: Writer, node: Node, name: str) -> Call:
    if not node.inputs[0].shape:
        return _reshaped(w, node, name)
    axes = axes_of("expand_dims", node.attributes["axes"], len(node.results[0].shape))
    return call("expandDims(_:axes:name:)", w.value(node.inputs[0]), list_text(axes), name)


def _squeeze(w: Writer, node: Node, name: str) -> Call:
    if not node.results[0].shape:
        return _reshaped(w, node, name)
    return call("squeeze(_:axes:name:)", w.value(node.inputs[0]), axes_text(node), name)


def _split(w: Writer, node: Node, name: str) -> Call:
    sizes = list_text(node.attributes["sizes"])
    value = w.value(node.inputs[0])
    return call("split(_:splitSizes:axis:name:)", value, sizes, axis_text(node), name)


def _slice(w: Writer, node: Node, name: str) -> Call:
    return _sliced(w, node.inputs[0], windows(node.attributes), name)


def _slice_to(w: Writer, node: Node, name: str) -> Call:
    """A slice of an unknown size whose bounds are numbers."""
    a, count = node.attributes, len(node.attributes["axes"])
    if len(node.inputs) > 1 or min(a["strides"]) < 1:
        expected = "known bounds, and strides of at least 1 of an unknown size"
        raise OptionError(refusal("slice", "bounds", expected, f"{a['sizes']}, {a['strides']}"))
    places = [slice(0, None, 1)] * len(node.inputs[0].shape)
    for k, axis in enumerate(a["axes"]):
        start, stop = int(a["sizes"][k]), int(a["sizes"][k + count])
        places[axis] = slice(start, None if stop >= _FAR else stop, a["strides"][k])
    return _sliced(w, node.inputs[0], places, name)


def _sliced(w: Writer, source: Tensor, places: Sequence[slice], name: str) -> Call:
    """Bounds counted from the front where a size is known; open ends are masked elsewhere."""
    all_bounds: list[tuple[int | None, ...]] = []
    mask = 0
    for axis, (window, size) in enumerate(zip(places, source.shape, strict=True)):
        if size is not None:
            all_bounds.append(window.indices(size))
        else:
            mask |= (window.stop is None) << axis
            all_bounds.append((window.start, window.stop or 0, window.step))
    value = w.value(source)
    lists = [list_text([bounds[k] for bounds in all_bounds]) for k in range(3)]
    if not mask:
        return call("sliceTensor(_:starts:ends:strides:name:)", value, *lists, name)
    title = "sliceTensor(_:starts:ends:strides:startMask:endMask:squeezeMask:name:)"
    return call(title, value, *lists, "0", str(mask), "0", name)


def _put_slice(w: Writer, node: Node, name: str) -> Call:
    a, (tensor,) = node.attributes, node.inputs
    bounds = [x.indices(n) for x, n in zip(windows(a), a["shape"], strict=True)]
    shape, kind = shape_text(a["shape"]), data_type(tensor.dtype)
    zeros = call("constant(_:shape:dataType:)", "0.0", shape, kind)
    lists = [list_text([bound[k] for bound in bounds]) for k in range(3)]
    title = "sliceUpdateDataTensor(_:update:starts:ends:strides:name:)"
    return call(title, zeros, w.value(tensor), *lists, name)


def _reverse(w: Writer, node: Node, name: str) -> Call:
    return call("reverse(_:axes:name:)", w.value(node.inputs[0]), axes_text(node), name)


def _pad(w: Writer, node: Node, name: str) -> Call:
    a = node.attributes
    return call(
        "padTensor(_:with:leftPadding:rightPadding:constantValue:name:)",
        w.value(node.inputs[0]),
        f".{camel(a.get('mode', 'constant'))}",
        list_text(a["left"]),
        list_text(a["right"]),
        double_text(a.get("value", 0.0)),
        name,
    )


def _cast(w: Writer, node: Node, name: str) -> Call:
    kind = data_type(node.attributes["dtype"])
    return call("cast(_:to:name:)", w.value(node.inputs[0]), kind, name)


def _one_hot(w: Writer, node: Node, name: str) -> Call:
    """The shortest form: the axis and the values are said where they are not the defaults."""
    a, (indices,) = node.attributes, node.inputs
    rank = len(indices.shape)
    said = {
        "withIndicesTensor": w.value(indices),
        "depth": str(a["depth"]),
        "axis": axis_text(node, 1),
        "dataType": data_type(a["dtype"]),
        "onValue": double_text(a["on_value"]),
        "offValue": double_text(a["off_value"]),
        "name": name,
    }
    if a["axis"] % (rank + 1) == rank:
        del said["axis"]
    if (a["on_value"], a["off_value"]) == (1, 0):
        del said["onValue"], said["offValue"]
    made = call(f"oneHot({''.join(f'{label}:' for label in said)})", *said.values())
    if rank:
        return made
    return call("reshape(_:shape:name:)", made, shape_text(node.results[0].shape), "nil")


def _scatter(w: Writer, node: Node, name: str) -> Call:
    updates, indices = map(w.value, node.inputs)
    (result,) = node.results
    shape, axis = _whole_shape(result), node.attributes["axis"] % len(result.shape)
    title = "scatter(_:indices:shape:axis:mode:name:)"
    return call(title, updates, indices, shape, axis, ".add", name)


def _scatter_along(w: Writer, node: Node, name: str) -> Call:
    updates, indices = map(w.value, node.inputs)
    shape = _whole_shape(node.results[0])
    title = "scatterAlongAxis(_:updates:indices:shape:mode:name:)"
    return call(title, axis_text(node), updates, indices, shape, ".add", name)


def _whole_shape(tensor: Tensor) -> str:
    if None in tensor.shape:
        raise ShapeError(
            refusal(tensor.node.op.name, "shape", "known sizes", brackets(tensor.shape))
        )
    return shape_text(tensor.shape)


def _gather_along(w: Writer, node: Node, name: str) -> Call:
    updates, indices = map(w.value, node.inputs)
    return call("gatherAlongAxis(_:updates:indices:name:)", axis_text(node), updates, indices, name)


def _entropy(w: Writer, node: Node, name: str) -> Call:
    values = [w.value(tensor) for tensor in node.inputs]
    kind = f".{node.attributes['reduction']}"
    title = "softMaxCrossEntropy(_:labels:axis:reuctionType:name:)"
    return call(title, *values, axis_text(node), kind, name)


def _entropy_gradient(w: Writer, node: Node, name: str) -> Call:
    """From the loss's source, where the graph takes the softmax that came with the loss."""
    gradient, soft_max, labels = node.inputs
    if soft_max.node.op.name != "soft_max_cross_entropy":
        expected = "the softmax of a loss"
        raise OptionError(refusal(node.op.name, "soft_max", expected, soft_max.name))
    axis = str(node.attributes["axis"] % len(soft_max.shape))
    return call(
        "softMaxCrossEntropyGradient(_:source:labels:axis:reuctionType:name:)",
        *map(w.value, (gradient, soft_max.node.inputs[0], labels)),
        axis,
        f".{node.attributes['reduction']}",
        name,
    )


def _arg_sort(w: Writer, node: Node, name: str) -> Call:
    falling = "true" if node.attributes["descending"] else "false"
    value = w.value(node.inputs[0])
    return call("argSort(_:axis:descending:name:)", value, axis_text(node), falling, name)


def _adam(w: Writer, node: Node, name: str) -> Call:
    *values, gradient = map(w.value, node.inputs[:10])
    largest = w.value(node.inputs[10]) if len(node.inputs) == 11 else "nil"
    (method,) = [m for m in methods_for_op("adam") if m.parameters[0].label == "learningRate"]
    return call_of(method, *values, largest, gradient, name)


def _like(title: str) -> Row:
    """A method of a tensor and of the shape of another."""

    def row(w: Writer, node: Node, name: str) -> Call:
        value, like = map(w.value, node.inputs)
        return call(title, value, call("shapeOf(_:name:)", like, "nil"), name)

    return row


def _random(w: Writer, node: Node, name: str) -> Call:
    expected = "no generator: the state of zstate's differs from MPSGraph's"
    raise OptionError(refusal(node.op.name, "state", expected, node.inputs[0].name))


def _first(w: Writer, node: Node, name: str) -> Call:
    """A check of the first operand, which MPSGraph has not."""
    return call("identity(with:name:)", w.value(node.inputs[0]), name)


ROWS: dict[str, Row] = {
    "expect_lengths": _first,
    "expect_sizes": _first,
    "reshape": _reshaped,
    "transpose": _arguments("transpose(_:permutation:name:)", "permutation"),
    "broadcast": _broadcast,
    "expand_dims": _expand_dims,
    "squeeze": _squeeze,
    "concat_tensors": _on_axis("concatTensors(_:dimension:name:)"),
    "stack": _on_axis("stack(_:axis:name:)", 1),
    "split": _split,
    "slice": _slice,
    "slice_to": _slice_to,
    "put_slice": _put_slice,
    "reverse": _reverse,
    "pad_tensor": _pad,
    "pad_around": _pad,
    "cast": _cast,
    "arg_sort": _arg_sort,
    "cumulative_sum": _on_axis("cumulativeSum(_:axis:name:)"),
    "soft_max_cross_entropy": _entropy,
    "soft_max_cross_entropy_gradient": _entropy_gradient,
    "one_hot": _one_hot,
    "gather": _on_axis(
        "gather(withUpdatesTensor:indicesTensor:axis:batchDimensions:name:)", rank=1
    ),
    "gather_along_axis": _gather_along,
    "scatter": _scatter,
    "scatter_along_axis": _scatter_along,
    "adam": _adam,
    "reshape_like": _like("reshape(_:shapeTensor:name:)"),
    "broadcast_like": _like("broadcast(_:shapeTensor:name:)"),
    "random_tensor": _random,
}
