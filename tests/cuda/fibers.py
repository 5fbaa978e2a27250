"""The CUDA engine with its scans on the CPU, thread by thread: the texts that a GPU runs, with a
function in place of every instruction that they spell out (fibers.h).

Unlike in emulated.py, the threads of warps, blocks and clusters exchange what they compute, in an
order that depends on the seed. It is slow: use it for tens of rows and units.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cuda.emulated import HERE, built
from tests.cuda.pretended import CHIP, PretendedScan, pretend
from zstate.backends.cuda import engine
from zstate.backends.cuda.arguments import Argument, Arguments
from zstate.backends.cuda.launch import specialisation
from zstate.backends.cuda.passes import Options
from zstate.backends.cuda.placement import Placement, Scan
from zstate.backends.cuda.placements import placements
from zstate.backends.cuda.prepared import Memory, Step

_SHARED = "extern __shared__ __align__(128) char shared[];"
_RUN = """
static Arguments given;
static void entry() {
  scan(given);
  self->done = true;
  give_way();
}
extern "C" bool run(const i64* words, int blocks, int of_block, int of_cluster, int shared,
                    u32 seed) {
  std::memcpy(&given, words, sizeof(given));
  threads = of_block, cluster = of_cluster;
  return run_all(entry, blocks, shared, seed);
}
"""


def _end_of(text: str, begin: int) -> int:
    """Behind the parenthesis that closes the one at ``begin``; strings may have others."""
    depth = 0
    for token in re.finditer(r'"[^"]*"|[()]', text[begin:]):
        depth += {"(": 1, ")": -1}.get(token.group(), 0)
        if depth == 0:
            return begin + token.end()
    raise AssertionError


def with_calls(text: str) -> tuple[str, set[str]]:
    """A text with a call for every assembler statement, and the functions that are called."""
    names, parts, end = set[str](), list[str](), 0
    for found in re.finditer(r"\basm(?: volatile)?\(", text):
        begin, parts = found.end() - 1, [*parts, text[end : found.start()]]
        end = _end_of(text, begin)
        statement = text[begin:end]
        (name,) = re.findall(r"[a-z]\w*(?:[.:]+\w+)+", statement)[:1]
        name = re.sub(r"\W+", "_", name)
        operands = ["SHAPE"] if "SHAPE" in statement else []  # of the macro around it
        for each in re.finditer(r'"[=+]?[a-z]"(?=\()', statement):
            operands.append(statement[each.end() : _end_of(statement, each.end())])
        parts.append(f"{name}({', '.join(operands)})")
        names.add(name)
    return "".join([*parts, text[end:]]), names


def text_of(scan: Scan, options: Options, plan: Placement) -> str:
    """The whole text; an instruction without a function here fails when it runs."""
    text, names = with_calls(specialisation(scan, options, plan))
    front = (HERE / "fibers.h").read_text()
    missing = sorted(name for name in names if f"void {name}(" not in front)
    stubs = [f'template <class... T> void {n}(T...) {{ fail("{n}"); }}' for n in missing]
    return "\n".join(
        [front, *stubs, text.replace(_SHARED, "char* const shared = block_memory();"), _RUN]
    )


class FiberScan(PretendedScan):
    """A scan whose threads take turns on the CPU."""

    folder: Path
    seed: int

    def launched(self, arguments: Arguments, steps: int, fields: dict[str, Argument]) -> Step:
        plan = self.placement
        run_all = built(text_of(self.scan, self.options, plan), self.folder, "-O1").run
        run_all.restype = ctypes.c_bool
        exchange, chains = self.exchange(steps), plan.chain_groups(self.scan)
        groups, at_once = plan.tile_groups(self.scan.batch), plan.groups // chains
        names = list(fields)

        def run(memory: Memory) -> None:
            words = [memory.numbers[arguments.place(each)] for each in fields.values()]
            for first in range(0, groups, at_once):
                words[names.index("first_group")] = first
                if exchange.filled:
                    ctypes.memset(words[names.index("exchange")], 0xFF, 4 * exchange.filled)
                blocks = min(at_once, groups - first) * chains * plan.blocks
                numbers = (blocks, plan.threads, plan.cluster_blocks, plan.shared, self.seed)
                assert run_all((ctypes.c_int64 * len(words))(*words), *numbers), "endless"

        return run


def emulate(
    monkeypatch: pytest.MonkeyPatch, folder: Path, seed: int, accepts: Callable[[Placement], bool]
) -> None:
    """From now on the engine runs on CPU tensors, its scans in one of these ways over the chip."""
    pretend(monkeypatch)

    def kernel_of(scan: Scan, options: Options, device: Any, in_steps: bool) -> Any:
        plans = filter(accepts, placements(scan, CHIP))
        small = sorted(plans, key=lambda plan: plan.threads * plan.blocks * plan.groups)[:8]
        kernel = FiberScan(scan, options, small[seed % len(small)])
        kernel.folder, kernel.seed = folder, seed
        return kernel

    monkeypatch.setattr(engine, "kernel_of", kernel_of)
