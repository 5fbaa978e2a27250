"""Steps of a program that a device computes in one launch: all sums of squares, all of Adam, all
16-bit copies of variables.

Every training program has them, once per parameter. What they compute depends only on the steps;
a program without them keeps its order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from ..ops import CONSTANT, PLACEHOLDER, VARIABLE
from ..ops.base import axes_of
from ..tensor import Node, Tensor

_GIVEN = (CONSTANT, PLACEHOLDER, VARIABLE)
_SCALARS = 6  # inputs of Adam before its tensors


class Unit(NamedTuple):
    """Nodes that are computed together: what they read, what they give."""

    function: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    is_tuple: bool  # whether the function returns a tuple of results, or a single one


class Adam(NamedTuple):
    """Steps of Adam with the same numbers: (variables, gradient) of each, updated in place."""

    numbers: tuple[Tensor | None, ...]  # whether there is a step, the six scalars, the scale
    tensors: list[tuple[tuple[Tensor, ...], Tensor]]

    def read(self) -> list[Tensor]:
        numbers = [number for number in self.numbers if number is not None]
        return [*numbers, *(gradient for _, gradient in self.tensors)]


def adam_groups(
    nodes: Sequence[Node], updates: Mapping[Node, Tensor], targets: Iterable[Tensor]
) -> tuple[list[Adam], set[Node]]:
    """Adam's steps whose results only go into their own variables, and the nodes they replace."""
    readers = _readers(nodes, [*targets, *updates.values()])
    groups: dict[Any, Adam] = {}
    replaced: set[Node] = set()
    for node in nodes:
        if node.op.name != "adam" or node.inputs[_SCALARS].dtype != "float32":
            continue
        scalars = node.inputs[:_SCALARS]
        values, m, v, gradient, *largest = node.inputs[_SCALARS:]
        variables = (values, m, v, *largest)
        pairs = zip(variables, node.results, strict=True)
        stored = [_stored(before, after, updates, readers) for before, after in pairs]
        found = {each[0] for each in stored if each is not None}
        if None in stored or len(found) != 1:
            continue
        replaced |= {node, *(each[1] for each in stored if each is not None)}
        scale = None
        if readers[gradient] == 1 and (parts := _scaled(gradient)):
            replaced.add(gradient.node)
            gradient, scale = parts
        gradient = uncast(gradient)
        numbers = (*found, *scalars, scale)
        group = groups.setdefault(numbers, Adam(numbers, []))
        group.tensors.append((variables, gradient))
    return list(groups.values()), replaced


def _stored(
    before: Tensor, after: Tensor, updates: Mapping[Node, Tensor], readers: Mapping[Tensor, int]
) -> tuple[Tensor | None, Node] | None:
    """(the condition, the last node), where a variable becomes the result, or that where a
    condition holds, and nothing else reads it."""
    kept = updates.get(before.node)
    if before.node.op is not VARIABLE or kept is None or readers[after] != 1 or readers[kept] != 1:
        return None
    if kept is after:
        return None, after.node
    is_choice = kept.node.op.name == "select" and kept.node.inputs[1:] == (after, before)
    allowed = kept.node.inputs[0]
    return (allowed, kept.node) if is_choice and allowed.shape == () else None


def _scaled(gradient: Tensor) -> tuple[Tensor, Tensor] | None:
    """A product of a tensor and a number, as (tensor, number)."""
    if gradient.node.op.name != "multiplication":
        return None
    for tensor, number in (gradient.node.inputs, gradient.node.inputs[::-1]):
        if number.shape == () and tensor.shape == gradient.shape:
            return tensor, number
    return None


def uncast(tensor: Tensor) -> Tensor:
    """What a float32 tensor was cast from, if that has 16 bits: the kernels read these too."""
    if tensor.node.op.name != "cast" or tensor.dtype != "float32":
        return tensor
    (narrow,) = tensor.node.inputs
    return narrow if narrow.dtype in ("bfloat16", "float16") else tensor


def _readers(nodes: Iterable[Node], kept: Iterable[Tensor]) -> dict[Tensor, int]:
    """How often each tensor is read."""
    found: dict[Tensor, int] = {}
    for tensor in [*(t for node in nodes for t in node.inputs), *kept]:
        found[tensor] = found.get(tensor, 0) + 1
    return found


