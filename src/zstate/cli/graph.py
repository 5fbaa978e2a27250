"""Print a graph, draw it, or write it as Swift or for Core ML.

FILE is what Graph.save or Executable.save wrote, an .onnx model, or the folder of a run of
`zstate train`, whose checkpoint has the graph that trains it. To write a run's model for use
elsewhere, see `zstate export`.
"""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from ..errors import GraphError, OptionError, ShapeError, ZStateError, refusal
from ..graph import Executable, Graph, Tensor
from ..graph.ops import PLACEHOLDER
from ..graph.outputs import outputs_of
from ..graph.storage import replacing
from ..graph.swift.words import identifier
from ..layout import brackets


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The file, and the output formats."""
    parser.add_argument(
        "file", metavar="FILE", help="a saved graph or program, an .onnx file, or a run folder"
    )
    parser.add_argument(
        "--svg", metavar="OUT", help="draw it to this file; laid out by zstate, without Graphviz"
    )
    parser.add_argument("--dot", metavar="OUT", help="write it in Graphviz's language")
    parser.add_argument(
        "--swift", metavar="OUT", help="write it as Swift that builds and runs it with MPSGraph"
    )
    parser.add_argument(
        "--coreml",
        metavar="OUT",
        help="write it as a Core ML package (.mlpackage), for inference; needs coremltools",
    )
    parser.add_argument(
        "--target",
        metavar="NAME",
        action="append",
        help="with --swift or --coreml: a tensor to compute; may be repeated (default: every "
        "tensor that no node reads)",
    )
    parser.add_argument(
        "--shape",
        metavar="NAME=SIZES",
        action="append",
        default=[],
        help="with --swift or --coreml: the sizes of a placeholder with unknown ones, such as "
        "x=16,1,8; may be repeated. The Swift file then gets its own file of weights",
    )
    parser.add_argument(
        "--unfold",
        action="store_true",
        help="draw every node; large graphs are otherwise folded by layer and gradient",
    )


def run(options: argparse.Namespace) -> int:
    """Print the graph, or write the files."""
    _refuse_unused(options)
    saved, outputs, weights = _load(Path(options.file))
    graph = saved.graph if isinstance(saved, Executable) else saved
    fold = False if options.unfold else None
    files: list[tuple[str, str, str]] = []  # path, text, what it is: all made before one is written
    for path, draw in ((options.svg, graph.to_svg), (options.dot, graph.to_dot)):
        if path is not None:
            folded = draw(fold)
            note = "" if folded == draw(False) else ", folded (--unfold shows all)"
            files.append((path, folded, f"{len(graph.nodes)} nodes{note} to {path}"))
    if options.swift is not None:
        with _export_in_mind(options.file, "swift"):
            text, beside = _swift(saved, outputs, options, weights)
        what = f"{len(text.splitlines())} lines of Swift to {options.swift}"
        files.append((options.swift, text, f"{what}; it reads {beside} beside it"))
    if options.coreml is not None:
        from ..coreml import save

        with _export_in_mind(options.file, "coreml"):
            save(_program(saved, outputs, options), options.coreml)
        print(f"wrote a Core ML package to {options.coreml}")
    for path, text, what in files:
        with replacing(path) as file:
            file.write(text.encode())
        print(f"wrote {what}")
    if not files and options.coreml is None:
        print(graph)
    return 0


def _swift(
    saved: Graph | Executable,
    outputs: Mapping[str, Tensor],
    options: argparse.Namespace,
    weights: str | None,
) -> tuple[str, str]:
    """The text, and the name of the file of its arrays; those of an ONNX model, and of a program
    for the sizes given, are written where the text looks for them."""
    path = Path(options.swift)
    place = path.with_suffix(".safetensors")
    is_new = weights is None or bool(options.shape)
    beside = place.name if is_new or weights is None else weights
    if isinstance(saved, Executable) or options.shape:
        saved = _program(saved, outputs, options)
        text = saved.to_swift(identifier(path.stem), weights=beside)
    else:
        targets = _chosen(saved, outputs, options) or None
        text = saved.to_swift(identifier(path.stem), targets=targets, weights=beside)
    if is_new:
        if place.exists() and place.samefile(options.file):
            raise OptionError(
                f"[graph] --swift {options.swift}: its weights would overwrite {options.file!r}; "
                "choose another name"
            )
        saved.save(place)
    return text, beside


def _program(
    saved: Graph | Executable, outputs: Mapping[str, Tensor], options: argparse.Namespace
) -> Executable:
    """The program of a file; a graph is compiled for its targets and the sizes given."""
    if isinstance(saved, Executable):
        _refuse_targets(options)
        return saved
    targets = _chosen(saved, outputs, options) or outputs_of(saved)
    fed = {node.name: node.results[0] for node in saved.needed(targets) if node.op is PLACEHOLDER}
    sizes = {name: tensor.shape for name, tensor in fed.items()}
    for text in options.shape:
        name, _, numbers = text.partition("=")
        if name not in fed or not re.fullmatch(r"\d{1,9}(,\d{1,9})*", numbers):
            expected = f"NAME=SIZES with a NAME of {', '.join(fed)}"
            if name in fed:
                expected = f"sizes with commas between them, such as {name}=16,1,8"
            raise OptionError(refusal("graph", "--shape", expected, repr(text)))
        sizes[name] = tuple(map(int, numbers.split(",")))
    for name, shape in sizes.items():
        if None in shape:
            expected = f"known sizes (--shape {name}=…)"
            raise ShapeError(refusal("graph", f"placeholder {name!r}", expected, brackets(shape)))
    feeds = {fed[name]: (shape, fed[name].dtype) for name, shape in sizes.items()}
    return saved.compile(cast(Any, feeds), targets)


def _chosen(
    graph: Graph, outputs: Mapping[str, Tensor], options: argparse.Namespace
) -> list[Tensor]:
    """What was asked for, else the outputs of an ONNX model under its names, else nothing."""
    if options.target is not None:
        return _targets(graph, options.target)
    return [t if t.name == name else graph.identity(t, name=name) for name, t in outputs.items()]


def _targets(graph: Graph, names: Sequence[str]) -> list[Tensor]:
    """The tensors of these names; a node's name stands for its first result."""
    by_name: dict[str, Tensor] = {}
    for node in graph.nodes:
        by_name.setdefault(node.name, node.results[0])
        by_name.update((tensor.name, tensor) for tensor in node.results)
    for name in names:
        if name not in by_name:
            expected = "the name of a tensor (`zstate graph FILE` prints them)"
            raise OptionError(refusal("graph", "--target", expected, repr(name)))
    return [by_name[name] for name in names]


