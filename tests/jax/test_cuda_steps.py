"""The CUDA engine's steps as JAX takes them, on the CPU around a scan that is pretended: they read
and make what torch's steps do, which the tests of the backend check. And what a launch is told."""

from __future__ import annotations

import zlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

jax = pytest.importorskip("jax")

from zstate import GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor, verify  # noqa: E402
from zstate.backends.cuda import calls, engine, prepared  # noqa: E402
from zstate.backends.cuda.arguments import MASK, Arguments  # noqa: E402
from zstate.backends.cuda.launch import FIELDS, Kernel  # noqa: E402
from zstate.backends.cuda.placement import CLUSTER, GRID, Chip  # noqa: E402
from zstate.backends.cuda.placements import placements  # noqa: E402
from zstate.backends.cuda.prepared import Memory, tensor_of  # noqa: E402
from zstate.descriptors import AnyDescriptor  # noqa: E402
from zstate.jax import cuda  # noqa: E402
from zstate.jax.signature import Signature  # noqa: E402
from zstate.layout import bind  # noqa: E402
from zstate.operations import OPERATIONS  # noqa: E402

CHIP = Chip(132, 232448, (9, 0))
SIZES = (5, 18, 6, 10)


def pretended(name: str, shape: tuple[int, ...]) -> Any:
    """What the scan leaves in a tensor."""
    return np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape).astype(np.float32)