def with_squares(
    nodes: Sequence[Node],
    units: Mapping[Node, Unit],
    kept: Iterable[Tensor],
    sums: Callable[..., Any],
) -> list[Unit]:
    """The units in an order in which every sum of squares is in one of them."""
    readers = _readers(nodes, kept)
    found = [node for node in units if _is_sum_of_squares(node, readers)]
    if not found:
        return list(units.values())
    inside = {*found, *(node.inputs[0].node for node in found)}
    shapes = [node.results[0].shape for node in found]

    def squares(*tensors: Any) -> tuple[Any, ...]:
        numbers = sums([tensor.contiguous() for tensor in tensors])
        return tuple([n.view(shape) for n, shape in zip(numbers, shapes, strict=True)])

    together = Unit(
        squares,
        tuple(uncast(node.inputs[0].node.inputs[0]) for node in found),
        tuple(node.results[0] for node in found),
        True,
    )
    rest = [unit for node, unit in units.items() if node not in inside]
    return _in_order([*rest, together]) or list(units.values())


def _is_sum_of_squares(node: Node, readers: Mapping[Tensor, int]) -> bool:
    if node.op.name != "reduction_sum" or node.inputs[0].node.op.name != "square":
        return False
    (squared,) = node.inputs
    sizes = [size or 0 for size in squared.shape]
    is_whole = axes_of("squares", node.attributes["axes"], len(sizes)) == axes_of(
        "", None, len(sizes)
    )
    return is_whole and squared.dtype == "float32" and all(sizes) and readers[squared] == 1


def _in_order(units: Sequence[Unit]) -> list[Unit] | None:
    """The units, each behind what it reads; None where they wait for each other."""
    missing = {tensor for unit in units for tensor in unit.results}
    ordered: list[Unit] = []
    waiting = list(units)
    while waiting:
        left = []
        for unit in waiting:
            if missing.isdisjoint(unit.inputs):
                ordered.append(unit)
                missing.difference_update(unit.results)
            else:
                left.append(unit)
        if len(left) == len(waiting):
            return None
        waiting = left
    return ordered


def without_unread_casts(units: Sequence[Unit], kept: Iterable[Tensor]) -> list[Unit]:
    """The units but for casts that nothing reads since kernels read what was cast."""
    read = {*kept, *(tensor for unit in units for tensor in unit.inputs)}
    return [
        unit
        for unit in units
        if unit.results[0].node.op.name != "cast" or not read.isdisjoint(unit.results)
    ]


def together(units: Sequence[Unit], narrow: Callable[..., Any]) -> list[Unit]:
    """The units; casts of variables to 16 bits, such as those of weights, are one of them."""
    groups: dict[str, list[Unit]] = {}
    rest = []
    for unit in units:
        if _is_narrow_copy(unit):
            groups.setdefault(unit.results[0].dtype, []).append(unit)
        else:
            rest.append(unit)
    copies = [
        Unit(
            partial(_narrowed, narrow, dtype),
            tuple(unit.inputs[0] for unit in some),
            tuple(unit.results[0] for unit in some),
            True,
        )
        for dtype, some in groups.items()
    ]
    return [*copies, *rest]


def _is_narrow_copy(unit: Unit) -> bool:
    node = unit.results[0].node
    if node.op.name != "cast" or node.inputs[0].node.op is not VARIABLE:
        return False
    kinds = node.inputs[0].dtype, node.results[0].dtype
    sizes = [size or 0 for size in node.results[0].shape]
    return kinds in (("float32", "bfloat16"), ("float32", "float16")) and all(sizes)


def _narrowed(narrow: Callable[..., Any], dtype: str, *tensors: Any) -> tuple[Any, ...]:
    return tuple(narrow(tensors, dtype))


def dead_after(units: Sequence[Unit], kept: Iterable[Tensor]) -> list[list[Tensor]]:
    """Behind each unit, the tensors that nothing reads any more."""
    last: dict[Tensor, int] = {}
    for number, unit in enumerate(units):
        for tensor in (*unit.inputs, *unit.results):
            last[tensor] = number
    stays = set(kept)
    ends: list[list[Tensor]] = [[] for _ in units]
    for tensor, number in last.items():
        if tensor not in stays and tensor.node.op not in _GIVEN:
            ends[number].append(tensor)
    return ends
