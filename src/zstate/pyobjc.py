"""MPSGraph's recurrent operations under PyObjC's spelling, on any machine.

A PyObjC script that builds a recurrent layer, runs its gradients and reads the results runs with
only its import line changed to ``from zstate.pyobjc import *``. The 20 selectors come from one
table; the descriptors from zstate's own. Everything is computed by :class:`zstate.Graph`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from .descriptors import (
    Activation,
    AnyDescriptor,
    Descriptor,
    GRUDescriptor,
    LSTMDescriptor,
    SingleGateRNNDescriptor,
)
from .errors import DescriptorError, DTypeError, GraphError, OptionError, ShapeError, refusal
from .graph import Graph, Tensor
from .layout import describe
from .operations import OPERATIONS
from .types import Array, float_dtype

# Every published argument list after the source tensor, by operation, in letters.
_ARGUMENT_LISTS: dict[str, tuple[str, ...]] = {
    "single_gate_rnn": ("R W b h0 m", "R W b h0", "R h0"),
    "single_gate_rnn_gradients": (
        "R dY z dS W b h0 m",
        "R dY z W b h0 m",
        "R dY z W b h0",
        "R dY z h0",
    ),
    "lstm": ("R W b h0 c0 m p", "R W b h0 c0", "R h0 c0"),
    "lstm_gradients": (
        "R dY z c dS dC W b h0 c0 m p",
        "R dY z c W b h0 c0 m",
        "R dY z c W b h0 c0",
        "R dY z c",
    ),
    "gru": ("R W b h0 m b2", "R W b h0", "R W b"),
    "gru_gradients": ("R dY z hFwd dS W b h0 m b2", "R dY z hFwd W b h0", "R dY z hFwd W b"),
}

# A letter's Objective-C label and its keyword in zstate.Graph.
_LABELS: dict[str, tuple[str, str]] = {
    "R": ("recurrentWeight", "recurrent_weight"),
    "dY": ("sourceGradient", "source_gradient"),
    "z": ("zState", "z_state"),
    "c": ("cellOutputFwd", "cell_output_fwd"),
    "hFwd": ("outputFwd", "output_fwd"),
    "dS": ("stateGradient", "state_gradient"),
    "dC": ("cellGradient", "cell_gradient"),
    "W": ("inputWeight", "input_weight"),
    "b": ("bias", "bias"),
    "h0": ("initState", "init_state"),
    "c0": ("initCell", "init_cell"),
    "m": ("mask", "mask"),
    "p": ("peephole", "peephole"),
    "b2": ("secondaryBias", "secondary_bias"),
}

_FAMILIES = {
    "single_gate_rnn": "singleGateRNN",
    "single_gate_rnn_gradients": "singleGateRNNGradients",
    "lstm": "LSTM",
    "lstm_gradients": "LSTMGradients",
    "gru": "GRU",
    "gru_gradients": "GRUGradients",
}


def selectors() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(selector in PyObjC's spelling, operation, keywords after source) of all 20 methods."""
    for operation, lists in _ARGUMENT_LISTS.items():
        for letters in lists:
            labels, keywords = zip(*(_LABELS[letter] for letter in letters.split()), strict=True)
            parts = (f"{_FAMILIES[operation]}WithSourceTensor", *labels, "descriptor", "name")
            yield "_".join(parts) + "_", operation, keywords


# --- MPSDataType: bit patterns as Apple's headers publish them ---------------------------------

_FLOAT, _SIGNED, _ALTERNATE = 0x10000000, 0x20000000, 0x80000000
MPSDataTypeInvalid = 0
MPSDataTypeFloat16 = _FLOAT | 16
MPSDataTypeFloat32 = _FLOAT | 32
MPSDataTypeBFloat16 = _ALTERNATE | _FLOAT | 16
MPSDataTypeInt8 = _SIGNED | 8
MPSDataTypeInt16 = _SIGNED | 16
MPSDataTypeInt32 = _SIGNED | 32
MPSDataTypeInt64 = _SIGNED | 64
MPSDataTypeUInt8 = 8
MPSDataTypeUInt16 = 16
MPSDataTypeUInt32 = 32
MPSDataTypeUInt64 = 64
MPSDataTypeBool = _ALTERNATE | 8

