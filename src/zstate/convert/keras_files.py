"""Keras' files of models and weights: .keras (Keras 3) and .h5 (Keras 2 and 3), without Keras.

Read by layer; written as a Sequential model of the layers, which Keras itself loads.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..errors import OptionError, refusal
from ..types import Array
from .contents import Contents
from .conversion import facts, save
from .hdf5 import Tree, read_tree
from .keras_config import Entry, topology
from .layer import Layer
from .limits import LONGEST_TEXT, Budget
from .names import by_layer, natural
from .objects import Piece, keras_both, keras_facts
from .table import GRU, LSTM, RNN

_VARIABLES = ("kernel", "recurrent_kernel", "bias")
_MARKS = ("forward_layer/", "backward_layer/")
_NAMES = {mark + name for mark in ("", *_MARKS) for name in _VARIABLES}
_CLASSES = {RNN: "SimpleRNN", LSTM: "LSTM", GRU: "GRU"}
_VERSIONS = {"keras": "3.0.0", "tensorflow": "2.15.0"}  # the oldest that reads what is written

_Path = tuple[str, ...]  # a layer's name, after those of the models it is in
_Arrays = dict[str, str]  # paths in the file by the names of a layer's arrays


@contextmanager
def reading(h5py: Any, path: str, kind: str, source: str, budget: Budget) -> Iterator[Contents]:
    """The layers of a saved model, or those of a file of weights alone, while the file is open."""
    if kind == "keras":
        with zipfile.ZipFile(path) as archive:
            config = json.loads(budget.read(archive, "config.json", LONGEST_TEXT))
            metadata = json.loads(budget.read(archive, "metadata.json", LONGEST_TEXT))
            _check_version(str(metadata["keras_version"]), source)
            data = io.BytesIO(budget.read(archive, "model.weights.h5"))
        with h5py.File(data, "r") as file:
            tree = read_tree(h5py, file, budget)
            yield _model(tree, config, _numbered(tree), source)
        return
    with h5py.File(path, "r") as file:
        tree = read_tree(h5py, file, budget)
        _check_version(tree.text("", "keras_version") or "", source)
        text = tree.text("", "model_config")
        if text is None:
            yield _weights(tree, source)
        else:
            yield _model(tree, json.loads(text), _listed(tree), source)


def _check_version(version: str, source: str) -> None:
    wanted = "2" if source == "tensorflow" else "3"
    found = version.split(".")[0]
    if found not in ("", wanted):
        expected = f"a file of Keras {wanted}"
        if found in ("2", "3"):
            other = "keras" if source == "tensorflow" else "tensorflow"
            expected += f" (--from {other} reads this one)"
        raise OptionError(refusal("convert", "--from", expected, f"Keras {version}"))


_NUMBERED = re.compile(r"(?:(?P<layer>.+?)/)?(?P<mark>(?:for|back)ward_layer/)?cell/vars/(?P<n>\d)")


def _numbered(tree: Tree) -> dict[_Path, _Arrays]:
    """Keras 3: arrays are numbered in groups "vars", and a layer's own group has its name."""
    found: dict[_Path, _Arrays] = {}
    for path in natural(tree.datasets):
        match = _NUMBERED.fullmatch(path)
        if match is None or int(match["n"]) >= len(_VARIABLES):
            continue
        names = _group_names(tree, match["layer"] or "")
        variable = (match["mark"] or "") + _VARIABLES[int(match["n"])]
        found.setdefault(names, {})[variable] = path
    return found


def _group_names(tree: Tree, group: str) -> _Path:
    """The names of the layers around and in a group; the whole model's is not among them."""
    names = []
    parts = group.split("/") if group else []
    for count in range(1, len(parts) + 1):
        own = "/".join([*parts[:count], "vars"])
        if own in tree.groups:
            name = tree.text(own, "name")
            if name is None:  # Keras 2: the order of the layers is lost
                expected = "a file that names its layers (save the model as .h5)"
                raise OptionError(refusal("convert", group, expected, "a group without a name"))
            names.append(name)
    return tuple(names)


def _listed(tree: Tree) -> dict[_Path, _Arrays]:
    """Keras 2, and the old format of Keras 3: a group for each layer, which lists its arrays."""
    root = "model_weights" if "model_weights" in tree.groups else ""
    found: dict[_Path, _Arrays] = {}
    for path in tree.groups:
        layer = path.removeprefix(f"{root}/") if root else path
        if layer and "/" not in layer and (path.startswith(f"{root}/") or not root):
            names = tree.texts(path, "weight_names") or []
            found[(layer,)] = {name: f"{path}/{name}" for name in names}
    return found


def _model(
    tree: Tree, config: Mapping[str, Any], arrays: Mapping[_Path, _Arrays], source: str
) -> Contents:
    found = topology(config)
    if not found.recurrent and not found.others:  # a class of its own: no list of layers
        return _weights(tree, source, found.wiring)

    def made(entry: Entry) -> Callable[[], list[Piece]]:
        return lambda: [_piece(tree, entry, _arrays_of(arrays, entry))]

    layers = {entry.name: made(entry) for entry in found.recurrent}
    return Contents(layers, found.others, found.wiring, found.passive)


