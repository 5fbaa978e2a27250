"""A case of one op of the graph: how it is built, on which inputs, and what it must give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import zstate as zs
from zstate.types import Array

RNG = np.random.default_rng(20)
Build = Callable[..., Any]


def normal(*shape: int) -> Array:
    return RNG.normal(size=shape)


def positive(*shape: int) -> Array:
    return RNG.uniform(0.5, 2.0, shape)


class Case(NamedTuple):
    """An op on inputs, what it must give, and the op's row that it is about."""

    op: str
    build: Build
    inputs: list[Array]
    expected: Callable[..., Any]
    is_smooth: bool = True


def built(case: Case, unknown: bool = False) -> tuple[zs.Graph, list[zs.Tensor], list[zs.Tensor]]:
    g = zs.Graph()
    inputs = [
        g.placeholder(
            shape=[None] * a.ndim if unknown else a.shape, dtype=a.dtype.name, name=f"in{k}"
        )
        for k, a in enumerate(case.inputs)
    ]
    results = case.build(g, *inputs)
    return g, inputs, list(results) if isinstance(results, list) else [results]


def expected(case: Case) -> list[Array]:
    found = case.expected(*case.inputs)
    return [np.asarray(a) for a in (found if isinstance(found, list) else [found])]