_DATA_TYPES: dict[int, str] = {
    MPSDataTypeFloat16: "float16",
    MPSDataTypeFloat32: "float32",
    MPSDataTypeBFloat16: "bfloat16",
    MPSDataTypeInt8: "int8",
    MPSDataTypeInt16: "int16",
    MPSDataTypeInt32: "int32",
    MPSDataTypeInt64: "int64",
    MPSDataTypeUInt8: "uint8",
    MPSDataTypeUInt16: "uint16",
    MPSDataTypeUInt32: "uint32",
    MPSDataTypeUInt64: "uint64",
    MPSDataTypeBool: "bool",
}
_DATA_TYPE_NUMBERS = {name: number for number, name in _DATA_TYPES.items()}

MPSGraphRNNActivationNone = int(Activation.NONE)
MPSGraphRNNActivationRelu = int(Activation.RELU)
MPSGraphRNNActivationTanh = int(Activation.TANH)
MPSGraphRNNActivationSigmoid = int(Activation.SIGMOID)
MPSGraphRNNActivationHardSigmoid = int(Activation.HARD_SIGMOID)


def _type_name(label: str, number: object) -> str:
    if not isinstance(number, int) or number not in _DATA_TYPES:
        raise DTypeError(refusal(label, "dataType", "an MPSDataType constant", repr(number)))
    return _DATA_TYPES[number]


class _NSObject:
    """``alloc().init()`` and ``new()``, as every Objective-C class has them."""

    @classmethod
    def alloc(cls) -> Any:
        return cls.__new__(cls)

    @classmethod
    def new(cls) -> Any:
        return cls.alloc().init()

    def init(self) -> Any:
        return self


class NSData(_NSObject):
    """Bytes."""

    _bytes: bytes

    @classmethod
    def dataWithBytes_length_(cls, data: Any, length: int) -> NSData:
        made = cls()
        made._bytes = bytes(memoryview(data).cast("B")[:length])
        return made

    def bytes(self) -> memoryview:
        return memoryview(self._bytes)

    def length(self) -> int:
        return len(self._bytes)


class MTLDevice(_NSObject):
    """Stands for the machine that runs the graph: there is no Metal device behind it."""

    def name(self) -> str:
        return "zstate"


def MTLCreateSystemDefaultDevice() -> MTLDevice:
    """The device to name where Metal wants one."""
    return MTLDevice()


class MPSGraphDevice(_NSObject):
    """A graph's device: taken where Apple's interface wants it, and not looked at."""

    @classmethod
    def deviceWithMTLDevice_(cls, device: object) -> MPSGraphDevice:
        return cls()


class MPSNDArray(_NSObject):
    """The values behind an MPSGraphTensorData."""

    _array: Array

    def dataType(self) -> int:
        return _DATA_TYPE_NUMBERS[self._array.dtype.name]

    def numberOfDimensions(self) -> int:
        return self._array.ndim

    def lengthOfDimension_(self, index: int) -> int:
        """Apple counts dimensions from the fastest one."""
        return int(self._array.shape[::-1][index])

    def readBytes_strideBytes_(self, buffer: Any, strides: None) -> None:
        """Copy the values, packed in row-major order, into a writable buffer of that size."""
        if strides is not None:
            raise OptionError(refusal("readBytes", "strideBytes", "None", describe(strides)))
        target = _bytes_of(buffer)
        if target.readonly or target.nbytes != self._array.nbytes:
            expected = f"a writable buffer of {self._array.nbytes} bytes"
            kind = "read-only " if target.readonly else ""
            raise ShapeError(
                refusal("readBytes", "buffer", expected, f"a {kind}buffer of {target.nbytes} bytes")
            )
        target[:] = self._array.tobytes()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self._array, dtype=dtype)


def _bytes_of(buffer: Any) -> memoryview:
    if isinstance(buffer, np.ndarray):
        if not buffer.flags.c_contiguous:
            raise ShapeError(
                refusal("readBytes", "buffer", "a contiguous buffer", "a strided array")
            )
        # As bytes, since not every element type has a buffer format.
        buffer = buffer.reshape(-1).view(np.uint8)
    view = memoryview(buffer)
    # An empty view with a zero in its shape cannot be cast.
    return view.cast("B") if view.nbytes else memoryview(bytearray())


