"""What the tests of conversion share: random layers of zstate, and running a stack of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

import zstate as zs
import zstate.convert as zc
from zstate import cli
from zstate.convert import files
from zstate.layout import DESCRIPTORS
from zstate.types import Array

GATES = {"single_gate_rnn": 1, "lstm": 4, "gru": 3}
T, N, I, H = 5, 3, 4, 6
ACT = zs.Activation


def random_layer(
    rng: np.random.Generator,
    cell: str,
    *,
    inputs: int = I,
    hidden: int = H,
    bias: bool = True,
    dtype: str = "float32",
    **options: Any,
) -> zc.Layer:
    """A layer of random weights, with every bias that its form of the cell has."""
    descriptor = DESCRIPTORS[cell](**options)
    rows = GATES[cell] * hidden
    twice = 2 if descriptor.bidirectional else 1
    shapes: dict[str, tuple[int, ...]] = {
        "recurrent_weight": (rows, hidden) if twice == 1 else (2, rows, hidden),
        "input_weight": (twice * rows, inputs),
    }
    if bias:
        shapes["bias"] = (twice * rows,)
        if options.get("reset_after"):
            shapes["secondary_bias"] = (twice * hidden,)
    return zc.Layer(cell, descriptor, {k: draw(rng, v, dtype) for k, v in shapes.items()})


def random_stack(rng: np.random.Generator, cell: str, count: int, **options: Any) -> list[zc.Layer]:
    """Layers that feed each other."""
    wide = H * (2 if options.get("bidirectional") else 1)
    sizes = [I] + [wide] * (count - 1)
    return [random_layer(rng, cell, inputs=size, **options) for size in sizes]


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str = "float32") -> Array:
    """Values that keep the gates away from saturation and from zero."""
    return rng.normal(scale=0.3, size=shape).astype(dtype)


def states(
    rng: np.random.Generator, layers: list[zc.Layer], dtype: str = "float32"
) -> list[dict[str, Array]]:
    """Initial states [N,D·H] for every layer, none of them zero."""
    found = []
    for layer in layers:
        shape = (N, layer.directions * layer.hidden)
        names = ("init_state", "init_cell") if layer.cell == "lstm" else ("init_state",)
        found.append({name: draw(rng, shape, dtype) for name in names})
    return found


def ours(layers: list[zc.Layer], source: Array, initial: list[dict[str, Array]]) -> Array:
    """The outputs [T,N,D·H] of the last layer."""
    for layer, begin in zip(layers, initial, strict=True):
        forward = getattr(zs, layer.cell)
        tensors = {**layer.tensors, **begin}
        source = forward(source, **tensors, descriptor=layer.descriptor, backend="reference").state
    return source


def halves(layer: zc.Layer, array: Array) -> list[Array]:
    """[N,D·H] by direction."""
    return np.split(array, layer.directions, axis=-1)


def as_list(layers: zc.Layer | list[zc.Layer]) -> list[zc.Layer]:
    """Always a list."""
    return layers if isinstance(layers, list) else [layers]


def convert(*arguments: str) -> int:
    """`zstate convert`: its exit status."""
    return cli.main(["convert", *arguments])


def read_stack(path: str, source: str) -> list[zc.Layer]:
    """The layers of a file that is a stack."""
    (pieces,) = files.read(path, source).stacks.values()
    return as_list(zc.load(pieces, source=source))


def close(result: Any, expected: Array, dtype: str = "float32") -> None:
    """Equal but for the order of the additions, measured against the largest value."""
    bound = 1e-5 if dtype == "float32" else 1e-13
    assert np.shape(result) == expected.shape
    assert np.all(np.isfinite(expected))
    error = np.abs(np.asarray(result) - expected).max() / max(1.0, np.abs(expected).max())
    assert error <= bound


def same_layer(one: zc.Layer, other: zc.Layer) -> None:
    """The same cell, options and tensors, to the bit."""
    assert (one.cell, one.descriptor) == (other.cell, other.descriptor)
    assert set(one.tensors) == set(other.tensors)
    for name, array in one.tensors.items():
        assert array.dtype == other.tensors[name].dtype, name
        assert array.tobytes() == other.tensors[name].tobytes(), name


def products(**choices: list[Any]) -> Iterator[dict[str, Any]]:
    """Every combination, as keyword arguments."""
    for values in itertools.product(*choices.values()):
        yield dict(zip(choices, values, strict=True))


def title(options: dict[str, Any]) -> str:
    """A test's name from its options."""
    words = []
    for name, value in options.items():
        if isinstance(value, bool):
            words.append(name if value else f"no_{name}")
        elif isinstance(value, zs.Activation):
            words.append(f"{name}={value.name.lower()}")
        else:
            words.append(f"{name}={value}" if not isinstance(value, str) else value)
    return "-".join(words)
