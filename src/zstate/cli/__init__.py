"""The ``zstate`` command: one module a subcommand, each with ``add_arguments`` and ``run``.

A subcommand's module is imported when it is asked for, so that ``--help`` costs little more than
the package itself. What a subcommand refuses is printed here, as one line.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Sequence

from .. import __version__
from ..errors import ZStateError

_COMMANDS = {
    "train": "train a character language model through the graph",
    "sample": "write text with a trained model",
    "graph": "print or draw a saved graph",
    "check": "compare every backend of this machine with the oracle",
    "bench": "time it beside PyTorch, ONNX Runtime and JAX, where they are installed",
    "convert": "convert weights between PyTorch, Keras, ONNX, Flax, MLX, Core ML and TensorFlow",
    "shapes": "print the shape of every tensor of an operation, and the order of its gradients",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status: 2 for a refusal, 130 after Ctrl-C."""
    if importlib.util.find_spec("rich") is None:
        return _refuse("the command line needs rich: pip install 'zstate[cli]'")
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    try:
        status: int = options.command_run(options)
        return status
    except KeyboardInterrupt:
        return 130
    except (ZStateError, OSError, UnicodeDecodeError, ImportError) as error:
        return _refuse(str(error))


def at_least_zero(kind: type[int] | type[float]) -> Callable[[str], float]:
    """The type of an argument that may not be negative."""

    def parsed(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = -1
        if not 0 <= value < float("inf"):
            what = "whole number" if kind is int else "number"
            raise argparse.ArgumentTypeError(f"expected a {what} of at least 0, got {text!r}")
        return value

    return parsed


def _refuse(message: str) -> int:
    print(f"zstate: {message}", file=sys.stderr)
    return 2


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="zstate", description="MPSGraph's recurrent operations on any machine."
    )
    parser.add_argument("--version", action="version", version=f"zstate {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    asked = next((word for word in arguments if not word.startswith("-")), None)
    for name, text in _COMMANDS.items():
        subparser = subparsers.add_parser(name, help=text)
        if name == asked:
            module = importlib.import_module(f".{name}", __name__)
            subparser.description = module.__doc__
            module.add_arguments(subparser)
            subparser.set_defaults(command_run=module.run)
    return parser.parse_args(arguments)
