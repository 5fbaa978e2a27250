"""Random stacks of layers, and what they give by the functional calls in float64."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

import zstate as zs
import zstate.convert as zc
from tests.cells.made_up import make_by_decorator
from zstate import cells
from zstate.cells import CellDescriptor, MadeCell
from zstate.operations import OPERATIONS, Operation, operations_of
from zstate.prepared.parts import rounded
from zstate.types import Array

Rng = np.random.Generator
BUILT_IN = {
    "single_gate_rnn": zs.SingleGateRNNDescriptor,
    "lstm": zs.LSTMDescriptor,
    "gru": zs.GRUDescriptor,
}
LIBRARY = (cells.mgu, cells.cifg, cells.slstm, cells.layer_norm_lstm, cells.layer_norm_gru)
_NORMED = (cells.layer_norm_lstm, cells.layer_norm_gru)
BOUNDED = (zs.Activation.TANH, zs.Activation.SIGMOID, zs.Activation.HARD_SIGMOID)


def descriptor_of(rng: Rng, cell: str, **directions: bool) -> Any:
    """Any options; activations are bounded, so that many steps stay in range."""
    kind = BUILT_IN[cell]
    options: dict[str, Any] = dict(directions)
    for each in fields(kind):
        if each.name.endswith("activation") and (rng.random() < 0.3 or cell == "single_gate_rnn"):
            keeps = each.name in ("forget_gate_activation", "update_gate_activation")
            options[each.name] = BOUNDED[int(rng.integers(1 if keeps else 0, 3))]
        elif each.type in ("bool", bool) and each.name not in ("reverse", "bidirectional"):
            options[each.name] = bool(rng.random() < 0.4)
    return kind(**options)


def any_cell(rng: Rng) -> str | MadeCell:
    kind = rng.random()
    if kind < 0.7:
        return str(rng.choice(list(BUILT_IN)))
    return LIBRARY[int(rng.integers(len(LIBRARY)))] if kind < 0.85 else make_by_decorator(rng, True)


def layer(
    rng: Rng,
    cell: str | MadeCell,
    inputs: int,
    hidden: int,
    *,
    batch: int = 0,
    steps: int = 0,
    projects: bool = True,
    **directions: bool,
) -> zc.Layer:
    """A layer with random weights, every optional tensor now and then; states and a mask of its
    own only where ``batch`` and ``steps`` say for what calls."""
    made = isinstance(cell, MadeCell)
    descriptor = CellDescriptor(**directions) if made else descriptor_of(rng, cell, **directions)
    heads = 2 if hidden % 2 == 0 and rng.random() < 0.15 else 1
    descriptor = replace(descriptor, heads=heads)
    operation = operations_of(cell.definition)[0] if made else OPERATIONS[cell]
    D, G = (2 if descriptor.bidirectional else 1), len(operation.cell.gates)
    units = hidden // heads
    blocks = ((2,) if D == 2 else ()) + ((heads,) if heads > 1 else ())
    shapes = {
        "recurrent_weight": (*blocks, G * units, units),
        "bias": (D * G * hidden,),
        "mask": (steps, batch, D * hidden),
        "peephole": (D, G * hidden)[2 - D :],
        "secondary_bias": (D * hidden,),
        **{each.initial: (batch, D * hidden) for each in operation.cell.states},
        **{each.name: (D * hidden,) for each in operation.cell.own if not each.by_gate},
    }
    if projects:
        shapes["input_weight"] = (D * G * hidden, inputs)
    optional = [name for name in operation.inputs if name in shapes and name not in _ALWAYS]
    if not batch:
        optional = [name for name in optional if not name.startswith("init") and name != "mask"]
    if not getattr(descriptor, "reset_after", False):
        optional = [name for name in optional if name != "secondary_bias"]
    wanted = {name for name in optional if rng.random() < 0.5} | (_ALWAYS & set(shapes))
    wanted |= {each.name for each in operation.cell.own if each.required}
    scales = {"recurrent_weight": 0.5 / units**0.5, "input_weight": 0.8 / max(inputs, 1) ** 0.5}
    tensors = {
        name: (rng.normal(size=shapes[name]) * scales.get(name, 0.4)).astype(np.float32)
        for name in operation.inputs
        if name in wanted
    }
    if "init_n" in tensors:
        tensors["init_n"] = np.abs(tensors["init_n"]) + 1
    return zc.Layer(cell, descriptor, tensors)


_ALWAYS = {"recurrent_weight", "input_weight"}


def stack(
    rng: Rng,
    inputs: int,
    count: int,
    *,
    both_ways: bool = True,
    steady: bool = False,
    units: int = 0,
    **more: Any,
) -> list[zc.Layer]:
    """Layers that feed each other, with any cells, of ``units`` or a few units.

    Layer norm over two units, a and b, is almost the sign of a - b: near zero it grows by 316,
    1/√ε, and so does rounding, in each layer. ``steady`` draws none over a few units.
    """
    found: list[zc.Layer] = []
    for _ in range(count):
        ways = {"reverse": bool(rng.random() < 0.3), "bidirectional": bool(rng.random() < 0.3)}
        if not both_ways:
            ways = {}
        cell, hidden = any_cell(rng), units or int(rng.choice([1, 2, 5, 8, 15, 16, 17, 24, 33, 40]))
        if steady and cell in _NORMED and hidden < 8:
            cell = cells.cifg
        found.append(layer(rng, cell, inputs, hidden, **more, **ways))
        inputs = found[-1].hidden * found[-1].directions
    return found


def begin(rng: Rng, layers: list[zc.Layer], batch: int) -> list[list[Array]]:
    """States before the first step, none of them zero; n, which the sLSTM divides by, is 1 or
    more."""

    def drawn(layer: zc.Layer, name: str) -> Array:
        values = rng.normal(size=(batch, layer.hidden * layer.directions)).astype(np.float32)
        return np.abs(values) + 1 if name == "init_n" else values * np.float32(0.5)

    return [[drawn(each, one.initial) for one in each.operation.cell.states] for each in layers]


def exact(
    layers: list[zc.Layer],
    x: Array,
    states: list[list[Array]] | None = None,
    round_weights: Any = None,
) -> tuple[Array, list[list[Array]]]:
    """The output and the last states of all layers, by the reference in float64."""
    value, last = x.astype(np.float64), []
    for number, each in enumerate(layers):
        tensors = {name: array.astype(np.float64) for name, array in each.tensors.items()}
        for name in ("recurrent_weight", "input_weight"):
            if round_weights is not None and name in tensors:
                tensors[name] = round_weights(each.tensors[name]).astype(np.float64)
        operation = each.operation
        for k, state in enumerate(operation.cell.states):
            if states is not None:
                tensors[state.initial] = states[number][k].astype(np.float64)
        found = _called(each, operation, value, tensors)
        value = found[0]
        last.append([_last(each, all_steps) for all_steps in found])
    return value, last


def _called(
    each: zc.Layer, operation: Operation, source: Array, tensors: dict[str, Array]
) -> list[Array]:
    """Every state [T,N,D·H] at every step."""
    count = len(operation.cell.states)
    if isinstance(each.cell, MadeCell):
        options = each.descriptor
        found = each.cell(
            source,
            **tensors,
            backend="reference",
            heads=options.heads,
            reverse=options.reverse,
            bidirectional=options.bidirectional,
        )
        return list(found[:count])
    descriptor = each.descriptor
    if each.cell == "lstm":
        descriptor = replace(descriptor, produce_cell=True)
    found = getattr(zs, each.cell)(source, **tensors, descriptor=descriptor, backend="reference")
    return list(found[:count])


def _last(each: zc.Layer, steps: Array) -> Array:
    """Where each direction ends: the second of two has its outputs in the order of the input."""
    if each.directions == 1:
        return steps[-1]
    return np.concatenate([steps[-1, :, : each.hidden], steps[0, :, each.hidden :]], axis=-1)


# Against the largest value: rounding of sums; what AVX512-BF16 keeps of an input, 16 bits.
BOUNDS = {"float32": 2e-5, "bfloat16": 1e-4, "int8": 0.0}


def same(found: Array, wanted: Array, bound: float) -> None:
    assert found.shape == wanted.shape and found.dtype == np.float32
    error = np.abs(found.astype(np.float64) - wanted).max(initial=0.0)
    assert error <= bound * max(np.abs(wanted).max(initial=0.0), 1.0)


def amplifies(output: Array, last: Any) -> bool:
    """Whether a result is so large, or infinite, that rounding may be too."""
    return not all(np.abs(each).max() < 30 for layer in [[output], *last] for each in layer)


def check_random_stack(rng: Rng, weights: str, size: tuple[int, ...] | None = None) -> None:
    """One random call of random layers on the engine. Floats are compared with the reference; with
    int8, a row with itself alone."""
    T, N, I = size[:3] if size else (int(rng.integers(1, most)) for most in (12, 12, 40))
    units = size[3] if size else 0
    count, steady = 1 if size else int(rng.integers(1, 4)), weights != "int8"
    layers = stack(rng, I, count, steady=steady, units=units, batch=N, steps=T)
    x = rng.normal(size=(T, N, I)).astype(np.float32)
    states = begin(rng, layers, N) if rng.random() < 0.7 else None
    zs.set_num_threads(int(rng.integers(1, 4)))
    found, ends = zs.prepare(layers, weights, backend="native")(x, states)
    if weights == "int8":
        _check_rows_alone(layers, x, states, found, ends)
        return
    output, last = exact(layers, x, states, rounded if weights == "bfloat16" else None)
    if amplifies(output, last):
        return
    same(found, output, BOUNDS[weights])
    for end, wanted in zip(ends, last, strict=True):
        for each, want in zip(end, wanted, strict=True):
            same(each, want, BOUNDS[weights])


def _check_rows_alone(
    layers: list[zc.Layer], x: Array, states: Any, found: Array, ends: Any
) -> None:
    for n in range(x.shape[1]):
        row = slice(n, n + 1)
        own = [replace(each, tensors=_of_row(each, row)) for each in layers]
        begins = None if states is None else [tuple(s[row] for s in each) for each in states]
        alone, last = zs.prepare(own, "int8", backend="native")(x[:, row].copy(), begins)
        assert alone.tobytes() == found[:, row].tobytes()
        for end, wanted in zip(ends, last, strict=True):
            assert [each[row].tobytes() for each in end] == [each.tobytes() for each in wanted]


def _of_row(layer: zc.Layer, row: slice) -> dict[str, Array]:
    initial = {each.initial for each in layer.operation.cell.states}
    return {
        name: array[row] if name in initial else array[:, row] if name == "mask" else array
        for name, array in layer.tensors.items()
    }
