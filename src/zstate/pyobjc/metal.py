"""Metal's objects: a device that stands for this machine, buffers in its memory, and queues.

Work that is encoded into a command buffer is done by its ``commit``, in the order in which it was
encoded, before ``commit`` returns; what a handler would be told later it is told then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import GraphError, OptionError, ShapeError, refusal
from ..graph.methods.core import whole_number
from ..layout import brackets
from ..types import Array
from .base import NSObject, one_of
from .constants import (
    MPSGraphDeviceTypeMetal,
    MTLCommandBufferStatusCompleted,
    MTLCommandBufferStatusEnqueued,
    MTLCommandBufferStatusError,
    MTLCommandBufferStatusNotEnqueued,
    MTLResourceStorageModeManaged,
    MTLResourceStorageModePrivate,
    MTLResourceStorageModeShared,
)
from .foundation import bytes_of

_STORAGE = (
    MTLResourceStorageModeShared,
    MTLResourceStorageModeManaged,
    MTLResourceStorageModePrivate,
)
_Handler = Callable[..., Any]


class MTLDevice(NSObject):
    """Stands for the machine that runs the graph: there is no Metal device behind it."""

    def name(self) -> str:
        return "zstate"

    def hasUnifiedMemory(self) -> bool:
        return True

    def newCommandQueue(self) -> MTLCommandQueue:
        made: MTLCommandQueue = MTLCommandQueue()._of(self)
        return made

    def newCommandQueueWithMaxCommandBufferCount_(self, count: int) -> MTLCommandQueue:
        return self.newCommandQueue()

    def newBufferWithLength_options_(self, length: int, options: int) -> MTLBuffer:
        count = whole_number("newBuffer", "length", length)
        if count < 1:
            raise ShapeError(refusal("newBuffer", "length", "at least 1", str(count)))
        made = MTLBuffer()
        made._memory = zeros("newBuffer", "length", [count], np.uint8)
        made._options, made._device = _options(options), self
        return made

    def newBufferWithBytes_length_options_(self, data: Any, length: int, options: int) -> MTLBuffer:
        view = bytes_of("newBuffer", "bytes", data)
        made = self.newBufferWithLength_options_(length, options)
        if view.nbytes < made.length():
            expected, got = f"at least {made.length()} bytes", f"{view.nbytes} bytes"
            raise ShapeError(refusal("newBuffer", "bytes", expected, got))
        made._memory[:] = np.frombuffer(view, np.uint8)[: made.length()]
        return made


def zeros(label: str, name: str, shape: Sequence[int], dtype: Any) -> Array:
    """Memory of its own, if there is so much."""
    try:
        return np.zeros(tuple(shape), dtype)
    except (MemoryError, OverflowError, ValueError):  # the last two: beyond what has an address
        raise ShapeError(
            refusal(label, name, "a size that fits in memory", brackets(shape))
        ) from None


_DEVICE = MTLDevice()


def MTLCreateSystemDefaultDevice() -> MTLDevice:
    """The device to pass where Metal requires one."""
    return _DEVICE


def MTLCopyAllDevices() -> list[MTLDevice]:
    """The one device."""
    return [_DEVICE]


class MPSGraphDevice(NSObject):
    """A graph's device: accepted where Apple's interface requires one, and ignored."""

    _metal: MTLDevice

    @classmethod
    def deviceWithMTLDevice_(cls, device: MTLDevice) -> MPSGraphDevice:
        made = cls()
        made._metal = one_of("MPSGraphDevice", "device", MTLDevice, device)
        return made

    def metalDevice(self) -> MTLDevice:
        return self._metal

    def type(self) -> int:
        return MPSGraphDeviceTypeMetal


def _options(options: object) -> int:
    number = whole_number("newBuffer", "options", options)
    # The CPU cache mode, in the lowest bits, has no meaning here.
    if number & ~0xF not in _STORAGE:
        expected = "MTLResourceStorageModeShared, Managed or Private"
        raise OptionError(refusal("newBuffer", "options", expected, str(number)))
    return number


class _Labelled(NSObject):
    """A label, and the device."""

    _label: str | None = None
    _device: MTLDevice = _DEVICE

    def label(self) -> str | None:
        return self._label

    def setLabel_(self, label: str | None) -> None:
        self._label = label

    def device(self) -> MTLDevice:
        return self._device

    def _of(self, device: MTLDevice) -> Any:
        self._device = device
        return self


class MTLResource(_Labelled):
    """What has memory."""

    _options: int = MTLResourceStorageModeShared

    def storageMode(self) -> int:
        return self._options >> 4

    def resourceOptions(self) -> int:
        return self._options


class MTLBuffer(MTLResource):
    """Memory of this machine, zero at first."""

    _memory: Array

    def contents(self) -> VarList:
        """The bytes, in PyObjC's form: ``contents().as_buffer(length)``."""
        if self._options & ~0xF == MTLResourceStorageModePrivate:
            expected = "a buffer that the CPU may read (MTLResourceStorageModeShared)"
            raise OptionError(refusal("contents", "buffer", expected, "a private one"))
        return VarList(self._memory)

    def length(self) -> int:
        return int(self._memory.nbytes)

    def didModifyRange_(self, range: Any) -> None:
        """Nothing to do: there is one memory."""

    def __repr__(self) -> str:
        return f"<MTLBuffer {self._memory.nbytes} bytes>"


