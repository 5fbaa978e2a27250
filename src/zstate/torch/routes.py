"""How a forward operation and its gradient operation fit together; gradients by torch.func."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..operations import OPERATIONS, Operation
from .dispatch import Results, Tensors


class Route(NamedTuple):
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

    def kept(self, results: Results) -> list[Tensor | None]:
        """The forward results that the gradient operation takes, None in place of the others."""
        return [r if keep else None for r, keep in zip(results, self.keeps, strict=True)]

    def inputs(
        self, tensors: Tensors, results: Tensors, incoming: Tensors, last: Tensor | None = None
    ) -> Tensors:
        """The gradient operation's inputs; at least one gradient of a result comes in."""
        if incoming[0] is None:
            cell = incoming[1]
            assert cell is not None
            incoming = (torch.zeros_like(cell), *incoming[1:])
        pool = (*tensors, *results, *incoming, last, None)
        return tuple([pool[place] for place in self.takes])

    def by_input(self, found: Tensors, count: int) -> list[Tensor | None]:
        """The gradient operation's results in the order of the forward operation's inputs."""
        gradients: list[Tensor | None] = [None] * count
        for place, gradient in zip(self.gives, found, strict=True):
            gradients[place] = gradient
        return gradients


def _route(forward: Operation) -> Route:
    gradient = OPERATIONS[f"{forward.name}_gradients"]
    results = forward.result._fields
    fed_back = {"z_state": "training_state", "cell_output_fwd": "cell", "output_fwd": "state"}
    fed_back = {name: result for name, result in fed_back.items() if name in gradient.inputs}
    pool = [*forward.inputs, *results, *(f"gradient of {name}" for name in results)]
    pool.append("state_gradient")
    names = {**fed_back, "source_gradient": "gradient of state"}
    if "cell" in results:
        names["cell_gradient"] = "gradient of cell"
    wanted = [names.get(name, name) for name in gradient.inputs]
    return Route(
        gradient,
        tuple(pool.index(name) if name in pool else len(pool) for name in wanted),
        tuple(forward.inputs.index(name) for name in gradient.result._fields),
        tuple(name in fed_back.values() for name in results),
    )


ROUTES = {name: _route(each) for name, each in OPERATIONS.items() if not each.is_gradient}


def pulled(
    function: Callable[..., Sequence[Tensor | None]],
    tensors: Tensors,
    needed: Sequence[bool],
    incoming: Tensors,
) -> list[Tensor | None]:
    """The gradients of a function's inputs by torch.func, which can be differentiated further."""
    places = [place for place, tensor in enumerate(tensors) if tensor is not None and needed[place]]
    wanted = [place for place, gradient in enumerate(incoming) if gradient is not None]

    def moved(*inputs: Tensor) -> tuple[Tensor | None, ...]:
        all_inputs = list(tensors)
        for place, tensor in zip(places, inputs, strict=True):
            all_inputs[place] = tensor
        results = function(*all_inputs)
        return tuple(results[place] for place in wanted)

    _, pull, *_ = torch.func.vjp(moved, *(tensors[place] for place in places))
    gradients = pull(tuple(incoming[place] for place in wanted))
    found: list[Tensor | None] = [None] * len(tensors)
    for place, gradient in zip(places, gradients, strict=True):
        found[place] = gradient
    return found
