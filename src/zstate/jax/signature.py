"""A call on jax arrays without its values: the static parameter of every primitive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax

from ..descriptors import AnyDescriptor
from ..layout import Layout, TensorInfo, check
from ..operations import Operation
from ..types import Shape
from .versions import split_axes

Value = Any  # a jax array or a tracer


@dataclass(frozen=True)
class Signature:
    """A call without its values: equal signatures share their compiled programs."""

    operation: Operation
    descriptor: AnyDescriptor
    inputs: tuple[str, ...]  # those passed, in the operation's order
    backend: str | None = None  # that must serve it; "reference": of plain JAX operations
    no_dx: bool = False  # no one reads the source's gradient, so it may be anything

    def layout(self, values: Sequence[Value]) -> Layout:
        """What the values' shapes and types say; they are checked once, however often it is asked
        while a program is traced, differentiated and lowered."""
        kinds = tuple([(tuple(value.shape), value.dtype) for value in values])
        return _checked(self.operation, self.descriptor, self.inputs, kinds)

    def trained(self) -> Signature:
        """The same forward operation with all its results."""
        return replace(self, descriptor=replace(self.descriptor, training=True))


@lru_cache(maxsize=4096)
def _checked(
    operation: Operation,
    descriptor: AnyDescriptor,
    inputs: tuple[str, ...],
    kinds: tuple[tuple[Shape, Any], ...],
) -> Layout:
    infos = [TensorInfo(shape, dtype.name) for shape, dtype in kinds]
    return check(operation, dict(zip(inputs, infos, strict=True)), descriptor)


def result_types(signature: Signature, values: Sequence[Value]) -> list[jax.ShapeDtypeStruct]:
    """The shapes and types of a call's results; a gradient is like its input."""
    layout = signature.layout(values)
    given = dict(zip(signature.inputs, values, strict=True))
    gradient = layout.operation.is_gradient
    return [
        jax.ShapeDtypeStruct(given[name].shape if gradient else layout.shape(name), values[0].dtype)
        for name in layout.result_names()
    ]


def result_splits(signature: Signature, values: Sequence[Value]) -> list[tuple[Any, ...]]:
    """How an explicit mesh splits each result: as the source's batch; a gradient as its input."""
    names = signature.layout(values).result_names()
    if not signature.operation.is_gradient:
        return [(None, split_axes(values[0])[1], None)] * len(names)
    given = dict(zip(signature.inputs, values, strict=True))
    return [split_axes(given[name]) for name in names]
