"""The CUDA backend: persistent scans for every cell and option, on torch CUDA tensors.

``planner`` chooses a way over the chip, ``compiler`` makes the machine code, ``launch`` runs it,
``engine`` puts matrix products (``products``) around it and remembers the steps of every kind of
call (``program``). torch and cuda-core are imported on first use.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

from ...layout import Call, Layout

if TYPE_CHECKING:
    from .engine import Runner
    from .tensors import TensorCall

name = "cuda"
device = "cuda"


def unavailable() -> str | None:
    """Why this machine cannot run the backend, or None."""
    torch = sys.modules.get("torch")
    if torch is None:
        return "torch has not been imported, so there are no CUDA tensors"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    if find_spec("cuda") is None or find_spec("cuda.core") is None:
        return "NVIDIA's cuda-core is not installed: pip install 'zstate[cuda]'"
    return None


def refuses(layout: Layout) -> str | None:
    """Why the backend cannot serve such a call: it serves them all, on CUDA tensors."""
    return None


def runner(layout: Layout) -> Runner:
    """What does calls of one signature: inputs in their order to results in theirs.

    forward() and backward() are the same with names.
    """
    from . import engine

    return engine.runner(layout)


def forward(call: Call) -> dict[str, Any]:
    from . import engine

    return engine.forward(cast("TensorCall", call))


def backward(call: Call) -> dict[str, Any]:
    from . import engine

    return engine.backward(cast("TensorCall", call))
