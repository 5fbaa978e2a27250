"""Wrong shapes. A message reads `[operation] tensor: expected [2,4H,H] = [2,40,5], got [40,5]`: the
letters in it are evaluated here and must give the numbers beside them, and the numbers must be
those of the shape table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import zstate as zs
from tests.cases import CELLS, Case, all_inputs
from tests.core.calls import ALL, KINDS, SIZES, Shape, arguments, call, full, refused


def evaluated(text: str) -> Shape:
    """[2,4H,I] with the sizes of this file; numbers stay what they are."""
    sizes = []
    for token in text.strip("[]").split(","):
        factor, letter = re.fullmatch(r"(\d*)([TNIH]?)", token.replace(" ", "")).groups()
        assert factor or letter, text
        sizes.append(int(factor or 1) * SIZES.get(letter, 1))
    return tuple(sizes)


def text_of(shape: Shape) -> str:
    return "[" + ",".join(map(str, shape)) + "]"


def allowed_shapes(case: Case, name: str) -> set[Shape]:
    """From the shape table of the specification, with its further readings."""
    T, N, H, D = case.T, case.N, case.H, case.D
    gates = {"rnn": 1, "lstm": 4, "gru": 3}[case.cell]
    lead = (2,) if D == 2 else ()
    per_step = (T, N, D * H)
    return {
        "source": {(T, N, case.I if "input_weight" in case.inputs else D * gates * H)},
        "recurrent_weight": {(*lead, gates * H, H)},
        "input_weight": {(D * gates * H, case.I)},
        "bias": {(D * gates * H,)},
        "init_state": {(N, D * H)},
        "init_cell": {(N, D * H)},
        "mask": {per_step},
        "peephole": {(*lead, gates * H), (D * gates * H,)},
        "secondary_bias": {(D * H,)},
        "source_gradient": {per_step},
        "z_state": {(T, N, D * gates * H)},
        "cell_output_fwd": {per_step},
        "output_fwd": {per_step},
        "state_gradient": {(N, D * H), (1, N, D * H)},
        "cell_gradient": {(N, D * H), (1, N, D * H), per_step},
    }[name]


def wrong_shapes(case: Case, name: str) -> Iterator[Shape]:
    """One axis too many, one too few, each size off by one; what is legal left out.

    T, N and I are read off the source and H off the recurrent weight, so that these have no wrong
    size where nothing contradicts it: another tensor is then the wrong one.
    """
    legal = allowed_shapes(case, name)
    right = min(legal, key=len) if name != "peephole" else max(legal, key=len)
    made = [right[1:], right[:-1], (*right, 1), (1, *right), (2, *right), ()]
    if name == "source":
        fixed = [] if "input_weight" in case.inputs else [2]
    elif name == "recurrent_weight":
        fixed = list(range(len(right) - 1))
    else:
        fixed = list(range(len(right)))
    for axis in fixed:
        for change in (1, -1):
            shape = list(right)
            shape[axis] += change
            made.append(tuple(shape))
    if name == "mask":
        made = [shape for shape in made if not broadcasts(shape, right)]
    if name == "recurrent_weight":  # with an axis for its one head it is legal
        made = [shape for shape in made if shape != (*right[:-2], 1, *right[-2:])]
    yield from (shape for shape in dict.fromkeys(made) if shape not in legal)


def broadcasts(shape: Shape, to: Shape) -> bool:
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize(("cell", "kind", "name"), ALL)
def test_a_wrong_rank_or_size(cell: str, kind: str, name: str, direction: str) -> None:
    case = full(cell, direction)
    tensors = arguments(case, kind)
    tried = 0
    for shape in wrong_shapes(case, name):
        wrong = {**tensors, name: np.zeros(shape)}
        expected, got = refused(zs.ShapeError, case, kind, wrong, name)
        assert got == text_of(shape)
        check_expected(case, name, expected, shape)
        tried += 1
    assert tried >= 3


def check_expected(case: Case, name: str, expected: str, shape: Shape) -> None:
    """Every shape in the message, in letters and in numbers, is one of the table's."""
    found = re.findall(r"\[[^\]]*\]", expected)
    assert found, expected
    if name == "recurrent_weight" and shape[-1:] != (case.H,):
        assert "H" in found[0]  # its own last axis is the wrong one: the numbers follow that
        return
    assert {evaluated(text) for text in found} == allowed_shapes(case, name), expected
    letters = [text for text in found if re.search("[TNIH]", text)]
    assert {evaluated(text) for text in letters} == allowed_shapes(case, name), expected
    if name not in ("source", "recurrent_weight"):
        for right in allowed_shapes(case, name):
            assert text_of(right) in found, f"{text_of(right)} is not in {expected}"
    assert ("broadcast" in expected) == (name == "mask")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cell", CELLS)
