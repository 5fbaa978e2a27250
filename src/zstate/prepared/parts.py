"""A packed layer: float32 tensors of one head, its cell's states, and what a call may pass.

T time, N batch, I input features, H hidden units, G gates, D directions.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from ..cells.definition import Cell
from ..convert.layer import Layer
from ..descriptors import AnyDescriptor
from ..errors import DTypeError, OptionError, ShapeError, refusal
from ..layout import brackets, describe
from ..quantisation import Quantised, quantise_weight
from ..types import Array, float_dtype

WEIGHTS = ("float32", "bfloat16", "int8")
MATRICES = {"recurrent_weight": "recurrent_scale", "input_weight": "input_scale"}


@dataclass(frozen=True, eq=False)
class Part:
    """One layer of a stack.

    ``tensors``: those of the functional call that stay the same from call to call, float32 and
    contiguous; recurrent_weight [D·G·H,H] or [D,G·H,H]. ``mask`` and ``initial`` are the layer's
    own, if it has them.
    """

    cell: Cell
    descriptor: AnyDescriptor
    tensors: dict[str, Array]
    mask: Array | None
    initial: dict[str, Array]

    @property
    def directions(self) -> int:
        return 2 if self.descriptor.bidirectional else 1

    @property
    def hidden(self) -> int:
        return int(self.tensors["recurrent_weight"].shape[-1])

    @property
    def inputs(self) -> int:
        """I; of a layer without input_weight D·G·H."""
        if "input_weight" in self.tensors:
            return int(self.tensors["input_weight"].shape[-1])
        return self.directions * len(self.cell.gates) * self.hidden

    @property
    def width(self) -> int:
        """D·H."""
        return self.directions * self.hidden

    @property
    def states(self) -> Any:
        """The type of this layer's states, one [N,D·H] each."""
        return _states_of(self.cell.name, tuple(each.name for each in self.cell.states))

    @property
    def begins_plainly(self) -> bool:
        """Whether states begin at zero and no mask limits what a call may pass."""
        starts = [each.start for each in self.cell.states]
        return not self.initial and self.mask is None and not any(starts)

    def first_states(self, batch: int) -> list[Array]:
        """The states before the first step, if a call passes none."""
        found = []
        for each in self.cell.states:
            given = self.initial.get(each.initial)
            if given is None:
                found.append(np.full((batch, self.width), each.start, np.float32))
            elif len(given) == batch:
                found.append(given)
            else:
                expected = f"[N,{self.width}] with the layer's own N = {len(given)}"
                raise ShapeError(refusal("prepare", each.initial, expected, f"N = {batch}"))
        return found

    def mask_for(self, steps: int, batch: int) -> Array | None:
        """The mask as a view [T,N,D·H]."""
        if self.mask is None:
            return None
        shape = (steps, batch, self.width)
        try:
            return np.broadcast_to(self.mask, shape)
        except ValueError as error:
            expected = f"what broadcasts to {brackets(shape)}"
            got = brackets(self.mask.shape)
            raise ShapeError(refusal("prepare", "mask", expected, got)) from error

    def small(self, weights: str) -> dict[str, Array]:
        """The tensors with their matrices in this type of weights, and the scales of int8."""
        tensors = dict(self.tensors)
        for name, scale in MATRICES.items() if weights == "int8" else ():
            if name not in tensors:
                continue
            found: Quantised = quantise_weight("prepare", name, tensors[name])
            tensors[name] = found.values
            tensors[scale] = np.ascontiguousarray(found.scale.reshape(-1))
        return tensors


@lru_cache(maxsize=256)
def _states_of(name: str, fields: tuple[str, ...]) -> Any:
    title = "".join(word.title() for word in name.split("_") if word)
    title = title if title.isidentifier() else "Cell"
    return namedtuple(f"{title}States", fields)


def copied(layers: Any) -> Layer | list[Layer]:
    """The layers with float32 tensors that nobody else has."""
    listed = layers if isinstance(layers, Sequence) else [layers]
    if not listed:
        raise OptionError(refusal("prepare", "layers", "at least one layer", "none"))
    for each in listed:
        if not isinstance(each, Layer):
            expected = "a zstate.convert.Layer or a list of them"
            raise DTypeError(refusal("prepare", "layers", expected, describe(each)))
    own = [
        replace(
            layer,
            tensors={
                name: np.array(array, dtype=np.float32, order="C")
                for name, array in layer.tensors.items()
            },
        )
        for layer in listed
    ]
    return own if isinstance(layers, Sequence) else own[0]


def parts_of(layers: Layer | list[Layer]) -> list[Part]:
    """The layers of a stack, each fed by the one before it."""
    listed = layers if isinstance(layers, list) else [layers]
    parts = [_part(each) for each in listed]
    for number, (below, part) in enumerate(pairwise(parts), start=1):
        if part.inputs != below.width:
            expected = f"{below.width} inputs, which layer {number - 1} gives"
            raise ShapeError(refusal("prepare", f"layer {number}", expected, str(part.inputs)))
    return parts


def _part(layer: Layer) -> Part:
    cell, descriptor = layer.operation.cell, layer.descriptor
    if cell.values:
        expected = "a cell without values per step"
        raise OptionError(refusal("prepare", cell.name, expected, ", ".join(cell.values)))
    tensors = dict(layer.tensors)
    heads = descriptor.heads
    if heads > 1:
        tensors["recurrent_weight"] = _without_heads(
            tensors["recurrent_weight"], len(cell.gates), descriptor.bidirectional
        )
    if "resets" in tensors:
        raise OptionError(refusal("prepare", "resets", "a layer without resets", "resets"))
    initial = {each.initial for each in cell.states}
    mask = tensors.pop("mask", None)
    return Part(
        cell,
        replace(descriptor, heads=1, training=False),
        {name: array for name, array in tensors.items() if name not in initial},
        None if mask is None else mask,
        {name: array for name, array in tensors.items() if name in initial},
    )


def _without_heads(weight: Array, gates: int, bidirectional: bool) -> Array:
    """[…,heads,G·d,d] as one matrix […,G·H,H] with zeros between the blocks."""
    blocks = weight if bidirectional else weight[None]  # [D,heads,G·d,d]
    directions, heads, _, units = blocks.shape
    split = blocks.reshape(directions, heads, gates, units, units)
    whole = np.zeros((directions, gates, heads, units, heads, units), np.float32)
    for head in range(heads):
        whole[:, :, head, :, head, :] = split[:, head]
    hidden = heads * units
    joined = whole.reshape(directions, gates * hidden, hidden)
    return joined if bidirectional else joined[0]


def rounded(weight: Array) -> Array:
    """The values rounded to bfloat16, in float32."""
    try:
        return weight.astype(float_dtype("bfloat16")).astype(np.float32)
    except ImportError:
        bits = weight.view(np.uint32)
        nearest: Array = ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)
        return np.where(np.isnan(weight), weight, nearest)
