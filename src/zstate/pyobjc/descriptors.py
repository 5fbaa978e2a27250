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
from ..errors import DescriptorError, refusal
from ..graph.methods.core import real_number
from ..layout import describe
from ..mpsgraph.published import ACTIVATIONS
from .base import Class, NSObject, shown
from .constants import (
    DISTRIBUTIONS,
    MPSGraphDeploymentPlatformMacOS,
    MPSGraphOptimizationLevel1,
    MPSGraphOptimizationProfilePerformance,
    MPSGraphReducedPrecisionFastMathNone,
    chosen,
    type_name,
)


class ObjCDescriptor(NSObject):
    """A mutable descriptor with ``setX_()`` and ``x()`` for every option of MPSGraph."""

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
            if not isinstance(value, int) or value not in set(ACTIVATIONS):
                raise DescriptorError(
                    f"[{label}: expected an MPSGraphRNNActivation constant, 0 to "
                    f"{len(ACTIVATIONS) - 1}, got {shown(value)}"
                )
            self._values[name] = Activation(value)
        elif isinstance(value, bool | int) and value in (0, 1):
            self._values[name] = bool(value)
        else:
            raise DescriptorError(f"[{label}: expected True or False, got {shown(value)}")

    return read, write


def _objc_descriptor(name: str, kind: type[Descriptor]) -> type[ObjCDescriptor]:
    members: dict[str, Any] = {"_kind": kind, "__doc__": f"{kind.__name__}, in PyObjC's spelling."}
    for option in fields(kind):  # type: ignore[arg-type]
        if option.name in kind.extensions:
            continue
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

    _distribution: int
    _type: int
    _values: dict[str, float]

    @classmethod
    def descriptorWithDistribution_dataType_(
        cls, distribution: int, dataType: int
    ) -> MPSGraphRandomOpDescriptor:
        made = cls()
        made.setDistribution_(distribution)
        made.setDataType_(dataType)
        made._values = {"min": 0.0, "max": 1.0, "mean": 0.0, "standardDeviation": 1.0}
        return made

    def distribution(self) -> int:
        return self._distribution

    def setDistribution_(self, distribution: int) -> None:
        chosen("MPSGraphRandomOpDescriptor", "distribution", DISTRIBUTIONS, distribution)
        self._distribution = distribution

    def dataType(self) -> int:
        return self._type

    def setDataType_(self, dataType: int) -> None:
        type_name("MPSGraphRandomOpDescriptor", dataType)
        self._type = dataType

    def __repr__(self) -> str:
        kind, dtype = DISTRIBUTIONS[self._distribution], type_name("", self._type)
        return f"<MPSGraphRandomOpDescriptor {kind} {dtype} {self._values}>"


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


class _Settings(NSObject):
    """Properties that are kept; what follows from them is said where they are read."""

    _defaults: dict[str, Any] = {}  # noqa: RUF012 (mypy: of the class)

    def __init__(self) -> None:
        self._settings = dict(self._defaults)

    @classmethod
    def alloc(cls) -> Any:
        return cls()

    def _handler(self, name: str, *arguments: Any) -> None:
        """Call a handler, if there is one."""
        handler = self._settings[name]
        if handler is not None:
            handler(*arguments)

    def __repr__(self) -> str:
        changed = {k: v for k, v in self._settings.items() if v != self._defaults[k]}
        return f"<{type(self).__name__} {changed}>"


def _setting(name: str, default: object) -> tuple[Callable[..., Any], Callable[..., None]]:
    def read(self: _Settings) -> Any:
        return self._settings[name]

    def write(self: _Settings, value: object) -> None:
        label = type(self).__name__
        if isinstance(default, bool):
            if not isinstance(value, bool | int) or value not in (0, 1):
                raise DescriptorError(refusal(label, name, "True or False", shown(value)))
            value = bool(value)
        elif name.endswith("Handler") and value is not None and not callable(value):
            raise DescriptorError(refusal(label, name, "a function or None", describe(value)))
        self._settings[name] = value

    return read, write


def _settings(kind: str, doc: str, defaults: dict[str, Any], **more: Any) -> Any:
    members: dict[str, Any] = {"_defaults": defaults, "__doc__": doc, **more}
    for name, default in defaults.items():
        members[name], members[f"set{name[0].upper()}{name[1:]}_"] = _setting(name, default)
    return Class(kind, (_Settings,), members)


def _nothing(self: _Settings) -> None:
    """No effect: types are known when nodes are made."""


MPSGraphCompilationDescriptor: Any = _settings(
    "MPSGraphCompilationDescriptor",
    "How to compile. The handler is called; the levels make no difference.",
    {
        "optimizationLevel": MPSGraphOptimizationLevel1,
        "optimizationProfile": MPSGraphOptimizationProfilePerformance,
        "reducedPrecisionFastMath": MPSGraphReducedPrecisionFastMathNone,
        "waitForCompilationCompletion": False,
        "compilationCompletionHandler": None,
        "dispatchQueue": None,
    },
    disableTypeInference=_nothing,
)
_RUN = {"scheduledHandler": None, "completionHandler": None, "waitUntilCompleted": False}
MPSGraphExecutionDescriptor: Any = _settings(
    "MPSGraphExecutionDescriptor",
    "How to run a graph. The handlers get ({tensor: data}, error).",
    {**_RUN, "compilationDescriptor": None},
)
MPSGraphExecutableExecutionDescriptor: Any = _settings(
    "MPSGraphExecutableExecutionDescriptor",
    "How to run an executable. The handlers get ([data], error).",
    dict(_RUN),
)

MPSGraphExecutableSerializationDescriptor: Any = _settings(
    "MPSGraphExecutableSerializationDescriptor",
    "How to write a package. The platform and its version make no difference.",
    {
        "append": False,
        "deploymentPlatform": MPSGraphDeploymentPlatformMacOS,
        "minimumDeploymentTarget": "",
    },
)


def tell(descriptor: Any, results: object) -> None:
    """Call the handlers of a run that is over."""
    if descriptor is not None:
        descriptor._handler("scheduledHandler", results, None)
        descriptor._handler("completionHandler", results, None)
