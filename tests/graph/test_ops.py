"""Every op of the graph gives what NumPy or torch gives, on NumPy arrays and on torch tensors;
every derivative agrees with central differences. The table of op_cases.py feeds all of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import zstate as zs
from tests.graph.op_case import Case, built, expected
from tests.graph.op_cases import CASES, IDS
from zstate.graph.ops import OPS
from zstate.types import Array


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_ops_on_numpy_arrays(case: Case) -> None:
    g, inputs, results = built(case)
    found = g.run(dict(zip(inputs, case.inputs, strict=True)), results)
    for tensor, wanted in zip(results, expected(case), strict=True):
        assert isinstance(found[tensor], np.ndarray)
        assert found[tensor].dtype == wanted.dtype == np.dtype(tensor.dtype)
        assert found[tensor].shape == tensor.shape
        np.testing.assert_allclose(found[tensor], wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_ops_on_torch_tensors(case: Case) -> None:
    g, inputs, results = built(case)
    fed = [torch.tensor(array) for array in case.inputs]
    found = g.run(dict(zip(inputs, fed, strict=True)), results)
    for tensor, wanted in zip(results, expected(case), strict=True):
        assert isinstance(found[tensor], torch.Tensor)
        np.testing.assert_allclose(np.asarray(found[tensor]), wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_ops_in_float32(case: Case) -> None:
    """The type of the inputs is the type of the result: nothing widens on the way."""
    narrow = [a.astype(np.float32) if a.dtype == np.float64 else a for a in case.inputs]
    if case.op in ("cast", "one_hot", "read", "assign") or "entropy_" in case.op:
        pytest.skip("has a type of its own")
    g, inputs, results = built(case._replace(inputs=narrow))
    found = g.run(dict(zip(inputs, narrow, strict=True)), results)
    for tensor, wanted in zip(results, expected(case), strict=True):
        kind = np.float32 if wanted.dtype == np.float64 else wanted.dtype
        assert found[tensor].dtype == kind == np.dtype(tensor.dtype)
        np.testing.assert_allclose(found[tensor], wanted, rtol=2e-4, atol=1e-5)


# Rows that need their shape to be given, and so cannot be built with unknown ones.
NEEDS_SHAPE = {"put_slice", "pad_around_gradient", "soft_max_cross_entropy_gradient"}
NEEDS_SHAPE |= {"soft_max_cross_entropy_labels_gradient", "read", "assign"}


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_ops_with_unknown_sizes(case: Case) -> None:
    equal_parts = case.op == "split" and len(expected(case)) == 1
    all_ones = case.op == "squeeze" and expected(case)[0].ndim == 1
    if case.op in NEEDS_SHAPE or equal_parts or all_ones:
        pytest.skip("built from known shapes")
    g, inputs, results = built(case, unknown=True)
    found = g.run(dict(zip(inputs, case.inputs, strict=True)), results)
    for tensor, wanted in zip(results, expected(case), strict=True):
        assert len(tensor.shape) == wanted.ndim
        assert all(a in (None, b) for a, b in zip(tensor.shape, wanted.shape, strict=True))
        np.testing.assert_allclose(found[tensor], wanted, rtol=1e-12, atol=1e-13)


def weighted(g: zs.Graph, results: list[zs.Tensor], weights: list[Array]) -> zs.Tensor:
    """A scalar in which every element of every result has a weight of its own."""
    total = g.constant(0.0, dtype="float64")
    for result, weight in zip(results, weights, strict=True):
        total = total + g.reshape(g.reduction_sum(result * g.constant(weight)), ())
    return total


SMOOTH = [(name, case) for name, case in zip(IDS, CASES, strict=True) if case.is_smooth]


@pytest.mark.parametrize("unknown", [False, True], ids=["known", "unknown"])
@pytest.mark.parametrize("case", [c for _, c in SMOOTH], ids=[n for n, _ in SMOOTH])
def test_derivatives_agree_with_central_differences(case: Case, unknown: bool) -> None:
    if unknown and (case.op in NEEDS_SHAPE or case.op in ("split", "squeeze")):
        pytest.skip("built from known shapes")
    g, inputs, results = built(case, unknown)
    weights = [np.random.default_rng(3).normal(size=a.shape) for a in expected(case)]
    loss = weighted(g, results, weights)
    floats = [k for k, array in enumerate(case.inputs) if array.dtype == np.float64]
    gradients = g.gradients(of=loss, with_respect_to=[inputs[k] for k in floats])
    wanted = {}
    for k in floats:
        wanted[k] = np.zeros_like(case.inputs[k])
        for place in np.ndindex(*case.inputs[k].shape):
            sides = []
            for step in (1e-6, -1e-6):
                arrays = [array.copy() for array in case.inputs]
                arrays[k][place] += step
                sides.append(g.run(dict(zip(inputs, arrays, strict=True)), [loss])[loss])
            wanted[k][place] = (sides[0] - sides[1]) / 2e-6
    for convert in (np.asarray, torch.tensor):
        feeds = {t: convert(a) for t, a in zip(inputs, case.inputs, strict=True)}
        found = g.run(feeds, gradients.values())
        for k in floats:
            tensor = gradients[inputs[k]]
            assert tensor.dtype == "float64"
            np.testing.assert_allclose(np.asarray(found[tensor]), wanted[k], rtol=2e-7, atol=2e-8)


def test_every_row_has_a_case() -> None:
    """Recurrent rows have test_recurrent.py, random ones a test of their own, and the rows that
    stand for an unknown size are reached by the cases above."""
    elsewhere = {"placeholder", "constant", "variable", "random_tensor", "mean_over_processes"}
    elsewhere |= {name for name, op in OPS.items() if "descriptor" in op.kinds}
    elsewhere |= {name for name, op in OPS.items() if op.prepare is None and op.lower is not None}
    assert {case.op for case in CASES} | elsewhere == set(OPS)
    smooth = {case.op for case in CASES if case.is_smooth}
    differentiable = {name for name, op in OPS.items() if op.derivative and name not in elsewhere}
    assert differentiable - smooth == {"cast"}  # float32 between is no match for differences


def test_gradients_share_what_is_equal() -> None:
    g = zs.Graph()
    a = g.placeholder(shape=(2, 3), dtype="float64")
    array = np.array([[1.0, 4, 4], [2, 0, 1]])
    top = g.gradients(g.reduction_sum(g.reduction_maximum(a, axes=[1])), [a])[a]
    assert g.run({a: array}, [top])[top].tolist() == [[0, 0.5, 0.5], [1, 0, 0]]
    kinks = g.gradients(g.reduction_sum(g.relu(a) + g.absolute(a)), [a])[a]
    assert g.run({a: array}, [kinks])[kinks].tolist() == [[2, 2, 2], [2, 0, 2]]
    b = g.constant(np.full((2, 3), 4.0))
    ties = g.gradients(g.reduction_sum(g.maximum(a, b)), [a])[a]
    assert g.run({a: array}, [ties])[ties].tolist() == [[0, 1, 1], [0, 0, 0]]


@pytest.mark.parametrize("shape", [(3, 4, 2), (None, 4, None), ()])
def test_shape_of_gives_the_sizes_of_the_run(shape: tuple[int | None, ...]) -> None:
    g = zs.Graph()
    a = g.placeholder(shape=shape, dtype="float64")
    sizes = g.shape_of(a)
    assert (sizes.shape, sizes.dtype) == ((len(shape),), "int32")
    found = g.run({a: np.ones([5 if size is None else size for size in shape])}, [sizes])[sizes]
    assert found.tolist() == [5 if size is None else size for size in shape]


def test_rounding_and_division_at_their_edges() -> None:
    g = zs.Graph()
    a = g.placeholder(shape=(6,), dtype="float64")
    b = g.placeholder(shape=(6,), dtype="float64")
    away, even = g.round(a), g.rint(a)
    zeros = [g.division_no_nan(a, b), g.floor_modulo(a, b)]
    zeros += [t for y in list(zeros) for t in g.gradients(g.reduction_sum(y), [a, b]).values()]
    feeds = {a: np.array([0.5, -0.5, 1.5, -2.5, 0.49999999999999994, 3]), b: np.zeros(6)}
    found = g.run(feeds, [away, even, *zeros])
    assert found[away].tolist() == [1, -1, 2, -3, 0, 3]
    assert found[even].tolist() == [0, 0, 2, -2, 0, 3]
    for tensor in zeros:
        assert found[tensor].tolist() == [0] * 6
