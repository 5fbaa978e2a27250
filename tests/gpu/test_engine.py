"""The CUDA engine against float64: every option, every way over the chip, sizes at random."""

from __future__ import annotations

import math
import os
import random
from dataclasses import replace

import harness
import pytest
import torch

from zstate import verify
from zstate.backends.cuda import engine, launch, plain
from zstate.descriptors import Activation
from zstate.errors import BackendError

CASES = [(cell, case) for cell, cases in verify.CASES.items() for case in cases]
# A few roundings: where torch's own loop is better than that by luck, it is no measure.
FLOOR = {"float32": 1e-6, "tf32": 1e-3, "bfloat16": 4e-3, "float16": 5e-4}
STRESS = int(os.environ.get("ZSTATE_STRESS", "60"))


@pytest.fixture(autouse=True)
def stop_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "DEBUG", True)


def check(case: verify.Case, dtype: str, seed: int = 0) -> None:
    tf32 = dtype == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    errors = harness.worst(case, "float32" if tf32 else dtype, seed)
    for name, (ours, control) in errors.items():
        if math.isnan(control):  # beyond float16: torch's own loop has overflowed too
            continue
        assert ours <= max(2 * control, FLOOR[dtype]), (name, ours, control)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("cell", "case"), CASES, ids=[f"{c} {k.title}" for c, k in CASES])
def test_option(cell: str, case: verify.Case, dtype: str) -> None:
    check(case, dtype)


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["float32", "tf32", "bfloat16", "float16"])
@pytest.mark.parametrize("cell", list(verify.CASES))
def test_way_over_the_chip(
    cell: str, dtype: str, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "ACCEPTS", lambda plan: plan.mode == mode)
    case = next(case for case in verify.CASES[cell] if case.title == "bidirectional")
    try:
        check(replace(case, sizes=(9, 37, 20, 72)), dtype)
    except BackendError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("seed", range(STRESS))
def test_at_random(seed: int) -> None:
    rng = random.Random(seed)
    _, case = rng.choice(CASES)
    size = (rng.randint(1, 12), rng.choice([1, 2, 7, 16, 33, 70]), rng.randint(1, 40))
    hidden = rng.choice([3, 8, 17, 31, 64, 100, 129, 200, 257, 384])
    kinds = {
        name: rng.choice([Activation.TANH, Activation.SIGMOID, Activation.HARD_SIGMOID])
        for name in case.descriptor.activation_fields
    }
    options = {"bidirectional": rng.random() < 0.5, "reverse": rng.random() < 0.5}
    descriptor = replace(case.descriptor, **kinds, **options)
    check(
        replace(case, descriptor=descriptor, sizes=(*size, hidden), extra={}, scale=0.7),
        rng.choice(["float32", "tf32", "bfloat16", "float16"]),
        seed,
    )


def inputs(case: verify.Case, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    arrays = verify.make_inputs(case, 0)
    return {name: torch.from_numpy(array).to("cuda", dtype) for name, array in arrays.items()}


def a_case(cell: str, size: tuple[int, int, int, int]) -> verify.Case:
    return replace(next(c for c in verify.CASES[cell] if c.title == "all inputs"), sizes=size)


@pytest.mark.parametrize("cell", list(verify.CASES))
@pytest.mark.parametrize("size", [(40, 16, 24, 256), (20, 64, 32, 512)])
def test_the_same_bits_every_time(cell: str, size: tuple[int, int, int, int]) -> None:
    case = a_case(cell, size)
    fed = inputs(case, torch.bfloat16)
    first = harness.run_both(case, fed, "bfloat16", engine)
    for _ in range(5):
        again = harness.run_both(case, fed, "bfloat16", engine)
        for one, other in zip(first, again, strict=True):
            assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("cell", list(verify.CASES))
def test_inside_a_graph(cell: str) -> None:
    case = a_case(cell, (12, 5, 7, 40))
    fed = inputs(case, torch.float32)
    wanted = harness.run_both(case, fed, "float32", engine)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = harness.run_both(case, fed, "float32", engine)
    graph.replay()
    torch.cuda.synchronize()
    for one, other in zip(wanted, found, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_inputs_that_do_not_lie_in_one_piece() -> None:
    case = a_case("lstm", (6, 4, 10, 24))
    fed = inputs(case, torch.float32)
    wanted = harness.run_both(case, fed, "float32", engine)
    spread = {
        name: torch.stack([tensor, tensor], -1)[..., 0] if tensor.ndim else tensor
        for name, tensor in fed.items()
    }
    found = harness.run_both(case, spread, "float32", engine)
    for one, other in zip(wanted, found, strict=True):
        for name in one:
            assert harness.error(other[name], one[name]) < 1e-6


def test_on_another_stream() -> None:
    case = a_case("gru", (8, 3, 5, 33))
    fed = inputs(case, torch.float32)
    wanted = harness.run_both(case, fed, "float32", engine)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = harness.run_both(case, fed, "float32", engine)
    stream.synchronize()
    for one, other in zip(wanted, found, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("size", [(0, 3, 4, 8), (3, 0, 4, 8), (3, 2, 0, 8), (70000, 1, 1, 3)])
def test_empty_and_very_long(size: tuple[int, int, int, int]) -> None:
    case = a_case("lstm", size)
    fed = inputs(case, torch.float32)
    there, back = harness.run_both(case, fed, "float32", engine)
    assert there["state"].shape == (size[0], size[1], 8 if size[3] == 8 else 3)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in back.values())


def test_beside_a_kernel_that_holds_half_of_the_chip() -> None:
    case = a_case("lstm", (30, 64, 16, 512))
    fed = inputs(case, torch.bfloat16)
    wanted = harness.run_both(case, fed, "bfloat16", engine)
    busy, other = torch.randn(6144, 6144, device="cuda"), torch.cuda.Stream()
    with torch.cuda.stream(other):
        for _ in range(20):
            busy = (busy @ busy).clamp(-1, 1)
    found = harness.run_both(case, fed, "bfloat16", engine)
    torch.cuda.synchronize()
    for one, two in zip(wanted, found, strict=True):
        assert all(torch.equal(one[name], two[name]) for name in one)


def test_float64_goes_through_the_plain_path() -> None:
    case = a_case("gru", (5, 3, 4, 6))
    fed = inputs(case, torch.float64)
    found, wanted = (harness.run_both(case, fed, "float64", runner) for runner in (engine, plain))
    for one, other in zip(wanted, found, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
