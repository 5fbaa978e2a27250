"""Operators that multiply and add up: matrix products and convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np

from ...errors import OptionError, ShapeError, refusal
from ...graph import Graph, Tensor
from ...graph.ops.base import known
from ...types import FLOAT_NAMES
from ..node import Node, Row
from ..sizes import Size, expect_sizes
from .elementwise import fitted, in_float32

_MOST_PLACES = 2**14
_MANY_PLACES = 64  # of a window: as slices, fewer take no longer
_MOST_INDICES = 2**14  # a file of a few bytes may ask for any number


def _matmul(node: Node) -> list[Tensor]:
    g, a, b = node.graph, node.tensor(0), node.tensor(1)
    left, right = len(a.shape) == 1, len(b.shape) == 1
    a = g.expand_dims(a, axes=[0]) if left else a
    b = g.expand_dims(b, axes=[1]) if right else b
    found = product_of(g, a, b)
    gone = ([-2] if left else []) + ([-1] if right else [])
    return [g.squeeze(found, axes=gone) if gone else found]


def product_of(g: Graph, a: Tensor, b: Tensor) -> Tensor:
    """The matrix product; of integers, which the graph's has not, as a sum of products."""
    if a.dtype in FLOAT_NAMES:
        return g.matrix_multiplication(a, b)
    # The product below would broadcast an inner size of 1, which a matrix product does not.
    inner = a.shape[-1]
    sizes: list[Size | int] = [-1] * len(b.shape)
    sizes[-2] = Size.axis(a, len(a.shape) - 1) if inner is None else inner
    b = expect_sizes(b, sizes, "MatMul B")
    products = g.expand_dims(a, axes=[-1]) * g.expand_dims(b, axes=[-3])  # […,rows,inner,columns]
    return g.squeeze(g.reduction_sum(products, axes=[-2]), axes=[-2])


def _gemm(node: Node) -> list[Tensor]:
    g, a, b = node.graph, node.tensor(0), node.tensor(1)
    for index, tensor in enumerate((a, b)):
        if len(tensor.shape) != 2:
            got = str(len(tensor.shape))
            raise ShapeError(refusal("Gemm", f"input {index}", "2 dimensions", got))
    a = g.transpose(a, [1, 0]) if node.attribute("transA", 0) else a
    b = g.transpose(b, [1, 0]) if node.attribute("transB", 0) else b
    alpha, beta = node.attribute("alpha", 1.0), node.attribute("beta", 1.0)
    if not node.has(2) or beta == 0:  # what beta drops may be no number
        product = in_float32(lambda g, a, b: _scaled(g.matrix_multiplication(a, b), alpha))
        return [product(g, a, b)]
    return [in_float32(_affine)(g, a, b, node.tensor(2), alpha, beta)]


def _affine(g: Graph, a: Tensor, b: Tensor, c: Tensor, alpha: float, beta: float) -> Tensor:
    found = _scaled(g.matrix_multiplication(a, b), alpha)
    return found + _scaled(fitted(c, found), beta)


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


def _windows(
    g: Graph,
    x: Tensor,
    places: list[tuple[int, ...]],
    spans: Sequence[int],
    strides: Sequence[int],
    most_indices: int,
) -> Tensor:
    """x [N,C,L…] to what each window reads at its places, [N,L'…,K·C].

    Slice by slice; or, of many places and known sizes, by one table of indices.
    """
    _, channels, *sizes = x.shape
    found = [
        None if size is None else range(0, size - span, stride)
        for size, span, stride in zip(sizes, spans, strides, strict=True)
    ]
    lengths = [None if each is None else len(each) for each in found]
    axes = range(3, 3 + len(sizes))
    shape, whole = known(tuple(sizes)), known(tuple(lengths))
    has_table = shape is not None and whole is not None and channels
    has_table = has_table and math.prod(shape or ()) < 2**31 and len(places) >= _MANY_PLACES
    if not (has_table and len(places) * math.prod(whole or ()) <= most_indices):
        ends = [[k - span or None for k, span in zip(at, spans, strict=True)] for at in places]
        columns = [
            g.strided_slice(x, [0, 0, *at], [None, None, *end], [1, 1, *strides])
            for at, end in zip(places, ends, strict=True)
        ]
        joined = g.concat_tensors(columns, axis=1) if len(columns) > 1 else columns[0]
        return g.transpose(joined, [0, *range(2, 2 + len(sizes)), 1])
    assert shape is not None and whole is not None and channels is not None
    starts = np.stack(np.meshgrid(*(each for each in found if each), indexing="ij"))  # [D,L'…]
    at = np.reshape(places, (len(places), -1, *[1] * len(sizes)))
    table = np.ravel_multi_index(tuple(np.moveaxis(starts + at, 1, 0)), shape)  # [K,L'…]
    flat = g.reshape(x, (-1, channels, math.prod(shape)))
    taken = g.gather(flat, g.constant(table.astype(np.int32)), axis=2)  # [N,C,K,L'…]
    return g.reshape(g.transpose(taken, [0, *axes, 2, 1]), (-1, *whole, len(places) * channels))


