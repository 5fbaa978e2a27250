"""Print a saved graph or program, or draw it."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from ..errors import GraphError
from ..graph import Executable, Graph


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The file, and what to make of it."""
    parser.add_argument("file", metavar="FILE", help="a file of Graph.save or Executable.save")
    parser.add_argument(
        "--svg", metavar="OUT", help="draw it to this file; laid out by zstate, without Graphviz"
    )
    parser.add_argument("--dot", metavar="OUT", help="write it in Graphviz's language")


def run(options: argparse.Namespace) -> int:
    """Print it, or write what was asked for."""
    console = Console(soft_wrap=True)
    graph = _load(options.file)
    if options.svg:
        Path(options.svg).write_text(graph.to_svg(), encoding="utf-8")
        console.print(f"drew {len(graph.nodes)} nodes to {escape(options.svg)}")
    if options.dot:
        Path(options.dot).write_text(graph.to_dot(), encoding="utf-8")
        console.print(f"wrote {len(graph.nodes)} nodes to {escape(options.dot)}")
    if not options.svg and not options.dot:
        console.print(escape(str(graph)), highlight=False)
    return 0


def _load(path: str) -> Graph:
    try:
        return Graph.load(path)
    except GraphError as error:
        if "got a saved executable" not in str(error):
            raise
        return Executable.load(path).graph
