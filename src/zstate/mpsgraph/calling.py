"""One call of a recurrent operation in PyObjC's spelling, on whichever modules have it.

On a Mac these are PyObjC's own; :mod:`zstate.pyobjc` takes their place elsewhere. Only methods that
PyObjC has are called, with arguments that it accepts. A call is plain data, and so is its outcome,
so that both can travel to a child process and back.
"""

from __future__ import annotations

import importlib
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Literal, Protocol

import numpy as np

from ..layout import DESCRIPTORS
from ..operations import OPERATIONS
from ..pyobjc import selectors
from ..types import Array, float_dtype

# Where PyObjC has the classes, the constants and MTLCreateSystemDefaultDevice.
APPLE = ("MetalPerformanceShadersGraph", "MetalPerformanceShaders", "Metal", "Foundation")

_DATA_TYPES = {
    "float32": "MPSDataTypeFloat32",
    "float16": "MPSDataTypeFloat16",
    "bfloat16": "MPSDataTypeBFloat16",
}
DTYPES = tuple(_DATA_TYPES)

# The selectors of each operation, with the names of their tensors after source.
_OVERLOADS: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
for _selector, _operation, _names in selectors():
    _OVERLOADS.setdefault(_operation, []).append((_selector, _names))

Status = Literal["ran", "refused", "unavailable", "crashed", "timed out"]


@dataclass(frozen=True, eq=False)
class Call:
    """A forward operation and, if ``incoming`` has a source_gradient, its gradient operation.

    Names of tensors and options are those of zstate. An option that is not named keeps the
    framework's default. The shortest method that takes all tensors is called; with ``full`` the
    longest one, with nil for the rest.
    """

    cell: str
    options: Mapping[str, Any]
    tensors: Mapping[str, Array]
    incoming: Mapping[str, Array] = field(default_factory=dict)
    full: bool = False


@dataclass(frozen=True)
class Outcome:
    """The outcome of a call: its results in the order they came, or why there are none."""

    status: Status
    text: str = ""
    forward: tuple[Array, ...] = ()
    gradients: tuple[Array, ...] = ()


class Runner(Protocol):
    """What performs calls: this process, or a child."""

    def run(self, call: Call) -> Outcome: ...


class UnavailableError(Exception):
    """The framework does not have a name."""


