"""Imported first, so that Ctrl-C during the command line's imports prints no traceback."""

from __future__ import annotations

import os
import sys
from types import TracebackType


def _is_command_line() -> bool:
    """Whether this process runs the script ``zstate``, or ``python -m zstate``."""
    script = os.path.splitext(os.path.basename(sys.argv[0] if sys.argv else ""))[0]
    words = sys.orig_argv
    as_module = script == "-m" and words[words.index("-m") :][1:2] == ["zstate"]
    return script == "zstate" or as_module


def _quiet(kind: type[BaseException], error: BaseException, trace: TracebackType | None, /) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


if _is_command_line() and sys.excepthook is sys.__excepthook__:
    sys.excepthook = _quiet
