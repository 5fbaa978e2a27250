"""Values: MPSNDArray, MPSGraphTensorData and what describes them.

Both refer to memory and do not copy it: data made from an MTLBuffer or an MPSNDArray see what is
written there until a run reads it, and a run that is given them for its results writes there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import DTypeError, GraphError, OptionError, ShapeError, refusal
from ..graph.methods.core import whole_number
from ..layout import brackets, describe
from ..types import Array, float_dtype
from .base import NSObject, one_of
from .constants import DATA_TYPE_NUMBERS, type_name
from .foundation import bytes_of
from .metal import (
    MPSGraphDevice,
    MTLBuffer,
    MTLCommandBuffer,
    MTLDevice,
    zeros,
)


def sizes_of(label: str, shape: Any, name: str = "shape") -> list[int]:
    """Whole numbers in a list, a tuple or an array; -1 may be among them."""
    is_number = isinstance(shape, np.ndarray) and shape.ndim == 0
    if is_number or not isinstance(shape, list | tuple | range | np.ndarray):
        raise DTypeError(refusal(label, name, "a list of sizes", describe(shape)))
    return [whole_number(label, name, size) for size in shape]


def known_sizes(label: str, shape: Any) -> list[int]:
    sizes = sizes_of(label, shape)
    if any(size < 0 for size in sizes):
        raise ShapeError(refusal(label, "shape", "sizes of at least 0", brackets(sizes)))
    return sizes


def array_of(label: str, data: Any, shape: Sequence[int], data_type: int) -> Array:
    """A copy of packed bytes as an array of a shape and type, the size checked."""
    dtype = float_dtype(type_name(label, data_type))
    view = bytes_of(label, "data", data)
    sizes = known_sizes(label, shape)
    wanted = math.prod(sizes) * dtype.itemsize
    if view.nbytes != wanted:
        expected = f"{wanted} bytes for {dtype.name}{brackets(sizes)}"
        raise ShapeError(refusal(label, "data", expected, f"{view.nbytes} bytes"))
    return np.frombuffer(view, np.uint8).copy().view(dtype).reshape(sizes)


def _strided(
    label: str, name: str, memory: Array, offset: int, array: Array, strides: Sequence[int]
) -> Array:
    """A view of bytes with an array's shape and type, and strides of its own from slowest to
    fastest, if all of it is within the bytes."""
    reach = [(size - 1) * stride for size, stride in zip(array.shape, strides, strict=True)]
    low = offset + sum(step for step in reach if step < 0)
    high = offset + sum(step for step in reach if step > 0) + array.dtype.itemsize
    if array.size and (low < 0 or high > memory.nbytes):
        expected = f"at least {high} bytes for {array.dtype}{brackets(array.shape)}"
        raise ShapeError(refusal(label, name, expected, f"{memory.nbytes} bytes"))
    if not array.size:
        return np.empty_like(array)
    return np.ndarray(array.shape, array.dtype, memory.data, offset, tuple(strides))


def _packed(shape: Sequence[int], row: int, size: int) -> list[int]:
    """The strides of rows of ``row`` bytes, one after the other, from slowest to fastest."""
    strides = [size, row][: len(shape)]
    for length in list(shape[1:-1])[::-1]:
        strides.append(strides[-1] * length)
    return strides[::-1]


class Typed(NSObject):
    """What has a shape, from the slowest dimension to the fastest, and a type."""

    _shape: Sequence[int]
    _type: int

    def dataType(self) -> int:
        return self._type

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"<{kind} {type_name(kind, self._type)}{brackets(self._shape)}>"


class _Dimensions(Typed):
    """Apple counts dimensions from the fastest one."""

    def numberOfDimensions(self) -> int:
        return len(self._shape)

    def lengthOfDimension_(self, index: int) -> int:
        rank = len(self._shape)
        place = whole_number("lengthOfDimension", "index", index)
        if not 0 <= place < rank:
            expected = f"0 to {rank - 1}" if rank else "an array with dimensions"
            raise ShapeError(refusal("lengthOfDimension", "index", expected, str(index)))
        return int(self._shape[rank - 1 - place])


class Values(Typed):
    """Values in memory."""

    _array: Any  # an array, or a property that has one

    @property
    def _shape(self) -> Sequence[int]:  # type: ignore[override]
        shape: Sequence[int] = self._array.shape
        return shape

    @property
    def _type(self) -> int:  # type: ignore[override]
        return DATA_TYPE_NUMBERS[self._array.dtype.name]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self._array, dtype=dtype)


class MPSNDArrayDescriptor(_Dimensions):
    """The shape and the type of an MPSNDArray."""

    @classmethod
    def descriptorWithDataType_shape_(
        cls, dataType: int, shape: Sequence[int]
    ) -> MPSNDArrayDescriptor:
        made = cls()
        made._shape = known_sizes("MPSNDArrayDescriptor", shape)
        type_name("MPSNDArrayDescriptor", dataType)
        made._type = dataType
        return made

    def getShape(self) -> list[int]:
        return list(self._shape)


class MPSNDArray(Values, _Dimensions):
    """An array in memory of its own, zero at first."""

    _array: Array

    def initWithDevice_descriptor_(
        self, device: MTLDevice, descriptor: MPSNDArrayDescriptor
    ) -> MPSNDArray:
        one_of("MPSNDArray", "descriptor", MPSNDArrayDescriptor, descriptor)
        one_of("MPSNDArray", "device", MTLDevice, device)
        dtype = float_dtype(type_name("MPSNDArray", descriptor._type))
        self._array = zeros("MPSNDArray", "descriptor", descriptor._shape, dtype)
        return self

    def descriptor(self) -> MPSNDArrayDescriptor:
        made = MPSNDArrayDescriptor
        return made.descriptorWithDataType_shape_(self._type, list(self._shape))

    def readBytes_strideBytes_(self, buffer: Any, strideBytes: Sequence[int] | None) -> None:
        """Copy the values into a writable buffer: packed in row-major order and of that size, or
        with a distance in bytes for each dimension, from the fastest to the slowest."""
        self._outside("readBytes", buffer, strideBytes, True)[...] = self._array

    def writeBytes_strideBytes_(self, buffer: Any, strideBytes: Sequence[int] | None) -> None:
        """Copy the values of a buffer, packed or with strides, as readBytes does."""
        self._array[...] = self._outside("writeBytes", buffer, strideBytes, False)

    def exportDataWithCommandBuffer_toBuffer_destinationDataType_offset_rowStrides_(
        self,
        commandBuffer: MTLCommandBuffer,
        buffer: MTLBuffer,
        dataType: int,
        offset: int,
        rowStrides: Sequence[int] | None,
    ) -> None:
        """When the command buffer is committed, write into a buffer, packed."""
        label = "exportData"
        if rowStrides is not None:
            raise OptionError(refusal(label, "rowStrides", "None", describe(rowStrides)))
        dtype = float_dtype(type_name(label, dataType))
        target = _in_buffer(label, buffer, offset, self._array.shape, dtype, None)
        one_of(label, "commandBuffer", MTLCommandBuffer, commandBuffer)._encode(
            label, lambda: np.copyto(target, self._array, casting="unsafe")
        )

    def synchronizeOnCommandBuffer_(self, commandBuffer: MTLCommandBuffer) -> None:
        """Nothing to do: there is one memory."""

    def _outside(
        self, label: str, buffer: Any, strides: Sequence[int] | None, writable: bool
    ) -> Array:
        array, view = self._array, bytes_of(label, "buffer", buffer)
        kind = "a writable buffer" if writable else "a buffer"
        if writable and view.readonly:
            got = f"a read-only buffer of {view.nbytes} bytes"
            expected = f"a writable buffer of {array.nbytes} bytes"
            raise ShapeError(refusal(label, "buffer", expected, got))
        memory = np.frombuffer(view, np.uint8)
        if strides is None:
            if view.nbytes != array.nbytes:
                expected = f"{kind} of {array.nbytes} bytes"
                got = f"a buffer of {view.nbytes} bytes"
                raise ShapeError(refusal(label, "buffer", expected, got))
            return memory.view(array.dtype).reshape(array.shape)
        steps = sizes_of(label, strides, "strideBytes")
        if len(steps) != array.ndim:
            expected = f"None, or {array.ndim} strides in bytes"
            raise ShapeError(refusal(label, "strideBytes", expected, brackets(steps)))
        return _strided(label, "buffer", memory, 0, array, steps[::-1])


def _in_buffer(
    label: str, buffer: Any, offset: int, shape: Sequence[int], dtype: Any, row: int | None
) -> Array:
    """A view of a buffer's memory; ``row`` is the bytes from one row to the next."""
    one_of(label, "buffer", MTLBuffer, buffer)
    start = whole_number(label, "offset", offset)
    least = (shape[-1] if len(shape) else 1) * dtype.itemsize
    if row is None:
        row = least
    elif whole_number(label, "rowBytes", row) < least or row % dtype.itemsize:
        expected = f"at least {least} and a multiple of {dtype.itemsize}"
        raise ShapeError(refusal(label, "rowBytes", expected, str(row)))
    least = math.prod(shape) * dtype.itemsize
    if least > buffer.length():
        expected = f"at least {least} bytes for {dtype}{brackets(shape)}"
        raise ShapeError(refusal(label, "buffer", expected, f"{buffer.length()} bytes"))
    like = np.broadcast_to(np.zeros((), dtype), tuple(shape))
    strides = _packed(shape, row, dtype.itemsize)
    return _strided(label, "buffer", buffer._memory, start, like, strides)


