"""The CUDA engine with its scan on the CPU: a C++ compiler compiles the printed text of the cell.

All but the matrix instructions and the exchange is what runs on a GPU.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cuda.pretended import CHIP, PretendedScan, pretend
from zstate.backends.cuda import compiler, engine
from zstate.backends.cuda.arguments import Argument, Arguments
from zstate.backends.cuda.options import constants
from zstate.backends.cuda.passes import Options, pass_of
from zstate.backends.cuda.placement import Placement, Scan
from zstate.backends.cuda.prepared import Memory, Step
from zstate.backends.cuda.printing import arguments_text, cell_text
from zstate.backends.cuda.row_placements import row_placements

HERE = Path(__file__).parent
COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")


def text_of(scan: Scan, options: Options, plan: Placement) -> str:
    """The whole text: the engine's own, but for the machine and the scan."""
    found, own = pass_of(options), compiler._text
    parts = [
        *(own("activations.h"), constants(scan, options, plan), (HERE / "emulated.h").read_text()),
        *map(own, ("pairs.cuh", "specialisation.cuh", "row_layout.cuh")),
        arguments_text(found),
        *map(own, ("block.cuh", "sums.cuh", "turn.cuh")),
        *(cell_text(found), (HERE / "emulated.cu").read_text()),
    ]
    return "\n".join(parts)


def built(text: str, folder: Path, optimised: str = "-O0") -> Any:
    """A library of this text, compiled once per folder."""
    assert COMPILER is not None
    made = folder / (hashlib.sha256(text.encode()).hexdigest()[:16] + ".so")
    if not made.exists():
        source = made.with_suffix(".cpp")
        source.write_text(text)
        flags = ["-std=c++17", optimised, "-w", "-shared", "-fPIC", "-ffp-contract=off"]
        subprocess.run([COMPILER, *flags, "-o", str(made), str(source)], check=True)
    return ctypes.CDLL(str(made))


class EmulatedScan(PretendedScan):
    """A scan that the CPU runs, with one row per block."""

    folder: Path

    def launched(self, arguments: Arguments, steps: int, fields: dict[str, Argument]) -> Step:
        library = built(text_of(self.scan, self.options, self.placement), self.folder)

        def run(memory: Memory) -> None:
            words = [memory.numbers[arguments.place(each)] for each in fields.values()]
            library.run((ctypes.c_int64 * len(words))(*words))

        return run


def emulate(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """From now on the engine runs on CPU tensors, its scans by the CPU."""
    pretend(monkeypatch)

    def kernel_of(scan: Scan, options: Options, device: Any, in_steps: bool) -> Any:
        plan, *_ = row_placements(replace(scan, optional=0), CHIP)  # whatever registers it takes
        one = plan._replace(pack=1, shared=plan.shared // plan.pack)
        kernel = EmulatedScan(scan, options, one)
        kernel.folder = folder
        return kernel

    monkeypatch.setattr(engine, "kernel_of", kernel_of)
