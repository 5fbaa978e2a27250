"""The CUDA engine's steps as JAX takes them, on the CPU around a scan that is pretended: they read
and make what torch's steps do, which the tests of the backend check. And what a launch is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

jax = pytest.importorskip("jax")

from tests.cuda.pretended import CHIP, PretendedScan, left_in, named, pretend  # noqa: E402
from zstate import GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor, verify  # noqa: E402
from zstate.backends.cuda import calls, engine  # noqa: E402
from zstate.backends.cuda.placement import CLUSTER, GRID, Placement  # noqa: E402
from zstate.backends.cuda.placements import placements  # noqa: E402
from zstate.descriptors import AnyDescriptor  # noqa: E402
from zstate.jax import cuda  # noqa: E402
from zstate.jax.signature import Signature  # noqa: E402
from zstate.layout import bind  # noqa: E402
from zstate.operations import OPERATIONS  # noqa: E402

SIZES = (5, 18, 6, 10)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[PretendedScan]:
    return pretend(monkeypatch)


def inputs_of(name: str, descriptor: AnyDescriptor, without: frozenset[str]) -> dict[str, Any]:
    case = verify.Case("steps", descriptor, without, SIZES)
    given = verify.make_inputs(case, 3)
    operation = OPERATIONS[name]
    if operation.is_gradient:
        there = verify.run_forward(case, given, "reference")
        given |= {k: there[v] for k, v in operation.cell.fed_back.items()}
    wanted = (n for n in operation.inputs if n in given)
    return {n: given[n].astype(np.float32) for n in wanted}


CASES = [
    ("single_gate_rnn", SingleGateRNNDescriptor(training=True)),
    ("lstm", LSTMDescriptor(training=True)),
    ("lstm", LSTMDescriptor(training=True, reverse=True)),
    ("lstm", LSTMDescriptor(training=True, bidirectional=True)),
    ("gru", GRUDescriptor(training=True, bidirectional=True)),
    ("gru", GRUDescriptor(training=True, reset_after=True)),
    ("gru", GRUDescriptor(training=True, reset_after=True, reverse=True)),
    ("gru", GRUDescriptor(training=True, reset_after=True, bidirectional=True)),
]
WITHOUT = [
    frozenset[str](),
    frozenset({"mask", "init_state"}),
    frozenset({"init_state"}),
    frozenset({"input_weight"}),
    frozenset({"input_weight", "bias", "mask"}),
]


@pytest.mark.parametrize(
    ("without", "streamed"),
    [*((each, False) for each in WITHOUT), (frozenset[str](), True)],
    ids=lambda value: "-".join(sorted(value)) if isinstance(value, frozenset) else str(value),
)
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize(("cell", "descriptor"), CASES)
def test_steps_are_those_of_torch(
    kernels: list[PretendedScan],
    monkeypatch: pytest.MonkeyPatch,
    cell: str,
    descriptor: AnyDescriptor,
    gradient: bool,
    without: frozenset[str],
    streamed: bool,
) -> None:
    if streamed:
        monkeypatch.setattr(Placement, "holds_all", lambda *_: False)
    name = f"{cell}_gradients" if gradient else cell
    given, operation = inputs_of(name, descriptor, without), OPERATIONS[name]
    tensors = tuple(torch.from_numpy(given[n]) if n in given else None for n in operation.inputs)
    layout = bind(operation, tensors, descriptor)
    wanted = engine.Runner(layout)(tensors)
    again = (kernels[0].scan, kernels[0].options, kernels[0].placement)
    read: dict[str, Any] = {}

    def run_scan(call: Any, step: calls.RunScan, values: dict[str, Any]) -> dict[str, Any]:
        tensors, written = named(step.fields), step.written
        read.update({f: values[name] for f, name in tensors.items() if f not in written})
        names = {name for f, name in tensors.items() if f in written}
        return {name: left_in(name, cuda._type(call, name)[0]) for name in names}

    monkeypatch.setattr(cuda, "_run_scan", run_scan)
    monkeypatch.setattr(cuda, "_kernel", lambda *_: PretendedScan(*again))
    with jax.default_matmul_precision("highest"):
        found = cuda.run(
            Signature(OPERATIONS[name], descriptor, tuple(given)), list(given.values())
        )
    made = [each for each in wanted if each is not None]
    assert len(found) == len(made)
    for one, other in zip(found, made, strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=2e-5, atol=2e-5)
    written = kernels[0].written
    wanted_read = {f: t.numpy() for f, t in kernels[0].read.items() if f not in written}
    assert read.keys() == wanted_read.keys()
    for field, value in wanted_read.items():
        own = np.asarray(read[field]).reshape(value.shape)
        if (
            field == "recomputed_0_o" and "init_state" in without
        ):  # unread where nothing came before
            first = own.shape[0] // 5 if own.ndim == 2 else 1
            own, value = own[first:-first], value[first:-first]
        np.testing.assert_allclose(own, value, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("mode", [CLUSTER, GRID])
@pytest.mark.parametrize("gradient", [False, True])
def test_what_a_launch_is_told(monkeypatch: pytest.MonkeyPatch, gradient: bool, mode: int) -> None:
    """Every word is a number, or an address in the operand or result that its field names."""
    descriptor = LSTMDescriptor(training=True)
    name = "lstm_gradients" if gradient else "lstm"
    given = inputs_of(name, descriptor, frozenset())
    given["mask"] = given["mask"][:, :1, :]
    told: dict[str, Any] = {}
    plans: list[Placement] = []
    made: list[PretendedScan] = []

    def ffi_call(target: str, types: Any, input_output_aliases: Any) -> Any:
        def run(*operands: Any, **attributes: Any) -> Any:
            told.update(attributes, operands=operands, types=types, aliases=input_output_aliases)
            return [jax.numpy.ones(each.shape, each.dtype) for each in types]

        assert target == "zstate_launch"
        return run

    def kernel(layout: Any, shapes: Any) -> Any:
        scan = calls.scan_of(layout, exact=True)
        plans.append(next(p for p in placements(scan, CHIP) if p.mode == mode))
        made.append(PretendedScan(scan, calls.options_of(layout, shapes, False), plans[-1]))
        return made[-1]

    monkeypatch.setattr(cuda, "_kernel", kernel)
    monkeypatch.setattr(jax.ffi, "ffi_call", ffi_call)
    cuda.run(Signature(OPERATIONS[name], descriptor, tuple(given)), list(given.values()))
    T, N, _, H = SIZES
    fields, written = made[0].words, made[0].written
    words = dict(zip(fields, told["words"].reshape(-1, 2).tolist(), strict=True))
    assert words["T"] == [-1, T] and words["N"] == [-1, N] and words["step"] == [-1, N * H]
    assert [words[n] for n in ("mask_t", "mask_n", "mask_h")] == [[-1, H], [-1, 0], [-1, 1]]
    operands = told["operands"]
    for field, tensor in (
        ("mask", "mask"),
        ("own_peephole", "peephole"),
        ("initial_state", "init_state"),
    ):
        place, begin = words[field]
        assert begin == 0
        np.testing.assert_array_equal(operands[place], given[tensor])
    results = {f: words[f][0] - len(operands) for f in written if words[f][0] >= 0}
    assert set(results.values()) == set(range(len(told["types"])))
    shapes = {field: told["types"][place].shape for field, place in results.items()}
    if gradient:
        assert shapes["d_gates"] == (T * N, 4 * H) and shapes["operand_0"] == (T * N, H)
        assert told["aliases"] == {}
    else:
        assert shapes["after_state"] == shapes["after_cell"] == (T, N, H)
        assert shapes["saved"] == (T, N, 4 * H)
        assert told["aliases"] == {words["gates_x"][0]: results["saved"]}
    assert ("exchange" in results) == (mode == GRID)
    (plan,) = plans
    rows = plan.groups * plan.tiles * plan.rows
    filled = T * rows * plan.padded * (4 if gradient else 1) if mode == GRID else 0
    together = [0, plan.blocks] if mode == CLUSTER else [1, 1]
    places = [fields.index("first_group"), fields.index("exchange")]
    order = "cooperative cluster threads shared_bytes first_group exchange filled_words"
    assert told["fields"] == order  # csrc/xla/launches.cpp reads these and no others
    assert told["launch"].tolist() == [*together, plan.threads, plan.shared, *places, filled]
    assert told["groups"].tolist() == [0, 12, 2, 6]
    assert told["code"].tobytes() == b"machine code\0\0\0\0"


def test_backend_of_another_platform_is_refused() -> None:
    import zstate.jax as zj
    from zstate import BackendError

    x, r = jax.numpy.ones((3, 2, 4)), jax.numpy.ones((4, 4))
    with pytest.raises(BackendError, match=r"\[single_gate_rnn\] backend 'cuda' cannot serve"):
        zj.single_gate_rnn(x, r, backend="cuda")
    signature = SimpleNamespace(operation=OPERATIONS["lstm"], backend="cuda")
    context = SimpleNamespace(module_context=SimpleNamespace(platforms=("cpu",)))
    from zstate.jax import ffi, primitives

    with pytest.raises(BackendError, match="it is compiled for cpu"):
        primitives._lowering("native", ffi)(context, signature=signature)
