"""Every refusal, with its message: the operation, the tensor, what was expected, what came.

A message reads `[operation] tensor: expected [2,4H,H] = [2,40,5], got [40,5]`. The letters in it
are evaluated here and must give the numbers beside them, and the numbers must be those of the shape
table. Nothing is computed and no input is written to. The last part is the other side: arrays that
look unusual but are legal give the same numbers as plain ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import zstate as zs
from tests.cases import (
    ACTIVATION_FIELDS,
    CELLS,
    DESCRIPTORS,
    DIRECTIONS,
    DTYPES,
    FED_BACK,
    FORWARD_OPS,
    GRADIENT_OPS,
    Array,
    Arrays,
    Case,
    Tolerance,
    all_inputs,
    assert_close,
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
    flags = frozenset({"reset_after"}) if cell == "gru" else frozenset()
    gradients = {"state_gradient": "flat", "cell_gradient": "flat" if cell == "lstm" else "none"}
    found: dict[str, Any] = {"inputs": all_inputs(cell), **gradients, **SIZES, **more}
    return Case(cell, direction, flags, seed=31, **found)


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
    yield from (shape for shape in dict.fromkeys(made) if shape not in legal)


def broadcasts(shape: Shape, to: Shape) -> bool:
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


ALL = [
    pytest.param(cell, kind, name, id=f"{label(cell, kind)}-{name}")
    for cell in CELLS
    for kind in KINDS
    for name in arguments(full(cell), kind)
]


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


# What is no tensor of one of the four float types


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


# What has no meaning


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
    wrong += [({"reverse": True}, "dict"), ("lstm", "str"), (DESCRIPTORS[cell], "type")]
    for descriptor, shown in wrong:
        with pytest.raises(TypeError) as caught:
            call(case, kind, tensors, descriptor=descriptor)
        assert isinstance(caught.value, zs.ZStateError)
        pattern = rf"\[{label(cell, kind)}\] descriptor: expected .*{right}.*, got .*{shown}.*"
        assert re.fullmatch(pattern, str(caught.value))


@pytest.mark.parametrize("value", [5, -1, 1, "tanh", None, 2.0, True, np.int64(2), math.tanh])
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


# What looks unusual and is legal


def strided(array: Array) -> Array:
    """Every second element along each axis of something larger."""
    large = np.full([2 * n for n in array.shape], np.nan)
    view = large[tuple(slice(None, None, 2) for _ in array.shape)]
    view[...] = array
    return view


def negative(array: Array) -> Array:
    flip = tuple(slice(None, None, -1) for _ in array.shape)
    return array[flip].copy()[flip]


def misaligned(array: Array) -> Array:
    raw = np.zeros(array.nbytes + 1, np.uint8)[1:]
    made = raw.view(array.dtype).reshape(array.shape) if array.size else array.copy()
    made[...] = array
    return made


def from_a_record(array: Array) -> Array:
    """A field of a structured array: the step between elements is no multiple of their size."""
    records = np.zeros(array.shape, dtype=[("mark", "i4"), ("value", "f8")])
    records["value"] = array
    return records["value"]


def read_only(array: Array) -> Array:
    made = array.copy()
    made.flags.writeable = False
    return made


LAYOUTS = {
    "strided": strided,
    "negative": negative,
    "fortran": lambda array: array.copy(order="F"),
    "transposed": lambda array: array.T.copy().T,
    "misaligned": misaligned,
    "record": from_a_record,
    "read_only": read_only,
}


@pytest.mark.parametrize("made", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("projected", [False, True])
def test_any_memory_layout(
    projected: bool, cell: str, direction: str, kind: str, made: str
) -> None:
    case = full(cell, direction)
    if projected:
        case = replace(case, inputs=all_inputs(cell, "input_weight"))
    tensors = arguments(case, kind)
    plain = {name: array.copy() for name, array in tensors.items()}
    unusual = {name: LAYOUTS[made](array) for name, array in tensors.items()}
    expected = call(case, kind, plain)
    found = call(case, kind, unusual)
    for name, x, y in zip(expected._fields, found, expected, strict=True):
        if y is None:
            assert x is None, name
        else:
            assert_close(x, y, name, Tolerance(1e-14, 1e-14))
    for name, array in tensors.items():
        np.testing.assert_array_equal(unusual[name], array)
        np.testing.assert_array_equal(plain[name], array)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cell", CELLS)
def test_broadcast_arrays(cell: str, kind: str) -> None:
    """Steps of zero bytes: one batch entry stands for all."""
    case = full(cell)
    tensors = arguments(case, kind)
    wide = dict(tensors)
    for name in ("source", "mask", "init_state", "source_gradient", "state_gradient"):
        if name in tensors:
            axis = 0 if tensors[name].ndim == 2 else 1
            first = tensors[name].take([0], axis)
            wide[name] = np.broadcast_to(first, tensors[name].shape)
    plain = {name: np.array(array) for name, array in wide.items()}
    for x, y in zip(call(case, kind, wide), call(case, kind, plain), strict=True):
        assert_close(x, y, cell, Tolerance(1e-14, 1e-14))


@pytest.mark.parametrize("sizes", [{"T": 0}, {"N": 0}, {"I": 0}, {"T": 0, "N": 0, "I": 0}])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cell", CELLS)
def test_empty_arrays_of_any_layout(cell: str, kind: str, sizes: dict[str, int]) -> None:
    case = full(cell, "bidirectional", **sizes)
    tensors = arguments(case, kind)
    expected = call(case, kind, tensors)
    for made in LAYOUTS.values():
        found = call(case, kind, {name: made(array) for name, array in tensors.items()})
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cell", CELLS)
def test_an_array_from_a_file(cell: str, kind: str, tmp_path: Any) -> None:
    case = full(cell)
    tensors = arguments(case, kind)
    mapped = {}
    for name, array in tensors.items():
        np.save(tmp_path / f"{name}.npy", array)
        mapped[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
    for x, y in zip(call(case, kind, mapped), call(case, kind, tensors), strict=True):
        np.testing.assert_array_equal(x, y)
        assert type(x) is np.ndarray


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cell", CELLS)
def test_results_may_be_written_to(cell: str, kind: str) -> None:
    """They are the caller's: writable, and in nobody else's memory."""
    case = full(cell, "bidirectional")
    tensors = arguments(case, kind)
    copies = {name: array.copy() for name, array in tensors.items()}
    first = call(case, kind, tensors)
    kept = [array.copy() for array in first]
    for array in first:
        array[...] = np.nan
    for name, array in tensors.items():
        np.testing.assert_array_equal(array, copies[name])
    for x, y in zip(call(case, kind, tensors), kept, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("backend", [[], {}, 3, "metal"])
def test_a_backend_that_is_no_name_is_refused_by_name(backend: object) -> None:
    with pytest.raises(zs.BackendError, match=r"\[lstm\] backend: expected None or one of .*, got"):
        zs.lstm(np.ones((2, 1, 8)), np.ones((8, 2)), backend=backend)  # type: ignore[arg-type]
