"""What the options of several commands share: numbers, devices, files, and which go together."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..backends import cuda
from ..errors import OptionError, refusal

DEVICES = ("cpu", "cuda", "auto")


class _Typed(argparse.Action):
    """Stores a value and the option as it was typed, so that messages can name it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values)
        if option_string is not None:
            namespace.typed = {**getattr(namespace, "typed", {}), self.dest: option_string}


def keep_typed(parser: argparse.ArgumentParser) -> None:
    """Let the parser keep in ``typed`` which options with a value were given, and as what."""
    parser.register("action", None, _Typed)
    parser.set_defaults(typed={})


def _is_given(options: argparse.Namespace, name: str) -> bool:
    value = getattr(options, name)
    return name in options.typed or (isinstance(value, bool | list) and bool(value))


def refuse_beside(command: str, asked: str, options: argparse.Namespace, **others: object) -> None:
    """Reject options that have no effect beside ``asked``, unless given as what it implies."""
    for name, implied in others.items():
        value = getattr(options, name)
        if _is_given(options, name) and value != implied:
            shown = f"--{name}" if value is True else f"--{name} {value}"
            raise OptionError(f"[{command}] {asked} cannot be combined with {shown}")


def refuse_without(
    command: str, needed: str, options: argparse.Namespace, names: Iterable[str]
) -> None:
    """Reject options that have no effect without others."""
    for name in names:
        if _is_given(options, name):
            raise OptionError(f"[{command}] --{name} needs {needed}")


def at_least(kind: type[int] | type[float], least: int) -> Callable[[str], float]:
    """The type of an argument that is a finite number and not less."""

    def parsed(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = least - 1
        if not least <= value < float("inf"):
            what = "an integer" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"expected {what} of at least {least}, got {text!r}")
        return value

    return parsed


def add_number(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup,
    name: str,
    text: str,
    default: float | None = None,
    *,
    kind: type[int] | type[float] | None = None,
    least: int | None = None,
    metavar: str | None = None,
) -> None:
    """An option that counts something (an integer of at least 1) or, of the type float, measures
    something (at least 0). The help names the default."""
    kind = kind or (float if isinstance(default, float) else int)
    parser.add_argument(
        name,
        type=at_least(kind, int(kind is int) if least is None else least),
        default=default,
        metavar=metavar or ("N" if kind is int else "X"),
        help=text if default is None else f"{text} (default: {default:g})",
    )


def add_run(parser: argparse.ArgumentParser) -> None:
    """The folder of a run."""
    parser.add_argument("run_folder", metavar="RUN", help="folder of a run, such as runs/lstm")


def add_device(parser: argparse.ArgumentParser, purpose: str) -> None:
    """Where a command computes; None if it was not given."""
    text = f"where to {purpose} (default: cpu)"
    parser.add_argument("--device", choices=DEVICES, help=text)


def device_of(command: str, name: str) -> str | None:
    """The device as programs take it: None is the CPU; "auto" is a GPU where there is one."""
    if name == "cpu":
        return None
    if find_spec("torch") is not None:
        import_module("torch")
    reason = cuda.unavailable()
    if reason is None:
        return f"cuda:{sys.modules['torch'].cuda.current_device()}"
    if name == "auto":
        return None
    raise OptionError(refusal(command, "--device", "a CUDA device", f"none: {reason}"))


def check_ending(command: str, option: str, path: str | Path, endings: Sequence[str]) -> None:
    """Refuse a file whose name says that it is something else."""
    if not str(path) or Path(path).suffix.lower() not in endings:
        expected = "a name that ends in " + " or ".join(filter(None, endings))
        raise OptionError(refusal(command, option, expected, repr(str(path))))


def check_writable(command: str, option: str, path: Path) -> None:
    """Refuse, before anything runs, a file that could not be written afterwards."""
    if path.is_dir() or not path.parent.is_dir():
        got = "a folder" if path.is_dir() else f"no folder {str(path.parent)!r}"
        raise OptionError(refusal(command, option, "a file in a folder that exists", got))
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OptionError(refusal(command, option, "a file that can be written", str(path)))
