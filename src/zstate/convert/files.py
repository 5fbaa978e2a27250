"""Files of weights: arrays by name (.safetensors, .npz, .pt), and models (.onnx, .keras, .h5).

A file is read as its contents (``contents.py``), from which a stack or some layers are chosen.
Keras's and ONNX's formats have their own modules next to this one. Their packages are imported only
when a file needs them. A file is written under a temporary name and renamed, so that nothing is
left half-written.
"""

from __future__ import annotations

import importlib
import io
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import OptionError, ZStateError, refusal
from ..graph import storage
from ..types import Array
from . import keras_files, onnx_graph, small
from .contents import Chosen, Contents
from .conversion import facts, save
from .layer import Layer
from .limits import Budget
from .names import by_layer, natural
from .objects import Piece, as_array, by_path, flat
from .table import FRAMEWORKS, RNN
from .weights import Told, Weights, from_text, to_text

_KEY = "zstate.convert"  # in the metadata of a safetensors file: the layers' facts
_LONGEST_COMMENT = 65535  # of a zip file, and so of a .npz
_KERAS = ("keras", "tensorflow")
_FRAMEWORKS = {"onnx": ("onnx",), "keras": _KERAS, "h5": _KERAS, "pt": ("torch",)}
_WRITTEN = ("safetensors", "npz", "onnx", "keras", "h5")
_ENDINGS = {"hdf5": "h5", "pth": "pt"}


def read(path: str, source: str, only: Sequence[str] = (), limit: int | None = None) -> Chosen:
    """The layers of a file to convert: all of them if they are a stack.

    Args:
        path: the file.
        source: its framework.
        only: names of layers, or prefixes of names; these layers are taken one by one.
        limit: how many bytes the arrays may take; None means 256 MiB, or 16 times the file's
            size.
    """
    kind = _kind("from", path, (*_WRITTEN, "pt", "pth"))
    _check_framework("from", kind, source)
    budget = Budget(path, limit)
    try:
        with _reading(path, kind, source, budget) as contents:
            return contents.chosen(path, only)
    except (ZStateError, ImportError):
        raise
    except MemoryError as error:
        expected = "arrays that fit into memory"
        raise OptionError(refusal("convert", path, expected, str(error) or "more")) from error
    except Exception as error:  # whatever a parser raises on malformed bytes
        got = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise OptionError(refusal("convert", path, f"a whole .{kind} file", got)) from error


def _reading(path: str, kind: str, source: str, budget: Budget) -> AbstractContextManager[Contents]:
    if kind == "onnx":
        return onnx_graph.reading(path, budget)
    if kind in ("keras", "h5"):
        return keras_files.reading(_package("h5py", "h5py"), path, kind, source, budget)
    return _named(path, kind, source, budget)


@contextmanager
def _named(path: str, kind: str, source: str, budget: Budget) -> Iterator[Contents]:
    """Arrays by name; a file that zstate wrote says which layers they are."""
    text = None
    arrays: dict[str, Any]
    if kind == "safetensors":
        arrays, metadata = storage.read(path)
        arrays, text = small.restored(arrays), metadata.get(_KEY)
    elif kind == "npz":
        arrays, text = _npz(path, budget)
    else:
        arrays = _torch_file(path, budget)
    arrays = {name: arrays[name] for name in natural(arrays)}
    if text is None:
        yield _of_names(arrays, source)
        return
    weights, names = from_text(arrays, text)
    if weights.framework != source:
        raise OptionError(refusal("convert", "--from", repr(weights.framework), repr(source)))
    yield _of_weights(weights, names)


def _of_names(arrays: Mapping[str, Any], source: str) -> Contents:
    layers, others = by_layer(source, arrays)

    def made(names: list[str]) -> Callable[[], list[Piece]]:
        return lambda: [Piece({name: as_array(name, arrays[name]) for name in names})]

    unknown = ["arrays alone do not say how these are connected"]
    return Contents(
        {layer: made(own) for layer, own in layers.items()},
        others,
        unknown if len(layers) > 1 else [],
        separator=FRAMEWORKS[source].separator,
    )


