"""Arithmetic on single numbers, such as a norm, its clipping and the powers of Adam's betas: one
launch for all of it between two other steps of a program."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..tensor import Tensor
from .groups import Unit

# In the order of graph.cu's enum. A reshape of one number is no step.
OPERATIONS = "addition subtraction multiplication division minimum maximum square_root".split()
MOST_STEPS = 48  # of one launch
MOST_INPUTS = 2 * MOST_STEPS
Step = tuple[int, int, int]  # operation, operands: numbers of inputs, then of earlier steps


def with_scalars(units: Sequence[Unit], compute: Callable[..., Any]) -> list[Unit]:
    """The units; numbers are computed together, before the first unit that reads one of them."""
    found: list[Unit] = []
    waiting: list[Unit] = []
    pending: set[Tensor] = set()

    def flush() -> None:
        found.extend(_together(waiting, compute))
        waiting.clear()
        pending.clear()

    for unit in units:
        if _is_scalar(unit):
            if len(waiting) == MOST_STEPS:
                flush()
            waiting.append(unit)
            pending.update(unit.results)
            continue
        if not pending.isdisjoint(unit.inputs):
            flush()
        found.append(unit)
    flush()
    return found


def _is_scalar(unit: Unit) -> bool:
    if unit.results[0].node.op.name not in (*OPERATIONS, "reshape") or len(unit.results) != 1:
        return False
    return all(t.dtype == "float32" and _is_number(t) for t in (*unit.inputs, *unit.results))


def _is_number(tensor: Tensor) -> bool:
    return math.prod(size or 0 for size in tensor.shape) == 1


def _together(units: Sequence[Unit], compute: Callable[..., Any]) -> list[Unit]:
    """One unit for all of them, unless there is only one."""
    computed = [u for u in units if u.results[0].node.op.name != "reshape"]
    if len(computed) < 2:
        return list(units)
    own = {tensor for unit in units for tensor in unit.results}
    read = dict.fromkeys(t for u in units for t in u.inputs if t not in own)
    places = {tensor: number for number, tensor in enumerate(read)}
    steps: list[Step] = []
    for unit in units:
        (result,), operands = unit.results, [places[tensor] for tensor in unit.inputs]
        if result.node.op.name == "reshape":
            places[result] = operands[0]
            continue
        places[result] = len(read) + len(steps)
        steps.append((OPERATIONS.index(result.node.op.name), operands[0], operands[-1]))
    results = tuple(tensor for unit in units for tensor in unit.results)
    given = [(places[tensor], tensor.shape) for tensor in results]
    return [Unit(partial(_computed, compute, steps, given), tuple(read), results, True)]


def _computed(
    compute: Callable[..., Any],
    steps: Sequence[Step],
    given: Sequence[tuple[int, Any]],
    *inputs: Any,
) -> tuple[Any, ...]:
    numbers = compute(inputs, steps)
    count = len(inputs)
    return tuple(
        (inputs[place] if place < count else numbers[place - count]).reshape(shape)
        for place, shape in given
    )
