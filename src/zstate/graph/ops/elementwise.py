"""Rows that work element by element: arithmetic, comparison, select, functions, cast."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import DTypeError, OptionError, refusal
from ...layout import TensorInfo
from .base import (
    Attributes,
    Derivative,
    Gradients,
    Infos,
    Op,
    broadcast_shapes,
    only,
    require_float,
    require_integer,
    require_number,
    require_same_type,
    single,
)
from .like import sum_like

if TYPE_CHECKING:
    from ...arrays import Namespace
    from ..graph import Graph
    from ..tensor import Node, Tensor

# (inputs, result, gradient of the result) -> gradient of one input, before it is summed over the
# axes along which that input was broadcast. None: the input has no derivative.
Part = Callable[["tuple[Tensor, ...]", "Tensor", "Tensor"], "Tensor"]


def _derivative(parts: tuple[Part | None, ...]) -> Derivative:
    def derivative(g: Graph, node: Node, gradients: Gradients, needs: list[bool]) -> Gradients:
        (result,), gradient = node.results, single(gradients)
        found: list[Tensor | None] = []
        for tensor, part, needed in zip(node.inputs, parts, needs, strict=True):
            if part is None or not needed:
                found.append(None)
            else:
                found.append(sum_like(g, part(node.inputs, result, gradient), tensor))
        return found

    return derivative


def _row(
    name: str,
    operands: tuple[str, ...],
    function: str,
    parts: tuple[Part | None, ...] = (),
    *,
    integers: bool = True,
    bools: bool = True,
    result: str | None = None,
) -> Op:
    """A row whose inputs have one type and broadcast; ``function`` is the array API's name."""

    def infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
        require_same_type(label, operands, inputs)
        if not integers:
            require_float(label, operands[0], inputs[0])
        if not bools:
            require_number(label, operands[0], inputs[0])
        shape = broadcast_shapes(label, operands, [info.shape for info in inputs])
        return only(TensorInfo(shape, result or inputs[0].dtype))

    def prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(xp, function)
        return found

    return Op(name, infer, prepare, _derivative(parts) if parts else None, operands=operands)


def _binary(
    name: str,
    function: str,
    first: Part | None = None,
    second: Part | None = None,
    *,
    integers: bool = True,
    bools: bool = True,
    result: str | None = None,
) -> Op:
    parts = () if first is None else (first, second)
    return _row(name, _BINARY, function, parts, integers=integers, bools=bools, result=result)


def _unary(name: str, function: str, part: Part, *, integers: bool = False) -> Op:
    return _row(name, ("tensor",), function, (part,), integers=integers, bools=False)


def _step(name: str, function: str) -> Op:
    """A row that is constant but for its jumps, where its derivative is taken to be 0 as well."""
    return _unary(name, function, lambda i, y, d: d * 0.0)


def _test(name: str, function: str) -> Op:
    """A row that answers a question about every float."""
    return _row(name, ("tensor",), function, integers=False, result="bool")


def _logical(name: str, operands: tuple[str, ...]) -> Op:
    """A row of bools."""

    def infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
        for operand, info in zip(operands, inputs, strict=True):
            if info.dtype != "bool":
                expected = "bool (graph.not_equal(tensor, 0) makes it)"
                raise DTypeError(refusal(label, operand, expected, info.dtype))
        shape = broadcast_shapes(label, operands, [info.shape for info in inputs])
        return only(TensorInfo(shape, "bool"))

    return Op(name, infer, lambda xp, *_: getattr(xp, name), operands=operands)


def _chosen(compare: str, first: bool) -> Part:
    """The gradient of the larger or the smaller of two; of equal ones the first has it all."""

    def part(inputs: tuple[Tensor, ...], result: Tensor, d: Tensor) -> Tensor:
        a, b = inputs
        g = d.graph
        is_first = getattr(g, compare)(a, b)
        return g.select(is_first, d, 0.0) if first else g.select(is_first, 0.0, d)

    return part


_BINARY = ("primary", "secondary")


def check_exponent(label: str, exponent: Any) -> None:
    """Whole numbers have no reciprocals among them."""
    if 0 not in exponent.shape and int(exponent.min()) < 0:
        expected = "exponents of at least 0 for integers (graph.cast converts them to floats)"
        raise OptionError(refusal(label, "secondary", expected, str(int(exponent.min()))))


def _power_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    power: Callable[..., Any] = xp.pow
    if not inputs[0].dtype.startswith("int"):
        return power

    def checked(base: Any, exponent: Any) -> Any:
        check_exponent("power", exponent)
        return power(base, exponent)

    return checked


