"""Foundation's values that scripts name: bytes, paths of files, a pool.

Numbers, lists and dictionaries are Python's own, which PyObjC accepts as Foundation's.
"""

from __future__ import annotations

import os
from typing import Any

from ..errors import DTypeError, ShapeError, refusal
from ..graph.methods.core import whole_number
from ..layout import describe
from .base import NSObject


def bytes_of(label: str, name: str, buffer: Any) -> memoryview:
    """The bytes of a contiguous buffer, writable if the buffer is."""
    if isinstance(buffer, NSData):
        return buffer.bytes()
    dtype = getattr(buffer, "dtype", None)
    if dtype is not None and getattr(buffer, "flags", None) is not None:
        if not buffer.flags.c_contiguous:
            raise ShapeError(refusal(label, name, "a contiguous buffer", "a strided array"))
        if dtype.hasobject:
            raise DTypeError(refusal(label, name, "contiguous bytes", "an array of objects"))
        # As bytes, since not every element type has a buffer format.
        buffer = buffer.reshape(-1).view("u1")
    try:
        view = memoryview(buffer)
        # An empty view with a zero in its shape cannot be cast.
        return view.cast("B") if view.nbytes else memoryview(bytearray())
    except TypeError:
        raise DTypeError(refusal(label, name, "contiguous bytes", describe(buffer))) from None


class NSData(NSObject):
    """Bytes."""

    _view = memoryview(b"")

    @classmethod
    def dataWithBytes_length_(cls, data: Any, length: int) -> Any:
        view = bytes_of("NSData", "bytes", data)
        if not 0 <= (count := whole_number("NSData", "length", length)) <= view.nbytes:
            raise ShapeError(refusal("NSData", "length", f"0 to {view.nbytes}", str(length)))
        made = cls()
        made._view = memoryview(view[:count].tobytes())
        return made

    def bytes(self) -> memoryview:
        return self._view

    def length(self) -> int:
        return len(self._view)

    def __len__(self) -> int:
        return len(self._view)

    def __bytes__(self) -> bytes:  # type: ignore[valid-type]
        return self._view.tobytes()

    def __repr__(self) -> str:
        return f"<NSData {len(self._view)} bytes>"


class NSURL(NSObject):
    """The path of a file."""

    _path: str

    @classmethod
    def fileURLWithPath_(cls, path: str) -> NSURL:
        if not isinstance(path, str) or not path:
            raise DTypeError(refusal("NSURL", "path", "the path of a file", describe(path)))
        made = cls()
        made._path = os.path.abspath(path)
        return made

    def path(self) -> str:
        return self._path

    def __repr__(self) -> str:
        return f"<NSURL {self._path}>"


class NSAutoreleasePool(NSObject):
    """A pool: Python frees what nobody holds, so there is nothing to do."""

    def drain(self) -> None:
        pass
