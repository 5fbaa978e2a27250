"""Where the tensors of a call lie: inputs, results, and scratch memory.

Calls of one signature always need the same memory and the same launches; only the addresses
change. They are gathered into one list of numbers, from which every launch picks its arguments.
Making a tensor costs microseconds, so all scratch memory of a call is one tensor.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

Shape = tuple[int, ...]
MASK = ("mask", "mask_t", "mask_n", "mask_h")  # the mask's address and its strides
_ALIGNMENT = 256

# A number that a launch takes: an address inside a tensor (its name, and how many bytes from its
# beginning), or a constant.
Argument: TypeAlias = tuple[str, int] | int


class Piece(NamedTuple):
    """A piece of the scratch memory: where it begins, in bytes, its shape and its type's name."""

    begin: int
    shape: Shape
    dtype: str


ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "int32": 4}


class Arguments:
    """Gives every number that a launch takes its place in the list of a call's numbers.

    Their order: addresses of inputs, of results, of pieces of scratch memory, of places inside
    these, constants, and the mask's.
    """

    def __init__(self, inputs: list[str], results: list[str]) -> None:
        self.inputs, self.results = inputs, results
        self.pieces: dict[str, Piece] = {}
        self.inside: dict[tuple[str, int], None] = {}
        self.constants: dict[int, None] = {}
        self.scratch_bytes = 0

    def reserve(self, name: str, shape: Shape, dtype: str) -> str:
        """A piece of scratch memory."""
        self.pieces[name] = Piece(self.scratch_bytes, shape, dtype)
        size = math.prod(shape) * ITEM_BYTES[dtype]
        self.scratch_bytes += -(-size // _ALIGNMENT) * _ALIGNMENT
        return name

    def address(self, name: str | None, begin: int = 0) -> Argument:
        """The address ``begin`` bytes into a tensor; 0 if there is no tensor."""
        if name is None:
            return self.constant(0)
        if begin:
            self.inside[name, begin] = None
        return name, begin

    def constant(self, value: int) -> Argument:
        self.constants[value] = None
        return value

    def place(self, argument: Argument) -> int:
        """The place of an argument, once all of them are known."""
        names = [*self.inputs, *self.results, *self.pieces]
        inside = len(names) + len(self.inside)
        if isinstance(argument, int):
            return inside + list(self.constants).index(argument)
        name, begin = argument
        if begin:
            return len(names) + list(self.inside).index(argument)
        if name in MASK:
            return inside + len(self.constants) + MASK.index(name)
        return names.index(name)
