"""Graphs and programs in files: structure as JSON, arrays as safetensors, both in one file.

The structure stands in the metadata of the safetensors file, with a format version and a checksum.
Loading builds every node anew through the op table, so that a file goes through the same checks as
a call; it runs no code, and compares every shape with the one that was saved.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import Any

import numpy as np

from ..arrays import NUMPY
from ..cells.decorator import CellDescriptor, MadeCell
from ..cells.text import read_cell, write_cell
from ..descriptors import Activation, AnyDescriptor
from ..errors import GraphError, ZStateError, refusal
from ..layout import DESCRIPTORS, TensorInfo
from ..types import Array
from . import storage
from .executable import Executable
from .graph import Graph
from .methods.core import checked_dtype, checked_shape
from .ops import ASSIGN, CONSTANT, OPS, PLACEHOLDER, VARIABLE, Op
from .ops.base import known
from .tensor import Node, Store, Tensor

VERSION = 1
_DESCRIPTORS = {kind.__name__: kind for kind in (*DESCRIPTORS.values(), CellDescriptor)}
_GIVEN = (PLACEHOLDER, CONSTANT, VARIABLE)


def save_graph(graph: Graph, path: str | PathLike[str]) -> None:
    structure, arrays = _encode(graph.nodes)
    _write(path, {"kind": "graph", **structure}, arrays)


def load_graph(path: str | PathLike[str]) -> Graph:
    structure, arrays = _read(path, "graph")
    with _Reading(path):
        return _decode(structure, arrays)


def save_executable(program: Executable, path: str | PathLike[str]) -> None:
    nodes = program.saved_nodes()
    structure, arrays = _encode(nodes)
    places = _places(nodes)
    more = {
        "feeds": [places[tensor] for tensor in program.feeds],
        "targets": [places[tensor] for tensor in program.targets],
        "target_names": program.target_names,
        "updates": [[places[node.results[0]], places[value]] for node, value in program.updates],
    }
    _write(path, {"kind": "executable", **structure, **more}, arrays)


def load_executable(path: str | PathLike[str]) -> Executable:
    structure, arrays = _read(path, "executable")
    with _Reading(path):
        graph = _decode(structure, arrays)
        for node in graph.nodes:
            if node.op not in _GIVEN and node.op.prepare is None:
                raise ValueError(f"node {node.name!r} cannot be run")
            if any(known(tensor.shape) is None for tensor in node.results):
                raise ValueError(f"node {node.name!r} has an unknown size")
        feeds, targets = ([_tensor(graph, at) for at in structure[k]] for k in ("feeds", "targets"))
        names = [str(name) for name in structure["target_names"]]
        updates = []
        for at, value in structure["updates"]:
            variable, tensor = _tensor(graph, at), _tensor(graph, value)
            if variable.node.op is not VARIABLE or variable.info != tensor.info:
                raise ValueError(f"{variable.name!r} cannot be updated with {tensor.name!r}")
            updates.append((variable.node, tensor))
        fed = {tensor.node for tensor in feeds}
        if len(fed) != len(feeds) or fed != {n for n in graph.nodes if n.op is PLACEHOLDER}:
            raise ValueError("its feeds are not its placeholders")
        if len(names) != len(targets):
            raise ValueError("its targets and their names differ in number")
        return Executable(graph, feeds, targets, updates, names)


class _Reading:
    """Whatever is wrong with a file becomes one kind of error, which names the file."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: object) -> None:
        odd = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
        if isinstance(error, (ZStateError, RecursionError, *odd)):
            raise GraphError(
                f"[load] {fspath(self._path)!r}: expected a file that zstate saved, got an "
                f"inconsistent one: {error}"
            ) from error


# Writing


def _write(
    path: str | PathLike[str], structure: Mapping[str, Any], arrays: Mapping[str, Array]
) -> None:
    text = json.dumps(structure, separators=(",", ":"))
    metadata = {
        "format": "zstate",
        "version": str(VERSION),
        "structure": text,
        "sha256": _checksum(text, arrays),
    }
    storage.write(path, arrays, metadata)


def _checksum(text: str, arrays: Mapping[str, Array]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        digest.update(name.encode())
        digest.update(np.ravel(arrays[name]).view(np.uint8).data)  # no copy, unless strided
    return digest.hexdigest()


def _places(nodes: Sequence[Node]) -> dict[Tensor, list[int]]:
    """Where each tensor is: the number of its node, and which of its results it is."""
    return {
        tensor: [number, k]
        for number, node in enumerate(nodes)
        for k, tensor in enumerate(node.results)
    }


def _encode(nodes: Sequence[Node]) -> tuple[dict[str, Any], dict[str, Array]]:
    places = _places(nodes)
    arrays: dict[str, Array] = {}
    entries = []
    for number, node in enumerate(nodes):
        if node.op.name not in OPS:
            got = node.op.name
            raise GraphError(
                refusal("save", f"node {node.name!r}", "one that a file can hold", got)
            )
        if "store" in node.attributes:
            arrays[f"n{number}"] = NUMPY.asarray(node.attributes["store"].value)
        entries.append(
            {
                "op": node.op.name,
                "name": node.name,
                "inputs": [places[tensor] for tensor in node.inputs],
                "attributes": {
                    name: _plain(value)
                    for name, value in node.attributes.items()
                    if name not in ("info", "store")
                },
                "results": [[list(tensor.shape), tensor.dtype] for tensor in node.results],
            }
        )
    return {"nodes": entries}, arrays


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    if dataclasses.is_dataclass(value):
        options = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **options}
    return write_cell(value) if isinstance(value, MadeCell) else value


