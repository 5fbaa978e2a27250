"""The ``zstate`` command: one module a subcommand, each with ``add_arguments`` and ``run``."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence

from .. import __version__

_COMMANDS = {
    "train": "train a character language model through the graph",
    "sample": "write text with a trained model",
    "graph": "print or draw a saved graph",
    "check": "compare every backend of this machine with the oracle",
    "bench": "time it beside PyTorch, ONNX Runtime and JAX, where they are installed",
    "shapes": "print the shape of every tensor of an operation, and the order of its gradients",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    if importlib.util.find_spec("rich") is None:
        print("zstate: the command line needs rich: pip install 'zstate[cli]'", file=sys.stderr)
        return 2
    parser = argparse.ArgumentParser(
        prog="zstate", description="MPSGraph's recurrent operations on any machine."
    )
    parser.add_argument("--version", action="version", version=f"zstate {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in _COMMANDS.items():
        module = importlib.import_module(f".{name}", __name__)
        subparser = subparsers.add_parser(name, help=text, description=module.__doc__)
        module.add_arguments(subparser)
        subparser.set_defaults(command_run=module.run)
    options = parser.parse_args(arguments)
    status: int = options.command_run(options)
    return status
