"""A call on jax arrays without its values: the static parameter of every primitive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from ..descriptors import AnyDescriptor
from ..layout import Layout, TensorInfo, check
from ..operations import Operation
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
        """Checks the values' shapes and types."""
        infos = {
            name: TensorInfo(tuple(value.shape), value.dtype.name)
            for name, value in zip(self.inputs, values, strict=True)
        }
        return check(self.operation, infos, self.descriptor)

    def trained(self) -> Signature:
        """The same forward operation with all its results."""
        return replace(self, descriptor=replace(self.descriptor, training=True))


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
