"""The matrix products around a scan: a library's own or, where they are small, all in one launch.

A call of cuBLAS costs the host ten microseconds, even for a product that takes four. One launch of
products.cu, which computes all small products of a step together, costs it three.
"""

from __future__ import annotations

from typing import NamedTuple

from .arguments import Argument, Arguments

SIDE, THREADS, SHARED = 64, 256, 65536  # of a block: its tile, threads, bytes of shared memory
MOST_JOBS = 8
MOST_WORDS = 1 + 13 * MOST_JOBS
# Microseconds on an H200: a launch, one step of a block over K; a product by cuBLAS.
_LAUNCH, _LIBRARY = 2.5, 5.0
SPLIT = "tf32 in halves"  # nearly full float32, where TF32 would do
_STEP = {"bfloat16": 0.4, "float16": 0.4, "tf32": 0.6, SPLIT: 0.8}
KINDS = {"nt": 0, "nn": 1, "tn": 2, "sum": 3}


class Matrix(NamedTuple):
    """A matrix inside a tensor: its first number, and how far apart its rows are."""

    name: str
    stride: int
    begin: int = 0

    def behind(self, count: int) -> Matrix:
        """The matrix that begins ``count`` numbers later."""
        return self._replace(begin=self.begin + count)


class Heads(NamedTuple):
    """How many products of the same shape there are, and how far apart their matrices begin."""

    number: int
    out: int
    left: int
    right: int


ONE = Heads(1, 0, 0, 0)


class Product(NamedTuple):
    """out [m,n] = left·right + bias, once or for each of several heads.

    ``nt``: left [m,k] and right [n,k], transposed; ``nn``: left [m,k] and right [k,n]; ``tn``: left
    [k,m], transposed, and right [k,n]; ``sum``: out [n], the sum of the k rows of left, in float32.
    """

    kind: str
    out: Matrix
    left: Matrix
    right: Matrix | None
    m: int
    n: int
    k: int
    bias: Matrix | None = None
    heads: Heads = ONE

    @property
    def blocks(self) -> int:
        """Blocks per launch: one per tile or, for a sum, one per THREADS numbers."""
        if self.kind == "sum":
            return -(-self.n // THREADS)
        return -(-self.n // SIDE) * -(-self.m // SIDE)

    def each_head(self) -> list[Product]:
        """The same as products of one head each."""
        heads = self.heads
        if heads.number == 1:
            return [self]
        assert self.right is not None
        return [
            self._replace(
                out=self.out.behind(k * heads.out),
                left=self.left.behind(k * heads.left),
                right=self.right.behind(k * heads.right),
                heads=ONE,
            )
            for k in range(heads.number)
        ]

    def shapes(self) -> dict[str, tuple[int, int]]:
        """Rows and columns of each matrix as they lie."""
        left = (self.m, self.k) if self.kind in ("nt", "nn") else (self.k, self.m)
        right = (self.n, self.k) if self.kind == "nt" else (self.k, self.n)
        return {"out": (self.m, self.n), "left": left, "right": right}

    def wants_turned(self, kind: str) -> bool:
        """Whether the right factor should lie along k: in TF32 a library then needs a third less.

        The copy takes as long as a product with some 700 rows gains.
        """
        is_large = self.m >= 1024 and min(self.k, self.n) >= 256 and self.heads.number == 1
        return kind == "tf32" and self.kind in ("nn", "tn") and is_large

    def in_pieces(self, count: int) -> bool:
        """Whether rows consist of whole, aligned pieces of ``count`` numbers."""
        if self.kind == "sum":
            return True
        shapes = self.shapes()
        matrices = {"out": self.out, "left": self.left, "right": self.right}
        return all(
            matrix is not None
            and not (matrix.stride % count or matrix.begin % count or shapes[name][1] % count)
            for name, matrix in matrices.items()
        )


def item_bytes(kind: str) -> int:
    return 2 if kind in ("bfloat16", "float16") else 4


def are_small(products: list[Product], kind: str, multiprocessors: int) -> bool:
    """Whether one launch of our own can compute these, as fast as cuBLAS."""
    if kind not in _STEP or len(products) > MOST_JOBS:
        return False
    if any(product.heads.number > 1 for product in products):
        return False
    count = 16 // item_bytes(kind)
    if not all(product.in_pieces(count) for product in products):
        return False
    return launch_time(products, kind, multiprocessors) <= _LIBRARY * len(products) + 1


def launch_time(products: list[Product], kind: str, multiprocessors: int) -> float:
    """Microseconds of a launch that computes all of them: its longest sum, or all of its work."""
    deep = 128 // item_bytes(kind)  # numbers of K in a step
    steps = [0 if each.kind == "sum" else -(-each.k // deep) for each in products]
    work = sum(each.blocks * count for each, count in zip(products, steps, strict=True))
    return _LAUNCH + _STEP[kind] * max([*steps, work / multiprocessors])


class Jobs(NamedTuple):
    """The arguments of a launch, and its blocks."""

    words: list[Argument]
    blocks: int


def jobs(products: list[Product], arguments: Arguments, kind: str) -> Jobs:
    """The words of ``Jobs`` in products.cu."""
    own = item_bytes(kind)

    def address(matrix: Matrix | None, size: int = own) -> Argument:
        name, begin = (None, 0) if matrix is None else (matrix.name, matrix.begin)
        return arguments.address(name, begin * size)

    words = [arguments.constant(len(products))]
    first = 0
    for each in products:
        is_sum = each.kind == "sum"
        columns = -(-each.n // (THREADS if is_sum else SIDE))
        words += [
            address(each.left, 4 if is_sum else own),
            *(address(matrix) for matrix in (each.right, each.bias, each.out)),
        ]
        strides = (0 if each.right is None else each.right.stride, each.out.stride)
        numbers = (each.m, each.n, each.k, each.left.stride, *strides, KINDS[each.kind])
        words += [arguments.constant(number) for number in (*numbers, first, columns)]
        first += each.blocks
    return Jobs(words, first)
