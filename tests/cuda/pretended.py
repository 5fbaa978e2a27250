"""The CUDA engine without a GPU: its steps by torch on the CPU, around a scan that is pretended."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
import torch

from zstate.backends.cuda import engine, prepared
from zstate.backends.cuda.arguments import MASK, Argument, Arguments
from zstate.backends.cuda.launch import Kernel
from zstate.backends.cuda.passes import Options, pass_of
from zstate.backends.cuda.placement import Chip, Placement, Scan
from zstate.backends.cuda.placements import placements
from zstate.backends.cuda.prepared import Memory, Step, tensor_of
from zstate.backends.cuda.printing import fields_of, written_by

CHIP = Chip(132, 232448, (9, 0))


def left_in(name: str, shape: tuple[int, ...]) -> Any:
    """What the scan leaves in a tensor: random numbers, always the same ones."""
    return np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape).astype(np.float32)


def named(fields: dict[str, Argument]) -> dict[str, str]:
    """The tensors that a scan is given, by the fields' names."""
    tensors = {f: given[0] for f, given in fields.items() if not isinstance(given, int)}
    return {f: name for f, name in tensors.items() if name not in MASK}


class PretendedScan:
    """A kernel that is never launched; it keeps what it was to read and what it would write."""

    fields, exchange, _step_memory = Kernel.fields, Kernel.exchange, Kernel._step_memory

    def __init__(self, scan: Scan, options: Options, placement: Placement) -> None:
        self.scan, self.placement, self.device = scan, placement, 0
        self.options, self.words = options, fields_of(pass_of(options))
        self.written = written_by(pass_of(options))
        self.code, self.launches = b"machine code", [(0, 12), (2, 6)]
        self.read: dict[str, torch.Tensor] = {}  # before it wrote anything
        self.seen: dict[str, torch.Tensor] = {}
        self.addresses: dict[str, int] = {}

    def launched(self, arguments: Arguments, steps: int, fields: dict[str, Argument]) -> Step:
        tensors, written = named(fields), self.written

        def copies(memory: Memory) -> dict[str, torch.Tensor]:
            return {f: tensor_of(arguments, memory, name).clone() for f, name in tensors.items()}

        def run(memory: Memory) -> None:
            self.read = copies(memory)
            for name in {name for f, name in tensors.items() if f in written and f != "exchange"}:
                tensor = tensor_of(arguments, memory, name)
                tensor.copy_(torch.from_numpy(left_in(name, tuple(tensor.shape))))
            self.seen = copies(memory)
            self.addresses = {f: memory.numbers[arguments.place(a)] for f, a in fields.items()}

        return run


def pretend(monkeypatch: pytest.MonkeyPatch) -> list[PretendedScan]:
    """From now on the engine runs on CPU tensors; the scans that it prepares."""
    made: list[PretendedScan] = []

    def kernel_of(scan: Scan, options: Options, device: Any, in_steps: bool) -> Any:
        assert in_steps
        made.append(PretendedScan(scan, options, placements(scan, CHIP)[0]))
        return made[-1]

    monkeypatch.setattr(engine, "kernel_of", kernel_of)
    monkeypatch.setattr(engine, "_launching", lambda step: step)  # it is given the whole memory
    monkeypatch.setattr(engine, "chip_of", lambda device: CHIP)
    monkeypatch.setattr(engine, "are_small", lambda *_: False)
    monkeypatch.setattr(engine, "enter", lambda index: None)
    monkeypatch.setattr(prepared, "enter", lambda index: None)
    monkeypatch.setattr(prepared, "_current_device", lambda: None)
    monkeypatch.setattr(prepared, "current_stream", lambda index: 0)
    return made