def _weights(tree: Tree, source: str, wiring: Sequence[str] = ()) -> Contents:
    """Arrays by name, as any other file has them: how the layers are connected is not known."""
    layers: dict[str, Callable[[], list[Piece]]] = {}
    others: list[str] = []
    rest = {*tree.datasets}
    for outer, own in (_numbered(tree) or _listed(tree)).items():
        rest -= {*own.values()}
        # A layer's own name says nothing about directions: it may be called forward_lstm.
        front = f"{outer[-1]}/" if outer else ""
        paths = {name.removeprefix(front): path for name, path in own.items()}
        found, strange = by_layer(source, paths)
        others += ["/".join([*outer, name]) for name in strange]
        for inner, names in found.items():
            layers["/".join([*outer, inner] if inner else outer)] = _made(tree, paths, names)
    unknown = ["a file of weights alone, which does not say how they are connected"]
    others += [path for path in sorted(rest) if not path.startswith("optimizer")]
    return Contents(layers, others, [*wiring, *(unknown if len(layers) > 1 else [])])


def _made(tree: Tree, paths: Mapping[str, str], names: list[str]) -> Callable[[], list[Piece]]:
    return lambda: [Piece({name: tree.array(paths[name]) for name in names})]


def _arrays_of(arrays: Mapping[_Path, _Arrays], entry: Entry) -> _Arrays:
    """Those of a layer; the old format lists those of a model inside the model together."""
    own = arrays.get(entry.path)
    if own is None and entry.path[:1] in arrays:
        inner = "/".join(entry.path[1:])
        inside = arrays[entry.path[:1]]
        own = {name: path for name, path in inside.items() if f"/{inner}/" in f"/{name}"}
    if not own:
        expected = f"arrays of layer {entry.name!r} of the model"
        raise OptionError(refusal("convert", "weights", expected, "none"))
    return own if own.keys() <= _NAMES else _by_position(own, entry)


def _by_position(own: _Arrays, entry: Entry) -> _Arrays:
    """Names such as lstm/lstm_cell/kernel:0, whose beginning may mean anything.

    Of a Bidirectional, the forward layer's arrays come first.
    """
    found: _Arrays = {}
    both = entry.kind == "Bidirectional"
    for number, (name, path) in enumerate(own.items()):
        mark = _MARKS[number >= len(own) // 2] if both else ""
        key = mark + name.split("/")[-1].split(":")[0]
        if key in found:
            raise OptionError(f"[convert] weights: duplicate {key} of layer {entry.name!r}")
        found[key] = path
    return found


def _piece(tree: Tree, entry: Entry, paths: _Arrays) -> Piece:
    options = entry.config
    if entry.kind == "Bidirectional":
        forward = options["layer"]
        told = keras_facts(forward["class_name"], forward["config"])
        backward = options.get("backward_layer")
        other = told[0], {k: v for k, v in told[1].items() if k != "go_backwards"}
        if backward:
            other = keras_facts(backward["class_name"], backward["config"])
        cell, known = keras_both(told, other, options["merge_mode"])
    elif entry.kind == "RNN":
        cell, known = keras_facts(options["cell"]["class_name"], options["cell"]["config"])
        known["go_backwards"] = options.get("go_backwards", False)
    else:
        cell, known = keras_facts(entry.kind, options)
    return Piece({name: tree.array(path) for name, path in paths.items()}, known, cell)


# Writing


def written(h5py: Any, kind: str, stacks: Mapping[str, Sequence[Layer]], target: str) -> bytes:
    """The file of a Sequential model of the layers of one stack, with its name."""
    ((title, layers),) = stacks.items()
    dtype = layers[0].tensors["recurrent_weight"].dtype.name
    if dtype == "bfloat16":
        raise OptionError(refusal("convert", "weights", f"a type that .{kind} has", dtype))
    alone = title if len(layers) == 1 else ""
    named = [(alone or _name(title, layer, k), layer) for k, layer in enumerate(layers)]
    # Keras has paths of names, and to HDF5 "." is the group around.
    named = [(re.sub(r"/|^\.$", "_", name), layer) for name, layer in named]
    config = _config(named, target, dtype)
    arrays = {name: save(layer, target=target) for name, layer in named}
    if any("peephole" in name for own in arrays.values() for name in own):
        expected = "no peephole: Keras layers have none"
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


def _name(title: str, layer: Layer, number: int) -> str:
    word = "bidirectional" if layer.directions == 2 else _snake(layer)
    return f"{title or word}_{number}"


def _snake(layer: Layer) -> str:
    return {RNN: "simple_rnn"}.get(layer.kind, layer.kind)


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
            entries.append(_entry(_CLASSES[layer.kind], {"name": name, **options}, target))
            continue
        options.pop("go_backwards", None)
        inner = _entry(_CLASSES[layer.kind], {"name": _snake(layer), **options}, target)
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
