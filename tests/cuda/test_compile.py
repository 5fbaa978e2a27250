"""A wide grid of specialisations compiles through NVRTC for three generations, without a GPU."""

from __future__ import annotations

import io
import itertools
import re
import zlib

import numpy as np
import pytest

nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
pytest.importorskip("cuda.core")

from tests.cells.made_up import make  # noqa: E402
from tests.covering import covering  # noqa: E402
from tests.cuda.forms import FORMS, everything, plain, scan  # noqa: E402
from zstate import LSTMDescriptor  # noqa: E402
from zstate.backends.cuda import compiler  # noqa: E402
from zstate.backends.cuda.calls import optional_registers  # noqa: E402
from zstate.backends.cuda.launch import specialisation  # noqa: E402
from zstate.backends.cuda.options import product_constants  # noqa: E402
from zstate.backends.cuda.passes import Options, lacks, pass_of  # noqa: E402
from zstate.backends.cuda.placement import ROW, STEPS, WIDE, Chip, Placement, Scan  # noqa: E402
from zstate.backends.cuda.placements import placements  # noqa: E402
from zstate.backends.cuda.products import SPLIT  # noqa: E402
from zstate.cells import LSTM, layer_norm_gru  # noqa: E402

try:
    nvrtc.nvrtcVersion()
except Exception as error:
    pytest.skip(f"no NVRTC library: {error}", allow_module_level=True)

CHIPS = {
    "sm_80": Chip(108, 166912, (8, 0)),
    "sm_90": Chip(132, 232448, (9, 0)),
    "sm_100": Chip(148, 232448, (10, 0)),
}
SIZES = [(9, 3), (128, 1), (256, 16), (512, 64), (1024, 40), (2048, 32)]


def all_of(name: str, backward: bool) -> Options:
    return everything(*FORMS[name], backward)


def grid() -> list[tuple[str, str, Scan, bool]]:
    """Chips, cells, directions, types and sizes: every pair of them."""
    found = []
    kinds, both = ("bfloat16", "float16", "tf32", "float32"), (False, True)
    for each in covering(CHIPS, FORMS, both, kinds, SIZES, both):
        architecture, name, backward, kind, (hidden, batch), full = each
        asked = scan(name, backward, kind, hidden, batch, 1 + hidden % 2)
        found.append((architecture, name, asked, full))
    return found


def build(architecture: str, asked: Scan, options: Options, plan: Placement) -> bytes:
    """Machine code; a few spills, and only where the plan says that registers may not suffice."""
    log, text = io.StringIO(), specialisation(asked, options, plan)
    code = compiler.compile_text(text, architecture + ("a" if plan.mode == WIDE else ""), log)
    assert "wgmma.mma_async instructions are serialized" not in log.getvalue()
    spilled = max(map(int, re.findall(r"(\d+) bytes spill stores", log.getvalue())))
    assert spilled <= (256 if plan.may_spill else 0), plan
    return code


@pytest.mark.parametrize(("architecture", "name", "asked", "full"), grid())
def test_a_specialisation_compiles(architecture: str, name: str, asked: Scan, full: bool) -> None:
    options = (all_of if full else plain)(name, asked.backward)
    plan = placements(asked, CHIPS[architecture])[0]
    assert build(architecture, asked, options, plan)[:4] == b"\x7fELF"


def test_many_plans_expect_no_spills() -> None:
    asked = [(architecture, asked) for architecture, _, asked, _ in grid()]
    tight = [placements(each, CHIPS[architecture])[0].may_spill for architecture, each in asked]
    assert sum(tight) < 2 / 3 * len(tight)


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "tf32", SPLIT])
@pytest.mark.parametrize("architecture", CHIPS)
def test_the_products_compile(architecture: str, kind: str) -> None:
    log, text = io.StringIO(), compiler.source(product_constants(kind), compiler.PRODUCTS)
    assert compiler.compile_text(text, architecture, log)[:4] == b"\x7fELF"
    assert "0 bytes spill stores" in log.getvalue()


