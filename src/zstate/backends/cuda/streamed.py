"""The products of a scan in single steps whose weight does not fit on the chip, by streamed.cu.

With few rows a step takes as long as its weight takes to arrive: such a product reads it once, and
its first stages are on their way before the launch before it has ended.
"""

from __future__ import annotations

from typing import NamedTuple

from .phases import Phase
from .placement import TILE, Chip, Scan, round_up

WARPS, THREADS = 8, 288  # warps that compute; one more copies
WORDS = ("a", "b", "c", "rows", "columns", "k", "lda", "ldb", "pieces", "kept")
LEAST_BYTES = 64 << 20  # of a weight that is worth streaming: no smaller one was measured
KEPT_BYTES = 24 << 20  # of a weight, that stay in L2 from step to step
_MOST_BLOCKS = 12  # pieces of 64 bytes of K whose operand a lane keeps, along K
_SUMS = 8192  # bytes of shared memory behind the ring, along K
_MOST_PIECES = 48
# Bytes of a row in a stage, across K: a copy takes 45 ns, whatever its size up to here.
_WIDTH = 2048


class Streamed(NamedTuple):
    """[rows,k] times a matrix of k times ``columns`` numbers that lies along k or across it."""

    type: str
    across: bool
    rows: int
    columns: int
    k: int

    @property
    def value_bytes(self) -> int:
        return 2 if self.type in ("bfloat16", "float16") else 4

    @property
    def has_many_rows(self) -> bool:
        """Whether it has more than one half of a matrix instruction."""
        return self.rows > 8

    @property
    def lda(self) -> int:
        """From row to row of the operand: whole pieces of 16 bytes."""
        return round_up(self.k, 16 // self.value_bytes)

    def shares(self, chip: Chip) -> Shares:
        """How blocks share out the matrix."""
        if self.across:
            side, steps = -(-self.columns * self.value_bytes // _WIDTH), -(-self.k // 16)
            pieces = max(1, min(_MOST_PIECES, chip.multiprocessors // side, steps))
            return Shares(_WIDTH, pieces, side, 1, -(-steps // pieces))
        blocks_of_k = -(-self.k * self.value_bytes // (64 * WARPS))  # of a warp, 64 bytes each
        fewest = -(-blocks_of_k // _MOST_BLOCKS)
        counts = range(min(fewest, chip.multiprocessors), min(fewest + 2, chip.multiprocessors) + 1)
        every = (self._along(count, blocks_of_k, chip) for count in counts)
        return min(every, key=lambda shares: shares.pieces * shares.chunks * shares.width)

    def _along(self, pieces: int, blocks_of_k: int, chip: Chip) -> Shares:
        each = -(-blocks_of_k // pieces)
        chunks = -(-each // 4)
        width = -(-each // chunks) * 64 * WARPS
        groups = -(-self.columns // 8)
        side = min(groups, chip.multiprocessors // pieces)
        return Shares(width, pieces, side, chunks, -(-groups // side) * chunks)

    def kept(self, chip: Chip) -> int:
        """Of a block's stages, those that L2 is asked to keep from step to step."""
        size = self.k * self.columns * self.value_bytes
        return int(min(1, KEPT_BYTES / size) * self.shares(chip).stages)


class Shares(NamedTuple):
    """The grid of blocks: pieces of K, times blocks side by side."""

    width: int  # bytes of a row in a stage
    pieces: int
    side: int
    chunks: int  # along K: stages of a piece
    stages: int  # of a block, at most

    @property
    def blocks(self) -> int:
        return self.pieces * self.side


class Ring(NamedTuple):
    """Shared memory of a block: stages with their barriers, and sums behind them."""

    stages: int
    sums: int
    shared: int


def ring_of(product: Streamed, shares: Shares, chip: Chip) -> Ring:
    """As many stages as there is room for; streamed.cu computes a stage's size likewise."""
    stage = 16 * (shares.width + 16) if product.across else 8 * (shares.width + 64)
    behind = 0 if product.across else _SUMS
    stages = (chip.shared_bytes - behind - 128) // (stage + 16)  # and two barriers
    sums = round_up(stages * (stage + 16), 128)
    return Ring(stages, sums, sums + behind)


def weight_bytes(scan: Scan) -> int:
    """Of one step's products."""
    return sum(each.ins * each.outs for each in scan.phases) * scan.hidden**2 * scan.value_bytes


def can_stream(scan: Scan, chip: Chip) -> bool:
    """Whether streamed.cu can multiply for such a scan, on a chip that was measured.

    Not the gradient in float16: up to 48 sums are each rounded to its narrow range.
    """
    has_type = scan.type != "float32" and not (scan.type == "float16" and scan.backward)
    fits = scan.batch <= TILE and scan.chains == 1 and has_type
    return fits and chip.capability == (9, 0) and not _shares_a_padding(scan)


def gains_by_streaming(scan: Scan, chip: Chip) -> bool:
    """Whether the weight is also far larger than what stays on the chip, by itself or in L2."""
    return weight_bytes(scan) >= LEAST_BYTES and can_stream(scan, chip)


def _shares_a_padding(scan: Scan) -> bool:
    """Whether one phase's operand lies where another's rows are padded."""
    products = [product_of(scan, phase) for phase in scan.phases]
    return len({each.k for each in products}) > 1 and any(each.lda != each.k for each in products)


def product_of(scan: Scan, phase: Phase) -> Streamed:
    """The product of a phase; forward, the weight lies along K if it is the caller's own."""
    columns, k = phase.outs * scan.hidden, phase.ins * scan.hidden
    return Streamed(scan.type, scan.backward or not phase.is_full, scan.batch, columns, k)
