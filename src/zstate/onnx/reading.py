"""ONNX files as untrusted input: the model, its arrays, and its external data.

Sizes are compared with the data in the file before anything is allocated, and external data is
read only from the model's own folder.
"""

from __future__ import annotations

import math
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DTypeError, GraphError, ShapeError, refusal
from ..graph.methods.core import DTYPES
from ..graph.ops.base import check_size
from ..layout import TensorInfo, brackets
from ..types import Array
from .package import onnx_package

LABEL = "onnx.load"


def read_model(source: Any) -> tuple[Any, Path | None]:
    """The ModelProto behind a path or a ModelProto, and the folder of its external data."""
    onnx = onnx_package()
    if isinstance(source, onnx.ModelProto):
        model, folder, what = source, None, "model"
    elif isinstance(source, str | PathLike):
        what, path, model = repr(fspath(source)), Path(source), onnx.ModelProto()
        try:
            folder = path.resolve().parent
            model.ParseFromString(path.read_bytes())
        except (OSError, ValueError) as error:
            got = getattr(error, "strerror", None) or str(error)
            raise GraphError(refusal(LABEL, what, "a file", got)) from error
        except Exception as error:  # protobuf's own, which differs from version to version
            raise GraphError(refusal(LABEL, what, "a whole ONNX file", str(error))) from error
    else:
        got = type(source).__name__
        raise DTypeError(refusal(LABEL, "model", "a path or an onnx.ModelProto", got))
    if not model.graph.output or not model.opset_import:
        raise GraphError(refusal(LABEL, what, "a model with outputs and an opset", "none"))
    return model, folder


def type_name(number: int, what: str) -> str:
    """The name of an ONNX element type, if the graph has it."""
    onnx = onnx_package()
    try:
        name = str(onnx.helper.tensor_dtype_to_np_dtype(number))
    except (KeyError, TypeError, ValueError) as error:
        raise DTypeError(refusal(LABEL, what, "a type of tensors", str(number))) from error
    if name not in DTYPES or number == onnx.TensorProto.STRING:
        got = onnx.TensorProto.DataType.Name(number)
        raise DTypeError(refusal(LABEL, what, f"one of {', '.join(DTYPES)}", got))
    return name


def array_of(tensor: Any, folder: Path | None) -> Array:
    """The array of a TensorProto: its size agrees with its data, or it is refused."""
    onnx = onnx_package()
    what = f"tensor {tensor.name!r}"
    type_name(tensor.data_type, what)  # refuses what the next line does not know
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    shape = tuple(tensor.dims)
    if any(size < 0 for size in shape):
        raise ShapeError(refusal(LABEL, what, "sizes of at least 0", brackets(shape)))
    check_size(f"{LABEL}: {what}", TensorInfo(shape, dtype.name))
    count = math.prod(shape)
    if tensor.HasField("segment"):
        raise GraphError(refusal(LABEL, what, "a whole tensor", "a segment"))
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        data = _external(tensor, what, count * dtype.itemsize, folder)
        return np.frombuffer(data, dtype).reshape(shape)
    if tensor.HasField("raw_data"):
        have = len(tensor.raw_data)
        if have != count * dtype.itemsize:
            expected = f"{count * dtype.itemsize} bytes for {dtype}{brackets(shape)}"
            raise ShapeError(refusal(LABEL, what, expected, f"{have} bytes"))
    else:
        field = getattr(tensor, onnx.helper.tensor_dtype_to_field(tensor.data_type))
        if len(field) != count:
            expected = f"{count} numbers for {dtype}{brackets(shape)}"
            raise ShapeError(refusal(LABEL, what, expected, str(len(field))))
    return np.array(onnx.numpy_helper.to_array(tensor))


def _external(tensor: Any, what: str, size: int, folder: Path | None) -> bytes:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        got = f"{location!r}, and a model that came without a path"
        raise GraphError(refusal(LABEL, what, "data in the model", got))
    path = (folder / location).resolve()
    if not location or not path.is_relative_to(folder):
        expected = "external data in the folder of the model"
        raise GraphError(refusal(LABEL, what, expected, repr(location)))
    try:
        offset = int(entries.get("offset", "0"))
        length = int(entries.get("length", str(size)))
        if offset < 0 or length != size:
            expected = f"{size} bytes from an offset of at least 0"
            raise GraphError(refusal(LABEL, what, expected, f"{length} from {offset}"))
        if path.stat().st_size < offset + size:
            got = f"{path.stat().st_size} in {location!r}"
            raise GraphError(refusal(LABEL, what, f"{offset + size} bytes", got))
        with path.open("rb") as file:
            file.seek(offset)
            data: bytes = file.read(size)
            return data
    except (OSError, ValueError) as error:
        if isinstance(error, GraphError):
            raise
        raise GraphError(refusal(LABEL, what, "external data", str(error))) from error
