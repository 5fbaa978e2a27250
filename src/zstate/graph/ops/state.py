"""Rows for what a graph stores and how that changes: placeholder, constant, variable, read, assign,
and the two optimisers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...errors import GraphError, ShapeError, refusal
from ...layout import TensorInfo, brackets
from .base import (
    Attributes,
    Gradients,
    Infos,
    Op,
    agree,
    only,
    require_float,
    require_same_type,
    widened,
)

if TYPE_CHECKING:
    from ...arrays import Namespace
    from ..graph import Graph
    from ..tensor import Node


def _given(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    info: TensorInfo = attributes["info"]
    return only(info)


def _read_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    return only(inputs[0])


def _pass_through(g: Graph, node: Node, gradients: Gradients, needs: list[bool]) -> Gradients:
    return [None, gradients[0]] if len(node.inputs) == 2 else [gradients[0]]


def _assign_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    variable, value = inputs
    require_same_type(label, ("variable", "tensor"), inputs)
    fits = len(variable.shape) == len(value.shape) and all(
        b is None or a == b for a, b in zip(variable.shape, value.shape, strict=True)
    )
    if not fits:
        raise ShapeError(refusal(label, "tensor", brackets(variable.shape), brackets(value.shape)))
    return only(variable)


def _like_values(label: str, names: tuple[str, ...], inputs: Infos, first: int) -> TensorInfo:
    """Scalars before ``first``, then tensors of one shape, all of one float type."""
    require_float(label, names[0], inputs[0])
    require_same_type(label, names, inputs)
    for name, info in zip(names[:first], inputs[:first], strict=True):
        if info.shape not in ((), (1,)):
            raise ShapeError(refusal(label, name, "a scalar", brackets(info.shape)))
    values = inputs[first]
    for name, info in zip(names[first:], inputs[first:], strict=True):
        if not agree(info.shape, values.shape):
            expected = f"{brackets(values.shape)} like values"
            raise ShapeError(refusal(label, name, expected, brackets(info.shape)))
    return values


_SGD = ("learning_rate", "values", "gradient")


def _sgd_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    return only(_like_values(label, _SGD, inputs, 1))


def _sgd_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    return widened(xp, inputs[0].dtype, lambda rate, values, gradient: values - rate * gradient)


def _sgd_derivative(g: Graph, node: Node, gradients: Gradients, needs: list[bool]) -> Gradients:
    (d,), (rate, _, gradient) = gradients, node.inputs
    assert d is not None
    from .like import sum_like

    return [
        sum_like(g, -(d * gradient), rate) if needs[0] else None,
        d,
        -(d * rate) if needs[2] else None,
    ]


_SCALARS = ("learning_rate", "beta1", "beta2", "epsilon", "beta1_power", "beta2_power")
_ADAM = (*_SCALARS, "values", "momentum", "velocity", "gradient", "maximum_velocity")


def _adam_infer(inputs: Infos, attributes: Attributes, label: str) -> dict[str, TensorInfo]:
    if len(inputs) not in (10, 11):
        raise GraphError(refusal(label, "inputs", "10 or 11 tensors", str(len(inputs))))
    values = _like_values(label, _ADAM[: len(inputs)], inputs, 6)
    names = ("values", "momentum", "velocity", "maximum_velocity")
    return dict.fromkeys(names[: len(inputs) - 7], values)


def _adam_prepare(xp: Namespace, inputs: Infos, attributes: Attributes) -> Callable[..., Any]:
    """lr[t] = lr · √(1-β2^t) / (1-β1^t); m = β1·m + (1-β1)·g; v = β2·v + (1-β2)·g²;
    values -= lr[t] · m / (√v + ε), with √v's running maximum if there is one."""
    sqrt, maximum = xp.sqrt, xp.maximum

    def adam(*arrays: Any) -> tuple[Any, ...]:
        rate, beta1, beta2, epsilon, power1, power2, values, m, v, gradient, *largest = arrays
        step = rate * (sqrt(1 - power2) / (1 - power1))
        numbers = (step, beta1, 1 - beta1, beta2, 1 - beta2, epsilon)
        found: tuple[Any, ...] | None = xp.fused(
            "adam", (values, m, v, gradient, *largest), numbers
        )
        if found is not None:
            return found
        # In place, on arrays that were just made: they are as large as the model.
        new_m = gradient * (1 - beta1)
        new_m += m * beta1
        new_v = gradient * gradient
        new_v *= 1 - beta2
        new_v += v * beta2
        kept = [maximum(largest[0], new_v)] if largest else []
        below = sqrt(kept[0] if kept else new_v)
        below += epsilon
        new_values = new_m / below
        new_values *= -step
        new_values += values
        return (new_values, new_m, new_v, *kept)

    return widened(xp, inputs[0].dtype, adam)


PLACEHOLDER = Op("placeholder", _given, operands=())
CONSTANT = Op("constant", _given, operands=())
VARIABLE = Op("variable", _given, operands=())
# Compiling removes a read, and turns an assign into a note of what to store after the run.
READ = Op("read", _read_infer, derivative=_pass_through, operands=("variable",))
ASSIGN = Op(
    "assign", _assign_infer, derivative=_pass_through, operands=("variable", "tensor"), passive=(0,)
)
ROWS = (
    PLACEHOLDER,
    CONSTANT,
    VARIABLE,
    READ,
    ASSIGN,
    Op("stochastic_gradient_descent", _sgd_infer, _sgd_prepare, _sgd_derivative, operands=_SGD),
    Op("adam", _adam_infer, _adam_prepare, operands=_ADAM),
)
