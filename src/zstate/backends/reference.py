"""The reference backend: the pipeline in plain NumPy, one step after the other. The oracle.

The equations are those of zstate/cells, meant to be read beside docs/equations.md and
docs/gradients.md. It serves every call: any of the four float types, any option, any machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import pipeline
from ..layout import Layout
from ..operations import AnyResult

name = "reference"
device = "cpu"


def unavailable() -> str | None:
    """Why this machine cannot run the backend: it always can."""
    return None


def refuses(layout: Layout) -> str | None:
    """Why the backend cannot serve such a call: it serves them all."""
    return None


def prepare(layout: Layout) -> Callable[[tuple[Any, ...]], AnyResult]:
    """What runs calls of one layout."""

    def run(values: tuple[Any, ...]) -> AnyResult:
        return layout.operation.result(*pipeline.run(layout, values))

    return run
