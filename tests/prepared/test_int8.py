"""int8 weights: one step against their definition in NumPy, everything else against one step.

A sum of integers is exact, and an element of the cell is computed the same way whatever the shape
of the call. So a call has the bits of its steps, row by row and direction by direction, and only a
step needs a tolerance: that of float32 in the cell.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import zstate as zs
import zstate.convert as zc
from tests.prepared import drawn
from tests.prepared.test_floats import rng_of
from zstate.backends import native
from zstate.types import Array


def by_hand(weight: Array, x: Array) -> Array:
    """x [K] times the rows of a weight [rows,K], both in 8 bits: scales of float32, a sum of
    integers, rounding to even."""
    scale = (np.abs(weight.astype(np.float64)).max(axis=1) / 127).astype(np.float32)
    steps = np.where(scale > 0, scale, np.float32(1)).astype(np.float64)
    q = np.rint(weight / steps[:, None]).astype(np.int64)
    most = np.abs(x).max()
    if most == 0:
        return np.zeros(len(weight), np.float32)
    integers = np.rint(x * (np.float32(127) / most)).astype(np.int64)
    scales = scale * (most * np.float32(1 / 127))
    return (q @ integers).astype(np.float32) * scales


@pytest.mark.parametrize("hidden", [1, 3, 4, 16, 17, 30, 64, 65, 333])
def test_a_product_has_the_bits_of_its_definition(isa: str, hidden: int) -> None:
    """h without a function is R h, and with an input x W^T: no rounding but that of the scales.

    So every instruction set gives the same bits.
    """
    rng = np.random.default_rng(hidden)
    plain = zs.SingleGateRNNDescriptor(activation=zs.Activation.NONE)
    R = rng.normal(size=(hidden, hidden)).astype(np.float32)
    W = rng.normal(size=(hidden, hidden + 5)).astype(np.float32)
    W[hidden // 2] = 0.0
    for rows in (1, 2, 7):
        h = rng.normal(size=(rows, hidden)).astype(np.float32) * 3
        source = np.zeros((1, rows, hidden), np.float32)
        layer = zc.Layer("single_gate_rnn", plain, {"recurrent_weight": R})
        found, _ = zs.prepare(layer, "int8", backend="native")(source, (h,))
        assert found[0].tobytes() == np.stack([by_hand(R, row) for row in h]).tobytes()
        x = rng.normal(size=(1, rows, hidden + 5)).astype(np.float32)
        x[0, -1] = 0.0
        layer = zc.Layer("single_gate_rnn", plain, {"recurrent_weight": R, "input_weight": W})
        found, _ = zs.prepare(layer, "int8", backend="native")(x)
        assert found[0].tobytes() == np.stack([by_hand(W, row) for row in x[0]]).tobytes()


def one_direction(layer: zc.Layer, index: int) -> zc.Layer:
    """A direction of a layer as a layer that reads forward, without what belongs to calls."""
    of_calls = {"mask", *(each.initial for each in layer.operation.cell.states)}
    tensors = {}
    for name, array in layer.tensors.items():
        if name in of_calls or layer.directions == 1:
            tensors[name] = array
        elif name == "recurrent_weight" or (name == "peephole" and array.ndim == 2):
            tensors[name] = array[index]
        else:
            tensors[name] = np.split(array, 2)[index]
    descriptor = replace(layer.descriptor, bidirectional=False, reverse=False)
    kept = {name: array for name, array in tensors.items() if name not in of_calls}
    return zc.Layer(layer.cell, descriptor, kept)


def in_steps(
    layers: list[zc.Layer], x: Array, states: list[list[Array]], lengths: list[int]
) -> tuple[Array, list[list[Array]]]:
    """The output and last states by single steps of single rows of single directions."""
    last = [[each.copy() for each in layer] for layer in states]
    T, N = x.shape[:2]
    value = x
    for number, layer in enumerate(layers):
        H, D = layer.hidden, layer.directions
        given = np.zeros((T, N, D * H), np.float32)
        for index in range(D):
            units = slice(index * H, (index + 1) * H)
            part = one_direction(layer, index)
            model = zs.prepare(part, "int8", backend="native")
            backwards = index == 1 or (D == 1 and layer.descriptor.reverse)
            mask = layer.tensors.get("mask")
            if "input_weight" not in layer.tensors:
                width = value.shape[-1] // D
                source = value[..., index * width : (index + 1) * width]
            else:
                source = value
            for n in range(N):
                now = [each[n : n + 1, units] for each in states[number]]
                order = range(lengths[n])
                for step, t in enumerate(reversed(order) if backwards else order):
                    one = model
                    if mask is not None:
                        tensors = {**part.tensors, "mask": mask[t : t + 1, n : n + 1, units]}
                        masked = zc.Layer(part.cell, part.descriptor, tensors)
                        one = zs.prepare(masked, "int8", backend="native")
                    output, ends = one(np.ascontiguousarray(source[t : t + 1, n : n + 1]), now)
                    now = list(ends)
                    given[t if index == 1 or not backwards else step, n, units] = output[0, 0]
                for k, each in enumerate(now):
                    last[number][k][n, units] = each[0]
        value = given
    return value, last


@pytest.mark.parametrize("part", range(6))
def test_a_call_has_the_bits_of_its_steps(pytestconfig: pytest.Config, isa: str, part: int) -> None:
    """For any number of rows, steps, layers, directions, threads, and any lengths."""
    rng = rng_of(pytestconfig, part, 8, *isa.encode())  # others for each
    for _ in range(2):
        T, N, I = (int(rng.integers(1, most)) for most in (6, 10, 40))
        layers = drawn.stack(rng, I, int(rng.integers(1, 4)), batch=N, steps=T)
        x = rng.normal(size=(T, N, I)).astype(np.float32)
        states = drawn.begin(rng, layers, N)
        reverse = any(each.descriptor.reverse and each.directions == 1 for each in layers)
        lengths = [T] * N
        if not reverse and rng.random() < 0.6:
            lengths = rng.integers(0, T + 1, N).tolist()
        wanted, last = in_steps(layers, x, states, lengths)
        zs.set_num_threads(int(rng.integers(1, 4)))
        model = zs.prepare(layers, "int8", backend="native")
        found, ends = model(x, states, None if lengths == [T] * N else lengths)
        assert found.tobytes() == wanted.tobytes()
        for end, want in zip(ends, last, strict=True):
            assert [each.tobytes() for each in end] == [each.tobytes() for each in want]


@pytest.mark.parametrize("part", range(6))
def test_a_step_is_what_the_reference_computes(
    pytestconfig: pytest.Config, isa: str, part: int
) -> None:
    """The engine's step and NumPy's, from the same states: the cell in float32 differs by rounding
    alone. Each layer reads what the engine's layer below gave."""
    rng = rng_of(pytestconfig, part, 9, *isa.encode())
    for _ in range(10):
        N, I = (int(rng.integers(1, most)) for most in (10, 40))
        layers = drawn.stack(rng, I, 2, batch=N, steps=1, both_ways=bool(rng.random() < 0.5))
        x = rng.normal(size=(1, N, I)).astype(np.float32)
        states = drawn.begin(rng, layers, N)
        _, ends = zs.prepare(layers, "int8", backend="native")(x, states)
        for number, layer in enumerate(layers):
            reference = zs.prepare(layer, "int8", backend="reference")
            _, wanted = reference(x, states[number])
            for each, want in zip(ends[number], wanted, strict=True):
                error = np.abs(each - want).max(axis=-1)
                far = error > 3e-6 * max(np.abs(want).max(), 1.0)
                # Where a step rounds what it multiplies, the other integer may be as near.
                assert far.sum() <= (len(layer_stages(layer)) > 1) and error.max() < 0.05
            x = np.asarray(ends[number][0])[None]


