"""How each forward operation and its gradient operation fit together."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..operations import Operation, operations_of
from .dispatch import Tensors


class GradientPair(NamedTuple):
    """From a forward operation to its gradient operation and back.

    ``takes`` are the places of the gradient operation's inputs among the forward operation's
    inputs, its results, the gradients of its results, that of the last state, and a None;
    ``gives`` the places of its results among the forward operation's inputs; ``keeps`` says which
    forward results it takes.
    """

    gradient: Operation
    takes: tuple[int, ...]
    gives: tuple[int, ...]
    keeps: tuple[bool, ...]

    def kept(self, results: Tensors) -> list[Tensor | None]:
        """The forward results that the gradient operation takes, None in place of the others."""
        return [r if keep else None for r, keep in zip(results, self.keeps, strict=True)]

    def inputs(
        self, tensors: Tensors, results: Tensors, incoming: Tensors, last: Tensor | None = None
    ) -> Tensors:
        """The gradient operation's inputs; at least one result has a gradient."""
        if incoming[0] is None:
            other = next(each for each in incoming if each is not None)
            incoming = (torch.zeros_like(other), *incoming[1:])
        pool = (*tensors, *results, *incoming, last, None)
        return tuple([pool[place] for place in self.takes])

    def by_input(self, gradients: Tensors, count: int) -> list[Tensor | None]:
        """The gradient operation's results in the order of the forward operation's inputs."""
        ordered: list[Tensor | None] = [None] * count
        for place, gradient in zip(self.gives, gradients, strict=True):
            ordered[place] = gradient
        return ordered


@lru_cache(maxsize=256)
def pair_of(forward: Operation) -> GradientPair:
    """A forward operation and its gradient operation."""
    _, gradient = operations_of(forward.cell)
    results = forward.result._fields
    fed_back = forward.cell.fed_back
    pool = [*forward.inputs, *results, *(f"gradient of {name}" for name in results)]
    pool.append(forward.cell.states[0].last_gradient)
    incoming = forward.cell.incoming.items()
    names = {**fed_back, **{name: f"gradient of {result}" for name, result in incoming}}
    wanted = [names.get(name, name) for name in gradient.inputs]
    return GradientPair(
        gradient,
        tuple(pool.index(name) if name in pool else len(pool) for name in wanted),
        tuple(forward.inputs.index(name) for name in gradient.result._fields),
        tuple(name in fed_back.values() for name in results),
    )
