"""The ``zstate`` command: one module per subcommand, each with ``add_arguments`` and ``run``.

A subcommand's module is imported when it is used, so that ``--help`` costs little more than the
package itself; rich is imported when a subcommand runs, so that help needs no extra package. What
a subcommand refuses is printed here, as one line.
"""

from __future__ import annotations

import argparse
import codecs
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from .. import __version__
from ..errors import ZStateError, visible
from .arguments import keep_typed

_COMMANDS = {
    "train": "train a character language model",
    "sample": "generate text with a trained model",
    "inspect": "write an HTML page that shows what a trained model does, step by step",
    "export": "export a trained model as a generator in ONNX, Swift or Core ML",
    "graph": "print or draw a graph (saved, ONNX or a run), or export it as Swift, Core ML or C",
    "check": "check every backend on this machine against the oracle",
    "bench": "time zstate against PyTorch, ONNX Runtime and JAX, if installed",
    "convert": "convert weights between PyTorch, Keras, ONNX, Flax, MLX, Core ML and TensorFlow",
    "shapes": "print the shape of every tensor in an operation, and the order of its gradients",
}
# What to print for characters that a terminal cannot show; "?" for all others.
_PLAIN = {"×": "x", "·": "*", "µ": "u", "±": "+-", "–": "-", "…": "...", "│": "|", "─": "-"}
SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Stopped(KeyboardInterrupt):
    """A signal such as SIGTERM, handled like Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status: 2 after an error, 130 after Ctrl-C."""
    try:
        _prepare_output()
        with _signals_stop():
            options = _parse(sys.argv[1:] if arguments is None else arguments)
            status: int = options.command_run(options)
            sys.stdout.flush()
            return status
    except KeyboardInterrupt as stopped:
        return exit_status(stopped)
    except ZStateError as error:
        return _refuse(str(error))
    except BrokenPipeError:  # `zstate sample RUN | head`
        _drop_output()
        return 128 + 13
    except ImportError as error:
        if (error.name or "").startswith("rich"):
            return _refuse("this command needs rich: pip install 'zstate[cli]'")
        return _refuse(str(error))
    except MemoryError as error:
        return _refuse(f"out of memory: {error}" if str(error) else "out of memory")
    except OSError as error:
        if error.strerror is None or error.filename is None:
            _drop_output()
            return _refuse(error.strerror or str(error))
        return _refuse(f"{error.filename}: {error.strerror}")


def exit_status(stopped: KeyboardInterrupt) -> int:
    """The status a shell reports for a command that a signal ended."""
    return 128 + getattr(stopped, "number", signal.SIGINT)


@contextmanager
def _signals_stop() -> Iterator[None]:
    """Turn signals that would end the process into exceptions, so that it can clean up."""
    found = []
    if threading.current_thread() is threading.main_thread():
        found = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_DFL]

    def stop(number: int, _: object) -> None:
        raise Stopped(number)

    for number in found:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in found:
            signal.signal(number, signal.SIG_DFL)


def _prepare_output() -> None:
    """Print a similar character where the terminal lacks one, and nothing where output is closed
    (`>&-`), instead of raising."""

    def similar(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeEncodeError)
        lost = error.object[error.start : error.end]
        return "".join(_PLAIN.get(character, "?") for character in lost), error.end

    codecs.register_error("zstate.similar", similar)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (as long as the process)
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="zstate.similar")


def _drop_output() -> None:
    """Stop printing, because Python would report a closed or full output again when it exits."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse(message: str) -> int:
    shown = "\n".join(map(visible, message.split("\n")))
    print(f"zstate: {shown}", file=sys.stderr)
    return 2


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="zstate",
        description="Fast recurrent layers, and MPSGraph's recurrent operations on any machine.",
    )
    parser.add_argument("--version", action="version", version=f"zstate {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    asked = next((word for word in arguments if not word.startswith("-")), None)
    for name, text in _COMMANDS.items():
        subparser = subparsers.add_parser(name, help=text)
        if name == asked:
            module = importlib.import_module(f".{name}", __name__)
            subparser.description = module.__doc__
            keep_typed(subparser)
            module.add_arguments(subparser)
            subparser.set_defaults(command_run=module.run)
    return parser.parse_args(arguments)