def test_a_projected_source_of_the_wrong_width(cell: str, kind: str) -> None:
    """Without an input weight the last axis of source is that of the gates."""
    for direction in ("forward", "bidirectional"):
        case = full(cell, direction, inputs=all_inputs(cell, "input_weight"))
        tensors = arguments(case, kind)
        for shape in wrong_shapes(case, "source"):
            wrong = {**tensors, "source": np.zeros(shape)}
            expected, got = refused(zs.ShapeError, case, kind, wrong, "source")
            assert got == text_of(shape)
            check_expected(case, "source", expected, shape)


def test_the_message_is_the_one_that_was_promised() -> None:
    case = full("lstm", "bidirectional", I=4, H=64)
    tensors = arguments(case, "gradients")
    wrong = {**tensors, "recurrent_weight": np.zeros((256, 64))}
    with pytest.raises(zs.ShapeError) as caught:
        call(case, "gradients", wrong)
    assert str(caught.value) == (
        "[lstm_gradients] recurrent_weight: expected [2,4H,H] = [2,256,64], got [256,64]"
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("cell", "rows"), [("lstm", 4), ("gru", 3)])
def test_a_transposed_weight(cell: str, rows: int, kind: str) -> None:
    for direction, front in (("forward", ()), ("bidirectional", (2,))):
        case = full(cell, direction, H=5)
        wrong = {**arguments(case, kind), "recurrent_weight": np.zeros((*front, 5, rows * 5))}
        expected, got = refused(zs.ShapeError, case, kind, wrong, "recurrent_weight")
        assert expected.endswith(f"= {text_of((*front, rows * 5, 5))}")
        assert got == f"{text_of((*front, 5, rows * 5))}, its transpose"
        transposed = arguments(case, kind)["input_weight"].T
        wrong = {**arguments(case, kind), "input_weight": transposed}
        expected, got = refused(zs.ShapeError, case, kind, wrong, "input_weight")
        assert got == f"{text_of(transposed.shape)}, its transpose"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cell", CELLS)
def test_a_transposed_input_weight(cell: str, kind: str) -> None:
    case = full(cell, "bidirectional", I=3, H=5)
    tensors = arguments(case, kind)
    right = tensors["input_weight"].shape  # as flax has it, the other way round
    wrong = {**tensors, "input_weight": np.zeros(right[::-1])}
    expected, got = refused(zs.ShapeError, case, kind, wrong, "input_weight")
    assert expected.endswith(f"= {text_of(right)}")
    assert got == f"{text_of(right[::-1])}, its transpose"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cell", CELLS)
def test_no_hidden_features(cell: str, kind: str) -> None:
    case = full(cell)
    tensors = arguments(case, kind)
    for direction, shape in (("forward", (0, 0)), ("bidirectional", (2, 0, 0))):
        wrong = {
            **tensors,
            "source": np.zeros((7, 3, 0)),
            "recurrent_weight": np.zeros(shape),
        }
        chosen = replace(case, direction=direction)
        expected, got = refused(zs.ShapeError, chosen, kind, wrong, "recurrent_weight")
        assert "H" in expected
        assert got == text_of(shape)
