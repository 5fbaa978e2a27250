"""Reverse mode: new nodes in the same graph, from the loss back to what it depends on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import DTypeError, GraphError, refusal
from ..types import FLOAT_NAMES
from .ops.base import agree
from .ops.like import ones_like, zeros_like
from .ops.recurrent import title_of
from .tensor import Node, Tensor

if TYPE_CHECKING:
    from .graph import Graph


def gradients(g: Graph, of: Tensor, with_respect_to: Sequence[Tensor]) -> dict[Tensor, Tensor]:
    """{tensor: the gradient of the sum of ``of``, of the tensor's shape and type}."""
    for name, tensor in [("of", of), *(("with_respect_to", t) for t in with_respect_to)]:
        if g.own("gradients", name, tensor).dtype not in FLOAT_NAMES:
            one_of = "a tensor of " + ", ".join(FLOAT_NAMES)
            raise DTypeError(refusal("gradients", name, one_of, f"{tensor}"))
    path = g.needed([of])
    active = _active(path, with_respect_to)
    contributions: dict[Tensor, list[Tensor]] = {of: [ones_like(g, of)]}
    totals: dict[Tensor, Tensor] = {}
    for node in reversed(path):
        if not any(result in active for result in node.results):
            continue
        incoming: list[Tensor | None] = []
        for result in node.results:
            parts = contributions.pop(result, None)
            total = None if parts is None else _sum(parts)
            if total is not None:
                totals[result] = total
            incoming.append(total)
        needs = [_depends(node, k) and t in active for k, t in enumerate(node.inputs)]
        if not any(needs) or all(total is None for total in incoming):
            continue
        for tensor, gradient in _derive(g, node, incoming, needs):
            contributions.setdefault(tensor, []).append(gradient)
    return {
        tensor: totals[tensor] if tensor in totals else zeros_like(g, tensor)
        for tensor in with_respect_to
    }


def _derive(
    g: Graph, node: Node, incoming: list[Tensor | None], needs: list[bool]
) -> list[tuple[Tensor, Tensor]]:
    """The gradients of the inputs that need one. Every derivative is checked here, and only here:
    one gradient for every input, of its shape and type; none missing where one is needed."""
    if node.op.derivative is None:
        got = f"{node.op.name} {node.name!r}"
        message = refusal("gradients", "of", "operations that have a derivative", got)
        raise GraphError(message + _advice(node))
    found = node.op.derivative(g, node, incoming, needs)
    assert len(found) == len(node.inputs), f"{node.op.name}: {len(found)} gradients"
    pairs = []
    for index, (tensor, gradient, needed) in enumerate(zip(node.inputs, found, needs, strict=True)):
        if not needed:
            continue
        if gradient is None:
            label = f"{node.op.operand(node, index)} of {node.op.name} {node.name!r}"
            expected = "an input that has a gradient"
            raise GraphError(refusal("gradients", label, expected, "one that has none"))
        assert agree(gradient.shape, tensor.shape) and gradient.dtype == tensor.dtype, (
            f"{node.op.name}: gradient {gradient} of {tensor}"
        )
        pairs.append((tensor, gradient))
    return pairs


def _advice(node: Node) -> str:
    """What to do instead, where there is something."""
    if "descriptor" in node.op.kinds:
        forward = title_of(node).removesuffix("_gradients")
        use = forward if "cell" in node.attributes else f"zstate.{forward}"
        return f"; for second derivatives, use {use} on torch tensors and torch.autograd"
    if node.op.lower is not None:  # it stands for an unknown size
        return "; for second derivatives, give the placeholders sizes instead of None"
    return ""


def _active(path: Sequence[Node], sources: Sequence[Tensor]) -> set[Tensor]:
    """The tensors of the path that depend on the sources through floats, the sources included."""
    active = set(sources)
    for node in path:
        if any(_depends(node, k) and t in active for k, t in enumerate(node.inputs)):
            active.update(result for result in node.results if result.dtype in FLOAT_NAMES)
    return active


def _depends(node: Node, index: int) -> bool:
    return index not in node.op.passive


def _sum(parts: list[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
