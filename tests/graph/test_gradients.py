"""Gradients of whole models agree with central differences and with PyTorch's autograd; recurrent
nodes train by themselves and are computed once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import zstate as zs
from zstate.types import Array
from zstate.verify import CASES, Case, make_inputs

NAMED_CASES = [  # differences lose too many digits over large sums
    (cell, case) for cell, cases in CASES.items() for case in cases if case.sizes[3] < 32
]


def differences(g: zs.Graph, loss: zs.Tensor, feeds: dict[zs.Tensor, Array], x: zs.Tensor) -> Array:
    wanted = np.zeros_like(feeds[x])
    for place in np.ndindex(*wanted.shape):
        sides = []
        for step in (1e-6, -1e-6):
            moved = feeds[x].copy()
            moved[place] += step
            sides.append(float(g.run({**feeds, x: moved}, [loss])[loss].sum()))
        wanted[place] = (sides[0] - sides[1]) / 2e-6
    return wanted


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("cell", "case"), NAMED_CASES, ids=lambda value: getattr(value, "title", value)
)
def test_recurrent_gradients_agree_with_central_differences(
    cell: str, case: Case, training: bool
) -> None:
    """Through h at every step and, for an LSTM, through c; whatever the descriptor says of
    training, which gradients() turns on for itself."""
    inputs = make_inputs(case, 11)
    options: dict[str, Any] = {
        name: getattr(case.descriptor, name) for name in case.descriptor.__dataclass_fields__
    }
    options["training"] = training
    if cell == "lstm":
        options["produce_cell"] = True
    descriptor = type(case.descriptor)(**options)
    g = zs.Graph()
    tensors = {
        name: g.placeholder(shape=array.shape, dtype=array.dtype.name, name=name)
        for name, array in inputs.items()
        if not name.endswith("_gradient")
    }
    outputs = getattr(g, cell)(**tensors, descriptor=descriptor)
    rng = np.random.default_rng(4)
    loss = g.constant(0.0, dtype="float64")
    for output in outputs[: 2 if cell == "lstm" else 1]:
        weight = g.constant(rng.normal(size=output.shape))
        loss = loss + g.reduction_sum(g.square(output) * weight)
    before = [node.attributes.get("descriptor") for node in g.nodes]
    inputs = {name: array for name, array in inputs.items() if name in tensors}
    wrt = [tensor for name, tensor in tensors.items() if name not in ("mask", "resets")]
    gradients = g.gradients(of=loss, with_respect_to=wrt)
    assert [n.attributes.get("descriptor") for n in g.nodes[: len(before)]] == before
    feeds = {tensors[name]: array for name, array in inputs.items()}
    found = g.run(feeds, gradients.values())
    for name in ("source", "recurrent_weight", *[n for n in inputs if n.startswith("init")]):
        tensor = tensors[name]
        wanted = differences(g, loss, feeds, tensor)
        np.testing.assert_allclose(found[gradients[tensor]], wanted, rtol=2e-6, atol=2e-7)
    assert all(found[gradients[t]].shape == feeds[t].shape for t in wrt)


def test_a_whole_model_agrees_with_autograd() -> None:
    rng = np.random.default_rng(1)
    T, N, E, H, V = 7, 3, 4, 5, 9
    table, W, R, b, P = (
        rng.normal(size=s) for s in [(V, E), (4 * H, E), (4 * H, H), (4 * H,), (H, V)]
    )
    ids, targets = rng.integers(0, V, (T, N)), rng.integers(0, V, (T, N))
    g = zs.Graph()
    tokens = g.placeholder(shape=(None, N), dtype="int64", name="tokens")
    variables = [g.variable(value) for value in (table, W, R, b, P)]
    (h,) = g.lstm(
        g.gather(variables[0], tokens),
        recurrent_weight=variables[2],
        input_weight=variables[1],
        bias=variables[3],
    )
    logits = h @ variables[4]
    labels = g.one_hot(g.constant(targets), V, dtype="float64")
    loss = g.soft_max_cross_entropy(logits, labels, axis=-1)
    gradients = g.gradients(of=loss, with_respect_to=variables)
    found = g.run({tokens: ids}, [loss, *gradients.values()])

    leaves = [torch.tensor(value, requires_grad=True) for value in (table, W, R, b, P)]
    layer = torch.nn.LSTM(E, H, dtype=torch.float64)
    weights = {
        "weight_ih_l0": leaves[1],
        "weight_hh_l0": leaves[2],
        "bias_ih_l0": leaves[3],
        "bias_hh_l0": torch.zeros(4 * H, dtype=torch.float64),
    }
    states = torch.func.functional_call(layer, weights, (leaves[0][torch.tensor(ids)],))[0]
    wanted = torch.nn.functional.cross_entropy(
        (states @ leaves[4]).reshape(-1, V), torch.tensor(targets).reshape(-1)
    )
    wanted.backward()  # type: ignore[no-untyped-call]
    assert float(found[loss]) == pytest.approx(wanted.item(), rel=1e-12)
    for variable, leaf in zip(variables, leaves, strict=True):
        np.testing.assert_allclose(found[gradients[variable]], leaf.grad, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("cell", ["single_gate_rnn", "lstm", "gru"])
def test_a_model_gives_the_same_on_torch_tensors(cell: str, dtype: str) -> None:
    rng = np.random.default_rng(6)
    gates = {"single_gate_rnn": 1, "lstm": 4, "gru": 3}[cell]
    kind = zs.types.float_dtype(dtype)
    g = zs.Graph()
    x = g.placeholder(shape=(5, 2, 3), dtype=dtype)
    W = g.variable((rng.normal(size=(gates * 4, 3)) / 2).astype(kind))
    R = g.variable((rng.normal(size=(gates * 4, 4)) / 2).astype(kind))
    h = getattr(g, cell)(x, recurrent_weight=R, input_weight=W)[0]
    loss = g.mean(g.square(g.slice_tensor(h, 0, 4, 1)))
    targets = [loss, h, *g.gradients(of=loss, with_respect_to=[x, W, R]).values()]
    array = rng.normal(size=(5, 2, 3)).astype(kind)
    wanted = g.run({x: array}, targets)
    fed = torch.tensor(array.astype(np.float64)).to(getattr(torch, dtype)).requires_grad_()
    found = g.run({x: fed}, targets)
    for tensor in targets:
        assert found[tensor].dtype == fed.dtype and not found[tensor].requires_grad
        np.testing.assert_allclose(
            found[tensor].double().numpy(),
            wanted[tensor].astype(np.float64),
            rtol={"float64": 1e-12, "float32": 1e-5, "bfloat16": 3e-2}[dtype],
            atol={"float64": 1e-14, "float32": 1e-7, "bfloat16": 1e-3}[dtype],
        )


def forward_nodes(program: zs.Executable) -> int:
    return sum(node.op.name == "lstm" for node in program.nodes)


def lstm_graph(
    **options: bool,
) -> tuple[zs.Graph, zs.Tensor, list[zs.Tensor], dict[zs.Tensor, zs.Tensor]]:
    g = zs.Graph()
    rng = np.random.default_rng(2)
    x = g.placeholder(shape=(4, 2, 8), dtype="float64", name="x")
    R = g.variable(rng.normal(size=(8, 2)))
    outputs = g.lstm(x, recurrent_weight=R, descriptor=zs.LSTMDescriptor(**options), name="layer")
    return g, x, outputs, g.gradients(of=g.square(outputs[0]), with_respect_to=[x, R])


@pytest.mark.parametrize("options", [{}, {"produce_cell": True}, {"training": True}])
def test_the_forward_operation_is_computed_once(options: dict[str, bool]) -> None:
    g, x, outputs, gradients = lstm_graph(**options)
    program = g.compile({x: ((4, 2, 8), "float64")}, [*outputs, *gradients.values()])
    assert forward_nodes(program) == 1
    array = np.random.default_rng(0).normal(size=(4, 2, 8))
    alone = g.compile({x: ((4, 2, 8), "float64")}, outputs).run([array])
    for a, b in zip(program.run([array]), alone, strict=False):
        np.testing.assert_array_equal(a, b)


def test_a_projected_source_is_not_kept_for_the_gradient() -> None:
    g, x, _, gradients = lstm_graph()
    program = g.compile({x: ((4, 2, 8), "float64")}, [gradients[x]])
    readers = [node.op.name for node in program.nodes if program.feeds[0] in node.inputs]
    assert readers == ["lstm"]
    array = np.random.default_rng(0).normal(size=(4, 2, 8))
    (R,) = g.variables().values()
    h, c, z = zs.lstm(array, R, descriptor=zs.LSTMDescriptor(training=True))
    wanted = zs.lstm_gradients(
        array, R, 2 * h, z, c, descriptor=zs.LSTMDescriptor(training=True)
    ).source
    np.testing.assert_allclose(program.run([array])[0], wanted, rtol=1e-12)


def test_two_calls_share_the_twin() -> None:
    g, x, outputs, _ = lstm_graph()
    nodes = sum(node.op.name == "lstm" for node in g.nodes)
    g.gradients(of=outputs[0], with_respect_to=[x])
    assert sum(node.op.name == "lstm" for node in g.nodes) == nodes == 2


def test_without_gradients_there_is_no_training() -> None:
    g, x, outputs, _ = lstm_graph()
    program = g.compile({x: ((4, 2, 8), "float64")}, outputs)
    (node,) = [node for node in program.nodes if node.op.name == "lstm"]
    assert not node.attributes["descriptor"].training


def test_what_the_loss_does_not_depend_on_has_zeros() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(None, 3), dtype="float64")
    other = g.placeholder(shape=(None, 2), dtype="float32")
    later = g.variable(np.ones((2, 2)))
    gradients = g.gradients(of=g.square(x), with_respect_to=[x, other, later])
    feeds = {x: np.ones((4, 3)), other: np.ones((5, 2), np.float32)}
    found = g.run(feeds, gradients.values())
    assert (found[gradients[x]] == 2).all()
    assert found[gradients[other]].dtype == np.float32
    assert found[gradients[other]].tolist() == [[0, 0]] * 5
    assert found[gradients[later]].tolist() == [[0, 0]] * 2


def test_a_tensor_in_the_middle_and_the_loss_itself() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(3,), dtype="float64")
    y = g.square(x)
    loss = g.reduction_sum(y * y + x)
    gradients = g.gradients(of=loss, with_respect_to=[x, y, loss])
    array = np.array([1.0, -2, 3])
    found = g.run({x: array}, gradients.values())
    np.testing.assert_allclose(found[gradients[y]], 2 * array**2)
    np.testing.assert_allclose(found[gradients[x]], 4 * array**3 + 1)
    assert found[gradients[loss]].tolist() == [1.0]


def test_a_loss_with_many_elements_is_summed() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(2, 2), dtype="float64")
    d = g.gradients(of=x * x * 3.0, with_respect_to=[x])[x]
    array = np.array([[1.0, 2], [3, 4]])
    np.testing.assert_allclose(g.run({x: array}, [d])[d], 6 * array)


def test_gradients_of_gradients() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(4,), dtype="float64")
    first = g.gradients(of=g.exponent(x) * g.sigmoid(x), with_respect_to=[x])[x]
    second = g.gradients(of=first, with_respect_to=[x])[x]
    array = np.random.default_rng(0).normal(size=4)
    wanted = differences(g, first, {x: array}, x)
    np.testing.assert_allclose(g.run({x: array}, [second])[second], wanted, rtol=1e-6)


def test_gradients_stop_at_whole_numbers() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(3,), dtype="float64")
    steps = g.cast(g.cast(x, "int32"), "float64")
    d = g.gradients(of=steps * x, with_respect_to=[x])[x]
    array = np.array([1.5, 2.5, -3.5])
    assert g.run({x: array}, [d])[d].tolist() == [1, 2, -3]


def test_what_has_no_derivative_says_so() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(4, 2, 8), dtype="float64", name="x")
    m = g.placeholder(shape=(2,), dtype="float64", name="m")
    R = g.constant(np.ones((8, 2)))
    d = zs.LSTMDescriptor(training=True)
    h, _, z = g.lstm(x, recurrent_weight=R, mask=m, descriptor=d, name="layer")
    with pytest.raises(
        zs.GraphError, match="mask of lstm 'layer': expected an input that has a gradient"
    ):
        g.gradients(of=h, with_respect_to=[m])
    with pytest.raises(zs.GraphError, match="training_state of 'layer': expected a loss that does"):
        g.gradients(of=z, with_respect_to=[x])
    dx = g.gradients(of=h, with_respect_to=[x])[x]
    with pytest.raises(
        zs.GraphError,
        match=r"expected operations that have a derivative, got lstm_gradients .*; for second "
        r"derivatives, use zstate\.lstm on torch tensors and torch\.autograd",
    ):
        g.gradients(of=dx, with_respect_to=[x])
    y = g.placeholder(shape=(None, 3), dtype="float64")
    dy = g.gradients(of=g.reduction_sum(g.square(y)), with_respect_to=[y])[y]
    with pytest.raises(zs.GraphError, match="derivatives, give the placeholders sizes instead of"):
        g.gradients(of=g.square(dy), with_respect_to=[y])
    i = g.placeholder(shape=(2,), dtype="int32")
    with pytest.raises(zs.DTypeError, match="with_respect_to: expected a tensor of float16"):
        g.gradients(of=h, with_respect_to=[i])
    with pytest.raises(zs.DTypeError, match="of: expected a tensor of float16"):
        g.gradients(of=i, with_respect_to=[x])


def test_a_derivative_with_too_few_gradients_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from zstate.graph.ops import OPS

    g = zs.Graph()
    x = g.placeholder(shape=(2,), dtype="float64")
    y = x * x
    monkeypatch.setitem(OPS["multiplication"].__dict__, "derivative", lambda *_: [None])
    with pytest.raises(AssertionError, match="multiplication: 1 gradients"):
        g.gradients(of=y, with_respect_to=[x])


def calls_of(job: Callable[[], object]) -> int:
    """How many Python and C functions a job calls: its cost, whatever else the machine does."""
    count = 0

    def seen(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        job()
    finally:
        sys.setprofile(None)
    return count


def test_large_graphs_build_and_differentiate_in_linear_time() -> None:
    """Twice the nodes, twice the work; benchmarks/graph.py measures the seconds."""
    built, differentiated = [], []
    for nodes in (500, 1000):
        g = zs.Graph()
        x = g.placeholder(shape=(4,))

        def build(g: zs.Graph = g, x: zs.Tensor = x, nodes: int = nodes) -> zs.Tensor:
            y = x
            while len(g.nodes) < nodes:
                y = g.tanh(y * x)
            return y

        built.append(calls_of(build))
        last = g.nodes[-1].results[0]
        differentiated.append(
            calls_of(lambda g=g, x=x, last=last: g.gradients(of=last, with_respect_to=[x]))
        )
    assert built[1] < 2.1 * built[0]
    assert differentiated[1] < 2.1 * differentiated[0]


def test_of_a_layer_of_constants():
    """Compiling folds the layer and its twin with a training state; the gradients stay right."""
    rng = np.random.default_rng(0)
    x, R = rng.normal(size=(3, 2, 8)), rng.normal(size=(8, 2))
    g = zs.Graph()
    source, weight = g.constant(x), g.constant(R)
    options = zs.LSTMDescriptor(produce_cell=True)
    h, c = g.lstm(source, recurrent_weight=weight, descriptor=options)
    loss = g.reduction_sum(h * c, axes=[0, 1, 2])
    (dR,) = g.gradients(of=loss, with_respect_to=[weight]).values()
    results = g.run(feeds={}, targets=[loss, dR])

    def value(recurrent):
        found = zs.lstm(x, recurrent, descriptor=options)
        return (found.state * found.cell).sum()

    assert results[loss].item() == pytest.approx(value(R), rel=1e-12)
    way = rng.normal(size=R.shape)
    slope = (value(R + 1e-6 * way) - value(R - 1e-6 * way)) / 2e-6
    assert (results[dR] * way).sum() == pytest.approx(slope, rel=1e-7)
