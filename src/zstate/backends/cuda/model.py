"""The time of one step of a scan, by a model whose constants were measured on an H200."""

from __future__ import annotations

from typing import NamedTuple

from .plan import BLOCK, CLUSTER, GRID, TILE, Chip, Plan, Problem, is_direct, streamed, warp_parts


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


def microseconds(problem: Problem, chip: Chip, plan: Plan) -> float:
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
        from_l2 = deep - plan.held[k] - plan.stored[k]
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
        total += from_l2 * (cost.stream + cost.stream_byte * wide * warps * 512)
        total += cost.deep * deep + (cost.uneven if k_blocks % plan.warps_k else 0.0)
        total += cost.tall * deep * wide if plan.rows > TILE else 0.0
        total += cost.pair * (plan.resident - 1)
        # The exchange of one tile passes while others are computed.
        fixed += cost.wait + cost.block * plan.blocks / 32
        fixed += operand * (cost.operand + cost.crowd * min(plan.groups, 16) / 16)
    deep_wide = warp_parts(problem, plan.padded, plan.units, plan.warps_k, plan.warps_n)
    everywhere = streamed(*deep_wide, plan.held, plan.stored)
    everywhere *= warps * 512 * plan.blocks * plan.groups
    total += max(0.0, everywhere - _L2_BYTES) / _MEMORY
    total += cost.many * max(0, warps - 12) / 4 + cost.backward * problem.backward
    return (total * plan.tiles + fixed) * waves
