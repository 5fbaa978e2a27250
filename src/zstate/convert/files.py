"""Files of weights: .safetensors and .npz by name, .onnx by node; Keras' are in keras_files.py.

Each reader gives what ``load`` takes. The packages behind them are imported when a file needs one.
A file is written beside its place and renamed, so that nothing is left half-written.
"""

from __future__ import annotations

import importlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import OptionError, refusal
from ..graph import storage
from ..types import Array
from . import keras_files
from .conversion import facts, save
from .layer import Layer
from .names import natural
from .objects import Piece
from .table import FRAMEWORKS, RNN

_KEY = "zstate.convert"  # in the metadata of a safetensors file: the layers' facts
_KERAS = ("keras", "tensorflow")


def read(path: str, source: str, only: str = "") -> Any:
    """What ``load`` takes from a file; ``only`` is how the names of the wanted arrays begin."""
    kind = _kind("from", path, ("safetensors", "npz", "onnx", "keras", "h5"))
    _check_framework("from", kind, source)
    if only and kind in ("onnx", "keras"):
        raise OptionError(refusal("convert", "--only", "a file of named arrays", f".{kind}"))
    try:
        if kind == "onnx":
            return _package("onnx", "zstate[onnx]").load(path)
        if kind in ("keras", "h5"):
            found = keras_files.read(_package("h5py", "h5py"), path, kind, source)
            return _chosen(found, only, "/") if isinstance(found, dict) else found
        arrays, metadata = _named(path, kind)
    except (storage.FormatError, zipfile.BadZipFile, KeyError, ValueError) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(refusal("convert", path, f"a whole .{kind} file", str(error))) from error
    except Exception as error:  # the errors of protobuf have no base of their own
        if type(error).__name__ != "DecodeError":
            raise
        raise OptionError(refusal("convert", path, "a whole .onnx file", str(error))) from error
    arrays = _chosen(arrays, only, FRAMEWORKS[source].separator)
    return _with_facts(arrays, metadata, source)


def check_target(path: str, target: str) -> str:
    """The format that a path ends with, if a framework's weights can be written in it."""
    kind = _kind("to", path, ("safetensors", "npz", "onnx", "keras", "h5"))
    _check_framework("to", kind, target)
    if kind == "keras" and target != "keras":
        raise OptionError(refusal("convert", "--to", "keras for a .keras file", target))
    return kind


def write(path: str, layers: Sequence[Layer], target: str) -> None:
    """Save layers under a framework's names, in the format that the path ends with."""
    kind = check_target(path, target)
    arrays = save(layers, target=target)
    if kind == "onnx":
        model = _onnx_model(layers)
        with storage.replacing(path) as file:
            file.write(model.SerializeToString())
    elif kind in ("keras", "h5"):
        data = keras_files.written(_package("h5py", "h5py"), kind, layers, target)
        with storage.replacing(path) as file:
            file.write(data)
    elif kind == "npz":
        strange = [name for name, array in arrays.items() if array.dtype.name == "bfloat16"]
        if strange:
            raise OptionError(refusal("convert", strange[0], "a type that .npz has", "bfloat16"))
        with storage.replacing(path) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
    else:
        told = {}
        for number, layer in enumerate(layers):
            alone = len(layers) == 1 or FRAMEWORKS[target].number
            prefix = "" if alone else f"{number}{FRAMEWORKS[target].separator}"
            told[prefix] = {"cell": layer.cell, "facts": facts(layer, target)}
        storage.write(path, arrays, {_KEY: json.dumps({"framework": target, "layers": told})})


def _kind(option: str, path: str, known: tuple[str, ...]) -> str:
    kind = Path(path).suffix.removeprefix(".").lower()
    kind = "h5" if kind == "hdf5" else kind
    if kind not in known:
        expected = f"a file that ends in {', '.join('.' + each for each in known)}"
        verb = "read" if option == "from" else "write"
        raise OptionError(refusal("convert", f"the file to {verb}", expected, repr(path)))
    return kind