class MPSGraphTensorData(Values):
    """Values to feed, or results; an encoded run's results come with the commit."""

    _values: Array | None
    _ndarray: MPSNDArray | None = None

    def initWithDevice_data_shape_dataType_(
        self, device: object, data: Any, shape: Sequence[int], dataType: int
    ) -> MPSGraphTensorData:
        one_of("MPSGraphTensorData", "device", MPSGraphDevice, device, nil=True)
        self._values = array_of("MPSGraphTensorData", data, shape, dataType)
        return self

    def initWithMTLBuffer_shape_dataType_(
        self, buffer: MTLBuffer, shape: Sequence[int], dataType: int
    ) -> MPSGraphTensorData:
        return self._of_buffer(buffer, shape, dataType, None)

    def initWithMTLBuffer_shape_dataType_rowBytes_(
        self, buffer: MTLBuffer, shape: Sequence[int], dataType: int, rowBytes: int
    ) -> MPSGraphTensorData:
        """``rowBytes`` lie between the starts of two rows of the fastest dimension."""
        return self._of_buffer(buffer, shape, dataType, rowBytes)

    def initWithMPSNDArray_(self, ndarray: MPSNDArray) -> MPSGraphTensorData:
        one_of("MPSGraphTensorData", "ndarray", MPSNDArray, ndarray)
        self._values, self._ndarray = ndarray._array, ndarray
        return self

    def mpsndarray(self) -> MPSNDArray:
        if self._ndarray is not None:
            return self._ndarray
        found = MPSNDArray()
        found._array = self._array
        return found

    def shape(self) -> list[int]:
        return list(self._array.shape)

    @property
    def _array(self) -> Array:
        if self._values is None:
            expected, got = "values", "none before the commit of the command buffer"
            raise GraphError(refusal("MPSGraphTensorData", "values", expected, got))
        return self._values

    def _of_buffer(
        self, buffer: MTLBuffer, shape: Sequence[int], dataType: int, row: int | None
    ) -> MPSGraphTensorData:
        label = "MPSGraphTensorData"
        dtype = float_dtype(type_name(label, dataType))
        self._values = _in_buffer(label, buffer, 0, known_sizes(label, shape), dtype, row)
        return self

    def __repr__(self) -> str:
        if self._values is None:
            return "<MPSGraphTensorData before its commit>"
        return super().__repr__()


def data_of(array: Array | None) -> MPSGraphTensorData:
    """Data in its own memory; None if its values come with a commit."""
    made = MPSGraphTensorData()
    made._values = array
    return made


def store(label: str, name: str, data: object, array: Array) -> None:
    """Write a result into the memory that a caller gave for it."""
    target = one_of(label, name, MPSGraphTensorData, data)._array
    if (target.shape, target.dtype) != (array.shape, array.dtype):
        wanted = f"{array.dtype}{brackets(array.shape)}"
        raise ShapeError(refusal(label, name, wanted, f"{target.dtype}{brackets(target.shape)}"))
    target[...] = array


def fed(value: Any) -> Any:
    """The array to feed: that of MPSGraphTensorData, or an array itself, for convenience."""
    return value._array if isinstance(value, MPSGraphTensorData) else value
