"""Foundation's values: bytes, numbers, arrays and dictionaries, with Python's protocols as PyObjC
gives them."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from ..errors import DTypeError, ShapeError, refusal
from ..graph.methods.core import has_members, real_number, truth, whole_number
from ..layout import describe
from .base import NSObject


def bytes_of(label: str, name: str, buffer: Any) -> memoryview:
    """The bytes of a contiguous buffer: writable where it is."""
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


def _within(label: str, view: memoryview, length: object) -> int:
    if not 0 <= (count := whole_number(label, "length", length)) <= view.nbytes:
        raise ShapeError(refusal(label, "length", f"0 to {view.nbytes}", str(length)))
    return count


def equal(label: str, one: Any, other: Any) -> bool:
    """Whether two values are equal: of arrays, all of it."""
    try:
        return _equal(one, other)
    except (RecursionError, ValueError):
        expected = "values that can be compared"
        raise DTypeError(refusal(label, "object", expected, describe(other))) from None


def _equal(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return type(one) is type(other) and bool(np.array_equal(one, other))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    return bool(one == other)


def _members(label: str, name: str, items: Any) -> list[Any]:
    if isinstance(items, str | bytes_type) or not has_members(items):
        raise DTypeError(refusal(label, name, "a sequence", describe(items)))
    return list(items)


def _key(key: Any) -> Any:
    if not isinstance(key, Hashable):
        raise DTypeError(refusal("NSDictionary", "key", "a hashable value", describe(key)))
    return key


class NSData(NSObject):
    """Bytes."""

    _bytes: bytearray

    def __init__(self) -> None:
        self._bytes = bytearray()

    @classmethod
    def alloc(cls) -> Any:
        return cls()

    @classmethod
    def dataWithBytes_length_(cls, data: Any, length: int) -> Any:
        made = cls()
        view = bytes_of("NSData", "bytes", data)
        made._bytes = bytearray(view[: _within("NSData", view, length)])
        return made

    @classmethod
    def dataWithData_(cls, data: Any) -> Any:
        view = bytes_of("NSData", "data", data)
        return cls.dataWithBytes_length_(view, view.nbytes)

    def bytes(self) -> memoryview:
        return memoryview(self._bytes).toreadonly()

    def length(self) -> int:
        return len(self._bytes)

    def getBytes_length_(self, buffer: Any, length: int) -> None:
        """Copy the first bytes into a writable buffer."""
        target = bytes_of("NSData", "buffer", buffer)
        count = _within("NSData", memoryview(self._bytes), length)
        if target.readonly or target.nbytes < count:
            kind = "read-only" if target.readonly else "writable"
            got = f"a {kind} one of {target.nbytes}"
            raise ShapeError(refusal("NSData", "buffer", f"a writable one of {count} bytes", got))
        target[:count] = memoryview(self._bytes)[:count]

    def isEqualToData_(self, other: Any) -> bool:
        return self._bytes == bytes_of("NSData", "other", other)

    def __len__(self) -> int:
        return len(self._bytes)

    def __bytes__(self) -> bytes:  # type: ignore[valid-type]
        return bytes_type(self._bytes)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self._bytes)} bytes>"


bytes_type = bytes  # inside the class the name is a selector's


class NSMutableData(NSData):
    """Bytes that change."""

    @classmethod
    def dataWithLength_(cls, length: int) -> Any:
        made = cls()
        made.setLength_(length)
        return made

    @classmethod
    def dataWithCapacity_(cls, capacity: int) -> Any:
        return cls()

    def mutableBytes(self) -> memoryview:
        return memoryview(self._bytes)

    def setLength_(self, length: int) -> None:
        count = whole_number("NSMutableData", "length", length)
        if count < 0:
            raise ShapeError(refusal("NSMutableData", "length", "at least 0", str(count)))
        try:
            self._bytes = self._bytes[:count] + bytearray(max(0, count - len(self._bytes)))
        except (MemoryError, OverflowError):
            expected, got = "a size that fits in memory", str(count)
            raise ShapeError(refusal("NSMutableData", "length", expected, got)) from None

    def appendData_(self, data: Any) -> None:
        self._bytes = self._bytes + bytes_of("NSMutableData", "data", data)

    def appendBytes_length_(self, data: Any, length: int) -> None:
        view = bytes_of("NSMutableData", "bytes", data)
        self._bytes = self._bytes + view[: _within("NSMutableData", view, length)]


class NSNumber(NSObject):
    """A number. What is made is Python's own number as well, as in PyObjC."""

    def _value(self) -> Any:
        return 0

    def intValue(self) -> int:
        return int(self._value())

    def integerValue(self) -> int:
        return int(self._value())

    def unsignedIntegerValue(self) -> int:
        return int(self._value())

    def longValue(self) -> int:
        return int(self._value())

    def floatValue(self) -> float:
        return float(self._value())

    def doubleValue(self) -> float:
        return float(self._value())

    def boolValue(self) -> bool:
        return bool(self._value())

    @classmethod
    def numberWithInt_(cls, value: int) -> Any:
        return _Whole(whole_number("NSNumber", "value", value))

    @classmethod
    def numberWithInteger_(cls, value: int) -> Any:
        return cls.numberWithInt_(value)

    @classmethod
    def numberWithUnsignedInteger_(cls, value: int) -> Any:
        return cls.numberWithInt_(value)

    @classmethod
    def numberWithLong_(cls, value: int) -> Any:
        return cls.numberWithInt_(value)

    @classmethod
    def numberWithLongLong_(cls, value: int) -> Any:
        return cls.numberWithInt_(value)

    @classmethod
    def numberWithFloat_(cls, value: float) -> Any:
        return _Real(real_number("NSNumber", "value", value))

    @classmethod
    def numberWithDouble_(cls, value: float) -> Any:
        return cls.numberWithFloat_(value)

    @classmethod
    def numberWithBool_(cls, value: bool) -> Any:
        return truth("NSNumber", "value", value)


