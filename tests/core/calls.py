"""Calls with every tensor in them, and how a refusal of one reads: the operation, the tensor, what
was expected, what came. Nothing is computed and no input is written to."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import zstate as zs
from tests import cases
from tests.cases import (
    CELLS,
    FED_BACK,
    FORWARD_OPS,
    GRADIENT_OPS,
    Arrays,
    Case,
    make_cotangents,
    make_tensors,
    run_forward,
)

# all different, so that no wrong shape is right by accident
SIZES = {"T": 7, "N": 3, "I": 2, "H": 5}
NAMES = {"rnn": "single_gate_rnn", "lstm": "lstm", "gru": "gru"}
KINDS = ("forward", "gradients")
Shape = tuple[int, ...]


def full(cell: str, direction: str = "forward", **more: Any) -> Case:
    return cases.full(cell, direction=direction, **{"seed": 31, **SIZES, **more})


def arguments(case: Case, kind: str) -> Arrays:
    """Every tensor of the forward or the gradient operation, all of them right."""
    tensors = make_tensors(case)
    if kind == "forward":
        return tensors
    result = run_forward(case, tensors, training=True)
    fed_back = {name: getattr(result, member) for name, member in FED_BACK[case.cell].items()}
    return {**tensors, **make_cotangents(case), **fed_back}


def call(case: Case, kind: str, tensors: dict[str, Any], **more: Any) -> Any:
    operation = (FORWARD_OPS if kind == "forward" else GRADIENT_OPS)[case.cell]
    more.setdefault("descriptor", case.descriptor(training=True))
    return operation(**tensors, **more)


def label(cell: str, kind: str) -> str:
    return NAMES[cell] + ("_gradients" if kind == "gradients" else "")


def refused(
    kind_of_error: type[Exception], case: Case, kind: str, tensors: dict[str, Any], name: str
) -> tuple[str, str]:
    """What the message says was expected and what it says came; the inputs are as before."""
    copies = {k: v.copy() for k, v in tensors.items() if isinstance(v, np.ndarray)}
    with pytest.raises(kind_of_error) as caught:
        call(case, kind, tensors)
    assert isinstance(caught.value, zs.ZStateError)
    pattern = rf"\[{label(case.cell, kind)}\] {name}: expected (.+), got (.+)"
    found = re.fullmatch(pattern, str(caught.value))
    assert found, f"{caught.value!s} does not read like {pattern}"
    for k, copy in copies.items():
        np.testing.assert_array_equal(tensors[k], copy)
    return found[1], found[2]


ALL = [
    pytest.param(cell, kind, name, id=f"{label(cell, kind)}-{name}")
    for cell in CELLS
    for kind in KINDS
    for name in arguments(full(cell), kind)
]
