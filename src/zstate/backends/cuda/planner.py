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
        return max(1, self.multiprocessors // blocks - (1 if blocks > 4 else 3 if blocks > 1 else 0))


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
    chunk: int  # k-blocks of the operand that are loaded together
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
        for chunk in (4, 8)
        if (
            plan := _plan(
                problem, chip, mode, blocks, units, padded, tiles, warps, resident, chunk
            )
        )
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
    if warps_k > 1 or problem.type == "float32":
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
    chunk: int,
) -> Plan | None:
    warps_k, warps_n = warps
    rows = TILE
    while rows // 2 >= problem.batch and rows > 1:
        rows //= 2
    threads = 32 * warps_k * warps_n
    per_thread = -(-rows * units // 2 // threads)
    if warps_k == 1:
        per_thread = units // 8 // warps_n * (2 if rows > 8 else 1)
    if per_thread > 8:
        return None
    gate_k = padded * problem.value_bytes // 64
    phases = problem.phases
    deep = [-(-into * gate_k // warps_k) for into, _ in phases]  # k-blocks a warp
    wide = [units // 8 // warps_n * out for _, out in phases]  # column tiles a warp
    if chunk > 4 and max(deep) <= 4:
        return None
    loaded = max(min(chunk, depth) for depth in deep)
    # Accumulators, loaded operands, inputs and sums of the cell, addresses: an estimate.
    inputs = per_thread * (6 * problem.gates if problem.backward else 2 * problem.gates + 4)
    busy = 4 * max(wide) + 8 * loaded + inputs + (64 if problem.backward else 56)
    if problem.type == "float32":
        busy = (rows + 4) * max(wide) + 4 * rows + inputs + (64 if problem.backward else 56)
    registers = min(THREAD_REGISTERS, 65536 // threads // resident) - busy
    fixed = shared_bytes(
        problem, mode, units, padded, rows, tiles, warps_k, warps_n, (0,) * len(phases)
    )
    room = chip.shared_bytes // resident - 1024 * (resident - 1) - fixed
    if room < 0 or registers < 0:
        return None
    if problem.type == "float32":
        registers = 0  # its loop over K is not unrolled
    slices = [warps_k * warps_n * width * 512 for width in wide]
    held, stored = _spread(deep, wide, slices, registers, room, chunk)
    streamed = _streamed(deep, wide, held, stored)
    if streamed and problem.type != "float32":
        # What comes from L2 passes through two buffers, in registers too.
        registers -= 8 * max(wide)
        if registers < 0 or chunk % 2:
            return None
        held, stored = _spread(deep, wide, slices, registers, room, chunk)
        streamed = _streamed(deep, wide, held, stored)
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
        chunk,
        tuple(held),
        tuple(stored),
        shared_bytes(
            problem, mode, units, padded, rows, tiles, warps_k, warps_n, tuple(stored)
        ),
        resident,
        0.0,
    )
    return plan._replace(microseconds=_model(problem, chip, plan, streamed * warps_k * warps_n))


def _spread(
    deep: list[int], wide: list[int], slices: list[int], registers: int, room: int, chunk: int
) -> tuple[list[int], list[int]]:
    """K-blocks a warp in registers and in shared memory, by phase: registers first."""
    held, stored = [], []
    for depth, width, slice_bytes in zip(deep, wide, slices, strict=True):
        count = max(0, min(depth, chunk, registers // (4 * width)))
        held.append(count)
        registers -= count * 4 * width
        count = max(0, min(depth - count, room // slice_bytes))
        stored.append(count)
        room -= count * slice_bytes
    return held, stored


def _streamed(deep: list[int], wide: list[int], held: list[int], stored: list[int]) -> int:
    """Column tiles times k-blocks that a warp reads from L2 at every step."""
    return sum(
        (depth - kept - count) * width
        for depth, width, kept, count in zip(deep, wide, held, stored, strict=True)
    )


class _Costs(NamedTuple):
    """Microseconds, fitted to a thousand plans timed on an H200 (half of them within 13%)."""

    tile: float  # a product of one tile, whatever its size
    mma: float  # a cycle of the tensor cores
    stored: float  # 128 bytes of weight from shared memory
    read: float  # 128 bytes of operand from shared memory
    point: float  # a round of the cell's equations, times the gates and two
    total: float  # adding up what one warp has left
    wait: float  # the way of an exchange
    operand: float  # a kilobyte of the operand
    gather: float  # a megabyte gathered by all blocks
    block: float  # 32 blocks that exchange
    crowd: float  # eight more warps than eight
    backward: float
    few: float  # too few warps


_COSTS = {
    BLOCK: _Costs(0.121, 5.4e-4, 2.5e-4, 9.6e-4, 0.009, 0, 0, 0.053, 0, 0, 0.12, 0.5, 0.68),
    CLUSTER: _Costs(0, 5.4e-4, 1.6e-4, 0, 0.046, 0.0015, 0.15, 0.036, 0, 0.23, 0.033, 0.24, 0.06),
    GRID: _Costs(0.09, 1.22e-3, 0, 0, 0.055, 0, 0.4, 0.0096, 0.0125, 0.056, 0.05, 0.26, 0.064),
}
_STREAM = 2.0e-5  # a byte of weight from L2, all multiprocessors reading


def _model(problem: Problem, chip: Chip, plan: Plan, streamed: int) -> float:
    """Microseconds of one step."""
    cost = _COSTS[plan.mode]
    warps = plan.warps_k * plan.warps_n
    waves = plan.launches
    if plan.mode != GRID:
        waves = -(-plan.groups // (chip.clusters(plan.blocks) * plan.resident))
    total, fixed = 0.0, 0.0
    for k, (into, out) in enumerate(problem.phases):
        k_blocks = into * plan.padded * problem.value_bytes // 64
        deep = -(-k_blocks // plan.warps_k)
        wide = plan.units // 8 // plan.warps_n * out
        cycles = -(-warps // 4) * deep * wide * 16  # of each of the four tensor cores
        if problem.type == "float32":
            cycles *= plan.rows // 4 + 1
        cycles = max(cycles, deep * 66)  # one waits for the other
        operand = plan.rows * k_blocks * 64 / 1024
        pairs = plan.rows * plan.units // 2
        if plan.warps_k > 1:
            rounds = -(-pairs // plan.threads) * -(-min(warps, -(-pairs // 32)) // 4)
        else:
            rounds = plan.units // 8 // plan.warps_n * (2 if plan.rows > 8 else 1) * -(-warps // 4)
        total += cost.tile + cost.mma * cycles
        total += cost.stored * plan.stored[k] * wide * warps * 4
        total += cost.read * plan.warps_n * operand * 8
        total += cost.point * rounds * (2 + problem.gates)
        total += cost.total * plan.warps_k * out * rounds
        total += cost.operand * operand
        total += cost.gather * operand * plan.blocks * plan.groups / 1000
        total += cost.block * plan.blocks / 32 + cost.few * max(0, 4 - warps) / 4
        fixed += cost.wait
    total += cost.crowd * max(0, warps - 8) / 8 + cost.backward * problem.backward
    total += _STREAM * streamed * 512
    return (total * plan.tiles + fixed) * waves
