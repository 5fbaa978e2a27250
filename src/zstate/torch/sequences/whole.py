"""What a layer needs to know of a batch's sequences, and the plain case: all have all T steps.

T time, N batch, F any number of features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from ...descriptors import AnyDescriptor
from ...operations import Operation
from .. import operators
from ..dispatch import Tensors


class Sequences(Protocol):
    """How the steps of N sequences lie, and so where each begins and ends."""

    @property
    def is_whole(self) -> bool: ...  # whether all have all T steps
    @property
    def resets(self) -> Tensor | None: ...  # [T,N,D], above 0 where a direction begins anew
    @property
    def values(self) -> Mapping[str, Tensor]: ...  # per step, [T,N,F] of one direction
    @property
    def both_at_once(self) -> bool: ...  # whether one call computes both directions
    def size(self, source: Tensor) -> tuple[int, int]: ...
    def run(self, operation: Operation, tensors: Tensors, descriptor: AnyDescriptor) -> Any: ...
    def turn(self, steps: Tensor) -> Tensor: ...
    def last(self, steps: Tensor, first: Tensor | None) -> Tensor: ...


class Whole:
    """All sequences have all T steps."""

    is_whole = True
    both_at_once = True

    def __init__(
        self, resets: Tensor | None = None, values: Mapping[str, Tensor] | None = None
    ) -> None:
        self.resets = resets
        self.values = values or {}

    def size(self, source: Tensor) -> tuple[int, int]:
        """T and N."""
        return source.shape[0], source.shape[1]

    def run(self, operation: Operation, tensors: Tensors, descriptor: AnyDescriptor) -> Any:
        """The operation's results."""
        return operators.run(operation, tensors, descriptor, None)

    def turn(self, steps: Tensor) -> Tensor:
        """Each sequence turned round."""
        return steps.flip(0)

    def last(self, steps: Tensor, first: Tensor | None) -> Tensor:
        """The state after the last step [N,F]; ``first`` (or zero) where there is none."""
        if steps.shape[0]:
            return steps[-1]
        return steps.new_zeros(steps.shape[1:]) if first is None else first.clone()


WHOLE = Whole()
