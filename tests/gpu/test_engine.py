"""The CUDA engine against float64: every option, every way over the chip, sizes at random."""

from __future__ import annotations

import ctypes
import math
import os
import random
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import harness
import loop
import pytest
import torch

import zstate as zs
import zstate.torch
from zstate import backends, verify
from zstate.backends.cuda import compiler, engine, launch
from zstate.backends.cuda.placement import GRID, ROW, STEPS, WIDE, Chip, Placement, Scan
from zstate.backends.cuda.placements import placements
from zstate.descriptors import Activation, AnyDescriptor, GRUDescriptor
from zstate.errors import BackendError

CASES = [(cell, case) for cell, cases in verify.CASES.items() for case in cases]
# One rounding to the type that a result is stored in: below that torch's own loop is no measure.
# TF32 rounds both operands of a product. In float32 what is stored is as exact as what is computed,
# and dR is summed over hundreds of rows by torch's GEMM, where the loop adds step by step: eight.
ROUNDING = {"float32": 2.0**-21, "tf32": 2.0**-10, "bfloat16": 2.0**-8, "float16": 2.0**-11}
STRESS = int(os.environ.get("ZSTATE_STRESS", "1000"))


@pytest.fixture(autouse=True)
def stop_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "DEBUG", True)
    backends.PREPARED.clear()  # what was prepared for a call is kept there


def in_single_steps(plan: Placement) -> bool:
    return plan.mode == STEPS


def check(case: verify.Case, dtype: str, seed: int = 0) -> None:
    tf32 = dtype == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    errors = harness.worst(case, "float32" if tf32 else dtype, seed)
    largest = max(each.control for each in errors.values() if not math.isnan(each.control))
    for name, (ours, control, numbers) in errors.items():
        if math.isnan(control):  # beyond float16: torch's own loop has overflowed too
            continue
        bound = 2 * (largest if numbers < harness.FEW else control)
        assert ours <= max(bound, ROUNDING[dtype]), (name, ours, control, numbers)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("cell", "case"), CASES, ids=[f"{c} {k.title}" for c, k in CASES])
def test_option(cell: str, case: verify.Case, dtype: str) -> None:
    check(case, dtype)


@pytest.mark.parametrize("dtype", ["tf32", "bfloat16"])
@pytest.mark.parametrize(("cell", "case"), CASES, ids=[f"{c} {k.title}" for c, k in CASES])
def test_option_in_single_steps(
    cell: str, case: verify.Case, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "ACCEPTS", in_single_steps)
    check(case, dtype)