class VarList:
    """Memory without a length of its own, as PyObjC's ``objc.varlist`` gives it."""

    __slots__ = ("_memory",)

    def __init__(self, memory: Array) -> None:
        self._memory = memory

    def as_buffer(self, count: int) -> memoryview:
        """The first bytes, to read and to write."""
        if not 0 <= whole_number("as_buffer", "count", count) <= self._memory.nbytes:
            expected = f"at most the {self._memory.nbytes} bytes of the buffer"
            raise ShapeError(refusal("as_buffer", "count", expected, str(count)))
        return memoryview(self._memory)[:count]  # type: ignore[arg-type]


class MTLCommandQueue(_Labelled):
    """Makes command buffers. Where work runs at once, a queue is accepted and ignored."""

    def commandBuffer(self) -> MTLCommandBuffer:
        made: MTLCommandBuffer = MTLCommandBuffer()._of(self._device)
        made._queue = self
        return made


class MTLCommandBuffer(_Labelled):
    """Work to be done by ``commit``."""

    _queue: MTLCommandQueue | None = None

    def __init__(self) -> None:
        self._status = MTLCommandBufferStatusNotEnqueued
        self._work: list[Callable[[], None]] = []
        self._scheduled: list[_Handler] = []
        self._completed: list[_Handler] = []

    def enqueue(self) -> None:
        self._open("enqueue")
        self._status = MTLCommandBufferStatusEnqueued

    def commit(self) -> None:
        self._open("commit")
        for handler in self._scheduled:
            handler(self)
        try:
            for work in self._work:
                work()
        except BaseException:
            self._status = MTLCommandBufferStatusError
            raise
        self._status = MTLCommandBufferStatusCompleted
        for handler in self._completed:
            handler(self)

    def waitUntilScheduled(self) -> None:
        self._committed("waitUntilScheduled")

    def waitUntilCompleted(self) -> None:
        self._committed("waitUntilCompleted")

    def addScheduledHandler_(self, handler: _Handler) -> None:
        self._open("addScheduledHandler")
        self._scheduled.append(handler)

    def addCompletedHandler_(self, handler: _Handler) -> None:
        self._open("addCompletedHandler")
        self._completed.append(handler)

    def status(self) -> int:
        return self._status

    def error(self) -> None:
        """None: what fails raises from ``commit``."""

    def commandQueue(self) -> MTLCommandQueue | None:
        return self._queue

    def _encode(self, label: str, work: Callable[[], None]) -> None:
        self._open(label)
        self._work.append(work)

    def _open(self, label: str) -> None:
        if self._status > MTLCommandBufferStatusEnqueued:
            expected = "one that is not committed yet"
            raise GraphError(refusal(label, "commandBuffer", expected, "a committed one"))

    def _committed(self, label: str) -> None:
        if self._status <= MTLCommandBufferStatusEnqueued:
            expected, got = "one after commit()", "one that would wait for ever"
            raise GraphError(refusal(label, "commandBuffer", expected, got))


class MPSCommandBuffer(MTLCommandBuffer):
    """A command buffer that can commit and go on with a new one."""

    def __init__(self) -> None:
        super().__init__()
        self._root = MTLCommandBuffer()

    @classmethod
    def alloc(cls) -> Any:
        return cls()

    @classmethod
    def commandBufferFromCommandQueue_(cls, commandQueue: MTLCommandQueue) -> MPSCommandBuffer:
        one_of("MPSCommandBuffer", "commandQueue", MTLCommandQueue, commandQueue)
        return cls().initWithCommandBuffer_(commandQueue.commandBuffer())

    @classmethod
    def commandBufferWithCommandBuffer_(cls, commandBuffer: MTLCommandBuffer) -> MPSCommandBuffer:
        return cls().initWithCommandBuffer_(commandBuffer)

    def initWithCommandBuffer_(self, commandBuffer: MTLCommandBuffer) -> MPSCommandBuffer:
        one_of("MPSCommandBuffer", "commandBuffer", MTLCommandBuffer, commandBuffer)
        self._root, self._queue = commandBuffer, commandBuffer._queue
        self._device = commandBuffer._device
        # One state for both: what either is told, both know.
        self._work, self._scheduled = commandBuffer._work, commandBuffer._scheduled
        self._completed = commandBuffer._completed
        return self

    def commitAndContinue(self) -> None:
        self._root.commit()
        self.initWithCommandBuffer_((self._queue or MTLCommandQueue()).commandBuffer())

    def commandBuffer(self) -> MTLCommandBuffer:
        return self._root

    def rootCommandBuffer(self) -> MTLCommandBuffer:
        return self._root

    def commit(self) -> None:
        self._root.commit()

    def enqueue(self) -> None:
        self._root.enqueue()

    def status(self) -> int:
        return self._root.status()

    def _open(self, label: str) -> None:
        self._root._open(label)

    def _committed(self, label: str) -> None:
        self._root._committed(label)
