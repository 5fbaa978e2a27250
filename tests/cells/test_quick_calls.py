"""A second call of a cell from equations, which goes to the engine's table of known calls, gives
and refuses what the first one does."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cells.test_decorator import drawn
from zstate import cells
from zstate.backends import native
from zstate.errors import DTypeError, EquationError, OptionError, ShapeError

needs_native = pytest.mark.skipif(
    native.unavailable() is not None, reason="built without a C++ compiler"
)


@cells.cell("i f", "h c", "type dict array call found forward states options")
def awkward(x, R, h, c, type, dict, array, call, found, forward, states, options):
    """Parameters that are called as parts of Python and of the calling code are."""
    i = cells.sigmoid(x.i + R.i @ h + type * dict) + array * call
    c = i * c + cells.tanh(x.f + R.f @ h) * found + forward * states
    return c * options, c


def given_to(cell, seed=0):
    return {name: value for name, value in drawn(cell, seed=seed).items() if name != "mask"}


def both_ways(cell, given, **options):
    out = cell(**given, training=True, **options)
    rng = np.random.default_rng(5)
    grads = {each.name: rng.normal(size=out[0].shape) for each in cell.definition.states}
    return out, cell.gradients(out=out, state_gradients=grads, **given, **options)


def assert_same(found, wanted):
    for each, expected in zip(found, wanted, strict=True):
        assert (each is None) == (expected is None)
        if each is not None:
            np.testing.assert_allclose(each, expected, rtol=1e-10, atol=1e-12)


@needs_native
@pytest.mark.parametrize("cell", [awkward, cells.mgu, cells.slstm, cells.layer_norm_gru])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_first_and_repeated_calls(cell, bidirectional):
    for seed in range(3):
        given = drawn(cell, directions=1 + bidirectional, seed=seed)
        wanted = both_ways(cell, given, bidirectional=bidirectional, backend="reference")
        native._native.forget_paths()
        found = both_ways(cell, given, bidirectional=bidirectional)
        if seed:
            assert "known_call" in native._native.paths_taken()
        for each, expected in zip(found, wanted, strict=True):
            assert_same(each, expected)


@needs_native
def test_some_inputs_and_others_are_different_calls():
    given = given_to(awkward)
    both_ways(awkward, given), both_ways(awkward, given)
    for missing in ("init_h", "bias"):
        fewer = {name: value for name, value in given.items() if name != missing}
        for _ in range(2):
            found, wanted = both_ways(awkward, fewer), both_ways(awkward, fewer, backend="native")
            assert_same([*found[0], *found[1]], [*wanted[0], *wanted[1]])
    resets = np.random.default_rng(1).random(given["source"].shape[:2]) < 0.5
    for _ in range(2):
        found = both_ways(awkward, given, resets=resets)
        wanted = both_ways(awkward, given, resets=resets, backend="reference")
        assert_same([*found[0], *found[1]], [*wanted[0], *wanted[1]])


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"init_i": np.ones((3, 6))}, OptionError, "init_i"),
        ({"dict": None}, DTypeError, "dict: expected a parameter"),
        ({"bias": np.ones(3)}, ShapeError, "bias"),
        ({"resets": np.ones((5, 3, 1))}, ShapeError, "resets"),
        ({"heads": 0}, OptionError, "heads"),
        ({"reverse": 1}, Exception, "reverse"),
    ],
)
def test_a_repeated_call_is_refused_as_a_first_one(changed, error, said):
    given = given_to(awkward)
    out, _ = both_ways(awkward, given), both_ways(awkward, given)
    with pytest.raises(error, match=said):
        awkward(**{**given, **changed})
    with pytest.raises(error, match=said):
        awkward.gradients(out=out[0], state_gradients={}, **{**given, **changed})


def test_gradients_of_other_results_and_states():
    given = given_to(awkward)
    (out, _), _ = both_ways(awkward, given), both_ways(awkward, given)
    with pytest.raises(DTypeError, match="out: expected the result of awkward"):
        awkward.gradients(out=given, state_gradients={}, **given)
    with pytest.raises(OptionError, match="state_gradients: expected names of h, c"):
        awkward.gradients(out=out, state_gradients={"m": out.c}, **given)
    with pytest.raises(DTypeError, match="expected a mapping"):
        awkward.gradients(out=out, state_gradients=out.c, **given)


def test_a_name_that_python_reads_differently():
    with pytest.raises(EquationError, match="expected names made of letters"):
        cells.cell("i", "h", "\ufb01")(lambda x, R, h, fi: cells.tanh(x.i + R.i @ h) * fi)
