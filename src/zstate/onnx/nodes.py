"""The table of ONNX operators: each row translates a node into nodes of the graph.

Recurrent nodes are in recurrent.py, arithmetic on sizes that are not known yet in shapes.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product
from typing import Any

import numpy as np

from ..errors import OptionError, ShapeError, refusal
from ..graph import Graph, Tensor
from ..graph.ops.base import known
from ..types import FLOAT_NAMES, Array
from . import shapes
from .loading import Node
from .reading import type_name
from .recurrent import recurrent
from .sizes import Size, sized_node

Row = Callable[[Node], Sequence[Any]]
_FAR = 2**31 - 1  # what exporters write for "to the end" is at least this
# A constant that a few bytes of a file describe is made only up to this many elements.
_MOST_ELEMENTS = 2**31


def translate(node: Node) -> Sequence[Any]:
    """The results of a node: tensors of the graph, arrays, or arrays of sizes."""
    found = shapes.translate(node)
    if found is not None:
        return found
    if node.kind not in ROWS:
        expected = "an operator that zstate's graph has"
        raise OptionError(refusal("onnx.load", "op_type", expected, repr(node.kind)))
    return ROWS[node.kind](node)


# Element by element


def _unary(method: str) -> Row:
    return lambda node: [getattr(node.graph, method)(node.tensor(0))]


def _binary(method: str) -> Row:
    return lambda node: [getattr(node.graph, method)(node.tensor(0), node.tensor(1))]


def _variadic(method: str) -> Row:
    def row(node: Node) -> list[Tensor]:
        tensors = [node.tensor(k) for k in range(len(node.inputs))]
        return [reduce(getattr(node.graph, method), tensors)]

    return row


def _mean_of(node: Node) -> list[Tensor]:
    total = _variadic("addition")(node)[0]
    return [total * (1.0 / len(node.inputs))]


def _division(node: Node) -> list[Any]:
    g, a, b = node.graph, node.tensor(0), node.tensor(1)
    if a.dtype in FLOAT_NAMES:
        return [g.division(a, b)]
    if a.dtype in ("int64", "uint64"):  # float64 does not hold all of them
        x, y = node.known(0), node.known(1)
        return [np.asarray(np.sign(x) * np.sign(y) * (abs(x) // abs(y))).astype(x.dtype)]
    return [g.cast(g.division(g.cast(a, "float64"), g.cast(b, "float64")), a.dtype)]


def _power(node: Node) -> list[Tensor]:
    g, a, b = node.graph, node.tensor(0), node.tensor(1)
    if a.dtype == b.dtype:
        return [g.power(a, b)]
    if a.dtype in FLOAT_NAMES:
        return [g.power(a, g.cast(b, a.dtype))]
    return [g.cast(g.power(g.cast(a, "float64"), g.cast(b, "float64")), a.dtype)]


def _logical(name: str) -> Row:
    def row(node: Node) -> list[Tensor]:
        g = node.graph
        a, b = node.tensor(0), node.tensor(1)
        for index, tensor in enumerate((a, b)):
            if tensor.dtype != "bool":
                raise OptionError(refusal(name, f"input {index}", "bool", tensor.dtype))
        if name == "Xor":
            return [g.not_equal(a, b)]
        fixed = g.constant(np.array(name == "Or"))
        return [g.select(a, fixed, b) if name == "Or" else g.select(a, b, fixed)]

    return row


def _not(node: Node) -> list[Tensor]:
    return [node.graph.equal(node.tensor(0), node.graph.constant(np.array(False)))]


def _is_nan(node: Node) -> list[Tensor]:
    return [node.graph.not_equal(node.tensor(0), node.tensor(0))]


def _clip(node: Node) -> list[Tensor]:
    g, x = node.graph, node.tensor(0)
    low: Any = node.attribute("min") if node.opset < 11 else node.optional(1)
    high: Any = node.attribute("max") if node.opset < 11 else node.optional(2)
    # The bounds come first, so that x equal to one of them passes the gradient on as inside.
    if low is not None:
        x = g.maximum(x, low)
    return [x if high is None else g.minimum(x, high)]


def _hard_sigmoid(g: Graph, x: Tensor, alpha: float, beta: float) -> Tensor:
    return g.minimum(g.maximum(x * alpha + beta, 0.0), 1.0)


def _elu(g: Graph, x: Tensor, alpha: float) -> Tensor:
    # The exponent sees no large x, whose derivative would be infinite times zero.
    return g.select(g.greater_than(x, 0.0), x, (g.exponent(g.minimum(x, 0.0)) - 1.0) * alpha)


def _softplus(g: Graph, x: Tensor) -> Tensor:
    return g.relu(x) + g.logarithm(g.exponent(-g.absolute(x)) + 1.0)


def _activation(function: Callable[..., Tensor], **defaults: float) -> Row:
    """A function of the graph, a tensor and numbers that are attributes."""

    def row(node: Node) -> list[Tensor]:
        numbers = [float(node.attribute(name, value)) for name, value in defaults.items()]
        return [function(node.graph, node.tensor(0), *numbers)]

    return row


def _prelu(node: Node) -> list[Tensor]:
    g, x, slope = node.graph, node.tensor(0), node.tensor(1)
    return [g.relu(x) + g.minimum(x, 0.0) * slope]


def _gelu(node: Node) -> list[Tensor]:
    if (how := node.attribute("approximate", "none")) != "tanh":
        raise OptionError(
            refusal("Gelu", "approximate", "'tanh', as the graph has no erf", repr(how))
        )
    x = node.tensor(0)
    inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
    return [x * 0.5 * (node.graph.tanh(inner) + 1.0)]


def _cast(node: Node) -> list[Tensor]:
    node.attribute("saturate")  # both are about types of eight bits or less, which are refused
    node.attribute("round_mode")
    return [node.graph.cast(node.tensor(0), type_name(node.attribute("to", 0), "to"))]


def _cast_like(node: Node) -> list[Tensor]:
    node.attribute("saturate")
    node.attribute("round_mode")
    return [node.graph.cast(node.tensor(0), node.tensor(1).dtype)]


def _identity(node: Node) -> list[Tensor]:
    return [node.tensor(0)]


def _dropout(node: Node) -> list[Tensor]:
    node.attribute("seed")
    node.attribute("ratio")
    if node.has(2) and bool(node.known(2)):
        raise OptionError(refusal("Dropout", "training_mode", "False: inference", "True"))
    x = node.tensor(0)
    if not node.wants(1):
        return [x]
    return [x, node.graph.equal(x, x)]  # a mask of ones; NaNs have no business in it


# Sums


def _matmul(node: Node) -> list[Tensor]:
    g, a, b = node.graph, node.tensor(0), node.tensor(1)
    left, right = len(a.shape) == 1, len(b.shape) == 1
    a = g.expand_dims(a, axes=[0]) if left else a
    b = g.expand_dims(b, axes=[1]) if right else b
    found = g.matrix_multiplication(a, b)
    gone = ([-2] if left else []) + ([-1] if right else [])
    return [g.squeeze(found, axes=gone) if gone else found]


def _gemm(node: Node) -> list[Tensor]:
    g, a, b = node.graph, node.tensor(0), node.tensor(1)
    for index, tensor in enumerate((a, b)):
        if len(tensor.shape) != 2:
            got = str(len(tensor.shape))
            raise ShapeError(refusal("Gemm", f"input {index}", "2 dimensions", got))
    a = g.transpose(a, [1, 0]) if node.attribute("transA", 0) else a
    b = g.transpose(b, [1, 0]) if node.attribute("transB", 0) else b
    found = _scaled(g.matrix_multiplication(a, b), node.attribute("alpha", 1.0))
    beta = node.attribute("beta", 1.0)
    return [found + _scaled(node.tensor(2), beta)] if node.has(2) else [found]


def _scaled(tensor: Tensor, factor: float) -> Tensor:
    return tensor if factor == 1 else tensor * factor


def _padding(
    node: Node, sizes: Sequence[int | None], windows: Sequence[int], strides: Sequence[int]
) -> tuple[list[int], list[int]]:
    """What a window pads before and behind each spatial dimension."""
    how = node.attribute("auto_pad", "NOTSET")
    count = len(windows)
    pads = node.attribute("pads", [0] * 2 * count)
    if how in ("NOTSET", "VALID"):
        pads = [0] * 2 * count if how == "VALID" else [int(pad) for pad in pads]
        return pads[:count], pads[count:]
    if how not in ("SAME_UPPER", "SAME_LOWER"):
        raise OptionError(refusal(node.kind, "auto_pad", "one of ONNX's", repr(how)))
    totals = []
    for size, window, stride in zip(sizes, windows, strides, strict=True):
        if stride == 1:
            totals.append(window - 1)
        elif size is None:
            raise OptionError(refusal(node.kind, "auto_pad", "known sizes", "an unknown one"))
        else:
            totals.append(max(0, (math.ceil(size / stride) - 1) * stride + window - size))
    small = [total // 2 for total in totals]
    large = [total - total // 2 for total in totals]
    return (small, large) if how == "SAME_UPPER" else (large, small)


def _convolution(node: Node) -> list[Tensor]:
    """The windows side by side along the channels, and one matrix product."""
    g, x, weight = node.graph, node.tensor(0), node.tensor(1)
    shape = known(weight.shape)
    groups = int(node.attribute("group", 1))
    if shape is None or len(shape) < 3 or groups < 1 or shape[0] % groups:
        raise ShapeError(refusal("Conv", "W", "a known shape [M,C/group,K,…]", str(weight)))
    out, inner, *kernel = shape
    count = len(kernel)
    if len(x.shape) != count + 2 or x.shape[1] not in (None, inner * groups):
        expected = f"[N,{inner * groups},…] of {count + 2} dimensions"
        raise ShapeError(refusal("Conv", "X", expected, str(x)))
    if node.attribute("kernel_shape", kernel) != kernel:
        raise ShapeError(refusal("Conv", "kernel_shape", str(kernel), "another"))
    steps = node.attribute("dilations", [1] * count)
    strides = node.attribute("strides", [1] * count)
    spans = [(size - 1) * step for size, step in zip(kernel, steps, strict=True)]
    left, right = _padding(node, x.shape[2:], [span + 1 for span in spans], strides)
    if any(left) or any(right):
        x = g.pad_tensor(x, [0, 0, *left], [0, 0, *right])
    for size, span in zip(x.shape[2:], spans, strict=True):
        if size is not None and size <= span:
            raise ShapeError(refusal("Conv", "X", f"a padded size above {span}", str(x)))
    found = []
    inputs = [x] if groups == 1 else g.split(x, [inner] * groups, axis=1)
    weights = [weight] if groups == 1 else g.split(weight, groups, axis=0)
    last = [0, *range(2, count + 2), 1]  # the channels at the end
    for part, part_weight in zip(inputs, weights, strict=True):
        columns = [
            g.strided_slice(
                part,
                [0, 0, *place],
                [None, None, *(k - span or None for k, span in zip(place, spans, strict=True))],
                [1, 1, *strides],
            )
            for place in product(
                *(range(0, span + 1, step) for span, step in zip(spans, steps, strict=True))
            )
        ]
        joined = g.concat_tensors(columns, axis=1) if len(columns) > 1 else columns[0]
        flat = g.reshape(g.transpose(part_weight, last), (out // groups, len(columns) * inner))
        rows = g.transpose(joined, last)  # [N,L…,K·C]
        found.append(g.matrix_multiplication(rows, g.transpose(flat, [1, 0])))
    result = g.concat_tensors(found, axis=-1) if groups > 1 else found[0]
    if node.has(2):
        result = result + node.tensor(2)
    return [g.transpose(result, [0, count + 1, *range(1, count + 1)])]


def _reduction(method: Callable[[Graph, Tensor, list[int]], Tensor]) -> Row:
    def row(node: Node) -> list[Tensor]:
        g, x = node.graph, node.tensor(0)
        axes = node.ints(1) if node.has(1) else node.attribute("axes")
        keep, noop = node.attribute("keepdims", 1), node.attribute("noop_with_empty_axes", 0)
        if not axes:
            if noop:
                return [method(g, x, [])]
            axes = list(range(len(x.shape)))
        found = method(g, x, axes)
        return [found if keep else g.squeeze(found, axes=axes)]

    return row


def _minimum(g: Graph, x: Tensor, axes: list[int]) -> Tensor:
    if x.dtype != "bool" and not x.dtype.startswith("uint"):
        return -g.reduction_maximum(-x, axes=axes)
    if x.dtype != "bool":
        top = g.constant(np.array(np.iinfo(x.dtype).max))
        return top - g.reduction_maximum(top - x, axes=axes)
    no = g.constant(np.array(False))
    return g.equal(g.reduction_maximum(g.equal(x, no), axes=axes), no)


def _log_sum_exp(g: Graph, x: Tensor, axes: list[int]) -> Tensor:
    top = g.reduction_maximum(x, axes=axes)
    return g.logarithm(g.reduction_sum(g.exponent(x - top), axes=axes)) + top


def _arg_maximum(sign: int) -> Row:
    def row(node: Node) -> list[Tensor]:
        g, x = node.graph, node.tensor(0)
        axis, keep = int(node.attribute("axis", 0)), node.attribute("keepdims", 1)
        x = x if sign > 0 else -x
        if node.attribute("select_last_index", 0):
            size = node.size(x, axis)
            if isinstance(size, Size):
                raise ShapeError(refusal(node.kind, "data", f"a known size of axis {axis}", str(x)))
            found = size - 1 - g.reduction_arg_maximum(g.reverse(x, axes=[axis]), axis=axis)
        else:
            found = g.reduction_arg_maximum(x, axis=axis)
        found = g.cast(found, "int64")
        return [found if keep else g.squeeze(found, axes=[axis])]

    return row


def _soft_max(is_log: bool) -> Row:
    def row(node: Node) -> list[Tensor]:
        g, x = node.graph, node.tensor(0)
        axis = int(node.attribute("axis", -1 if node.opset >= 13 else 1))
        rank = len(x.shape)
        if not -rank <= axis < rank:
            raise ShapeError(refusal(node.kind, "axis", f"an axis of {rank} dimensions", str(axis)))
        # Before opset 13 everything from the axis on is one axis.
        axes = [axis] if node.opset >= 13 else list(range(axis % rank, rank))
        if len(axes) == 1 and not is_log:
            return [g.soft_max(x, axis=axes[0])]
        if is_log:
            return [x - _log_sum_exp(g, x, axes)]
        raised = g.exponent(x - g.reduction_maximum(x, axes=axes))
        return [raised / g.reduction_sum(raised, axes=axes)]

    return row


def _normal_axes(node: Node, x: Tensor) -> list[int]:
    axis, rank = int(node.attribute("axis", -1)), len(x.shape)
    if not -rank <= axis < rank:
        raise ShapeError(refusal(node.kind, "axis", f"an axis of {rank} dimensions", str(axis)))
    return list(range(axis % rank, rank))


def _layer_normalization(node: Node) -> list[Tensor]:
    g, x = node.graph, node.tensor(0)
    axes, epsilon = _normal_axes(node, x), float(node.attribute("epsilon", 1e-5))
    wide = _stash(node, x)
    mean = g.mean(wide, axes=axes)
    away = wide - mean
    scale = g.reciprocal(g.square_root(g.mean(g.square(away), axes=axes) + epsilon))
    found = _cast_to(away * scale, x.dtype) * node.tensor(1)
    bias = node.optional(2)
    return [found if bias is None else found + bias, mean, scale]


def _rms_normalization(node: Node) -> list[Tensor]:
    g, x = node.graph, node.tensor(0)
    axes, epsilon = _normal_axes(node, x), float(node.attribute("epsilon", 1e-5))
    wide = _stash(node, x)
    below = g.square_root(g.mean(g.square(wide), axes=axes) + epsilon)
    return [_cast_to(wide / below, x.dtype) * node.tensor(1)]


def _stash(node: Node, x: Tensor) -> Tensor:
    """The tensor in the type in which a normalisation computes."""
    kind = type_name(int(node.attribute("stash_type", 1)), "stash_type")
    return _cast_to(x, kind) if x.dtype in ("float16", "bfloat16") else x


def _cast_to(tensor: Tensor, dtype: str) -> Tensor:
    return tensor if tensor.dtype == dtype else tensor.graph.cast(tensor, dtype)


def _batch_normalization(node: Node) -> list[Tensor]:
    node.attribute("momentum")
    node.attribute("spatial")
    if node.attribute("training_mode", 0):
        raise OptionError(refusal("BatchNormalization", "training_mode", "0: inference", "1"))
    g, x = node.graph, node.tensor(0)
    epsilon = float(node.attribute("epsilon", 1e-5))
    scale, bias, mean, variance = (
        g.expand_dims(node.tensor(k), axes=list(range(1, len(x.shape) - 1))) for k in range(1, 5)
    )
    return [(x - mean) / g.square_root(variance + epsilon) * scale + bias]


def _global_mean(node: Node) -> list[Tensor]:
    x = node.tensor(0)
    return [node.graph.mean(x, axes=list(range(2, len(x.shape))))]


# Indices


def _positive(node: Node, index: int, size: int | Size) -> Tensor:
    """Indices of which negative ones count from the back, as those that count from the front."""
    g, name = node.graph, node.inputs[index]
    if isinstance(size, int) and name in node.owner.arrays:
        array = node.owner.arrays[name]
        if array.dtype.kind not in "iu":
            raise OptionError(refusal(node.kind, "indices", "whole numbers", str(array.dtype)))
        return g.constant(np.where(array < 0, array + size, array).astype(np.int64))
    indices = g.cast(node.tensor(index), "int64")
    if isinstance(size, int):
        whole = g.constant(np.array(size, np.int64))
    else:
        whole = g.reshape(sized_node(g, "sizes", None, [size]), ())
    return g.select(g.less_than(indices, 0), indices + whole, indices)


def _gather(node: Node) -> list[Tensor]:
    x, axis = node.tensor(0), int(node.attribute("axis", 0))
    return [node.graph.gather(x, _positive(node, 1, node.size(x, axis)), axis=axis)]


def _gather_elements(node: Node) -> list[Tensor]:
    x, axis = node.tensor(0), int(node.attribute("axis", 0))
    return [node.graph.gather_along_axis(x, _positive(node, 1, node.size(x, axis)), axis)]


def _one_hot(node: Node) -> list[Tensor]:
    g, indices = node.graph, node.tensor(0)
    (depth,) = node.ints(1)
    axis = int(node.attribute("axis", -1))
    rank = len(indices.shape) + 1
    if not -rank <= axis < rank:
        raise ShapeError(refusal("OneHot", "axis", f"an axis of {rank} dimensions", str(axis)))
    whole = g.expand_dims(g.cast(indices, "int64"), axes=[axis])
    whole = g.select(g.less_than(whole, 0), whole + depth, whole)
    places = np.arange(depth).reshape([-1] + [1] * (rank - 1 - axis % rank))
    off, on = g.split(node.tensor(2), [1, 1], axis=0)
    return [g.select(g.equal(whole, g.constant(places)), g.reshape(on, ()), g.reshape(off, ()))]


# Shapes


def _transpose(node: Node) -> list[Tensor]:
    x = node.tensor(0)
    axes = node.attribute("perm") or list(range(len(x.shape)))[::-1]
    return [node.graph.transpose(x, axes)]


def _reshape(node: Node) -> list[Tensor]:
    x = node.tensor(0)
    wanted = node.sizes(1)
    keep = not node.attribute("allowzero", 0)
    sizes = []
    for axis, size in enumerate(wanted):
        if size == 0 and keep:
            if axis >= len(x.shape):
                expected = f"a 0 within {len(x.shape)} dimensions"
                raise ShapeError(refusal("Reshape", "shape", expected, f"axis {axis}"))
            size = node.size(x, axis)
        sizes.append(size)
    return [reshaped(node, x, sizes)]


def reshaped(node: Node, x: Tensor, sizes: list[int | Size]) -> Tensor:
    """The tensor in another shape; -1 is what is left, resolved where the sizes cancel out."""
    if sum(1 for size in sizes if size == -1) == 1:
        whole: Any = math.prod(node.shape(x))
        part: Any = math.prod(size for size in sizes if size != -1)
        if isinstance(whole, Size):
            left = whole.divided(part)
            if left is not None:
                sizes = [left if size == -1 else size for size in sizes]
    if sum(1 for size in sizes if isinstance(size, Size)) == 1 and -1 not in sizes:
        sizes = [-1 if isinstance(size, Size) else size for size in sizes]
    numbers = [size for size in sizes if not isinstance(size, Size)]
    if len(numbers) == len(sizes):
        return node.graph.reshape(x, numbers)
    return sized_node(node.graph, "reshape_to", x, sizes)


def _flatten(node: Node) -> list[Tensor]:
    x, axis = node.tensor(0), int(node.attribute("axis", 1))
    rank = len(x.shape)
    if not -rank <= axis <= rank:
        raise ShapeError(refusal("Flatten", "axis", f"within {rank} dimensions", str(axis)))
    axis = axis + rank if axis < 0 else axis
    sizes = node.shape(x)
    return [reshaped(node, x, [math.prod(sizes[:axis]), math.prod(sizes[axis:])])]


def _axes(node: Node, index: int = 1) -> list[int] | None:
    """Axes: an attribute in older opsets, an input since."""
    if node.has(index):
        return node.ints(index)
    found: list[int] | None = node.attribute("axes")
    return found


def _squeeze(node: Node) -> list[Tensor]:
    return [node.graph.squeeze(node.tensor(0), axes=_axes(node))]


def _unsqueeze(node: Node) -> list[Tensor]:
    return [node.graph.expand_dims(node.tensor(0), axes=_axes(node) or [])]


def _expand(node: Node) -> list[Tensor]:
    return [broadcast(node.graph, node.tensor(0), node.sizes(1))]


def broadcast(g: Graph, x: Tensor, sizes: Sequence[int | Size]) -> Tensor:
    """The tensor and ``sizes`` broadcast with each other."""
    return sized_node(g, "broadcast_to", x, sizes)


def _concat(node: Node) -> list[Tensor]:
    tensors = [node.tensor(k) for k in range(len(node.inputs))]
    return [node.graph.concat_tensors(tensors, axis=int(node.attribute("axis", 0)))]


def _split(node: Node) -> list[Tensor]:
    g, x, axis = node.graph, node.tensor(0), int(node.attribute("axis", 0))
    sizes = node.ints(1) if node.has(1) else node.attribute("split")
    count = int(node.attribute("num_outputs", len(node.outputs)))
    if sizes is None:
        size = node.size(x, axis)
        if isinstance(size, Size):
            raise ShapeError(refusal("Split", "input", f"a known size of axis {axis}", str(x)))
        each = -(-size // count)
        sizes = [each] * (count - 1) + [size - each * (count - 1)]
    return g.split(x, sizes, axis=axis)


def _slice(node: Node) -> list[Tensor]:
    g, x = node.graph, node.tensor(0)
    if node.opset < 10:
        starts, ends = node.attribute("starts"), node.attribute("ends")
        axes = node.attribute("axes") or list(range(len(starts)))
        steps = [1] * len(starts)
    else:
        starts, ends = node.ints(1), _ends(node, x)
        axes = node.ints(3) if node.has(3) else list(range(len(starts)))
        steps = node.ints(4) if node.has(4) else [1] * len(starts)
    rank = len(x.shape)
    windows: list[tuple[int, int | None, int]] = [(0, None, 1)] * rank
    backwards = []
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if not -rank <= axis < rank:
            raise ShapeError(refusal("Slice", "axes", f"axes of {rank} dimensions", str(axis)))
        axis %= rank
        if step < 0:
            backwards.append(axis)
            start, end, step = _mirrored(node, x, axis, start, end, step)
        windows[axis] = (start, None if end is None or end >= _FAR else end, step)
    if backwards:
        x = g.reverse(x, axes=backwards)
    if all(window == (0, None, 1) for window in windows):
        return [x]
    return [g.strided_slice(x, *([*column] for column in zip(*windows, strict=True)))]


def _ends(node: Node, x: Tensor) -> list[int | None]:
    """The ends of a slice; the size of the very axis is its end."""
    axes = node.ints(3) if node.has(3) else list(range(len(x.shape)))
    found: list[int | None] = []
    for end, axis in zip(node.sizes(2), axes, strict=False):
        if not isinstance(end, Size):
            found.append(end)
        elif -len(x.shape) <= axis < len(x.shape) and end == node.size(x, axis):
            found.append(None)
        else:
            raise OptionError(refusal("Slice", "ends", "known bounds", repr(end)))
    return found


def _mirrored(
    node: Node, x: Tensor, axis: int, start: int, end: int | None, step: int
) -> tuple[int, int | None, int]:
    """The window of the reversed axis that a slice with a negative step is."""
    size = x.shape[axis]
    if size is not None:
        first, last, step = slice(start, end, step).indices(size)
        return size - 1 - first, size - 1 - last, -step
    if (0 <= start < _FAR) or end is None or end >= 0:
        expected = "bounds from the back, as the size is unknown"
        raise OptionError(refusal("Slice", "starts and ends", expected, f"{start} and {end}"))
    first = 0 if start >= _FAR else -start - 1
    return first, None if end <= -_FAR else -end - 1, -step


def _tile(node: Node) -> list[Tensor]:
    g, x = node.graph, node.tensor(0)
    for axis, count in enumerate(node.ints(1)):
        if count < 1:
            raise OptionError(refusal("Tile", "repeats", "at least 1", str(count)))
        x = g.concat_tensors([x] * count, axis=axis) if count > 1 else x
    return [x]


def _pad(node: Node) -> list[Tensor]:
    g, x = node.graph, node.tensor(0)
    rank = len(x.shape)
    mode = node.attribute("mode", "constant")
    pads = node.attribute("pads") if node.opset < 11 else node.ints(1)
    value: Any = node.attribute("value", 0.0) if node.opset < 11 else 0.0
    if node.has(2):
        value = node.known(2).item()
    axes = node.ints(3) if node.has(3) else list(range(rank))
    left, right = [0] * rank, [0] * rank
    for place, axis in enumerate(axes):
        left[axis], right[axis] = pads[place], pads[place + len(axes)]
    modes = {"constant": "constant", "reflect": "reflect", "edge": "clamp_to_edge"}
    if mode not in modes or min(left + right, default=0) < 0:
        expected = f"{', '.join(modes)} with pads of at least 0"
        raise OptionError(refusal("Pad", "mode", expected, f"{mode} with {pads}"))
    return [g.pad_tensor(x, left, right, padding_mode=modes[mode], constant_value=float(value))]


# Values


def _constant(node: Node) -> list[Array]:
    for name in ("value", "value_float", "value_floats", "value_int", "value_ints"):
        value = node.attribute(name)
        if value is not None:
            kind = np.float32 if "float" in name else np.int64
            return [value if name == "value" else np.array(value, kind)]
    raise OptionError(refusal("Constant", "attributes", "a tensor or numbers", "none of them"))


def _constant_of_shape(node: Node) -> list[Tensor]:
    value = node.attribute("value")
    array = np.zeros((), np.float32) if value is None else np.reshape(value, ())
    sizes = node.sizes(0)
    whole = math.prod(size for size in sizes if not isinstance(size, Size))
    if whole > _MOST_ELEMENTS:
        expected = f"at most {_MOST_ELEMENTS} elements"
        raise OptionError(refusal("ConstantOfShape", "shape", expected, str(whole)))
    return [broadcast(node.graph, node.graph.constant(np.array(array)), sizes)]


def _range(node: Node) -> list[Any]:
    start, limit, step = (np.reshape(node.known(k), ()) for k in range(3))
    count = np.ceil((float(limit) - float(start)) / float(step))
    if not count <= _MOST_ELEMENTS:
        expected = f"at most {_MOST_ELEMENTS} elements"
        raise OptionError(refusal("Range", "limit", expected, str(count)))
    return [start + np.arange(max(0, int(count))).astype(start.dtype) * step]


ROWS: dict[str, Row] = {
    "Abs": _unary("absolute"),
    "Add": _binary("addition"),
    "And": _logical("And"),
    "ArgMax": _arg_maximum(1),
    "ArgMin": _arg_maximum(-1),
    "BatchNormalization": _batch_normalization,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Celu": _activation(
        lambda g, x, a: g.relu(x) + (g.exponent(g.minimum(x, 0.0) * (1 / a)) - 1.0) * a, alpha=1.0
    ),
    "Clip": _clip,
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Conv": _convolution,
    "Div": _division,
    "Dropout": _dropout,
    "Elu": _activation(_elu, alpha=1.0),
    "Equal": _binary("equal"),
    "Exp": _unary("exponent"),
    "Expand": _expand,
    "Flatten": _flatten,
    "GRU": recurrent,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_mean,
    "Greater": _binary("greater_than"),
    "GreaterOrEqual": _binary("greater_than_or_equal_to"),
    "HardSigmoid": _activation(_hard_sigmoid, alpha=0.2, beta=0.5),
    "HardSwish": _activation(lambda g, x: x * _hard_sigmoid(g, x, 1 / 6, 0.5)),
    "Identity": _identity,
    "IsNaN": _is_nan,
    "LSTM": recurrent,
    "LayerNormalization": _layer_normalization,
    "LeakyRelu": _activation(lambda g, x, a: g.relu(x) + g.minimum(x, 0.0) * a, alpha=0.01),
    "Less": _binary("less_than"),
    "LessOrEqual": _binary("less_than_or_equal_to"),
    "Log": _unary("logarithm"),
    "LogSoftmax": _soft_max(True),
    "MatMul": _matmul,
    "Max": _variadic("maximum"),
    "Mean": _mean_of,
    "Min": _variadic("minimum"),
    "Mish": _activation(lambda g, x: x * g.tanh(_softplus(g, x))),
    "Mul": _binary("multiplication"),
    "Neg": _unary("negative"),
    "Not": _not,
    "OneHot": _one_hot,
    "Or": _logical("Or"),
    "PRelu": _prelu,
    "Pad": _pad,
    "Pow": _power,
    "RMSNormalization": _rms_normalization,
    "RNN": recurrent,
    "Range": _range,
    "Reciprocal": _unary("reciprocal"),
    "ReduceL1": _reduction(lambda g, x, axes: g.reduction_sum(g.absolute(x), axes=axes)),
    "ReduceL2": _reduction(
        lambda g, x, axes: g.square_root(g.reduction_sum(g.square(x), axes=axes))
    ),
    "ReduceLogSum": _reduction(lambda g, x, axes: g.logarithm(g.reduction_sum(x, axes=axes))),
    "ReduceLogSumExp": _reduction(_log_sum_exp),
    "ReduceMax": _reduction(lambda g, x, axes: g.reduction_maximum(x, axes=axes)),
    "ReduceMean": _reduction(lambda g, x, axes: g.mean(x, axes=axes)),
    "ReduceMin": _reduction(_minimum),
    "ReduceSum": _reduction(lambda g, x, axes: g.reduction_sum(x, axes=axes)),
    "ReduceSumSquare": _reduction(lambda g, x, axes: g.reduction_sum(g.square(x), axes=axes)),
    "Relu": _unary("relu"),
    "Reshape": _reshape,
    "Selu": _activation(
        lambda g, x, alpha, gamma: _elu(g, x, alpha) * gamma,
        alpha=1.6732632423543772,
        gamma=1.0507009873554805,
    ),
    "Shape": shapes.shape,
    "Sigmoid": _unary("sigmoid"),
    "Sign": _unary("sign"),
    "Size": shapes.size,
    "Slice": _slice,
    "Softmax": _soft_max(False),
    "Softplus": _activation(_softplus),
    "Softsign": _activation(lambda g, x: x / (g.absolute(x) + 1.0)),
    "Split": _split,
    "Sqrt": _unary("square_root"),
    "Squeeze": _squeeze,
    "Sub": _binary("subtraction"),
    "Sum": _variadic("addition"),
    "Swish": _activation(lambda g, x, alpha: x * g.sigmoid(x * alpha), alpha=1.0),
    "Tanh": _unary("tanh"),
    "ThresholdedRelu": _activation(
        lambda g, x, alpha: g.select(g.greater_than(x, alpha), x, 0.0), alpha=1.0
    ),
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": lambda node: [node.graph.select(node.tensor(0), node.tensor(1), node.tensor(2))],
    "Xor": _logical("Xor"),
}
