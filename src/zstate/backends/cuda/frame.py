"""Where the tensors of a call lie: inputs, results, and what is needed in between.

A call of one signature always needs the same memory and the same launches; only the addresses
change. They are gathered into one list of numbers, from which every launch picks its arguments.
Making a tensor costs microseconds: what nobody else sees lies in one piece of memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch

Tensor = torch.Tensor
Shape = tuple[int, ...]
MASK = ("mask", "mask_t", "mask_n", "mask_h")  # the mask's address and its strides
_ALIGNMENT = 256

# A number that a launch takes: an address inside a tensor (its name, and how many bytes from its
# beginning), or a constant.
Asked: TypeAlias = tuple[str, int] | int


class Part(NamedTuple):
    """A piece of the memory in between: where it begins, in bytes, its shape and its type."""

    begin: int
    shape: Shape
    dtype: torch.dtype


class Frame(NamedTuple):
    """The memory of one call; ``numbers`` are in the order that ``Slots`` has given out."""

    numbers: list[int]
    tensors: list[Tensor]  # inputs, then results
    between: Tensor | None
    mask: Tensor | None  # in its full shape
    stream: int


Step = Callable[[Frame], None]


class Slots:
    """Gives every number that a launch asks for its place in ``Frame.numbers``.

    Their order: addresses of inputs, of results, of parts in between, of places inside of these,
    constants, and the mask's.
    """

    def __init__(self, inputs: list[str], results: list[str]) -> None:
        self.inputs, self.results = inputs, results
        self.parts: dict[str, Part] = {}
        self.inside: dict[tuple[str, int], None] = {}
        self.constants: dict[int, None] = {}
        self.bytes = 0

    def part(self, name: str, shape: Shape, dtype: torch.dtype) -> str:
        """Memory that nobody else sees."""
        self.parts[name] = Part(self.bytes, shape, dtype)
        size = math.prod(shape) * dtype.itemsize
        self.bytes += -(-size // _ALIGNMENT) * _ALIGNMENT
        return name

    def ask(self, name: str | None, begin: int = 0) -> Asked:
        """The address so many bytes into a tensor; 0 where there is none."""
        if name is None:
            return self.constant(0)
        if begin:
            self.inside[name, begin] = None
        return name, begin

    def constant(self, value: int) -> Asked:
        self.constants[value] = None
        return value

    def place(self, asked: Asked) -> int:
        """The place of something that was asked for, once everything has been."""
        names = [*self.inputs, *self.results, *self.parts]
        inside = len(names) + len(self.inside)
        if isinstance(asked, int):
            return inside + list(self.constants).index(asked)
        name, begin = asked
        if begin:
            return len(names) + list(self.inside).index(asked)
        return names.index(name) if name not in MASK else self._mask_place(inside, name)

    def _mask_place(self, inside: int, name: str) -> int:
        return inside + len(self.constants) + MASK.index(name)

    def tensor(self, frame: Frame, name: str) -> Tensor:
        """A tensor of the call, wherever it lies."""
        if name not in self.parts:
            return frame.tensors[[*self.inputs, *self.results].index(name)]
        begin, shape, dtype = self.parts[name]
        assert frame.between is not None
        end = begin + math.prod(shape) * dtype.itemsize
        return frame.between.view(torch.uint8)[begin:end].view(dtype).view(shape)