def _check_framework(option: str, kind: str, framework: str) -> None:
    wanted = {"onnx": ("onnx",), "keras": _KERAS, "h5": _KERAS}.get(kind)
    if wanted is not None and framework not in wanted:
        expected = f"{' or '.join(wanted)} for a .{kind} file"
        raise OptionError(refusal("convert", f"--{option}", expected, framework))


def _package(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"this file needs the package {name}: pip install {extra!r}") from error


def _named(path: str, kind: str) -> tuple[dict[str, Array], dict[str, str]]:
    if kind == "safetensors":
        arrays, metadata = storage.read(path)
    else:
        with np.load(path, allow_pickle=False) as file:
            arrays, metadata = dict(file), {}
    return {name: arrays[name] for name in natural(arrays)}, metadata


def _chosen(arrays: dict[str, Array], only: str, separator: str) -> dict[str, Array]:
    """The arrays whose names begin so, without the beginning."""
    if not only:
        return arrays
    start = only if only.endswith(separator) else only + separator
    found = {name[len(start) :]: array for name, array in arrays.items() if name.startswith(start)}
    if not found:
        known = ", ".join(sorted(arrays)[:3])
        raise OptionError(refusal("convert", "--only", f"how a name begins ({known}, …)", only))
    return found


def _with_facts(arrays: dict[str, Array], metadata: Mapping[str, str], source: str) -> Any:
    """The facts that ``write`` left in a file."""
    if _KEY not in metadata:
        return arrays
    told = json.loads(metadata[_KEY])
    if told["framework"] != source:
        raise OptionError(refusal("convert", "--from", repr(told["framework"]), repr(source)))
    found = []
    for prefix, layer in told["layers"].items():
        own = {name: array for name, array in arrays.items() if name.startswith(prefix)}
        found.append(Piece(own, layer["facts"], layer["cell"]))
    return found


def _onnx_model(layers: Sequence[Layer]) -> Any:
    """A model of one node for each layer: X [T,N,I] in, Y [T,N,D·H] and the last states out."""
    _package("onnx", "zstate[onnx]")
    from onnx import helper, numpy_helper

    kind = helper.np_dtype_to_tensor_dtype(layers[0].tensors["recurrent_weight"].dtype)
    nodes, initialisers, outputs = [], [], []
    flat = numpy_helper.from_array(np.array([0, 0, -1], np.int64), "flat")
    initialisers.append(flat)
    source = "X"
    for number, layer in enumerate(layers):
        arrays = save(layer, target="onnx")
        for name, array in arrays.items():
            initialisers.append(numpy_helper.from_array(array, f"{name}_{number}"))
        given = ["W", "R", "B", "", "initial_h", "initial_c", "P"]
        inputs = [source] + [f"{name}_{number}" if name in arrays else "" for name in given]
        while not inputs[-1]:
            inputs.pop()
        op = "RNN" if layer.cell == RNN else layer.cell.upper()
        ends = [f"Y_h_{number}"] + ([f"Y_c_{number}"] if layer.cell == "lstm" else [])
        told = facts(layer, target="onnx")
        nodes.append(helper.make_node(op, inputs, [f"steps_{number}", *ends], **told))
        turned, last = f"turned_{number}", number == len(layers) - 1
        nodes.append(
            helper.make_node("Transpose", [f"steps_{number}"], [turned], perm=[0, 2, 1, 3])
        )
        target = "Y" if last else f"source_{number + 1}"
        nodes.append(helper.make_node("Reshape", [turned, "flat"], [target]))
        source = target
        shape: list[str | int | None] = [layer.directions, "N", layer.hidden]
        outputs += [helper.make_tensor_value_info(end, kind, shape) for end in ends]
    wide, result = layers[0].inputs, layers[-1].directions * layers[-1].hidden
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("X", kind, ["T", "N", wide])],
        [helper.make_tensor_value_info("Y", kind, ["T", "N", result]), *outputs],
        initialisers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
