"""Warns once when calls run on the slow reference backend because the native engine is missing."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from ..layout import Layout

_PACKAGE = str(Path(__file__).parents[1])
_TRIVIAL = 1e6  # floating-point operations; smaller calls are fast on any backend
_warned = False


class SlowBackendWarning(RuntimeWarning):
    """The native engine is missing, so calls run on the reference backend."""


def warn_once(layout: Layout, reason: str | None) -> None:
    """On the first call of some size, warn why it is slow and what to do; without a reason, do
    nothing.
    """
    global _warned
    steps, batch, inputs, hidden = layout.size
    width = layout.directions * len(layout.slots) * hidden
    if reason is None or _warned or 2.0 * steps * batch * width * (inputs + hidden) < _TRIVIAL:
        return
    _warned = True
    warnings.warn(
        f"zstate uses the reference backend, which is slow: {reason}. Install a C++ compiler (GCC "
        "or Clang) and reinstall zstate, or pass backend='reference' to silence this warning. "
        "zstate.show_config() shows what was found.",
        SlowBackendWarning,
        stacklevel=_callers_level(),
    )


def _callers_level() -> int:
    """The stack level, from our caller, of the first frame outside the package."""
    level, frame = 0, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    return level