@contextlib.contextmanager
def _export_in_mind(file: str, to: str) -> Iterator[None]:
    """A run's graph trains, with what other runtimes lack: a refusal names the other command."""
    try:
        yield
    except ZStateError as error:
        if not Path(file).is_dir():
            raise
        hint = f"the run's model alone: zstate export {file} --to {to}"
        raise type(error)(f"{error}; {hint}") from error


def _refuse_unused(options: argparse.Namespace) -> None:
    """An option that nothing here reads: the output it belongs to was not asked for."""
    for name, readers in (
        ("target", ("swift", "coreml")),
        ("shape", ("swift", "coreml")),
        ("unfold", ("svg", "dot")),
    ):
        if getattr(options, name) and not any(getattr(options, reader) for reader in readers):
            needed = " or ".join(f"--{reader}" for reader in readers)
            raise OptionError(f"[graph] --{name} needs {needed}")


def _refuse_targets(options: argparse.Namespace) -> None:
    if options.target is not None or options.shape:
        raise OptionError(
            "[graph] --target and --shape are for graphs: a saved program has its own targets and "
            "sizes"
        )


def _load(path: Path) -> tuple[Graph | Executable, Mapping[str, Tensor], str | None]:
    """The graph or program of a file or a run; the outputs of an ONNX model by its names; and
    the name of the file of its arrays, None where it has none that a Swift program could read."""
    if path.suffix.lower() == ".onnx":
        from ..onnx import load

        model = load(path)
        return model.graph, model.outputs, None
    if path.suffix.lower() in (".keras", ".h5", ".pt", ".pth"):
        expected = "a saved graph or program, an .onnx model or a run folder"
        got = f"{str(path)!r}, a model that can be exported to ONNX"
        raise OptionError(refusal("graph", "FILE", expected, got))
    if path.is_dir():
        from ..train.loop import checkpoint_of

        path = checkpoint_of(path)
    try:
        return Graph.load(path), {}, path.name
    except GraphError as error:
        if "got a saved executable" not in str(error):
            raise
        return Executable.load(path), {}, path.name
