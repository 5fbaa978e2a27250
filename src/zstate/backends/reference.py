"""The reference backend: the pipeline in plain NumPy, one step after the other. The oracle.

The equations are those of zstate/cells, meant to be read beside docs/equations.md and
docs/gradients.md. It serves every call: any of the four float types, any option, any machine.
"""

from __future__ import annotations

import numpy as np

from .. import pipeline
from ..layout import Call, Layout
from ..types import Array

name = "reference"
device = "cpu"


def unavailable() -> str | None:
    """Why this machine cannot run the backend: it always can."""
    return None


def refuses(layout: Layout) -> str | None:
    """Why the backend cannot serve such a call: it serves them all."""
    return None


def forward(call: Call) -> dict[str, Array]:
    found = zip(
        call.layout.operation.result._fields, pipeline.run(call.layout, call.values), strict=True
    )
    return {k: np.ascontiguousarray(v) for k, v in found if v is not None}


backward = forward
