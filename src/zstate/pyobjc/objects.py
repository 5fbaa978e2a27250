"""The small objects of Apple's interface: data, devices, tensors and their values."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from ..errors import DTypeError, OptionError, ShapeError, ZStateError, refusal
from ..graph import Tensor
from ..graph.methods.core import whole_number
from ..layout import brackets, describe
from ..mpsgraph.published import published_names
from ..types import Array, float_dtype
from .constants import DATA_TYPE_NUMBERS, type_name

_CONTROL_FLOW = "whose graphs have no blocks: unroll the loop, or select between two values"


class SelectorError(ZStateError, AttributeError):
    """A selector that does not exist, or an assignment where Objective-C has a setter."""


def _unknown(kind: type, name: str) -> SelectorError:
    """The refusal of an unknown selector, with the nearest one that exists."""
    if name.startswith("_"):
        return SelectorError(f"[{kind.__name__}] expected an initialised object, got alloc() alone")
    for base in kind.__mro__:
        row = published_names(base.__name__).get(name)
        if row is not None:
            reason = (
                f"not available in zstate, {_CONTROL_FLOW}"
                if row.kind == "refused"
                else "published by Apple, but not available here"
            )
            return SelectorError(f"[{kind.__name__}] {name}: {reason}")
    known = [other for other in dir(kind) if not other.startswith("_")]
    close = difflib.get_close_matches(name, known, n=1) or [
        other for other in known if other.startswith(name.rstrip("_") + "_")
    ]
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return SelectorError(f"[{kind.__name__}] unknown selector {name!r}{hint}")


class Class(type):
    """The metaclass: mistyped class methods get a suggestion as well."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise _unknown(cls, name)


class NSObject(metaclass=Class):
    """``alloc().init()`` and ``new()``, as every Objective-C class has them.

    Properties change through setters only, as in Objective-C.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _unknown(type(self), name)

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
            return
        kind = type(self)
        first, *rest = name.split("_")
        camel = first + "".join(part[:1].upper() + part[1:] for part in rest)
        setter = f"set{camel[:1].upper()}{camel[1:]}_"
        setters = [other for other in dir(kind) if other.startswith("set")]
        close = difflib.get_close_matches(setter, setters, n=1)
        if setter in setters:
            advice = f"call {setter}({value!r:.40})"
        elif close:
            advice = f"did you mean {close[0]}({value!r:.40})?"
        else:
            advice = "it has no such setter"
        raise SelectorError(f"[{kind.__name__}] {name}: cannot be assigned to; {advice}")

    @classmethod
    def alloc(cls) -> Any:
        return cls.__new__(cls)

    @classmethod
    def new(cls) -> Any:
        return cls.alloc().init()

    def init(self) -> Any:
        return self


class NSData(NSObject):
    """Bytes."""

    _bytes: bytes

    @classmethod
    def dataWithBytes_length_(cls, data: Any, length: int) -> NSData:
        made = cls()
        view = _view("NSData", "bytes", data)
        if not 0 <= whole_number("NSData", "length", length) <= view.nbytes:
            raise ShapeError(refusal("NSData", "length", f"0 to {view.nbytes}", str(length)))
        made._bytes = bytes(view[:length])
        return made

    def bytes(self) -> memoryview:
        return memoryview(self._bytes)

    def length(self) -> int:
        return len(self._bytes)

    def __repr__(self) -> str:
        return f"<NSData {len(self._bytes)} bytes>"


class MTLDevice(NSObject):
    """Stands for the machine that runs the graph: there is no Metal device behind it."""

    def name(self) -> str:
        return "zstate"

    def newCommandQueue(self) -> MTLCommandQueue:
        return MTLCommandQueue()


class MTLCommandQueue(NSObject):
    """A queue: accepted where Apple's interface requires one, and ignored."""


def MTLCreateSystemDefaultDevice() -> MTLDevice:
    """The device to pass where Metal requires one."""
    return MTLDevice()


class MPSGraphDevice(NSObject):
    """A graph's device: accepted where Apple's interface requires one, and ignored."""

    @classmethod
    def deviceWithMTLDevice_(cls, device: object) -> MPSGraphDevice:
        return cls()


class MPSNDArray(NSObject):
    """The values behind an MPSGraphTensorData."""

    _array: Array

    def dataType(self) -> int:
        return DATA_TYPE_NUMBERS[self._array.dtype.name]

    def numberOfDimensions(self) -> int:
        return self._array.ndim

    def lengthOfDimension_(self, index: int) -> int:
        """Apple counts dimensions from the fastest one."""
        rank = self._array.ndim
        if not 0 <= whole_number("lengthOfDimension", "index", index) < rank:
            expected = f"0 to {rank - 1}" if rank else "an array with dimensions"
            raise ShapeError(refusal("lengthOfDimension", "index", expected, str(index)))
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

    def __repr__(self) -> str:
        return f"<MPSNDArray {self._array.dtype}{brackets(self._array.shape)}>"


