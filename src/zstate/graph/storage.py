"""Named arrays and strings in one safetensors file.

The package of that name parses and checks the header. It is imported for reading only, so computing
needs nothing but NumPy. The arrays are read here, after the caller has seen the header, because the
package panics when memory runs out. They are written here too, because the package's writer ignores
the umask and leaves its own temporary files behind when the process is killed.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import struct
from collections.abc import Callable, Iterator, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import DTypeError, GraphError, refusal
from ..layout import TensorInfo, describe
from ..types import Array, float_dtype

try:
    import fcntl
except ImportError:  # not on Windows: what a killed process leaves there stays
    fcntl = None  # type: ignore[assignment]

_CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
    "bool": "BOOL",
}
_TYPES = {code: name for name, code in _CODES.items()}
_LONGEST_HEADER = 100_000_000  # the format's own limit


class FormatError(ValueError):
    """Why a file cannot be read as safetensors."""


class SaveError(GraphError, OSError):
    """A file could not be written: the disk is full, a folder is missing or read-only."""


def write(
    path: str | PathLike[str], arrays: Mapping[str, Array], metadata: Mapping[str, str]
) -> None:
    """Write arrays and strings to a file."""
    with replacing(path) as file:
        _write_to(file, arrays, metadata)


@contextlib.contextmanager
def replacing(path: str | PathLike[str]) -> Iterator[BinaryIO]:
    """Write a file beside the place and rename it, so that a crash leaves the old one whole."""
    check_path("save", path)
    try:
        target = Path(path)
        _remove_leftovers(target)
        temporary, file = _temporary(target)
        try:
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
                if fcntl is None:
                    file.close()  # Windows cannot rename an open file
                os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except (OSError, ValueError) as error:  # a ValueError: not a valid path on this system
        raise cannot_write(path, error) from error


def check_path(label: str, path: object) -> None:
    """Refuse what is no path."""
    if not isinstance(path, str | PathLike):
        raise DTypeError(refusal(label, "path", "a str or a path", describe(path)))


def cannot_write(path: str | PathLike[str], error: Exception) -> SaveError:
    """An error that names this file, not the temporary one that zstate wrote first."""
    reason = getattr(error, "strerror", None) or str(error)
    refused = SaveError(f"[save] {fspath(path)!r}: cannot be written: {reason}")
    refused.errno = getattr(error, "errno", None)
    return refused


def _write_to(file: BinaryIO, arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    # Wide types first, so that every array begins at a multiple of its element size.
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in names:
        start, end = end, end + arrays[name].nbytes
        header[name] = {
            "dtype": _CODES[arrays[name].dtype.name],
            "shape": arrays[name].shape,
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for name in names:
        array = arrays[name]
        # As bytes, since not every element type has a buffer format; little-endian by the format.
        packed = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
        file.write(packed.reshape(-1).view(np.uint8).data)


def _temporary(target: Path) -> tuple[Path, BinaryIO]:
    """A new file beside the target, locked, so that another process can tell it from a leftover."""
    while True:
        path = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
        file = os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666), "wb")
        if fcntl is not None:
            with contextlib.suppress(OSError):  # some network disks have no locks
                fcntl.flock(file, fcntl.LOCK_EX)
        if path.exists():  # do not take it for a leftover before it is locked
            return path, file
        file.close()


def _remove_leftovers(target: Path) -> None:
    """Remove what killed processes have left: files beside the target that nobody has locked."""
    if fcntl is None:
        return
    names = []
    with contextlib.suppress(OSError):  # a folder that cannot be listed may still be written to
        names = os.listdir(target.parent)
    for name in names:
        if name.startswith(f".{target.name}.") and name.endswith(".part"):
            path = target.with_name(name)
            # An error: another process is writing it, or it is gone, or not ours.
            with contextlib.suppress(OSError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)


Look = Callable[[Mapping[str, str], Mapping[str, TensorInfo]], None]


def read(
    path: str | PathLike[str], look: Look | None = None
) -> tuple[dict[str, Array], dict[str, str]]:
    """The arrays, as copies that can be written to, and the strings of a file.

    ``look`` sees the strings, and the shapes and types, before any array is read; what it raises
    ends the reading.
    """
    check_path("load", path)
    package = _package()
    if Path(path).is_dir():
        raise FormatError("it is a folder")
    with Path(path).open("rb") as file:
        start = _start_of_data(file)
        try:
            with package.safe_open(path, framework="numpy") as opened:
                metadata = opened.metadata() or {}
                infos = {name: _info(opened, name) for name in opened.offset_keys()}
        except package.SafetensorError as error:
            raise FormatError(str(error)) from error
        if look is not None:
            look(metadata, infos)
        file.seek(start)
        try:
            # The format has no gaps, as the package has checked: each begins where one ends.
            return {name: _array(file, info) for name, info in infos.items()}, metadata
        except MemoryError:
            size = os.fstat(file.fileno()).st_size
            raise FormatError(f"its arrays need {size - start} bytes of memory") from None


def _start_of_data(file: BinaryIO) -> int:
    """Where the header ends, if the file is long enough to have one."""
    size = os.fstat(file.fileno()).st_size
    head = file.read(8)
    if len(head) < 8:
        raise FormatError(f"a file of {size} bytes has no header")
    (length,) = struct.unpack("<Q", head)
    if length > min(_LONGEST_HEADER, size - 8):
        raise FormatError(f"a header of {length} bytes in a file of {size}")
    return 8 + int(length)


def _info(opened: Any, name: str) -> TensorInfo:
    found = opened.get_slice(name)
    code = found.get_dtype()
    if code not in _TYPES:
        raise FormatError(f"array {name!r} is {code}, which NumPy does not have")
    return TensorInfo(tuple(found.get_shape()), _TYPES[code])


def _array(file: BinaryIO, info: TensorInfo) -> Array:
    dtype = float_dtype(info.dtype)
    shape = tuple(size for size in info.shape if size is not None)
    count = math.prod(shape) * dtype.itemsize
    raw = np.fromfile(file, np.uint8, count)
    if raw.size != count:
        raise FormatError("the file became shorter while it was read")
    stored = raw.view(dtype.newbyteorder("<")).reshape(shape)
    return stored.astype(dtype, copy=False)


def _package() -> Any:
    try:
        import safetensors
    except ImportError as error:
        raise ImportError(
            "safetensors files need the package of that name: pip install 'zstate[files]'"
        ) from error
    return safetensors
