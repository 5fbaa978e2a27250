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
    ROW,
    TILE,
    WIDE,
    Chip,
    Placement,
    Scan,
    is_direct,
    streamed,
    warp_parts,
)
from .streamed import gains_by_streaming, weight_bytes

MODES = {"block": BLOCK, "cluster": CLUSTER, "grid": GRID, "wide": WIDE, "row": ROW}
_H200 = "9.0"


class Costs(NamedTuple):
    """Microseconds. On an H200, fitted to 6,500 placements, half of which come out within 10%."""

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
    many: float = 0.0  # four more warps than twelve; in the scan for many rows, than four
    few: float = 0.0  # no warps for half of the schedulers
    backward: float = 0.0
    stream: float = 0.0  # a k-block of a warp that comes from L2
    deep: float = 0.0  # a k-block of a warp
    uneven: float = 0.0  # warps over K with more k-blocks than others
    tall: float = 0.0  # a column tile and k-block of a warp, with 32 rows
    pair: float = 0.0  # two blocks on one multiprocessor
    stream_byte: float = 0.0
    stage: float = 0.0  # of the ring, in the scan for many rows
    send: float = 0.0  # a kilobyte of sums that peers exchange
    wait_two: float = 0.0  # as wait, where there are two tiles
    point_back: float = 0.0  # as point, in addition backward, with one row per block
    reduction: float = 0.0  # means and variances, in addition to a phase without a product
    reduced_row: float = 0.0  # a row that a warp reduces


class StepCosts(NamedTuple):
    """Microseconds of a scan in single steps, graphed: of one phase of a step."""

    phase: float = 0.0  # the launches and what lies between them
    direction: float = 0.0  # one more product
    work: float = 0.0  # a million operations of the product
    weight: float = 0.0  # a megabyte of the weight
    cell: float = 0.0  # a megabyte that the cell's launch reads or writes


class StreamedStep(NamedTuple):
    """Of one phase of a step whose product reads the weight once: microseconds, and bytes per
    microsecond."""

    phase: float
    memory: float


class StreamedCosts(NamedTuple):
    """Of scans that streamed.py can serve, whose weight is far larger than L2: by its products and
    by the other ways."""

    l2_bytes: float  # of the weight, that stay in L2 from step to step of a grid
    grid: float  # bytes per microsecond, of what the blocks of a grid stream
    library: float  # bytes per microsecond, at most, of a product of the library
    forward: StreamedStep
    backward: StreamedStep


class Group(NamedTuple):
    """Placements that share costs."""

    mode: int
    few_rows: bool  # up to eight
    value_bytes: int


class Model(NamedTuple):
    """The costs of one chip."""

    l2_bytes: float  # of the weight, that stay in L2 from step to step
    memory_bytes: float  # per microsecond, of what the blocks of a grid stream
    costs: dict[Group, Costs]
    steps: dict[tuple[int, bool], StepCosts]  # by bytes of a value, and whether backward
    streamed: StreamedCosts


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
        {(each["bytes"], each["backward"]): StepCosts(**each["costs"]) for each in entry["steps"]},
        streamed_costs(**entry["streamed"]),
    )


def streamed_costs(
    forward: dict[str, float], backward: dict[str, float], **others: float
) -> StreamedCosts:
    """From an entry of cost_model.json."""
    steps = StreamedStep(**forward), StreamedStep(**backward)
    return StreamedCosts(**others, forward=steps[0], backward=steps[1])


