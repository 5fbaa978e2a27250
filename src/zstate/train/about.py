"""run.json, the description of a run: read and checked."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import GraphError, OptionError, refusal
from .data import Alphabet
from .model import Settings

ABOUT = "run.json"
# What a finished run adds.
SAMPLE, PICTURES = "sample.txt", ("loss.png", "gates.png", "gradient_flow.png")


def read_about(folder: Path) -> dict[str, Any]:
    """The contents of a folder's run.json, with ``settings`` as :class:`Settings`."""
    try:
        text = (folder / ABOUT).read_bytes()
    except (OSError, ValueError) as error:
        got = f"a folder without {ABOUT}" if folder.is_dir() else "no such folder"
        if (folder / ABOUT).exists():
            got = f"{ABOUT} that cannot be read: {getattr(error, 'strerror', error)}"
        elif folder.is_file():
            got = "a file"
        expected = "the folder of a run of `zstate train`"
        raise OptionError(refusal("run", repr(str(folder)), expected, got)) from error
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise no_run(folder, "something else") from error
    if not isinstance(found, dict) or not _FIELDS.keys() <= found.keys():
        raise no_run(folder, "that of another program or version")
    for name, is_right in _FIELDS.items():
        if not is_right(found[name]):
            raise no_run(folder, f"{name}: {json.dumps(found[name]):.60}")
    # Runs of earlier versions lack some options, and all norms.
    found["options"] = {**USUAL_OPTIONS, **found["options"]}
    norms = found.setdefault("gradient_norms", [None] * len(found["history"]))
    if not _are_norms(norms, found["history"]):
        raise no_run(folder, f"gradient_norms: {json.dumps(norms):.60}")
    try:
        found["settings"] = Settings(**found["settings"])
        Alphabet(found["alphabet"]).encode(found["prompt"])
    except (OptionError, TypeError) as error:
        raise no_run(folder, f"wrong settings: {error}") from error
    return found


def no_run(folder: Path, got: str) -> GraphError:
    """The refusal of a folder whose files do not fit together."""
    return GraphError(refusal("run", str(folder / ABOUT), "a run of `zstate train`", got))


def _is_number(value: object) -> bool:
    if type(value) is int:
        return abs(value) < 2**53
    return type(value) is float and math.isfinite(value)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**53


# The options of the command line that a run keeps for --resume, which may also change them: their
# defaults, and what they may be.
OPTIONS: dict[str, tuple[Any, Callable[[Any], bool]]] = {
    "checkpoint_every": (100, lambda v: _is_count(v) and v > 0),
    "temperature": (0.7, lambda v: _is_number(v) and v >= 0),
    "encoding": ("utf-8", lambda v: isinstance(v, str)),
    "device": ("cpu", lambda v: v in ("cpu", "cuda", "auto")),
}
USUAL_OPTIONS = {name: default for name, (default, _) in OPTIONS.items()}


def _are_options(value: object) -> bool:
    return isinstance(value, dict) and all(
        name in OPTIONS and OPTIONS[name][1](option) for name, option in value.items()
    )


def _is_history(value: object) -> bool:
    """[step, bits, validation bits or null] of every step from the first."""
    return isinstance(value, list) and all(
        isinstance(line, list)
        and len(line) == 3
        and line[0] == number
        and _is_number(line[1])
        and (line[2] is None or _is_number(line[2]))
        for number, line in enumerate(value, 1)
    )


def _are_norms(value: object, history: list[Any]) -> bool:
    """One per step of the history, or null."""
    return (
        isinstance(value, list)
        and len(value) == len(history)
        and all(norm is None or _is_number(norm) for norm in value)
    )


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "settings": lambda v: isinstance(v, dict),
    "options": _are_options,
    "alphabet": lambda v: isinstance(v, str) and len(v) > 1 and list(v) == sorted(set(v)),
    "prompt": lambda v: isinstance(v, str),
    "characters": _is_count,
    "sha256": lambda v: isinstance(v, str),
    "text": lambda v: v is None or isinstance(v, str),
    "history": _is_history,
}
