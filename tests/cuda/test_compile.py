"""A wide grid of specialisations compiles through NVRTC for three generations, without a GPU."""

from __future__ import annotations

import io
import itertools
import re
import zlib

import pytest

nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
pytest.importorskip("cuda.core")

from zstate.backends.cuda import compiler  # noqa: E402
from zstate.backends.cuda.options import Options, constants, product_constants  # noqa: E402
from zstate.backends.cuda.placement import ROW, STEPS, WIDE, Chip, Placement, Scan  # noqa: E402
from zstate.backends.cuda.placements import placements  # noqa: E402
from zstate.backends.cuda.products import SPLIT  # noqa: E402

try:
    nvrtc.nvrtcVersion()
except Exception as error:
    pytest.skip(f"no NVRTC library: {error}", allow_module_level=True)

CHIPS = {
    "sm_80": Chip(108, 166912, (8, 0)),
    "sm_90": Chip(132, 232448, (9, 0)),
    "sm_100": Chip(148, 232448, (10, 0)),
}
CELLS = {
    "single_gate_rnn": ((0,), (1,)),
    "lstm": ((0, 2, 1, 3), (3, 4, 2, 3, 2)),
    "gru": ((1, 0, 2), (3, 3, 2)),
}
SIZES = [(9, 3), (128, 1), (256, 16), (512, 64), (1024, 40), (2048, 32)]


def everything(cell: str, backward: bool, reset_after: bool, new_cell: bool = False) -> Options:
    """All inputs of a call at once."""
    slots, activations = CELLS[cell]
    lstm, after = cell == "lstm", cell == "gru" and reset_after
    return Options(
        slots,
        activations,
        flip_z=cell == "gru",
        mask=True,
        mask_pairs=reset_after,
        peephole=lstm,
        peephole_on_new_cell=new_cell,
        bias2=after,
        state=True,
        cell=lstm,
        save_cell=lstm and not backward,
        save_gates=not backward,
        last_state=backward,
        every_cell=backward and lstm,
        want_left=backward,
        sum_bias=backward,
        sum_peephole=backward and lstm,
        sum_bias2=backward and after,
    )


def grid() -> list[tuple[str, Scan, bool]]:
    """Cells, sizes, types and directions, thinned out evenly and always in the same way."""
    found = []
    for architecture, cell, backward, kind, (hidden, batch), full in itertools.product(
        CHIPS,
        CELLS,
        (False, True),
        ("bfloat16", "float16", "tf32", "float32"),
        SIZES,
        (False, True),
    ):
        for reset_after in (False, True) if cell == "gru" else (False,):
            asked = Scan(cell, backward, reset_after, kind, hidden, batch, 1 + hidden % 2)
            mark = zlib.crc32(repr((architecture, asked, full)).encode())
            if mark % 12 == 0:
                found.append((architecture, asked, full))
    return found


def build(architecture: str, asked: Scan, options: Options, plan: Placement) -> bytes:
    """Machine code; a few spills, and only where the plan says that registers may not suffice."""
    texts = compiler.scan_texts(asked.form.text, plan.mode)
    log, text = io.StringIO(), compiler.source(constants(asked, options, plan), texts)
    code = compiler.compile_text(text, architecture + ("a" if plan.mode == WIDE else ""), log)
    assert "wgmma.mma_async instructions are serialized" not in log.getvalue()
    spilled = max(map(int, re.findall(r"(\d+) bytes spill stores", log.getvalue())))
    assert spilled <= (256 if plan.may_spill else 0), plan
    return code


@pytest.mark.parametrize(("architecture", "asked", "full"), grid())
def test_a_specialisation_compiles(architecture: str, asked: Scan, full: bool) -> None:
    options = everything(asked.cell, asked.backward, asked.reset_after)
    if not full:
        options = Options(*CELLS[asked.cell])
    plan = placements(asked, CHIPS[architecture])[0]
    assert build(architecture, asked, options, plan)[:4] == b"\x7fELF"


def test_many_plans_expect_no_spills() -> None:
    asked = [(architecture, asked) for architecture, asked, _ in grid()]
    tight = [placements(each, CHIPS[architecture])[0].may_spill for architecture, each in asked]
    assert sum(tight) < 2 / 3 * len(tight)


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "tf32", SPLIT])
@pytest.mark.parametrize("architecture", CHIPS)
def test_the_products_compile(architecture: str, kind: str) -> None:
    log, text = io.StringIO(), compiler.source(product_constants(kind), compiler.PRODUCTS)
    assert compiler.compile_text(text, architecture, log)[:4] == b"\x7fELF"
    assert "0 bytes spill stores" in log.getvalue()