def written(device: str, model: Model) -> dict[str, Any]:
    """An entry of cost_model.json; costs of zero are left out."""
    names = {mode: name for name, mode in MODES.items()}
    return {
        "device": device,
        "l2_bytes": model.l2_bytes,
        "memory_bytes_per_microsecond": model.memory_bytes,
        "steps": [
            {"bytes": size, "backward": backward, "costs": costs._asdict()}
            for (size, backward), costs in model.steps.items()
        ],
        "streamed": {
            name: value._asdict() if isinstance(value, StreamedStep) else value
            for name, value in model.streamed._asdict().items()
        },
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
    if placement.mode == WIDE:
        return wide_microseconds(scan, placement, cost)
    if placement.mode == ROW:
        return row_microseconds(scan, chip, placement, cost)
    warps = placement.warps_k * placement.warps_n
    rounds_of_warps = -(-warps // 4)
    waves = placement.launches
    if placement.mode != GRID:
        waves = -(-placement.groups // (chip.clusters(placement.blocks) * placement.resident))
    total, fixed = 0.0, 0.0
    for k, phase in enumerate(scan.phases):
        into, out = (0, 0) if phase.reduces else (phase.ins, phase.outs)
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
        if phase.reduces:
            total += cost.reduction + cost.reduced_row * -(-placement.rows // warps)
    deep_wide = warp_parts(
        scan, placement.padded, placement.units, placement.warps_k, placement.warps_n
    )
    everywhere = streamed(*deep_wide, placement.held, placement.stored)
    everywhere *= warps * 512 * placement.blocks * placement.groups
    kept, rate = model.l2_bytes, model.memory_bytes
    if gains_by_streaming(scan, chip):
        kept, rate = model.streamed.l2_bytes, model.streamed.grid
    total += max(0.0, everywhere - kept) / rate
    total += cost.many * max(0, warps - 12) / 4 + cost.backward * scan.backward
    return (total * placement.tiles + fixed) * waves


def step_microseconds(scan: Scan, chip: Chip) -> float:
    """Microseconds of one step by a product of the library and a launch of the cell per phase."""
    model = model_of(chip.capability)
    cost = model.steps[scan.value_bytes, scan.backward]
    values = 5 + 2 * scan.gates if scan.backward else 2  # per unit of a row: read and written
    weight = work = 0.0
    for into, out in ((phase.ins, phase.outs) for phase in scan.phases):
        weight += scan.chains * into * out * scan.hidden**2
        work += 2 * scan.batch * scan.chains * into * out * scan.hidden**2
        values += into + out if scan.backward else into + 2 * out
    moved = scan.batch * scan.chains * scan.hidden
    moved *= values * scan.value_bytes + 8 * scan.states
    launches = len(scan.phases) * (cost.phase + cost.direction * (scan.chains - 1))
    size = weight * scan.value_bytes
    products = (cost.work * work + cost.weight * size) / 1e6
    if gains_by_streaming(scan, chip):
        products = max(products, size / model.streamed.library)
    return launches + products + cost.cell * moved / 1e6


def streamed_microseconds(scan: Scan, chip: Chip) -> float:
    """Microseconds of one step by products that read the weight once, and a launch of the cell per
    phase."""
    costs = model_of(chip.capability).streamed
    cost = costs.backward if scan.backward else costs.forward
    return len(scan.phases) * cost.phase + weight_bytes(scan) / cost.memory


def wide_microseconds(scan: Scan, placement: Placement, cost: Costs) -> float:
    """Microseconds of one step of the scan for many rows."""
    groups_m = placement.warps_n // 4
    k_bytes, rows = placement.padded * scan.value_bytes, placement.rows
    stages = placement.held[0] + placement.stored[0]
    items = -(-rows * placement.units // 2 // placement.threads)
    operand = rows * k_bytes / 1024
    turn = cost.tile + cost.mma * k_bytes / 32 * groups_m * rows / 2
    turn += (cost.stage + cost.many * (groups_m - 1)) * stages
    turn += operand * (cost.read + cost.gather * placement.blocks * placement.groups / 1000)
    turn += cost.item * items * (2 + scan.gates) + cost.backward * scan.backward
    if placement.cluster > 1:  # its blocks send each other their sums
        turn += cost.send * rows * placement.cluster * placement.units / 256
    # The exchange of one tile passes while others are computed; of two, only for the most part.
    exposed = cost.wait_two if placement.tiles == 2 else 0.0
    if placement.tiles == 1:
        exposed = cost.wait + cost.operand * operand
    return (turn * placement.tiles + exposed) * placement.launches


def row_microseconds(scan: Scan, chip: Chip, placement: Placement, cost: Costs) -> float:
    """Microseconds of one step of the scan with one row per block.

    Blocks that share a multiprocessor hide each other's latency, not their instructions.
    """
    lanes, warps = placement.chunk, placement.warps_n
    warps *= -(-placement.groups // chip.multiprocessors)
    rounds, exchanges = -(-warps // 4), lanes.bit_length() - 1
    total = cost.backward * scan.backward
    for into, out in ((phase.ins, phase.outs) for phase in scan.phases):
        deep = into * placement.padded // lanes
        total += cost.tile + cost.wait * exchanges + cost.deep * deep + cost.item * (2 + scan.gates)
        point = cost.point + cost.point_back * scan.backward
        total += rounds * (cost.mma * deep * out + point * (2 + scan.gates))
        # Lanes that read different places take turns.
        total += warps * (cost.read * deep * lanes / 4 + cost.total * out * exchanges)
    return total
