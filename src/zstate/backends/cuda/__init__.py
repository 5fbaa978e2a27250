"""The CUDA backend: persistent scans for every cell and option, on torch CUDA tensors.

``placements`` chooses a way over the chip, ``compiler`` makes the machine code, ``launch`` runs it,
``engine`` puts matrix products (``products``) around it and prepares the steps of every kind of
call (``prepared``). torch and cuda-core are imported on first use.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ...layout import Layout
from ..support import lacks
from .cells import CELLS

if TYPE_CHECKING:
    from .prepared import Tensors

name = "cuda"
device = "cuda"
_HAS = tuple(dict.fromkeys(form.text.removesuffix(".cuh") for form in CELLS.values()))


def unavailable() -> str | None:
    """Why this machine cannot run the backend, or None."""
    torch = sys.modules.get("torch")
    if torch is None:
        return "torch has not been imported, so there are no CUDA tensors"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    return no_compiler()


def no_compiler() -> str | None:
    """Why no kernel can be compiled here, whoever would launch it, or None."""
    if find_spec("cuda") is None or find_spec("cuda.core") is None:
        return "NVIDIA's cuda-core is not installed: pip install 'zstate[cuda]'"
    return None


def refuses(layout: Layout) -> str | None:
    """Why the backend cannot serve such a call: it serves every call of the cells that it has."""
    return lacks(layout, _HAS)


def prepare(layout: Layout) -> Callable[[Tensors], Tensors]:
    """What runs calls of one layout: inputs in the operation's order to results in theirs."""
    from .engine import Runner

    return Runner(layout)
