"""The matrix products around the scan, on the CPU: which are made together, with which words."""

from __future__ import annotations

import pytest
import torch

from zstate.backends.cuda import engine
from zstate.backends.cuda.arguments import Arguments
from zstate.backends.cuda.engine import by_torch
from zstate.backends.cuda.prepared import Memory
from zstate.backends.cuda.products import KINDS, Heads, Matrix, Product, are_small, jobs


def contraction(T: int, N: int, H: int, gates: int = 4) -> list[Product]:
    """dx, dW and dR of a layer with I = H."""
    rows, wide = T * N, gates * H
    dg, x, h, w = (
        Matrix(name, width) for name, width in (("dg", wide), ("x", H), ("h", H), ("w", H))
    )
    return [
        Product("nn", Matrix("dx", H), dg, w, rows, H, wide),
        Product("tn", Matrix("dw", H), dg, x, wide, H, rows),
        Product("tn", Matrix("dr", H), dg, h, wide, H, rows),
    ]


@pytest.mark.parametrize(
    ("products", "kind", "small"),
    [
        (contraction(64, 16, 256), "bfloat16", True),
        (contraction(64, 16, 256, 1), "float16", True),
        (contraction(64, 16, 256), "tf32", False),  # twice the steps over K
        (contraction(16, 4, 64), "tf32", True),
        (contraction(256, 16, 256), "bfloat16", False),
        (contraction(256, 64, 1024), "bfloat16", False),
        (contraction(64, 16, 256), "float32", False),  # no matrix instruction for it
        (contraction(7, 3, 20), "bfloat16", False),  # rows of 40 bytes
        (contraction(7, 3, 20), "tf32", True),
    ],
)
def test_which_products_are_made_in_one_launch(
    products: list[Product], kind: str, small: bool
) -> None:
    assert are_small(products, kind, multiprocessors=132) == small


def test_windows_must_begin_at_a_piece() -> None:
    product = contraction(8, 8, 64)[0]
    assert product.in_pieces(8)
    assert not product._replace(left=Matrix("dg", 256, 4)).in_pieces(8)
    assert not product._replace(out=Matrix("dx", 68)).in_pieces(8)


def frame(tensors: dict[str, torch.Tensor]) -> Memory:
    return Memory([], list(tensors.values()), None, None, 0)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["nt", "nn", "tn"])
