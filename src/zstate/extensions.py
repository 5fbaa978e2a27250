"""What every operation takes beyond MPSGraph's arguments: resets within a sequence, and heads.

Both are resolved when the call is made. From then on, resets are numbers in the source's type, one
per step, row and direction, and heads are an option of the descriptor.
T time, N batch, D directions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from .arrays import namespace_of
from .descriptors import AnyDescriptor
from .errors import DTypeError, OptionError, ShapeError, refusal
from .layout import (
    TensorInfo,
    brackets,
    check_descriptor,
    describe,
    is_jax_array,
    is_plain_array,
    is_torch_tensor,
)
from .operations import Operation
from .types import PartialShape, as_integer


def extended(
    operation: Operation, tensors: tuple[Any, ...], descriptor: AnyDescriptor | None, heads: int
) -> tuple[tuple[Any, ...], AnyDescriptor]:
    """The tensors and the descriptor of a call with resets, its last tensor, or with heads."""
    descriptor = with_heads(operation, descriptor, heads)
    if tensors[-1] is not None:
        tensors = (*tensors[:-1], _by_direction(operation, tensors[-1], tensors[0], descriptor))
    return tensors, descriptor


# The same object each time, so that calls are recognised; torch.compile can look into a table.
_WITH_HEADS: dict[tuple[AnyDescriptor, int], AnyDescriptor] = {}


def with_heads(
    operation: Operation, descriptor: AnyDescriptor | None, heads: object, label: str | None = None
) -> AnyDescriptor:
    """The descriptor with this many heads; 1 keeps its own."""
    found = check_descriptor(operation, descriptor, label)
    heads = checked_heads(label or operation.name, heads)
    if heads == 1:
        return found
    key = (found, heads)
    if key not in _WITH_HEADS:
        if "heads" not in (field.name for field in fields(found)):
            expected = "1: the cell has no heads"
            raise OptionError(refusal(label or operation.name, "heads", expected, str(heads)))
        _WITH_HEADS[key] = replace(found, heads=heads)
    return _WITH_HEADS[key]


def checked_heads(label: str, heads: object) -> int:
    """The number of heads as an int."""
    found = as_integer(heads)
    if found is None or found < 1:
        expected = "a number of heads, at least 1"
        raise OptionError(refusal(label, "heads", expected, describe(heads)))
    return found


def has_head_axis(operation: Operation, weight: Any, descriptor: AnyDescriptor | None) -> bool:
    """Whether a recurrent weight has a head axis although there is one head: [1,G·H,H],
    [2,1,G·H,H].
    """
    if getattr(weight, "is_nested", False):
        return False  # which has no shape, and is refused where tensors are checked
    shape: PartialShape = getattr(weight, "shape", ())
    both = bool(getattr(descriptor, "bidirectional", False))
    if len(shape) != 3 + both or shape[both] != 1 or getattr(descriptor, "heads", 1) != 1:
        return False
    rows, units = shape[-2:]  # of another size, the weight is refused in the shape it came in
    return rows is None or units is None or rows == len(operation.cell.gates) * units


def in_the_table(
    operation: Operation, tensors: tuple[Any, ...], descriptor: AnyDescriptor | None, heads: int
) -> tuple[tuple[Any, ...], AnyDescriptor]:
    """A call's tensors in the table's forms, to be checked, and its descriptor with the heads."""
    place = operation.inputs.index("recurrent_weight")
    weight = tensors[place]
    if heads == 1 and has_head_axis(operation, weight, descriptor):
        flat = weight.reshape((*weight.shape[:-3], *weight.shape[-2:]))
        tensors = (*tensors[:place], flat, *tensors[place + 1 :])
    return extended(operation, tensors, descriptor, heads)


def without_head_axis(
    run: Callable[..., Any],
    operation: Operation,
    tensors: tuple[Any, ...],
    *options: Any,
) -> Any:
    """``run`` on the recurrent weight without the axis of its one head; a gradient has it again."""
    weight = tensors[1]
    flat = weight.reshape((*weight.shape[:-3], *weight.shape[-2:]))
    found = run(operation, (tensors[0], flat, *tensors[2:]), *options)
    if not operation.is_gradient:
        return found
    return found._replace(recurrent_weight=found.recurrent_weight.reshape(weight.shape))


def _by_direction(operation: Operation, resets: Any, source: Any, descriptor: AnyDescriptor) -> Any:
    """Resets [T,N] as numbers [T,N,D].

    In the reverse direction a sequence that begins with step t ends there: the step read next, t-1,
    starts a new one.
    """
    if type(resets) is not type(source):
        _check_kind(operation, resets, source)
    if is_torch_tensor(resets):
        _check_tensor(operation, resets, source)
    if len(getattr(source, "shape", ())) != 3:
        return resets  # the source is refused before it is used
    if resets.shape != source.shape[:2]:
        _check_resets(operation.name, tuple(resets.shape), tuple(source.shape))
    xp = namespace_of(resets if is_jax_array(resets) else source)  # a tracer beside NumPy's arrays
    there = xp.astype(xp.asarray(resets) != 0, source.dtype)[..., None]
    if not (descriptor.reverse or descriptor.bidirectional):
        return there
    turned = xp.concat([there[1:], xp.zeros_like(there[:1])], 0)
    return xp.concat([there, turned], -1) if descriptor.bidirectional else turned


def _check_kind(operation: Operation, resets: Any, source: Any) -> None:
    if not any(is_kind(resets) for is_kind in (is_torch_tensor, is_jax_array, is_plain_array)):
        raise DTypeError(
            refusal(operation.name, "resets", "an array [T,N] of booleans", describe(resets))
        )
    if is_torch_tensor(source) and is_jax_array(resets):
        expected = "a torch tensor like source, or a NumPy array"
        raise DTypeError(refusal(operation.name, "resets", expected, describe(resets)))


def _check_tensor(operation: Operation, resets: Any, source: Any) -> None:
    layout = str(resets.layout).removeprefix("torch.")
    if layout != "strided":
        raise DTypeError(refusal(operation.name, "resets", "a strided tensor", f"a {layout} one"))
    if resets.is_meta and not getattr(source, "is_meta", False):
        expected = "a tensor with values, like source"
        raise DTypeError(refusal(operation.name, "resets", expected, "one on meta"))


def _check_resets(label: str, shape: PartialShape, source: PartialShape) -> None:
    wanted = tuple(source[:2])
    pairs = zip(shape, wanted, strict=False)
    if len(shape) != 2 or any(None not in (a, b) and a != b for a, b in pairs):
        raise ShapeError(refusal(label, "resets", f"[T,N] = {brackets(wanted)}", brackets(shape)))


def resets_info(
    label: str, resets: TensorInfo, source: TensorInfo, descriptor: AnyDescriptor
) -> TensorInfo:
    """The shape and type that a graph's resets get in a call."""
    _check_resets(label, resets.shape, source.shape)
    return TensorInfo((*resets.shape, 2 if descriptor.bidirectional else 1), source.dtype)
