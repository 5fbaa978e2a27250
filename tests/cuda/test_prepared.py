"""The steps of a call around a scan that is pretended, on the CPU: memory, arguments, products."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from tests.cuda import forms
from tests.cuda.pretended import CHIP, PretendedScan, pretend
from tests.gpu import checked
from tests.gpu.checked import Call
from zstate import GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor, verify
from zstate.backends import cuda
from zstate.backends.cuda import engine, prepared, printing
from zstate.backends.cuda.placement import GRID, Placement
from zstate.backends.cuda.placements import placements
from zstate.cells import Cell
from zstate.cells.expressions import OPERATORS
from zstate.cells.functions import FUNCTIONS, REDUCTIONS
from zstate.descriptors import AnyDescriptor
from zstate.layout import bind
from zstate.operations import OPERATIONS

T, N, I, H = 5, 18, 6, 10


@pytest.fixture
def scan(monkeypatch: pytest.MonkeyPatch) -> list[PretendedScan]:
    """The engine on the CPU; the scans that it prepared."""
    return pretend(monkeypatch)


def make_call(operation: str, descriptor: AnyDescriptor, **others: torch.Tensor | None) -> Call:
    """A call with all inputs that matter here."""
    op = OPERATIONS[operation]
    gates = len(op.cell.gates)
    D = 2 if descriptor.bidirectional else 1
    shapes = {
        "source": (T, N, I),
        "recurrent_weight": (gates * H, H) if D == 1 else (2, gates * H, H),
        "input_weight": (D * gates * H, I),
        "bias": (D * gates * H,),
        "z_state": (T, N, D * gates * H),
        **dict.fromkeys(("source_gradient", "cell_output_fwd", "output_fwd"), (T, N, D * H)),
    }
    if getattr(descriptor, "reset_after", False):
        shapes["secondary_bias"] = (D * H,)
    given: dict[str, Any] = {name: torch.randn(shape) for name, shape in shapes.items()}
    given |= others
    return checked.make_call(op, given, descriptor)


_prepare = cache(cuda.prepare)


def run(call: Call) -> dict[str, torch.Tensor]:
    return checked.by_name(call, _prepare(call.layout)(call.values))


def close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.allclose(found, wanted.view(found.shape), rtol=1e-4, atol=1e-4)


def by_name(call: Call) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in call.tensors.items() if tensor is not None}


@pytest.mark.parametrize("reverse", [False, True])
def test_the_scan_reads_the_projected_source(scan: list[PretendedScan], reverse: bool) -> None:
    call = make_call("lstm", LSTMDescriptor(training=True, reverse=reverse))
    found, given = run(call), by_name(call)
    (only,) = scan
    wanted = given["source"] @ given["input_weight"].t() + given["bias"]
    assert close(only.read["gates_x"], wanted)
    # zState takes the projected source's place, where both lie in the same order.
    assert (only.addresses["gates_x"] == only.addresses["saved"]) == (not reverse)
    assert only.addresses["weight"] == given["recurrent_weight"].data_ptr()
    assert list(found) == ["state", "cell", "training_state"]
    assert found["training_state"].shape == (T, N, 4 * H)
    fields = {"state": "after_state", "cell": "after_cell", "training_state": "saved"}
    for name, field in fields.items():
        assert torch.equal(found[name], only.seen[field])
    again = run(call)  # new results, the same program
    assert again["state"].data_ptr() != found["state"].data_ptr()
    assert len(scan) == 1


@pytest.mark.parametrize("newer", [False, True])
def test_a_layout_prepares_again_only_for_another_mask_or_precision(
    scan: list[PretendedScan], newer: bool
) -> None:
    """Otherwise runs of one layout share their kernel. TF32 has two names since torch 2.9."""
    matmul: Any = torch.backends.cuda.matmul
    if newer and not hasattr(matmul, "fp32_precision"):
        pytest.skip("this torch has the older name only")
    mask = torch.rand(T, N, 2 * H)
    call = make_call("single_gate_rnn", SingleGateRNNDescriptor(), mask=mask[:, :, :H])
    apart = make_call("single_gate_rnn", SingleGateRNNDescriptor(), mask=mask[:, :, ::2])
    run_layout = cuda.prepare(call.layout)
    for values in (call.values, call.values, apart.values, call.values):
        (state, _) = run_layout(values)  # type: ignore[arg-type]
        assert state is not None and state.shape == (T, N, H)
    assert [each.scan.type for each in scan] == ["float32"] * 2
    try:
        if newer:
            matmul.fp32_precision = "tf32"  # from here on torch refuses to read the older name
        else:
            matmul.allow_tf32 = True
        run_layout(call.values)  # type: ignore[arg-type]
    finally:
        matmul.allow_tf32 = False
    assert [each.scan.type for each in scan] == ["float32", "float32", "tf32"]


def many_gates(at: Any, h: Any) -> Any:
    return sum((at.x[gate] for gate in "bcdefghi"), at.x.a + at.R.a @ h)


@pytest.mark.parametrize(
    ("gates", "equations", "reason"),
    [
        ("a", lambda at, h: at.x.a * h, "cell 'odd' has no product with R to scan"),
        ("abcdefghi", many_gates, "cell 'odd' has 9 gates; the kernels have 8"),
        (
            "a",
            lambda at, h: at.x.a + at.R.a @ h + at.R.a @ (h * h),
            "cell 'odd' multiplies two values by R of gate 'a'",
        ),
    ],
)
def test_a_cell_that_no_kernel_serves_is_refused(gates: str, equations: Any, reason: str) -> None:
    """In words, before anything is prepared."""
    call = make_call("gru_gradients", GRUDescriptor())
    assert cuda.refuses(call.layout) is None
    cell = Cell("odd", tuple(gates), SingleGateRNNDescriptor, equations)
    operation = replace(call.layout.operation, cell=cell)
    other = replace(call.layout, operation=operation, descriptor=SingleGateRNNDescriptor())
    assert cuda.refuses(other) == reason


def test_an_unknown_function_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printing, "FUNCTIONS", printing.FUNCTIONS - {"tanh"})
    call = make_call("lstm", LSTMDescriptor())
    assert cuda.refuses(call.layout) == "it has no function 'tanh' for cell 'lstm'"


def test_every_function_is_known() -> None:
    # A mean needs all units of a row, which are spread over the chip.
    assert set(FUNCTIONS) - REDUCTIONS <= printing.FUNCTIONS | OPERATORS.keys()


def test_a_projected_source_gets_its_bias(scan: list[PretendedScan]) -> None:
    source, bias = torch.randn(T, N, H), torch.randn(H)
    descriptor = SingleGateRNNDescriptor()
    call = make_call("single_gate_rnn", descriptor, source=source, bias=bias, input_weight=None)
    run(call)
    assert close(scan[0].seen["gates_x"], source + bias)
    plain = make_call("single_gate_rnn", descriptor, source=source, bias=None, input_weight=None)
    run(plain)
    assert scan[1].addresses["gates_x"] == source.data_ptr()


def test_inputs_as_they_lie(scan: list[PretendedScan]) -> None:
    """What is spread out or not aligned is copied; a mask is read where it is."""
    spread = torch.randn(T, N, I, 2)[..., 0]
    odd = torch.randn(H * H + 1)[1:].view(H, H)
    mask = torch.rand(T, 1, H)[:, :, :1]
    descriptor = SingleGateRNNDescriptor()
    call = make_call("single_gate_rnn", descriptor, source=spread, recurrent_weight=odd, mask=mask)
    run(call)
    (only,) = scan
    assert torch.equal(only.seen["weight"], odd)
    assert only.addresses["weight"] % 16 == 0 != odd.data_ptr() % 16
    assert close(
        only.seen["gates_x"], spread @ by_name(call)["input_weight"].t() + by_name(call)["bias"]
    )
    strides = [only.addresses[name] for name in ("mask", "mask_t", "mask_n", "mask_h")]
    assert strides == [mask.data_ptr(), H, 0, 0]


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize(
    ("operation", "kind", "options"),
    [
        ("single_gate_rnn", SingleGateRNNDescriptor, {}),
        ("lstm", LSTMDescriptor, {}),
        ("gru", GRUDescriptor, {}),
        ("gru", GRUDescriptor, {"reset_after": True}),
    ],
)
def test_the_contraction(
    scan: list[PretendedScan], operation: str, kind: Any, options: dict[str, bool], both: bool
) -> None:
    """dx, dW and dR are products of what the scan has left, and sums are sums over its groups."""
    call = make_call(f"{operation}_gradients", kind(bidirectional=both, **options))
    found, given = run(call), by_name(call)
    (only,) = scan
    seen, D = only.seen, 2 if both else 1
    rows = T * N
    gates = seen["d_gates"].view(rows, D, -1)
    products = seen["products_0"].view(rows, D, -1) if options else gates
    left = seen["operand_0"].view(rows, D, H)
    assert close(found["source"], gates.reshape(rows, -1) @ given["input_weight"])
    wanted = gates.reshape(rows, -1).t() @ given["source"].view(rows, I)
    assert close(found["input_weight"], wanted)
    recurrent = torch.einsum("rdg,rdh->dgh", products, left)
    if operation == "gru" and not options:
        reset = torch.einsum("rdg,rdh->dgh", gates, seen["operand_1"].view(rows, D, H))
        recurrent = torch.cat([recurrent[:, : 2 * H], reset[:, 2 * H :]], 1)
    assert close(found["recurrent_weight"], recurrent)
    if only.placement.tile_groups(N) > 1:
        sums, width = seen["sum_bias"], found["bias"].numel()
        assert only.addresses["sum_stride"] == sums.shape[1]
        assert close(found["bias"], sums[:, :width].sum(0))
    else:
        assert torch.equal(found["bias"], seen["sum_bias"])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("both", [False, True])
def test_what_the_reset_multiplies(
    scan: list[PretendedScan], both: bool, started: bool, masked: bool
) -> None:
    D = 2 if both else 1
    more: dict[str, torch.Tensor] = {}
    if started:
        more["init_state"] = torch.randn(N, D * H)
    if masked:
        more["mask"] = torch.rand(T, N, D * H)
    descriptor = GRUDescriptor(bidirectional=both, reset_after=True)
    call = make_call("gru_gradients", descriptor, **more)
    run(call)
    given = by_name(call)
    weight = given["recurrent_weight"].view(D, 3, H, H)[:, 2]
    unreset = scan[0].seen["recomputed_0_o"].view(T, N, D, H)
    mask = more.get("mask", torch.ones(T, N, D * H)).view(T, N, D, H)
    state = given["output_fwd"].view(T, N, D, H)
    first = more.get("init_state", torch.zeros(N, D * H)).view(N, D, H)
    for d in range(D):
        for t in range(T):
            before = t - 1 if d == 0 else t + 1
            if not 0 <= before < T and not started:
                continue  # the scan knows it
            h = state[before, :, d] if 0 <= before < T else first[:, d]
            assert close(unreset[t, :, d], (h * mask[t, :, d]) @ weight[d].t())


def test_a_streamed_weight_is_copied(
    scan: list[PretendedScan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Placement, "holds_all", lambda placement, scan: False)
    call = make_call("lstm_gradients", LSTMDescriptor())
    run(call)
    (only,) = scan
    padded = only.placement.padded
    turned = by_name(call)["recurrent_weight"].view(4, H, H).permute(2, 0, 1)
    wanted = torch.zeros(1, padded, 4, padded)
    wanted[0, :H, :, :H] = turned
    assert torch.equal(only.seen["weight"], wanted)


@pytest.mark.parametrize("is_entered", [False, True])
def test_code_is_loaded_on_the_tensors_device(
    scan: list[PretendedScan], is_entered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not this thread has entered that device before; then the caller's is current."""
    current: list[Any] = [1]  # tensors on the CPU have the index None

    @contextmanager
    def device(index: Any) -> Iterator[None]:
        before, current[:] = current[:], [index]
        yield
        current[:] = before

    def kernel_of(*arguments: Any, **options: Any) -> Any:
        assert current == [None]
        return made(*arguments, **options)

    def enter(index: Any) -> None:
        current[:] = [index]

    made = engine.kernel_of
    monkeypatch.setattr(engine, "kernel_of", kernel_of)
    monkeypatch.setattr(prepared, "_current_device", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "device", device)
    if not is_entered:
        monkeypatch.setattr(engine, "enter", enter)
    call = make_call("lstm", LSTMDescriptor())
    cuda.prepare(call.layout)(call.values)  # type: ignore[arg-type]
    assert current == [1] and len(scan) == 1


def test_which_plans_hold_the_weight() -> None:
    small = forms.scan("lstm", False, "bfloat16", 256, 16, 1)
    large = forms.scan("lstm", True, "tf32", 2048, 32, 1)
    assert placements(small, CHIP)[0].holds_all(small)
    best = placements(large, CHIP)[0]
    assert best.mode == GRID
    assert not best.holds_all(large)


def test_nothing_to_scan_goes_the_plain_way(scan: list[PretendedScan]) -> None:
    case = verify.Case("empty", LSTMDescriptor(training=True), sizes=(0, 3, 4, 8))
    arrays = verify.make_inputs(case, 0)
    op = OPERATIONS["lstm"]
    given = [arrays.get(name) for name in op.inputs]
    tensors = tuple(None if array is None else torch.from_numpy(array) for array in given)
    assert run(Call(bind(op, tensors, case.descriptor), tensors))["state"].shape == (0, 3, 8)
    assert not scan