def _integer_division_infer(
    inputs: Infos, attributes: Attributes, label: str
) -> dict[str, TensorInfo]:
    require_same_type(label, _BINARY, inputs)
    require_integer(label, "primary", inputs[0])
    shape = broadcast_shapes(label, _BINARY, [info.shape for info in inputs])
    return only(TensorInfo(shape, inputs[0].dtype))


def _integer_division_prepare(
    xp: Namespace, inputs: Infos, attributes: Attributes
) -> Callable[..., Any]:
    """Rounded towards 0. The one quotient that does not fit, of the least number and -1, wraps."""
    floor_divide, where = xp.floor_divide, xp.where
    is_signed = inputs[0].dtype.startswith("int")

    def divide(primary: Any, secondary: Any) -> Any:
        if (secondary == 0).any():
            expected = "integers other than 0"
            raise OptionError(refusal("integer_division", "secondary", expected, "0"))
        with np.errstate(over="ignore"):
            found = floor_divide(primary, secondary)
        if not is_signed:
            return found
        is_below = ((primary < 0) != (secondary < 0)) & (found * secondary != primary)
        return where(is_below, found + 1, found)

    return divide


def _floor_modulo_prepare(
    xp: Namespace, inputs: Infos, attributes: Attributes
) -> Callable[..., Any]:
    """0 where the divisor is 0, as MPSGraph documents."""
    remainder, where = xp.remainder, xp.where

    def evaluate(primary: Any, secondary: Any) -> Any:
        is_zero = secondary == 0
        return where(
            is_zero, secondary, remainder(primary, where(is_zero, 1 + secondary, secondary))
        )

    return evaluate


def _power_exponent(inputs: tuple[Tensor, ...], result: Tensor, d: Tensor) -> Tensor:
    base, _ = inputs
    g = d.graph
    positive = g.greater_than(base, 0.0)
    # 0 ** y does not change with y > 0; of a negative base it has no derivative.
    return d * result * g.select(positive, g.logarithm(g.select(positive, base, 1.0)), 0.0)


def _select_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    require_same_type(label, ("true_tensor", "false_tensor"), inputs[1:])
    if inputs[0].dtype != "bool":
        require_same_type(label, ("bool", "predicate"), [TensorInfo((), "bool"), inputs[0]])
    shape = broadcast_shapes(label, _SELECT, [info.shape for info in inputs])
    return only(TensorInfo(shape, inputs[1].dtype))


_SELECT = ("predicate", "true_tensor", "false_tensor")


def _cast_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    return only(TensorInfo(inputs[0].shape, attributes["dtype"]))


def _cast_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    dtype, astype = xp.dtype(attributes["dtype"]), xp.astype
    return lambda array: astype(array, dtype)


def _cast_derivative(g: Graph, node: Node, gradients: Gradients, needs: list[bool]) -> Gradients:
    return [g.cast(single(gradients), node.inputs[0].dtype)]


def _cast_lower(g: Graph, inputs: Any, attributes: Attributes) -> list[Tensor] | None:
    return list(inputs) if inputs[0].dtype == attributes["dtype"] else None


def _root(tensor: Tensor) -> Tensor:
    return tensor.graph.square_root(tensor)


