"""The graph gives what the functional operations give, in the published order, and refuses a
wrong shape when the node is made."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import zstate as zs
from zstate.operations import OPERATIONS
from zstate.types import Array
from zstate.verify import CASES, Case, make_inputs, run_backward, run_forward

NAMED_CASES = [(cell, case) for cell, cases in CASES.items() for case in cases]


def build(g: zs.Graph, case: Case, inputs: dict[str, Array], unknown: bool) -> dict[str, zs.Tensor]:
    """Placeholders for the inputs; with ``unknown``, of unknown time and batch."""
    free = {"source": 2, "source_gradient": 2, "init_state": 1, "init_cell": 1}
    tensors = {}
    for name, array in inputs.items():
        shape: list[int | None] = list(array.shape)
        if unknown:
            shape[: free.get(name, 0)] = [None] * free.get(name, 0)
        tensors[name] = g.placeholder(shape=shape, dtype=array.dtype.name, name=name)
    return tensors


@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize(
    ("cell", "case"), NAMED_CASES, ids=lambda value: getattr(value, "title", value)
)
def test_graph_equals_functional(cell: str, case: Case, unknown: bool) -> None:
    inputs = make_inputs(case, 5)
    g = zs.Graph()
    tensors = build(g, case, inputs, unknown)
    forward, backward = OPERATIONS[cell], OPERATIONS[f"{cell}_gradients"]
    ahead = {name: tensors[name] for name in forward.inputs if name in tensors}
    there = getattr(g, cell)(**ahead, descriptor=case.descriptor, name="layer")
    names = ("state", "cell", "training_state") if cell == "lstm" else ("state", "training_state")
    fwd = dict(zip(names, there, strict=True))
    fed = {"z_state": fwd["training_state"]}
    if cell == "lstm":
        fed["cell_output_fwd"] = fwd["cell"]
    if cell == "gru":
        fed["output_fwd"] = fwd["state"]
    back = getattr(g, f"{cell}_gradients")(**tensors, **fed, descriptor=case.descriptor)
    wanted_there = run_forward(case, inputs, "reference")
    wanted_back = run_backward(case, inputs, wanted_there, "reference")
    order = [name for name in backward.result._fields if name in wanted_back]
    results = g.run({tensors[name]: inputs[name] for name in tensors}, [*there, *back])
    assert len(back) == len(order)
    for tensor, wanted in zip(
        [*there, *back],
        [*(wanted_there[n] for n in names), *(wanted_back[n] for n in order)],
        strict=True,
    ):
        np.testing.assert_allclose(results[tensor], wanted, rtol=1e-12, atol=1e-12)
        assert tensor.dtype == "float64"
        if not unknown:
            assert tensor.shape == wanted.shape
        assert all(a in (None, b) for a, b in zip(tensor.shape, wanted.shape, strict=True))


def rnn_graph() -> tuple[zs.Graph, zs.Tensor, zs.Tensor, zs.Tensor]:
    g = zs.Graph()
    x = g.placeholder(shape=(None, 2, 3), dtype="float64", name="x")
    R = g.constant(np.random.default_rng(0).normal(size=(3, 3)), name="R")
    (h,) = g.single_gate_rnn(x, recurrent_weight=R)
    return g, x, R, h


def test_results_follow_the_descriptor() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(4, 2, 8), dtype="float32")
    R = g.constant(np.ones((8, 2), np.float32))
    counts = {}
    for produce_cell, training in product([False, True], repeat=2):
        d = zs.LSTMDescriptor(produce_cell=produce_cell, training=training)
        counts[produce_cell, training] = [
            t.name.split(":")[1] for t in g.lstm(x, recurrent_weight=R, descriptor=d)
        ]
    assert counts[False, False] == ["state"]
    assert counts[True, False] == ["state", "cell"]
    assert counts[False, True] == counts[True, True] == ["state", "cell", "training_state"]


def test_a_wrong_shape_is_refused_when_the_node_is_made() -> None:
    g, x, _, _ = rnn_graph()
    before = len(g.nodes)
    bad = g.constant(np.ones((3, 4)))
    with pytest.raises(
        zs.ShapeError,
        match=r"\[single_gate_rnn 'enc'\] recurrent_weight: expected \[H,H\] = \[4,4\], got",
    ):
        g.single_gate_rnn(x, recurrent_weight=bad, name="enc")
    assert len(g.nodes) == before + 1


def test_a_wrong_type_is_refused_when_the_node_is_made() -> None:
    g, x, _, _ = rnn_graph()
    bad = g.constant(np.ones((3, 3), np.float32))
    with pytest.raises(
        zs.DTypeError, match="recurrent_weight: expected float64 like source, got float32"
    ):
        g.single_gate_rnn(x, recurrent_weight=bad)


def test_an_unknown_size_is_checked_at_run_time() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(None, None, 3), dtype="float64")
    h0 = g.placeholder(shape=(None, 3), dtype="float64")
    R = g.constant(np.eye(3))
    (h,) = g.single_gate_rnn(x, recurrent_weight=R, init_state=h0)
    with pytest.raises(zs.ShapeError, match=r"init_state: expected \[N,H\] = \[2,3\], got \[5,3\]"):
        g.run({x: np.ones((4, 2, 3)), h0: np.ones((5, 3))}, [h])


def test_a_size_that_another_tensor_knows_is_inferred() -> None:
    g = zs.Graph()
    x = g.placeholder(shape=(None, None, 3), dtype="float64")
    h0 = g.placeholder(shape=(7, 3), dtype="float64")
    (h,) = g.single_gate_rnn(x, recurrent_weight=g.constant(np.eye(3)), init_state=h0)
    assert h.shape == (None, 7, 3)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (
            np.ones((4, 2, 5)),
            zs.ShapeError,
            r"\[run\] feed 'x': expected \[\?,2,3\], got \[4,2,5\]",
        ),
        (np.ones((2, 3)), zs.ShapeError, r"\[run\] feed 'x': expected \[\?,2,3\], got \[2,3\]"),
        (np.ones((4, 2, 3), np.float32), zs.DTypeError, r"feed 'x': expected float64, got float32"),
        ([1.0], zs.DTypeError, r"feed 'x': expected a NumPy array .*, got list"),
    ],
)
def test_a_bad_feed_is_named(value: object, error: type[Exception], message: str) -> None:
    g, x, _, h = rnn_graph()
    with pytest.raises(error, match=message):
        g.run({x: value}, [h])  # type: ignore[dict-item]


def test_a_missing_feed_is_named() -> None:
    g, _, _, h = rnn_graph()
    with pytest.raises(
        zs.GraphError, match=r"feed 'x': expected an array float64\[\?,2,3\], got nothing"
    ):
        g.run({}, [h])


def test_only_placeholders_are_fed() -> None:
    g, x, R, h = rnn_graph()
    with pytest.raises(
        zs.GraphError, match="feed 'R': expected a placeholder, got the result of constant"
    ):
        g.run({x: np.ones((1, 2, 3)), R: np.ones((3, 3))}, [h])


def test_tensors_of_another_graph_are_refused() -> None:
    g, x, _, h = rnn_graph()
    _, other_x, other_R, _ = rnn_graph()
    with pytest.raises(zs.GraphError, match="recurrent_weight: expected a Tensor of this graph"):
        g.single_gate_rnn(x, recurrent_weight=other_R)
    with pytest.raises(zs.GraphError, match="feeds: expected a Tensor of this graph"):
        g.run({other_x: np.ones((1, 2, 3))}, [h])


def test_arrays_are_no_tensors() -> None:
    g, x, _, _ = rnn_graph()
    with pytest.raises(
        zs.DTypeError, match="recurrent_weight: expected a Tensor of this graph, got numpy.ndarray"
    ):
        g.single_gate_rnn(x, recurrent_weight=np.eye(3))  # type: ignore[arg-type]
    with pytest.raises(zs.DTypeError, match="targets: expected a Tensor of this graph, got None"):
        g.run({}, [None])  # type: ignore[list-item]


def test_a_required_tensor_must_be_there() -> None:
    g, x, _, _ = rnn_graph()
    with pytest.raises(
        zs.DTypeError, match="recurrent_weight: expected a Tensor of this graph, got None"
    ):
        g.single_gate_rnn(x, recurrent_weight=None)  # type: ignore[arg-type]


def test_another_cells_descriptor_is_refused() -> None:
    g, x, R, _ = rnn_graph()
    with pytest.raises(
        zs.DTypeError, match="descriptor: expected SingleGateRNNDescriptor, got GRUDescriptor"
    ):
        g.single_gate_rnn(x, recurrent_weight=R, descriptor=zs.GRUDescriptor())  # type: ignore[arg-type]


def test_constants_and_results_are_nobodys_alias() -> None:
    g = zs.Graph()
    value = np.ones((2, 2))
    constant, variable = g.constant(value), g.variable(value, name="v")
    value[:] = 7
    first = g.run({}, [constant, variable])
    first[constant][:] = 9
    first[variable][:] = 9
    again = g.run({}, [constant, variable])
    assert (again[constant] == 1).all()
    assert (again[variable] == 1).all()


def test_a_fed_target_comes_back_as_a_copy() -> None:
    g, x, _, _ = rnn_graph()
    fed = np.ones((1, 2, 3))
    result = g.run({x: fed}, [x])[x]
    assert (result == fed).all()
    assert not np.shares_memory(result, fed)


def test_scalars_fill_a_shape() -> None:
    g = zs.Graph()
    filled = g.constant(2.5, shape=(2, 3), dtype="float16")
    plain = g.constant(1)
    results = g.run({}, [filled, plain])
    assert results[filled].dtype == np.float16
    assert (results[filled] == 2.5).all()
    assert results[filled].shape == (2, 3)
    assert results[plain].shape == ()
    assert results[plain].dtype == np.float32


def test_bfloat16_placeholders() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    g = zs.Graph()
    x = g.placeholder(shape=(2, 1, 3), dtype="bfloat16")
    R = g.constant(np.eye(3).astype(ml_dtypes.bfloat16))
    (h,) = g.single_gate_rnn(x, recurrent_weight=R)
    result = g.run({x: np.ones((2, 1, 3), ml_dtypes.bfloat16)}, [h])[h]
    assert result.dtype == ml_dtypes.bfloat16
    assert (result[-1].astype(np.float32) == 2).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shape": 3}, "shape: expected a sequence of sizes.*got int 3"),
        ({"shape": (2.5,)}, "shape: expected a sequence of sizes.*got float 2.5"),
        ({"shape": (-1,)}, "shape: expected a sequence of sizes.*got -1"),
        (
            {"shape": (1,), "dtype": "complex64"},
            "uint64, bool, got complex64",
        ),
        ({"shape": (1,), "dtype": "float99"}, "dtype: expected one of float16, bfloat16, "),
        ({"shape": (1,), "name": 3}, "name: expected a string or None, got int 3"),
    ],
)
def test_bad_placeholders(arguments: dict[str, object], message: str) -> None:
    with pytest.raises((zs.DTypeError, zs.ShapeError), match=message):
        zs.Graph().placeholder(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "options", "message"),
    [
        ([1.0], {}, "value: expected a NumPy array or a number, got list"),
        (True, {}, "value: expected a NumPy array or a number, got bool True"),
        (np.ones(2), {"dtype": "float32"}, "shape and dtype are for a number; .* array.astype"),
        (np.ones(2, complex), {}, "uint64, bool, got complex128"),
        (1.0, {"shape": (None,)}, r"shape: expected known sizes, got \[\?\]"),
    ],
)
def test_bad_constants(value: object, options: dict[str, object], message: str) -> None:
    with pytest.raises(zs.ZStateError, match=message):
        zs.Graph().constant(value, **options)  # type: ignore[arg-type]


def test_only_what_a_target_needs_is_computed() -> None:
    g, x, R, h = rnn_graph()
    other = g.placeholder(shape=(1, 2, 3), dtype="float64", name="other")
    g.single_gate_rnn(other, recurrent_weight=R)
    assert g.run({x: np.ones((1, 2, 3))}, [h])[h].shape == (1, 2, 3)
