"""Files of weights: .safetensors and .npz by name, .onnx by node, .keras and .h5 by layer.

Each reader gives what ``load`` takes. The packages behind them are imported when a file needs one.
A file is written beside its place and renamed, so that nothing is left half-written.
"""

from __future__ import annotations

import importlib
import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import OptionError, refusal
from ..graph import storage
from ..types import Array
from .conversion import facts, save
from .layer import Layer
from .names import natural
from .objects import Piece, as_array, keras_facts
from .table import FRAMEWORKS, RNN

_KEY = "zstate.convert"  # in the metadata of a safetensors file: the layers' facts
_KERAS = ("keras", "tensorflow")
_VARIABLES = ("kernel", "recurrent_kernel", "bias")


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
            found = _keras(path, kind, source)
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
    kind = _kind("to", path, ("safetensors", "npz", "onnx"))
    _check_framework("to", kind, target)
    return kind


def write(path: str, layers: Sequence[Layer], target: str) -> None:
    """Save layers under a framework's names, in the format that the path ends with."""
    kind = check_target(path, target)
    arrays = save(layers, target=target)
    if kind == "onnx":
        model = _onnx_model(layers)
        with storage.replacing(path) as file:
            file.write(model.SerializeToString())
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


def _keras(path: str, kind: str, source: str) -> list[Piece] | dict[str, Array]:
    """The recurrent layers of a saved model, or the arrays of a file of weights alone."""
    h5py = _package("h5py", "h5py")
    if kind == "keras":
        with zipfile.ZipFile(path) as archive:
            config = json.loads(archive.read("config.json"))
            _check_version(json.loads(archive.read("metadata.json"))["keras_version"], source)
            with h5py.File(io.BytesIO(archive.read("model.weights.h5")), "r") as file:
                return _layers(config, _by_variables(file))
    with h5py.File(path, "r") as file:
        _check_version(_text(file.attrs.get("keras_version", "")), source)
        if "model_config" in file.attrs:
            return _layers(json.loads(_text(file.attrs["model_config"])), _by_names(file))
        found = _by_variables(file) or _by_names(file)
        return {
            f"{layer}/{name}": array for layer, arrays in found.items() for name, array in arrays
        }


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _check_version(version: str, source: str) -> None:
    wanted = "2" if source == "tensorflow" else "3"
    if version and version.split(".")[0] != wanted:
        other = "keras" if source == "tensorflow" else "tensorflow"
        expected = f"a file of Keras {wanted} (--from {other} reads this one)"
        raise OptionError(refusal("convert", "--from", expected, f"Keras {version}"))


_Arrays = list[tuple[str, Array]]


def _by_variables(file: Any) -> dict[str, _Arrays]:
    """Keras 3: arrays are numbered in groups "vars", and a layer's own group has its name."""
    found: dict[str, _Arrays] = {}

    def visit(group: Any) -> None:
        arrays: _Arrays = []
        if "vars" in group:
            for part in ("cell", "forward_layer/cell", "backward_layer/cell"):
                numbered = group.get(f"{part}/vars")
                mark = part.removesuffix("cell")
                for number, name in enumerate(_VARIABLES):
                    if numbered is not None and str(number) in numbered:
                        arrays.append((mark + name, as_array(name, numbered[str(number)][()])))
        if arrays:
            if "name" not in group["vars"].attrs:  # Keras 2: the order of the layers is lost
                expected = "a file that names its layers (save the model as .h5)"
                raise OptionError(refusal("convert", group.name, expected, "a group without name"))
            found[_text(group["vars"].attrs["name"])] = arrays
        for name, child in group.items():
            inside = name in ("cell", "forward_layer", "backward_layer", "vars")
            if not inside and hasattr(child, "items"):
                visit(child)

    visit(file)
    return found


def _by_names(file: Any) -> dict[str, _Arrays]:
    """Keras 2, and the old format of Keras 3: a group for each layer, which lists its arrays."""
    root = file.get("model_weights", file)
    found = {}
    for layer, group in root.items():
        names = [_text(name) for name in group.attrs.get("weight_names", [])]
        found[layer] = [(name, as_array(name, group[name][()])) for name in names]
    return found


def _layers(config: Mapping[str, Any], arrays: Mapping[str, _Arrays]) -> list[Piece]:
    found = []
    for layer in _walk(config):
        name, options = layer["class_name"], layer["config"]
        own = arrays.get(options["name"], [])
        more: dict[str, Any] = {}
        if name == "Bidirectional":
            more = {"merge_mode": options["merge_mode"]}
            both = [options["layer"], options.get("backward_layer") or options["layer"]]
            told = [keras_facts(each["class_name"], each["config"]) for each in both]
            for _, facts_of in told:
                facts_of.pop("go_backwards", None)
            if told[0] != told[1]:
                expected = "the same options in both directions"
                raise OptionError(refusal("load", options["name"], expected, str(told[1][1])))
            cell, known = told[0]
        elif name == "RNN":
            more = {"go_backwards": options.get("go_backwards", False)}
            cell, known = keras_facts(options["cell"]["class_name"], options["cell"]["config"])
        elif name in ("SimpleRNN", "LSTM", "GRU"):
            cell, known = keras_facts(name, options)
        else:
            continue
        found.append(Piece(dict(own), known | more, cell))
    if not found:
        raise OptionError(refusal("convert", "the model", "recurrent layers", "none"))
    return found


def _walk(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The layers of a saved model, those of models inside it as well."""
    for layer in config["config"]["layers"]:
        if "layers" in layer.get("config", {}):
            yield from _walk(layer)
        else:
            yield layer


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
