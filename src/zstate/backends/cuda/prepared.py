"""A prepared call: what to allocate and what to launch, decided once for all calls alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch

from .arguments import ITEM_BYTES, Arguments, Shape
from .calls import Call
from .launch import enter

Tensor = torch.Tensor
Tensors = tuple[Tensor | None, ...]
# The handle of a device's current stream; without the object around it, which costs microseconds.
current_stream: Callable[[int], int] = getattr(
    torch._C,
    "_cuda_getCurrentRawStream",
    lambda index: torch.cuda.current_stream(index).cuda_stream,
)
# A third of what torch.cuda.current_device() costs, where this torch has it.
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


def on_device(index: int) -> AbstractContextManager[object]:
    """Make a device the current one for a while: code is loaded into the current one's context."""
    return nullcontext() if index == _current_device() else torch.cuda.device(index)


class Memory(NamedTuple):
    """The memory of one call; ``numbers`` are in the order that ``Arguments`` decides."""

    numbers: list[int]
    tensors: list[Tensor]  # inputs, then results
    scratch: Tensor | None
    mask: Tensor | None  # in its full shape
    stream: int


Step = Callable[[Memory], None]


def tensor_of(arguments: Arguments, memory: Memory, name: str) -> Tensor:
    """A tensor of the call, wherever it lies."""
    if name not in arguments.pieces:
        return memory.tensors[[*arguments.inputs, *arguments.results].index(name)]
    begin, shape, dtype = arguments.pieces[name]
    assert memory.scratch is not None
    end = begin + math.prod(shape) * ITEM_BYTES[dtype]
    return memory.scratch.view(torch.uint8)[begin:end].view(getattr(torch, dtype)).view(shape)


class Result(NamedTuple):
    """How to make a result: like one of the tensors before it, where one has its shape."""

    like: int | None
    shape: Shape


class Prepared:
    """What calls of one layout do: call it with the operation's inputs, in their order."""

    def __init__(
        self,
        call: Call,
        device: torch.device,
        dtype: torch.dtype,
        steps: list[Callable[[], Step]],
    ) -> None:
        arguments, shapes, inputs = call.arguments, call.shapes, call.layout.operation.inputs
        self._device = device
        self._places = [inputs.index(name) for name in arguments.inputs]
        self._mask_place = inputs.index("mask")
        self._mask = call.layout.shape("mask") if "mask" in call.layout.present else None
        names = [*arguments.inputs, *arguments.results]
        self._results = [_result(names, shapes, name) for name in arguments.results]
        self._published = [None if name is None else names.index(name) for name in call.published]
        self._scratch = -(-arguments.scratch_bytes // dtype.itemsize)  # values of the source's type
        self._begins = [piece.begin for piece in arguments.pieces.values()]
        self._inside = [(arguments.place((name, 0)), begin) for name, begin in arguments.inside]
        self._constants = list(arguments.constants)
        self._steps = [step() for step in steps]

    def __call__(self, inputs: Tensors) -> Tensors:
        """The results; on the tensors' own device, which usually is the current one."""
        if self._device.index == _current_device():
            return self._run(inputs)
        with torch.cuda.device(self._device):
            return self._run(inputs)

    def _run(self, inputs: Tensors) -> Tensors:
        enter(self._device.index)
        tensors: list[Tensor] = []
        numbers: list[int] = []
        for place in self._places:
            tensor = inputs[place]
            address = tensor.data_ptr()  # type: ignore[union-attr]
            if address % 16 or not tensor.is_contiguous():  # type: ignore[union-attr]
                tensor = readable(tensor)  # type: ignore[arg-type]
                address = tensor.data_ptr()
            tensors.append(tensor)  # type: ignore[arg-type]
            numbers.append(address)
        source = inputs[0]
        for like, shape in self._results:
            made = source.new_empty(shape) if like is None else torch.empty_like(tensors[like])  # type: ignore[union-attr]
            tensors.append(made)
            numbers.append(made.data_ptr())
        scratch = mask = None
        if self._scratch:
            scratch = source.new_empty(self._scratch)  # type: ignore[union-attr]
            first = scratch.data_ptr()
            numbers += [first + begin for begin in self._begins]
        if self._inside:
            numbers += [numbers[place] + begin for place, begin in self._inside]
        numbers += self._constants
        if self._mask is not None:
            mask = inputs[self._mask_place].expand(self._mask)  # type: ignore[union-attr]
            numbers += (mask.data_ptr(), *mask.stride())
        memory = Memory(numbers, tensors, scratch, mask, current_stream(self._device.index))
        for step in self._steps:
            step(memory)
        return tuple([None if place is None else tensors[place] for place in self._published])


def _result(names: list[str], shapes: dict[str, Shape], name: str) -> Result:
    """The cheapest way to make a result is to make it like another tensor."""
    shape = shapes[name]
    before = names[: names.index(name)]
    return Result(
        next((k for k, other in enumerate(before) if shapes[other] == shape), None), shape
    )


def readable(tensor: Tensor) -> Tensor:
    """A tensor as the kernels read it: contiguous, and aligned for 16-byte loads."""
    tensor = tensor.contiguous()
    return (
        tensor
        if tensor.data_ptr() % 16 == 0
        else tensor.clone(memory_format=torch.contiguous_format)
    )