def _convolution(node: Node) -> list[Tensor]:
    """The windows side by side along the channels, and one matrix product."""
    g, x, weight = node.graph, node.tensor(0), node.tensor(1)
    shape = known(weight.shape)
    groups = int(node.attribute("group", 1))
    if shape is None or len(shape) < 3 or 0 in shape[2:] or groups < 1 or shape[0] % groups:
        raise ShapeError(refusal("Conv", "W", "a known shape [M,C/group,K,…]", str(weight)))
    out, inner, *kernel = shape
    count = len(kernel)
    if len(x.shape) != count + 2 or x.shape[1] not in (None, inner * groups):
        expected = f"[N,{inner * groups},…] of {count + 2} dimensions"
        raise ShapeError(refusal("Conv", "X", expected, str(x)))
    if node.attribute("kernel_shape", kernel) != kernel:
        raise ShapeError(refusal("Conv", "kernel_shape", str(kernel), "another"))
    # Each is a slice: no more of them than the file has weights.
    weights = math.prod(shape) if node.inputs[1] in node.owner.arrays else 0
    if (slices := groups * math.prod(kernel)) > max(_MOST_PLACES, weights):
        expected = f"at most {_MOST_PLACES} places times groups, or as many as the file has weights"
        raise OptionError(refusal("Conv", "W", expected, str(slices)))
    steps = node.attribute("dilations", [1] * count)
    strides = node.attribute("strides", [1] * count)
    spans = [(size - 1) * step for size, step in zip(kernel, steps, strict=True)]
    left, right = _padding(node, x.shape[2:], [span + 1 for span in spans], strides)
    if any(left) or any(right):
        x = g.pad_tensor(x, [0, 0, *left], [0, 0, *right])
    least = [0, 0, *(span + 1 for span in spans)]
    sizes: list[int | Size] = [-1, inner * groups, *[-1] * count]
    x = expect_sizes(x, sizes, "Conv X with its padding", least)
    bias = [expect_sizes(node.tensor(2), [out], "Conv B")] if node.has(2) else []

    def convolved(g: Graph, x: Tensor, weight: Tensor, *bias: Tensor) -> Tensor:
        """[N,L…,M]."""
        found = []
        inputs = [x] if groups == 1 else g.split(x, [inner] * groups, axis=1)
        weights = [weight] if groups == 1 else g.split(weight, groups, axis=0)
        last = [0, *range(2, count + 2), 1]  # the channels at the end
        places = [*product(*map(range, [0] * count, [span + 1 for span in spans], steps))]
        most = _MOST_INDICES if groups == 1 else 0
        for part, part_weight in zip(inputs, weights, strict=True):
            rows = _windows(g, part, places, spans, strides, most)  # [N,L…,K·C]
            flat = g.reshape(g.transpose(part_weight, last), (out // groups, len(places) * inner))
            found.append(g.matrix_multiplication(rows, g.transpose(flat, [1, 0])))
        result = g.concat_tensors(found, axis=-1) if groups > 1 else found[0]
        return result + bias[0] if bias else result

    result = in_float32(convolved)(g, x, weight, *bias)
    return [g.transpose(result, [0, count + 1, *range(1, count + 1)])]


ROWS: dict[str, Row] = {
    "Conv": _convolution,
    "Gemm": _gemm,
    "MatMul": _matmul,
}