def layer_stages(layer: zc.Layer) -> set[Any]:
    """What the step's products multiply, beside the states before it."""
    given = frozenset(layer.tensors) - {"recurrent_weight", "input_weight", "bias"}
    trace = layer.operation.cell.forward(layer.descriptor, given, "mask" in given, False)
    return {each.args[0] for each in trace.products}


def test_what_no_integer_holds(isa: str) -> None:
    """A row of x that is not finite gives NaN, and no other row; the smallest numbers count as
    zeros; weights must be finite."""
    rng = np.random.default_rng(0)
    layer = drawn.layer(rng, "lstm", 5, 20)
    model = zs.prepare(layer, "int8", backend="native")
    x = rng.normal(size=(2, 3, 5)).astype(np.float32)
    clean, _ = model(x)
    for odd in (np.nan, np.inf, -np.inf):
        broken = x.copy()
        broken[0, 1, 2] = odd
        found, _ = model(broken)
        assert np.isnan(found[:, 1]).all()
        assert found[:, [0, 2]].tobytes() == clean[:, [0, 2]].tobytes()
    tiny = x.copy()
    tiny[:, 1] = 1e-42
    zeros = x.copy()
    zeros[:, 1] = 0.0
    assert model(tiny)[0].tobytes() == model(zeros)[0].tobytes()
    for odd in (np.nan, np.inf):
        tensors = {name: array.copy() for name, array in layer.tensors.items()}
        tensors["recurrent_weight"].flat[7] = odd
        with pytest.raises(zs.OptionError, match="recurrent_weight: expected finite weights"):
            zs.prepare(zc.Layer("lstm", layer.descriptor, tensors), "int8")


