"""What has no meaning is refused: options, tensors and descriptors of another cell, backends."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import zstate as zs
from tests.cases import ACTIVATION_FIELDS, CELLS, DESCRIPTORS
from tests.core.calls import KINDS, arguments, call, full, label, refused


@pytest.mark.parametrize("kind", KINDS)
def test_a_secondary_bias_without_reset_after(kind: str) -> None:
    case = full("gru")
    tensors = arguments(case, kind)
    plain = replace(case, flags=frozenset({"flip_z"}))
    expected, _ = refused(zs.OptionError, plain, kind, tensors, "secondary_bias")
    assert "reset_after" in expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("cell", "foreign"),
    [
        ("rnn", "peephole"),
        ("gru", "peephole"),
        ("rnn", "init_cell"),
        ("gru", "init_cell"),
        ("rnn", "secondary_bias"),
        ("lstm", "secondary_bias"),
    ],
)
def test_a_tensor_of_another_cell(cell: str, foreign: str, kind: str) -> None:
    case = full(cell)
    tensors = {**arguments(case, kind), foreign: np.zeros(20)}
    with pytest.raises(TypeError, match=foreign):
        call(case, kind, tensors)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cell", CELLS)
def test_a_descriptor_of_another_cell(cell: str, kind: str) -> None:
    case = full(cell)
    tensors = arguments(case, kind)
    right = DESCRIPTORS[cell].__name__
    wrong: list[tuple[Any, str]] = [
        (made(), made.__name__) for other, made in DESCRIPTORS.items() if other != cell
    ]
    wrong += [
        ({"reverse": True}, "dict"),
        ("lstm", "str"),
        (DESCRIPTORS[cell], f"the class {right}"),
    ]
    for descriptor, shown in wrong:
        with pytest.raises(TypeError) as caught:
            call(case, kind, tensors, descriptor=descriptor)
        assert isinstance(caught.value, zs.ZStateError)
        pattern = rf"\[{label(cell, kind)}\] descriptor: expected .*{right}.*, got .*{shown}.*"
        assert re.fullmatch(pattern, str(caught.value))


@pytest.mark.parametrize("value", [5, -1, 1, "tan", None, 2.0, True, np.int64(2), math.tanh])
@pytest.mark.parametrize(
    ("cell", "field"),
    [(cell, field) for cell in CELLS for field in ACTIVATION_FIELDS[cell]],
)
def test_an_activation_outside_the_five(cell: str, field: str, value: Any) -> None:
    """Only members of Activation; a number is none, so that no other table slips in."""
    with pytest.raises((TypeError, ValueError), match=rf"{field}.*Activation") as caught:
        DESCRIPTORS[cell](**{field: value})
    assert isinstance(caught.value, zs.ZStateError)
    assert DESCRIPTORS[cell].__name__ in str(caught.value)


def test_there_is_no_sixth_activation() -> None:
    for number in (5, -1):
        with pytest.raises(ValueError, match=str(number)):
            zs.Activation(number)


@pytest.mark.parametrize("backend", ["nonsense", "", "Reference", 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cell", CELLS)
def test_an_unknown_backend(cell: str, kind: str, backend: Any) -> None:
    case = full(cell)
    with pytest.raises(zs.ZStateError) as caught:
        call(case, kind, arguments(case, kind), backend=backend)
    message = str(caught.value)
    assert message.startswith(f"[{label(cell, kind)}] backend")
    assert repr(backend) in message
    assert "reference" in message


def test_the_kinds_of_error() -> None:
    """Old code that catches ValueError or TypeError goes on working."""
    assert issubclass(zs.ShapeError, ValueError)
    assert issubclass(zs.DTypeError, TypeError)
    assert issubclass(zs.OptionError, ValueError)
    for kind in (zs.ShapeError, zs.DTypeError, zs.OptionError):
        assert issubclass(kind, zs.ZStateError)
    assert not issubclass(zs.ShapeError, TypeError)
    assert not issubclass(zs.DTypeError, ValueError)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cell", CELLS)
def test_a_refusal_is_not_remembered(cell: str, kind: str) -> None:
    """Right, wrong, right again; and wrong twice in a row."""
    case = full(cell)
    tensors = arguments(case, kind)
    wrong = {**tensors, "bias": np.zeros(3)}
    before = call(case, kind, tensors)
    for _ in range(2):
        with pytest.raises(zs.ShapeError):
            call(case, kind, wrong)
    for x, y in zip(before, call(case, kind, tensors), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("backend", [[], {}, 3, "metal"])
def test_a_backend_that_is_no_name_is_refused_by_name(backend: object) -> None:
    with pytest.raises(zs.BackendError, match=r"\[lstm\] backend: expected None or one of .*, got"):
        zs.lstm(np.ones((2, 1, 8)), np.ones((8, 2)), backend=backend)  # type: ignore[arg-type]
