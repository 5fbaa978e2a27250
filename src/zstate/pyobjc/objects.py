"""The small objects of Apple's interface: data, devices, tensors and their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import DTypeError, OptionError, ShapeError, refusal
from ..graph import Tensor
from ..layout import describe
from ..types import Array, float_dtype
from .constants import DATA_TYPE_NUMBERS, type_name


class NSObject:
    """``alloc().init()`` and ``new()``, as every Objective-C class has them."""

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
        made._bytes = bytes(memoryview(data).cast("B")[:length])
        return made

    def bytes(self) -> memoryview:
        return memoryview(self._bytes)

    def length(self) -> int:
        return len(self._bytes)


class MTLDevice(NSObject):
    """Stands for the machine that runs the graph: there is no Metal device behind it."""

    def name(self) -> str:
        return "zstate"

    def newCommandQueue(self) -> MTLCommandQueue:
        return MTLCommandQueue()


class MTLCommandQueue(NSObject):
    """A queue: taken where Apple's interface wants it, and not looked at."""


def MTLCreateSystemDefaultDevice() -> MTLDevice:
    """The device to name where Metal wants one."""
    return MTLDevice()


class MPSGraphDevice(NSObject):
    """A graph's device: taken where Apple's interface wants it, and not looked at."""

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


def array_of(label: str, data: Any, shape: Sequence[int], data_type: int) -> Array:
    """Packed bytes as an array of a shape and type, the size checked."""
    dtype = float_dtype(type_name(label, data_type))
    raw = data.bytes() if isinstance(data, NSData) else data
    flat = np.frombuffer(memoryview(raw).cast("B"), np.uint8)
    wanted = int(np.prod([int(size) for size in shape], dtype=np.int64)) * dtype.itemsize
    if flat.size != wanted:
        expected = f"{wanted} bytes for {list(shape)} {dtype.name}"
        raise ShapeError(refusal(label, "data", expected, f"{flat.size} bytes"))
    return flat.copy().view(dtype).reshape(tuple(int(size) for size in shape))


class MPSGraphTensor(NSObject):
    """A tensor of a graph."""

    _tensor: Tensor

    def shape(self) -> list[int]:
        """-1 stands for a dimension that is known at run time."""
        return [-1 if size is None else size for size in self._tensor.shape]

    def dataType(self) -> int:
        return DATA_TYPE_NUMBERS[self._tensor.dtype]

    def __repr__(self) -> str:
        return f"<MPSGraphTensor {self._tensor!r}>"


class MPSGraphOperation(NSObject):
    """An operation that is done for its effect: an assign."""

    _tensor: Tensor

    def __repr__(self) -> str:
        return f"<MPSGraphOperation {self._tensor!r}>"


class MPSGraphShapedType(NSObject):
    """The shape and type of a feed, for compiling."""

    def initWithShape_dataType_(self, shape: Sequence[int], dataType: int) -> MPSGraphShapedType:
        self._shape, self._type = [int(size) for size in shape], dataType
        return self

    def shape(self) -> list[int]:
        return self._shape

    def dataType(self) -> int:
        return self._type


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
