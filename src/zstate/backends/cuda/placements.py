"""The placements of a scan that a chip could hold: pure arithmetic on sizes, no GPU needed.

``placements`` lists them, best first by a model of the time of one step (cost_model.py). The
engine takes the first one that the driver accepts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

from .cost_model import microseconds, step_microseconds, streamed_microseconds
from .placement import (
    BLOCK,
    CLUSTER,
    GRID,
    MOST_TILES,
    STEPS,
    THREAD_REGISTERS,
    TILE,
    WIDE,
    Chip,
    Placement,
    Scan,
    is_direct,
    operand_bytes,
    round_up,
    streamed,
    warp_parts,
)
from .row_placements import row_placements
from .streamed import can_stream, gains_by_streaming, product_of
from .wide_placements import wide_placements

SMALL_BATCH = 32  # may be split into groups of few rows


def placements(scan: Scan, chip: Chip, in_steps: bool = False) -> list[Placement]:
    """Every placement that this chip could hold, best first; single steps only where allowed."""
    return list(_ranked(scan, chip, in_steps))


# A new call asks twice: whether there is a placement at all, and which. An answer takes 10 ms.
@lru_cache(maxsize=64)
def _ranked(scan: Scan, chip: Chip, in_steps: bool) -> tuple[Placement, ...]:
    possible = _placements(scan, chip, False) or _placements(scan, chip, True)
    # What holds nothing in registers is never best, but may be all that fits.
    holding = [placement for placement in possible if any(placement.held) or scan.type == "float32"]
    reduces = any(phase.reduces for phase in scan.phases)
    in_steps = in_steps and scan.type != "float32" and not reduces
    single = _single_steps(scan, chip) if in_steps else []
    every = [*(holding or possible), *wide_placements(scan, chip), *row_placements(scan, chip)]
    every += single
    return tuple(sorted(every, key=lambda placement: _by_time(scan, placement)))


def _by_time(scan: Scan, placement: Placement) -> float:
    """The model's time, corrected where it was seen to be wrong on an H200.

    Where estimates tie, neither single steps nor warp groups are chosen.
    """
    mode, halves = placement.mode, scan.value_bytes == 2
    factor = 1.005 if mode in (STEPS, WIDE) else 1.0
    if mode == WIDE and scan.backward:
        large = scan.batch >= 512 or (scan.batch >= 128 and scan.hidden >= 1024)
        factor = (1.17 if large else 1.035) if halves else (1.2 if scan.hidden <= 256 else 1.1)
    elif mode == WIDE and halves:
        factor = 1.085 if scan.gates == 3 else 1.1
    if mode == STEPS and scan.type == "tf32" and scan.backward and scan.batch <= 32:
        factor = 1.2
    if mode == GRID and scan.type == "tf32" and scan.gates > 1 and placement.tiles >= 4:
        factor = 1.25
    return placement.microseconds * factor


def _single_steps(scan: Scan, chip: Chip) -> list[Placement]:
    """The blocks of a step's launches: a warp has one row or two, and 64 units.

    Two rows are faster backward, where a thread waits for more, as soon as there is much work. The
    other number is no faster, but a test may choose it.
    """
    warps, units = 8, 64
    blocks, none = -(-scan.hidden // units), (0,) * len(scan.phases)
    time = step_microseconds(scan, chip)
    found = [
        Placement(
            mode=STEPS,
            blocks=blocks,
            units=units,
            padded=blocks * units,
            rows=rows,
            tiles=1,
            groups=-(-scan.batch // rows) * scan.chains,
            launches=1,
            warps_k=warps,
            warps_n=1,
            chunk=0,
            held=none,
            stored=none,
            shared=0,
            resident=2,
            spare=THREAD_REGISTERS,
            microseconds=time,
            pieces=_pieces(scan, chip),
        )
        for rows in (warps, 2 * warps)
    ]
    few = found[0].groups * blocks <= 4 * chip.multiprocessors
    found = found if few or not scan.backward else found[::-1]
    if not can_stream(scan, chip):
        return found
    split = tuple(product_of(scan, phase).shares(chip).pieces for phase in scan.phases)
    # Smaller weights are never streamed, but a test may choose to.
    time = streamed_microseconds(scan, chip) if gains_by_streaming(scan, chip) else math.inf
    return [each._replace(split=split, microseconds=time) for each in found] + found


def _pieces(scan: Scan, chip: Chip) -> int:
    """Into how many pieces K of the gradient's product is split.

    It has few results, of many terms each: tiles of 128 by 128 leave multiprocessors idle. Measured
    on an H200: up to a third less time, as long as three quarters of them have a tile (half in
    TF32).
    """
    side, terms = 128, [phase.ins * scan.hidden for phase in scan.phases if phase.ins > 1]
    tiles = -(-scan.batch // side) * -(-scan.hidden // side)
    room = chip.multiprocessors * (3 if scan.value_bytes == 2 else 2) // 4
    if scan.heads > 1:
        return 1  # heads are multiplied at once
    fitting = (n for n in (4, 2) if n * tiles <= room and all(k % (8 * n) == 0 for k in terms))
    return next(fitting, 1) if terms else 1


def _placements(scan: Scan, chip: Chip, every: bool) -> list[Placement]:
    """Placements with the numbers of warps that are worth a try, or with every number."""
    return [
        placement
        for mode, blocks, units, padded in _shapes(scan, chip)
        for rows in _row_counts(scan, chip, mode, blocks)
        for tiles in _tile_counts(scan, chip, mode, blocks, rows)
        for warps in _warps(units, every or rows <= 8, every)
        for resident in ((1, 2) if mode == CLUSTER else (1,))
        for chunk in (4, 8)
        if (
            placement := _placement(
                scan, chip, mode, blocks, units, padded, rows, tiles, warps, resident, chunk
            )
        )
    ]


def _shapes(scan: Scan, chip: Chip) -> Iterator[tuple[int, int, int, int]]:
    """Mode, blocks of a group, units of a block, padded H."""
    block_k = 64 // scan.value_bytes
    if scan.hidden <= 1024:
        padded = round_up(scan.hidden, block_k)
        yield BLOCK, 1, padded, padded
    if chip.has_clusters:
        for blocks in (2, 4, 8, 16):
            padded = round_up(scan.hidden, max(8 * blocks, block_k))
            if padded - scan.hidden < max(padded // blocks, block_k):
                yield CLUSTER, blocks, padded // blocks, padded
    for units in (8, 16, 24, 32, 48, 64, 96, 128, 256, 512):
        # The least common multiple of units and a k-block.
        step = units if units % block_k == 0 else units * 2 if units % 16 == 8 else units
        while step % block_k:
            step += units
        padded = round_up(scan.hidden, step)
        blocks = padded // units
        if blocks > 1 and blocks * scan.chains <= chip.multiprocessors:
            yield GRID, blocks, units, padded


def _row_counts(scan: Scan, chip: Chip, mode: int, blocks: int) -> list[int]:
    """Rows of a tile: as many as a matrix instruction takes or the batch has, fewer, or more."""
    most = min(TILE, 1 << (scan.batch - 1).bit_length())
    counts = [most]
    # One gate in one block: here eight rows take no longer than one (measured: 5 to 20% less).
    is_slight = mode == BLOCK and scan.gates == 1 and scan.batch <= 8 and scan.value_bytes == 2
    if mode != GRID and scan.batch <= SMALL_BATCH and not is_slight:
        # A step of few rows is shorter. It pays as long as all groups find room at once.
        at_once = chip.clusters(blocks) // scan.chains
        counts += [n for n in (1, 2, 4, 8) if n < most and scan.batch <= n * at_once]
    # Two matrix instructions per weight pay where the weight is wide.
    return [*counts, 2 * TILE] if scan.batch > TILE and scan.type == "tf32" else counts


def _tile_counts(scan: Scan, chip: Chip, mode: int, blocks: int, rows: int) -> list[int]:
    total = -(-scan.batch // rows)
    if mode == GRID:
        at_once = chip.multiprocessors // (blocks * scan.chains)
        tiles = min(MOST_TILES, -(-total // at_once))
        # With fewer there are several launches: slower, but it fits where the state would not.
        return sorted({min(tiles, count) for count in (1, 4, MOST_TILES)})
    # Groups of few rows are independent: several of them in one block would undo the split.
    counts = (1,) if rows < min(TILE, scan.batch) else (1, 2, 4, 8)
    return sorted({min(count, total) for count in counts})


def _warps(units: int, single: bool, many: bool) -> Iterator[tuple[int, int]]:
    """Over K and over the units.

    One warp over K pays where its sums can stay in registers; sixteen have few registers each.
    """
    for count in (2, 3, 4, 6, 8, 12, *((16,) if many else ())):
        for warps_n in (1, 2, 3, 4, 6, 8, 16):
            warps_k = count // warps_n
            if count % warps_n == 0 and (units // 8) % warps_n == 0 and (single or warps_k > 1):
                yield warps_k, warps_n


def shared_bytes(
    scan: Scan,
    mode: int,
    units: int,
    padded: int,
    rows: int,
    tiles: int,
    warps_k: int,
    warps_n: int,
    stored: tuple[int, ...],
) -> int:
    """Shared memory of a block; specialisation.cuh computes and asserts the same."""
    phases = scan.phases
    state_stride = tiles * rows * units // 2
    columns = max(phase.outs for phase in phases if not phase.reduces) * units
    sum_stride = (columns // 8 | 1) * 8
    total = round_up(len(phases) * tiles * 2 * 8, 128)
    total += round_up(scan.states * state_stride * 8, 128)
    if not is_direct(scan, rows, warps_k):
        size = rows * sum_stride
        if rows > 8 and scan.type != "float32":
            size += 16 * (rows // 8 - 1)
        total += round_up(2 * warps_k * size * 4, 128)
    total += round_up(2 * rows * max(len(phase.variances) for phase in phases) * 4, 128)
    if mode != GRID:
        for phase in phases:
            total += 2 * tiles * operand_bytes(scan, phase, units, padded, rows, warps_k)
    total = round_up(total, 128)
    for phase, blocks in zip(phases, stored, strict=True):
        total += warps_k * warps_n * blocks * (units // 8 // warps_n * phase.outs) * 512
    return total


def _placement(
    scan: Scan,
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
) -> Placement | None:
    warps_k, warps_n = warps
    threads = 32 * warps_k * warps_n
    per_thread = -(-rows * units // 2 // threads)
    if is_direct(scan, rows, warps_k):
        per_thread = units // 8 // warps_n
    if per_thread > 8:
        return None
    phases = scan.phases
    deep, wide = warp_parts(scan, padded, units, warps_k, warps_n)
    if chunk > 4 and max(deep) <= 4:
        return None
    loaded = max(min(chunk, depth) for depth in deep)
    # Accumulators, loaded operands, inputs and sums of the cell, addresses: an estimate.
    inputs = per_thread * (6 * scan.gates if scan.backward else 2 * scan.gates + 4)
    inputs += per_thread * scan.optional
    bands = max(TILE, rows) // TILE
    busy = bands * (4 * max(wide) + 8 * loaded) + inputs + (64 if scan.backward else 56)
    if scan.type == "float32":
        busy = (rows + 4) * max(wide) + 4 * rows + inputs + (64 if scan.backward else 56)
    registers = min(THREAD_REGISTERS, 65536 // threads // resident) - busy
    fixed = shared_bytes(
        scan, mode, units, padded, rows, tiles, warps_k, warps_n, (0,) * len(phases)
    )
    room = chip.shared_bytes // resident - 1024 * (resident - 1) - fixed
    if room < 0 or registers < 0:
        return None
    if scan.type == "float32":
        registers = 0  # its loop over K is not unrolled
    slices = [warps_k * warps_n * width * 512 for width in wide]
    held, stored = _spread(deep, wide, slices, registers, room, chunk)
    from_l2 = streamed(deep, wide, held, stored)
    if from_l2 and scan.type != "float32":
        # What comes from L2 passes through two buffers, in registers too.
        registers -= 8 * max(wide)
        if registers < 0 or chunk % 2:
            return None
        held, stored = _spread(deep, wide, slices, registers, room, chunk)
        from_l2 = streamed(deep, wide, held, stored)
    if mode != GRID and from_l2:
        return None  # a cluster that does not hold its weight has nothing over the whole grid
    left = registers - sum(4 * count * width for count, width in zip(held, wide, strict=True))
    total_tiles = -(-scan.batch // rows)
    all_groups = -(-total_tiles // tiles)  # of one chain
    launches, groups = 1, all_groups * scan.chains
    if mode == GRID:
        at_once = chip.multiprocessors // (blocks * scan.chains)
        launches = -(-all_groups // at_once)
        groups = min(all_groups, at_once) * scan.chains
    elif resident > 1 and groups <= chip.clusters(blocks):
        return None  # each can have a multiprocessor for itself
    placement = Placement(
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
        shared_bytes(scan, mode, units, padded, rows, tiles, warps_k, warps_n, tuple(stored)),
        resident,
        left,
        0.0,
    )
    return placement._replace(microseconds=microseconds(scan, chip, placement))


def _spread(
    deep: list[int], wide: list[int], slices: list[int], registers: int, room: int, chunk: int
) -> tuple[list[int], list[int]]:
    """K-blocks per warp in registers and in shared memory, by phase: registers first."""
    held, stored = [], []
    for depth, width, slice_bytes in zip(deep, wide, slices, strict=True):
        if not depth:  # a reduction
            held.append(0)
            stored.append(0)
            continue
        count = max(0, min(depth, chunk, registers // (4 * width)))
        held.append(count)
        registers -= count * 4 * width
        count = max(0, min(depth - count, room // slice_bytes))
        stored.append(count)
        room -= count * slice_bytes
    return held, stored