def _of_weights(weights: Weights, names: Mapping[str, str]) -> Contents:
    separator = FRAMEWORKS[weights.framework].separator
    stacks: dict[str, list[tuple[Told, dict[str, Array]]]] = {}
    for told, own in weights.parts(weights.framework):
        stacks.setdefault(names[told.prefix], []).append((told, own))

    def made(parts: list[tuple[Told, dict[str, Array]]]) -> Callable[[], list[Piece]]:
        return lambda: [Piece(flat(own, separator), told.facts, told.cell) for told, own in parts]

    return Contents(
        {name: made(parts) for name, parts in stacks.items()},
        wiring=["layers that were taken one by one"] if len(stacks) > 1 else [],
        separator=separator,
    )


def _npz(path: str, budget: Budget) -> tuple[dict[str, Array], str | None]:
    """The arrays of a .npz, each of the size that its header says, and the archive's comment."""
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if not name.endswith(".npy"):
                raise ValueError(f"{name!r} is not an array")
            if name.removesuffix(".npy") in arrays:
                raise ValueError(f"duplicate array {name!r}")
            with budget.open(archive, name) as file:
                arrays[name.removesuffix(".npy")] = _npy(file, archive.getinfo(name).file_size)
        comment = archive.comment.decode()
    return arrays, comment if comment.startswith("{") else None


def _npy(file: Any, size: int) -> Array:
    version = np.lib.format.read_magic(file)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise ValueError(f"an array of version {version}")
    shape, fortran, dtype = readers[version](file)
    if dtype.hasobject:
        raise ValueError("Python objects instead of numbers")
    count = math.prod(shape) * dtype.itemsize
    if min((0, *shape)) < 0 or count != size - file.tell():
        raise ValueError(f"{size - file.tell()} bytes for {dtype}{list(shape)}")
    array: Array = np.frombuffer(file.read(), dtype).reshape(shape[::-1] if fortran else shape)
    return array.T if fortran else array


def _torch_file(path: str, budget: Budget) -> dict[str, Any]:
    """The tensors of a state dict, or of a checkpoint that holds one; nothing of it is run."""
    torch = _package("torch", "zstate[torch]")
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                budget.take(info.file_size, info.filename)
            if any(name.endswith("/constants.pkl") for name in archive.namelist()):
                expected = "a state dict (torch.save(torch.jit.load(…).state_dict(), …))"
                raise OptionError(refusal("convert", path, expected, "a TorchScript program"))
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        if "weights_only" not in str(error) and "Weights only" not in str(error):
            raise
        expected = (
            "a state dict (torch.save(model.state_dict(), …)); zstate does not load pickled "
            "modules, because they can run any code"
        )
        got = "a file with objects other than tensors"
        raise OptionError(refusal("convert", path, expected, got)) from error
    if not isinstance(found, Mapping):
        expected = "a state dict"
        raise OptionError(refusal("convert", path, expected, type(found).__name__))
    arrays = by_path(found, ".")
    for name, value in arrays.items():
        if isinstance(value, torch.Tensor):  # a small storage may stand for a large tensor
            budget.take(value.numel() * value.element_size(), name)
    return arrays


def check_target(path: str, target: str) -> str:
    """The format that a path ends with, if a framework's weights can be written in it."""
    kind = _kind("to", path, _WRITTEN)
    _check_framework("to", kind, target)
    if kind == "keras" and target != "keras":
        raise OptionError(refusal("convert", "--to", "keras for a .keras file", target))
    return kind


