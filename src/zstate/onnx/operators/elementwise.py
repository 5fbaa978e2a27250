"""Operators that work element by element: arithmetic, comparisons, activations, casts."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from ...errors import OptionError, refusal
from ...graph import Graph, Tensor
from ...graph.ops import OPS
from ...graph.ops.like import broadcast_like
from ...types import FLOAT_NAMES
from ..node import Node, Row
from ..reading import type_name

# One op of the graph by another name: a row to read by, and to save.
PLAIN = {
    "Abs": "absolute",
    "Add": "addition",
    "And": "logical_and",
    "Ceil": "ceil",
    "Equal": "equal",
    "Exp": "exponent",
    "Floor": "floor",
    "Greater": "greater_than",
    "GreaterOrEqual": "greater_than_or_equal_to",
    "IsInf": "is_infinite",
    "IsNaN": "is_nan",
    "Less": "less_than",
    "LessOrEqual": "less_than_or_equal_to",
    "Log": "logarithm",
    "Mul": "multiplication",
    "Neg": "negative",
    "Not": "logical_not",
    "Or": "logical_or",
    "Reciprocal": "reciprocal",
    "Round": "rint",
    "Sigmoid": "sigmoid",
    "Sign": "sign",
    "Sqrt": "square_root",
    "Sub": "subtraction",
    "Tanh": "tanh",
    "Where": "select",
    "Xor": "logical_xor",
    **{name.capitalize(): name for name in ("sin", "cos", "tan", "sinh", "cosh")},
    **{f"A{name}": f"a{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
}

_LARGEST = {
    "bfloat16": float.fromhex("0x1.fep127"),
    **{name: float(np.finfo(name).max) for name in ("float16", "float32", "float64")},
}


def _float32(number: float) -> float:
    return float(np.float32(number))


def in_float32(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of the graph and tensors that rounds 16-bit floats once, at its end."""

    def computed(g: Graph, x: Tensor, *others: Any) -> Tensor:
        dtype = x.dtype
        if dtype not in ("float16", "bfloat16"):
            return function(g, x, *others)
        wide = [g.cast(t, "float32") if isinstance(t, Tensor) else t for t in (x, *others)]
        return g.cast(function(g, *wide), dtype)

    return computed


def cast_to(tensor: Tensor, dtype: str) -> Tensor:
    """The tensor in a type, which it may have already."""
    return tensor if tensor.dtype == dtype else tensor.graph.cast(tensor, dtype)


def fitted(small: Tensor, large: Tensor) -> Tensor:
    """The one tensor, which must broadcast to the other's shape: now, or when that is known."""
    sizes = zip(reversed(small.shape), reversed(large.shape), strict=False)
    if len(small.shape) <= len(large.shape) and all(
        a == 1 or (a is not None and a == b) for a, b in sizes
    ):
        return small
    return broadcast_like(small.graph, small, large)


def _plain(op: str) -> Row:
    places = range(len(OPS[op].operands))
    return lambda node: [getattr(node.graph, op)(*map(node.tensor, places))]


def _variadic(function: Callable[..., Tensor]) -> Row:
    """A function of the graph and any number of tensors."""
    return lambda node: [function(node.graph, *node.tensors())]


def _sum(g: Graph, *tensors: Tensor) -> Tensor:
    return reduce(g.addition, tensors)


def _division(node: Node) -> list[Tensor]:
    g, a, b = node.graph, node.tensor(0), node.tensor(1)
    return [g.division(a, b) if a.dtype in FLOAT_NAMES else g.apply("integer_division", (a, b))]


def _relu(node: Node) -> list[Tensor]:
    g, x = node.graph, node.tensor(0)
    return [g.relu(x) if x.dtype in FLOAT_NAMES else g.maximum(x, 0)]


def _modulo(node: Node) -> list[Tensor]:
    """The remainder with the divisor's sign; with fmod = 1 the dividend's."""
    g, a, b = node.graph, node.tensor(0), node.tensor(1)
    is_float = a.dtype in FLOAT_NAMES
    rest = g.modulo(a, b) if is_float else a - g.apply("integer_division", (a, b)) * b
    if node.attribute("fmod", 0):
        return [rest]
    differs = g.not_equal(g.less_than(rest, 0), g.less_than(b, 0))
    return [g.select(g.logical_and(differs, g.not_equal(rest, 0)), rest + b, rest)]


def _is_infinite(node: Node) -> list[Tensor]:
    g, x = node.graph, node.tensor(0)
    found = g.is_infinite(x)
    for name, other in (("detect_positive", g.less_than), ("detect_negative", g.greater_than)):
        if not node.attribute(name, 1):
            found = g.logical_and(found, other(x, 0.0))
    return [found]


def _power(node: Node) -> list[Tensor]:
    g, a, b = node.graph, node.tensor(0), node.tensor(1)
    if a.dtype == b.dtype:
        return [g.power(a, b)]
    # In float64, because float32 cannot even hold whether a large exponent is odd.
    return [g.cast(g.power(g.cast(a, "float64"), g.cast(b, "float64")), a.dtype)]


