"""Equations in the order of computation: what the engines and the exporters are given.

A program reads leaves, computes one value after the other and gives some of them. Products with R
of the same operand are one instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ..types import Value
from .expressions import Expression, ordered
from .functions import FUNCTIONS

if TYPE_CHECKING:
    from ..arrays import Namespace

Leaf: TypeAlias = tuple[str, ...]  # a kind of input, and its name: ("before", "c")


class Instruction(NamedTuple):
    """One operation: values by their places among all that the program has."""

    op: str
    args: tuple[int, ...]
    results: tuple[int, ...]
    detail: Any = None  # a number, a function's name, the gates of a product


class Program(NamedTuple):
    """Inputs come first among the values, then what each instruction gives."""

    inputs: tuple[Leaf, ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[int, ...]

    def run(self, read: Callable[[Leaf], Value], compute: Compute, multiply: Multiply) -> list[Any]:
        """The outputs: arrays [N,H], or [T,N,H] for all steps at once, or nodes of a graph."""
        values: dict[int, Value] = {k: read(leaf) for k, leaf in enumerate(self.inputs)}
        for op, args, results, detail in self.instructions:
            given = [values[arg] for arg in args]
            if op in _PRODUCTS:
                values.update(zip(results, multiply(op, detail, given), strict=True))
            else:
                values[results[0]] = compute(op, detail, given)
        return [values[place] for place in self.outputs]


# (operation, detail, arguments) -> value
Compute: TypeAlias = Callable[[str, Any, Sequence[Value]], Value]
# ("product", gates, [operand]) -> one value per gate, or ("back", gates, gradients) -> [operand's]
Multiply: TypeAlias = Callable[[str, tuple[str, ...], Sequence[Value]], Sequence[Value]]
_PRODUCTS = frozenset({"product", "back"})


def on_arrays(xp: Namespace) -> Compute:
    """Operations on the arrays of a library."""

    def compute(op: str, detail: Any, given: Sequence[Value]) -> Value:
        if op == "number":
            return detail
        if op == "slope":
            slope = FUNCTIONS[detail].slope
            assert slope is not None
            return slope(xp, given[0])
        return FUNCTIONS[op].apply(xp, *given)

    return compute


def no_products(op: str, gates: tuple[str, ...], given: Sequence[Value]) -> Sequence[Value]:
    """For programs that multiply nothing."""
    raise AssertionError("a program without products has one")


def program(outputs: Iterable[Expression]) -> Program:
    """What computes these values, from their leaves."""
    outputs = list(outputs)
    order = ordered(outputs)
    leaves = [each for each in order if each.op == "leaf"]
    places = {each: k for k, each in enumerate(leaves)}
    shared: dict[Expression, list[Expression]] = {}  # products by operand
    for each in order:
        if each.op == "product":
            shared.setdefault(each.args[0], []).append(each)
    instructions, count = [], len(leaves)
    for each in order:
        if each in places:
            continue
        group = shared[each.args[0]] if each.op == "product" else [each]
        results = tuple(range(count, count + len(group)))
        detail = tuple(one.detail for one in group) if each.op == "product" else each.detail
        args = tuple(places[arg] for arg in each.args)
        instructions.append(Instruction(each.op, args, results, detail))
        places.update(zip(group, results, strict=True))
        count += len(group)
    inputs = tuple(each.detail for each in leaves)
    return Program(inputs, tuple(instructions), tuple(places[each] for each in outputs))
