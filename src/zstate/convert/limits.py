"""How much memory the arrays of a file may take: a small file must not unfold into gigabytes."""

from __future__ import annotations

import os
import zipfile
from typing import IO

from ..errors import OptionError, refusal

MIB = 1 << 20
LEAST = 256 * MIB  # what any file may take
TIMES = 16  # what a larger one may take, in sizes of the file; weights hardly compress
LONGEST_TEXT = 16 * MIB  # a model's configuration; parsed, it takes many times its length


class Budget:
    """The bytes that reading one file may still take."""

    def __init__(self, path: str, limit: int | None = None) -> None:
        """``limit`` in bytes; None: 256 MiB, or 16 times the file's size if that is more."""
        self.size = os.stat(path).st_size
        self._path = path
        self._limit = max(LEAST, TIMES * self.size) if limit is None else limit
        self._taken = 0

    def take(self, count: int, what: str) -> None:
        """Take some of the bytes, before they are allocated; raises if there are too few."""
        self._taken += count
        if self._taken > self._limit:
            expected = f"arrays of at most {_words(self._limit)} (--limit) in {_words(self.size)}"
            got = f"{_words(self._taken)} with {what!r}"
            raise OptionError(refusal("convert", self._path, expected, got))

    def open(self, archive: zipfile.ZipFile, name: str) -> IO[bytes]:
        """A file of an archive, if its size is within the budget; it gives no more than that."""
        info = archive.getinfo(name)
        self.take(info.file_size, name)
        return archive.open(info)

    def read(self, archive: zipfile.ZipFile, name: str, longest: int | None = None) -> bytes:
        """The whole of a file of an archive, of at most ``longest`` bytes."""
        size = archive.getinfo(name).file_size
        if longest is not None and size > longest:
            raise ValueError(f"{name} has {size} bytes, more than {longest}")
        with self.open(archive, name) as file:
            return file.read()


def _words(count: int) -> str:
    return f"{count / MIB:.0f} MiB" if count >= MIB else f"{count} bytes"
