"""One thread for NumPy's matrix products while the native engine has its own.

OpenBLAS lets its threads spin for a while after a product, in case another follows. Here the
engine follows, and finds the cores taken: a training step took twice as long. The few products
outside of the engine are small, so they do without threads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

_PREFIXES = ("scipy_openblas", "openblas")
_SUFFIXES = ("64_", "")


@cache
def _openblas() -> tuple[Any, Any] | None:
    """The functions that read and set the number of threads of NumPy's OpenBLAS, if that is what
    it was built with and the library is where NumPy's wheels have it."""
    for path in sorted((Path(np.__file__).parent.parent / "numpy.libs").glob("*openblas*")):
        library = ctypes.CDLL(str(path))  # already loaded: this finds it again
        for prefix in _PREFIXES:
            for suffix in _SUFFIXES:
                names = [f"{prefix}_{verb}_num_threads{suffix}" for verb in ("get", "set")]
                if all(hasattr(library, name) for name in names):
                    return getattr(library, names[0]), getattr(library, names[1])
    return None


@contextmanager
def one_thread() -> Iterator[None]:
    """NumPy's matrix products on one thread, and then as they were."""
    functions = _openblas()
    if functions is None:
        yield
        return
    read, write = functions
    before = read()
    write(1)
    try:
        yield
    finally:
        write(before)