@pytest.mark.parametrize("dtype", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize(("cell", "case"), CASES, ids=[f"{c} {k.title}" for c, k in CASES])
def test_option_with_one_row_per_block(
    cell: str, case: verify.Case, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "ACCEPTS", lambda plan: plan.mode == ROW)
    check(case, dtype)


@pytest.mark.parametrize("mode", range(6))
@pytest.mark.parametrize("dtype", ["float32", "tf32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("cell", "title"),
    [*((cell, "bidirectional") for cell in verify.CASES), ("lstm", "both, both ways")],
)
def test_way_over_the_chip(
    cell: str, title: str, dtype: str, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []

    def accepts(plan: Placement) -> bool:
        taken.append(plan.mode == mode)
        return taken[-1]

    monkeypatch.setattr(launch, "ACCEPTS", accepts)
    case = next(case for case in verify.CASES[cell] if case.title == title)
    try:
        check(replace(case, sizes=(9, 37, 20, 72)), dtype)
    except BackendError as error:
        pytest.skip(str(error))
    assert any(taken)


def for_many_rows(case: verify.Case, sizes: tuple[int, int, int, int]) -> verify.Case:
    """A case as the scan for many rows can have it: one product per step."""
    if not chip().has_warp_groups:
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
    monkeypatch.setattr(launch, "ACCEPTS", lambda plan: plan.mode == WIDE)
    check(for_many_rows(case, (5, 41, 9, 130)), dtype)


@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("cell", list(verify.CASES))
def test_tiles_of_so_many_rows(cell: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    accepts = lambda plan: plan.rows == rows and plan.mode <= GRID  # noqa: E731
    monkeypatch.setattr(launch, "ACCEPTS", accepts)
    check(a_case(cell, (5, rows if rows < 16 else 70, 9, 136)), "tf32")


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
@pytest.mark.parametrize(("mode", "dtype"), [(0, "tf32"), (1, "bfloat16")])
@pytest.mark.parametrize("cell", list(verify.CASES))
def test_groups_of_few_rows(
    cell: str, mode: int, dtype: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several groups, the last of which has fewer rows than the others."""
    if mode == 1 and not chip().has_clusters:
        pytest.skip("this chip has no clusters")
    monkeypatch.setattr(launch, "ACCEPTS", lambda plan: (plan.mode, plan.rows) == (mode, rows))
    check(a_case(cell, (5, 11, 9, 40)), dtype)


def test_what_the_driver_refuses_goes_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    fits = launch.Kernel.fits
    first = placements(Scan("lstm", False, False, "bfloat16", 72, 37, 2), chip(), True)[0].mode
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
    with pytest.raises(BackendError, match="refused by the driver"):
        check(a_case("gru", (3, 4, 5, 88)), "bfloat16")


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
    monkeypatch.setattr(launch, "ACCEPTS", lambda plan: in_single_steps(plan) and plan.rows == rows)
    kind = rng.choice(types_for(case))
    monkeypatch.setattr(engine, "FEW_STEPS", rng.choice([1, 100]))  # TF32: R is turned or not
    check(case, kind, seed)


@pytest.mark.parametrize("seed", range(STRESS // 5))
def test_at_random_with_one_row_per_block(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    lanes = rng.choice([1, 2, 4])
    case = random_case(rng)
    steps, batch, width, _ = case.sizes
    sizes = (steps, batch, width, rng.randint(1, 64))
    case = replace(case, sizes=sizes, extra={"mask": (steps, batch, 1)} if case.extra else {})
    accepts = lambda plan: plan.mode == ROW and plan.chunk >= lanes  # noqa: E731
    monkeypatch.setattr(launch, "ACCEPTS", accepts)
    check(case, rng.choice(["float32", *types_for(case)]), seed)


@pytest.mark.parametrize("seed", range(STRESS // 5))
def test_at_random_for_many_rows(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    batch, hidden = rng.randint(17, 300), rng.randint(97, 400)
    sizes = (rng.randint(1, 7), batch, rng.randint(1, 9), hidden)
    case = for_many_rows(random_case(rng), sizes)
    tiles = rng.randint(1, min(3, -(-batch // 32)))
    pieces = rng.choice([2, 4]) if hidden > 200 else 2
    taken = []

    def accepts(plan: Placement) -> bool:
        wanted = plan.mode == WIDE and plan.tiles >= tiles and plan.pieces >= pieces
        taken.append(wanted)
        return wanted

    monkeypatch.setattr(launch, "ACCEPTS", accepts)
    check(case, rng.choice(types_for(case)), seed)
    assert any(taken)


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
    sizes = (*size, rng.choice([8, 40, 64, 136, 256]))
    kind = rng.choice(["tf32", "bfloat16", "float16"])
    check(replace(case, descriptor=descriptor, without=left_out, sizes=sizes, extra={}), kind, seed)


OPTIONAL = (
    *("mask", "peephole", "secondary_bias", "bias", "init_state", "init_cell"),
    *("state_gradient", "cell_gradient"),
)


def descriptor_directions(descriptor: AnyDescriptor) -> int:
    return 2 if descriptor.bidirectional else 1


def chip() -> Chip:
    return launch.chip_of(torch.cuda.current_device())


def inputs(case: verify.Case, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    arrays = verify.make_inputs(case, 0)
    return {name: torch.from_numpy(array).to("cuda", dtype) for name, array in arrays.items()}


def a_case(cell: str, size: tuple[int, int, int, int]) -> verify.Case:
    return replace(next(c for c in verify.CASES[cell] if c.title == "all inputs"), sizes=size)


@pytest.mark.parametrize("cell", list(verify.CASES))
@pytest.mark.parametrize("size", [(40, 16, 24, 256), (20, 64, 32, 512)])
@pytest.mark.parametrize("single_steps", [False, True])
def test_the_same_bits_every_time(
    cell: str,
    size: tuple[int, int, int, int],
    single_steps: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if single_steps:
        monkeypatch.setattr(launch, "ACCEPTS", in_single_steps)
    case = a_case(cell, size)
    fed = inputs(case, torch.bfloat16)
    first = harness.run_both(case, fed, "bfloat16", harness.ENGINE)
    for _ in range(5):
        again = harness.run_both(case, fed, "bfloat16", harness.ENGINE)
        for one, other in zip(first, again, strict=True):
            assert all(harness.error(other[name], one[name]) < 1e-12 for name in one)


@pytest.mark.parametrize("cell", list(verify.CASES))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_inside_a_graph(cell: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one launch in full float32, and in single steps."""
    torch.backends.cuda.matmul.allow_tf32 = False
    if dtype != "float32":
        monkeypatch.setattr(launch, "ACCEPTS", in_single_steps)
    case = a_case(cell, (12, 5, 7, 40))
    fed = inputs(case, harness.TYPES[dtype])
    wanted = harness.run_both(case, fed, dtype, harness.ENGINE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = harness.run_both(case, fed, dtype, harness.ENGINE)
    graph.replay()
    torch.cuda.synchronize()
    for one, other in zip(wanted, found, strict=True):
        assert all(harness.error(other[name], one[name]) < 1e-12 for name in one)


def test_inputs_that_do_not_lie_in_one_piece() -> None:
    case = a_case("lstm", (6, 4, 10, 24))
    fed = inputs(case, torch.float32)
    wanted = harness.run_both(case, fed, "float32", harness.ENGINE)
    spread = {
        name: torch.stack([tensor, tensor], -1)[..., 0] if tensor.ndim else tensor
        for name, tensor in fed.items()
    }
    found = harness.run_both(case, spread, "float32", harness.ENGINE)
    for one, other in zip(wanted, found, strict=True):
        for name in one:
            assert harness.error(other[name], one[name]) < 1e-6


def test_on_another_stream() -> None:
    case = a_case("gru", (8, 3, 5, 33))
    fed = inputs(case, torch.float32)
    wanted = harness.run_both(case, fed, "float32", harness.ENGINE)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = harness.run_both(case, fed, "float32", harness.ENGINE)
    stream.synchronize()
    for one, other in zip(wanted, found, strict=True):
        assert all(harness.error(other[name], one[name]) < 1e-12 for name in one)


@pytest.mark.parametrize("size", [(0, 3, 4, 8), (3, 0, 4, 8), (3, 2, 0, 8), (70000, 1, 1, 3)])
def test_empty_and_very_long(size: tuple[int, int, int, int]) -> None:
    case = a_case("lstm", size)
    fed = inputs(case, torch.float32)
    there, back = harness.run_both(case, fed, "float32", harness.ENGINE)
    assert there["state"].shape == (size[0], size[1], 8 if size[3] == 8 else 3)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in back.values())


HOLD = """
extern "C" __global__ void hold(long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {}
}
"""


def hold_half_of_the_chip(stream: torch.cuda.Stream, cycles: int) -> None:
    """A kernel that keeps every second multiprocessor for itself."""
    driver, where = launch.driver, chip()
    code = compiler.compile_text(HOLD, "sm_{}{}".format(*where.capability))
    function = launch.checked(
        driver.cuModuleGetFunction(launch.checked(driver.cuModuleLoadData(code)), b"hold")
    )
    dynamic = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    launch.checked(driver.cuFuncSetAttribute(function, dynamic, where.shared_bytes))
    argument = ctypes.c_int64(cycles)
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
    grid = (where.multiprocessors // 2, 1, 1)
    launch.checked(
        driver.cuLaunchKernel(
            function,
            *(*grid, 128, 1, 1),
            *(where.shared_bytes, driver.CUstream(stream.cuda_stream)),
            *(ctypes.addressof(pointers), 0),
        )
    )


@pytest.mark.parametrize("size", [(30, 64, 16, 512), (30, 16, 16, 256), (20, 40, 16, 1024)])
def test_beside_a_kernel_that_holds_half_of_the_chip(size: tuple[int, int, int, int]) -> None:
    case = a_case("lstm", size)
    fed = inputs(case, torch.bfloat16)
    wanted = harness.run_both(case, fed, "bfloat16", harness.ENGINE)
    torch.cuda.synchronize()
    other, held = torch.cuda.Stream(), torch.cuda.Event()
    hold_half_of_the_chip(other, 300_000_000)  # a sixth of a second
    held.record(other)
    found = harness.run_both(case, fed, "bfloat16", harness.ENGINE)
    assert not held.query()  # it was there all the while that these were launched
    torch.cuda.synchronize()
    for one, two in zip(wanted, found, strict=True):
        assert all(torch.equal(one[name], two[name]) for name in one)


def test_more_than_two_to_the_31_elements() -> None:
    """What lies behind the 2^31st element comes out as if it were a call of its own."""
    T, N, H, last = 34_000, 1024, 64, 30
    torch.manual_seed(0)
    R = (torch.randn(H, H, device="cuda") * H**-0.5).bfloat16()
    x = torch.empty(T, N, H, device="cuda", dtype=torch.bfloat16).normal_()
    assert x.numel() > 2**31
    descriptor = zs.SingleGateRNNDescriptor(training=True, activation=Activation.TANH)
    state, z = zs.single_gate_rnn(x, R, descriptor=descriptor)
    end, z_end = zs.single_gate_rnn(
        x[-last:], R, init_state=state[-last - 1], descriptor=descriptor
    )
    assert torch.equal(state[-last:], end)
    assert torch.equal(z[-last:], z_end)
    back = zs.single_gate_rnn_gradients(x, R, x, z, descriptor=descriptor).source
    back_end = zs.single_gate_rnn_gradients(
        *(x[-last:], R, x[-last:], z_end), init_state=state[-last - 1], descriptor=descriptor
    ).source
    assert torch.equal(back[-last:], back_end)
    assert bool(torch.isfinite(back[::1000]).all())


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_a_module_inside_a_graph(name: str) -> None:
    """Forward alone, and a training step, of a two-layer module in both directions."""
    torch.manual_seed(0)
    module = getattr(zstate.torch, name)(24, 40, num_layers=2, bidirectional=True).cuda()
    x = torch.randn(9, 5, 24, device="cuda", requires_grad=True)
    leaves = [x, *module.parameters()]

    def infer() -> torch.Tensor:
        with torch.no_grad():
            return module(x)[0]

    def train() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(module(x)[0].square().sum(), leaves)

    for function in (infer, train):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            wanted = [tensor.clone() for tensor in listed(function())]
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = listed(function())
        for tensor in found:
            tensor.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert all(map(torch.equal, wanted, found))


def listed(result: torch.Tensor | tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


# racecheck does not follow st.async, which a cluster's blocks exchange by: of a cluster it sees the
# accesses inside each block.
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_the_sanitizer_finds_nothing(tool: str) -> None:
    program = shutil.which("compute-sanitizer")
    if program is None:
        pytest.skip("compute-sanitizer is not installed")
    small = Path(__file__).with_name("sanitized.py")
    done = subprocess.run(
        [
            *(program, "--tool", tool, "--error-exitcode", "9"),
            *(["--report-api-errors", "no"] if tool == "memcheck" else []),
            *(sys.executable, str(small), "012345"),
        ],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "calls ran" in done.stdout


def test_a_repeated_call_sees_who_else_has_a_say() -> None:
    """Calls like one before take a short way: not under autocast, autograd or a transform."""
    case = a_case("lstm", (6, 4, 16, 24))
    fed = inputs(case, torch.float32)
    names = ("source", "recurrent_weight", "input_weight", "bias")
    x, R, W, b = (fed[name] for name in names)

    def call() -> torch.Tensor:
        return zs.lstm(x, R, input_weight=W, bias=b).state

    first = call()
    assert torch.equal(call(), first)
    with torch.autocast("cuda", torch.bfloat16):
        assert call().dtype == torch.bfloat16
    moved = torch.func.vmap(lambda x: zs.lstm(x, R, input_weight=W, bias=b).state)(x.unsqueeze(0))
    assert harness.error(moved[0], first) < 1e-6
    W.requires_grad_(True)
    recorded = call()
    assert recorded.requires_grad
    with torch.no_grad():
        assert not call().requires_grad
    directions = torch.randn(3, *recorded.shape, device="cuda")
    (batched,) = torch.autograd.grad(
        recorded, W, directions, is_grads_batched=True, retain_graph=True
    )
    for one, direction in zip(batched, directions, strict=True):
        (alone,) = torch.autograd.grad(recorded, W, direction, retain_graph=True)
        assert harness.error(one, alone) < 1e-5


def test_in_a_thread_that_never_called_cuda() -> None:
    """As autograd's are: neither known programs nor new ones may count on a current context."""
    known, new = (
        a_case("single_gate_rnn", (9, 5, 16, 40)),
        a_case("single_gate_rnn", (8, 5, 16, 40)),
    )
    fed, more = inputs(known, torch.bfloat16), inputs(new, torch.bfloat16)
    harness.run_both(known, fed, "bfloat16", harness.ENGINE)
    torch.cuda.synchronize()
    done: list[str] = []

    def work(case: verify.Case, tensors: dict[str, torch.Tensor]) -> None:
        harness.run_both(case, tensors, "bfloat16", harness.ENGINE)
        done.append(case.title)

    for case, tensors in ((known, fed), (new, more)):
        thread = threading.Thread(target=work, args=(case, tensors))
        thread.start()
        thread.join()
    torch.cuda.synchronize()
    assert len(done) == 2


def test_from_several_threads() -> None:
    """The same program on one stream each; the arguments of a launch are not mixed up."""
    case = a_case("gru", (9, 5, 16, 40))
    fed = [inputs(case, torch.bfloat16) for _ in range(4)]
    for place, tensors in enumerate(fed):
        tensors["source"] = tensors["source"] + place
    wanted = [harness.run_both(case, tensors, "bfloat16", harness.ENGINE) for tensors in fed]
    torch.cuda.synchronize()
    wrong: list[str] = []

    def work(place: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                found = harness.run_both(case, fed[place], "bfloat16", harness.ENGINE)
                torch.cuda.current_stream().synchronize()
                for one, other in zip(wanted[place], found, strict=True):
                    wrong.extend(name for name in one if not torch.equal(one[name], other[name]))

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(fed))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_float64_goes_through_the_pipeline() -> None:
    case = a_case("gru", (5, 3, 4, 6))
    fed = inputs(case, torch.float64)
    found, wanted = (
        harness.run_both(case, fed, "float64", runner) for runner in (harness.ENGINE, loop)
    )
    for one, other in zip(wanted, found, strict=True):
        assert all(harness.error(other[name], one[name]) < 1e-12 for name in one)
