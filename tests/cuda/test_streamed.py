"""Products that read a large weight once: which block reads what, and what surrounds them."""

from __future__ import annotations

import ctypes
import io
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from tests.cuda.forms import scan
from tests.cuda.pretended import CHIP
from zstate.backends.cuda import compiler, engine
from zstate.backends.cuda.options import streamed_constants
from zstate.backends.cuda.placement import STEPS, Chip, Scan
from zstate.backends.cuda.placements import placements
from zstate.backends.cuda.streamed import WORDS, Streamed, product_of, ring_of

SIZES = [1, 7, 8, 64, 200, 1031, 2049, 2560, 3500, 4096, 8192]
BYTES = {"bfloat16": 2, "float16": 2, "tf32": 4}


def products() -> list[Streamed]:
    """Of a layer's gates, forward and backward."""
    found = []
    for kind, hidden, rows in itertools.product(BYTES, SIZES, (1, 8, 9, 16)):
        found += [
            Streamed(kind, False, rows, 4 * hidden, hidden),
            Streamed(kind, True, rows, hidden, 3 * hidden),
        ]
    return found


def rows_of(product: Streamed, piece: int) -> range:
    """Across K: the rows of a piece."""
    shares, steps = product.shares(CHIP), -(-product.k // 16)
    begin, end = (k * steps // shares.pieces * 16 for k in (piece, piece + 1))
    return range(begin, min(end, product.k))


def numbers_of(product: Streamed, piece: int) -> range:
    """Along K: the numbers of a row that a piece has."""
    shares = product.shares(CHIP)
    size = shares.chunks * shares.width // BYTES[product.type]
    return range(min(piece * size, product.k), min((piece + 1) * size, product.k))


@pytest.mark.parametrize("across", [False, True])
def test_every_number_of_k_belongs_to_one_piece(across: bool) -> None:
    part = rows_of if across else numbers_of
    for product in products():
        if product.across == across:
            count = Counter(
                k for piece in range(product.shares(CHIP).pieces) for k in part(product, piece)
            )
            assert count == Counter(range(product.k)), product


def test_blocks_are_enough_and_fit_at_once() -> None:
    for product in products():
        shares = product.shares(CHIP)
        assert 1 <= shares.blocks <= max(CHIP.multiprocessors, shares.side)
        if product.across:  # a block has one tile
            width = shares.width // BYTES[product.type]
            assert (shares.side - 1) * width < product.columns <= shares.side * width


def test_a_warps_part_of_a_row_is_whole_pieces() -> None:
    for product in products():
        assert product.shares(CHIP).width % 512 == 0
        assert product.lda * BYTES[product.type] % 16 == 0
        assert 0 <= product.lda - product.k < 8


def test_the_ring_fits_into_a_block() -> None:
    for product in products():
        ring = ring_of(product, product.shares(CHIP), CHIP)
        assert ring.stages >= 4
        assert ring.shared <= CHIP.shared_bytes
        if product.across:  # the sums of a block pass through it
            numbers = 2048 // BYTES[product.type]
            assert ring.sums >= (16 if product.rows > 8 else 8) * numbers * 4


def test_what_l2_is_to_keep_is_a_part() -> None:
    for product in products():
        assert 0 <= product.kept(CHIP) <= product.shares(CHIP).stages


@pytest.mark.parametrize(
    ("scan", "chip", "possible"),
    [
        (scan("lstm", False, "bfloat16", 512, 1, 1), CHIP, True),
        (scan("lstm", False, "tf32", 512, 16, 1), CHIP, True),
        (scan("lstm", False, "tf32", 512, 17, 1), CHIP, False),
        (scan("lstm", False, "tf32", 512, 4, 2), CHIP, False),
        (scan("lstm", False, "float32", 512, 4, 1), CHIP, False),
        (scan("lstm", False, "float16", 512, 4, 1), CHIP, True),
        (scan("lstm", True, "float16", 512, 4, 1), CHIP, False),
        (scan("lstm", True, "bfloat16", 513, 4, 1), CHIP, True),
        (scan("gru", True, "bfloat16", 512, 4, 1), CHIP, True),
        (scan("gru", True, "bfloat16", 513, 4, 1), CHIP, False),  # one phase pads over another
        (scan("lstm", False, "bfloat16", 512, 4, 1), Chip(108, 166912, (8, 0)), False),
        (scan("lstm", False, "bfloat16", 512, 4, 1), Chip(148, 232448, (10, 0)), False),
    ],
)
def test_when_a_scan_can_have_them(scan: Scan, chip: Chip, possible: bool) -> None:
    plans = [p for p in placements(scan, chip, in_steps=True) if p.split]
    assert bool(plans) == possible
    assert all(plan.mode == STEPS for plan in plans)
    assert not placements(scan, chip, in_steps=True)[0].split  # too small to gain by it


def test_a_chip_with_few_multiprocessors() -> None:
    product = Streamed("tf32", False, 1, 4 * 32768, 32768)
    few = replace(CHIP, multiprocessors=16)
    assert 1 <= product.shares(few).blocks <= 16


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("kind", "hidden"), [("bfloat16", 4096), ("tf32", 3072)])
def test_a_weight_far_larger_than_the_chip_is_streamed(
    kind: str, hidden: int, backward: bool
) -> None:
    asked = scan("lstm", backward, kind, hidden, 2, 1)
    assert placements(asked, CHIP, in_steps=True)[0].split


@pytest.mark.parametrize("backward", [False, True])
def test_a_weight_that_fits_is_not(backward: bool) -> None:
    asked = scan("lstm", backward, "bfloat16", 1024, 2, 1)
    assert not placements(asked, CHIP, in_steps=True)[0].split


class Multiplying(NamedTuple):
    """In place of a launch: the product by NumPy, from what its words say."""

    product: Streamed

    def repeated(self, stream: int, words: Sequence[int], place: int) -> Callable[[int], None]:
        named = dict(zip(WORDS, words, strict=True))

        def at(name: str, *shape: int) -> Any:
            address = (ctypes.c_float * int(np.prod(shape))).from_address(named[name])
            return np.ctypeslib.as_array(address).reshape(shape)

        def launch(kept: int) -> None:
            assert kept == named["kept"] and WORDS[place] == "kept"
            rows, columns, k, lda, ldb = (
                named[name] for name in ("rows", "columns", "k", "lda", "ldb")
            )
            left = at("a", rows, lda)
            assert not left[:, k:].any()
            if self.product.across:
                matrix = at("b", k, ldb)[:, :columns]
            else:
                matrix = at("b", columns, ldb)[:, :k].T
            out = at("c", named["pieces"], rows, columns)
            out[:] = 0
            out[-1] = left[:, :k] @ matrix

        return launch


@pytest.mark.parametrize("often", [False, True])
@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("hidden", [6, 8, 37, 64])
def test_the_matrix_as_it_lies_or_a_copy(
    across: bool, hidden: int, often: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy whose rows are whole pieces, and only where the matrix's own are not."""
    monkeypatch.setattr(engine, "chip_of", lambda device: CHIP)
    monkeypatch.setattr(engine, "streaming", lambda product, device: Multiplying(product))
    weight = torch.randn(4 * hidden, hidden)
    columns, k = (hidden, 4 * hidden) if across else (4 * hidden, hidden)
    product = Streamed("tf32", across, 3, columns, k)
    left = torch.zeros(3, product.lda)
    left[:, :k] = torch.randn(3, k)
    out = torch.randn(product.shares(CHIP).pieces, 3, columns)
    right = weight if across else weight.t()
    multiply = engine._streaming(product, left, right, out, 0, often)
    multiply()
    assert torch.allclose(out.sum(0), left[:, :k] @ right, atol=1e-4)
    whole = 32 if often else 4
    assert (multiply.matrix.data_ptr() == weight.data_ptr()) == (hidden % whole == 0)
    assert multiply.matrix.stride(0) % whole == 0


def test_gates_that_do_not_lie_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their weight is a matrix made for the purpose, which lies across K."""
    monkeypatch.setattr(engine, "chip_of", lambda device: CHIP)
    monkeypatch.setattr(engine, "streaming", lambda product, device: Multiplying(product))
    made = torch.randn(8, 16)  # [k,columns]
    product = Streamed("tf32", False, 2, 16, 8)
    left, out = torch.randn(2, 8), torch.zeros(1, 2, 16)
    engine._streaming(product, left, made, out, 0, False)()
    assert torch.allclose(out[0], left @ made, atol=1e-5)


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("kind", BYTES)
def test_it_compiles(kind: str, across: bool) -> None:
    """For few rows and many; what spills would pass through the memory that it is to keep busy."""
    pytest.importorskip("cuda.core")
    for rows, hidden in ((3, 4096), (16, 2560)):
        columns, k = (hidden, 4 * hidden) if across else (4 * hidden, hidden)
        product, log = Streamed(kind, across, rows, columns, k), io.StringIO()
        text = compiler.source(streamed_constants(product, CHIP), compiler.STREAMED)
        assert compiler.compile_text(text, "sm_90", log)
        spilled = log.getvalue().split(" bytes spill stores")[0].split()[-1]
        assert int(spilled) <= 16


def test_phases_whose_weight_is_not_whole_lie_across() -> None:
    whole = scan("lstm", False, "tf32", 64, 2, 1)
    assert not product_of(whole, whole.phases[0]).across
    back = scan("lstm", True, "tf32", 64, 2, 1)
    assert product_of(back, back.phases[0]).across
