"""The CUDA engine in company: repeated, in graphs, on streams and threads, beside other kernels."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import harness
import loop
import pytest
import torch

import zstate as zs
import zstate.torch
from zstate import verify
from zstate.backends.cuda import compiler, launch
from zstate.descriptors import Activation


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
        harness.choose(monkeypatch, harness.in_single_steps)
    case = harness.a_case(cell, size)
    fed = harness.inputs(case, torch.bfloat16)
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
        harness.choose(monkeypatch, harness.in_single_steps)
    case = harness.a_case(cell, (12, 5, 7, 40))
    fed = harness.inputs(case, harness.TYPES[dtype])
    wanted = harness.run_both(case, fed, dtype, harness.ENGINE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = harness.run_both(case, fed, dtype, harness.ENGINE)
    graph.replay()
    torch.cuda.synchronize()
    for one, other in zip(wanted, found, strict=True):
        assert all(harness.error(other[name], one[name]) < 1e-12 for name in one)


def test_inputs_that_do_not_lie_in_one_piece() -> None:
    case = harness.a_case("lstm", (6, 4, 10, 24))
    fed = harness.inputs(case, torch.float32)
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
    case = harness.a_case("gru", (8, 3, 5, 33))
    fed = harness.inputs(case, torch.float32)
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
    case = harness.a_case("lstm", size)
    fed = harness.inputs(case, torch.float32)
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
    driver, where = launch.driver, harness.chip()
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
    case = harness.a_case("lstm", size)
    fed = harness.inputs(case, torch.bfloat16)
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
    case = harness.a_case("lstm", (6, 4, 16, 24))
    fed = harness.inputs(case, torch.float32)
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
        harness.a_case("single_gate_rnn", (9, 5, 16, 40)),
        harness.a_case("single_gate_rnn", (8, 5, 16, 40)),
    )
    fed, more = harness.inputs(known, torch.bfloat16), harness.inputs(new, torch.bfloat16)
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
    case = harness.a_case("gru", (9, 5, 16, 40))
    fed = [harness.inputs(case, torch.bfloat16) for _ in range(4)]
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
    case = harness.a_case("gru", (5, 3, 4, 6))
    fed = harness.inputs(case, torch.float64)
    found, wanted = (
        harness.run_both(case, fed, "float64", runner) for runner in (harness.ENGINE, loop)
    )
    for one, other in zip(wanted, found, strict=True):
        assert all(harness.error(other[name], one[name]) < 1e-12 for name in one)
