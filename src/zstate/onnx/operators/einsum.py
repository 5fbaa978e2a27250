"""Einsum: the operands multiplied one after the other, each time as one matrix product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...errors import OptionError, refusal
from ...graph import Tensor
from ..node import Node, Row
from ..sizes import sized_node
from .contractions import product_of
from .shaping import reshaped

_Term = tuple[Tensor, str]  # a tensor, and a letter for each of its axes
# Letters for the axes of "...", the last one first: none that ONNX's equations have.
_MORE = "".join(chr(code) for code in range(0x3B1, 0x3B1 + 32))


def _einsum(node: Node) -> list[Tensor]:
    g, equation = node.graph, str(node.attribute("equation", "")).replace(" ", "")
    left, arrow, result = equation.partition("->")
    texts, tensors = left.split(","), node.tensors()
    if len(texts) != len(tensors):
        expected = f"an equation of {len(tensors)} operands"
        raise OptionError(refusal("Einsum", "equation", expected, repr(equation)))
    letters = [_letters(text, len(x.shape)) for text, x in zip(texts, tensors, strict=True)]
    more = max((sum(each in _MORE for each in text) for text in letters), default=0)
    dots = _MORE[:more][::-1]
    if arrow:
        result = result.replace("...", dots)
    else:
        every = "".join(letters)
        result = dots + "".join(sorted(c for c in set(every) - set(dots) if every.count(c) == 1))
    if len(set(result)) != len(result) or not set(result) <= set("".join(letters)):
        raise OptionError(refusal("Einsum", "equation", "each result once", repr(equation)))
    terms = [_diagonal(node, x, text) for x, text in zip(tensors, letters, strict=True)]
    found = terms[0]
    for k, term in enumerate(terms[1:], 1):
        kept = set(result).union(*(text for _, text in terms[k + 1 :]))
        found = _pair(
            node, _summed(found, kept | set(term[1])), _summed(term, kept | set(found[1])), kept
        )
    x, text = _summed(found, set(result))
    return [x if text == result else g.transpose(x, [text.index(c) for c in result])]


def _letters(text: str, rank: int) -> str:
    """A letter for each axis."""
    count = rank - len(text.replace("...", ""))
    whole = text.replace("...", _MORE[: max(0, count)][::-1], 1)
    if len(whole) != rank or not all(c.isalpha() for c in whole):
        raise OptionError(refusal("Einsum", "equation", f"{rank} axes", repr(text)))
    return whole


def _diagonal(node: Node, x: Tensor, text: str) -> _Term:
    """Letters that stand twice: the elements whose indices are equal."""
    g = node.graph
    for axis in reversed(range(len(text))):
        first = text.index(text[axis])
        if first == axis:
            continue
        places = [
            g.reshape(
                sized_node(g, "range_to", None, [0, node.size(x, each), 1]),
                [-1] + [1] * (len(text) - 1 - each),
            )
            for each in (first, axis)
        ]
        x = g.reduction_sum(g.select(g.equal(*places), x, 0), axes=[axis])
        x, text = g.squeeze(x, axes=[axis]), text[:axis] + text[axis + 1 :]
    return x, text


def _summed(term: _Term, kept: set[str]) -> _Term:
    """Without the axes that nothing needs any more."""
    x, text = term
    axes = [axis for axis, letter in enumerate(text) if letter not in kept]
    if not axes:
        return term
    g = x.graph
    return g.squeeze(g.reduction_sum(x, axes=axes), axes=axes), "".join(
        c for c in text if c in kept
    )


def _pair(node: Node, first: _Term, second: _Term, kept: set[str]) -> _Term:
    """One product: [batch…,left,inner] times [batch…,inner,right]."""
    (a, one), (b, two) = first, second
    both = [c for c in one if c in two]
    batch = [c for c in both if c in kept]
    inner = [c for c in both if c not in kept]
    left, right = [c for c in one if c not in two], [c for c in two if c not in one]
    sizes: dict[str, Any] = {c: node.size(b, two.index(c)) for c in two}
    sizes |= {c: node.size(a, one.index(c)) for c in one}

    def arranged(x: Tensor, text: str, *groups: list[str]) -> Tensor:
        """The batch's axes, and one for each group."""
        order = [text.index(c) for c in [*batch, *(c for group in groups for c in group)]]
        x = x if order == sorted(order) else node.graph.transpose(x, order)
        if all(len(group) == 1 for group in groups):
            return x
        own = [node.size(x, axis) for axis in range(len(batch))]
        return reshaped(node, x, [*own, *(math.prod(sizes[c] for c in group) for group in groups)])

    found = product_of(node.graph, arranged(a, one, left, inner), arranged(b, two, inner, right))
    if len(left) != 1 or len(right) != 1:
        own = [node.size(found, axis) for axis in range(len(batch))]
        found = reshaped(node, found, [*own, *_sizes(sizes, left), *_sizes(sizes, right)])
    return found, "".join([*batch, *left, *right])


def _sizes(sizes: dict[str, Any], letters: Sequence[str]) -> list[Any]:
    return [sizes[c] for c in letters]


ROWS: dict[str, Row] = {"Einsum": _einsum}