class MPSGraphTensorData(_NSObject):
    """Values to feed, or results."""

    _array: Array

    def initWithDevice_data_shape_dataType_(
        self, device: object, data: Any, shape: Sequence[int], dataType: int
    ) -> MPSGraphTensorData:
        self._array = _array_of("MPSGraphTensorData", data, shape, dataType)
        return self

    def mpsndarray(self) -> MPSNDArray:
        found = MPSNDArray()
        found._array = self._array
        return found

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def dataType(self) -> int:
        return self.mpsndarray().dataType()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self._array, dtype=dtype)


def _array_of(label: str, data: Any, shape: Sequence[int], data_type: int) -> Array:
    """Packed bytes as an array of a shape and type, the size checked."""
    dtype = float_dtype(_type_name(label, data_type))
    raw = data.bytes() if isinstance(data, NSData) else data
    flat = np.frombuffer(memoryview(raw).cast("B"), np.uint8)
    wanted = int(np.prod([int(size) for size in shape], dtype=np.int64)) * dtype.itemsize
    if flat.size != wanted:
        expected = f"{wanted} bytes for {list(shape)} {dtype.name}"
        raise ShapeError(refusal(label, "data", expected, f"{flat.size} bytes"))
    return flat.copy().view(dtype).reshape(tuple(int(size) for size in shape))


class MPSGraphTensor(_NSObject):
    """A tensor of a graph."""

    _tensor: Tensor

    def shape(self) -> list[int]:
        """-1 stands for a dimension that is known at run time."""
        return [-1 if size is None else size for size in self._tensor.shape]

    def dataType(self) -> int:
        return _DATA_TYPE_NUMBERS[self._tensor.dtype]

    def __repr__(self) -> str:
        return f"<MPSGraphTensor {self._tensor!r}>"


