"""A bad call is refused when it is built, by name: what builds also runs.

Random calls of every method that builds nodes, with arguments that fit and arguments that do not.
"""

from __future__ import annotations

import inspect
import typing
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import zstate as zs
from zstate import cells
from zstate.graph.methods import Learning, Recurrent, Shaping
from zstate.graph.methods.core import DTYPES
from zstate.types import float_dtype

NOT_BUILDING = {"add_node", "add_node_named", "apply", "apply_many", "own", "note_assign"}
METHODS = sorted(
    {
        name
        for family in (Learning, Shaping, Recurrent)
        for name, _ in inspect.getmembers(family, inspect.isfunction)
        if not name.startswith("_") and name not in NOT_BUILDING | {"training_twin"}
    }
)
SIZES = st.sampled_from([0, 1, 2, 3, 3, 4])
SHAPES = st.lists(SIZES, max_size=3).map(tuple)
INTEGERS = st.sampled_from([-4, -3, -2, -1, 0, 1, 2, 3, 7, 2**31, 2**62, 2**80])
NUMBERS: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(0, 1, -1, 2, 0.5, -2.5, 300, 2**40, 1e30, 1e200, float("nan"), float("inf"), 10**400),
        *(np.float32(1.5), np.int64(-3)),
    ]
)
ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, "x", 1j, np.complex64(2), [], [[1]], {}, object(), np.ones(2), b"y", ["a"], ()]
)


def tensors(g: zs.Graph, draw: Any) -> list[zs.Tensor]:
    """A few tensors with values; some alike, so that calls also fit."""
    shape = draw(SHAPES)
    dtype = draw(st.sampled_from(["float32", *DTYPES]))
    made = []
    for k in range(draw(st.integers(1, 3))):
        own = shape if draw(st.integers(0, 4)) else draw(SHAPES)
        kind = dtype if draw(st.integers(0, 4)) else draw(st.sampled_from(DTYPES))
        values = np.resize([0, 1], own).astype(float_dtype(kind))
        make = g.constant if draw(st.booleans()) else g.variable
        made.append(make(values, name=f"t{k}"))
    if draw(st.booleans()):
        made.append(g.random_philox_state(seed=3))
    return made


def argument(hint: Any, name: str, made: list[zs.Tensor], draw: Any) -> Any:
    """A value for a parameter by its hint, now and then of another kind."""
    if not draw(st.integers(0, 19)):
        return draw(st.one_of(ODD, NUMBERS, INTEGERS))
    options = typing.get_args(hint) or (hint,)
    if type(None) in options and draw(st.booleans()):
        return None
    if name == "cell":
        return draw(st.sampled_from([cells.mgu, cells.slstm, cells.GRU, "lstm"]))
    if name == "tensors":
        return draw(st.lists(st.sampled_from(made), max_size=3))
    if zs.Tensor in options:
        if float in options and draw(st.booleans()):
            return draw(NUMBERS)
        return draw(st.sampled_from(made))
    if name in ("dtype", "reduction", "padding_mode"):
        words = [*DTYPES, "none", "sum", "mean", "constant", "reflect", "symmetric", "zero", "f4"]
        return draw(st.sampled_from([*words, "complex64", ">f4", "float128", "clamp_to_edge"]))
    origin = typing.get_origin(hint)
    if origin is Sequence or any(typing.get_origin(option) is Sequence for option in options):
        if int in options and draw(st.booleans()):
            return draw(INTEGERS)
        return draw(st.lists(st.one_of(SIZES, SIZES, SIZES, INTEGERS), max_size=4))
    if float in options:
        return draw(NUMBERS)
    if int in options:
        return draw(st.one_of(st.integers(-3, 3), INTEGERS))
    return draw(ODD)


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=15, deadline=None, phases=[Phase.generate])
@given(data=st.data())
def test_a_call_is_refused_when_built_or_runs(method: str, data: Any) -> None:
    g = zs.Graph()
    made = tensors(g, data.draw)
    build = getattr(g, method)
    hints = typing.get_type_hints(getattr(zs.Graph, method))
    arguments = {
        name: argument(hints[name], name, made, data.draw)
        for name, parameter in inspect.signature(build).parameters.items()
        if name != "name"
        and parameter.kind is not parameter.VAR_KEYWORD
        and (parameter.default is parameter.empty or data.draw(st.integers(0, 2)) == 0)
    }
    try:
        result = build(**arguments)
    except zs.ZStateError as error:
        if not str(error).startswith("["):
            raise
        return
    except MemoryError:
        return  # a legal array that this machine has no room for
    wanted = result if isinstance(result, list) else [result]
    if sum(np.prod(t.shape, dtype=float) for t in wanted) > 1e6:
        return  # legal, and too much for a test
    feeds = {
        t: np.zeros([2 if s is None else s for s in t.shape], float_dtype(t.dtype))
        for t in wanted
        if t.node.op.name == "placeholder"
    }
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            found = g.run(feeds, wanted)
        except zs.OptionError as error:
            if "indices" not in str(error) and "exponents" not in str(error):
                raise  # the values of those two are known only now
            return
    for tensor, array in found.items():
        assert array.dtype.name == tensor.dtype
        assert all(a in (None, b) for a, b in zip(tensor.shape, array.shape, strict=True))


