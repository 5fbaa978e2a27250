"""The placements of the scan for many rows (wide.cu): pure arithmetic on sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from .cost_model import microseconds
from .placement import TILE, WIDE, WORKER_REGISTERS, Chip, Placement, Scan, round_up

_FEWEST_ROWS, _MOST_ROWS = 16, 128  # of a tile
_FEWEST_SLOTS, _MOST_SLOTS = 3, 8
_PIECE_WEIGHT = 4096  # bytes of a warp group's weight for one piece of K
_PIECE_REGISTERS = 8  # the same, of a thread


def wide_placements(scan: Scan, chip: Chip) -> list[Placement]:
    """Every placement of this kind that the chip could hold."""
    # One product, of one operand forward, and for one backward.
    one_product = len(scan.phases) == 1 and min(scan.phases[0].ins, scan.phases[0].outs) == 1
    if not (chip.has_warp_groups and one_product and scan.batch > TILE):
        return []
    if scan.type == "float32":
        return []
    return [
        placement
        for units, groups_m, groups_k, cluster in _shapes(scan)
        for pieces in (2, 4)
        for tiles in (1, 2, 3, 4, 6, 8, 12, 16)
        if (placement := _placement(scan, chip, units, groups_m, groups_k, cluster, tiles, pieces))
    ]


def _shapes(scan: Scan) -> Iterator[tuple[int, int, int, int]]:
    """Units of a block, warp groups over its columns and over K, blocks of a cluster."""
    (phase,) = scan.phases
    width = max(phase.ins, phase.outs)  # of gates
    for units in (8, 16, 24, 32, 40, 48, 64):
        groups_m = -(-width * units // 64)
        # Three warp groups leave each fewer registers, and were never faster than two.
        if groups_m > 2 or width * units < 0.6 * 64 * groups_m:
            continue
        yield units, groups_m, 2 if groups_m == 1 else 1, width if scan.backward else 1


def _parts(scan: Scan, p: Placement) -> list[int]:
    """Shared memory in front of the ring: barriers, state, sums, and sums that peers send."""
    columns = 64 * p.warps_n // 4
    parts = [
        2 * (p.chunk + p.tiles) * 8,
        scan.states * p.tiles * p.rows * p.units // 2 * 8,
        p.warps_k * p.rows * (columns + 4) * 4,
        p.tiles * p.rows * (p.cluster * p.units + 4) * 4 if p.cluster > 1 else 0,
    ]
    return [round_up(part, 1024) for part in parts]


def _weight(p: Placement, stages: int) -> int:
    """Bytes of all warp groups' weight for so many stages."""
    return p.warps_n // 4 * p.warps_k * stages * p.pieces * _PIECE_WEIGHT


def shared_bytes(scan: Scan, p: Placement) -> int:
    """Shared memory of a block; wide_layout.cuh computes and asserts the same."""
    ring = p.chunk * p.rows * 64 * p.pieces * p.warps_k
    return sum(_parts(scan, p)) + ring + _weight(p, p.stored[0])


def _placement(
    scan: Scan,
    chip: Chip,
    units: int,
    groups_m: int,
    groups_k: int,
    cluster: int,
    tiles: int,
    pieces: int,
) -> Placement | None:
    size, threads, stage = scan.value_bytes, 128 * groups_m * groups_k, 64 * pieces * groups_k
    padded = round_up(scan.hidden, math.lcm(units * cluster, stage // size))
    blocks = padded // units
    at_once = chip.clusters(cluster) * cluster // (blocks * scan.chains)
    if padded > 2 * scan.hidden or not at_once:
        return None
    rows = max(_FEWEST_ROWS, round_up(-(-scan.batch // (at_once * tiles)), 8))
    launches = 1
    if rows > _MOST_ROWS and tiles == 16:
        rows = _MOST_ROWS
        launches = -(-scan.batch // (at_once * tiles * rows))
    if rows > _MOST_ROWS or (tiles - 1) * rows >= scan.batch:
        return None
    groups = min(at_once, -(-scan.batch // (rows * tiles)))
    items = -(-rows * units // 2 // threads)
    words = size // 2
    inputs = (scan.gates + 4) * words + 2 * scan.gates if scan.backward else scan.gates * words
    busy = rows // 2 + items * (inputs + scan.optional) + 64
    registers = WORKER_REGISTERS - busy
    if items > 8 or registers < 0:
        return None
    stages = padded * size // stage
    held = min(stages, registers // (_PIECE_REGISTERS * pieces))
    placement = Placement(
        mode=WIDE,
        blocks=blocks,
        units=units,
        padded=padded,
        rows=rows,
        tiles=tiles,
        groups=groups * scan.chains,
        launches=launches,
        warps_k=groups_k,
        warps_n=4 * groups_m,
        chunk=0,
        held=(held,),
        stored=(stages - held,),
        shared=0,
        resident=1,
        spare=registers - held * _PIECE_REGISTERS * pieces,
        microseconds=0.0,
        cluster=cluster,
        pieces=pieces,
    )
    room = chip.shared_bytes - shared_bytes(scan, placement) - 1024
    slots = min(_MOST_SLOTS, room // (rows * stage))
    if slots < _FEWEST_SLOTS:
        return None
    placement = placement._replace(chunk=slots)
    shared = shared_bytes(scan, placement)
    # What goes into registers passes through shared memory behind the state (Weight::load).
    if held and sum(_parts(scan, placement)[:2]) + _weight(placement, 1) > shared:
        return None
    return placement._replace(shared=shared, microseconds=microseconds(scan, chip, placement))
