"""Layers packed by the native engine (csrc/python/prepared.h): several layers in one call."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends import native
from ..backends.encoding import Form, called, encode
from ..backends.vector_programs import UnsupportedError
from ..cells.stages import forward_stages
from ..types import Array
from .parts import Part

_FLOAT = np.dtype(np.float32)


def refusal_of(parts: list[Part]) -> str | None:
    """Why the engine cannot compute one of these layers, or None."""
    try:
        for part in parts:
            encode(_form(part), False, native.tables())
    except UnsupportedError as reason:
        return str(reason)
    return None


def _form(part: Part) -> Form:
    """What a call computes: the first state of every step, and those that nothing else keeps."""
    cell = part.cell
    given = frozenset(("source", *part.tensors, *(("mask",) if part.mask is not None else ())))
    form = Form(cell, part.descriptor, given, frozenset(), frozenset(), frozenset())
    stages = forward_stages(form.trace)
    read = {leaf for each in stages.stages for leaf in each.text.inputs}
    first, *others = cell.states
    wanted = {each.name for each in others if ("before", each.name) not in read}
    return form._replace(wanted=frozenset({first.name, *wanted}))


def _layer(part: Part, weights: str) -> tuple[Any, ...]:
    form = _form(part)
    words, numbers = encode(form, False, native.tables())
    tensors = part.small(weights)
    arrays = dict(zip(called(form, tensors, False), tensors.values(), strict=True))
    return (
        list(words),
        list(numbers),
        part.inputs,
        part.hidden,
        part.directions,
        part.descriptor.reverse,
        "input_weight" in tensors,
        [each.name in form.wanted for each in part.cell.states],
        arrays,
    )


class NativeStack:
    """Layers in the engine."""

    def __init__(self, parts: list[Part], weights: str, single: bool) -> None:
        layers = [_layer(part, weights) for part in parts]
        kinds = [part.states for part in parts]
        self._width = parts[-1].width
        self._native = native.stack(
            weights=weights, dtype=_FLOAT, layers=layers, kinds=kinds, single=single
        )

    @property
    def call(self) -> Any:
        """What a call of the model returns for x [T,N,I] and states, or None if they need a closer
        check. Only layers without a mask whose states begin at zero have it."""
        return self._native.call

    def run(
        self,
        x: Array,
        initial: list[list[Array]],
        masks: list[Array | None],
        lengths: list[int] | None,
    ) -> tuple[Array, list[list[Array]]]:
        """x [T,N,I] to [T,N,D·H] with zeros past each row's length, and the last states."""
        if lengths is None:
            found: tuple[Array, list[list[Array]]] = self._native.run(x, initial, masks, [])
            return found
        steps, batch = x.shape[:2]
        order = sorted(range(batch), key=lambda row: -lengths[row])
        count = sum(length > 0 for length in lengths)
        last = [[each.copy() for each in states] for states in initial]
        if count == 0:
            return np.zeros((steps, batch, self._width), np.float32), last
        kept = order[:count]
        sizes = [sum(lengths[row] > t for row in kept) for t in range(lengths[kept[0]])]
        rows = np.concatenate(
            [t * batch + np.asarray(kept[:size], np.int64) for t, size in enumerate(sizes)]
        )
        begin = [[np.ascontiguousarray(each[kept]) for each in states] for states in initial]
        longest = len(sizes)
        own = [
            None if mask is None else np.ascontiguousarray(mask[:longest, kept]) for mask in masks
        ]
        output, ends = self._native.run(native.pack_rows(x, rows), begin, own, sizes)
        for states, found_states in zip(last, ends, strict=True):
            for state, end in zip(states, found_states, strict=True):
                state[kept] = end
        return native.unpack_rows(output, rows, steps, batch), last

    def stream(self, batch: int, initial: list[list[Array]], masks: list[Array | None]) -> Any:
        """Steps of ``batch`` rows."""
        return native.stream(self._native, batch, initial, masks)
