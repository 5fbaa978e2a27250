"""The CUDA backend: persistent scans for every cell and option, on torch CUDA tensors.

``placements`` chooses a way over the chip, ``compiler`` makes the machine code, ``launch`` runs it,
``engine`` puts matrix products (``products``) around it and prepares the steps of every kind of
call (``prepared``). torch and cuda-core are imported on first use.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ...heads import in_one_head, reduces_rows
from ...layout import Layout
from .calls import plain_options
from .passes import lacks
from .printing import lacks_function

if TYPE_CHECKING:
    from .prepared import Tensors

name = "cuda"
device = "cuda"


def unavailable() -> str | None:
    """Why this machine cannot run the backend, or None."""
    torch = sys.modules.get("torch")
    if torch is None and find_spec("torch") is None:
        return "torch is not installed"
    if torch is None:
        return "torch has not been imported, so there are no CUDA tensors"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    return no_compiler()


def no_compiler() -> str | None:
    """Why no kernel can be compiled on this machine, or None."""
    if find_spec("cuda") is None or find_spec("cuda.core") is None:
        return "NVIDIA's cuda-core is not installed: pip install 'zstate[cuda]'"
    return None


def refuses(layout: Layout) -> str | None:
    """Why the backend cannot serve such a call, in words, or None."""
    options = plain_options(layout)
    return None if by_torch(layout) else lacks(options) or lacks_function(options)


def by_torch(layout: Layout) -> bool:
    """Whether torch's operations compute such a call step by step: no kernel has means beside a
    product."""
    return reduces_rows(layout) and lacks(plain_options(layout)) is not None


def prepare(layout: Layout) -> Callable[[Tensors], Tensors]:
    """What runs calls of one layout: inputs in the operation's order to results in theirs."""
    from ... import pipeline
    from .engine import Runner

    if by_torch(layout):
        return partial(pipeline.run, layout)
    if layout.descriptor.heads == 1 or not reduces_rows(layout):
        return Runner(layout)

    runners: list[Runner] = []

    def run(one: Layout, _: int, given: dict[str, Any]) -> dict[str, Any]:
        if not runners:
            runners.append(Runner(one))
        found = runners[0](tuple(map(given.get, one.operation.inputs)))
        return dict(zip(one.operation.result._fields, found, strict=True))

    return lambda values: in_one_head(layout, values, run)
