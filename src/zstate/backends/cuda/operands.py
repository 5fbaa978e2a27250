"""What R multiplied at every step, from what the gradient operation knows: plain array operations.

For products that a gradient needs again, all steps at once, before the scan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...arrays import namespace_of
from ...cells.program import Leaf, Program, no_products, on_arrays
from ...types import Value
from .calls import Call, MakeOperand, sizes
from .passes import BackwardPass, field, pass_of

# A tensor of the call by its name; None: it was not passed. The mask has its full shape.
Read = Callable[[str], Any]


def operand_of(call: Call, step: MakeOperand, read: Read) -> Value:
    """[T,N,D·H], in the order of the output and in the type of the call."""
    directions = range(call.layout.directions)
    parts = [_Direction(call, step, read, d).computed(step.equations.text) for d in directions]
    return parts[0] if len(parts) == 1 else namespace_of(parts[0]).concat(parts, axis=-1)


class _Direction:
    """One direction of a call; every value [T,N,H], or [H]."""

    def __init__(self, call: Call, step: MakeOperand, read: Read, index: int) -> None:
        found = pass_of(call.kernel.options)
        assert isinstance(found, BackwardPass)
        self._layout, self._step, self._read, self._index = call.layout, step, read, index
        self._first_state = found.stages.first_state
        self._z, self._cell = sizes(call.layout), call.layout.cell_kind
        self._xp = namespace_of(read("z_state"))
        self._type = read("z_state").dtype

    def computed(self, text: Program) -> Value:
        value = self._run(text)
        shape = (self._z.T, self._z.N, self._z.H)
        return self._xp.astype(self._xp.broadcast_to(value, shape), self._type)

    def _run(self, text: Program) -> Value:
        """Rounded once, at the end."""
        several = len(text.instructions) > 1 and self._type != self._xp.dtype("float32")
        wide = self._xp.dtype("float32") if several else self._type
        (value,) = text.run(
            lambda leaf: self._xp.astype(self._leaf(leaf), wide), on_arrays(self._xp), no_products
        )
        return value

    def _leaf(self, leaf: Leaf) -> Value:
        z, (kind, *names) = self._z, leaf
        if kind in ("mask", "reset"):
            read = self._read("mask" if kind == "mask" else "resets")
            value = self._window(read) if kind == "mask" else read[..., self._index, None]
            turned = z.D == 1 and self._layout.descriptor.reverse
            return self._xp.flip(value, (0,)) if turned else value
        if kind == "own":
            value = self._read(names[0])
            if len(names) == 1:
                return value.reshape(z.D, z.H)[self._index]
            slot = self._layout.slots[self._cell.gates.index(names[1])]
            return value.reshape(z.D, z.G, z.H)[self._index, slot]
        if kind == "saved":
            saved = self._read("z_state").reshape(z.T, z.N, z.D, z.G, z.H)
            return saved[:, :, self._index, self._layout.slots[self._cell.gates.index(names[0])]]
        if kind == "recomputed":
            return self._window(self._read(field(*leaf)).reshape(z.T, z.N, z.D * z.H))
        return self._after(names[0]) if kind == "after" else self._before(names[0])

    def _window(self, value: Value) -> Value:
        return value[..., self._index * self._z.H : (self._index + 1) * self._z.H]

    def _after(self, name: str) -> Value:
        state = next(each for each in self._cell.states if each.name == name)
        if name not in self._cell.fed_states:
            assert self._first_state is not None
            return self._run(self._first_state.text)
        return self._window(self._read(state.output))

    def _before(self, name: str) -> Value:
        """After the step before; the second direction goes the other way."""
        z, after = self._z, self._after(name)
        state = next(each for each in self._cell.states if each.name == name)
        first = self._read(state.initial)
        first = (
            self._xp.zeros_like(after[:1])
            if first is None
            else self._xp.astype(self._window(first.reshape(1, z.N, z.D * z.H)), after.dtype)
        )
        parts = [first, after[:-1]] if self._index == 0 else [after[1:], first]
        return self._xp.concat(parts, axis=0)
