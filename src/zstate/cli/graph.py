"""Print a saved graph or program, or draw it."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import GraphError
from ..graph import Executable, Graph


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The file, and the output formats."""
    parser.add_argument("file", metavar="FILE", help="a file from Graph.save or Executable.save")
    parser.add_argument(
        "--svg", metavar="OUT", help="draw it to this file; laid out by zstate, without Graphviz"
    )
    parser.add_argument("--dot", metavar="OUT", help="write it in Graphviz's language")
    parser.add_argument(
        "--unfold",
        action="store_true",
        help="draw every node; large graphs are otherwise folded by layer and gradient",
    )


def run(options: argparse.Namespace) -> int:
    """Print the graph, or write the pictures."""
    graph = _load(options.file)
    fold = False if options.unfold else None
    for path, draw in ((options.svg, graph.to_svg), (options.dot, graph.to_dot)):
        if path is not None:
            folded = draw(fold)
            Path(path).write_text(folded, encoding="utf-8")
            note = "" if folded == draw(False) else ", folded (--unfold shows all)"
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