def test_products_by_torch(kind: str, bias: bool) -> None:
    """Windows of larger matrices; what lies beside the result stays."""
    torch.manual_seed(0)
    tensors = {name: torch.randn(9, 10).double() for name in ("left", "right", "out", "bias")}
    before = tensors["out"].clone()
    m, n, k = 4, 3, 5
    product = Product(
        kind,
        *(Matrix("out", 10, 21), Matrix("left", 10, 12), Matrix("right", 10, 3)),
        *(m, n, k),
        Matrix("bias", 10, 2) if bias else None,
    )
    by_torch([product], Arguments(list(tensors), []), kind="tf32")(frame(tensors))
    left = tensors["left"][1 : 1 + (k if kind == "tn" else m), 2 : 2 + (m if kind == "tn" else k)]
    right = tensors["right"][: n if kind == "nt" else k, 3 : 3 + (k if kind == "nt" else n)]
    wanted = (left.t() if kind == "tn" else left) @ (right.t() if kind == "nt" else right)
    before[2 : 2 + m, 1 : 1 + n] = wanted + (tensors["bias"].view(-1)[2 : 2 + n] if bias else 0)
    assert torch.allclose(tensors["out"], before, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("kind", "shape", "of", "wants"),
    [
        ("tn", (1024, 256, 256), "tf32", True),
        ("nn", (4096, 300, 999), "tf32", True),
        ("nt", (4096, 300, 999), "tf32", False),
        ("tn", (1023, 256, 256), "tf32", False),
        ("tn", (1024, 255, 256), "tf32", False),
        ("tn", (1024, 256, 256), "bfloat16", False),
        ("tn", (1024, 256, 256), "float32", False),
    ],
)
def test_a_turned_factor(
    kind: str,
    shape: tuple[int, int, int],
    of: str,
    wants: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where it pays; the product stays the same."""
    torch.manual_seed(0)
    m, n, k = shape
    made: list[torch.Tensor] = []

    def turned(matrix: torch.Tensor, memory: Memory) -> torch.Tensor:
        made.append(matrix.t().contiguous().t())
        return made[-1]

    monkeypatch.setattr(engine, "turned", turned)
    left = torch.randn((k, m) if kind == "tn" else (m, k)).double()
    right = torch.randn((n, k) if kind == "nt" else (k, n)).double()
    tensors = {"out": torch.empty(m, n).double(), "left": left, "right": right}
    matrices = (Matrix(name, tensor.shape[1]) for name, tensor in tensors.items())
    by_torch([Product(kind, *matrices, m, n, k)], Arguments(list(tensors), []), of)(frame(tensors))
    wanted = (left.t() if kind == "tn" else left) @ (right.t() if kind == "nt" else right)
    assert torch.allclose(tensors["out"], wanted, rtol=0, atol=1e-10)
    assert len(made) == wants


def test_a_sum_by_torch() -> None:
    tensors = {"sums": torch.randn(3, 10), "out": torch.empty(2, 2)}
    product = Product("sum", Matrix("out", 4), Matrix("sums", 10, 5), None, 1, 4, 3)
    by_torch([product], Arguments(list(tensors), []), kind="tf32")(frame(tensors))
    assert torch.equal(tensors["out"].view(-1), tensors["sums"][:, 5:9].sum(0))


def test_the_words_of_a_launch() -> None:
    names = ["dg", "w", "dx", "dw", "dr", "x", "h", "sums", "total"]
    arguments = Arguments(names, [])
    second = contraction(8, 16, 128)[2]._replace(bias=Matrix("x", 1, 3))
    total = Product("sum", Matrix("total", 300), Matrix("sums", 400, 100), None, 1, 300, 5)
    asked, blocks = jobs([contraction(8, 16, 128)[0], second, total], arguments, "bfloat16")
    numbers = [1_000_000 * (place + 1) for place in range(len(names))]
    numbers += [numbers[arguments.place((name, 0))] + begin for name, begin in arguments.inside]
    numbers += list(arguments.constants)
    count, *words = [numbers[arguments.place(each)] for each in asked]
    found = [words[begin : begin + 13] for begin in range(0, len(words), 13)]
    at = dict(zip(names, numbers, strict=False))
    assert count == len(found) == 3
    # a, b, bias, c; m, n, k; their strides; kind; the first block, tiles side by side
    nn, tn, plus = KINDS["nn"], KINDS["tn"], KINDS["sum"]
    assert found[0] == [at["dg"], at["w"], 0, at["dx"], 128, 128, 512, 512, 128, 128, nn, 0, 2]
    assert found[1] == [
        *(at["dg"], at["h"], at["x"] + 6, at["dr"]),
        *(512, 128, 128, 512, 128, 128, tn, 4, 2),
    ]
    assert found[2] == [at["sums"] + 400, 0, 0, at["total"], 1, 300, 5, 400, 0, 300, plus, 20, 2]
    assert blocks == 22


@pytest.mark.parametrize("kind", ["nt", "tn"])
def test_products_of_several_heads(kind: str) -> None:
    m, n, k, heads = (5, 3, 7, 4) if kind == "nt" else (3, 4, 5, 2)
    left, right = ((m, heads * k), (heads * n, k)) if kind == "nt" else ((k, heads * m), (k, 8))
    out_shape = (m, heads * n) if kind == "nt" else (heads * m, n)
    shapes = {"left": left, "right": right, "out": out_shape}
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
    apart = Heads(heads, n, k, n * k) if kind == "nt" else Heads(heads, m * n, m, n)
    matrices = (Matrix(name, shapes[name][1]) for name in ("out", "left", "right"))
    product = Product(kind, *matrices, m, n, k, heads=apart)
    by_torch([product], Arguments(list(tensors), []), kind="tf32")(frame(tensors))
    found, out = tensors["out"].clone(), tensors["out"].zero_()
    for number in range(heads):
        if kind == "nt":
            a, b = tensors["left"][:, number * k :][:, :k], tensors["right"][number * n :][:n].t()
            out[:, number * n :][:, :n] = a @ b
        else:
            a, b = tensors["left"][:, number * m :][:, :m].t(), tensors["right"][:, number * n :]
            out[number * m :][:m] = a @ b[:, :n]
    torch.testing.assert_close(found, out)
    again = {name: tensor.clone() for name, tensor in tensors.items()}
    by_torch(product.each_head(), Arguments(list(again), []), kind="tf32")(frame(again))
    torch.testing.assert_close(again["out"], out)


def test_one_head_is_no_batch() -> None:
    """Whatever distances a call names for the next head."""
    one = [each._replace(heads=Heads(1, 4096, 64, 64)) for each in contraction(16, 4, 64)]
    assert are_small(one, "tf32", multiprocessors=132)
    assert not are_small([one[0]._replace(heads=Heads(2, 4096, 64, 64))], "tf32", 132)
