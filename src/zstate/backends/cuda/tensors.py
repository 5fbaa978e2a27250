"""A checked call whose arrays are torch tensors, as the type checker has to see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from ...layout import Layout


class TensorCall(Protocol):
    """See zstate.layout.Call."""

    @property
    def layout(self) -> Layout: ...
    @property
    def values(self) -> tuple[torch.Tensor | None, ...]: ...
    @property
    def tensors(self) -> Mapping[str, torch.Tensor | None]: ...
    def required(self, name: str) -> torch.Tensor: ...