class Pretended:
    """A kernel that is never launched; it keeps what its scan was given to read."""

    fields = Kernel.fields

    def __init__(self, scan: Any, placement: Any) -> None:
        self.scan, self.placement, self.device = scan, placement, 0
        self.exchange_words = 8 if placement.mode == GRID else 0
        self.code, self.launches = b"machine code", [(0, 12), (2, 6)]
        self.read: dict[str, Any] = {}

    def launched(self, arguments: Arguments, steps: int, fields: dict[str, Any]) -> Any:
        def run(memory: Memory) -> None:
            named = {f: a[0] for f, a in fields.items() if not isinstance(a, int)}
            named = {f: name for f, name in named.items() if name not in MASK}
            written = calls.WRITTEN[self.scan.backward]
            self.read = {
                f: tensor_of(arguments, memory, name).numpy().copy()
                for f, name in named.items()
                if f not in written
            }
            for name in {name for f, name in named.items() if f in written}:
                tensor = tensor_of(arguments, memory, name)
                if tensor.dtype == torch.float32:
                    tensor.copy_(torch.from_numpy(pretended(name, tuple(tensor.shape))))

        return run


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[Pretended]:
    made: list[Pretended] = []

    def kernel_of(scan: Any, options: Any, device: Any) -> Any:
        made.append(Pretended(scan, placements(scan, CHIP)[0]))
        return made[-1]

    for name, value in (("kernel_of", kernel_of), ("chip_of", lambda _: CHIP)):
        monkeypatch.setattr(engine, name, value)
    monkeypatch.setattr(engine, "enter", lambda _: None)
    monkeypatch.setattr(engine, "are_small", lambda *_: False)
    monkeypatch.setattr(engine, "_launching", lambda step: step)
    monkeypatch.setattr(prepared, "enter", lambda _: None)
    monkeypatch.setattr(prepared, "_current_device", lambda: None)
    monkeypatch.setattr(prepared, "current_stream", lambda _: 0)
    return made


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
    kernels: list[Pretended],
    monkeypatch: pytest.MonkeyPatch,
    cell: str,
    descriptor: AnyDescriptor,
    gradient: bool,
    without: frozenset[str],
    streamed: bool,
) -> None:
    if streamed:
        from zstate.backends.cuda.placement import Placement

        monkeypatch.setattr(Placement, "holds_all", lambda *_: False)
    name = f"{cell}_gradients" if gradient else cell
    given, operation = inputs_of(name, descriptor, without), OPERATIONS[name]
    tensors = tuple(torch.from_numpy(given[n]) if n in given else None for n in operation.inputs)
    layout = bind(operation, tensors, descriptor)
    wanted = engine.Runner(layout)(tensors)
    read: dict[str, Any] = {}

    def run_scan(call: Any, fields: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        written = calls.WRITTEN[call.layout.operation.is_gradient]
        named = {f: a[0] for f, a in fields.items() if not isinstance(a, int)}
        read.update({f: values[n] for f, n in named.items() if f not in written and n not in MASK})
        return {n: pretended(n, cuda._type(call, n)[0]) for f, n in named.items() if f in written}

    monkeypatch.setattr(cuda, "_run_scan", run_scan)
    monkeypatch.setattr(
        cuda, "_kernel", lambda *_: Pretended(kernels[0].scan, kernels[0].placement)
    )
    with jax.default_matmul_precision("highest"):
        found = cuda.run(Signature(name, descriptor, tuple(given)), list(given.values()))
    made = [each for each in wanted if each is not None]
    assert len(found) == len(made)
    for one, other in zip(found, made, strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=2e-5, atol=2e-5)
    assert read.keys() == kernels[0].read.keys()
    for field, value in kernels[0].read.items():
        own = np.asarray(read[field]).reshape(value.shape)
        if field == "unreset" and "init_state" in without:  # unread where nothing came before
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

    def ffi_call(target: str, types: Any, input_output_aliases: Any) -> Any:
        def run(*operands: Any, **attributes: Any) -> Any:
            told.update(attributes, operands=operands, types=types, aliases=input_output_aliases)
            return [jax.numpy.ones(each.shape, each.dtype) for each in types]

        assert target == "zstate_launch"
        return run

    def kernel(layout: Any, shapes: Any) -> Any:
        scan = calls.scan_of(layout, exact=True)
        return Pretended(scan, next(p for p in placements(scan, CHIP) if p.mode == mode))

    monkeypatch.setattr(cuda, "_kernel", kernel)
    monkeypatch.setattr(jax.ffi, "ffi_call", ffi_call)
    cuda.run(Signature(name, descriptor, tuple(given)), list(given.values()))
    T, N, _, H = SIZES
    words = dict(zip(FIELDS, told["words"].reshape(-1, 2).tolist(), strict=True))
    assert words["T"] == [-1, T] and words["N"] == [-1, N] and words["step"] == [-1, N * H]
    assert [words[n] for n in ("mask_t", "mask_n", "mask_h")] == [[-1, H], [-1, 0], [-1, 1]]
    operands = told["operands"]
    for field, tensor in (("mask", "mask"), ("peephole", "peephole"), ("state0", "init_state")):
        place, begin = words[field]
        assert begin == 0
        np.testing.assert_array_equal(operands[place], given[tensor])
    results = {f: words[f][0] - len(operands) for f in calls.WRITTEN[gradient] if words[f][0] >= 0}
    assert set(results.values()) == set(range(len(told["types"])))
    shapes = {field: told["types"][place].shape for field, place in results.items()}
    if gradient:
        assert shapes["d_gates"] == (T * N, 4 * H) and shapes["left"] == (T * N, H)
        assert told["aliases"] == {}
    else:
        assert shapes["state"] == shapes["cell"] == (T, N, H)
        assert shapes["saved"] == (T, N, 4 * H)
        assert told["aliases"] == {words["gates_x"][0]: results["saved"]}
    assert ("exchange" in results) == (mode == GRID)
    assert told["launch"].tolist()[-2:] == [FIELDS.index("exchange"), 40 if mode == GRID else 0]
    assert told["groups"].tolist() == [0, 12, 2, 6]
    assert told["code"].tobytes() == b"machine code\0\0\0\0"


def test_backend_of_another_platform_is_refused() -> None:
    import zstate.jax as zj
    from zstate import BackendError

    x, r = jax.numpy.ones((3, 2, 4)), jax.numpy.ones((4, 4))
    with pytest.raises(BackendError, match=r"\[single_gate_rnn\] backend 'cuda' cannot serve"):
        zj.single_gate_rnn(x, r, backend="cuda")
    signature = SimpleNamespace(name="lstm", backend="cuda")
    context = SimpleNamespace(module_context=SimpleNamespace(platforms=("cpu",)))
    from zstate.jax import ffi, primitives

    with pytest.raises(BackendError, match="it is compiled for cpu"):
        primitives._lowering("native", ffi)(context, signature=signature)
