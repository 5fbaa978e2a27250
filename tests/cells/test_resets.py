"""Resets inside a sequence: the same as each sequence by itself, forward and gradients."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import zstate as zs
from tests.cells import made_up
from zstate import functional
from zstate.cells import GRU, LSTM, RNN, library
from zstate.errors import DTypeError, ShapeError
from zstate.extensions import extended
from zstate.operations import operations_of

# From their module: a cell of one of these names would hide them in the package.
MADE = [library.slstm.definition, library.mgu.definition, library.cifg.definition]


def _rng(config, *more: int) -> np.random.Generator:
    return np.random.default_rng([int(config.option.hypothesis_seed), *more])


def _call(rng, cell, steps, batch, hidden, inputs, **options):
    """Tensors by name, random and not zero, of a forward operation."""
    directions = 2 if options.get("bidirectional") else 1
    shapes = made_up.shapes_of_call(cell, (steps, batch, inputs, hidden), directions)
    given = {name: rng.standard_normal(shape) * 0.5 for name, shape in shapes.items()}
    for own in cell.own:
        if own.only_with and not options.get(own.only_with):
            del given[own.name]
    return given


def _run(cell, given, options, gradients=None, backend=None):
    """Results by name; with gradients of the states, those of the inputs."""
    forward, backward = operations_of(cell)
    descriptor = cell.descriptor(**{**options, "training": True})
    out = functional.run(forward, tuple(map(given.get, forward.inputs)), descriptor, backend)
    results = out._asdict()
    if gradients is None:
        return results
    taken = {**given, **{name: results[result] for name, result in cell.fed_back.items()}}
    taken |= {each.gradient: gradients[each.name] for each in cell.states}
    inputs = tuple(map(taken.get, backward.inputs))
    return results, functional.run(backward, inputs, descriptor, backend)._asdict()


def _by_segments(cell, given, options, gradients):
    """Row by row and direction by direction, every sequence in a call of its own."""
    steps, batch, _ = given["source"].shape
    both = bool(options.get("bidirectional"))
    resets = given["resets"]
    found = {s.name: np.zeros_like(gradients[s.name]) for s in cell.states}
    totals = {name: np.zeros_like(v) for name, v in given.items() if name not in ("mask", "resets")}
    half = {s.name: gradients[s.name].shape[-1] // (2 if both else 1) for s in cell.states}
    hidden = next(iter(half.values()))
    gates = len(cell.gates) * hidden
    for n in range(batch):
        for d in range(2 if both else 1):
            backwards = d == 1 if both else options.get("reverse", False)
            cuts = [0, *(t for t in range(1, steps) if resets[t, n]), steps]
            for lo, hi in pairwise(cuts):
                begins = hi == steps if backwards else lo == 0 and not resets[0, n]
                unit, row = slice(d * hidden, (d + 1) * hidden), slice(n, n + 1)
                rows = slice(d * gates, (d + 1) * gates)
                part = {
                    "source": (slice(lo, hi), row),
                    "recurrent_weight": d if both else ...,
                    "input_weight": rows,
                    "bias": rows,
                    "mask": (slice(lo, hi), row, unit),
                }
                part |= {s.initial: (row, unit) for s in cell.states if begins}
                for own in cell.own:
                    part[own.name] = (d if both else ...) if own.by_gate else unit
                part = {name: place for name, place in part.items() if name in given}
                one = {name: given[name][place] for name, place in part.items()}
                for s in cell.states:
                    if s.initial not in one and s.start:
                        one[s.initial] = np.full((1, hidden), s.start)
                own_options = {**options, "bidirectional": False, "reverse": bool(backwards)}
                # With one direction, results lie in the order of processing.
                turned = both and backwards
                whole = slice(steps - hi, steps - lo) if backwards and not both else slice(lo, hi)
                at = (whole, row, unit)
                incoming = {k: v[at][::-1] if turned else v[at] for k, v in gradients.items()}
                states, grads = _run(cell, one, own_options, incoming, "reference")
                for s in cell.states:
                    found[s.name][at] = states[s.name][::-1] if turned else states[s.name]
                for name, place in part.items():
                    if name in totals:
                        totals[name][place] += grads[name]
    return found, totals


def _drawn(rng):
    every = [RNN, LSTM, GRU, *MADE, made_up.make(rng, smooth=True)]
    cell = every[rng.integers(len(every))]
    options = {"reverse": bool(rng.random() < 0.3), "bidirectional": bool(rng.random() < 0.4)}
    if cell is GRU:
        options["reset_after"] = bool(rng.random() < 0.5)
    steps, batch, hidden = (int(rng.integers(1, most)) for most in (7, 4, 36))
    given = _call(rng, cell, steps, batch, hidden, 3, **options)
    if rng.random() < 0.5:
        del given["mask"]
    given["resets"] = rng.random((steps, batch)) < 0.35
    both = 2 if options["bidirectional"] else 1
    gradients = {s.name: rng.standard_normal((steps, batch, both * hidden)) for s in cell.states}
    return cell, given, options, gradients


@pytest.mark.parametrize("part", range(6))
def test_as_each_sequence_by_itself(pytestconfig, part: int) -> None:
    rng = _rng(pytestconfig, part)
    for _ in range(12):
        cell, given, options, gradients = _drawn(rng)
        states, totals = _by_segments(cell, given, options, gradients)
        if not all(np.isfinite(v).all() and abs(v).max() < 1e6 for v in states.values()):
            continue
        for backend in ("reference", None):
            found, grads = _run(cell, given, options, gradients, backend)
            for name, value in states.items():
                np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-10)
            for name, value in totals.items():
                scale = 1 + abs(value).max()
                np.testing.assert_allclose(grads[name], value, rtol=1e-8, atol=1e-9 * scale)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("cell", [RNN, LSTM, GRU, *MADE], ids=lambda each: each.name)
def test_every_type(pytestconfig, cell, dtype: str) -> None:
    rng = _rng(pytestconfig, 99)
    given = _call(rng, cell, 6, 3, 21, 5)
    given["resets"] = rng.random((6, 3)) < 0.4
    if "init_n" in given:  # what the sLSTM divides by
        given["init_n"] = 1 + abs(given["init_n"])
    if cell is GRU:
        given.pop("secondary_bias", None)
    rounded = {n: v if n == "resets" else v.astype(dtype) for n, v in given.items()}
    wide = {n: v if n == "resets" else v.astype(float) for n, v in rounded.items()}
    gradients = {s.name: rng.standard_normal((6, 3, 21)) for s in cell.states}
    small = {name: value.astype(dtype) for name, value in gradients.items()}
    exact, _ = _run(cell, wide, {}, {n: v.astype(float) for n, v in small.items()}, "reference")
    unit = float(np.finfo(dtype).eps)
    for backend in ("reference", "native"):
        found, grads = _run(cell, rounded, {}, small, backend)
        for state in cell.states:
            error = abs(found[state.name].astype(float) - exact[state.name]).max()
            assert error <= 40 * unit * (1 + abs(exact[state.name]).max())
        # Of one step's saved values, which are rounded, the reference of the same type is the peer.
        if backend == "reference":
            peer = grads
        for name, value in grads.items():
            if value is not None:
                error = abs(value.astype(float) - peer[name].astype(float)).max()
                assert error <= 60 * unit * (1 + abs(peer[name].astype(float)).max()), name


def test_infinite_states_do_not_pass() -> None:
    x, R = np.zeros((3, 1, 2)), np.full((2, 2), 1.0)
    x[0] = np.inf
    resets = np.array([[0], [1], [0]])
    for backend in ("reference", "native"):
        h = zs.single_gate_rnn(x, R, resets=resets, backend=backend).state
        assert np.isinf(h[0]).all() and (h[1:] == 0).all()


def test_no_gradient_passes(pytestconfig) -> None:
    rng = _rng(pytestconfig)
    given = _call(rng, LSTM, 4, 2, 3, 2)
    given["resets"] = np.array([[0, 0], [0, 1], [0, 0], [0, 0]])
    gradients = {s.name: np.zeros((4, 2, 3)) for s in LSTM.states}
    gradients["state"][3] = 1.0
    _, found = _run(LSTM, given, {}, gradients)
    assert (found["source"][0, 1] == 0).all() and (found["init_state"][1] == 0).all()
    assert (found["source"][0, 0] != 0).all() and (found["init_cell"][0] != 0).all()


def test_all_resets_off_is_the_plain_call(pytestconfig) -> None:
    rng = _rng(pytestconfig)
    given = _call(rng, GRU, 5, 2, 8, 3)
    given.pop("secondary_bias", None)
    for backend in ("reference", "native"):
        plain = _run(GRU, given, {}, backend=backend)["state"]
        off = _run(GRU, {**given, "resets": np.zeros((5, 2), bool)}, {}, backend=backend)["state"]
        np.testing.assert_allclose(off, plain, rtol=1e-13, atol=1e-14)


def test_refusals() -> None:
    x, R = np.zeros((3, 2, 4)), np.zeros((4, 4))
    with pytest.raises(ShapeError, match=r"\[single_gate_rnn\] resets: expected \[T,N\] = \[3,2\]"):
        zs.single_gate_rnn(x, R, resets=np.zeros((2, 3), bool))
    with pytest.raises(DTypeError, match=r"resets: expected an array \[T,N\] of .*, got list"):
        zs.single_gate_rnn(x, R, resets=[[0, 1]] * 3)  # type: ignore[arg-type]


def test_in_the_reverse_direction_a_boundary_lies_one_step_earlier() -> None:
    forward, _ = operations_of(RNN)
    resets = np.array([[1], [0], [1]], bool)
    both = zs.SingleGateRNNDescriptor(bidirectional=True)
    tensors = (np.zeros((3, 1, 4)), np.zeros((2, 2, 2)), None, None, None, None, resets)
    prepared, _ = extended(forward, tensors, both, 1)
    np.testing.assert_array_equal(prepared[-1][:, 0], [[1, 0], [0, 1], [1, 0]])
