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
    if not chip.has_warp_groups or len(scan.phases) > 1 or scan.type == "float32":
        return []
    if scan.batch <= TILE:
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
    for units in (8, 16, 24, 32, 40, 48, 64):
        groups_m = -(-scan.gates * units // 64)
        # Three warp groups leave each fewer registers, and were never faster than two.
        if groups_m > 2 or scan.gates * units < 0.6 * 64 * groups_m:
            continue
        yield units, groups_m, 2 if groups_m == 1 else 1, scan.gates if scan.backward else 1


def shared_bytes(scan: Scan, p: Placement) -> int:
    """Shared memory of a block; wide_layout.cuh computes and asserts the same."""
    splits = scan.backward and scan.gates > 1
    groups_m, groups_k = p.warps_n // 4, p.warps_k
    parts = [
        2 * (p.chunk + p.tiles) * 8,
        scan.states * p.tiles * p.rows * p.units // 2 * 8,
        groups_k * p.rows * (64 * groups_m + 4) * 4,
        p.tiles * p.rows * (scan.gates * p.units + 4) * 4 if splits else 0,
    ]
    total = sum(round_up(part, 1024) for part in parts)
    total += p.chunk * p.rows * 64 * p.pieces * groups_k
    return total + groups_m * groups_k * p.stored[0] * p.pieces * _PIECE_WEIGHT


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
    at_once = chip.clusters(cluster) * cluster // (blocks * scan.directions)
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
        WIDE,
        blocks,
        units,
        padded,
        rows,
        tiles,
        groups * scan.directions,
        launches,
        groups_k,
        4 * groups_m,
        0,
        (held,),
        (stages - held,),
        0,
        1,
        registers - held * _PIECE_REGISTERS * pieces,
        0.0,
        cluster,
        pieces,
    )
    room = chip.shared_bytes - shared_bytes(scan, placement) - 1024
    slots = min(_MOST_SLOTS, room // (rows * stage))
    if slots < _FEWEST_SLOTS:
        return None
    placement = placement._replace(chunk=slots)
    shared = shared_bytes(scan, placement)
    # What goes into registers passes through shared memory behind the state (Weight::load).
    begin = round_up(2 * (slots + tiles) * 8, 1024)
    begin += round_up(scan.states * tiles * rows * units // 2 * 8, 1024)
    if held and begin + groups_m * groups_k * pieces * _PIECE_WEIGHT > shared:
        return None
    return placement._replace(shared=shared, microseconds=microseconds(scan, chip, placement))