def _clip(node: Node) -> list[Tensor]:
    """A bound that is not given is the end of the type: infinity becomes the largest number."""
    g, x = node.graph, node.tensor(0)
    # Before opset 11 bounds are attributes, which default to the end of float32 in every type:
    # float64 has it too, and to 16 bits it is infinite.
    ends = _LARGEST
    if 6 <= node.opset < 11:
        ends = dict.fromkeys(("float32", "float64"), _LARGEST["float32"])
    # x is the first operand, so where it equals a bound it passes the gradient on, as inside.
    for k, (name, limited) in enumerate((("min", g.maximum), ("max", g.minimum))):
        bound = node.attribute(name) if node.opset < 11 else node.optional(k + 1)
        if isinstance(bound, Tensor) and bound.shape:
            bound = g.reshape(bound, ())
        if bound is None and x.dtype in ends:
            bound = ends[x.dtype] * (1 if k else -1)
        x = x if bound is None else limited(x, bound)
    return [x]


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
        return [in_float32(function)(node.graph, node.tensor(0), *numbers)]

    return row


def _prelu(node: Node) -> list[Tensor]:
    g, x, slope = node.graph, node.tensor(0), node.tensor(1)
    return [g.select(g.less_than(x, 0.0), x * fitted(slope, x), x)]


def _gelu(node: Node) -> list[Tensor]:
    if (how := node.attribute("approximate", "none")) != "tanh":
        raise OptionError(
            refusal("Gelu", "approximate", "'tanh', as the graph has no erf", repr(how))
        )
    return [in_float32(_tanh_gelu)(node.graph, node.tensor(0))]


def _tanh_gelu(g: Graph, x: Tensor) -> Tensor:
    # ONNX writes both numbers as float32.
    inner = (x + x * x * x * _float32(0.044715)) * math.sqrt(_float32(2 / math.pi))
    return x * 0.5 * (g.tanh(inner) + 1.0)


def _cast(node: Node) -> list[Tensor]:
    node.attribute("saturate")  # both are about types of eight bits or less, which are refused
    node.attribute("round_mode")
    return [cast_to(node.tensor(0), type_name(node.attribute("to", 0), "to"))]


def _cast_like(node: Node) -> list[Tensor]:
    node.attribute("saturate")
    node.attribute("round_mode")
    return [cast_to(node.tensor(0), node.tensor(1).dtype)]


def _dropout(node: Node) -> list[Tensor]:
    node.attribute("seed")
    node.attribute("ratio")
    if node.has(2) and bool(node.known(2)):
        raise OptionError(refusal("Dropout", "training_mode", "False: inference", "True"))
    g, x = node.graph, node.tensor(0)
    if not node.wants(1):
        return [x]
    kept = g.constant(np.array(True)) if node.opset >= 10 else g.constant(1.0, dtype=x.dtype)
    return [x, broadcast_like(g, kept, x)]


ROWS: dict[str, Row] = {
    **{kind: _plain(op) for kind, op in PLAIN.items()},
    "Cast": _cast,
    "CastLike": _cast_like,
    "Celu": _activation(
        lambda g, x, a: g.relu(x) + (g.exponent(g.minimum(x, 0.0) * (1 / a)) - 1.0) * a, alpha=1.0
    ),
    "Clip": _clip,
    "Div": _division,
    "Dropout": _dropout,
    "Elu": _activation(_elu, alpha=1.0),
    "Gelu": _gelu,
    "HardSigmoid": _activation(_hard_sigmoid, alpha=0.2, beta=0.5),
    "HardSwish": _activation(lambda g, x: x * _hard_sigmoid(g, x, _float32(1 / 6), 0.5)),
    "Identity": lambda node: [node.tensor(0)],
    "IsInf": _is_infinite,
    "LeakyRelu": _activation(lambda g, x, a: g.leaky_relu(x, a), alpha=0.01),
    "Max": _variadic(lambda g, *tensors: reduce(g.maximum, tensors)),
    "Mean": _variadic(in_float32(lambda g, *tensors: _sum(g, *tensors) / float(len(tensors)))),
    "Min": _variadic(lambda g, *tensors: reduce(g.minimum, tensors)),
    "Mish": _activation(lambda g, x: x * g.tanh(_softplus(g, x))),
    "Mod": _modulo,
    "PRelu": _prelu,
    "Pow": _power,
    "Relu": _relu,
    "Selu": _activation(
        lambda g, x, alpha, gamma: _elu(g, x, alpha) * gamma,
        alpha=1.6732632423543772,
        gamma=1.0507009873554805,
    ),
    "Softplus": _activation(_softplus),
    "Softsign": _activation(lambda g, x: x / (g.absolute(x) + 1.0)),
    "Sum": _variadic(in_float32(_sum)),
    "Swish": _activation(lambda g, x, alpha: x * g.sigmoid(x * alpha), alpha=1.0),
    "ThresholdedRelu": _activation(
        lambda g, x, alpha: g.select(g.greater_than(x, alpha), x, 0.0), alpha=1.0
    ),
}
