"""Named arrays and strings in one safetensors file, through the package of that name.

The package is imported when a file is read or written, so that whoever computes only needs NumPy.
What is added here: a file is written beside its place and renamed, arrays of any memory layout go
in, and bfloat16 comes out as ml_dtypes has it.
"""

from __future__ import annotations

import errno
import glob
import os
import platform
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ..types import Array, float_dtype


class FormatError(ValueError):
    """Why bytes are no safetensors file that can be read here."""


def write(
    path: str | PathLike[str], arrays: Mapping[str, Array], metadata: Mapping[str, str]
) -> None:
    """Write arrays and strings to a file."""
    package = _package()
    # The package writes the memory that a strided array begins with, whatever its strides are.
    packed = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    with replacing(path) as temporary:
        try:
            package.numpy.save_file(packed, temporary, metadata=dict(metadata))
        except package.SafetensorError as error:  # such as a full disk
            raise OSError(f"cannot write {os.fspath(path)!r}: {error}") from error


@contextmanager
def replacing(path: str | PathLike[str]) -> Iterator[Path]:
    """A temporary path to write to, which replaces ``path`` at the end unless something is raised.

    It lies in a temporary folder beside the file, named after host and process: the next writer
    removes the folders of processes that were killed.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such directory", str(target.parent))
    ours = f".{target.name}.{platform.node()}."
    _remove_abandoned(target.parent, ours)
    folder = target.with_name(f"{ours}{os.getpid()}.{secrets.token_hex(6)}")
    try:
        folder.mkdir()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from error
    try:
        temporary = folder / target.name
        yield temporary
        temporary.chmod(folder.stat().st_mode & 0o666)  # the package writes for the owner only
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(folder: Path, prefix: str) -> None:
    if os.name != "posix":  # elsewhere os.kill is not harmless
        return
    for found in folder.glob(f"{glob.escape(prefix)}*.*"):
        try:
            os.kill(int(found.name.removeprefix(prefix).partition(".")[0]), 0)
        except ProcessLookupError:
            shutil.rmtree(found, ignore_errors=True)
        except (ValueError, OverflowError, PermissionError):
            pass  # not our name, or the process of another user


def read(path: str | PathLike[str]) -> tuple[dict[str, Array], dict[str, str]]:
    """The arrays, as copies that can be written to, and the strings of a file."""
    package = _package()
    with Path(path).open("rb"):
        pass  # the package's own errors do not say which file is missing
    try:
        with package.safe_open(path, framework="numpy") as file:
            arrays = {name: _array(file, name) for name in file.keys()}  # noqa: SIM118
            return arrays, file.metadata() or {}
    except package.SafetensorError as error:
        raise FormatError(str(error)) from error


def _array(file: Any, name: str) -> Array:
    code = file.get_slice(name).get_dtype()
    if code == "BF16":
        float_dtype("bfloat16")  # NumPy knows the name once ml_dtypes is imported
    try:
        array: Array = file.get_tensor(name)
    except (TypeError, AttributeError) as error:
        raise FormatError(f"array {name!r} is {code}, which NumPy has not") from error
    return array


def _package() -> Any:
    try:
        import safetensors
        import safetensors.numpy
    except ImportError as error:
        raise ImportError(
            "saved graphs need the package safetensors: pip install 'zstate[files]'"
        ) from error
    return safetensors