def test_integers_are_the_same_for_every_instruction_set() -> None:
    """A layer of integers that float32 holds: no step rounds, in whatever order it is computed."""
    module: Any = native._native
    rng = np.random.default_rng(4)
    plain = zs.SingleGateRNNDescriptor(activation=zs.Activation.NONE)
    H, I = 37, 50
    R = rng.integers(-127, 128, (H, H)).astype(np.float32)
    W = rng.integers(-127, 128, (H, I)).astype(np.float32)
    R[:, 0] = W[:, 0] = 127  # a scale of 1
    layer = zc.Layer("single_gate_rnn", plain, {"recurrent_weight": R, "input_weight": W})
    x = rng.integers(-127, 128, (1, 9, I)).astype(np.float32)
    h = rng.integers(-127, 128, (9, H)).astype(np.float32)
    x[..., 0] = h[:, 0] = 127
    wanted = x[0].astype(np.int64) @ W.T.astype(np.int64) + h.astype(np.int64) @ R.T.astype(
        np.int64
    )
    before = module.isa()
    try:
        for isa in module.supported_isas():
            for threads in (1, 2, 3):
                module.use_isa(isa)
                zs.set_num_threads(threads)
                found, _ = zs.prepare(layer, "int8", backend="native")(x, (h,))
                assert (found[0] == wanted).all(), (isa, threads)
    finally:
        module.use_isa(before)


@pytest.mark.parametrize("part", range(3))
def test_an_extension_keeps_the_bits_of_its_base(pytestconfig: pytest.Config, part: int) -> None:
    """VNNI, ARM's dot and matrix products: all of a call has the same bits as without them, for any
    number of threads."""
    module: Any = native._native
    rng = rng_of(pytestconfig, part, 10)
    families: dict[str, list[str]] = {}
    for isa in module.supported_isas():
        families.setdefault(re.sub("vnni|bf16|_.*", "", isa), []).append(isa)
    before = module.isa()
    try:
        for _ in range(4):
            T, N, I = (int(rng.integers(1, most)) for most in (6, 20, 40))
            layers = drawn.stack(rng, I, 2, batch=N, steps=T)
            x = rng.normal(size=(T, N, I)).astype(np.float32)
            states = drawn.begin(rng, layers, N)
            for family in families.values():
                found = set()
                for isa, threads in product(family, (1, 2, 3)):
                    module.use_isa(isa)
                    zs.set_num_threads(threads)
                    output, ends = zs.prepare(layers, "int8", backend="native")(x, states)
                    found.add(b"".join(each.tobytes() for end in [[output], *ends] for each in end))
                assert len(found) == 1, family
    finally:
        module.use_isa(before)
