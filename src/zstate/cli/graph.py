"""Print a saved graph or program, draw it, or write it as Swift or for Core ML."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from ..errors import GraphError, OptionError, ShapeError, refusal
from ..graph import Executable, Graph, Tensor
from ..graph.ops import PLACEHOLDER
from ..graph.outputs import outputs_of
from ..graph.storage import replacing
from ..graph.swift.words import identifier
from ..layout import brackets


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The file, and the output formats."""
    parser.add_argument("file", metavar="FILE", help="a file from Graph.save or Executable.save")
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
        help="with --swift or --coreml: a tensor to compute; default: every one that nothing reads",
    )
    parser.add_argument(
        "--shape",
        metavar="NAME=SIZES",
        action="append",
        default=[],
        help="with --coreml: the sizes of a placeholder that leaves some open, such as x=16,1,8",
    )
    parser.add_argument(
        "--unfold",
        action="store_true",
        help="draw every node; large graphs are otherwise folded by layer and gradient",
    )


def run(options: argparse.Namespace) -> int:
    """Print the graph, or write the files."""
    saved = _load(options.file)
    graph = saved.graph if isinstance(saved, Executable) else saved
    fold = False if options.unfold else None
    files: list[tuple[str, str, str]] = []  # path, text, what it is: all made before one is written
    for path, draw in ((options.svg, graph.to_svg), (options.dot, graph.to_dot)):
        if path is not None:
            folded = draw(fold)
            note = "" if folded == draw(False) else ", folded (--unfold shows all)"
            files.append((path, folded, f"{len(graph.nodes)} nodes{note} to {path}"))
    if options.swift is not None:
        text = _swift(saved, options)
        what = f"{len(text.splitlines())} lines of Swift to {options.swift}"
        files.append((options.swift, text, f"{what}; it reads {Path(options.file).name} beside it"))
    if options.coreml is not None:
        from ..coreml import save

        save(_program(saved, options), options.coreml)
        print(f"wrote a Core ML package to {options.coreml}")
    for path, text, what in files:
        with replacing(path) as file:
            file.write(text.encode())
        print(f"wrote {what}")
    if not files and options.coreml is None:
        print(graph)
    return 0


def _swift(saved: Graph | Executable, options: argparse.Namespace) -> str:
    name, weights = identifier(Path(options.swift).stem), Path(options.file).name
    if isinstance(saved, Executable):
        _refuse_targets(options)
        return saved.to_swift(name, weights=weights)
    targets = None if options.target is None else _targets(saved, options.target)
    return saved.to_swift(name, targets=targets, weights=weights)


def _program(saved: Graph | Executable, options: argparse.Namespace) -> Executable:
    """The program of a file; a graph is compiled for its targets and the sizes given."""
    if isinstance(saved, Executable):
        _refuse_targets(options)
        return saved
    targets = outputs_of(saved) if options.target is None else _targets(saved, options.target)
    fed = {node.name: node.results[0] for node in saved.needed(targets) if node.op is PLACEHOLDER}
    sizes = {name: tensor.shape for name, tensor in fed.items()}
    for text in options.shape:
        name, _, numbers = text.partition("=")
        if name not in fed or not re.fullmatch(r"\d{1,9}(,\d{1,9})*", numbers):
            expected = f"NAME=SIZES with a NAME of {', '.join(fed)}"
            raise OptionError(refusal("graph", "--shape", expected, repr(text)))
        sizes[name] = tuple(map(int, numbers.split(",")))
    for name, shape in sizes.items():
        if None in shape:
            expected = f"known sizes (--shape {name}=…)"
            raise ShapeError(refusal("graph", f"placeholder {name!r}", expected, brackets(shape)))
    feeds = {fed[name]: (shape, fed[name].dtype) for name, shape in sizes.items()}
    return saved.compile(cast(Any, feeds), targets)


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


def _refuse_targets(options: argparse.Namespace) -> None:
    if options.target is not None or options.shape:
        expected = "none with a saved program, which has its own"
        raise OptionError(refusal("graph", "--target and --shape", expected, "one"))


def _load(path: str) -> Graph | Executable:
    try:
        return Graph.load(path)
    except GraphError as error:
        if "got a saved executable" not in str(error):
            raise
        return Executable.load(path)
