"""The CUDA backend: persistent scans for every cell and option, on torch CUDA tensors.

``placements`` chooses a way over the chip, ``compiler`` makes the machine code, ``launch`` runs it,
``engine`` puts matrix products (``products``) around it and prepares the steps of every kind of
call (``prepared``). torch and cuda-core are imported on first use.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ...layout import Call, Layout
from .cells import CELLS

if TYPE_CHECKING:
    from .prepared import Tensors

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
    """Why the backend cannot serve such a call: it serves every call of the cells that it has."""
    cell = layout.cell_kind.name
    known = any(cell == each for each, _ in CELLS)
    return None if known else f"it has no kernel for the cell {cell!r}"


def prepare(layout: Layout) -> Callable[[Tensors], Tensors]:
    """What runs calls of one layout: inputs in the operation's order to results in theirs."""
    from .engine import Runner

    return Runner(layout)


def runner(layout: Layout) -> Callable[[Tensors], Tensors]:
    """prepare(), once per layout."""
    run: Callable[[Tensors], Tensors] | None = layout.cache.get(name)
    if run is None:
        run = layout.cache[name] = prepare(layout)
    return run


def forward(call: Call) -> dict[str, Any]:
    """The results of a call by name, those that it produces."""
    values: Any = call.values
    results = zip(call.layout.operation.result._fields, runner(call.layout)(values), strict=True)
    return {name: tensor for name, tensor in results if tensor is not None}


backward = forward
