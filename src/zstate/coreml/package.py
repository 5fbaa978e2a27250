"""The package coremltools, imported when it is needed: zstate itself runs without it."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from typing import Any

# What it raises where it refuses.
REFUSALS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError)


def coremltools() -> Any:
    """The module ``coremltools``."""
    try:
        with quiet():
            import coremltools
    except ImportError as error:
        raise ImportError(
            "zstate.coreml needs the package coremltools: pip install coremltools"
        ) from error
    return coremltools


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without progress bars, nor the news that this is no Mac or that torch is a newer one."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(level)