@pytest.mark.parametrize("architecture", CHIPS)
def test_the_graphs_kernels_compile(architecture: str) -> None:
    from zstate.backends.cuda.graph_kernels import text

    log = io.StringIO()
    assert compiler.compile_text(text(), architecture, log)[:4] == b"\x7fELF"
    assert set(re.findall(r"(\d+) bytes spill stores", log.getvalue())) == {"0"}


@pytest.mark.parametrize("mode", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("backward", [False, True])
def test_every_way_over_the_chip_compiles(mode: int, backward: bool) -> None:
    asked = scan("gru", backward, "bfloat16", 72, 37, 2)
    plan = next(plan for plan in placements(asked, CHIPS["sm_90"], True) if plan.mode == mode)
    assert build("sm_90", asked, all_of("gru", backward), plan)


# One tile and several; with all options, or with none.
MANY_ROWS = [(130, 37, 1, True), (512, 500, 4, False), (257, 99, 3, True)]


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("kind", ["bfloat16", "tf32"])
@pytest.mark.parametrize("cell", ["single_gate_rnn", "lstm", "gru after"])
def test_the_scan_for_many_rows_compiles(cell: str, kind: str, backward: bool) -> None:
    """Without spills."""
    mark = zlib.crc32(repr((cell.split()[0], kind, backward)).encode())
    hidden, batch, tiles, full = MANY_ROWS[mark % len(MANY_ROWS)]
    options = (all_of if full else plain)(cell, backward)
    asked = scan(cell, backward, kind, hidden, batch, 1, optional=18 if full else 0)
    plans = placements(asked, CHIPS["sm_90"])
    plan = next(plan for plan in plans if plan.mode == WIDE and plan.tiles == tiles)
    build("sm_90", asked, options, plan)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("backward", [False, True])
def test_groups_of_few_rows_compile(backward: bool, mode: int, rows: int) -> None:
    """Of a batch that needs two groups."""
    cell, kind = ("lstm", "tf32") if mode else ("gru after", "bfloat16")
    asked = scan(cell, backward, kind, 40, rows + 1, 1, optional=18)
    options = all_of(cell, backward)
    found = placements(asked, CHIPS["sm_90"])
    plan = next(plan for plan in found if (plan.mode, plan.rows) == (mode, rows))
    assert plan.groups == 2
    assert build("sm_90", asked, options, plan)


@pytest.mark.parametrize(("cell", "backward", "built"), covering(FORMS, (False, True), (9, 33, 50)))
def test_one_row_per_block_compiles(cell: str, backward: bool, built: int) -> None:
    """With all options; small layers may have one, two or four lanes per unit."""
    mark = zlib.crc32(repr((cell, backward)).encode())
    kind = ("bfloat16", "float16", "tf32", "float32")[mark % 4]
    lanes = set()
    for hidden in (9, 33, 50):
        asked = scan(cell, backward, kind, hidden, 3, 2, optional=18)
        found = [plan for plan in placements(asked, CHIPS["sm_90"]) if plan.mode == ROW]
        plan = found[mark % len(found)] if hidden > 9 else found[0]
        if hidden == built:
            build("sm_90", asked, all_of(cell, backward), plan)
        lanes |= {each.chunk for each in found}
    assert lanes == {1, 2, 4}


IN_STEPS = [(False, "bfloat16", 31, 8), (True, "tf32", 256, 16), (True, "float16", 1024, 8)]


@pytest.mark.parametrize(("cell", "architecture", "each"), covering(FORMS, CHIPS, IN_STEPS))
def test_single_steps_compile(
    cell: str, architecture: str, each: tuple[bool, str, int, int]
) -> None:
    """With all options, without spills."""
    backward, kind, hidden, rows = each
    asked = scan(cell, backward, kind, hidden, 40, 2)
    plans = placements(asked, CHIPS[architecture], in_steps=True)
    plan = next(plan for plan in plans if plan.mode == STEPS and plan.rows == rows)
    assert not plan.may_spill
    build(architecture, asked, all_of(cell, backward), plan)


@pytest.mark.parametrize(("kind", "hidden", "batch"), [("bfloat16", 72, 37), ("float32", 128, 1)])
@pytest.mark.parametrize("backward", [False, True])
def test_a_peephole_on_the_new_cell_compiles(
    backward: bool, kind: str, hidden: int, batch: int
) -> None:
    """Both values of the option compile, to different code."""
    asked = scan("lstm", backward, kind, hidden, batch, 2)
    plan = placements(asked, CHIPS["sm_90"])[0]
    descriptors = (LSTMDescriptor(peephole_on_new_cell=new) for new in (True, False))
    new, old = (
        build("sm_90", asked, everything(LSTM, descriptor, backward), plan)
        for descriptor in descriptors
    )
    assert new != old


# H and N that make each way over the chip worth a try.
WAYS = {0: (40, 5), 1: (256, 16), 2: (512, 40), STEPS: (96, 40), WIDE: (130, 50), ROW: (20, 3)}


def made_up(mode: int, backward: bool, first: int) -> tuple[Scan, Options, Placement]:
    """The first cell, of those from a number on, that has such a way."""
    for number in itertools.count(first):
        cell = make(np.random.default_rng(number))
        options = everything(cell, cell.descriptor(), backward)
        if lacks(options) is not None:
            continue
        form = pass_of(options).form
        kinds = ["bfloat16", "float16", "tf32", "float32"][: 3 if mode in (STEPS, WIDE) else 4]
        kind, sizes = kinds[(number + mode + backward) % len(kinds)], WAYS[mode]
        optional = optional_registers(form, options)
        asked = Scan(form, kind, *sizes, 1 + number % 2, optional)
        plans = placements(asked, CHIPS["sm_90"], in_steps=True)
        plan = next((plan for plan in plans if plan.mode == mode), None)
        if plan is not None:
            return asked, options, plan
    raise AssertionError


@pytest.mark.parametrize(("mode", "backward", "first"), covering(WAYS, (False, True), (0, 100)))
def test_a_made_up_cell_compiles(mode: int, backward: bool, first: int) -> None:
    """With all options: several states, operands, phases and parameters, every function."""
    assert build("sm_90", *made_up(mode, backward, first + mode))


@pytest.mark.parametrize("mode", [0, 1, 2, ROW])
def test_means_and_variances_compile(mode: int) -> None:
    """Over the units of a row: reductions between the products of a step."""
    cell, backward = layer_norm_gru.definition, mode in (1, ROW)
    options = everything(cell, cell.descriptor(), backward)
    form = pass_of(options).form
    assert any(phase.reduces for phase in form.phases)
    kind = "bfloat16" if mode in (0, 1) else "float32"
    asked = Scan(form, kind, *WAYS[mode], 1, optional_registers(form, options))
    plan = next(plan for plan in placements(asked, CHIPS["sm_90"]) if plan.mode == mode)
    assert build("sm_90", asked, options, plan)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("mode", WAYS)
def test_resets_and_heads_compile(mode: int, backward: bool) -> None:
    """Heads of an odd size too, and, with one row per block, several in a warp."""
    cell = "lstm" if mode == WIDE else "gru"
    kind = "tf32" if mode == STEPS else "bfloat16"
    options = all_of(cell, backward)._replace(resets=True)
    hidden, batch = {ROW: (5, 3), 0: (33, 5)}.get(mode, WAYS[mode])
    form = pass_of(options).form
    asked = Scan(form, kind, hidden, batch, 2, optional_registers(form, options), heads=3)
    plans = placements(asked, CHIPS["sm_90"], in_steps=True)
    plan = next(plan for plan in plans if plan.mode == mode)
    assert plan.pack == (1 if mode != ROW else 6)
    assert build("sm_90", asked, options, plan)