class _ObjCDescriptor(_NSObject):
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

    def frozen(self) -> AnyDescriptor:
        """zstate's descriptor with the same options."""
        made: AnyDescriptor = self._kind(**self._values)  # type: ignore[assignment]
        return made


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _accessors(
    name: str, default: bool | Activation
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def read(self: _ObjCDescriptor) -> bool | int:
        value = self._values.get(name, default)
        return int(value) if isinstance(value, Activation) else bool(value)

    def write(self: _ObjCDescriptor, value: object) -> None:
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


def _objc_descriptor(name: str, kind: type[Descriptor]) -> type[_ObjCDescriptor]:
    members: dict[str, Any] = {"_kind": kind, "__doc__": f"{kind.__name__}, in PyObjC's spelling."}
    for option in fields(kind):  # type: ignore[arg-type]
        camel = _camel(option.name)
        default: Any = option.default
        read, write = _accessors(option.name, default)
        members[camel] = read
        members[f"set{camel[0].upper()}{camel[1:]}_"] = write
    return type(name, (_ObjCDescriptor,), members)


MPSGraphSingleGateRNNDescriptor: Any = _objc_descriptor(
    "MPSGraphSingleGateRNNDescriptor", SingleGateRNNDescriptor
)
MPSGraphLSTMDescriptor: Any = _objc_descriptor("MPSGraphLSTMDescriptor", LSTMDescriptor)
MPSGraphGRUDescriptor: Any = _objc_descriptor("MPSGraphGRUDescriptor", GRUDescriptor)


class MPSGraph(_NSObject):
    """A graph. Its 20 recurrent methods are made from the table of argument lists."""

    def __init__(self) -> None:
        self._graph = Graph()
        # One wrapper a tensor, so that results can be looked up by the tensor that was given out.
        self._wrappers: dict[Tensor, MPSGraphTensor] = {}

    @classmethod
    def alloc(cls) -> Any:
        return cls()

    def placeholderWithShape_dataType_name_(
        self, shape: Sequence[int], dataType: int, name: str | None
    ) -> MPSGraphTensor:
        if shape is None:
            raise DTypeError(refusal("placeholder", "shape", "a list of sizes", "None"))
        sizes = [None if int(size) == -1 else int(size) for size in shape]
        dtype = _type_name("placeholder", dataType)
        return self._wrap(self._graph.placeholder(shape=sizes, dtype=dtype, name=name))

    def placeholderWithShape_name_(self, shape: Sequence[int], name: str | None) -> MPSGraphTensor:
        return self.placeholderWithShape_dataType_name_(shape, MPSDataTypeFloat32, name)

    def constantWithScalar_dataType_(self, scalar: float, dataType: int) -> MPSGraphTensor:
        return self.constantWithScalar_shape_dataType_(scalar, (), dataType)

    def constantWithScalar_shape_dataType_(
        self, scalar: float, shape: Sequence[int], dataType: int
    ) -> MPSGraphTensor:
        dtype = _type_name("constant", dataType)
        return self._wrap(self._graph.constant(scalar, shape=list(shape), dtype=dtype))

    def constantWithData_shape_dataType_(
        self, data: Any, shape: Sequence[int], dataType: int
    ) -> MPSGraphTensor:
        return self._wrap(self._graph.constant(_array_of("constant", data, shape, dataType)))

    def variableWithData_shape_dataType_name_(
        self, data: Any, shape: Sequence[int], dataType: int, name: str | None
    ) -> MPSGraphTensor:
        value = _array_of("variable", data, shape, dataType)
        return self._wrap(self._graph.variable(value, name=name))

    def runWithFeeds_targetTensors_targetOperations_(
        self,
        feeds: Mapping[MPSGraphTensor, Any],
        targetTensors: Sequence[MPSGraphTensor],
        targetOperations: Sequence[object] | None,
    ) -> dict[MPSGraphTensor, MPSGraphTensorData]:
        """Run; feeds are MPSGraphTensorData, or NumPy arrays for convenience."""
        if targetOperations:
            raise GraphError(refusal("run", "targetOperations", "None", "operations"))
        arrays = {
            self._unwrap("run", "feeds", tensor): (
                value._array if isinstance(value, MPSGraphTensorData) else value
            )
            for tensor, value in feeds.items()
        }
        targets = [self._unwrap("run", "targetTensors", tensor) for tensor in targetTensors]
        found = self._graph.run(arrays, targets)
        return {self._wrap(tensor): _data_of(array) for tensor, array in found.items()}

    def _wrap(self, tensor: Tensor) -> MPSGraphTensor:
        if tensor not in self._wrappers:
            wrapper = MPSGraphTensor()
            wrapper._tensor = tensor
            self._wrappers[tensor] = wrapper
        return self._wrappers[tensor]

    def _unwrap(self, label: str, name: str, tensor: object) -> Tensor:
        if not isinstance(tensor, MPSGraphTensor):
            raise DTypeError(refusal(label, name, "an MPSGraphTensor", describe(tensor)))
        return tensor._tensor


def _data_of(array: Array) -> MPSGraphTensorData:
    made = MPSGraphTensorData()
    made._array = array
    return made


def _method(selector: str, operation: str, keywords: tuple[str, ...]) -> Callable[..., Any]:
    """One of the 20: positional arguments as the selector's labels name them."""
    names = ("source", *keywords, "descriptor", "name")

    def method(self: MPSGraph, *arguments: Any) -> list[MPSGraphTensor]:
        if len(arguments) != len(names):
            raise TypeError(f"{selector} takes {len(names)} arguments, got {len(arguments)}")
        *tensors, descriptor, name = arguments
        passed = {
            keyword: self._unwrap(operation, keyword, tensor)
            for keyword, tensor in zip(names, tensors, strict=False)
            if tensor is not None or keyword in OPERATIONS[operation].required
        }
        if not isinstance(descriptor, _ObjCDescriptor):
            expected = f"an {_FAMILIES[operation]} descriptor"
            raise DTypeError(refusal(operation, "descriptor", expected, describe(descriptor)))
        source = passed.pop("source")
        build = getattr(self._graph, operation)
        found = build(source, **passed, descriptor=descriptor.frozen(), name=name)
        return [self._wrap(tensor) for tensor in found]

    method.__name__ = method.__qualname__ = selector
    method.__doc__ = f"{selector.replace('_', ':')} — zstate.Graph.{operation}({', '.join(names)})."
    return method


for _selector, _operation, _keywords in selectors():
    setattr(MPSGraph, _selector, _method(_selector, _operation, _keywords))

__all__ = [
    "MTLCreateSystemDefaultDevice",
    "NSData",
    "selectors",
    *(name for name in globals() if name.startswith("MPS")),
]
