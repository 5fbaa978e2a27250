"""A checked call, for tests that hand one to a backend themselves."""

from __future__ import annotations

from typing import Any, NamedTuple

from zstate.descriptors import AnyDescriptor
from zstate.extensions import extended
from zstate.layout import Layout, bind
from zstate.operations import Operation


class Call(NamedTuple):
    """The layout of a call and its inputs, in the operation's order."""

    layout: Layout
    values: tuple[Any, ...]

    @property
    def tensors(self) -> dict[str, Any]:
        """The inputs by name, None where one was not passed."""
        return dict(zip(self.layout.operation.inputs, self.values, strict=True))

    def required(self, name: str) -> Any:
        """An input that was passed."""
        value = self.tensors[name]
        assert value is not None
        return value


def make_call(operation: Operation, given: dict[str, Any], descriptor: AnyDescriptor) -> Call:
    """A checked call of an operation with these inputs."""
    values = tuple(given.get(name) for name in operation.inputs)
    if values[-1] is not None and values[-1].ndim == 2:  # resets [T,N], as callers have them
        values, descriptor = extended(operation, values, descriptor, 1)
    return Call(bind(operation, values, descriptor), values)


def by_name(call: Call, results: tuple[Any, ...]) -> dict[str, Any]:
    """The results that there are."""
    named = zip(call.layout.operation.result._fields, results, strict=True)
    return {name: value for name, value in named if value is not None}
