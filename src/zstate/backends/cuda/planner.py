"""Which way a scan takes over the chip: pure arithmetic on sizes, no GPU needed.

A group of blocks shares the recurrent weight of one direction and serves ``tiles`` tiles of 16 rows;
groups are independent. Its blocks exchange the operand of every product

- inside one block, through shared memory (small H),
- inside a cluster, through distributed shared memory (Hopper and newer),
- over the whole grid, through L2, all blocks resident at once (large H, older chips).

``plans`` lists what is possible, best first by a model of the time of one step, whose constants were
measured on an H200 (docs/performance.md). The engine takes the first one that the driver agrees to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

BLOCK, CLUSTER, GRID = 0, 1, 2
TILE = 16  # rows of one matrix instruction
MOST_TILES = 16  # of one block: bounds its state in shared memory
THREAD_REGISTERS = 255


@dataclass(frozen=True)
class Chip:
    """What the planner has to know of a device."""

    multiprocessors: int
    shared_bytes: int  # a block may have
    capability: tuple[int, int]

    @property
    def has_clusters(self) -> bool:
        return self.capability[0] >= 9 and self.capability[0] != 12

    def clusters(self, blocks: int) -> int:
        """How many clusters are resident at once, one block a multiprocessor: an estimate.

        A cluster lies inside one group of 16 or 18 multiprocessors, some of which are switched off.
        """
        return max(1, self.multiprocessors // blocks - (1 if blocks > 1 else 0))


@dataclass(frozen=True)
class Problem:
    """What of a call decides the plan."""

    cell: str  # single_gate_rnn, lstm or gru
    backward: bool
    reset_after: bool
    type: str  # bfloat16, float16, tf32 or float32
    hidden: int
    batch: int
    directions: int

    @property
    def gates(self) -> int:
        return {"single_gate_rnn": 1, "lstm": 4, "gru": 3}[self.cell]

    @property
    def value_bytes(self) -> int:
        return 2 if self.type in ("bfloat16", "float16") else 4

    @property
    def phases(self) -> list[tuple[int, int]]:
        """For each product of a step: gates that go in, gates that come out."""
        if self.cell == "gru" and not self.reset_after:
            return [(1, 1), (2, 1)] if self.backward else [(1, 2), (1, 1)]
        return [(self.gates, 1)] if self.backward else [(1, self.gates)]

    @property
    def states(self) -> int:
        """Values that a unit of a row keeps from phase to phase."""
        if self.cell == "gru":
            return 1 if self.reset_after else 4 if self.backward else 2
        return 1 if self.cell == "lstm" else 0


class Plan(NamedTuple):
    """One way over the chip. ``held`` and ``stored``: k-blocks a warp, by phase."""

    mode: int
    blocks: int  # of a group
    units: int  # of a block
    padded: int  # H, rounded up to blocks · units
    rows: int  # of a tile that are there at all: fewer than 16 for a small batch
    tiles: int  # of a group
    groups: int  # of one launch, all directions
    launches: int  # one after the other, where the chip cannot hold all groups at once
    warps_k: int
    warps_n: int
    held: tuple[int, ...]  # in registers
    stored: tuple[int, ...]  # in shared memory; the rest is read from L2 at every step
    shared: int  # bytes of shared memory
    resident: int  # blocks that one multiprocessor has to hold at once
    microseconds: float  # of a step, by the model

    @property
    def threads(self) -> int:
        return 32 * self.warps_k * self.warps_n


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def plans(problem: Problem, chip: Chip) -> list[Plan]:
    """Every plan that this chip could hold, best first."""
    found = [
        plan
        for mode, blocks, units, padded in _shapes(problem, chip)
        for tiles in _tile_counts(problem, chip, mode, blocks)
        for warps in _warps(units)
        for resident in ((1, 2) if mode == CLUSTER else (1,))
        if (plan := _plan(problem, chip, mode, blocks, units, padded, tiles, warps, resident))
    ]
    return sorted(found, key=lambda plan: plan.microseconds)


def _shapes(problem: Problem, chip: Chip) -> Iterator[tuple[int, int, int, int]]:
    """Mode, blocks of a group, units of a block, padded H."""
    block_k = 64 // problem.value_bytes
    if problem.hidden <= 1024:
        padded = round_up(problem.hidden, block_k)
        yield BLOCK, 1, padded, padded
    if chip.has_clusters:
        for blocks in (2, 4, 8, 16):
            padded = round_up(problem.hidden, max(8 * blocks, block_k))
            if padded - problem.hidden < max(padded // blocks, block_k):
                yield CLUSTER, blocks, padded // blocks, padded
    for units in (8, 16, 24, 32, 48, 64, 96, 128, 256, 512):
        # The least common multiple of units and a k-block.
        step = units if units % block_k == 0 else units * 2 if units % 16 == 8 else units
        while step % block_k:
            step += units
        padded = round_up(problem.hidden, step)
        blocks = padded // units
        if 1 < blocks and blocks * problem.directions <= chip.multiprocessors:
            yield GRID, blocks, units, padded


def _tile_counts(problem: Problem, chip: Chip, mode: int, blocks: int) -> list[int]:
    total = -(-problem.batch // TILE)
    if mode == GRID:
        at_once = chip.multiprocessors // (blocks * problem.directions)
        tiles = -(-total // at_once)
        if tiles > MOST_TILES:
            tiles = MOST_TILES
        return sorted({tiles, -(-total // max(1, at_once // 2))} - {0})[:2]
    return sorted({min(count, total) for count in (1, 2, 4, 8)})


def _warps(units: int) -> Iterator[tuple[int, int]]:
    for count in (2, 4, 8, 16):
        for warps_n in (1, 2, 4, 8, 16):
            if count % warps_n == 0 and (units // 8) % warps_n == 0:
                yield count // warps_n, warps_n


def shared_bytes(
    problem: Problem,
    mode: int,
    units: int,
    padded: int,
    rows: int,
    tiles: int,
    warps_k: int,
    warps_n: int,
    stored: tuple[int, ...],
) -> int:
    """Shared memory of a block: the same sums as in shape.cuh, which asserts that they agree."""
    phases = problem.phases
    state_stride = tiles * rows * units // 2 + 1
    columns = max(out for _, out in phases) * units
    sum_stride = (columns + 23) // 32 * 32 + 8
    total = round_up(len(phases) * tiles * 2 * 8, 128)
    total += round_up(problem.states * state_stride * 8, 128)
    total += round_up(2 * warps_k * rows * sum_stride * 4, 128)
    if mode != GRID:
        for into, _ in phases:
            total += 2 * tiles * rows * into * padded * problem.value_bytes
    total = round_up(total, 128)
    for (_, out), blocks in zip(phases, stored, strict=True):
        total += warps_k * warps_n * blocks * (units // 8 // warps_n * out) * 512
    return total


def _plan(
    problem: Problem,
    chip: Chip,
    mode: int,
    blocks: int,
    units: int,
    padded: int,
    tiles: int,
    warps: tuple[int, int],
    resident: int,
) -> Plan | None:
    warps_k, warps_n = warps
    rows = TILE
    while rows // 2 >= problem.batch and rows > 1:
        rows //= 2
    threads = 32 * warps_k * warps_n
    per_thread = -(-rows * units // 2 // threads)
    if per_thread > 8:
        return None
    gate_k = padded * problem.value_bytes // 64
    phases = problem.phases
    deep = [-(-into * gate_k // warps_k) for into, _ in phases]  # k-blocks a warp
    wide = [units // 8 // warps_n * out for _, out in phases]  # column tiles a warp
    chunk = max(min(8, depth) for depth in deep)
    # Accumulators, loaded operands, inputs and sums of the cell, addresses: an estimate.
    inputs = per_thread * (6 * problem.gates if problem.backward else 2 * problem.gates + 4)
    busy = 4 * max(wide) + 8 * chunk + inputs + 56
    if problem.type == "float32":
        busy = (rows + 4) * max(wide) + 4 * rows + inputs + 56
    registers = min(THREAD_REGISTERS, 65536 // threads // resident) - busy
    if registers < 0:
        return None
    if problem.type == "float32":
        registers = 0  # its loop over K is not unrolled
    held = []
    for depth, width in zip(deep, wide, strict=True):
        count = max(0, min(depth, 8, registers // (4 * width)))
        held.append(count)
        registers -= count * 4 * width
    fixed = shared_bytes(
        problem, mode, units, padded, rows, tiles, warps_k, warps_n, (0,) * len(phases)
    )
    room = chip.shared_bytes // resident - 1024 * (resident - 1) - fixed
    if room < 0:
        return None
    stored = []
    for depth, width, kept in zip(deep, wide, held, strict=True):
        slice_bytes = warps_k * warps_n * width * 512
        count = max(0, min(depth - kept, room // slice_bytes))
        stored.append(count)
        room -= count * slice_bytes
    streamed = sum(
        (depth - kept - count) * width
        for depth, width, kept, count in zip(deep, wide, held, stored, strict=True)
    )
    if mode != GRID and streamed:
        return None  # a cluster that does not hold its weight has nothing over the whole grid
    total_tiles = -(-problem.batch // TILE)
    all_groups = -(-total_tiles // tiles)  # of one direction
    launches, groups = 1, all_groups * problem.directions
    if mode == GRID:
        at_once = chip.multiprocessors // (blocks * problem.directions)
        launches = -(-all_groups // at_once)
        groups = min(all_groups, at_once) * problem.directions
    plan = Plan(
        mode,
        blocks,
        units,
        padded,
        rows,
        tiles,
        groups,
        launches,
        warps_k,
        warps_n,
        tuple(held),
        tuple(stored),
        shared_bytes(
            problem, mode, units, padded, rows, tiles, warps_k, warps_n, tuple(stored)
        ),
        resident,
        0.0,
    )
    return plan._replace(microseconds=_model(problem, chip, plan, streamed * warps_k * warps_n))


# Measured on an H200 at 1.75 GHz or so.
_CYCLE = 1 / 1750  # microseconds
_MMA_CYCLES = 4.0  # a k-block of one column tile, on all four tensor cores of a multiprocessor
_STREAM_BYTES = 26.0  # a cycle and multiprocessor, when all of them read L2
_SHARED_BYTES = 128.0  # a cycle


def _model(problem: Problem, chip: Chip, plan: Plan, streamed: int) -> float:
    """Microseconds of one step."""
    value = problem.value_bytes
    total = 0.0
    clusters = chip.clusters(plan.blocks) * plan.resident
    waves = plan.launches
    if plan.mode != GRID:
        waves = -(-plan.groups // clusters)
    for into, out in problem.phases:
        k_blocks = into * plan.padded * value // 64
        tiles_n = plan.units // 8 * out
        mma = k_blocks * tiles_n * (plan.rows if problem.type == "float32" else _MMA_CYCLES)
        # Fewer than eight warps leave the tensor cores waiting for each other.
        mma *= max(1.0, 6 / (plan.warps_k * plan.warps_n))
        operand = plan.rows * into * plan.padded * value  # bytes of a tile
        reads = plan.warps_n * operand / _SHARED_BYTES
        sums = 2 * plan.warps_k * plan.rows * out * plan.units * 4 / _SHARED_BYTES
        point = 150.0 + 120.0 * -(-plan.rows * plan.units // 2 // plan.threads)
        if plan.mode == GRID:
            reads = plan.warps_n * operand / _STREAM_BYTES
        work = (max(mma, reads) + min(mma, reads) / 2 + sums + point) * _CYCLE
        if plan.mode == BLOCK:
            wait = 0.03
        elif plan.mode == CLUSTER:
            slow = 0.033 if plan.blocks <= 8 else 0.05
            wait = 0.26 + slow * operand / 1024
        else:
            wait = 0.9
        total += max(plan.tiles * work, work + wait)
    total += streamed * 512 * plan.tiles / _STREAM_BYTES * _CYCLE
    return total * waves
