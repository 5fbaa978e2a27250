"""What is no tensor of one of the four float types is refused by name."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import zstate as zs
from tests.cases import CELLS, DTYPES, FED_BACK, Array
from tests.core.calls import ALL, KINDS, arguments, full, refused


def another_float(array: Array) -> Array:
    return array.astype(np.float32)


NOT_TENSORS: dict[str, tuple[Any, str]] = {
    "float32": (another_float, "float32"),
    "float16": (lambda a: a.astype(np.float16), "float16"),
    "bfloat16": (lambda a: a.astype(DTYPES["bfloat16"]), "bfloat16"),
    "longdouble": (lambda a: a.astype(np.longdouble), np.dtype(np.longdouble).name),
    "int64": (lambda a: a.astype(np.int64), "int64"),
    "uint8": (lambda a: np.abs(a).astype(np.uint8), "uint8"),
    "complex128": (lambda a: a.astype(np.complex128), "complex128"),
    "bool": (lambda a: a > 0, "bool"),
    "object": (lambda a: a.astype(object), "object"),
    "string": (lambda a: a.astype(str), "str"),
    "byteswapped": (lambda a: a.astype(a.dtype.newbyteorder()), "f8"),
    "list": (lambda a: a.tolist(), "list"),
    "tuple": (lambda a: tuple(a.tolist()), "tuple"),
    "number": (lambda a: 1.5, "float"),
    "numpy_scalar": (lambda a: np.float64(1.5), "float64"),
    "text": (lambda a: "weights.npy", "str"),
    "dict": (lambda a: {"data": a}, "dict"),
    "masked": (lambda a: np.ma.MaskedArray(a), "MaskedArray"),
}


@pytest.mark.parametrize("form", NOT_TENSORS)
@pytest.mark.parametrize(("cell", "kind", "name"), ALL)
def test_not_a_tensor_of_the_same_float_type(cell: str, kind: str, name: str, form: str) -> None:
    """Refused by name, never half-converted."""
    make, shown = NOT_TENSORS[form]
    case = full(cell)
    tensors = arguments(case, kind)
    wrong = {**tensors, name: make(tensors[name])}
    if name == "source" and form in ("float32", "float16", "bfloat16"):
        # the source's type is the one that counts: the first of the others is the wrong one
        expected, got = refused(zs.DTypeError, case, kind, wrong, r"\w+")
        assert shown in expected
        assert "float64" in got
        return
    expected, got = refused(zs.DTypeError, case, kind, wrong, name)
    assert shown in got, got
    assert re.search("float|array|tensor", expected), expected


@pytest.mark.parametrize("pair", [("float32", "float64"), ("float16", "bfloat16")])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cell", CELLS)
def test_two_float_types_in_one_call(cell: str, kind: str, pair: tuple[str, str]) -> None:
    case = full(cell)
    tensors = {k: v.astype(DTYPES[pair[0]]) for k, v in arguments(case, kind).items()}
    wrong = {**tensors, "bias": tensors["bias"].astype(DTYPES[pair[1]])}
    expected, got = refused(zs.DTypeError, case, kind, wrong, "bias")
    assert pair[0] in expected
    assert pair[1] in got


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cell", CELLS)
def test_none_for_what_is_required(cell: str, kind: str) -> None:
    case = full(cell)
    tensors = arguments(case, kind)
    required = ["source", "recurrent_weight"]
    if kind == "gradients":
        required += ["source_gradient", *FED_BACK[cell]]
    for name in required:
        wrong: dict[str, Any] = {**tensors, name: None}
        _, got = refused(zs.DTypeError, case, kind, wrong, name)
        assert "None" in got
