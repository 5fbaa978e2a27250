"""Which way a scan takes over the chip: pure arithmetic on sizes, no GPU needed.

A group of blocks shares the recurrent weight of one direction and serves ``tiles`` tiles of up
to 32 rows; groups are independent. Its blocks exchange the operand of every product

- inside one block, through shared memory (small H),
- inside a cluster, through distributed shared memory (Hopper and newer),
- over the whole grid, through L2, all blocks resident at once (large H, older chips).

``plans`` lists what is possible, best first by a model of the time of one step, whose constants
were measured on an H200. The engine takes the first one that the driver agrees to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

BLOCK, CLUSTER, GRID = 0, 1, 2
TILE = 16  # rows of one matrix instruction: the least that a tile has
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
        return max(
            1, self.multiprocessors // blocks - (1 if blocks > 4 else 3 if blocks > 1 else 0)
        )


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
    optional: int = 0  # registers that the options of a call take for each pair of units

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
    rows: int  # of a tile; for a small batch only as many of the 16 as are there at all
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
    spare: int  # registers of a thread that are left, by estimate
    microseconds: float  # of a step, by the model

    @property
    def threads(self) -> int:
        return 32 * self.warps_k * self.warps_n

    @property
    def tile_rows(self) -> int:
        return max(TILE, self.rows)

    @property
    def may_spill(self) -> bool:
        """Whether the compiler may run out of registers; the estimate of their number is rough."""
        return self.spare < 56

    def tile_groups(self, batch: int) -> int:
        """Groups of one direction, over all launches."""
        return -(-batch // (self.tile_rows * self.tiles))


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def plans(problem: Problem, chip: Chip) -> list[Plan]:
    """Every plan that this chip could hold, best first."""
    found = _plans(problem, chip, False) or _plans(problem, chip, True)
    # What holds nothing in registers is never best, but may be all that fits.
    holding = [plan for plan in found if any(plan.held) or problem.type == "float32"]
    return sorted(holding or found, key=lambda plan: plan.microseconds)


def _plans(problem: Problem, chip: Chip, every: bool) -> list[Plan]:
    """Plans with the numbers of warps that are worth a try, or with every number."""
    return [
        plan
        for mode, blocks, units, padded in _shapes(problem, chip)
        for rows in _row_counts(problem)
        for tiles in _tile_counts(problem, chip, mode, blocks, rows)
        for warps in _warps(units, every or rows <= 8, every)
        for resident in ((1, 2) if mode == CLUSTER else (1,))
        for chunk in (4, 8)
        if (
            plan := _plan(
                problem, chip, mode, blocks, units, padded, rows, tiles, warps, resident, chunk
            )
        )
    ]


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
        if blocks > 1 and blocks * problem.directions <= chip.multiprocessors:
            yield GRID, blocks, units, padded


def _row_counts(problem: Problem) -> list[int]:
    rows = TILE
    while rows // 2 >= problem.batch and rows > 1:
        rows //= 2
    # Two matrix instructions a weight pay where the weight is wide.
    return [rows, 2 * TILE] if problem.batch > TILE and problem.type == "tf32" else [rows]


def _tile_counts(problem: Problem, chip: Chip, mode: int, blocks: int, rows: int) -> list[int]:
    total = -(-problem.batch // max(TILE, rows))
    if mode == GRID:
        at_once = chip.multiprocessors // (blocks * problem.directions)
        tiles = min(MOST_TILES, -(-total // at_once))
        # With fewer there are several launches: slower, but it fits where the state would not.
        return sorted({min(tiles, count) for count in (1, 4, MOST_TILES)})
    return sorted({min(count, total) for count in (1, 2, 4, 8)})


def _warps(units: int, single: bool, many: bool) -> Iterator[tuple[int, int]]:
    """Over K and over the units.

    One warp over K pays where its sums can stay in registers; sixteen have few registers each.
    """
    for count in (2, 3, 4, 6, 8, 12, *((16,) if many else ())):
        for warps_n in (1, 2, 3, 4, 6, 8, 16):
            warps_k = count // warps_n
            if count % warps_n == 0 and (units // 8) % warps_n == 0 and (single or warps_k > 1):
                yield warps_k, warps_n


def is_direct(problem: Problem, rows: int, warps_k: int) -> bool:
    """Whether a warp keeps its sums in registers: it has all of K, and up to eight rows."""
    return warps_k == 1 and rows <= 8 and problem.type != "float32"


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
    state_stride = tiles * rows * units // 2
    columns = max(out for _, out in phases) * units
    sum_stride = (columns // 8 | 1) * 8
    total = round_up(len(phases) * tiles * 2 * 8, 128)
    total += round_up(problem.states * state_stride * 8, 128)
    if not is_direct(problem, rows, warps_k):
        size = rows * sum_stride
        if rows > 8 and problem.type != "float32":
            size += 16 * (rows // 8 - 1)
        total += round_up(2 * warps_k * size * 4, 128)
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
    rows: int,
    tiles: int,
    warps: tuple[int, int],
    resident: int,
    chunk: int,
) -> Plan | None:
    warps_k, warps_n = warps
    threads = 32 * warps_k * warps_n
    per_thread = -(-rows * units // 2 // threads)
    if is_direct(problem, rows, warps_k):
        per_thread = units // 8 // warps_n
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
    inputs += per_thread * problem.optional
    bands = max(TILE, rows) // TILE
    busy = bands * (4 * max(wide) + 8 * loaded) + inputs + (64 if problem.backward else 56)
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
    left = registers - sum(4 * count * width for count, width in zip(held, wide, strict=True))
    total_tiles = -(-problem.batch // max(TILE, rows))
    all_groups = -(-total_tiles // tiles)  # of one direction
    launches, groups = 1, all_groups * problem.directions
    if mode == GRID:
        at_once = chip.multiprocessors // (blocks * problem.directions)
        launches = -(-all_groups // at_once)
        groups = min(all_groups, at_once) * problem.directions
    elif resident > 1 and groups <= chip.clusters(blocks):
        return None  # each can have a multiprocessor for itself
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
        shared_bytes(problem, mode, units, padded, rows, tiles, warps_k, warps_n, tuple(stored)),
        resident,
        left,
        0.0,
    )
    return plan._replace(microseconds=_model(problem, chip, plan))


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
    """Microseconds, fitted to 3,300 plans timed on an H200; half of them come out within 7%."""

    tile: float = 0.0  # a product of one tile, whatever its size
    mma: float = 0.0  # a cycle of the tensor cores
    mma_few: float = 0.0  # more of it, with four warps or fewer
    stored: float = 0.0  # 128 bytes of weight from shared memory
    read: float = 0.0  # 128 bytes of operand
    point: float = 0.0  # a round of the cell's equations, times the gates and two
    item: float = 0.0  # a pair of units of a thread, times the gates and two
    direct: float = 0.0  # more of it where sums stay in registers: short pieces of rows
    total: float = 0.0  # adding up what one warp has left
    warp: float = 0.0
    wait: float = 0.0  # the way of an exchange
    operand: float = 0.0  # a kilobyte of the operand
    crowd: float = 0.0  # more of it, with sixteen groups at once
    gather: float = 0.0  # a megabyte gathered by all blocks
    block: float = 0.0  # 32 blocks that exchange
    many: float = 0.0  # four more warps than twelve
    few: float = 0.0  # no warps for half of the schedulers
    backward: float = 0.0
    stream: float = 0.0  # a k-block of a warp that comes from L2
    deep: float = 0.0  # a k-block of a warp
    uneven: float = 0.0  # warps over K with more k-blocks than others
    tall: float = 0.0  # a column tile and k-block of a warp, with 32 rows
    pair: float = 0.0  # two blocks on one multiprocessor
    stream_byte: float = 0.0


_COSTS = {  # by way; whether there are up to eight rows; whether values have four bytes
    (BLOCK, False, False): _Costs(
        mma=0.00106,
        mma_few=0.000682,
        stored=0.000334,
        read=0.000622,
        item=0.0166,
        total=0.00521,
        warp=0.00764,
        operand=0.0309,
        gather=3.17,
        backward=0.0943,
        uneven=0.0144,
    ),
    (BLOCK, False, True): _Costs(
        mma=0.000104,
        mma_few=0.000525,
        stored=0.000652,
        read=0.0013,
        item=0.0298,
        total=0.0167,
        operand=0.0377,
        crowd=0.0203,
        backward=0.0634,
        uneven=0.00912,
    ),
    (BLOCK, True, False): _Costs(
        mma=0.000543,
        mma_few=2.74e-05,
        stored=0.000353,
        read=0.000638,
        item=0.0192,
        direct=0.00263,
        total=0.0107,
        warp=0.00383,
        wait=0.109,
        operand=0.0231,
        few=0.155,
        backward=0.0638,
        uneven=0.0516,
    ),
    (BLOCK, True, True): _Costs(
        tile=0.101,
        mma=0.000415,
        stored=0.0005,
        read=0.000523,
        point=0.0118,
        item=0.0321,
        total=0.0109,
        warp=0.00421,
        few=0.0268,
        backward=0.0511,
        uneven=0.0237,
    ),
    (CLUSTER, False, False): _Costs(
        stored=0.00114,
        read=0.000429,
        point=0.0138,
        item=0.0381,
        total=0.00364,
        warp=0.00944,
        operand=0.0444,
        block=0.159,
        few=0.196,
        backward=0.0435,
        uneven=0.0674,
        pair=0.42,
    ),
    (CLUSTER, False, True): _Costs(
        tile=0.0436,
        mma=0.000268,
        mma_few=4.32e-05,
        read=0.000533,
        point=0.0146,
        item=0.0337,
        total=0.00598,
        warp=0.00405,
        operand=0.0342,
        crowd=0.00163,
        block=0.0824,
        few=0.048,
        backward=0.0261,
        deep=0.00785,
        uneven=0.0281,
        pair=0.481,
    ),
    (CLUSTER, True, False): _Costs(
        tile=0.132,
        mma=0.000214,
        stored=0.000497,
        point=0.0354,
        total=0.00346,
        warp=0.00689,
        operand=0.0288,
        gather=0.271,
        backward=0.0983,
        deep=0.00611,
        uneven=0.0297,
    ),
    (CLUSTER, True, True): _Costs(
        mma=0.000203,
        mma_few=4.23e-05,
        stored=0.000538,
        item=0.0486,
        total=0.00359,
        warp=0.00462,
        wait=0.139,
        operand=0.067,
        gather=1.33,
        few=0.0198,
        backward=0.0495,
        deep=0.00816,
        uneven=0.0563,
    ),
    (GRID, False, False): _Costs(
        mma=0.000352,
        mma_few=0.000131,
        read=0.000281,
        point=0.0216,
        item=0.0185,
        total=0.00338,
        warp=0.0117,
        wait=0.291,
        operand=4.44e-05,
        crowd=0.0272,
        gather=0.0118,
        block=0.176,
        few=0.0806,
        backward=0.0614,
        stream=0.2,
        deep=0.0754,
        uneven=0.18,
        stream_byte=3.84e-06,
    ),
    (GRID, False, True): _Costs(
        mma=0.000436,
        mma_few=0.000566,
        read=0.000527,
        point=0.0621,
        total=0.00112,
        warp=0.0123,
        wait=0.324,
        crowd=0.0165,
        gather=0.0173,
        block=0.0832,
        few=0.0279,
        backward=0.0517,
        stream=0.202,
        deep=0.0567,
        uneven=0.13,
        tall=0.0026,
        stream_byte=1.13e-05,
    ),
    (GRID, True, False): _Costs(
        tile=0.367,
        mma=4.23e-05,
        mma_few=0.000217,
        stored=0.00156,
        item=0.015,
        total=0.0102,
        warp=0.0103,
        operand=0.00279,
        block=0.146,
        backward=0.0612,
        deep=0.0556,
        uneven=0.0647,
    ),
    (GRID, True, True): _Costs(
        tile=0.292,
        mma=0.000249,
        mma_few=0.0001,
        stored=0.00106,
        point=0.0602,
        total=0.000564,
        warp=0.0129,
        operand=0.00101,
        gather=0.116,
        block=0.0672,
        backward=0.0613,
        deep=0.0463,
        uneven=0.18,
    ),
}


_L2_BYTES = 4e7  # of the weight that stay in L2 from step to step
_MEMORY = 4e6  # bytes a microsecond from device memory


def _model(problem: Problem, chip: Chip, plan: Plan) -> float:
    """Microseconds of one step."""
    cost = _COSTS[plan.mode, plan.rows <= 8, problem.value_bytes == 4]
    warps = plan.warps_k * plan.warps_n
    rounds_of_warps = -(-warps // 4)
    waves = plan.launches
    if plan.mode != GRID:
        waves = -(-plan.groups // (chip.clusters(plan.blocks) * plan.resident))
    total, fixed = 0.0, 0.0
    for k, (into, out) in enumerate(problem.phases):
        k_blocks = into * plan.padded * problem.value_bytes // 64
        deep = -(-k_blocks // plan.warps_k)
        wide = plan.units // 8 // plan.warps_n * out
        # Of each of the four tensor cores; up to eight rows fill half an instruction.
        cycles = rounds_of_warps * deep * wide * (8 if plan.rows <= 8 else plan.rows)
        if problem.type == "float32":
            cycles *= 8 if plan.rows <= 8 else 4  # no tensor cores
        sums = -(-wide // 2) if plan.rows <= 8 else wide * plan.rows // TILE
        # Those on one sum wait for each other; few sums are split into two or four.
        cycles = max(cycles, deep * 66 // (1 if sums > 2 else 2 if sums == 2 else 4))
        operand = plan.rows * k_blocks * 64 / 1024
        pairs = plan.rows * plan.units // 2
        streamed = deep - plan.held[k] - plan.stored[k]
        if not is_direct(problem, plan.rows, plan.warps_k):
            items = -(-pairs // plan.threads)  # of a thread, one after the other
            rounds = items * -(-min(warps, -(-pairs // 32)) // 4)
        else:
            items = plan.units // 8 // plan.warps_n
            rounds = items * rounds_of_warps
        rounds *= 2 + problem.gates
        total += cost.tile + cycles * (cost.mma + (cost.mma_few if warps <= 4 else 0.0))
        total += cost.stored * plan.stored[k] * wide * warps * 4
        total += cost.read * plan.warps_n * operand * 8
        total += cost.point * rounds + cost.item * items * (2 + problem.gates)
        if is_direct(problem, plan.rows, plan.warps_k):
            total += cost.direct * rounds
        else:
            total += cost.total * plan.warps_k * out * rounds / (2 + problem.gates)
        total += cost.warp * warps
        total += cost.gather * operand * plan.blocks * plan.groups / 1000
        total += cost.few * max(0, 4 - warps) / 4
        total += streamed * (cost.stream + cost.stream_byte * wide * warps * 512)
        total += cost.deep * deep + (cost.uneven if k_blocks % plan.warps_k else 0.0)
        total += cost.tall * deep * wide if plan.rows > TILE else 0.0
        total += cost.pair * (plan.resident - 1)
        # The exchange of one tile passes while others are computed.
        fixed += cost.wait + cost.block * plan.blocks / 32
        fixed += operand * (cost.operand + cost.crowd * min(plan.groups, 16) / 16)
    everywhere = sum(
        (-(-into * plan.padded * problem.value_bytes // 64 // plan.warps_k) - held - stored)
        * (plan.units // 8 // plan.warps_n * out)
        for (into, out), held, stored in zip(problem.phases, plan.held, plan.stored, strict=True)
    )
    everywhere *= warps * 512 * plan.blocks * plan.groups
    total += max(0.0, everywhere - _L2_BYTES) / _MEMORY
    total += cost.many * max(0, warps - 12) / 4 + cost.backward * problem.backward
    return (total * plan.tiles + fixed) * waves
