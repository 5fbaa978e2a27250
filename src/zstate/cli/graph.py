"""Print a saved graph or program, or draw it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import GraphError
from ..graph import Executable, Graph, printing
from .folding import LARGE, fold


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The file, and the output formats."""
    parser.add_argument("file", metavar="FILE", help="a file from Graph.save or Executable.save")
    parser.add_argument(
        "--svg", metavar="OUT", help="draw it to this file; laid out by zstate, without Graphviz"
    )
    parser.add_argument("--dot", metavar="OUT", help="write it in Graphviz's language")
    parser.add_argument(
        "--unfold",
        metavar="GLOB",
        nargs="?",
        const="*",
        help=f"draw every node (graphs of more than {LARGE} nodes are otherwise folded by layer "
        "and gradient); with a glob such as 'layer0*', unfold only the boxes whose names match",
    )


def run(options: argparse.Namespace) -> int:
    """Print the graph, or write the pictures."""
    graph = _load(options.file)
    shown: Any = graph
    if len(graph.nodes) > LARGE and options.unfold != "*":
        shown = fold(graph, options.unfold)
    for path, draw in ((options.svg, printing.to_svg), (options.dot, printing.to_dot)):
        if path is not None:
            Path(path).write_text(draw(shown), encoding="utf-8")
            folded = f" in {len(shown.nodes)} boxes (--unfold shows all)"
            note = folded if shown is not graph else ""
            print(f"wrote {len(graph.nodes)} nodes{note} to {path}")
    if options.svg is None and options.dot is None:
        print(graph)
    return 0


def _load(path: str) -> Graph:
    try:
        return Graph.load(path)
    except GraphError as error:
        if "got a saved executable" not in str(error):
            raise
        return Executable.load(path).graph
