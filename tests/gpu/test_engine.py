"""The CUDA engine against float64: every option, every way over the chip, sizes at random."""

from __future__ import annotations

import math
import os
import random
from dataclasses import replace
from functools import partial

import harness
import pytest
import torch

from zstate import verify
from zstate.backends.cuda import engine, launch
from zstate.backends.cuda.passes import pass_of, training
from zstate.backends.cuda.placement import GRID, ROW, WIDE, Placement, Scan
from zstate.backends.cuda.placements import placements
from zstate.cells import LSTM
from zstate.descriptors import Activation, AnyDescriptor, GRUDescriptor, LSTMDescriptor
from zstate.errors import BackendError

CASES = [(cell, case) for cell, cases in verify.CASES.items() for case in cases]
# One rounding to the type that a result is stored in: below that torch's own loop is no measure.
# TF32 rounds both operands of a product. In float32 what is stored is as exact as what is computed,
# and dR is summed over hundreds of rows by torch's GEMM, where the loop adds step by step: eight.
ROUNDING = {"float32": 2.0**-21, "tf32": 2.0**-10, "bfloat16": 2.0**-8, "float16": 2.0**-11}
STRESS = int(os.environ.get("ZSTATE_STRESS", "1000"))


DRAWS = 8  # more, where one draw of the inputs exceeds the bound


def check(case: verify.Case, dtype: str, seed: int = 0) -> None:
    """Errors are at most twice the control's: in one draw of the inputs, or in the mean of several
    with that one among them. Of one draw the control's may be small by luck."""
    tf32 = dtype == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    kind = "float32" if tf32 else dtype
    draws = [harness.worst(case, kind, seed)]
    if beyond(draws, dtype):
        draws += [harness.worst(case, kind, 10_000 + seed + k) for k in range(DRAWS)]
    assert not beyond(draws, dtype)


def beyond(draws: list[dict[str, harness.Errors]], dtype: str) -> dict[str, harness.Errors]:
    """The results whose errors exceed the bound, as means over the draws."""
    errors = {name: harness.mean([draw[name] for draw in draws]) for name in draws[0]}
    largest = max(each.control for each in errors.values() if not math.isnan(each.control))
    found = {}
    for name, each in errors.items():
        if math.isnan(each.control):  # beyond float16: torch's own loop has overflowed too
            continue
        bound = 2 * (largest if each.numbers < harness.FEW else each.control)
        if not each.ours <= max(bound, ROUNDING[dtype]):
            found[name] = each
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("cell", "case"), CASES, ids=[f"{c} {k.title}" for c, k in CASES])
def test_option(cell: str, case: verify.Case, dtype: str) -> None:
    check(case, dtype)