def write(
    path: str, stacks: Mapping[str, Sequence[Layer]], target: str, *, int8: bool = False
) -> None:
    """Save layers under a framework's names, in the format that the path ends with.

    ``stacks`` are layers that feed each other, by name; a single stack needs none (""). ``int8``:
    write their matrices in 8 bits, each with its scales.
    """
    kind = check_target(path, target)
    if int8 and kind != "safetensors":
        expected = "a .safetensors file for int8 weights"
        raise OptionError(refusal("convert", "the file to write", expected, repr(path)))
    for layers in stacks.values():
        _check_sizes(layers)
    arrays, names = _saved(stacks, target)
    for name in stacks:
        if name != name.encode(errors="replace").decode() or "\0" in name:
            expected = "Unicode text without NUL"
            raise OptionError(refusal("convert", "a layer's name", expected, ascii(name)))
    if kind == "onnx":
        model = _onnx_model(stacks)
        with storage.replacing(path) as file:
            file.write(model.SerializeToString())
    elif kind in ("keras", "h5"):
        if len(stacks) > 1:
            expected = f"one --only for a .{kind} file, which holds one model"
            got = f"{len(stacks)} layers (.safetensors, .npz and .onnx hold several)"
            raise OptionError(refusal("convert", path, expected, got))
        data = keras_files.written(_package("h5py", "h5py"), kind, stacks, target)
        with storage.replacing(path) as file:
            file.write(data)
    elif kind == "npz":
        strange = [name for name, array in arrays.items() if array.dtype.name == "bfloat16"]
        if strange:
            raise OptionError(refusal("convert", strange[0], "a type that .npz has", "bfloat16"))
        data = _npz_bytes(arrays, to_text(arrays, names))
        with storage.replacing(path) as file:
            file.write(data)
    else:
        text = to_text(arrays, names)
        storage.write(path, small.in_int8(arrays) if int8 else arrays, {_KEY: text})


def _check_sizes(layers: Sequence[Layer]) -> None:
    for number, (before, layer) in enumerate(pairwise(layers), 1):
        wide = before.directions * before.hidden
        if layer.inputs != wide:
            expected = f"{wide} inputs, as many as the layer before it returns"
            raise OptionError(refusal("convert", f"layer {number}", expected, str(layer.inputs)))


def _saved(stacks: Mapping[str, Sequence[Layer]], target: str) -> tuple[Weights, dict[str, str]]:
    """The arrays of all stacks, and the stack of each prefix of their names."""
    arrays: dict[str, Array] = {}
    makers: dict[str, str] = {}  # the stack of each array
    layers: list[Told] = []
    names: dict[str, str] = {}
    for name, stack in stacks.items():
        saved = save(stack, target=target)
        front = f"{name}{FRAMEWORKS[target].separator}" if name else ""
        own = {front + each: array for each, array in saved.items()}
        told = [each._replace(prefix=front + each.prefix) for each in saved.layers]
        prefixes = [each.prefix for each in told]
        for taken, new in ((makers, own), (names, prefixes)):
            for each in new:
                if each in taken:
                    raise _same_names(each, taken[each], name)
        arrays |= own
        makers |= dict.fromkeys(own, name)
        layers += told
        names |= dict.fromkeys(prefixes, name)
    whole = Weights(arrays, target, layers)
    for told_of, found in whole.parts(target):
        for each in found:
            maker, reader = makers[told_of.prefix + each], names[told_of.prefix]
            if maker != reader:
                raise _same_names(told_of.prefix + each, maker, reader)
    return whole, names


def _same_names(array: str, one: str, other: str) -> OptionError:
    both = f"layers {one!r} and {other!r} both have an array {array!r}"
    return OptionError(f"[convert] {both} (take them one at a time with --only)")


def _npz_bytes(arrays: Mapping[str, Array], text: str) -> bytes:
    """A .npz with the facts as the archive's comment, which no array's name can collide with."""
    if len(text.encode()) > _LONGEST_COMMENT:
        expected = f"at most {_LONGEST_COMMENT} bytes of facts in a .npz file (or a .safetensors)"
        got = str(len(text.encode()))
        raise OptionError(refusal("convert", "the file to write", expected, got))
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.comment = text.encode()
    return buffer.getvalue()


