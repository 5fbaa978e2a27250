"""The descriptors: mutable, with ``setX_()`` and ``x()`` for every property."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, cast

from ..descriptors import (
    Activation,
    AnyDescriptor,
    Descriptor,
    GRUDescriptor,
    LSTMDescriptor,
    SingleGateRNNDescriptor,
)
from ..errors import DescriptorError
from ..graph.methods.core import real_number
from .constants import DISTRIBUTIONS, chosen, type_name
from .objects import Class, NSObject


class ObjCDescriptor(NSObject):
    """A mutable descriptor with ``setX_()`` and ``x()`` for every field of zstate's own."""

    _kind: type[Descriptor]

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    @classmethod
    def alloc(cls) -> Any:
        return cls()

    @classmethod
    def descriptor(cls) -> Any:
        return cls()

    def _frozen(self) -> AnyDescriptor:
        """zstate's descriptor with the same options."""
        made: AnyDescriptor = self._kind(**self._values)  # type: ignore[assignment]
        return made

    def __repr__(self) -> str:
        options = [f"{_camel(name)}={int(value)}" for name, value in self._values.items()]
        return f"<{' '.join([type(self).__name__, *options])}>"


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _accessors(
    name: str, default: bool | Activation
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def read(self: ObjCDescriptor) -> bool | int:
        value = self._values.get(name, default)
        return int(value) if isinstance(value, Activation) else bool(value)

    def write(self: ObjCDescriptor, value: object) -> None:
        label = f"{type(self).__name__}] {_camel(name)}"
        if isinstance(default, Activation):
            if not isinstance(value, int) or value not in set(Activation):
                raise DescriptorError(
                    f"[{label}: expected an MPSGraphRNNActivation constant, 0 to 4, got {value!r}"
                )
            self._values[name] = Activation(value)
        elif isinstance(value, bool | int) and value in (0, 1):
            self._values[name] = bool(value)
        else:
            raise DescriptorError(f"[{label}: expected True or False, got {value!r}")

    return read, write


def _objc_descriptor(name: str, kind: type[Descriptor]) -> type[ObjCDescriptor]:
    members: dict[str, Any] = {"_kind": kind, "__doc__": f"{kind.__name__}, in PyObjC's spelling."}
    for option in fields(kind):  # type: ignore[arg-type]
        camel = _camel(option.name)
        default: Any = option.default
        read, write = _accessors(option.name, default)
        members[camel] = read
        members[f"set{camel[0].upper()}{camel[1:]}_"] = write
    return cast(type[ObjCDescriptor], Class(name, (ObjCDescriptor,), members))


MPSGraphSingleGateRNNDescriptor: Any = _objc_descriptor(
    "MPSGraphSingleGateRNNDescriptor", SingleGateRNNDescriptor
)
MPSGraphLSTMDescriptor: Any = _objc_descriptor("MPSGraphLSTMDescriptor", LSTMDescriptor)
MPSGraphGRUDescriptor: Any = _objc_descriptor("MPSGraphGRUDescriptor", GRUDescriptor)


class MPSGraphRandomOpDescriptor(NSObject):
    """What to draw: uniform between min and max, or normal with mean and standardDeviation."""

    _kind: str
    _dtype: str
    _values: dict[str, float]

    @classmethod
    def descriptorWithDistribution_dataType_(
        cls, distribution: int, dataType: int
    ) -> MPSGraphRandomOpDescriptor:
        made = cls()
        name = "MPSGraphRandomOpDescriptor"
        made._kind = chosen(name, "distribution", DISTRIBUTIONS, distribution)
        made._dtype = type_name(name, dataType)
        made._values = {"min": 0.0, "max": 1.0, "mean": 0.0, "standardDeviation": 1.0}
        return made

    def __repr__(self) -> str:
        return f"<MPSGraphRandomOpDescriptor {self._kind} {self._dtype} {self._values}>"


def _number(name: str) -> tuple[Callable[..., float], Callable[..., None]]:
    def read(self: MPSGraphRandomOpDescriptor) -> float:
        return self._values[name]

    def write(self: MPSGraphRandomOpDescriptor, value: float) -> None:
        self._values[name] = real_number("MPSGraphRandomOpDescriptor", name, value)

    return read, write


for _name in ("min", "max", "mean", "standardDeviation"):
    _read, _write = _number(_name)
    setattr(MPSGraphRandomOpDescriptor, _name, _read)
    setattr(MPSGraphRandomOpDescriptor, f"set{_name[0].upper()}{_name[1:]}_", _write)
