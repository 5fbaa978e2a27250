"""Named arrays and strings in one safetensors file, through the package of that name.

The package is imported when a file is read or written, so that whoever computes only needs NumPy.
What is added here: a file is written beside its place and renamed, arrays of any memory layout go
in, and bfloat16 comes out as ml_dtypes has it.
"""

from __future__ import annotations

import os
import secrets
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
    """Write a file beside the place and rename it, so that a crash leaves the old one whole."""
    package = _package()
    # The package writes the memory that a strided array begins with, whatever its strides are.
    packed = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    with replacing(path) as temporary:
        package.numpy.save_file(packed, temporary, metadata=dict(metadata))


@contextmanager
def replacing(path: str | PathLike[str]) -> Iterator[Path]:
    """A file to write, which takes its place once it is whole; after an error it is gone."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
    try:
        yield temporary
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


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
            "safetensors files need the package of that name: pip install 'zstate[files]'"
        ) from error
    return safetensors
