"""Sizes that are not known when a model is loaded: polynomials in sizes of axes of tensors.

ONNX computes shapes with ordinary nodes (Shape, Gather, Mul, Concat, Reshape). While a size is
unknown such a value is an array of these instead of numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import OptionError, refusal
from ..graph import Graph, Tensor

Axis = tuple[Tensor, int]
Term = tuple[Axis, ...]  # a product; one axis may stand in it more than once
_MOST_TERMS, _MOST_FACTORS, _MOST = 64, 64, 2**63 - 1


class Size:
    """An integer that shapes decide: Σ coefficient · product of axes' sizes."""

    __slots__ = ("terms",)

    def __init__(self, terms: Mapping[Term, int]) -> None:
        self.terms = {term: number for term, number in terms.items() if number}
        # A few nodes that multiply a size with itself would make it longer than any memory.
        if len(self.terms) > _MOST_TERMS or any(
            len(term) > _MOST_FACTORS or abs(number) > _MOST for term, number in self.terms.items()
        ):
            expected = f"at most {_MOST_TERMS} products of {_MOST_FACTORS} axes and an int64"
            raise OptionError(refusal("onnx.load", "size", expected, "more"))

    @staticmethod
    def axis(tensor: Tensor, axis: int) -> Size:
        return Size({((tensor, axis),): 1})

    def simple(self) -> Size | int:
        """A number, if that is what it is."""
        if not self.terms:
            return 0
        return self.terms[()] if set(self.terms) == {()} else self

    def __add__(self, other: object) -> Size | int:
        if (right := _terms(other)) is None:
            return NotImplemented
        terms = dict(self.terms)
        for term, number in right.items():
            terms[term] = terms.get(term, 0) + number
        return Size(terms).simple()

    __radd__ = __add__

    def __neg__(self) -> Size | int:
        return self * -1

    def __sub__(self, other: Any) -> Any:
        return self + other * -1

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __mul__(self, other: object) -> Size | int:
        if (right := _terms(other)) is None:
            return NotImplemented
        terms: dict[Term, int] = {}
        for a, x in self.terms.items():
            for b, y in right.items():
                term = tuple(sorted((*a, *b), key=lambda axis: (id(axis[0]), axis[1])))
                terms[term] = terms.get(term, 0) + x * y
        return Size(terms).simple()

    __rmul__ = __mul__

    def divided(self, other: Size | int) -> Size | int | None:
        """The quotient where it has no remainder whatever the sizes, else None."""
        right = _terms(other)
        if right is None or len(right) != 1:
            return 1 if isinstance(other, Size) and other == self else None
        ((below, number),) = right.items()
        terms: dict[Term, int] = {}
        for term, coefficient in self.terms.items():
            left = list(term)
            for axis in below:
                if axis not in left:
                    return None
                left.remove(axis)
            if coefficient % number:
                return None
            terms[tuple(left)] = coefficient // number
        return Size(terms).simple()

    def axes(self) -> set[Axis]:
        """The axes whose sizes it depends on."""
        return {axis for term in self.terms for axis in term}

    def beside(self, axes: set[Axis], what: str) -> Size | None:
        """The same size, for which the run expects these axes to be other than 0; None if it does
        not depend on their tensors, and so could not tell. ``what`` is as in expect_sizes."""
        checked = {}
        for tensor in {tensor for tensor, _ in axes}:
            if all(tensor is not own for own, _ in self.axes()):
                return None
            least = [int((tensor, axis) in axes) for axis in range(len(tensor.shape))]
            checked[tensor] = expect_sizes(tensor, [-1] * len(least), what, least)
        terms = {
            tuple((checked.get(tensor, tensor), axis) for tensor, axis in term): number
            for term, number in self.terms.items()
        }
        return Size(terms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Size) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __repr__(self) -> str:
        parts = []
        for term, number in self.terms.items():
            axes = [f"{tensor.name}[{axis}]" for tensor, axis in term]
            parts.append("*".join([*axes, *([str(number)] if number != 1 or not axes else [])]))
        return " + ".join(parts)


def _terms(value: object) -> Mapping[Term, int] | None:
    if isinstance(value, Size):
        return value.terms
    if isinstance(value, int | np.integer):
        return {(): int(value)}
    return None


def sized_node(
    g: Graph,
    row: str,
    tensor: Tensor | None,
    sizes: Sequence[Size | int | tuple[Size | int, ...]],
    **attributes: Any,
) -> Tensor:
    """A node of graph/ops/sized.py: the tensor, if it has one, and those whose shapes it reads.
    Of a pair of sizes, the second is taken where the first is 0."""
    likes: list[Tensor] = []

    def text(size: Size | int) -> str:
        products = []
        for term, number in (_terms(size) or {}).items():
            factors = [str(number)]
            for like, axis in term:
                if like not in likes:
                    likes.append(like)
                factors.append(f"{likes.index(like)}.{axis}")
            products.append("*".join(factors))
        return "+".join(products) or "0"

    each = [size if isinstance(size, tuple) else (size,) for size in sizes]
    texts = ["|".join(map(text, size)) for size in each]
    inputs = (*([] if tensor is None else [tensor]), *likes)
    return g.add_node_named(row, inputs, {"sizes": tuple(texts), **attributes})


def expect_sizes(
    tensor: Tensor, sizes: Sequence[Size | int], what: str, least: Sequence[int] | None = None
) -> Tensor:
    """The tensor, if it has these sizes (-1: any of at least ``least``), now and when it is run.
    ``what`` names the operation and the tensor."""
    low = tuple(least or [0] * len(sizes))
    return sized_node(tensor.graph, "expect_sizes", tensor, sizes, least=low, what=what)
