"""The time of one step of a scan, by a model that is linear in measured costs.

cost_model.json holds the costs by compute capability; a chip without its own takes those of the
H200. benchmarks/fit_cost_model.py measures placements on a GPU and fits them.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from .placement import (
    BLOCK,
    CLUSTER,
    GRID,
    TILE,
    Chip,
    Placement,
    Scan,
    is_direct,
    streamed,
    warp_parts,
)

MODES = {"block": BLOCK, "cluster": CLUSTER, "grid": GRID}
_H200 = "9.0"


class Costs(NamedTuple):
    """Microseconds. On an H200, fitted to 3,300 placements, half of which come out within 7%."""

    tile: float = 0.0  # a product of one tile, whatever its size
    mma: float = 0.0  # a cycle of the tensor cores
    mma_few: float = 0.0  # in addition, with four warps or fewer
    stored: float = 0.0  # 128 bytes of weight from shared memory
    read: float = 0.0  # 128 bytes of operand
    point: float = 0.0  # a round of the cell's equations, times the gates and two
    item: float = 0.0  # a pair of units of a thread, times the gates and two
    direct: float = 0.0  # in addition, where sums stay in registers: short pieces of rows
    total: float = 0.0  # adding one warp's partial sums
    warp: float = 0.0
    wait: float = 0.0  # the latency of an exchange
    operand: float = 0.0  # a kilobyte of the operand
    crowd: float = 0.0  # in addition, with sixteen groups at once
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


class StepCosts(NamedTuple):
    """Of a scan in single steps: microseconds, and work per microsecond."""

    product: float  # a product, whatever its size
    least_product: float
    flops: float
    flops_tf32: float
    cell: float  # a launch of the cell's part, whatever its size
    cell_bytes: float
    gap: float  # between the launches of a phase


class Group(NamedTuple):
    """Placements that share costs."""

    mode: int
    few_rows: bool  # up to eight
    value_bytes: int


class Model(NamedTuple):
    """The costs of one chip."""

    l2_bytes: float  # of the weight, that stay in L2 from step to step
    memory_bytes: float  # per microsecond, from device memory
    costs: dict[Group, Costs]
    steps: StepCosts


def read(entry: dict[str, Any]) -> Model:
    """An entry of cost_model.json."""
    return Model(
        entry["l2_bytes"],
        entry["memory_bytes_per_microsecond"],
        {
            Group(MODES[each["mode"]], each["rows"] == "up to 8", each["bytes"]): Costs(
                **each["costs"]
            )
            for each in entry["costs"]
        },
        StepCosts(**entry["steps"]),
    )


def written(device: str, model: Model) -> dict[str, Any]:
    """An entry of cost_model.json; costs of zero are left out."""
    names = {mode: name for name, mode in MODES.items()}
    return {
        "device": device,
        "l2_bytes": model.l2_bytes,
        "memory_bytes_per_microsecond": model.memory_bytes,
        "steps": model.steps._asdict(),
        "costs": [
            {
                "mode": names[group.mode],
                "rows": "up to 8" if group.few_rows else "more",
                "bytes": group.value_bytes,
                "costs": {name: cost for name, cost in costs._asdict().items() if cost},
            }
            for group, costs in model.costs.items()
        ],
    }


@cache
def model_of(capability: tuple[int, int]) -> Model:
    """The fit of such a chip, or of the H200."""
    entries = json.loads((files(__package__) / "cost_model.json").read_text("utf-8"))
    return read(entries.get("{}.{}".format(*capability), entries[_H200]))


def group_of(scan: Scan, placement: Placement) -> Group:
    return Group(placement.mode, placement.rows <= 8, scan.value_bytes)


def microseconds(scan: Scan, chip: Chip, placement: Placement, model: Model | None = None) -> float:
    """Microseconds of one step: a sum of costs, each times what the placement does of it."""
    model = model or model_of(chip.capability)
    cost = model.costs[group_of(scan, placement)]
    warps = placement.warps_k * placement.warps_n
    rounds_of_warps = -(-warps // 4)
    waves = placement.launches
    if placement.mode != GRID:
        waves = -(-placement.groups // (chip.clusters(placement.blocks) * placement.resident))
    total, fixed = 0.0, 0.0
    for k, (into, out, _) in enumerate(scan.phases):
        k_blocks = into * placement.padded * scan.value_bytes // 64
        deep = -(-k_blocks // placement.warps_k)
        wide = placement.units // 8 // placement.warps_n * out
        # Of each of the four tensor cores; up to eight rows fill half an instruction.
        cycles = rounds_of_warps * deep * wide * (8 if placement.rows <= 8 else placement.rows)
        if scan.type == "float32":
            cycles *= 8 if placement.rows <= 8 else 4  # no tensor cores
        sums = -(-wide // 2) if placement.rows <= 8 else wide * placement.rows // TILE
        # Those on one sum wait for each other; few sums are split into two or four.
        cycles = max(cycles, deep * 66 // (1 if sums > 2 else 2 if sums == 2 else 4))
        operand = placement.rows * k_blocks * 64 / 1024
        pairs = placement.rows * placement.units // 2
        from_l2 = deep - placement.held[k] - placement.stored[k]
        if not is_direct(scan, placement.rows, placement.warps_k):
            items = -(-pairs // placement.threads)  # of a thread, one after the other
            rounds = items * -(-min(warps, -(-pairs // 32)) // 4)
        else:
            items = placement.units // 8 // placement.warps_n
            rounds = items * rounds_of_warps
        rounds *= 2 + scan.gates
        total += cost.tile + cycles * (cost.mma + (cost.mma_few if warps <= 4 else 0.0))
        total += cost.stored * placement.stored[k] * wide * warps * 4
        total += cost.read * placement.warps_n * operand * 8
        total += cost.point * rounds + cost.item * items * (2 + scan.gates)
        if is_direct(scan, placement.rows, placement.warps_k):
            total += cost.direct * rounds
        else:
            total += cost.total * placement.warps_k * out * rounds / (2 + scan.gates)
        total += cost.warp * warps
        total += cost.gather * operand * placement.blocks * placement.groups / 1000
        total += cost.few * max(0, 4 - warps) / 4
        total += from_l2 * (cost.stream + cost.stream_byte * wide * warps * 512)
        total += cost.deep * deep + (cost.uneven if k_blocks % placement.warps_k else 0.0)
        total += cost.tall * deep * wide if placement.rows > TILE else 0.0
        total += cost.pair * (placement.resident - 1)
        # The exchange of one tile passes while others are computed.
        fixed += cost.wait + cost.block * placement.blocks / 32
        fixed += operand * (cost.operand + cost.crowd * min(placement.groups, 16) / 16)
    deep_wide = warp_parts(
        scan, placement.padded, placement.units, placement.warps_k, placement.warps_n
    )
    everywhere = streamed(*deep_wide, placement.held, placement.stored)
    everywhere *= warps * 512 * placement.blocks * placement.groups
    total += max(0.0, everywhere - model.l2_bytes) / model.memory_bytes
    total += cost.many * max(0, warps - 12) / 4 + cost.backward * scan.backward
    return (total * placement.tiles + fixed) * waves


def step_microseconds(scan: Scan, chip: Chip) -> float:
    """Microseconds of one step by a product of the library and a launch of the cell per phase."""
    cost = model_of(chip.capability).steps
    flops = cost.flops_tf32 if scan.type == "tf32" else cost.flops
    values = 5 + 2 * scan.gates if scan.backward else 2  # per unit of a row: read and written
    total = 0.0
    for into, out, _ in scan.phases:
        work = 2 * scan.batch * into * out * scan.hidden**2
        product = max(cost.least_product, cost.product + work / flops)
        total += scan.directions * product + cost.cell + cost.gap
        values += into + out if scan.backward else into + 3 * out
    kept = 8 * scan.states  # bytes, read and written
    units = scan.batch * scan.directions * scan.hidden
    return total + units * (values * scan.value_bytes + kept) / cost.cell_bytes
