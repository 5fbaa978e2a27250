"""The operators: derivatives of every order, torch.compile, export, func, autocast, checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

import zstate as zs
from tests import oracle
from tests.cases import (
    CELLS,
    DIRECTIONS,
    FED_BACK,
    FLAGS,
    FORWARD_MEMBERS,
    FORWARD_OPS,
    GRADIENT_OPS,
    Case,
    all_inputs,
    assert_close,
    cases,
    make_cotangents,
    make_tensors,
    own_answers,
    subsets,
    to_torch,
)
from zstate import pipeline
from zstate.layout import bind
from zstate.torch import operators
from zstate.torch.descriptor_text import decode, encode
from zstate.torch.gradient_pairs import pair_of

GROUPS = [
    pytest.param(cell, direction, flags, id="-".join([cell, direction, *sorted(flags)]))
    for cell in CELLS
    for direction in DIRECTIONS[:3]
    for flags in subsets(FLAGS[cell])
]
SMALL = {"T": 3, "N": 2, "I": 2, "H": 2}


def everything(cell: str, direction: str = "forward", flags: frozenset[str] = frozenset()) -> Case:
    """A small case with every input that these options allow."""
    inputs = all_inputs(cell, *([] if "reset_after" in flags else ["secondary_bias"]))
    return Case(cell, direction, flags, inputs=inputs, seed=11, **SMALL)


def leaves(case: Case, mask: bool = True) -> dict[str, Tensor]:
    tensors = to_torch(make_tensors(case))
    return {name: t.requires_grad_(mask or name != "mask") for name, t in tensors.items()}


def as_function(case: Case, names: list[str], **more: bool) -> Any:
    """The forward operation as a function of its tensors by position."""
    descriptor = case.descriptor(**more)

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(names, tensors, strict=True))
        result = FORWARD_OPS[case.cell](**named, descriptor=descriptor)
        return tuple(member for member in result if member is not None)

    return function


def check_against_oracle(case: Case) -> None:
    """autograd through the operator, against autograd through the plain loop."""
    tensors = leaves(case, mask=False)
    more = {"produce_cell": True} if case.cell == "lstm" else {}
    result = FORWARD_OPS[case.cell](**tensors, descriptor=case.descriptor(**more))
    outputs, expected = own_answers(case)
    for name in ("state", "cell"):
        if name in outputs:
            assert_close(getattr(result, name).detach().numpy(), outputs[name], name)
    cotangents = to_torch(make_cotangents(case))
    total = (result.state * cotangents["source_gradient"]).sum()
    if case.cell_gradient == "all":
        total = total + (result.cell * cotangents["cell_gradient"]).sum()
    wanted = {name: t for name, t in tensors.items() if name != "mask"}
    found = torch.autograd.grad(total, list(wanted.values()))
    for name, gradient in zip(wanted, found, strict=True):
        assert_close(gradient.numpy(), expected[name], name)


@pytest.mark.parametrize(("cell", "direction", "flags"), GROUPS)
def test_gradients_of_every_option(cell: str, direction: str, flags: frozenset[str]) -> None:
    case = replace(everything(cell, direction, flags), T=4, N=3, H=5)
    check_against_oracle(replace(case, cell_gradient="all") if cell == "lstm" else case)


@given(case=cases("lstm"))
@settings(max_examples=30)
def test_gradients_of_any_lstm(case: Case) -> None:
    kept = "all" if case.cell_gradient == "all" else "none"
    check_against_oracle(replace(case, state_gradient="none", cell_gradient=kept))


@pytest.mark.parametrize(("cell", "direction", "flags"), GROUPS)
def test_derivatives_of_derivatives(cell: str, direction: str, flags: frozenset[str]) -> None:
    """First and second derivatives of every result in every input, the mask included."""
    tensors = leaves(everything(cell, direction, flags))
    function = as_function(everything(cell, direction, flags), list(tensors), training=True)
    inputs = tuple(tensors.values())
    assert gradcheck(function, inputs, fast_mode=True, check_forward_ad=True)
    assert gradgradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize("cell", CELLS)
def test_derivatives_in_full(cell: str) -> None:
    """The slow mode, which compares whole Jacobians, and batched gradients."""
    case = replace(everything(cell), T=2, inputs=frozenset({"input_weight", "bias", "init_state"}))
    tensors = leaves(case)
    function = as_function(case, list(tensors))
    inputs = tuple(tensors.values())
    assert gradcheck(function, inputs, check_batched_grad=True)
    assert gradgradcheck(function, inputs)


@pytest.mark.parametrize("kind", range(5))
@pytest.mark.parametrize("cell", CELLS)
def test_derivatives_of_every_activation(cell: str, kind: int) -> None:
    count = {"rnn": 1, "lstm": 5, "gru": 3}[cell]
    case = replace(everything(cell), activations=(kind,) * count)
    seed = next(
        s
        for s in range(100)
        if oracle.kink_distance(cell, case.options, to_torch(make_tensors(replace(case, seed=s))))
        > 1e-3
    )
    tensors = leaves(replace(case, seed=seed))
    function = as_function(case, list(tensors), training=True)
    assert gradcheck(function, tuple(tensors.values()), fast_mode=True)
    assert gradgradcheck(function, tuple(tensors.values()), fast_mode=True)


def test_third_derivatives() -> None:
    case = replace(everything("lstm"), T=2, inputs=frozenset({"input_weight"}))
    tensors = leaves(case)
    function = as_function(case, list(tensors))

    def second(*inputs: Tensor) -> Tensor:
        (first,) = torch.autograd.grad(
            function(*inputs)[0].square().sum(), inputs[1], create_graph=True
        )
        return torch.autograd.grad(first.square().sum(), inputs[1], create_graph=True)[0]

    assert gradcheck(second, tuple(tensors.values()), fast_mode=True)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("direction", DIRECTIONS[:3])
def test_gradient_operations_can_be_differentiated(cell: str, direction: str) -> None:
    """In every input, the training state included, which is an input like any other."""
    case = replace(everything(cell, direction), state_gradient="leading")
    if cell == "lstm":
        case = replace(case, cell_gradient="flat")
    tensors = leaves(case)
    cotangents = {n: t.requires_grad_() for n, t in to_torch(make_cotangents(case)).items()}
    descriptor = case.descriptor(training=True)
    result = FORWARD_OPS[cell](**tensors, descriptor=descriptor)
    fed = {
        name: getattr(result, member).detach().requires_grad_()
        for name, member in FED_BACK[cell].items()
    }
    inputs = {**tensors, **cotangents, **fed}

    def function(*values: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(inputs, values, strict=True))
        found = GRADIENT_OPS[cell](**named, descriptor=descriptor)
        return tuple(gradient for gradient in found if gradient is not None)

    assert gradcheck(function, tuple(inputs.values()), fast_mode=True)


@pytest.mark.parametrize("empty", ["T", "N"])
@pytest.mark.parametrize("cell", CELLS)
def test_empty_sequences_and_batches(cell: str, empty: str) -> None:
    case = replace(everything(cell, "bidirectional"), **{empty: 0})
    tensors = leaves(case)
    result = FORWARD_OPS[cell](**tensors, descriptor=case.descriptor(training=True))
    found = torch.autograd.grad(
        sum(member.sum() for member in result), list(tensors.values()), create_graph=True
    )
    for gradient, tensor in zip(found, tensors.values(), strict=True):
        assert gradient.shape == tensor.shape and not gradient.any()


def test_plain_operations_agree_with_the_oracle() -> None:
    for cell in CELLS:
        case = everything(cell, "bidirectional")
        operation = zs.operations.OPERATIONS[FORWARD_OPS[cell].__name__]
        given = to_torch(make_tensors(case))
        tensors = tuple(given.get(name) for name in operation.inputs)
        layout = bind(operation, tensors, case.descriptor(training=True))
        found = operation.result(*pipeline.run(layout, tensors))
        for name in FORWARD_MEMBERS[cell]:
            assert_close(getattr(found, name).numpy(), own_answers(case)[0][name], name)


# What surrounds an operator


def arguments_of(case: Case, mask_gradient: bool) -> tuple[Any, ...]:
    tensors = leaves(case, mask_gradient)
    operation = zs.operations.OPERATIONS[FORWARD_OPS[case.cell].__name__]
    return (
        *(tensors.get(name) for name in operation.inputs),
        encode(case.descriptor(), True),
        None,
    )


@pytest.mark.parametrize("cell", CELLS)
def test_opcheck(cell: str) -> None:
    operation = zs.operations.OPERATIONS[FORWARD_OPS[cell].__name__]
    operator = getattr(torch.ops.zstate, operation.name)
    arguments = arguments_of(everything(cell, "bidirectional"), False)
    torch.library.opcheck(operator.default, arguments)
    results = [r.detach() for r in operator(*arguments)]
    route = pair_of(operation)
    pool = [*arguments[:-2], *results, torch.ones_like(results[0]), None, None, None]
    inputs = [
        tensor.detach() if isinstance(tensor, Tensor) else None
        for tensor in (pool[place] for place in route.takes)
    ]
    gradient = getattr(torch.ops.zstate, f"{operation.name}_gradients")
    torch.library.opcheck(gradient.default, (*inputs, *arguments[-2:]))


@pytest.mark.parametrize("cell", CELLS)
def test_compile_makes_one_graph(cell: str) -> None:
    case = everything(cell, "bidirectional")
    tensors = leaves(case, mask=False)
    function = as_function(case, list(tensors), training=True)
    inputs = tuple(tensors.values())
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for found, wanted in zip(compiled(*inputs), function(*inputs), strict=True):
        assert torch.equal(found, wanted)
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    for found, expected in zip(
        torch.autograd.grad(compiled(*inputs)[0].sum(), wanted),
        torch.autograd.grad(function(*inputs)[0].sum(), wanted),
        strict=True,
    ):
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


def test_compile_the_public_function() -> None:
    descriptor = zs.LSTMDescriptor(forget_gate_last=True)

    @torch.compile(fullgraph=True, backend="eager")
    def function(x: Tensor, R: Tensor) -> Tensor:
        return zs.lstm(x, R, descriptor=descriptor).state + zs.gru(x[..., :6], R[:6]).state

    x, R = torch.randn(3, 2, 8), torch.randn(8, 2)
    wanted = zs.lstm(x, R, descriptor=descriptor).state + zs.gru(x[..., :6], R[:6]).state
    assert torch.equal(function(x, R), wanted)


def test_export_with_sizes_left_open() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(8, 2))

        def forward(self, x: Tensor) -> Tensor:
            return zs.lstm(x, self.weight).state

    sizes = {0: torch.export.Dim("T"), 1: torch.export.Dim("N")}
    layer = Layer()
    exported = torch.export.export(layer, (torch.randn(5, 3, 8),), dynamic_shapes=(sizes,))
    x = torch.randn(7, 2, 8)
    assert torch.equal(exported.module()(x), layer(x))


def test_fake_kernels_refuse_what_real_ones_refuse() -> None:
    with torch.device("meta"):
        x, R = torch.zeros(3, 1, 8), torch.zeros(7, 2)
    with pytest.raises(zs.ShapeError, match="recurrent_weight: expected"):
        zs.lstm(x, R)
    assert zs.lstm(x, R.new_zeros(8, 2)).state.shape == (3, 1, 2)


@pytest.mark.parametrize("cell", CELLS)
def test_vmap(cell: str) -> None:
    """Over data, over weights, over both, and over a mask of few axes, as a loop gives it."""
    case = replace(everything(cell, "bidirectional"), mask_form="NH")
    one = to_torch(make_tensors(case))
    many = {name: torch.stack([t, 0.5 * t, t.flip(0)]) for name, t in one.items()}
    names = list(one)
    function = as_function(case, names, training=True)
    data = {"source", "init_state", "init_cell", "mask"}
    for over in ({"source"}, {"mask"}, data & set(one), {"recurrent_weight"}, set(names)):
        inputs = [many[name] if name in over else one[name] for name in names]
        axes = tuple(0 if name in over else None for name in names)
        found = torch.func.vmap(function, in_dims=axes)(*inputs)
        each = [
            function(*(many[name][k] if name in over else one[name] for name in names))
            for k in range(3)
        ]
        for result, wanted in zip(found, zip(*each, strict=True), strict=True):
            torch.testing.assert_close(result, torch.stack(wanted), rtol=1e-12, atol=1e-12)


def test_vmap_in_vmap() -> None:
    case = everything("lstm", "bidirectional")
    one = to_torch(make_tensors(case))
    function = as_function(case, list(one), training=True)
    data = [name for name in one if name in ("source", "init_state", "mask")]
    many = {name: torch.stack([one[name] * k for k in (1.0, -0.5, 0.25, 2.0)]) for name in data}
    shared = [None if name in data else t for name, t in one.items()]

    def of_data(*values: Tensor) -> tuple[Tensor, ...]:
        given = iter(values)
        return function(*(next(given) if t is None else t for t in shared))

    grid = [many[name].unflatten(0, (2, 2)) for name in data]
    found = torch.func.vmap(torch.func.vmap(of_data))(*grid)
    each = [of_data(*(many[name][k] for name in data)) for k in range(4)]
    for result, wanted in zip(found, zip(*each, strict=True), strict=True):
        whole = torch.stack(wanted).unflatten(0, (2, 2))
        torch.testing.assert_close(result, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.grad])
def test_a_wrong_shape_in_a_transform(transform: Callable[..., Any]) -> None:
    R = torch.randn(8, 2)
    with pytest.raises(zs.ShapeError, match=r"\[lstm\] source: expected"):
        transform(lambda x: zs.lstm(x, R).state.sum())(torch.randn(2, 3, 4, 7))


@pytest.mark.parametrize(
    ("members", "steps", "batch"), [(2, 0, 3), (2, 3, 0), (0, 3, 2), (0, 0, 0)]
)
@pytest.mark.parametrize("own_weights", [False, True])
def test_vmap_without_members_steps_or_sequences(
    members: int, steps: int, batch: int, own_weights: bool
) -> None:
    x, h, m = torch.ones(members, steps, batch, 5), torch.ones(members, batch, 4), torch.ones(4)
    R, W = torch.ones(12, 4), torch.ones(12, 5)
    R = torch.ones(members, 12, 4) if own_weights else R

    def state(R: Tensor, x: Tensor, h: Tensor) -> Tensor:
        return zs.gru(x, R, input_weight=W, init_state=h, mask=m).state

    axes = (0 if own_weights else None, 0, 0)
    found = torch.func.vmap(state, in_dims=axes)(R, x, h)
    assert found.shape == (members, steps, batch, 4)
    gradient = torch.func.grad(lambda *inputs: state(*inputs).sum())
    dR = torch.func.vmap(gradient, in_dims=axes)(R, x, h)
    assert dR.shape == (members, 12, 4)
    assert not dR.any() or (steps and batch)


def test_func_transforms() -> None:
    case = replace(everything("gru"), inputs=frozenset({"input_weight", "bias"}))
    tensors = {name: t.detach() for name, t in leaves(case).items()}
    function = as_function(case, list(tensors))
    x, *rest = tensors.values()

    def loss(R: Tensor, x: Tensor) -> Tensor:
        total: Tensor = function(x, R, *rest[1:])[0].square().sum()
        return total

    R = rest[0]
    leaf = R.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(loss(leaf, x), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(R, x), wanted)
    # gradients of each sample
    many = torch.stack([x, 2 * x])
    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(R, many)
    torch.testing.assert_close(found, torch.stack([torch.func.grad(loss)(R, m) for m in many]))
    # the other way round: a gradient through a batch
    total = torch.func.grad(lambda R: torch.func.vmap(loss, in_dims=(None, 0))(R, many).sum())(R)
    torch.testing.assert_close(total, found.sum(0))
    # second derivatives, forwards over backwards and backwards over backwards
    hessian = torch.func.hessian(loss)(R, x)
    torch.testing.assert_close(hessian, torch.func.jacrev(torch.func.jacrev(loss))(R, x))
    torch.testing.assert_close(hessian, torch.autograd.functional.hessian(lambda R: loss(R, x), R))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    x, R = torch.randn(3, 2, 8), torch.randn(8, 2, requires_grad=True)
    with torch.autocast("cpu", dtype=dtype):
        state = zs.lstm(x, R).state
        wide = zs.lstm(x.double(), R.double()).state
    assert state.dtype == dtype and wide.dtype == torch.float64
    (gradient,) = torch.autograd.grad(state.sum(), R)
    assert gradient.dtype == torch.float32
    torch.testing.assert_close(state.double(), wide, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpoints(reentrant: bool) -> None:
    x, R = torch.randn(3, 2, 8), torch.randn(8, 2, requires_grad=True)

    def function(R: Tensor) -> Tensor:
        return zs.lstm(x, R).state.square()

    (wanted,) = torch.autograd.grad(function(R).sum(), R)
    checkpoint(function, R, use_reentrant=reentrant).sum().backward()
    assert R.grad is not None and torch.equal(R.grad, wanted)


def test_the_training_state_is_computed_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    compute = operators.compute

    def spy(operation: Any, tensors: Any, descriptor: Any, backend: Any) -> Any:
        seen.append(descriptor.training)
        return compute(operation, tensors, descriptor, backend)

    monkeypatch.setattr(operators, "compute", spy)
    x, R = torch.randn(3, 2, 8), torch.randn(8, 2)
    result = zs.lstm(x, R)
    assert seen == [False] and result.cell is None and result.training_state is None
    R.requires_grad_()
    with torch.no_grad():
        zs.lstm(x, R)
    assert seen.pop() is False
    result = zs.lstm(x, R)
    assert seen.pop() is True and result.cell is None and result.training_state is None


def test_an_operator_called_without_the_training_state_computes_it_later() -> None:
    x, R = torch.randn(3, 2, 8), torch.randn(8, 2, requires_grad=True)
    state = torch.ops.zstate.lstm(x, R, *[None] * 7, "", None)[0]
    (found,) = torch.autograd.grad(state.sum(), R)
    (wanted,) = torch.autograd.grad(zs.lstm(x, R).state.sum(), R)
    assert torch.equal(found, wanted)


def test_a_cell_alone_can_be_differentiated() -> None:
    x, R = torch.randn(3, 2, 8), torch.randn(8, 2, dtype=torch.float32, requires_grad=True)
    cell = zs.lstm(x, R, descriptor=zs.LSTMDescriptor(produce_cell=True)).cell
    assert cell is not None
    (found,) = torch.autograd.grad(cell.sum(), R)
    assert found.abs().sum() > 0


def test_a_named_backend_serves_both_ways() -> None:
    x, R = torch.randn(3, 2, 8), torch.randn(8, 2, requires_grad=True)
    (found,) = torch.autograd.grad(zs.lstm(x, R, backend="reference").state.sum(), R)
    (wanted,) = torch.autograd.grad(zs.lstm(x, R).state.sum(), R)
    torch.testing.assert_close(found, wanted)
    with pytest.raises(zs.BackendError, match="expected None or one of"):
        zs.lstm(x, R, backend="abacus")


@pytest.mark.parametrize("cell", CELLS)
def test_descriptors_survive_as_text(cell: str) -> None:
    operation = zs.operations.OPERATIONS[FORWARD_OPS[cell].__name__]
    rng = np.random.default_rng(0)
    count = {"rnn": 1, "lstm": 5, "gru": 3}[cell]
    for flags in subsets(FLAGS[cell]):
        for direction in DIRECTIONS:
            kinds = tuple(int(kind) for kind in rng.integers(0, 5, count))
            descriptor = Case(cell, direction, flags, kinds).descriptor(training=True)
            assert decode(operation, encode(descriptor, False)) == descriptor
