"""From a specialisation to machine code: one source text, NVRTC through cuda-core, a cache on disk.

An entry's name is a hash of everything that decides its content; its first bytes are a hash of the
rest, so that a damaged file is noticed and built again. Files appear by renaming: processes that
write the same entry at once do no harm.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TextIO

from .placement import GRID, ROW, STEPS, WIDE

HERE = Path(__file__).parent
PRODUCTS, STREAMED = ("machine.cuh", "products.cu"), ("machine.cuh", "streamed.cu")
ARGUMENTS, CELL = "arguments", "cell"  # texts that printing.py writes
_NOTHING: Mapping[str, str] = {}
_INCLUDE = re.compile(r'^#include "[^"]+"$', re.MULTILINE)
_DIGEST = 32


def find(name: str) -> Path:
    """A source text: beside this file, or, in a source tree, among the equations in C++."""
    for folder in (HERE, HERE.parents[3] / "csrc" / "equations"):
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(f"{name} is missing from the installed package")


@cache
def _text(name: str) -> str:
    text = find(name).read_text(encoding="utf-8")
    return _INCLUDE.sub("", text).replace("#pragma once", "")


def scan_texts(mode: int = GRID) -> tuple[str, ...]:
    """The texts of a scan, each behind what it uses; ARGUMENTS and CELL are printed."""
    scan = {STEPS: ("steps.cu",), WIDE: ("wide.cu",), ROW: ("row.cu",)}.get(
        mode, ("exchange.cuh", "product.cuh", "reduction.cuh", "scan.cu")
    )
    layout = {WIDE: "wide_layout.cuh", ROW: "row_layout.cuh"}.get(mode, "layout.cuh")
    first = ("machine.cuh", "pairs.cuh", "specialisation.cuh")
    return (*first, layout, ARGUMENTS, "block.cuh", "sums.cuh", "turn.cuh", CELL, *scan)


def source(constants: str, texts: tuple[str, ...], printed: Mapping[str, str] = _NOTHING) -> str:
    """The whole text of a specialisation; it includes nothing."""
    parts = (printed[name] if name in printed else _text(name) for name in texts)
    return "".join([_text("activations.h"), constants, *parts])


def cache_folder() -> Path:
    """ZSTATE_CACHE_DIR, or the platform's place for files that can be made again."""
    chosen = os.environ.get("ZSTATE_CACHE_DIR")
    if chosen:
        return Path(chosen)
    home = Path.home()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local")) / "zstate" / "Cache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "zstate"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "zstate"


def load(path: Path) -> bytes | None:
    """A cached entry, or None where there is none or it is damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, code = content[:_DIGEST], content[_DIGEST:]
    return code if code and hashlib.sha256(code).digest() == digest else None


def save(path: Path, code: bytes) -> None:
    """Write an entry; a cache that cannot be written is no reason to fail."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(code).digest() + code)
            os.replace(name, path)
        except OSError:
            os.unlink(name)


@cache
def _version() -> str:
    from cuda.bindings import nvrtc

    return ".".join(map(str, nvrtc.nvrtcVersion()[1:]))


def compile_text(text: str, architecture: str, log: TextIO | None = None) -> bytes:
    """Machine code by NVRTC, uncached. The assembler's register counts go to ``log``."""
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(
        std="c++17",
        arch=architecture,
        name="zstate_scan.cu",
        device_as_default_execution_space=True,  # NVRTC before 13.4 takes generic lambdas for host
        ptxas_options="-v" if log else None,
    )
    return bytes(Program(text, "c++", options).compile("cubin", logs=log).code)


def machine_code(text: str, architecture: str) -> bytes:
    """The machine code of a specialisation, from the cache if it has it."""
    key = hashlib.sha256("\0".join((text, architecture, _version())).encode()).hexdigest()
    path = cache_folder() / "cuda" / f"{key}.cubin"
    code = load(path)
    if code is None:
        code = compile_text(text, architecture)
        save(path, code)
    return code