def _kind(option: str, path: str, known: tuple[str, ...]) -> str:
    kind = Path(path).suffix.removeprefix(".").lower()
    kind = _ENDINGS.get(kind, kind)
    if kind not in known:
        expected = f"a file that ends in {', '.join('.' + each for each in known)}"
        verb = "read" if option == "from" else "write"
        raise OptionError(refusal("convert", f"the file to {verb}", expected, repr(path)))
    return kind


def _check_framework(option: str, kind: str, framework: str) -> None:
    wanted = _FRAMEWORKS.get(kind)
    if wanted is not None and framework not in wanted:
        expected = f"{' or '.join(wanted)} for a .{kind} file"
        raise OptionError(refusal("convert", f"--{option}", expected, framework))


def _package(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"this file needs the package {name}: pip install {extra!r}") from error


def _onnx_model(stacks: Mapping[str, Sequence[Layer]]) -> Any:
    """A model of one node for each layer: X [T,N,I] in, Y [T,N,D·H] and the last states out.

    The inputs and outputs of one stack among several have its name in front.
    """
    _package("onnx", "zstate[onnx]")
    from onnx import helper, numpy_helper

    graph = helper.make_graph([], "layers", [], [])
    graph.initializer.append(numpy_helper.from_array(np.array([0, 0, -1], np.int64), "flat"))
    for name, layers in stacks.items():
        front = f"{name}." if len(stacks) > 1 else ""
        source = f"{front}X"
        kind = helper.np_dtype_to_tensor_dtype(layers[0].tensors["recurrent_weight"].dtype)
        info = helper.make_tensor_value_info
        graph.input.append(info(source, kind, ["T", "N", layers[0].inputs]))
        wide = layers[-1].directions * layers[-1].hidden
        graph.output.append(info(f"{front}Y", kind, ["T", "N", wide]))
        for number, layer in enumerate(layers):
            last = number == len(layers) - 1
            target = f"{front}Y" if last else f"{front}source_{number + 1}"
            title = f"{name}_{number}" if name and len(layers) > 1 else name
            _add_onnx_layer(graph, layer, (source, target), (front, f"_{number}"), title)
            source = target
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _add_onnx_layer(
    graph: Any, layer: Layer, ends: tuple[str, str], around: tuple[str, str], title: str
) -> None:
    """A node and the two behind it that join its directions; ``around`` stands around each name."""
    from onnx import helper, numpy_helper

    def named(word: str) -> str:
        return f"{around[0]}{word}{around[1]}"

    arrays = save(layer, target="onnx")
    for name, array in arrays.items():
        graph.initializer.append(numpy_helper.from_array(array, named(name)))
    given = ["W", "R", "B", "", "initial_h", "initial_c", "P"]
    inputs = [ends[0]] + [named(name) if name in arrays else "" for name in given]
    while not inputs[-1]:
        inputs.pop()
    op = "RNN" if layer.kind == RNN else layer.kind.upper()
    states = [named(name) for name in (["Y_h", "Y_c"] if layer.kind == "lstm" else ["Y_h"])]
    steps, turned = named("steps"), named("turned")
    told = facts(layer, target="onnx")
    graph.node.append(helper.make_node(op, inputs, [steps, *states], name=title, **told))
    graph.node.append(helper.make_node("Transpose", [steps], [turned], perm=[0, 2, 1, 3]))
    graph.node.append(helper.make_node("Reshape", [turned, "flat"], [ends[1]]))
    kind = helper.np_dtype_to_tensor_dtype(layer.tensors["recurrent_weight"].dtype)
    shape: list[str | int | None] = [layer.directions, "N", layer.hidden]
    graph.output.extend(helper.make_tensor_value_info(name, kind, shape) for name in states)
