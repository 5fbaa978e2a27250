"""The products in one launch against float64, over kinds, types and sizes."""

from __future__ import annotations

import pytest
import torch

from zstate.backends.cuda import launch
from zstate.backends.cuda.arguments import Arguments
from zstate.backends.cuda.engine import by_torch, turned
from zstate.backends.cuda.prepared import Memory, current_stream
from zstate.backends.cuda.products import SPLIT, Matrix, Product, item_bytes

TYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "tf32": torch.float32,
    SPLIT: torch.float32,
}
# Of the result, and of what is added up in between: one rounding each. Of split numbers: a matrix
# instruction cuts its sum off, to 23 bits, and 1000 terms are 125 of these.
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "tf32": 2.0**-10, SPLIT: 125 * 2.0**-23}
SIZES = [(1, 8, 8), (64, 64, 64), (65, 72, 80), (200, 136, 304), (7, 8, 1000), (1024, 256, 16)]


def frame_of(arguments: Arguments, tensors: dict[str, torch.Tensor]) -> Memory:
    numbers = [tensor.data_ptr() for tensor in tensors.values()]
    numbers += [numbers[arguments.place((name, 0))] + begin for name, begin in arguments.inside]
    stream = current_stream(torch.cuda.current_device())
    return Memory(numbers + list(arguments.constants), list(tensors.values()), None, None, stream)


def run(products: list[Product], tensors: dict[str, torch.Tensor], kind: str) -> None:
    """In one launch."""
    arguments = Arguments(list(tensors), [])
    assert all(product.in_pieces(16 // item_bytes(kind)) for product in products)
    run = launch.launched_products(products, arguments, kind, torch.cuda.current_device())()
    memory = frame_of(arguments, tensors)
    run(memory.numbers, memory.stream)


def matrices(kind: str, size: tuple[int, int, int], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    m, n, k = size
    shapes = {
        "left": (k, m) if kind == "tn" else (m, k),
        "right": (n, k) if kind == "nt" else (k, n),
    }
    return {
        **{name: torch.randn(shape, device="cuda").to(dtype) for name, shape in shapes.items()},
        "bias": torch.randn(n, device="cuda").to(dtype),
        "out": torch.full((m, n), torch.nan, device="cuda", dtype=dtype),
    }


def wanted(kind: str, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    left, right = tensors["left"].double(), tensors["right"].double()
    return (left.t() if kind == "tn" else left) @ (right.t() if kind == "nt" else right)


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["nt", "nn", "tn"])
@pytest.mark.parametrize("dtype", TYPES)
def test_one_product(dtype: str, kind: str, size: tuple[int, int, int]) -> None:
    m, n, k = size
    if kind == "tn":
        m = -(-m // 8) * 8  # its rows lie side by side
    tensors = matrices(kind, (m, n, k), TYPES[dtype])
    operands = (Matrix(name, tensors[name].shape[1]) for name in ("out", "left", "right"))
    run([Product(kind, *operands, m, n, k, Matrix("bias", n))], tensors, dtype)
    exact = wanted(kind, tensors) + tensors["bias"].double()
    assert error(tensors["out"], exact) < ROUNDING[dtype]


@pytest.mark.parametrize("dtype", TYPES)
def test_infinity_stays_infinity(dtype: str) -> None:
    tensors = matrices("nt", (64, 64, 64), TYPES[dtype])
    tensors["left"][3, 5] = torch.inf
    tensors["right"][:, 5] = torch.where(torch.arange(64, device="cuda") % 2 == 0, 2, -2)
    operands = (Matrix(name, tensors[name].shape[1]) for name in ("out", "left", "right"))
    run([Product("nt", *operands, 64, 64, 64)], tensors, dtype)
    assert tensors["out"][3].tolist() == [torch.inf, -torch.inf] * 32
    assert bool(torch.isfinite(tensors["out"][4:]).all())


@pytest.mark.parametrize("dtype", TYPES)
def test_windows_of_larger_matrices(dtype: str) -> None:
    """What lies beside the windows is neither read nor written."""
    tensors = {
        name: torch.randn(40, 48, device="cuda").to(TYPES[dtype])
        for name in ("out", "left", "right")
    }
    before = tensors["out"].clone()
    left, right = tensors["left"][8:32, 16:32], tensors["right"][:16, 24:48]
    exact = left.double() @ right.double()  # [24,24]
    out, a, b = (
        Matrix("out", 48, 8 * 48 + 8),
        Matrix("left", 48, 8 * 48 + 16),
        Matrix("right", 48, 24),
    )
    run([Product("nn", out, a, b, 24, 24, 16)], tensors, dtype)
    assert error(tensors["out"][8:32, 8:32], exact) < ROUNDING[dtype]
    before[8:32, 8:32] = tensors["out"][8:32, 8:32]
    assert torch.equal(before, tensors["out"])


@pytest.mark.parametrize("dtype", TYPES)
def test_all_that_a_launch_can_hold(dtype: str) -> None:
    """Products of every kind and a sum, beside torch's."""
    kinds = ("nt", "nn", "tn", "nt", "nn", "tn", "nt")
    tensors, products = {}, []
    for place, kind in enumerate(kinds):
        size = (64 + 8 * place, 136, 72)
        made = matrices(kind, size, TYPES[dtype])
        tensors |= {f"{name}{place}": tensor for name, tensor in made.items()}
        out, left, right = (
            Matrix(f"{name}{place}", made[name].shape[1]) for name in ("out", "left", "right")
        )
        products.append(Product(kind, out, left, right, *size))
    tensors["sums"] = torch.randn(5, 300, device="cuda")
    tensors["total"] = torch.empty(200, device="cuda", dtype=TYPES[dtype])
    products.append(Product("sum", Matrix("total", 200), Matrix("sums", 300, 100), None, 1, 200, 5))
    run(products, tensors, dtype)
    ours = {name: tensor.clone() for name, tensor in tensors.items()}
    arguments = Arguments(list(tensors), [])
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    by_torch(products, arguments, dtype)(memory(tensors))
    for name in tensors:
        if name.startswith(("out", "total")):
            assert error(ours[name], tensors[name].double()) < 2 * ROUNDING[dtype], name


@pytest.mark.parametrize("size", [(1, 1), (32, 64), (33, 31), (500, 7), (1030, 260)])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_turned_copy(dtype: str, size: tuple[int, int]) -> None:
    """Of a window: the same numbers, those of a column side by side."""
    rows, columns = size
    window = torch.randn(rows, columns + 9, device="cuda").to(TYPES[dtype])[:, 5 : 5 + columns]
    copy = turned(window, memory({}))
    assert torch.equal(copy, window)
    assert copy.stride() == (1, rows)


@pytest.mark.parametrize("kind", ["nn", "tn"])
def test_a_product_with_a_turned_factor(kind: str) -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    size = (1032, 264, 520)
    tensors = matrices(kind, size, torch.float32)
    operands = (Matrix(name, tensors[name].shape[1]) for name in ("out", "left", "right"))
    product = Product(kind, *operands, *size)
    assert product.wants_turned("tf32")
    by_torch([product], Arguments(list(tensors), []), "tf32")(memory(tensors))
    assert error(tensors["out"], wanted(kind, tensors)) < ROUNDING["tf32"]


def memory(tensors: dict[str, torch.Tensor]) -> Memory:
    stream = torch.cuda.current_stream().cuda_stream
    return Memory([], list(tensors.values()), None, None, stream)
