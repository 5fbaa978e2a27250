"""The planner over a grid of sizes and devices: every call gets a plan, and it fits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.covering import covering
from tests.cuda.forms import FORMS, form, scan
from zstate.backends.cuda import placements as module
from zstate.backends.cuda.placement import (
    BLOCK,
    CLUSTER,
    GRID,
    ROW,
    STEPS,
    WIDE,
    Chip,
    Placement,
    Scan,
)
from zstate.backends.cuda.placements import placements

A100 = Chip(108, 166912, (8, 0))
L4 = Chip(58, 101376, (8, 9))
H200 = Chip(132, 232448, (9, 0))
B200 = Chip(148, 232448, (10, 0))
SLICE = Chip(16, 232448, (9, 0))  # a part of a chip


def problem(cell: str, backward: bool = False, **changes: object) -> Scan:
    sizes: dict[str, object] = {"type": "bfloat16", "hidden": 256, "batch": 16, "directions": 1}
    sizes.update(changes)
    return Scan(form(cell, backward), **sizes)  # type: ignore[arg-type]


def problems(kind: str, hidden: int, batch: int) -> Iterator[Scan]:
    """Of one size: every cell, one direction and two, forward and backward."""
    for directions, cell, backward in itertools.product((1, 2), FORMS, (False, True)):
        yield scan(cell, backward, kind, hidden, batch, directions)


@pytest.mark.parametrize("chip", [A100, L4, H200, B200, SLICE], ids=lambda chip: str(chip))
@pytest.mark.parametrize("kind", ["bfloat16", "tf32", "float32"])
def test_every_size_has_a_plan_that_fits(chip: Chip, kind: str) -> None:
    both = (False, True)
    for hidden, batch, directions, cell, backward in covering(
        (1, 130, 1024), (1, 40, 700), (1, 2), FORMS, both, strength=3
    ):
        asked = scan(cell, backward, kind, hidden, batch, directions)
        every = placements(asked, chip, in_steps=True)
        single = [plan for plan in every if plan.mode == STEPS]
        assert bool(single) == (kind != "float32")
        for plan in single:
            check(asked, chip, plan)
        found = [plan for plan in every if plan.mode != STEPS]
        if not found:
            # Full float32 needs registers that few blocks do not have: the plain path serves it.
            assert (chip, kind, asked.hidden) == (SLICE, "float32", 1024), asked
            continue
        check(asked, chip, found[0])


def check(asked: Scan, chip: Chip, plan: Placement) -> None:
    assert plan.shared <= chip.shared_bytes // plan.resident
    assert plan.threads <= 1024
    rows = plan.rows * plan.tiles * plan.groups // asked.directions * plan.launches
    assert rows >= asked.batch
    if plan.mode == ROW:
        check_row(asked, plan)
        return
    assert plan.padded == plan.blocks * plan.units >= asked.hidden
    assert plan.units % 8 == 0
    assert (plan.padded * asked.value_bytes) % 64 == 0
    if plan.mode == WIDE:
        check_wide(asked, chip, plan)
        return
    assert (plan.units // 8) % plan.warps_n == 0
    if plan.mode == GRID:
        assert plan.groups * plan.blocks <= chip.multiprocessors
    if plan.mode == CLUSTER:
        assert chip.has_clusters
        assert plan.blocks <= 16
    if plan.mode == BLOCK:
        assert plan.blocks == 1
    if plan.mode == STEPS:
        assert plan.shared == 0 and not any((*plan.held, *plan.stored))
        return
    for depth, held, stored in zip(
        [
            -(-phase.ins * plan.padded * asked.value_bytes // 64 // plan.warps_k)
            for phase in asked.phases
        ],
        plan.held,
        plan.stored,
        strict=True,
    ):
        assert 0 <= held <= plan.chunk
        assert held + stored <= depth
        assert plan.mode == GRID or held + stored == depth


def check_row(asked: Scan, plan: Placement) -> None:
    """Of the scan with one row per block: lanes for every unit, and registers for its weight."""
    lanes = plan.chunk
    assert plan.threads >= lanes * asked.hidden and plan.threads == lanes * plan.units
    assert asked.hidden <= plan.padded < asked.hidden + 4 * lanes and plan.padded % (4 * lanes) == 0
    assert plan.groups == asked.batch * asked.directions
    weight = sum(each.ins * each.outs for each in asked.phases) * plan.padded // lanes
    assert (weight + 48) * plan.threads <= 65536 and weight + 48 <= 255


def check_wide(asked: Scan, chip: Chip, plan: Placement) -> None:
    """Of the scan for many rows: warp groups, whole stages, and clusters that fit at once."""
    assert chip.capability == (9, 0) and len(asked.phases) == 1
    groups_m, groups_k = plan.warps_n // 4, plan.warps_k
    assert 64 * groups_m >= asked.gates * plan.units and plan.rows % 8 == 0
    stage = 64 * plan.pieces * groups_k  # bytes of K
    assert (plan.held[0] + plan.stored[0]) * stage == plan.padded * asked.value_bytes
    assert plan.cluster == (asked.gates if asked.backward else 1)
    assert plan.blocks % plan.cluster == 0
    assert plan.groups * plan.blocks <= chip.clusters(plan.cluster) * plan.cluster
    assert plan.chunk >= 3  # one stage is copied, one multiplied, one released
    state = asked.states * plan.tiles * plan.rows * plan.units // 2 * 8
    passing = groups_m * groups_k * plan.pieces * 4096  # the weight on its way into registers
    assert not plan.held[0] or 1024 + -(-state // 1024) * 1024 + passing <= plan.shared


@pytest.mark.parametrize(("hidden", "batch"), [(8192, 4), (16384, 1), (2048, 5000), (4096, 33)])
@pytest.mark.parametrize("backward", [False, True])
def test_sizes_that_no_chip_holds_are_streamed(hidden: int, batch: int, backward: bool) -> None:
    asked = problem("lstm", hidden=hidden, batch=batch, backward=backward)
    plan = placements(asked, H200)[0]
    check(asked, H200, plan)
    assert plan.mode == GRID


def test_small_sizes_stay_in_a_block_or_a_cluster() -> None:
    for batch in (1, 8):
        assert placements(problem("lstm", hidden=128, batch=batch), H200)[0].mode != GRID
    asked = problem("gru after", hidden=96, batch=1, backward=True)
    assert placements(asked, H200)[0].mode == BLOCK


@pytest.mark.parametrize("chip", [A100, H200], ids=["A100", "H200"])
@pytest.mark.parametrize("kind", ["bfloat16", "tf32", "float32"])
def test_tiny_layers_have_one_row_per_block(chip: Chip, kind: str) -> None:
    sizes, both = ((1, 24, 32, 48), (1, 8, 100)), (False, True)
    for hidden, batch, directions, cell, backward in covering(
        *sizes, (1, 2), FORMS, both, strength=3
    ):
        asked = scan(cell, backward, kind, hidden, batch, directions)
        assert placements(asked, chip)[0].mode == ROW, asked
    for asked in problems(kind, 300, 1):
        assert all(plan.mode != ROW for plan in placements(asked, chip))


def test_without_clusters_none_are_planned() -> None:
    for hidden in (16, 128, 512):
        assert all(
            plan.mode != CLUSTER for plan in placements(problem("gru after", hidden=hidden), A100)
        )


def test_a_batch_beyond_the_chip_takes_several_launches() -> None:
    plan = placements(problem("lstm", hidden=1024, batch=5000), H200)[0]
    assert plan.launches > 1
    assert plan.tiles <= module.MOST_TILES


@pytest.mark.parametrize(("hidden", "batch"), [(200, 1024), (256, 512), (100, 2048), (1536, 96)])
def test_every_plan_for_many_rows_fits(hidden: int, batch: int) -> None:
    for asked in (each for kind in ("bfloat16", "tf32") for each in problems(kind, hidden, batch)):
        for plan in placements(asked, H200):
            if plan.mode == WIDE:
                check(asked, H200, plan)


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("batch", [1, 2, 5, 8, 16, 23, 32, 33])
def test_groups_cover_every_row_once(batch: int, directions: int) -> None:
    """Rows as block.cuh numbers them: no group is empty, and rows behind the batch are left out."""
    asked = problem("lstm", hidden=64, batch=batch, directions=directions, type="tf32")
    found = placements(asked, H200)
    for plan in found:
        check(asked, H200, plan)
        of_group = plan.tiles * plan.rows
        groups = [
            [row for row in range(first, first + of_group) if row < batch]
            for first in range(0, plan.tile_groups(batch) * of_group, of_group)
        ]
        assert all(groups) and list(itertools.chain(*groups)) == list(range(batch))
        assert plan.mode == GRID or plan.groups == len(groups) * directions
    few = [plan for plan in found if plan.rows < min(batch, 16) and plan.mode != ROW]
    assert {plan.mode for plan in few} == ({BLOCK, CLUSTER} if 1 < batch <= 32 else set())
    # Each group has its own multiprocessors.
    assert all(plan.groups * plan.blocks <= H200.multiprocessors for plan in few)
    assert {plan.rows for plan in few} <= {1, 2, 4, 8}


@pytest.mark.parametrize("backward", [False, True])
def test_a_small_batch_is_split(backward: bool) -> None:
    asked = problem("gru after", backward=backward, hidden=64, batch=8)
    assert placements(asked, H200)[0].rows < 8


def test_more_work_never_costs_less() -> None:
    costs = [placements(problem("lstm", hidden=h), H200)[0].microseconds for h in (64, 256, 1024)]
    assert costs == sorted(costs)


@pytest.mark.parametrize("chip", [A100, H200], ids=["A100", "H200"])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    ("kind", "hidden", "batch", "single"),
    [
        ("bfloat16", 256, 16, False),
        ("tf32", 128, 1, False),
        ("float32", 1536, 512, False),
        ("tf32", 1536, 512, True),
        ("bfloat16", 2048, 512, True),
    ],
)
def test_where_single_steps_are_best(
    kind: str, hidden: int, batch: int, single: bool, backward: bool, chip: Chip
) -> None:
    """Only for much work, never in full float32, and not unless they are allowed."""
    asked = problem("lstm", type=kind, hidden=hidden, batch=batch, backward=backward)
    assert (placements(asked, chip, in_steps=True)[0].mode == STEPS) == single
    assert all(plan.mode != STEPS for plan in placements(asked, chip))


def test_the_rows_of_single_steps() -> None:
    """One per warp; backward two, with much work."""
    for batch, hidden, backward, rows in (
        (8, 64, False, 8),
        (4096, 1024, False, 8),
        (256, 1024, True, 8),
        (512, 1024, True, 16),
    ):
        asked = problem("lstm", hidden=hidden, batch=batch, backward=backward)
        every = placements(asked, H200, True)
        first, other = (p for p in every if p.mode == STEPS and not p.split)
        assert (first.rows, other.rows) == (rows, 24 - rows)


@pytest.mark.parametrize(
    ("kind", "batch", "hidden", "pieces"),
    [
        ("bfloat16", 512, 1536, 2),
        ("bfloat16", 256, 1536, 4),
        ("bfloat16", 1024, 1536, 1),
        ("bfloat16", 64, 100, 2),  # 400 terms are not four times whole pieces of 16 bytes
        ("bfloat16", 64, 101, 1),
        ("tf32", 512, 1536, 1),
        ("tf32", 512, 1024, 2),
        ("tf32", 256, 1024, 4),
    ],
)
def test_the_pieces_of_a_gradients_product(kind: str, batch: int, hidden: int, pieces: int) -> None:
    """As many as find idle multiprocessors, whole vectors each; only backward, of several gates."""
    for cell, backward, wanted in (
        ("lstm", True, pieces),
        ("lstm", False, 1),
        ("single_gate_rnn", True, 1),
    ):
        asked = problem(cell, type=kind, hidden=hidden, batch=batch, backward=backward)
        plan = next(p for p in placements(asked, H200, True) if p.mode == STEPS)
        assert plan.pieces == wanted
        assert plan.parts(asked) == (wanted,)