REFUSED: dict[str, tuple[Any, str]] = {
    "endless parts of nothing": (
        lambda g, x, i, b: g.split(g.constant(np.zeros((2, 0))), 2**80, axis=1),
        r"\[split\] split_sizes: expected equal parts of axis 1 of \[2,0\]",
    ),
    "minus of bools": (lambda g, x, i, b: -b, r"\[negative\] tensor: expected numbers"),
    "difference of bools": (lambda g, x, i, b: b - b, r"\[subtraction\] primary: expected numbers"),
    "power of bools": (lambda g, x, i, b: b**b, r"\[power\] primary: expected numbers"),
    "square of bools": (lambda g, x, i, b: g.square(b), r"\[square\] tensor: expected numbers"),
    "sign of bools": (lambda g, x, i, b: g.sign(b), r"\[sign\] tensor: expected numbers"),
    "negative power": (lambda g, x, i, b: i**-1, r"\[power\] secondary: expected exponents of at"),
    "half of an integer": (lambda g, x, i, b: i + 0.5, r"\[addition\] secondary: expected a numb"),
    "too large": (lambda g, x, i, b: i + 2**40, r"secondary: expected a number of int32, got 109"),
    "not a number": (lambda g, x, i, b: i * float("nan"), "secondary: expected a number of int32"),
    "beyond floats": (lambda g, x, i, b: x + 10**400, "secondary: expected a number of float32"),
    "complex": (lambda g, x, i, b: x + np.complex64(1), "secondary: expected a Tensor of this"),
    "an array": (lambda g, x, i, b: x + np.ones(3), r"got numpy.ndarray; graph.constant\(array\)"),
    "broadcast": (lambda g, x, i, b: g.broadcast(x, (-1, 2, 3)), "shape: expected sizes of at le"),
    "scatter": (lambda g, x, i, b: g.scatter(x, i[:, 0], -2), "size: expected at least 0, got -2"),
    "scatter along": (
        lambda g, x, i, b: g.scatter_along_axis(x, i, -2, 0),
        "size: expected at least 0, got -2",
    ),
    "split into nothing": (lambda g, x, i, b: g.split(x, [], axis=0), "split_sizes: expected siz"),
    "padding of integers": (
        lambda g, x, i, b: g.pad_tensor(i, [1, 0], [0, 0], constant_value=0.5),
        "constant_value: expected a number of int32, got 0.5",
    ),
    "one hot": (
        lambda g, x, i, b: g.one_hot(i, 4, dtype="int8", on_value=200),
        "on_value: expected a number of int8, got 200",
    ),
    "no type": (lambda g, x, i, b: g.cast(x, None), "dtype: expected one of float16, "),
    "foreign bytes": (lambda g, x, i, b: g.cast(x, ">f4"), "dtype: expected one of float16, "),
    "wide floats": (lambda g, x, i, b: g.cast(x, np.longdouble), "uint64, bool, got "),
    "one tensor": (lambda g, x, i, b: g.stack(x, axis=0), "tensors: expected a list of tensors"),
    "one target": (lambda g, x, i, b: g.run({}, x), r"\[run\] targets: expected a list of tensors"),
    "one source": (lambda g, x, i, b: g.gradients(x, x), "with_respect_to: expected a list of"),
    "no feeds": (lambda g, x, i, b: g.run(None, [x]), "feeds: expected {placeholder: array}, got"),
    "no bounds": (lambda g, x, i, b: g.strided_slice(x, 0, 1), "starts: expected a sequence"),
    "too many bytes": (
        lambda g, x, i, b: g.placeholder(shape=(2**31, 2**31, 4)),
        r"\[placeholder\] shape: expected fewer than 2\^63 bytes, got \[2147483648,2147483648,4\]",
    ),
    "empty and too large": (
        lambda g, x, i, b: g.placeholder(shape=(0, 2**56, 2**10)),
        r"shape: expected fewer than 2\^63 bytes",
    ),
    "large random": (
        lambda g, x, i, b: g.random_uniform((2**40, 2**40), g.random_philox_state(seed=1)),
        r"\[random_tensor\] shape: expected fewer than 2\^63 bytes",
    ),
    "large one hot": (lambda g, x, i, b: g.one_hot(i, 2**62), r"\[one_hot\] shape: expected fewer"),
    "large padding": (
        lambda g, x, i, b: g.pad_tensor(x, [2**62, 0], [0, 0]),
        r"\[pad_tensor\] shape: expected fewer than 2\^63 bytes",
    ),
    "large product": (
        lambda g, x, i, b: g.placeholder(shape=(2**32, 1)) @ g.placeholder(shape=(1, 2**32)),
        r"\[matrix_multiplication\] shape: expected fewer than 2\^63 bytes",
    ),
    "large constant": (
        lambda g, x, i, b: g.constant(1.0, shape=(2**40, 2**40)),
        r"\[constant\] shape: expected fewer than 2\^63 bytes",
    ),
    "dimensions": (
        lambda g, x, i, b: g.expand_dims(x, axes=range(40)),
        r"\[expand_dims\] shape: expected at most 32 dimensions, got 42",
    ),
    "softmax of nothing": (
        lambda g, x, i, b: g.soft_max(x[:, :0], axis=1),
        r"tensor: expected at least one element along axis 1, got \[2,0\]",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("build", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_when_built(build: Any, message: str) -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(2, 3), name="x")
    i = g.placeholder(shape=(2, 3), dtype="int32", name="i")
    b = g.placeholder(shape=(2, 3), dtype="bool", name="b")
    with pytest.raises(zs.ZStateError, match=message):
        build(g, x, i, b)


# Rows that no method makes, but a file may name: (row, shapes of the inputs, attributes, message).
HELPERS: list[tuple[str, list[Any], dict[str, Any], str]] = [
    ("sum_like", [(2, 3), (5, 3)], {}, r"like: expected a shape that broadcasts to \[2,3\]"),
    ("broadcast_like", [(2, 3), (4,)], {}, r"tensor: expected a shape that broadcasts to \[4\]"),
    ("mean_like", [(2, 3), (2, 4)], {}, r"tensor: expected a shape that broadcasts to \[2,4\]"),
    ("reshape_like", [(2, 3), (7,)], {}, r"tensor: expected as many elements as \[7\]"),
    (
        "slice_gradient",
        [(2, 2), (2, 3)],
        {"starts": (0, 0), "ends": (None, None), "strides": (1, 1)},
        r"tensor: expected \[2,3\], got \[2,2\]",
    ),
    (
        "slice_gradient",
        [(2,), (2, 3)],
        {"starts": (0,), "ends": (None,), "strides": (1,)},
        "starts: expected one number for each of 2",
    ),
    ("concat_gradient", [(2, 3), (2, 2), (2, 2)], {"axis": 1}, "gradient: expected 4 along axis 1"),
    ("concat_gradient", [(2, 3), (3, 2)], {"axis": 1}, r"tensors\[0\]: expected \[2,\?\]"),
    ("concat_gradient", [(2, 3), (2, 3)], {"axis": 4}, "axis: expected an axis of 2 dimensions"),
    ("gather_gradient", [(2, 3), "i", (5, 3)], {"axis": 0}, r"gradient: expected \[4,3\], got"),
    ("gather_gradient", [(4, 3), "i", (5, 3)], {"axis": 7}, "axis: expected an axis of 2 dimens"),
    ("gather_along_axis_gradient", [(3,), "i", (5,)], {"axis": 0}, r"gradient: expected \[4\]"),
    (
        "pad_around_gradient",
        [(2,)],
        {"left": (2,), "right": (1,), "mode": "reflect"},
        "gradient: expected at least the padding in every dimension",
    ),
    (
        "put_slice",
        [(2,)],
        {"starts": (0,), "ends": (None,), "strides": (1,), "shape": (-2,)},
        "shape: expected sizes of at least 0",
    ),
    (
        "soft_max_cross_entropy_gradient",
        [(2,), (2, 3), (2, 3)],
        {"axis": 1, "reduction": "sum"},
        r"gradient: expected \[\], got \[2\]",
    ),
]


@pytest.mark.parametrize(("row", "shapes", "attributes", "message"), HELPERS)
def test_helper_rows_are_refused_when_built(
    row: str, shapes: list[Any], attributes: dict[str, Any], message: str
) -> None:
    from zstate.graph.ops import OPS

    g = zs.Graph()
    inputs = tuple(
        g.placeholder(shape=(4,), dtype="int32") if shape == "i" else g.placeholder(shape=shape)
        for shape in shapes
    )
    with pytest.raises(zs.ShapeError, match=rf"\[{row}\] {message}"):
        g.add_node(OPS[row], inputs, attributes)


def test_negative_powers_of_integers_are_refused_by_name_when_run() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(2,), dtype="int64")
    y = g.placeholder(shape=(2,), dtype="int64")
    power = x**y
    two = np.array([2, 3])
    for convert in (np.asarray, torch.tensor):
        fed: Any = {x: convert(two), y: convert(two)}
        assert g.run(fed, [power])[power].tolist() == [4, 27]
        with pytest.raises(zs.OptionError, match="secondary: expected exponents of at least 0"):
            g.run({x: convert(two), y: convert(-two)}, [power])