ROWS = (
    _binary("addition", "add", lambda i, y, d: d, lambda i, y, d: d),
    _binary("subtraction", "subtract", lambda i, y, d: d, lambda i, y, d: -d, bools=False),
    _binary("multiplication", "multiply", lambda i, y, d: d * i[1], lambda i, y, d: d * i[0]),
    _binary(
        "division",
        "divide",
        lambda i, y, d: d / i[1],
        lambda i, y, d: -(d * y / i[1]),
        integers=False,
    ),
    Op(
        "integer_division",
        _integer_division_infer,
        _integer_division_prepare,
        operands=_BINARY,
    ),
    replace(
        _binary(
            "power",
            "pow",
            lambda i, y, d: d * i[1] * i[0] ** (i[1] - 1.0),
            _power_exponent,
            bools=False,
        ),
        prepare=_power_prepare,
    ),
    _binary(
        "maximum",
        "maximum",
        _chosen("greater_than_or_equal_to", True),
        _chosen("greater_than_or_equal_to", False),
    ),
    _binary(
        "minimum",
        "minimum",
        _chosen("less_than_or_equal_to", True),
        _chosen("less_than_or_equal_to", False),
    ),
    _binary("equal", "equal", result="bool"),
    _binary("not_equal", "not_equal", result="bool"),
    _binary("less_than", "less", result="bool"),
    _binary("less_than_or_equal_to", "less_equal", result="bool"),
    _binary("greater_than", "greater", result="bool"),
    _binary("greater_than_or_equal_to", "greater_equal", result="bool"),
    Op(
        "select",
        _select_infer,
        lambda xp, inputs, attributes: xp.where,
        _derivative(
            (
                None,
                lambda i, y, d: d.graph.select(i[0], d, 0.0),
                lambda i, y, d: d.graph.select(i[0], 0.0, d),
            )
        ),
        operands=_SELECT,
    ),
    _unary("negative", "negative", lambda i, y, d: -d, integers=True),
    _unary("absolute", "abs", lambda i, y, d: d * d.graph.sign(i[0]), integers=True),
    _unary("sign", "sign", lambda i, y, d: d * 0.0, integers=True),
    _unary("square", "square", lambda i, y, d: d * (i[0] * 2.0), integers=True),
    _unary("exponent", "exp", lambda i, y, d: d * y),
    _unary("logarithm", "log", lambda i, y, d: d / i[0]),
    _unary("square_root", "sqrt", lambda i, y, d: d / (y * 2.0)),
    _unary("reciprocal", "reciprocal", lambda i, y, d: -(d * d.graph.square(y))),
    _unary("tanh", "tanh", lambda i, y, d: d * (1.0 - d.graph.square(y))),
    _unary("sigmoid", "sigmoid", lambda i, y, d: d * (y * (1.0 - y))),
    _unary(
        "relu",
        "relu",
        lambda i, y, d: d.graph.select(d.graph.greater_than(i[0], 0.0), d, 0.0),
    ),
    Op(
        "identity",
        lambda inputs, attributes, label: only(inputs[0]),
        lambda xp, inputs, attributes: lambda array: array,
        lambda g, node, gradients, needs: gradients,
        lambda g, inputs, attributes: list(inputs),
        view=True,
    ),
    _binary(
        "modulo",
        "fmod",
        lambda i, y, d: d,
        lambda i, y, d: -(d * d.graph.truncate(i[0] / i[1])),
        integers=False,
    ),
    replace(
        _binary(
            "floor_modulo",
            "remainder",
            lambda i, y, d: d.graph.select(d.graph.equal(i[1], 0.0), 0.0, d),
            lambda i, y, d: -(d * d.graph.floor(d.graph.division_no_nan(i[0], i[1]))),
            integers=False,
        ),
        prepare=_floor_modulo_prepare,
    ),
    _logical("logical_and", _BINARY),
    _logical("logical_or", _BINARY),
    _logical("logical_xor", _BINARY),
    _logical("logical_not", ("tensor",)),
    _test("is_nan", "isnan"),
    _test("is_finite", "isfinite"),
    _test("is_infinite", "isinf"),
    _step("floor", "floor"),
    _step("ceil", "ceil"),
    _step("truncate", "trunc"),
    _step("rint", "rint"),
    _unary("exponent_base2", "exp2", lambda i, y, d: d * y * math.log(2)),
    _unary("logarithm_base2", "log2", lambda i, y, d: d / (i[0] * math.log(2))),
    _unary("logarithm_base10", "log10", lambda i, y, d: d / (i[0] * math.log(10))),
    _unary("sin", "sin", lambda i, y, d: d * d.graph.cos(i[0])),
    _unary("cos", "cos", lambda i, y, d: -(d * d.graph.sin(i[0]))),
    _unary("tan", "tan", lambda i, y, d: d * (1.0 + d.graph.square(y))),
    _unary("sinh", "sinh", lambda i, y, d: d * d.graph.cosh(i[0])),
    _unary("cosh", "cosh", lambda i, y, d: d * d.graph.sinh(i[0])),
    _unary("asin", "arcsin", lambda i, y, d: d / _root(1.0 - d.graph.square(i[0]))),
    _unary("acos", "arccos", lambda i, y, d: -(d / _root(1.0 - d.graph.square(i[0])))),
    _unary("atan", "arctan", lambda i, y, d: d / (1.0 + d.graph.square(i[0]))),
    _unary("asinh", "arcsinh", lambda i, y, d: d / _root(d.graph.square(i[0]) + 1.0)),
    _unary("acosh", "arccosh", lambda i, y, d: d / _root(d.graph.square(i[0]) - 1.0)),
    _unary("atanh", "arctanh", lambda i, y, d: d / (1.0 - d.graph.square(i[0]))),
    Op(
        "cast",
        _cast_infer,
        _cast_prepare,
        _cast_derivative,
        _cast_lower,
        kinds={"dtype": "dtype"},
    ),
)