@pytest.mark.parametrize("mode", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("backward", [False, True])
def test_every_way_over_the_chip_compiles(mode: int, backward: bool) -> None:
    asked = Scan("gru", backward, False, "bfloat16", 72, 37, 2)
    plan = next(plan for plan in placements(asked, CHIPS["sm_90"], True) if plan.mode == mode)
    assert build("sm_90", asked, everything("gru", backward, False), plan)


# One tile and several; with all options, or with none.
MANY_ROWS = [(130, 37, 1, True), (512, 500, 4, False), (257, 99, 3, True)]


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("kind", ["bfloat16", "tf32"])
@pytest.mark.parametrize("cell", CELLS)
def test_the_scan_for_many_rows_compiles(cell: str, kind: str, backward: bool) -> None:
    """Without spills."""
    mark = zlib.crc32(repr((cell, kind, backward)).encode())
    hidden, batch, tiles, full = MANY_ROWS[mark % len(MANY_ROWS)]
    after = cell == "gru"
    options = everything(cell, backward, after) if full else Options(*CELLS[cell])
    asked = Scan(cell, backward, after, kind, hidden, batch, 1, optional=18 if full else 0)
    plans = placements(asked, CHIPS["sm_90"])
    plan = next(plan for plan in plans if plan.mode == WIDE and plan.tiles == tiles)
    build("sm_90", asked, options, plan)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("backward", [False, True])
def test_groups_of_few_rows_compile(backward: bool, mode: int, rows: int) -> None:
    """Of a batch that needs two groups."""
    cell, kind = ("lstm", "tf32") if mode else ("gru", "bfloat16")
    asked = Scan(cell, backward, cell == "gru", kind, 40, rows + 1, 1, optional=18)
    options = everything(cell, backward, cell == "gru")
    found = placements(asked, CHIPS["sm_90"])
    plan = next(plan for plan in found if (plan.mode, plan.rows) == (mode, rows))
    assert plan.groups == 2
    assert build("sm_90", asked, options, plan)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("cell", [*CELLS, "gru after"])
def test_one_row_per_block_compiles(cell: str, backward: bool) -> None:
    """With all options; small layers may have one, two or four lanes per unit."""
    after, cell = cell == "gru after", cell.split()[0]
    mark = zlib.crc32(repr((cell, after, backward)).encode())
    kind = ("bfloat16", "float16", "tf32", "float32")[mark % 4]
    lanes = set()
    for hidden in (9, 33, 50):
        asked = Scan(cell, backward, after, kind, hidden, 3, 2, optional=18)
        found = [plan for plan in placements(asked, CHIPS["sm_90"]) if plan.mode == ROW]
        plan = found[mark % len(found)] if hidden > 9 else found[0]
        build("sm_90", asked, everything(cell, backward, after), plan)
        lanes |= {each.chunk for each in found}
    assert lanes == {1, 2, 4}


@pytest.mark.parametrize("architecture", CHIPS)
@pytest.mark.parametrize("cell", [*CELLS, "gru after"])
def test_single_steps_compile(cell: str, architecture: str) -> None:
    """With all options, without spills."""
    after, cell = cell == "gru after", cell.split()[0]
    for backward, kind, hidden, rows in (
        (False, "bfloat16", 31, 8),
        (True, "tf32", 256, 16),
        (True, "float16", 1024, 8),
    ):
        asked = Scan(cell, backward, after, kind, hidden, 40, 2)
        plans = placements(asked, CHIPS[architecture], in_steps=True)
        plan = next(plan for plan in plans if plan.mode == STEPS and plan.rows == rows)
        assert not plan.may_spill
        build(architecture, asked, everything(cell, backward, after), plan)


@pytest.mark.parametrize(("kind", "hidden", "batch"), [("bfloat16", 72, 37), ("float32", 128, 1)])
@pytest.mark.parametrize("backward", [False, True])
def test_a_peephole_on_the_new_cell_compiles(
    backward: bool, kind: str, hidden: int, batch: int
) -> None:
    """Both values of the option compile, to different code."""
    asked = Scan("lstm", backward, False, kind, hidden, batch, 2)
    plan = placements(asked, CHIPS["sm_90"])[0]
    new, old = (
        build("sm_90", asked, everything("lstm", backward, False, new_cell), plan)
        for new_cell in (True, False)
    )
    assert new != old
