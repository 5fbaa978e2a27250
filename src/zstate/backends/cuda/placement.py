"""What a placement is made from and what it says: a chip, a scan, and one way over the chip.

A group of blocks shares the recurrent weight of one chain, a head of one direction, and serves
``tiles`` tiles of up to 32 rows (with warp groups 16 to 128); groups are independent. Its blocks
exchange the operand of every product

- inside one block, through shared memory (small H),
- likewise, one row per block and the weight in registers (tiny layers),
- inside a cluster, through distributed shared memory (Hopper and newer),
- over the whole grid, through L2, all blocks resident at once (large H, older chips),
- likewise, with warp-group matrix instructions (many rows, compute capability 9.0).

Or the scan goes in single steps: the library or streamed.cu multiplies, and one launch per phase
does the rest (large H and large batches). Its blocks hold no weight and exchange nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from .phases import Form, Phase

BLOCK, CLUSTER, GRID, STEPS, WIDE, ROW = range(6)
TILE = 16  # rows of one matrix instruction
MOST_TILES = 16  # of one block: bounds its state in shared memory
THREAD_REGISTERS = 255
WORKER_REGISTERS = 224  # of a thread that computes, in WIDE


@dataclass(frozen=True)
class Chip:
    """What a placement depends on of a device."""

    multiprocessors: int
    shared_bytes: int  # that a block may have
    capability: tuple[int, int]

    @property
    def has_clusters(self) -> bool:
        return self.capability[0] >= 9 and self.capability[0] != 12

    def clusters(self, blocks: int) -> int:
        """How many clusters are resident at once, one block per multiprocessor: an estimate.

        A cluster lies inside one group of 16 or 18 multiprocessors, some of which are switched off.
        """
        lost = {1: 0, 2: 0, 3: 5, 4: 3}.get(blocks, 1)
        return max(1, self.multiprocessors // blocks - lost)

    @property
    def has_warp_groups(self) -> bool:
        """Whether there are warp-group matrix instructions."""
        return self.capability == (9, 0)


@dataclass(frozen=True)
class Scan:
    """What of a call decides its placement."""

    form: Form
    type: str  # bfloat16, float16, tf32 or float32
    hidden: int  # units of a head
    batch: int
    directions: int
    optional: int = 0  # registers that the options of a call take for each pair of units
    heads: int = 1

    @property
    def backward(self) -> bool:
        return self.form.backward

    @property
    def gates(self) -> int:
        return self.form.gates

    @property
    def chains(self) -> int:
        """Heads of all directions: recurrences that do not see each other."""
        return self.heads * self.directions

    @property
    def phases(self) -> tuple[Phase, ...]:
        return self.form.phases

    @property
    def states(self) -> int:
        """Values that a unit of a row keeps from phase to phase."""
        return self.form.states

    @cached_property
    def value_bytes(self) -> int:
        return 2 if self.type in ("bfloat16", "float16") else 4


class Placement(NamedTuple):
    """One way over the chip.

    ``held`` and ``stored``: k-blocks per warp, by phase; in WIDE, stages per warp group.
    """

    mode: int
    blocks: int  # of a group
    units: int  # of a block
    padded: int  # H, rounded up to blocks · units
    rows: int  # of a tile; may be fewer than the 16 of a matrix instruction
    tiles: int  # of a group
    groups: int  # of one launch, all chains
    launches: int  # one after the other, where the chip cannot hold all groups at once
    warps_k: int
    warps_n: int
    # K-blocks of the operand loaded together; WIDE: stages in the ring; ROW: lanes of a unit.
    chunk: int
    held: tuple[int, ...]  # in registers
    stored: tuple[int, ...]  # in shared memory; the rest is read from L2 at every step
    shared: int  # bytes of shared memory
    resident: int  # blocks that one multiprocessor has to hold at once
    spare: int  # registers of a thread that remain, by estimate
    microseconds: float  # per step, by the cost model
    cluster: int = 1  # WIDE: blocks of a cluster
    # WIDE: of 64 bytes of K, that a warp group has in a stage; STEPS: of K, multiplied separately.
    pieces: int = 0
    pack: int = 1  # ROW: heads of a block
    # STEPS, by phase, where the products are our own (streamed.py): pieces of K.
    split: tuple[int, ...] = ()

    @property
    def threads(self) -> int:
        return 32 * self.warps_k * self.warps_n

    @property
    def launched_threads(self) -> int:
        """Of a block; WIDE has a warp group that only copies."""
        return self.threads + (128 if self.mode == WIDE else 0)

    @property
    def cluster_blocks(self) -> int:
        return self.blocks if self.mode == CLUSTER else self.cluster

    @property
    def is_cooperative(self) -> bool:
        """Whether all blocks of a launch have to be resident at once."""
        return self.mode in (GRID, WIDE)

    @property
    def may_spill(self) -> bool:
        """Whether the compiler may run out of registers; the estimate of their number is rough.

        In WIDE it is closer: three in a hundred spill a few words, and none may that tests build.
        """
        return self.spare < 56 and self.mode != WIDE

    def holds_all(self, scan: Scan) -> bool:
        """Whether all of the weight stays on the chip: none of it is read again at every step."""
        if self.mode in (WIDE, ROW):
            return True
        deep, wide = warp_parts(scan, self.padded, self.units, self.warps_k, self.warps_n)
        return not streamed(deep, wide, self.held, self.stored)

    def exchange_bytes(self, scan: Scan) -> int:
        """Of all operands of a tile in a step."""
        sizes = self.units, self.padded, self.rows, self.warps_k
        return sum(operand_bytes(scan, phase, *sizes) for phase in scan.phases)

    def parts(self, scan: Scan) -> tuple[int, ...]:
        """STEPS: how many products each phase has, which the cell's launch adds up."""
        return self.split or tuple(self.pieces if each.ins > 1 else 1 for each in scan.phases)

    def chain_groups(self, scan: Scan) -> int:
        """Groups that serve the same rows."""
        return -(-scan.chains // self.pack)

    def tile_groups(self, batch: int) -> int:
        """Groups of one chain, over all launches."""
        return -(-batch // (self.rows * self.tiles))

    def sums_all(self, batch: int) -> bool:
        """Whether the scan leaves whole sums over time and batch: one group has all rows.

        In single steps such a sum grows from launch to launch, so it stays in float32.
        """
        return self.mode != STEPS and self.tile_groups(batch) == 1


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def is_direct(scan: Scan, rows: int, warps_k: int) -> bool:
    """Whether a warp keeps its sums in registers: it has all of K, and up to eight rows."""
    return warps_k == 1 and rows <= 8 and scan.type != "float32"


def warp_parts(
    scan: Scan, padded: int, units: int, warps_k: int, warps_n: int
) -> tuple[list[int], list[int]]:
    """K-blocks and column tiles of a warp, by phase."""
    gate_k = padded * scan.value_bytes // 64
    deep = [0 if each.reduces else -(-each.ins * gate_k // warps_k) for each in scan.phases]
    tiles = units // 8 // warps_n
    wide = [0 if each.reduces else tiles * each.outs for each in scan.phases]
    return deep, wide


def operand_bytes(
    scan: Scan, phase: Phase, units: int, padded: int, rows: int, warps_k: int
) -> int:
    """Of what blocks exchange of a tile; specialisation.cuh computes the same."""
    if not phase.reduces:
        return rows * phase.ins * padded * scan.value_bytes
    part = 8 if is_direct(scan, rows, warps_k) else 8 * math.gcd(units // 8, 4)
    return rows * (padded // part) * -(-phase.words // 4) * 16


def streamed(
    deep: Sequence[int], wide: Sequence[int], held: Sequence[int], stored: Sequence[int]
) -> int:
    """Column tiles times k-blocks that a warp reads from L2 at every step."""
    return sum(
        (depth - kept - count) * width
        for depth, width, kept, count in zip(deep, wide, held, stored, strict=True)
    )