def _bytes_of(buffer: Any) -> memoryview:
    if isinstance(buffer, np.ndarray):
        if not buffer.flags.c_contiguous:
            raise ShapeError(
                refusal("readBytes", "buffer", "a contiguous buffer", "a strided array")
            )
        # As bytes, since not every element type has a buffer format.
        buffer = buffer.reshape(-1).view(np.uint8)
    return _view("readBytes", "buffer", buffer)


def _view(label: str, name: str, buffer: Any) -> memoryview:
    """The bytes of a buffer."""
    try:
        view = memoryview(buffer)
        # An empty view with a zero in its shape cannot be cast.
        return view.cast("B") if view.nbytes else memoryview(bytearray())
    except TypeError:
        raise DTypeError(refusal(label, name, "contiguous bytes", describe(buffer))) from None


class MPSGraphTensorData(NSObject):
    """Values to feed, or results."""

    _array: Array

    def initWithDevice_data_shape_dataType_(
        self, device: object, data: Any, shape: Sequence[int], dataType: int
    ) -> MPSGraphTensorData:
        self._array = array_of("MPSGraphTensorData", data, shape, dataType)
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

    def __repr__(self) -> str:
        return f"<MPSGraphTensorData {self._array.dtype}{brackets(self._array.shape)}>"


def array_of(label: str, data: Any, shape: Sequence[int], data_type: int) -> Array:
    """Packed bytes as an array of a shape and type, the size checked."""
    dtype = float_dtype(type_name(label, data_type))
    view = _view(label, "data", data.bytes() if isinstance(data, NSData) else data)
    sizes = sizes_of(label, shape)
    if any(size < 0 for size in sizes):
        raise ShapeError(refusal(label, "shape", "sizes of at least 0", brackets(sizes)))
    wanted = math.prod(sizes) * dtype.itemsize
    if view.nbytes != wanted:
        expected = f"{wanted} bytes for {dtype.name}{brackets(sizes)}"
        raise ShapeError(refusal(label, "data", expected, f"{view.nbytes} bytes"))
    return np.frombuffer(view, np.uint8).copy().view(dtype).reshape(sizes)


def sizes_of(label: str, shape: Any, name: str = "shape") -> list[int]:
    """Whole numbers in a list, a tuple or an array; -1 may be among them."""
    if not isinstance(shape, list | tuple | range | np.ndarray):
        raise DTypeError(refusal(label, name, "a list of sizes", describe(shape)))
    return [whole_number(label, name, size) for size in shape]


class MPSGraphTensor(NSObject):
    """A tensor of a graph."""

    _tensor: Tensor

    def shape(self) -> list[int]:
        """-1 stands for a dimension that is known at run time."""
        return [-1 if size is None else size for size in self._tensor.shape]

    def dataType(self) -> int:
        return DATA_TYPE_NUMBERS[self._tensor.dtype]

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        got = f"{self._tensor}, which has no values before a run; use the data that a run returns"
        raise DTypeError(refusal("np.array", "tensor", "values", got))

    def __repr__(self) -> str:
        tensor = self._tensor
        return f"<MPSGraphTensor {tensor.name} {tensor.dtype}{brackets(tensor.shape)}>"


class MPSGraphOperation(NSObject):
    """An operation that is done for its effect: an assign."""

    _tensor: Tensor

    def __repr__(self) -> str:
        return f"<MPSGraphOperation {self._tensor.name}>"


class MPSGraphShapedType(NSObject):
    """The shape and type of a feed, for compiling."""

    def initWithShape_dataType_(self, shape: Sequence[int], dataType: int) -> MPSGraphShapedType:
        self._shape, self._type = sizes_of("MPSGraphShapedType", shape), dataType
        type_name("MPSGraphShapedType", dataType)
        return self

    def shape(self) -> list[int]:
        return self._shape

    def dataType(self) -> int:
        return self._type

    def __repr__(self) -> str:
        dtype = type_name("MPSGraphShapedType", self._type)
        return f"<MPSGraphShapedType {dtype}{brackets(self._shape)}>"


def unwrap(label: str, name: str, tensor: object) -> Tensor:
    """The graph's tensor behind a wrapper."""
    if not isinstance(tensor, MPSGraphTensor):
        raise DTypeError(refusal(label, name, "an MPSGraphTensor", describe(tensor)))
    return tensor._tensor


def data_of(array: Array) -> MPSGraphTensorData:
    made = MPSGraphTensorData()
    made._array = array
    return made


def fed(value: Any) -> Any:
    """The array to feed: that of MPSGraphTensorData, or an array itself, for convenience."""
    return value._array if isinstance(value, MPSGraphTensorData) else value