# Reading


def _read(path: str | PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, Array]]:
    def refuse(expected: str, got: str) -> GraphError:
        return GraphError(f"[load] {fspath(path)!r}: expected {expected}, got {got}")

    def look(metadata: Mapping[str, str], infos: Mapping[str, TensorInfo]) -> None:
        """Before any array is read: format, version, kind, and which arrays there must be."""
        if metadata.get("format") != "zstate":
            raise refuse("a file that zstate saved", "another safetensors file")
        if metadata.get("version") != str(VERSION):
            raise refuse(f"format version {VERSION}", f"version {metadata.get('version')!r}")
        with _Reading(path):
            structure.update(json.loads(metadata.get("structure", "")))
            found = structure["kind"]
            if found == kind:
                _check_arrays(structure["nodes"], infos)
        if found != kind:
            raise refuse(f"a saved {kind}", f"a saved {found}")

    structure: dict[str, Any] = {}
    try:
        arrays, metadata = storage.read(path, look)
    except storage.FormatError as error:
        raise refuse("a whole safetensors file", f"one that cannot be read: {error}") from error
    if metadata.get("sha256") != _checksum(metadata["structure"], arrays):
        raise refuse("contents that match their checksum", "changed contents")
    return structure, arrays


def _check_arrays(entries: Sequence[Any], infos: Mapping[str, TensorInfo]) -> None:
    """Whether the arrays are those of the constants and variables, with their shapes and types."""
    stored = (CONSTANT.name, VARIABLE.name)
    wanted = {
        f"n{number}": _info(entry["results"][0])
        for number, entry in enumerate(entries)
        if entry["op"] in stored
    }
    for name in sorted({*wanted, *infos}):
        if wanted.get(name) != infos.get(name):
            raise ValueError(f"array {name} is {infos.get(name)}, its node says {wanted.get(name)}")


def _decode(structure: Mapping[str, Any], arrays: dict[str, Array]) -> Graph:
    graph = Graph()
    for number, entry in enumerate(structure["nodes"]):
        op = OPS[entry["op"]]
        inputs = tuple(_tensor(graph, at) for at in entry["inputs"])
        shapes = [_info(result) for result in entry["results"]]
        attributes = _attributes(op, entry["attributes"])
        if op in _GIVEN:
            (info,) = shapes
            attributes = {"info": info}
            if op is not PLACEHOLDER:
                array = arrays[f"n{number}"]
                array.flags.writeable = False
                attributes["store"] = Store(array)
        _check_count(op, inputs, attributes)
        results = graph.add_node(op, inputs, attributes, str(entry["name"]))
        if [tensor.info for tensor in results] != shapes:
            raise ValueError(f"node {entry['name']!r} has shapes other than those saved")
        if op is ASSIGN:
            if inputs[0].node.op is not VARIABLE:
                raise ValueError(f"node {entry['name']!r} assigns to no variable")
            graph.note_assign(inputs[0].node, results[0])
    return graph


def _check_count(op: Op, inputs: Sequence[Tensor], attributes: Mapping[str, Any]) -> None:
    names = attributes.get("names", op.operands)
    fits = len(inputs) == len(names)
    if op.operands[-1:] == ("tensors",):  # sizes that are numbers alone read none
        fits = len(inputs) >= len(names) - ("sizes" in op.kinds)
    if op.name == "adam":  # the last one is optional
        fits = len(inputs) in (len(names) - 1, len(names))
    if not fits:
        raise ValueError(f"{op.name} with {len(inputs)} inputs")


def _tensor(graph: Graph, at: Any) -> Tensor:
    number, result = at
    if type(number) is not int or type(result) is not int or number < 0 or result < 0:
        raise ValueError(f"{at} is not a tensor's place")
    return graph.nodes[number].results[result]


def _info(result: Any) -> TensorInfo:
    shape, dtype = result
    return TensorInfo(checked_shape("load", shape), checked_dtype("load", dtype))


def _attributes(op: Op, plain: Mapping[str, Any]) -> dict[str, Any]:
    if set(plain) != set(op.kinds):
        raise ValueError(f"{op.name} has the attributes {sorted(plain)}")
    return {name: _attribute(kind, plain[name]) for name, kind in op.kinds.items()}


def _attribute(kind: str, value: Any) -> Any:
    """One attribute, of the kind that the op table says, or ValueError."""
    if kind.endswith("?"):
        return None if value is None else _attribute(kind[:-1], value)
    if (kind == "int" and type(value) is int) or (kind == "bool" and type(value) is bool):
        return value
    if kind == "float" and type(value) in (int, float):
        return float(value)
    if kind == "number" and type(value) in (int, float):
        return value
    if kind == "str" and type(value) is str:
        return value
    if kind == "cell" and type(value) is str:
        return read_cell(value)
    if kind == "dtype" and type(value) is str:
        return checked_dtype("load", value)
    if kind in ("ints", "bounds", "names") and isinstance(value, list):
        kinds = {"ints": (int,), "bounds": (int, type(None)), "names": (str,)}[kind]
        if all(type(item) in kinds for item in value):
            return tuple(value)
    if kind == "descriptor" and isinstance(value, dict):
        return _descriptor(dict(value))
    raise ValueError(f"an attribute of kind {kind} is {value!r:.40}")


def _descriptor(options: dict[str, Any]) -> AnyDescriptor | CellDescriptor:
    kind = _DESCRIPTORS[options.pop("kind")]
    activations = kind.activation_fields
    chosen: dict[str, Any] = {
        name: Activation(value) if name in activations else value for name, value in options.items()
    }
    return kind(**chosen)
