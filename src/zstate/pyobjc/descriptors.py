"""The descriptors: mutable, with ``setX_()`` and ``x()`` for every property."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeAlias

from ..descriptors import (
    Activation,
    AnyDescriptor,
    GRUDescriptor,
    LSTMDescriptor,
    SingleGateRNNDescriptor,
)
from ..descriptors import Descriptor as OurDescriptor
from ..errors import DescriptorError, refusal
from ..graph.methods.core import real_number
from ..layout import describe
from ..mpsgraph.published import ACTIVATIONS
from .base import Class, NSObject, shown
from .constants import (
    DISTRIBUTIONS,
    MPSDataTypeFloat32,
    MPSGraphDeploymentPlatformMacOS,
    MPSGraphOptimizationLevel1,
    MPSGraphOptimizationProfilePerformance,
    MPSGraphRandomDistributionUniform,
    MPSGraphReducedPrecisionFastMathNone,
    chosen,
    type_name,
)

# The value to keep, for a class, a property and the value that was passed.
Check: TypeAlias = Callable[[str, str, Any], Any]


class Properties(NSObject):
    """An object that keeps its properties; whatever reads them says what they do."""

    _defaults: dict[str, Any] = {}  # noqa: RUF012 (mypy: of the class)

    def __init__(self) -> None:
        self._kept = dict(self._defaults)

    @classmethod
    def alloc(cls) -> Any:
        return cls()

    def _handler(self, name: str, *arguments: Any) -> None:
        """Call a handler, if there is one."""
        handler = self._kept[name]
        if handler is not None:
            handler(*arguments)

    def __repr__(self) -> str:
        changed = [f"{k}={v}" for k, v in self._kept.items() if v != self._defaults[k]]
        return f"<{' '.join([type(self).__name__, *changed])}>"


def _with(kind: str, doc: str, properties: dict[str, tuple[Any, Check]], **members: Any) -> Any:
    """A class with a getter and a setter for each property, which has a default and a check."""
    members["__doc__"] = doc
    members["_defaults"] = {name: default for name, (default, _) in properties.items()}
    for name, (_, check) in properties.items():
        read, write = _accessors(name, check)
        read.__qualname__, write.__qualname__ = name, f"set{name[0].upper()}{name[1:]}_"
        members |= {method.__qualname__: method for method in (read, write)}
    base = members.pop("base", Properties)
    return Class(kind, (base,), members)


def _accessors(name: str, check: Check) -> tuple[Callable[..., Any], Callable[..., None]]:
    def read(self: Properties) -> Any:
        return self._kept[name]

    def write(self: Properties, value: object) -> None:
        self._kept[name] = check(type(self).__name__, name, value)

    return read, write


def _anything(label: str, name: str, value: Any) -> Any:
    return value


def _switch(label: str, name: str, value: Any) -> bool:
    if not isinstance(value, bool | int) or value not in (0, 1):
        raise DescriptorError(refusal(label, name, "True or False", shown(value)))
    return bool(value)


def _activation(label: str, name: str, value: Any) -> int:
    if not isinstance(value, int) or value not in set(ACTIVATIONS):
        expected = f"an MPSGraphRNNActivation constant, 0 to {len(ACTIVATIONS) - 1}"
        raise DescriptorError(refusal(label, name, expected, shown(value)))
    return int(value)


def _handler(label: str, name: str, value: Any) -> Any:
    if value is not None and not callable(value):
        raise DescriptorError(refusal(label, name, "a function or None", describe(value)))
    return value


def _distribution(label: str, name: str, value: Any) -> int:
    chosen(label, name, DISTRIBUTIONS, value)
    return int(value)


def _data_type(label: str, name: str, value: Any) -> int:
    type_name(label, value)
    return int(value)


class ObjCDescriptor(Properties):
    """A descriptor with every option that MPSGraph has."""

    _kind: type[OurDescriptor]

    @classmethod
    def descriptor(cls) -> Any:
        return cls()

    def _frozen(self) -> AnyDescriptor:
        """zstate's descriptor with the same options."""
        made: AnyDescriptor = self._kind(  # type: ignore[assignment]
            **{
                name: type(default)(self._kept[_camel(name)])
                for name, default in _options(self._kind).items()
            }
        )
        return made


