"""The safetensors format: named arrays and strings in one file, no code in it.

Eight bytes with the length of the header, the header in JSON (name, type, shape and place of every
array, strings under ``__metadata__``), then the arrays. The format is small enough that writing it
here costs less than a dependency; the tests read and write it with the safetensors package.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ..types import Array, float_dtype

_CODES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "float16": "F16",
    "bfloat16": "BF16",
    "uint32": "U32",
    "int32": "I32",
    "float32": "F32",
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
}
_NAMES = {code: name for name, code in _CODES.items()}
_MOST_HEADER = 100_000_000


class FormatError(ValueError):
    """Why bytes are no safetensors file."""


def write(
    path: str | PathLike[str], arrays: Mapping[str, Array], metadata: Mapping[str, str]
) -> None:
    """Write a file beside the place and rename it, so that a crash leaves the old one whole."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    start = 0
    for name, array in arrays.items():
        place = [start, start + array.nbytes]
        code = _CODES[array.dtype.name]
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": place}
        start += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
    try:
        with temporary.open("xb") as file:
            file.write(len(text).to_bytes(8, "little"))
            file.write(text)
            for array in arrays.values():
                file.write(np.ascontiguousarray(array).tobytes())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read(path: str | PathLike[str]) -> tuple[dict[str, Array], dict[str, str]]:
    """The arrays and the strings of a file; every number in its header is checked."""
    content = Path(path).read_bytes()
    if len(content) < 8:
        raise FormatError("it is shorter than a header")
    length = int.from_bytes(content[:8], "little")
    if length > min(_MOST_HEADER, len(content) - 8):
        raise FormatError("it ends within its header, or is another kind of file")
    try:
        header = json.loads(content[8 : 8 + length])
    except (ValueError, RecursionError) as error:
        raise FormatError("its header is not JSON") from error
    if not isinstance(header, dict):
        raise FormatError("its header is not a JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise FormatError("its metadata are not strings")
    data = memoryview(content)[8 + length :]
    arrays, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: _start(item[1])):
        array, begin, stop = _array(name, entry, data)
        if begin != end:
            raise FormatError(f"array {name!r} does not follow the one before it")
        arrays[name], end = array, stop
    if end != len(data):
        raise FormatError(f"it has {len(data)} bytes of arrays where its header says {end}")
    return arrays, metadata


def _start(entry: Any) -> int:
    try:
        start = entry["data_offsets"][0]
    except (TypeError, KeyError, IndexError) as error:
        raise FormatError("an array has no place") from error
    if type(start) is not int:
        raise FormatError("an array has no place")
    return start


def _array(name: str, entry: Any, data: memoryview) -> tuple[Array, int, int]:
    code, shape, place = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if code not in _NAMES:
        raise FormatError(f"array {name!r} has the unknown type {code!r}")
    for numbers in (shape, place):
        if not isinstance(numbers, list) or not all(type(n) is int and n >= 0 for n in numbers):
            raise FormatError(f"array {name!r} has a wrong shape or place")
    dtype = float_dtype(_NAMES[code])
    if len(place) != 2 or place[1] - place[0] != math.prod(shape) * dtype.itemsize:
        raise FormatError(f"array {name!r} has {place} bytes for the shape {shape}")
    if place[1] > len(data):
        raise FormatError(f"it ends within array {name!r}")
    flat = np.frombuffer(data[place[0] : place[1]], dtype)
    return flat.reshape(shape).copy(), place[0], place[1]
