"""The calls of the probes: random tensors of the layout's shapes, or others that are named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..descriptors import Activation
from ..layout import DESCRIPTORS, Layout
from ..operations import OPERATIONS
from ..types import Array
from .calling import Call
from .probes import LSTM, RNN

SIZES, ONE_STEP = (4, 5, 3, 3), (1, 8, 4, 4)  # T, N, I, H
WEIGHTS = "recurrent_weight input_weight bias"
INPUTS = "input_weight bias init_state init_cell"
MASK, PEEPHOLE = f"{INPUTS} mask", f"{INPUTS} peephole"
BACK = "source_gradient"
NO_ACTIVATION = 9


def call_of(
    rng: np.random.Generator,
    *,
    cell: str,
    options: Mapping[str, Any] | None = None,
    sizes: tuple[int, int, int, int] = SIZES,
    inputs: str = INPUTS,
    incoming: str = "",
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    equal: str = "",  # tensors whose blocks of H rows, or halves, are all the same
    values: Mapping[str, Array] | None = None,
    half: str = "",  # tensors in float16
    full: bool = False,
) -> Call:
    """A call with random tensors of the layout's shapes, or others that are named."""
    chosen: dict[str, Any] = {"training": True, **({"produce_cell": True} if cell == LSTM else {})}
    if cell == RNN:  # whose default has a kink and a flat side
        chosen["activation"] = Activation.TANH
    chosen |= options or {}
    known = {name: value for name, value in chosen.items() if value != NO_ACTIVATION}
    forward, backward = OPERATIONS[cell], OPERATIONS[f"{cell}_gradients"]
    wanted = ["source", "recurrent_weight", *inputs.split(), *incoming.split()]
    present = [name for name in backward.inputs if name in wanted]
    letters = dict(zip("TNIH", sizes, strict=True))
    layout = Layout(backward, DESCRIPTORS[cell](**known), "float32", letters, frozenset(present))
    tensors = {}
    for name in present:
        shape = (shapes or {}).get(name, layout.shape(name))
        if name in equal.split():
            tensors[name] = _equal(rng, name, shape, sizes[3])
        elif name == "mask":
            tensors[name] = rng.uniform(0.4, 1.6, shape)
        else:
            tensors[name] = rng.normal(size=shape)
    tensors |= values or {}
    arrays = {
        name: array.astype(np.float16 if name in half.split() else np.float32)
        for name, array in tensors.items()
    }
    return Call(
        cell,
        chosen,
        {name: arrays[name] for name in forward.inputs if name in arrays},
        {name: arrays[name] for name in arrays if name not in forward.inputs},
        full,
    )


def _equal(rng: np.random.Generator, name: str, shape: tuple[int, ...], width: int) -> Array:
    """A tensor of equal blocks of H, whatever order of gates and directions is read from it."""
    if name == "recurrent_weight":
        return np.broadcast_to(
            np.tile(rng.normal(size=(width, width)), (shape[-2] // width, 1)), shape
        )
    if name == "input_weight":
        return np.tile(rng.normal(size=(width, shape[1])), (shape[0] // width, 1))
    return np.tile(rng.normal(size=(*shape[:-1], width)), shape[-1] // width)