def _options(kind: type[OurDescriptor]) -> dict[str, bool | Activation]:
    """The defaults of the options that MPSGraph has."""
    names = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    return {name: getattr(kind, name) for name in names if name not in kind.extensions}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _recurrent(kind: type[OurDescriptor]) -> Any:
    properties: dict[str, tuple[Any, Check]] = {
        _camel(name): (int(default), _activation)
        if isinstance(default, Activation)
        else (default, _switch)
        for name, default in _options(kind).items()
    }
    doc = f"{kind.__name__}, in PyObjC's spelling."
    return _with(f"MPSGraph{kind.__name__}", doc, properties, base=ObjCDescriptor, _kind=kind)


MPSGraphSingleGateRNNDescriptor = _recurrent(SingleGateRNNDescriptor)
MPSGraphLSTMDescriptor = _recurrent(LSTMDescriptor)
MPSGraphGRUDescriptor = _recurrent(GRUDescriptor)


def descriptorWithDistribution_dataType_(cls: Any, distribution: int, dataType: int) -> Any:
    made = cls()
    made.setDistribution_(distribution)
    made.setDataType_(dataType)
    return made


MPSGraphRandomOpDescriptor = _with(
    "MPSGraphRandomOpDescriptor",
    "What to draw: uniform between min and max, or normal with mean and standardDeviation.",
    {
        "distribution": (MPSGraphRandomDistributionUniform, _distribution),
        "dataType": (MPSDataTypeFloat32, _data_type),
        "min": (0.0, real_number),
        "max": (1.0, real_number),
        "mean": (0.0, real_number),
        "standardDeviation": (1.0, real_number),
    },
    descriptorWithDistribution_dataType_=classmethod(descriptorWithDistribution_dataType_),
)


def _nothing(self: Properties) -> None:
    """No effect: types are known when nodes are made."""


MPSGraphCompilationDescriptor = _with(
    "MPSGraphCompilationDescriptor",
    "How to compile. The handler is called; the levels make no difference.",
    {
        "optimizationLevel": (MPSGraphOptimizationLevel1, _anything),
        "optimizationProfile": (MPSGraphOptimizationProfilePerformance, _anything),
        "reducedPrecisionFastMath": (MPSGraphReducedPrecisionFastMathNone, _anything),
        "waitForCompilationCompletion": (False, _switch),
        "compilationCompletionHandler": (None, _handler),
        "dispatchQueue": (None, _anything),
    },
    disableTypeInference=_nothing,
)
_RUN: dict[str, tuple[Any, Check]] = {
    "scheduledHandler": (None, _handler),
    "completionHandler": (None, _handler),
    "waitUntilCompleted": (False, _switch),
}
MPSGraphExecutionDescriptor = _with(
    "MPSGraphExecutionDescriptor",
    "How to run a graph. The handlers get ({tensor: data}, error).",
    {**_RUN, "compilationDescriptor": (None, _anything)},
)
MPSGraphExecutableExecutionDescriptor = _with(
    "MPSGraphExecutableExecutionDescriptor",
    "How to run an executable. The handlers get ([data], error).",
    _RUN,
)
MPSGraphExecutableSerializationDescriptor = _with(
    "MPSGraphExecutableSerializationDescriptor",
    "How to write a package. The platform and its version make no difference.",
    {
        "append": (False, _switch),
        "deploymentPlatform": (MPSGraphDeploymentPlatformMacOS, _anything),
        "minimumDeploymentTarget": ("", _anything),
    },
)


def tell(descriptor: Any, results: object) -> None:
    """Call the handlers of a run that is over."""
    if descriptor is not None:
        descriptor._handler("scheduledHandler", results, None)
        descriptor._handler("completionHandler", results, None)