class _Whole(NSNumber, int):
    def _value(self) -> Any:
        return int.__int__(self)

    def __repr__(self) -> str:
        return int.__repr__(self)


class _Real(NSNumber, float):
    def _value(self) -> Any:
        return float.__float__(self)

    def __repr__(self) -> str:
        return float.__repr__(self)


class NSArray(NSObject):
    """A sequence."""

    def __init__(self) -> None:
        self._items: list[Any] = []

    @classmethod
    def alloc(cls) -> Any:
        return cls()

    @classmethod
    def array(cls) -> Any:
        return cls()

    @classmethod
    def arrayWithArray_(cls, items: Sequence[Any]) -> Any:
        made = cls()
        made._items = _members("NSArray", "array", items)
        return made

    @classmethod
    def arrayWithObject_(cls, item: Any) -> Any:
        return cls.arrayWithArray_([item])

    def count(self) -> int:
        return len(self._items)

    def objectAtIndex_(self, index: int) -> Any:
        return self._items[self._place(index)]

    def firstObject(self) -> Any:
        return self._items[0] if self._items else None

    def lastObject(self) -> Any:
        return self._items[-1] if self._items else None

    def containsObject_(self, item: Any) -> bool:
        return any(equal("NSArray", each, item) for each in self._items)

    def arrayByAddingObject_(self, item: Any) -> Any:
        return NSArray.arrayWithArray_([*self._items, item])

    def _place(self, index: object) -> int:
        place = whole_number("NSArray", "index", index)
        if not 0 <= place < len(self._items):
            expected = f"0 to {len(self._items) - 1}" if self._items else "an array with members"
            raise ShapeError(refusal("NSArray", "index", expected, str(place)))
        return place

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __contains__(self, item: object) -> bool:
        return self.containsObject_(item)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list | tuple | NSArray) and equal(
            "NSArray", self._items, list(other)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._items!r}>"


class NSMutableArray(NSArray):
    """A sequence that changes."""

    @classmethod
    def arrayWithCapacity_(cls, capacity: int) -> Any:
        return cls()

    def addObject_(self, item: Any) -> None:
        self._items.append(item)

    def insertObject_atIndex_(self, item: Any, index: int) -> None:
        place = whole_number("NSArray", "index", index)
        self._items.insert(place if place == len(self._items) else self._place(place), item)

    def removeObjectAtIndex_(self, index: int) -> None:
        del self._items[self._place(index)]

    def removeLastObject(self) -> None:
        del self._items[self._place(len(self._items) - 1)]

    def removeAllObjects(self) -> None:
        self._items.clear()

    def replaceObjectAtIndex_withObject_(self, index: int, item: Any) -> None:
        self._items[self._place(index)] = item

    def append(self, item: Any) -> None:
        self._items.append(item)

    def __setitem__(self, index: Any, item: Any) -> None:
        self._items[index] = item


class NSDictionary(NSObject):
    """A mapping."""

    def __init__(self) -> None:
        self._items: dict[Any, Any] = {}

    @classmethod
    def alloc(cls) -> Any:
        return cls()

    @classmethod
    def dictionary(cls) -> Any:
        return cls()

    @classmethod
    def dictionaryWithDictionary_(cls, items: Mapping[Any, Any]) -> Any:
        if not isinstance(items, Mapping):
            raise DTypeError(refusal("NSDictionary", "dictionary", "one", describe(items)))
        made = cls()
        made._items = dict(items.items())
        return made

    @classmethod
    def dictionaryWithObject_forKey_(cls, value: Any, key: Any) -> Any:
        return cls.dictionaryWithObjects_forKeys_([value], [key])

    @classmethod
    def dictionaryWithObjects_forKeys_(cls, values: Sequence[Any], keys: Sequence[Any]) -> Any:
        values = _members("NSDictionary", "objects", values)
        keys = [_key(key) for key in _members("NSDictionary", "keys", keys)]
        if len(values) != len(keys):
            raise ShapeError(
                refusal("NSDictionary", "objects", f"{len(keys)} for the keys", str(len(values)))
            )
        return cls.dictionaryWithDictionary_(dict(zip(keys, values, strict=True)))

    def count(self) -> int:
        return len(self._items)

    def objectForKey_(self, key: Any) -> Any:
        return self._items.get(_key(key))

    def allKeys(self) -> list[Any]:
        return list(self._items)

    def allValues(self) -> list[Any]:
        return list(self._items.values())

    def keys(self) -> Any:
        return self._items.keys()

    def values(self) -> Any:
        return self._items.values()

    def items(self) -> Any:
        return self._items.items()

    def get(self, key: Any, default: Any = None) -> Any:
        return self._items.get(key, default)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, key: Any) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and equal(
            "NSDictionary", self._items, dict(other.items())
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._items!r}>"


class NSMutableDictionary(NSDictionary):
    """A mapping that changes."""

    @classmethod
    def dictionaryWithCapacity_(cls, capacity: int) -> Any:
        return cls()

    def setObject_forKey_(self, value: Any, key: Any) -> None:
        self._items[_key(key)] = value

    def removeObjectForKey_(self, key: Any) -> None:
        self._items.pop(_key(key), None)

    def removeAllObjects(self) -> None:
        self._items.clear()

    def __setitem__(self, key: Any, value: Any) -> None:
        self._items[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._items[key]


class NSURL(NSObject):
    """Where a file is."""

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


Sequence.register(NSArray)
Mapping.register(NSDictionary)
MutableMapping.register(NSMutableDictionary)
