"""The launches of graph.cu, on torch CUDA tensors: what a graph's programs compute in few of them.

A launch takes the tensors' addresses by value, so nothing is copied to the device before it, and
a captured launch repeats with the addresses that it was captured with.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TypeVar

import torch

from ...graph.on_device.scalars import MOST_INPUTS, MOST_STEPS
from .compiler import machine_code, source
from .launch import Launch, architecture, chip_of, enter, loaded
from .prepared import current_stream, on_device

Tensor = torch.Tensor
Item = TypeVar("Item")

THREADS, _CHUNK, _STORE_CHUNK = 256, 4096, 16384
_ARGUMENT_WORDS = 500  # a kernel's arguments are at most 4096 bytes
_HEADS = {"Adam": 10, "Squares": 2, "Narrow": 2, "Store": 2}  # words before the tensors
_EACH = {"Adam": 8, "Squares": 6, "Narrow": 4, "Store": 4}  # words of a tensor
_MOST = {name: (_ARGUMENT_WORDS - _HEADS[name]) // _EACH[name] for name in _HEADS}
_WARPS = THREADS // 32
_TABLE_BYTES = 200 << 10  # of shared memory, for the rows of a table
_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3}
_NAMES = (
    "adam squares squares_end entropy entropy_gradient add_rows within narrow scalars store uniform"
).split()


def text() -> str:
    """The whole text that NVRTC compiles."""
    numbers = {"Threads": THREADS, "Chunk": _CHUNK, "StoreChunk": _STORE_CHUNK}
    numbers |= {"MostNumbers": MOST_INPUTS, "MostSteps": MOST_STEPS}
    numbers |= {f"Most{name}": most for name, most in _MOST.items()}
    return source(
        "".join(f"constexpr int k{n} = {v};\n" for n, v in numbers.items()), ("graph.cu",)
    )


class GraphKernels:
    """The kernels on one device; every function launches on torch's current stream."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._table_bytes = min(_TABLE_BYTES, chip_of(device).shared_bytes - 1024)
        code = machine_code(text(), architecture(device))
        with on_device(device):
            enter(device)
            functions = loaded(code, [name.encode() for name in _NAMES], self._table_bytes)
        self._functions = dict(zip(_NAMES, functions, strict=True))
        self._launches: dict[tuple[object, ...], Launch] = {}

    def adam(
        self,
        tensors: Sequence[Sequence[Tensor | None]],
        scalars: Sequence[Tensor | None],
        withheld: Tensor,
    ) -> None:
        """One step in place: (values, momentum, velocity, largest or None, gradient) of each, the
        gradient in float32 or 16 bits;
        (whether there is a step, or None; rate, beta1, beta2, epsilon, β1^t, β2^t; scale of the
        gradients, or None)."""
        for some in _parts(tensors, _MOST["Adam"]):
            words = [len(some), withheld.data_ptr(), *map(_address, scalars)]
            blocks = 0
            for each in some:
                assert each[0] is not None and each[-1] is not None
                count = each[0].numel()
                words += [*map(_address, each), count, blocks, _TYPES[each[-1].dtype]]
                blocks += -(-count // _CHUNK)
            self._launch("adam", blocks, words, "Adam")

    def squares(self, tensors: Sequence[Tensor]) -> Tensor:
        """The sum of the squares of each, [number of tensors]."""
        sums = tensors[0].new_empty(len(tensors), dtype=torch.float32)
        at = sums.data_ptr()
        for some in _parts(tensors, _MOST["Squares"]):
            counts = [-(-each.numel() // _CHUNK) for each in some]
            parts = sums.new_empty(sum(counts))
            words, first = [len(some), parts.data_ptr()], 0
            for each, blocks in zip(some, counts, strict=True):
                words += [each.data_ptr(), at, each.numel(), first, blocks, _TYPES[each.dtype]]
                at, first = at + 4, first + blocks
            self._launch("squares", first, words, "Squares")
            self._launch("squares_end", len(some), words, "Squares")
        return sums

    def narrow(self, tensors: Sequence[Tensor], dtype: str) -> list[Tensor]:
        """Copies of float32 tensors, contiguous, in a type of 16 bits."""
        kind: torch.dtype = getattr(torch, dtype)
        found = [torch.empty_like(each, dtype=kind) for each in tensors]
        for some in _parts(list(zip(tensors, found, strict=True)), _MOST["Narrow"]):
            words, blocks = [len(some), _TYPES[kind]], 0
            for value, to in some:
                words += [value.data_ptr(), to.data_ptr(), to.numel(), blocks]
                blocks += -(-to.numel() // _CHUNK)
            self._launch("narrow", blocks, words, "Narrow")
        return found

    def scalars(self, inputs: Sequence[Tensor], steps: Sequence[tuple[int, int, int]]) -> Tensor:
        """The results [steps] of arithmetic on single numbers, float32: each step is an operation
        and its operands, by their places among the inputs and the steps before."""
        found = inputs[0].new_empty(len(steps))
        addresses = [each.data_ptr() for each in inputs]
        addresses += [0] * (MOST_INPUTS - len(inputs))
        codes = [operation | a << 8 | b << 24 for operation, a, b in steps]
        words = [len(inputs), len(steps), found.data_ptr(), *addresses, *codes]
        self._launch("scalars", 1, words + [0] * (MOST_STEPS - len(steps)))
        return found

    def store(self, pairs: Sequence[tuple[Tensor, Tensor]], withheld: Tensor) -> None:
        """Copy the second of each pair into the first; contiguous, of one type and size."""
        for some in _parts(pairs, _MOST["Store"]):
            words, blocks = [len(some), withheld.data_ptr()], 0
            for to, value in some:
                size = to.numel() * to.element_size()
                words += [to.data_ptr(), value.data_ptr(), size, blocks]
                blocks += -(-size // _STORE_CHUNK)
            self._launch("store", blocks, words, "Store")

    def cross_entropy(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(loss [rows], soft-max [rows, classes])."""
        count, classes = rows.shape
        loss, soft_max = rows.new_empty(count), torch.empty_like(rows)
        addresses = [each.data_ptr() for each in (rows, labels, loss, soft_max)]
        self._launch("entropy", -(-count // _WARPS), [*addresses, count, classes])
        return loss, soft_max

    def cross_entropy_gradient(self, factor: Tensor, soft_max: Tensor, labels: Tensor) -> Tensor:
        """[rows, classes]; one factor, or one per row."""
        count, classes = soft_max.shape
        found = torch.empty_like(soft_max)
        addresses = [each.data_ptr() for each in (factor, soft_max, labels, found)]
        stride = 0 if factor.numel() == 1 else 1
        self._launch("entropy_gradient", -(-count // _WARPS), [*addresses, count, classes, stride])
        return found

    def add_rows(self, updates: Tensor, indices: Tensor, rows: int) -> Tensor | None:
        """Zeros [rows, columns] plus updates [count, columns] at their rows, int64 and in range;
        added up in float32. None where the table does not fit into shared memory.
        """
        count, columns = updates.shape
        most = self._table_bytes // (rows * 4)  # columns of a block
        in_pairs = columns % 2 == 0 and updates.data_ptr() % (2 * updates.element_size()) == 0
        each = 2 if in_pairs and most >= 64 else 1
        threads = next((t for t in (64, 32) if t * each <= most), None)
        if threads is None:
            return None
        tiles = -(-columns // (threads * each))
        # As many blocks as run at once; every chunk has parts of its own to add up.
        beside = max(min(self._table_bytes // (rows * threads * each * 4), 8), 1)
        wanted = -(-beside * chip_of(self._device).multiprocessors // tiles)
        chunk = max(-(-count // wanted), 64)
        chunks = -(-count // chunk)
        parts = updates.new_empty(chunks, rows, columns, dtype=torch.float32)
        addresses = [each.data_ptr() for each in (updates, indices, parts)]
        words = [*addresses, count, rows, columns, tiles, chunk, _TYPES[updates.dtype], each]
        self._launch("add_rows", tiles * chunks, words, "", threads, rows * threads * each * 4)
        return parts.sum(0).to(updates.dtype)

    def within(self, indices: Tensor, size: int, number: int, withheld: Tensor) -> Tensor:
        """The indices, int32 or int64, those outside moved inside; ``withheld`` becomes the number
        if there were any."""
        found = torch.empty_like(indices)
        is_long = int(indices.dtype == torch.int64)
        words = [indices.data_ptr(), found.data_ptr(), indices.numel(), size, is_long, number]
        self._launch("within", -(-indices.numel() // THREADS), [*words, withheld.data_ptr()])
        return found

    def uniform(
        self, state: Tensor, shape: Sequence[int], dtype: torch.dtype, low: float, high: float
    ) -> tuple[Tensor, Tensor]:
        """(numbers of this shape, the state after them), the bits of ``draw`` in ops/random.py;
        the state is int64 [6]."""
        values = torch.empty(tuple(shape), dtype=dtype, device=state.device)
        after = torch.empty_like(state)
        addresses = [each.data_ptr() for each in (state, after, values)]
        bounds = struct.unpack("2q", struct.pack("2d", low, high - low))
        each = 4 if dtype == torch.float64 else 8  # numbers of a thread
        blocks = max(-(-values.numel() // (each * THREADS)), 1)  # the state advances in any case
        self._launch("uniform", blocks, [*addresses, values.numel(), _TYPES[dtype], *bounds])
        return values, after

    def _launch(
        self,
        name: str,
        blocks: int,
        words: list[int],
        table: str = "",
        threads: int = THREADS,
        shared: int = 0,
    ) -> None:
        if not blocks:
            return
        enter(self._device)
        key = (name, blocks, len(words), threads, shared)
        launch = self._launches.get(key)
        if launch is None:
            most = _HEADS[table] + _MOST[table] * _EACH[table] if table else None
            launch = Launch(
                self._functions[name], blocks, threads, shared, len(words), most_words=most
            )
            self._launches[key] = launch
        launch(current_stream(self._device), words)


@cache
def graph_kernels(device: int) -> GraphKernels:
    """Those of a device: compiled once, loaded once."""
    return GraphKernels(device)


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _parts(items: Sequence[Item], most: int) -> Iterator[Sequence[Item]]:
    for begin in range(0, len(items), most):
        yield items[begin : begin + most]
