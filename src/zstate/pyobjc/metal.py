"""Metal's objects: a device for this machine, buffers in its memory, and queues.

Work that is encoded into a command buffer is done by its ``commit``, in the order in which it was
encoded, before ``commit`` returns. Handlers are called then too.
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
    MTLCommandBufferStatusCompleted,
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


class MTLDevice(NSObject):
    """Stands for the machine that runs the graph: there is no Metal device behind it."""

    def name(self) -> str:
        return "zstate"

    def newCommandQueue(self) -> MTLCommandQueue:
        return MTLCommandQueue()

    def newBufferWithLength_options_(self, length: int, options: int) -> MTLBuffer:
        count = whole_number("newBuffer", "length", length)
        if count < 1:
            raise ShapeError(refusal("newBuffer", "length", "at least 1", str(count)))
        made = MTLBuffer()
        made._memory = zeros("newBuffer", "length", [count], np.uint8)
        made._options = _options(options)
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
    """New memory, zero at first; an error if there is not enough."""
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


def _options(options: object) -> int:
    number = whole_number("newBuffer", "options", options)
    # The CPU cache mode, in the lowest bits, has no meaning here.
    if number & ~0xF not in _STORAGE:
        expected = "MTLResourceStorageModeShared, Managed or Private"
        raise OptionError(refusal("newBuffer", "options", expected, str(number)))
    return number


class MTLResource(NSObject):
    """Anything with memory."""


class MTLBuffer(MTLResource):
    """Memory of this machine, zero at first."""

    _memory: Array
    _options: int

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


class MTLCommandQueue(NSObject):
    """Makes command buffers. Where work runs at once, a queue is accepted and ignored."""

    def commandBuffer(self) -> MTLCommandBuffer:
        return MTLCommandBuffer()


class MTLCommandBuffer(NSObject):
    """Work to be done by ``commit``."""

    def __init__(self) -> None:
        self._status = MTLCommandBufferStatusNotEnqueued
        self._work: list[Callable[[], None]] = []
        self._handlers: list[Callable[..., Any]] = []

    @classmethod
    def alloc(cls) -> Any:
        return cls()

    def commit(self) -> None:
        self._open("commit")
        try:
            for work in self._work:
                work()
        except BaseException:
            self._status = MTLCommandBufferStatusError
            raise
        self._status = MTLCommandBufferStatusCompleted
        for handler in self._handlers:
            handler(self)

    def waitUntilCompleted(self) -> None:
        if self._status == MTLCommandBufferStatusNotEnqueued:
            expected, got = "one after commit()", "one that was never committed"
            raise GraphError(refusal("waitUntilCompleted", "commandBuffer", expected, got))

    def addCompletedHandler_(self, handler: Callable[..., Any]) -> None:
        self._open("addCompletedHandler")
        self._handlers.append(handler)

    def status(self) -> int:
        return self._status

    def error(self) -> None:
        """None: what fails raises from ``commit``."""

    def _encode(self, label: str, work: Callable[[], None]) -> None:
        self._open(label)
        self._work.append(work)

    def _open(self, label: str) -> None:
        if self._status != MTLCommandBufferStatusNotEnqueued:
            expected = "one that is not committed yet"
            raise GraphError(refusal(label, "commandBuffer", expected, "a committed one"))


class MPSCommandBuffer(MTLCommandBuffer):
    """The command buffer that a graph is encoded into."""

    @classmethod
    def commandBufferFromCommandQueue_(cls, commandQueue: MTLCommandQueue) -> MPSCommandBuffer:
        one_of("MPSCommandBuffer", "commandQueue", MTLCommandQueue, commandQueue)
        return cls()
