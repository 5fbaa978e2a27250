"""The placements of the scan with one row per block (row.cu): pure arithmetic on sizes."""

from __future__ import annotations

from .cost_model import microseconds
from .placement import ROW, THREAD_REGISTERS, Chip, Placement, Scan, round_up

_AHEAD = 4  # steps that inputs are loaded in advance, as in row_layout.cuh
_MOST_THREADS = 1024


def row_placements(scan: Scan, chip: Chip) -> list[Placement]:
    """Every placement of this kind whose weight fits into the registers of a block."""
    return [placement for lanes in (1, 2, 4) if (placement := _placement(scan, chip, lanes))]


def shared_bytes(scan: Scan, padded: int) -> int:
    """Shared memory of a head; row_layout.cuh computes and asserts the same."""
    return 2 * 4 * padded * sum(phase.ins for phase in scan.phases)


def _placement(scan: Scan, chip: Chip, lanes: int) -> Placement | None:
    # Heads that a warp has room for share one.
    pack = max(1, min(scan.chains, 32 // (scan.hidden * lanes))) if scan.heads > 1 else 1
    threads = round_up(scan.hidden * lanes * pack, 32)
    padded = round_up(scan.hidden, 4 * lanes)
    if threads > _MOST_THREADS:
        return None
    products = [each for each in scan.phases if not each.reduces]
    weight = sum(each.ins * each.outs for each in products) * padded // lanes
    inputs = scan.gates + 4 if scan.backward else scan.gates
    busy = _AHEAD * (inputs + scan.optional // 4) + scan.optional + (64 if scan.backward else 48)
    registers = min(THREAD_REGISTERS, 65536 // threads // 8 * 8) - weight - busy
    if registers < 0:
        return None
    none = (0,) * len(scan.phases)
    placement = Placement(
        mode=ROW,
        blocks=1,
        units=threads // lanes,
        padded=padded,
        rows=1,
        tiles=1,
        groups=scan.batch * -(-scan.chains // pack),
        launches=1,
        warps_k=1,
        warps_n=threads // 32,
        chunk=lanes,
        held=none,
        stored=none,
        shared=shared_bytes(scan, padded) * pack,
        resident=1,
        spare=registers,
        microseconds=0.0,
        pack=pack,
    )
    return placement._replace(microseconds=microseconds(scan, chip, placement))
