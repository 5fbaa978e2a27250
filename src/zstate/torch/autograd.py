"""The one step of autograd: for an operation, a packed call and a whole layer alike.

What is recorded is a Step: how to compute it, its gradients by the engine, and the same results by
operations that can be differentiated further.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from .dispatch import Tensors


class Step(Protocol):
    """Something that autograd records as one step."""

    def compute(self, tensors: Tensors) -> tuple[Tensors, Sequence[Tensor | None]]:
        """The results, and what the gradients need besides the inputs."""

    def serves(self, needed: Sequence[bool], incoming: Tensors) -> bool:
        """Whether ``gradients`` can give the gradients of these inputs, from these results'."""

    def gradients(
        self, tensors: Tensors, kept: Tensors, incoming: Tensors
    ) -> Sequence[Tensor | None]:
        """One for each input, or None; ``kept`` as ``compute`` gave it."""

    def differentiable(self, *tensors: Tensor | None) -> Tensors:
        """The results again, slowly, by operations that can be differentiated."""


class Recorded(torch.autograd.Function):
    """A step on plain tensors."""

    @staticmethod
    def forward(ctx: Any, step: Step, *tensors: Tensor | None) -> Tensors:
        results, kept = step.compute(tensors)
        remember(ctx, step, tensors, kept)
        return results

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, *input_gradients(ctx, ctx.needs_input_grad[1:], incoming)


def remember(ctx: Any, step: Step, tensors: Tensors, kept: Sequence[Tensor | None]) -> None:
    """Save what ``input_gradients`` needs."""
    ctx.step, ctx.count = step, len(tensors)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *kept)


def input_gradients(ctx: Any, needed: Sequence[bool], incoming: Tensors) -> Sequence[Tensor | None]:
    """The gradients of a step's inputs, None for those not needed."""
    if all([gradient is None for gradient in incoming]):  # noqa: C419, faster
        return (None,) * len(needed)
    step: Step = ctx.step
    saved = ctx.saved_tensors  # read once: a checkpoint computes them anew each time
    tensors = saved[: ctx.count]
    if not step.serves(needed, incoming):
        return vjp(step.differentiable, tensors, needed, incoming)
    gradients = step.gradients(tensors, saved[ctx.count :], incoming)
    return [each if need else None for each, need in zip(gradients, needed, strict=True)]


def vjp(
    function: Callable[..., Sequence[Tensor | None]],
    tensors: Tensors,
    needed: Sequence[bool],
    incoming: Tensors,
) -> list[Tensor | None]:
    """The gradients of a function's inputs by torch.func, which can be differentiated further."""
    places = [place for place, tensor in enumerate(tensors) if tensor is not None and needed[place]]
    wanted = [place for place, gradient in enumerate(incoming) if gradient is not None]

    def of_needed(*inputs: Tensor) -> tuple[Tensor | None, ...]:
        all_inputs = list(tensors)
        for place, tensor in zip(places, inputs, strict=True):
            all_inputs[place] = tensor
        results = function(*all_inputs)
        return tuple(results[place] for place in wanted)

    _, pull_back, *_ = torch.func.vjp(of_needed, *(tensors[place] for place in places))
    gradients: list[Tensor | None] = [None] * len(tensors)
    pairs = zip(places, pull_back(tuple(incoming[place] for place in wanted)), strict=True)
    for place, gradient in pairs:
        gradients[place] = gradient
    return gradients
