"""Keras' files of models and weights: .keras (Keras 3) and .h5 (Keras 2 and 3), without Keras.

Read by layer; written as a Sequential model of the layers, which Keras itself loads.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import OptionError, refusal
from ..types import Array
from .conversion import facts, save
from .layer import Layer
from .objects import Piece, as_array, keras_facts
from .table import GRU, LSTM, RNN

_VARIABLES = ("kernel", "recurrent_kernel", "bias")
_CLASSES = {RNN: "SimpleRNN", LSTM: "LSTM", GRU: "GRU"}
_VERSIONS = {"keras": "3.0.0", "tensorflow": "2.15.0"}  # the oldest that reads what is written


def read(h5py: Any, path: str, kind: str, source: str) -> list[Piece] | dict[str, Array]:
    """The recurrent layers of a saved model, or the arrays of a file of weights alone."""
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


# Writing


def written(h5py: Any, kind: str, layers: Sequence[Layer], target: str) -> bytes:
    """The file of a Sequential model of these layers."""
    dtype = layers[0].tensors["recurrent_weight"].dtype.name
    if dtype == "bfloat16":
        raise OptionError(refusal("convert", "weights", f"a type that .{kind} has", dtype))
    named = [(_name(layer, number), layer) for number, layer in enumerate(layers)]
    config = _config(named, target, dtype)
    arrays = {name: save(layer, target=target) for name, layer in named}
    if any("peephole" in name for own in arrays.values() for name in own):
        expected = "no peephole, which no layer of Keras has"
        raise OptionError(refusal("convert", "weights", expected, "one"))
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        if kind == "keras":
            _write_variables(file, named, arrays)
        else:
            _write_names(file, arrays, json.dumps(config), _VERSIONS[target])
    if kind == "h5":
        return buffer.getvalue()
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        metadata = {"keras_version": _VERSIONS[target], "date_saved": "1980-01-01@00:00:00"}
        archive.writestr("metadata.json", json.dumps(metadata))
        archive.writestr("config.json", json.dumps(config))
        archive.writestr("model.weights.h5", buffer.getvalue())
    return whole.getvalue()


def _name(layer: Layer, number: int) -> str:
    word = "bidirectional" if layer.directions == 2 else _snake(layer)
    return f"{word}_{number}"


def _snake(layer: Layer) -> str:
    return {RNN: "simple_rnn"}.get(layer.cell, layer.cell)


def _config(named: list[tuple[str, Layer]], target: str, dtype: str) -> dict[str, Any]:
    shape = [None, None, named[0][1].inputs]
    word = "batch_shape" if target == "keras" else "batch_input_shape"
    first = {word: shape, "dtype": dtype, "name": "source"}
    entries = [_entry("InputLayer", first, target)]
    for name, layer in named:
        told = facts(layer, target)
        merge = told.pop("merge_mode", "concat")
        options = {"units": layer.hidden, "return_sequences": True, "dtype": dtype, **told}
        if layer.directions == 1:
            entries.append(_entry(_CLASSES[layer.cell], {"name": name, **options}, target))
            continue
        options.pop("go_backwards", None)
        inner = _entry(_CLASSES[layer.cell], {"name": _snake(layer), **options}, target)
        both = {"name": name, "merge_mode": merge, "layer": inner, "dtype": dtype}
        entries.append(_entry("Bidirectional", both, target))
    model = _entry("Sequential", {"name": "layers", "layers": entries}, target)
    return model | ({"module": "keras"} if target == "keras" else {})


def _entry(class_name: str, config: dict[str, Any], target: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"class_name": class_name, "config": config}
    if target == "keras":
        entry |= {"module": "keras.layers", "registered_name": None}
    return entry


def _write_variables(
    file: Any, named: list[tuple[str, Layer]], arrays: Mapping[str, Mapping[str, Array]]
) -> None:
    """Keras 3: groups by the classes' names, numbered; the arrays are numbered too."""
    counts: dict[str, int] = {}
    for name, layer in named:
        word = "bidirectional" if layer.directions == 2 else _snake(layer)
        number = counts.get(word, 0)
        counts[word] = number + 1
        group = file.create_group(f"layers/{word}_{number}" if number else f"layers/{word}")
        group.create_group("vars").attrs["name"] = name
        for full, array in arrays[name].items():
            *path, variable = full.split("/")
            place = "/".join([*path, "cell", "vars", str(_VARIABLES.index(variable))])
            group.create_dataset(place, data=array)


def _write_names(
    file: Any, arrays: Mapping[str, Mapping[str, Array]], config: str, version: str
) -> None:
    """The old format: a group for each layer, which lists its arrays in their order."""
    file.attrs["model_config"] = config
    weights = file.create_group("model_weights")
    for holder in (file, weights):
        holder.attrs["keras_version"] = version
        holder.attrs["backend"] = "tensorflow"
    weights.attrs["layer_names"] = np.array([name.encode() for name in arrays])
    for name, own in arrays.items():
        group = weights.create_group(name)
        group.attrs["weight_names"] = np.array([each.encode() for each in own])
        for each, array in own.items():
            group.create_dataset(each, data=array)