class Framework:
    """The modules that are handed in; itself a runner, for modules that end no process."""

    def __init__(self, modules: Sequence[Any]) -> None:
        self._modules = modules
        metal = self.find("MTLCreateSystemDefaultDevice")()
        if metal is None:
            raise UnavailableError("no Metal device")
        self.device_name = str(metal.name())
        self._device = self.find("MPSGraphDevice").deviceWithMTLDevice_(metal)
        self._types = {
            self.find(constant): name
            for name, constant in _DATA_TYPES.items()
            if self._has(constant)
        }

    @classmethod
    def named(cls, names: Sequence[str]) -> Framework:
        """The modules of these names."""
        return cls([importlib.import_module(name) for name in names])

    def find(self, name: str) -> Any:
        for module in self._modules:
            if hasattr(module, name):
                return getattr(module, name)
        raise UnavailableError(f"there is no {name}")

    def _has(self, name: str) -> bool:
        return any(hasattr(module, name) for module in self._modules)

    def facts(self) -> dict[str, str]:
        """What ran: versions and the device's name, as a report states them."""
        return {
            "modules": ", ".join(module.__name__ for module in self._modules),
            "device": self.device_name,
            "macOS": platform.mac_ver()[0] or f"none: {platform.system()} {platform.release()}",
            "machine": platform.machine(),
            "Python": platform.python_version(),
            "PyObjC": _version("pyobjc-core"),
            "NumPy": np.__version__,
        }

    def run(self, call: Call) -> Outcome:
        """Perform a call; whatever is raised becomes its outcome."""
        try:
            return self._perform(call)
        except UnavailableError as error:
            return Outcome("unavailable", str(error))
        except Exception as error:  # whatever a foreign framework raises is a finding
            return Outcome("refused", f"{type(error).__name__}: {error}")

    def _perform(self, call: Call) -> Outcome:
        graph = self.find("MPSGraph").alloc().init()
        descriptor = self._descriptor(call)
        given = {**call.tensors, **call.incoming}
        tensors = {
            name: graph.placeholderWithShape_dataType_name_(
                list(array.shape), self._type_of(array), name
            )
            for name, array in given.items()
        }
        forward = _method(graph, call.cell, call.tensors, call.full)
        results = list(forward(tensors, descriptor))
        gradients = []
        fed_back = _fed_back(call, results)
        if "source_gradient" in call.incoming and fed_back is not None:
            passed = {**tensors, **fed_back}
            backward = _method(graph, f"{call.cell}_gradients", passed, call.full)
            gradients = list(backward(passed, descriptor))
        feeds = {tensors[name]: self._data(array) for name, array in given.items()}
        if fed_back is None:  # without a gradient operation nothing uses these
            feeds = {tensors[name]: feeds[tensors[name]] for name in call.tensors}
        found = graph.runWithFeeds_targetTensors_targetOperations_(
            feeds, [*results, *gradients], None
        )
        arrays = [self._array(found[tensor]) for tensor in (*results, *gradients)]
        return Outcome(
            "ran", forward=tuple(arrays[: len(results)]), gradients=tuple(arrays[len(results) :])
        )

    def _descriptor(self, call: Call) -> Any:
        kind = f"MPSGraph{DESCRIPTORS[call.cell].__name__}"
        made = self.find(kind).descriptor()
        for name, value in call.options.items():
            camel = "".join(part.capitalize() for part in name.split("_"))
            setter = _attribute(made, f"set{camel}_", kind)
            setter(value if isinstance(value, bool) else int(value))
        return made

    def _type_of(self, array: Array) -> int:
        constant: int = self.find(_DATA_TYPES[array.dtype.name])
        return constant

    def _data(self, array: Array) -> Any:
        data = self.find("NSData").dataWithBytes_length_(array.tobytes(), array.nbytes)
        made = self.find("MPSGraphTensorData").alloc()
        return made.initWithDevice_data_shape_dataType_(
            self._device, data, list(array.shape), self._type_of(array)
        )

    def _array(self, data: Any) -> Array:
        shape = [int(size) for size in data.shape()]
        dtype = float_dtype(self._types[data.dataType()])
        buffer = bytearray(math.prod(shape) * dtype.itemsize)
        if buffer:
            data.mpsndarray().readBytes_strideBytes_(buffer, None)
        return np.frombuffer(buffer, np.uint8).view(dtype).reshape(shape)


def _fed_back(call: Call, results: list[Any]) -> dict[str, Any] | None:
    """The gradient operation's inputs among the forward results; None if one is missing."""
    names = result_names(call)
    there = dict(zip(names, results, strict=False))
    wanted = OPERATIONS[call.cell].cell.fed_back
    if not set(wanted.values()) <= set(there):
        return None
    return {name: there[result] for name, result in wanted.items()}


def result_names(call: Call) -> tuple[str, ...]:
    """The forward results in zstate's order: with training all of them."""
    names = OPERATIONS[call.cell].result._fields
    if call.options.get("training"):
        return names
    return names[:2] if call.options.get("produce_cell") else names[:1]


def _method(graph: Any, operation: str, given: Mapping[str, Any], full: bool) -> Any:
    """What calls the chosen overload with tensors by name."""
    rows = _OVERLOADS[operation]
    wanted = (set(given) & set(OPERATIONS[operation].inputs)) - {"source"}
    fitting = [row for row in rows if wanted <= set(row[1])]
    selector, keywords = (max if full else min)(fitting, key=lambda row: len(row[1]))
    method = _attribute(graph, selector, "MPSGraph")

    def call(tensors: Mapping[str, Any], descriptor: Any) -> Any:
        arguments = [tensors.get(name) for name in ("source", *keywords)]
        return method(*arguments, descriptor, None)

    return call


def _attribute(one: Any, name: str, kind: str) -> Any:
    try:
        return getattr(one, name)
    except AttributeError:
        raise UnavailableError(f"{kind} has no {name}") from None


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
