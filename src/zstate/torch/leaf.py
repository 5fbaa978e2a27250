"""torch.fx: a module of ours is a leaf of the graph, as torch.nn's own are."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Proxy

__all__ = ["Proxy", "leaf_call"]


def leaf_call(module: torch.nn.Module, *arguments: Any) -> Any:
    """What torch.fx records for a call on its proxies: the module itself, not what is in it."""
    tracer: Any = arguments[0].tracer
    return tracer.create_proxy("call_module", tracer.path_of_module(module), arguments, {})