@pytest.mark.parametrize("dtype", ["tf32", "bfloat16"])
@pytest.mark.parametrize(("cell", "case"), CASES, ids=[f"{c} {k.title}" for c, k in CASES])
def test_option_in_single_steps(
    cell: str, case: verify.Case, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.choose(monkeypatch, harness.in_single_steps)
    check(case, dtype)


@pytest.mark.parametrize("dtype", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize(("cell", "case"), CASES, ids=[f"{c} {k.title}" for c, k in CASES])
def test_option_with_one_row_per_block(
    cell: str, case: verify.Case, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.choose(monkeypatch, lambda plan: plan.mode == ROW)
    check(case, dtype)


@pytest.mark.parametrize("mode", range(6))
@pytest.mark.parametrize("dtype", ["float32", "tf32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("cell", "title"),
    [
        *((cell, "bidirectional") for cell in verify.CASES),
        *((cell, "resets and heads") for cell in verify.CASES),
        ("lstm", "both, both ways"),
    ],
)
def test_way_over_the_chip(
    cell: str, title: str, dtype: str, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []

    def accepts(plan: Placement) -> bool:
        taken.append(plan.mode == mode)
        return taken[-1]

    harness.choose(monkeypatch, accepts)
    case = next(case for case in verify.CASES[cell] if case.title == title)
    try:
        check(replace(case, sizes=(9, 37, 20, 72)), dtype)
    except BackendError as error:
        pytest.skip(str(error))
    assert any(taken)


def for_many_rows(case: verify.Case, sizes: tuple[int, int, int, int]) -> verify.Case:
    """A case as the scan for many rows can have it: one product per step."""
    if not harness.chip().has_warp_groups:
        pytest.skip("this chip has no warp-group matrix instructions")
    descriptor = case.descriptor
    if isinstance(descriptor, GRUDescriptor):
        descriptor = replace(descriptor, reset_after=True)
    whole = (sizes[0], sizes[1], sizes[3] * descriptor_directions(descriptor))
    masks = {
        name: tuple(1 if old == 1 else new for old, new in zip(shape, whole, strict=False))
        for name, shape in case.extra.items()
    }
    return replace(case, descriptor=descriptor, sizes=sizes, extra=masks)


@pytest.mark.parametrize("dtype", ["tf32", "bfloat16"])
@pytest.mark.parametrize(("cell", "case"), CASES, ids=[f"{c} {k.title}" for c, k in CASES])
def test_option_for_many_rows(
    cell: str, case: verify.Case, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.choose(monkeypatch, lambda plan: plan.mode == WIDE)
    check(for_many_rows(case, (5, 41, 9, 130 * case.descriptor.heads)), dtype)


@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("cell", list(verify.CASES))
def test_tiles_of_so_many_rows(cell: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    accepts = lambda plan: plan.rows == rows and plan.mode <= GRID  # noqa: E731
    harness.choose(monkeypatch, accepts)
    check(harness.a_case(cell, (5, rows if rows < 16 else 70, 9, 136)), "tf32")


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
@pytest.mark.parametrize(("mode", "dtype"), [(0, "tf32"), (1, "bfloat16")])
@pytest.mark.parametrize("cell", list(verify.CASES))
def test_groups_of_few_rows(
    cell: str, mode: int, dtype: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several groups, the last of which has fewer rows than the others."""
    if mode == 1 and not harness.chip().has_clusters:
        pytest.skip("this chip has no clusters")
    harness.choose(monkeypatch, lambda plan: (plan.mode, plan.rows) == (mode, rows))
    check(harness.a_case(cell, (5, 11, 9, 40)), dtype)


def test_what_the_driver_refuses_goes_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    fits = launch.Kernel.fits
    form = pass_of(training(LSTM, LSTMDescriptor(), backward=False)).form
    scan = Scan(form, "bfloat16", 72, 37, 2)
    first = placements(scan, harness.chip(), True)[0].mode
    asked = []

    def refuse(kernel: launch.Kernel) -> bool:
        asked.append(kernel.placement.mode)
        return kernel.placement.mode != first and fits(kernel)

    monkeypatch.setattr(launch.Kernel, "fits", refuse)
    case = next(case for case in verify.CASES["lstm"] if case.title == "bidirectional")
    check(replace(case, sizes=(9, 37, 20, 72)), "bfloat16")
    assert asked[0] == first != asked[-1]


def test_where_the_driver_refuses_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.Kernel, "fits", lambda kernel: False)
    with pytest.raises(BackendError, match="rejected by the driver"):
        check(harness.a_case("gru", (3, 4, 5, 88)), "bfloat16")


def random_case(rng: random.Random) -> verify.Case:
    """Any options, inputs and sizes."""
    _, case = rng.choice(CASES)
    size = (rng.randint(1, 12), rng.choice([1, 2, 7, 8, 16, 23, 33, 70]), rng.randint(1, 40))
    hidden = rng.choice([1, 3, 8, 17, 31, 64, 100, 129, 200, 257, 384])
    kinds = {
        name: rng.choice([Activation.TANH, Activation.SIGMOID, Activation.HARD_SIGMOID])
        for name in case.descriptor.activation_fields
    }
    options = {"bidirectional": rng.random() < 0.5, "reverse": rng.random() < 0.5}
    hidden = -(-hidden // case.descriptor.heads) * case.descriptor.heads
    if case.descriptor.__class__.__name__ == "GRUDescriptor":
        options |= {name: rng.random() < 0.5 for name in ("reset_after", "flip_z")}
    if case.descriptor.__class__.__name__ == "LSTMDescriptor":
        names = ("forget_gate_last", "peephole_on_new_cell")
        options |= {name: rng.random() < 0.5 for name in names}
    descriptor = replace(case.descriptor, **kinds, **options)
    left_out = frozenset(name for name in OPTIONAL if rng.random() < 0.3) | case.without
    masks = [(size[0], size[1], 1), (1, size[1], hidden * descriptor_directions(descriptor)), (1,)]
    return replace(
        case,
        descriptor=descriptor,
        without=left_out,
        sizes=(*size, hidden),
        extra={"mask": rng.choice(masks)} if rng.random() < 0.5 else {},
        scale=0.7,
    )


# cuBLAS has no TF32 for single columns: torch's loop would be exact there.
def types_for(case: verify.Case) -> list[str]:
    return [*(["tf32"] if case.sizes[-1] > 1 else []), "bfloat16", "float16"]


@pytest.mark.parametrize("seed", range(STRESS))
def test_at_random(seed: int) -> None:
    rng = random.Random(seed)
    case = random_case(rng)
    check(case, rng.choice(["float32", *types_for(case)]), seed)


@pytest.mark.parametrize("seed", range(STRESS // 5))
def test_at_random_in_single_steps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    rows, case = rng.choice([8, 16]), random_case(rng)
    harness.choose(monkeypatch, lambda p: harness.in_single_steps(p) and p.rows == rows)
    kind = rng.choice(types_for(case))
    monkeypatch.setattr(engine, "FEW_STEPS", rng.choice([1, 100]))  # TF32: R is turned or not
    check(case, kind, seed)


@pytest.mark.parametrize("seed", range(STRESS // 5))
def test_at_random_with_one_row_per_block(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    lanes = rng.choice([1, 2, 4])
    case = random_case(rng)
    steps, batch, width, _ = case.sizes
    sizes = (steps, batch, width, rng.randint(1, 64) * case.descriptor.heads)
    case = replace(case, sizes=sizes, extra={"mask": (steps, batch, 1)} if case.extra else {})
    accepts = lambda plan: plan.mode == ROW and plan.chunk >= lanes  # noqa: E731
    harness.choose(monkeypatch, accepts)
    check(case, rng.choice(["float32", *types_for(case)]), seed)


@pytest.mark.parametrize("seed", range(STRESS // 5))
def test_at_random_for_many_rows(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    batch, hidden = rng.randint(17, 300), rng.randint(97, 400)
    sizes = (rng.randint(1, 7), batch, rng.randint(1, 9), hidden)
    case = random_case(rng)
    if case.descriptor.heads > 1:  # or too few blocks would find room
        hidden = rng.randint(97, 128)
        sizes = (*sizes[:3], hidden * case.descriptor.heads)
    case = for_many_rows(case, sizes)
    wishes = rng.randint(1, min(3, -(-batch // 32))), rng.choice([2, 4]) if hidden > 200 else 2
    kind = rng.choice(types_for(case))
    for tiles, pieces in (wishes, (1, 2)):  # what was wished for may have no room
        accepts = partial(_is_wide, tiles=tiles, pieces=pieces)
        harness.choose(monkeypatch, accepts)
        try:
            check(case, kind, seed)
        except BackendError:
            continue
        return
    raise AssertionError("no way for many rows")


def _is_wide(plan: Placement, tiles: int, pieces: int) -> bool:
    return plan.mode == WIDE and plan.tiles >= tiles and plan.pieces >= pieces


@pytest.mark.parametrize("seed", range(STRESS // 5))
def test_at_random_with_a_streamed_weight(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In single steps, by products that read the weight once."""
    rng = random.Random(seed)
    case = random_case(rng)
    hidden = rng.choice([1, 3, 8, 17, 64, 100, 129, 200, 257, 384, 520, 776, 1031])
    sizes = (rng.randint(1, 9), rng.randint(1, 16), rng.randint(1, 40), hidden)
    extra = {"mask": (*sizes[:2], 1)} if case.extra else {}
    descriptor = replace(case.descriptor, heads=1, bidirectional=False)
    case = replace(case, descriptor=descriptor, sizes=sizes, extra=extra)
    harness.choose(monkeypatch, lambda plan: bool(plan.split))
    kinds = [kind for kind in types_for(case) if kind not in ("float32", "float16")]
    try:
        check(case, rng.choice(kinds), seed)
    except BackendError:
        assert hidden % 8 != 0  # rows that one phase pads over another's


@pytest.mark.parametrize("seed", range(STRESS // 10))
def test_at_random_in_whole_pieces(seed: int) -> None:
    """Sizes whose products are made in one launch."""
    rng = random.Random(seed)
    _, case = rng.choice(CASES)
    size = (rng.randint(1, 12), rng.choice([1, 3, 16, 70]), rng.choice([8, 24, 64]))
    left_out = frozenset(name for name in OPTIONAL if rng.random() < 0.3) | case.without
    kinds = dict.fromkeys(case.descriptor.activation_fields, Activation.TANH)  # nothing overflows
    descriptor = replace(case.descriptor, **kinds, bidirectional=rng.random() < 0.5)
    if case.descriptor.__class__.__name__ == "GRUDescriptor":
        descriptor = replace(descriptor, reset_after=rng.random() < 0.5)
    if case.descriptor.__class__.__name__ == "LSTMDescriptor":
        descriptor = replace(descriptor, peephole_on_new_cell=rng.random() < 0.5)
    sizes = (*size, rng.choice([8, 40, 64, 136, 256]) * descriptor.heads)
    kind = rng.choice(["tf32", "bfloat16", "float16"])
    check(replace(case, descriptor=descriptor, without=left_out, sizes=sizes, extra={}), kind, seed)


OPTIONAL = (
    *("mask", "peephole", "secondary_bias", "bias", "init_state", "init_cell"),
    *("state_gradient", "cell_gradient"),
)


def descriptor_directions(descriptor: AnyDescriptor) -> int:
    return 2 if descriptor.bidirectional else 1
