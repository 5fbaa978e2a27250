"""The operations around the recurrent ones under PyObjC's spelling: the published selectors, every
argument in its place, and a model that is built, differentiated, compiled and trained with them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import zstate as zs
from zstate import pyobjc
from zstate.types import Array

RNG = np.random.default_rng(4)
F32 = pyobjc.MPSDataTypeFloat32


def normal(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


X, Y, Z = normal(2, 3), normal(2, 3), normal(3, 4)
P = np.abs(X) + 0.5
V = normal(2, 3, 4)
I = np.array([2, 0, 2], np.int32)
J = np.array([[1, 0], [2, 2]], np.int32)


def adam(rate: float) -> list[Array]:
    m, v = 0.9 * Y + 0.1 * X, 0.99 * P + 0.01 * X**2
    return [Z[:2, :3] - rate * m / (np.sqrt(v) + 1e-3), m, v]


def scattered(axis: int) -> Array:
    total = np.zeros((5, 3) if axis == 0 else (3, 5), np.float32)
    for k, place in enumerate(I):
        if axis == 0:
            total[place] += Z[k, :3]
        else:
            total[:, place] += Z[:, :3][:, k]
    return total


def along() -> Array:
    total = np.zeros((2, 4), np.float32)
    for i, j in np.ndindex(2, 2):
        total[i, J[i, j]] += X[i, j]
    return total


OVER = {
    "Minimum": lambda a, axis: a.min(axis, keepdims=True),
    "Product": lambda a, axis: a.prod(axis, keepdims=True),
    "MaximumPropagateNaN": lambda a, axis: a.max(axis, keepdims=True),
    "MinimumPropagateNaN": lambda a, axis: a.min(axis, keepdims=True),
}
BOOLS = {"And": np.all, "Or": np.any}
BATCH = [X, X.mean(0, keepdims=True), X.var(0, keepdims=True)]


def pulled(function: Any, gradient: Array) -> Array:
    """torch's gradient of X, given that of a function of it."""
    x = torch.tensor(X, requires_grad=True)
    function(x).backward(torch.tensor(gradient))
    return np.asarray(x.grad)


def normalized(gradient: Array, axes: list[int]) -> list[Array]:
    """torch's gradients of X, of gamma Z[:1, :3] and of beta in a batch normalization."""
    x = torch.tensor(X, requires_grad=True)
    gamma = torch.tensor(Z[:1, :3], requires_grad=True)
    beta = torch.zeros(1, 3, requires_grad=True)
    mean, var = x.mean(axes, keepdim=True), x.var(axes, keepdim=True, unbiased=False)
    (gamma * (x - mean) / torch.sqrt(var + 0.25) + beta).backward(torch.tensor(gradient))
    return [np.asarray(t.grad) for t in (x, gamma, beta)]


class Call(NamedTuple):
    """A selector as Apple publishes it, its arguments without the name, what it must give."""

    selector: str
    arguments: list[Any]
    expected: Any


CALLS = [
    Call("absoluteWithTensor:name:", [X], np.abs(X)),
    Call("exponentWithTensor:name:", [X], np.exp(X)),
    Call("logarithmWithTensor:name:", [P], np.log(P)),
    Call("squareRootWithTensor:name:", [P], np.sqrt(P)),
    Call("reciprocalWithTensor:name:", [P], 1 / P),
    Call("squareWithTensor:name:", [X], X * X),
    Call("negativeWithTensor:name:", [X], -X),
    Call("signWithTensor:name:", [X], np.sign(X)),
    Call("tanhWithTensor:name:", [X], np.tanh(X)),
    Call("sigmoidWithTensor:name:", [X], 1 / (1 + np.exp(-X))),
    Call("reLUWithTensor:name:", [X], np.maximum(X, 0)),
    Call("additionWithPrimaryTensor:secondaryTensor:name:", [X, Y], X + Y),
    Call("subtractionWithPrimaryTensor:secondaryTensor:name:", [X, Y], X - Y),
    Call("multiplicationWithPrimaryTensor:secondaryTensor:name:", [X, Y], X * Y),
    Call("divisionWithPrimaryTensor:secondaryTensor:name:", [X, P], X / P),
    Call("powerWithPrimaryTensor:secondaryTensor:name:", [P, X], P**X),
    Call("minimumWithPrimaryTensor:secondaryTensor:name:", [X, Y], np.minimum(X, Y)),
    Call("maximumWithPrimaryTensor:secondaryTensor:name:", [X, Y], np.maximum(X, Y)),
    Call("equalWithPrimaryTensor:secondaryTensor:name:", [I, I[::-1]], I[::-1] == I),
    Call("notEqualWithPrimaryTensor:secondaryTensor:name:", [X, Y], X != Y),
    Call("lessThanWithPrimaryTensor:secondaryTensor:name:", [X, Y], X < Y),
    Call("lessThanOrEqualToWithPrimaryTensor:secondaryTensor:name:", [I, I[::-1]], I[::-1] >= I),
    Call("greaterThanWithPrimaryTensor:secondaryTensor:name:", [X, Y], X > Y),
    Call("greaterThanOrEqualToWithPrimaryTensor:secondaryTensor:name:", [X, Y], X >= Y),
    Call("matrixMultiplicationWithPrimaryTensor:secondaryTensor:name:", [X, Z], X @ Z),
    Call("selectWithPredicateTensor:truePredicateTensor:falsePredicateTensor:name:", [X > 0, X, Y], np.where(X > 0, X, Y)),
    Call("castTensor:toType:name:", [X, pyobjc.MPSDataTypeInt32], X.astype(np.int32)),
    Call("transposeTensor:permutation:name:", [V, [2, 0, 1]], V.transpose(2, 0, 1)),
    Call("transposeTensor:dimension:withDimension:name:", [V, 0, 2], V.swapaxes(0, 2)),
    Call("reshapeTensor:withShape:name:", [V, [4, -1]], V.reshape(4, 6)),
    Call("broadcastTensor:toShape:name:", [X, [5, 2, 3]], np.broadcast_to(X, (5, 2, 3))),
    Call("expandDimsOfTensor:axis:name:", [X, 1], X[:, None]),
    Call("expandDimsOfTensor:axes:name:", [X, [0, 2]], X[None, :, None]),
    Call("squeezeTensor:name:", [X[None, :, None]], X),
    Call("squeezeTensor:axis:name:", [X[None, :, None], 2], X[None]),
    Call("squeezeTensor:axes:name:", [X[None, :, None], [0, 2]], X),
    Call("concatTensor:withTensor:dimension:name:", [X, Y, 1], np.concatenate([X, Y], 1)),
    Call("concatTensors:dimension:name:", [[X, Y, X], 0], np.concatenate([X, Y, X])),
    Call("stackTensors:axis:name:", [[X, Y], 1], np.stack([X, Y], 1)),
    Call("splitTensor:splitSizes:axis:name:", [V, [1, 3], 2], [V[..., :1], V[..., 1:]]),
    Call("splitTensor:numSplits:axis:name:", [V, 2, 2], [V[..., :2], V[..., 2:]]),
    Call("sliceTensor:dimension:start:length:name:", [V, 2, 1, 2], V[..., 1:3]),
    Call("sliceTensor:starts:ends:strides:name:", [V, [0, 1, 0], [1, 3, 4], [1, 1, 2]], V[:1, 1:3, ::2]),
    Call("reverseTensor:name:", [X], X[::-1, ::-1]),
    Call("reverseTensor:axes:name:", [X, [1]], X[:, ::-1]),
    Call("padTensor:withPaddingMode:leftPadding:rightPadding:constantValue:name:", [X, pyobjc.MPSGraphPaddingModeReflect, [0, 2], [1, 0], 0.0], np.pad(X, [(0, 1), (2, 0)], "reflect")),
    Call("padTensor:withPaddingMode:leftPadding:rightPadding:constantValue:name:", [X, pyobjc.MPSGraphPaddingModeConstant, [1, 0], [0, 2], 7.0], np.pad(X, [(1, 0), (0, 2)], constant_values=7)),
    Call("reductionSumWithTensor:axis:name:", [V, 1], V.sum(1, keepdims=True)),
    Call("reductionSumWithTensor:axes:name:", [V, [0, 2]], V.sum((0, 2), keepdims=True)),
    Call("reductionMaximumWithTensor:axis:name:", [V, 1], V.max(1, keepdims=True)),
    Call("reductionMaximumWithTensor:axes:name:", [V, [0, 2]], V.max((0, 2), keepdims=True)),
    Call("reductionArgMaximumWithTensor:axis:name:", [V, 2], V.argmax(2)[..., None].astype(np.int32)),
    Call("meanOfTensor:axes:name:", [V, [0, 2]], V.mean((0, 2), keepdims=True)),
    Call("softMaxWithTensor:axis:name:", [X, 1], np.asarray(torch.softmax(torch.tensor(X), 1))),
    Call("softMaxCrossEntropyWithSourceTensor:labelsTensor:axis:reductionType:name:", [X, P, 1, pyobjc.MPSGraphLossReductionTypeSum], -(P * np.asarray(torch.log_softmax(torch.tensor(X), 1))).sum()),
    Call("softMaxCrossEntropyWithSourceTensor:labelsTensor:axis:reductionType:name:", [X, P, 0, pyobjc.MPSGraphLossReductionTypeNone], -(P * np.asarray(torch.log_softmax(torch.tensor(X), 0))).sum(0)),
    Call("oneHotWithIndicesTensor:depth:name:", [I, 4], np.eye(4, dtype=np.float32)[I]),
    Call("oneHotWithIndicesTensor:depth:axis:name:", [I, 4, 0], np.eye(4, dtype=np.float32)[I].T),
    Call("oneHotWithIndicesTensor:depth:dataType:name:", [I, 4, pyobjc.MPSDataTypeInt32], np.eye(4, dtype=np.int32)[I]),
    Call("oneHotWithIndicesTensor:depth:axis:dataType:name:", [I, 4, 0, pyobjc.MPSDataTypeInt32], np.eye(4, dtype=np.int32)[I].T),
    Call("oneHotWithIndicesTensor:depth:dataType:onValue:offValue:name:", [I, 4, F32, 3.0, 1.0], 1 + 2 * np.eye(4, dtype=np.float32)[I]),
    Call("oneHotWithIndicesTensor:depth:axis:dataType:onValue:offValue:name:", [I, 4, 0, F32, 3.0, 1.0], 1 + 2 * np.eye(4, dtype=np.float32)[I].T),
    Call("gatherWithUpdatesTensor:indicesTensor:axis:batchDimensions:name:", [V, J, 1, 0], V[:, J]),
    Call("gatherAlongAxis:withUpdatesTensor:indicesTensor:name:", [1, X, J], np.take_along_axis(X, J, 1)),
    Call("scatterWithUpdatesTensor:indicesTensor:shape:axis:mode:name:", [Z[:, :3], I, [5, 3], 0, pyobjc.MPSGraphScatterModeAdd], scattered(0)),
    Call("scatterWithUpdatesTensor:indicesTensor:shape:axis:mode:name:", [Z[:, :3], I, [3, 5], -1, pyobjc.MPSGraphScatterModeAdd], scattered(1)),
    Call("scatterAlongAxis:withUpdatesTensor:indicesTensor:shape:mode:name:", [1, X[:, :2], J, [2, 4], pyobjc.MPSGraphScatterModeAdd], along()),
    Call("stochasticGradientDescentWithLearningRateTensor:valuesTensor:gradientTensor:name:", [np.float32(0.5), X, Y], X - 0.5 * Y),
    Call("adamWithLearningRateTensor:beta1Tensor:beta2Tensor:epsilonTensor:beta1PowerTensor:beta2PowerTensor:valuesTensor:momentumTensor:velocityTensor:maximumVelocityTensor:gradientTensor:name:", [*map(np.float32, (0.3, 0.9, 0.99, 1e-3, 0.81, 0.9801)), Z[:2, :3], Y, P, None, X], adam(0.3 * np.sqrt(1 - 0.9801) / (1 - 0.81))),
    Call("adamWithCurrentLearningRateTensor:beta1Tensor:beta2Tensor:epsilonTensor:valuesTensor:momentumTensor:velocityTensor:maximumVelocityTensor:gradientTensor:name:", [*map(np.float32, (0.3, 0.9, 0.99, 1e-3)), Z[:2, :3], Y, P, None, X], adam(0.3)),
    *(Call(f"{name}WithTensor:name:", [X], function(X)) for name, function in {
        "identity": np.array, "floor": np.floor, "ceil": np.ceil, "truncate": np.trunc, "rint": np.rint,
        "round": lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5), "exponentBase2": np.exp2,
        "exponentBase10": lambda x: 10**x, "sin": np.sin, "cos": np.cos, "tan": np.tan, "sinh": np.sinh,
        "cosh": np.cosh, "atan": np.arctan, "asinh": np.arcsinh, "absoluteSquare": np.square,
        "isNaN": np.isnan, "isFinite": np.isfinite, "isInfinite": np.isinf}.items()),
    *(Call(f"{name}WithTensor:name:", [P], function(P)) for name, function in {
        "logarithmBase2": np.log2, "logarithmBase10": np.log10,
        "reciprocalSquareRoot": lambda x: 1 / np.sqrt(x), "reverseSquareRoot": lambda x: 1 / np.sqrt(x)}.items()),
    Call("acoshWithTensor:name:", [P + 1], np.arccosh(P + 1)),
    *(Call(f"{name}WithTensor:name:", [X / 9], function(X / 9)) for name, function in {
        "asin": np.arcsin, "acos": np.arccos, "atanh": np.arctanh}.items()),
    Call("notWithTensor:name:", [X > 0], X <= 0),
    *(Call(f"{name}WithPrimaryTensor:secondaryTensor:name:", [X > 0, Y > 0], function(X > 0, Y > 0)) for name, function in {
        "logicalAND": np.logical_and, "logicalOR": np.logical_or, "logicalXOR": np.logical_xor,
        "logicalNAND": lambda a, b: ~(a & b), "logicalNOR": lambda a, b: ~(a | b), "logicalXNOR": np.equal}.items()),
    *(Call(f"{name}WithPrimaryTensor:secondaryTensor:name:", [X * 5, -P], function(X * 5, -P)) for name, function in {
        "modulo": np.fmod, "floorModulo": np.mod, "divisionNoNaN": np.divide,
        "minimumWithNaNPropagation": np.minimum, "maximumWithNaNPropagation": np.maximum}.items()),
    Call("divisionNoNaNWithPrimaryTensor:secondaryTensor:name:", [X, np.zeros_like(X)], np.zeros_like(X)),
    *(Call(f"reduction{name}WithTensor:axis:name:", [V, 1], function(V, 1)) for name, function in OVER.items()),
    *(Call(f"reduction{name}WithTensor:axes:name:", [V, [0, 2]], function(V, (0, 2))) for name, function in OVER.items()),
    *(Call(f"reduction{name}WithTensor:axis:name:", [V > 0, 1], function(V > 0, 1, keepdims=True)) for name, function in BOOLS.items()),
    *(Call(f"reduction{name}WithTensor:axes:name:", [V > 0, [0, 2]], function(V > 0, (0, 2), keepdims=True)) for name, function in BOOLS.items()),
    Call("reductionSumWithTensor:axes:name:", [V, None], V.sum(keepdims=True)),
    Call("reductionArgMinimumWithTensor:axis:name:", [V, 2], V.argmin(2)[..., None].astype(np.int32)),
    Call("varianceOfTensor:axes:name:", [V, [0, 2]], V.var((0, 2), keepdims=True)),
    Call("varianceOfTensor:meanTensor:axes:name:", [V, Y[:1, :, None], [2]], ((V - Y[:1, :, None]) ** 2).mean(2, keepdims=True)),
    Call("normalizationWithTensor:meanTensor:varianceTensor:gammaTensor:betaTensor:epsilon:name:", [X, Y[:, :1], P[:, :1], Z[0, :3], None, 0.25], Z[0, :3] * (X - Y[:, :1]) / np.sqrt(P[:, :1] + 0.25)),
    Call("normalizationWithTensor:meanTensor:varianceTensor:gammaTensor:betaTensor:epsilon:name:", [X, Y[:, :1], P[:, :1], None, Z[0, :3], 0.25], (X - Y[:, :1]) / np.sqrt(P[:, :1] + 0.25) + Z[0, :3]),
    Call("normalizationGammaGradientWithIncomingGradientTensor:sourceTensor:meanTensor:varianceTensor:reductionAxes:epsilon:name:", [Y, *BATCH, [0], 0.25], normalized(Y, [0])[1]),
    Call("normalizationBetaGradientWithIncomingGradientTensor:sourceTensor:reductionAxes:name:", [Y, X, [0]], normalized(Y, [0])[2]),
    Call("normalizationGradientWithIncomingGradientTensor:sourceTensor:meanTensor:varianceTensor:gammaTensor:gammaGradientTensor:betaGradientTensor:reductionAxes:epsilon:name:", [Y, *BATCH, Z[:1, :3], None, None, [0], 0.25], normalized(Y, [0])[0]),
    Call("clampWithTensor:minValueTensor:maxValueTensor:name:", [X, -P, np.float32(0.1)], np.minimum(np.maximum(X, -P), np.float32(0.1))),
    Call("leakyReLUWithTensor:alpha:name:", [X, 0.2], np.where(X > 0, X, np.float32(0.2) * X)),
    Call("leakyReLUWithTensor:alphaTensor:name:", [X, P], np.where(X > 0, X, P * X)),
    Call("reLUGradientWithIncomingGradient:sourceTensor:name:", [Y, X], np.where(X > 0, Y, 0)),
    Call("sigmoidGradientWithIncomingGradient:sourceTensor:name:", [Y, X], pulled(torch.sigmoid, Y)),
    Call("softMaxGradientWithIncomingGradient:sourceTensor:axis:name:", [Y, X, 0], pulled(lambda x: torch.softmax(x, 0), Y)),
    Call("leakyReLUGradientWithIncomingGradient:sourceTensor:alphaTensor:name:", [Y, X, P], np.where(X > 0, Y, P * Y)),
    Call("softMaxCrossEntropyGradientWithIncomingGradientTensor:sourceTensor:labelsTensor:axis:reductionType:name:", [np.full(1, 3, np.float32), X, P, 1, pyobjc.MPSGraphLossReductionTypeMean], pulled(lambda x: -(torch.tensor(P) * torch.log_softmax(x, 1)).sum(1).mean(), np.float32(3))),
    Call("softMaxCrossEntropyGradientWithIncomingGradientTensor:sourceTensor:labelsTensor:axis:reductionType:name:", [Y[:, 0], X, P, 1, pyobjc.MPSGraphLossReductionTypeNone], pulled(lambda x: -(torch.tensor(P) * torch.log_softmax(x, 1)).sum(1), Y[:, 0])),
    Call("topKWithSourceTensor:k:name:", [V, 2], [-np.sort(-V)[..., :2], np.argsort(-V)[..., :2].astype(np.int32)]),
    Call("topKWithSourceTensor:axis:k:name:", [V, 1, 2], [-np.sort(-V, 1)[:, :2], np.argsort(-V, 1)[:, :2].astype(np.int32)]),
    Call("bottomKWithSourceTensor:axis:k:name:", [V, 0, 1], [V.min(0, keepdims=True), V.argmin(0)[None].astype(np.int32)]),
    Call("topKWithGradientTensor:source:k:name:", [Y[:, :2], X, 2], pulled(lambda x: torch.topk(x, 2).values, Y[:, :2])),
    Call("topKWithGradientTensor:source:axis:k:name:", [Y[:1], X, 0, 1], pulled(lambda x: torch.topk(x, 1, 0).values, Y[:1])),
    Call("sortWithTensor:axis:name:", [V, 1], np.sort(V, 1)),
    Call("sortWithTensor:axis:descending:name:", [V, 2, True], -np.sort(-V, 2)),
    Call("argSortWithTensor:axis:name:", [V, 1], np.argsort(V, 1).astype(np.int32)),
    Call("argSortWithTensor:axis:descending:name:", [V, 2, True], np.argsort(-V, 2).astype(np.int32)),
    Call("cumulativeSumWithTensor:axis:name:", [V, 1], V.cumsum(1)),
    Call("cumulativeSumWithTensor:axis:exclusive:reverse:name:", [V, 1, True, False], V.cumsum(1) - V),
    Call("cumulativeSumWithTensor:axis:exclusive:reverse:name:", [V, 1, False, True], V[:, ::-1].cumsum(1)[:, ::-1]),
    Call("tileTensor:withMultiplier:name:", [X, [2, 3]], np.tile(X, (2, 3))),
    Call("reshapeTensor:withShapeTensor:name:", [V, np.array([4, -1], np.int32)], V.reshape(4, 6)),
    Call("broadcastTensor:toShapeTensor:name:", [X, np.array([5, 2, 3], np.int32)], np.broadcast_to(X, (5, 2, 3))),
    Call("shapeOfTensor:name:", [V], np.array([2, 3, 4], np.int32)),
    Call("flatten2DTensor:axis:name:", [V, 1], V.reshape(2, 12)),
    Call("flatten2DTensor:axis:name:", [V, -1], V.reshape(6, 4)),
    Call("coordinateAlongAxis:withShape:name:", [-1, [2, 3]], np.array([[0, 1, 2]] * 2, np.int32)),
    Call("concatTensors:dimension:interleave:name:", [[X, Y], 1, False], np.concatenate([X, Y], 1)),
    Call("sliceTensor:starts:ends:strides:startMask:endMask:squeezeMask:name:", [V, [1, 1, 1], [2, 2, 3], [1, 1, 2], 0b100, 0b010, 0b001], V[1, 1:, :3:2]),
    Call("sliceTensor:starts:ends:strides:startMask:endMask:squeezeMask:name:", [V, [0, -1, 1], [2, 3, 3], [1, 1, 1], 0, 0, 0b010], V[:, -1, 1:3]),
]  # fmt: skip

# What needs a variable or a generator, and is tested below.
STATEFUL = [
    "readVariable:name:",
    "randomPhiloxStateTensorWithSeed:name:",
    "randomUniformTensorWithShape:stateTensor:name:",
    "randomTensorWithShape:descriptor:stateTensor:name:",
    "randomUniformTensorWithShape:name:",
    "randomUniformTensorWithShape:seed:name:",
    "randomTensorWithShape:descriptor:name:",
    "randomTensorWithShape:descriptor:seed:name:",
    "dropoutTensor:rate:name:",
    "dropoutTensor:rateTensor:name:",
]
WRITTEN_OUT = [
    "assignVariable:withValueOfTensor:name:",
    "gradientForPrimaryTensor:withTensors:name:",
    "runWithFeeds:targetTensors:targetOperations:",
    "runWithMTLCommandQueue:feeds:targetTensors:targetOperations:",
    "compileWithDevice:feeds:targetTensors:targetOperations:compilationDescriptor:",
]


def new_graph() -> Any:
    return pyobjc.MPSGraph.alloc().init()


def call(graph: Any, selector: str, *arguments: Any) -> Any:
    return getattr(graph, selector.replace(":", "_"))(*arguments)


def constant(graph: Any, value: Any) -> Any:
    """Arrays become tensors, also in a list; anything else is as it is."""
    if isinstance(value, list) and value and isinstance(value[0], np.ndarray):
        return [constant(graph, item) for item in value]
    if not isinstance(value, np.ndarray | np.float32):
        return value
    array = np.asarray(value)
    names = {"float32": F32, "int32": pyobjc.MPSDataTypeInt32, "bool": pyobjc.MPSDataTypeBool}
    return graph.constantWithData_shape_dataType_(
        array.tobytes(), list(array.shape), names[array.dtype.name]
    )


def run(graph: Any, targets: list[Any], operations: list[Any] | None = None) -> list[Array]:
    found = graph.runWithFeeds_targetTensors_targetOperations_({}, targets, operations)
    return [np.asarray(found[target]) for target in targets]


@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.selector)
def test_each_selector_computes_its_operation(case: Call) -> None:
    graph = new_graph()
    arguments = [constant(graph, value) for value in case.arguments]
    found = call(graph, case.selector, *arguments, "named")
    found = found if isinstance(found, list) else [found]
    wanted = case.expected if isinstance(case.expected, list) else [case.expected]
    assert len(found) == len(wanted)
    for array, expected in zip(run(graph, found), wanted, strict=True):
        assert array.shape == np.shape(expected)
        assert array.dtype == np.asarray(expected).dtype or array.dtype == np.float32
        np.testing.assert_allclose(array, expected, rtol=2e-5, atol=1e-6)
    assert "named" in repr(found[0])


def test_the_selectors_are_the_published_ones() -> None:
    made = [selector.replace("_", ":") for selector, _, _ in pyobjc.operation_selectors()]
    assert len(made) == len(set(made))
    assert set(made) == {case.selector for case in CALLS} | set(STATEFUL)
    for selector in [*made, *WRITTEN_OUT]:
        assert callable(getattr(pyobjc.MPSGraph, selector.replace(":", "_")))
    for selector, _, words in pyobjc.operation_selectors():
        assert selector.count("_") == len(words)


def test_random_numbers() -> None:
    graph = new_graph()
    state = call(graph, "randomPhiloxStateTensorWithSeed:name:", 7, "state")
    uniform, after = call(
        graph, "randomUniformTensorWithShape:stateTensor:name:", [2, 50], state, None
    )
    make = pyobjc.MPSGraphRandomOpDescriptor.descriptorWithDistribution_dataType_
    normal_ = make(pyobjc.MPSGraphRandomDistributionNormal, F32)
    normal_.setMean_(100.0)
    normal_.setStandardDeviation_(2.0)
    assert (normal_.mean(), normal_.standardDeviation()) == (100.0, 2.0)
    flat = make(pyobjc.MPSGraphRandomDistributionUniform, F32)
    flat.setMin_(-3.0)
    flat.setMax_(-2.0)
    selector = "randomTensorWithShape:descriptor:stateTensor:name:"
    bell, _ = call(graph, selector, [1000], normal_, state, None)
    low, _ = call(graph, selector, [1000], flat, state, None)
    advance = call(graph, "assignVariable:withValueOfTensor:name:", state, after, None)
    first, drawn, between = run(graph, [uniform, bell, low], [advance])
    assert first.shape == (2, 50) and 0 <= first.min() < first.max() < 1
    assert abs(drawn.mean() - 100) < 0.5 and abs(drawn.std() - 2) < 0.3
    assert -3 <= between.min() < between.max() < -2
    g = zs.Graph()
    same, _ = g.random_uniform((2, 50), g.random_philox_state(seed=7))
    np.testing.assert_array_equal(first, g.run({}, [same])[same])
    assert (run(graph, [uniform])[0] != first).all()


def test_numbers_without_a_state() -> None:
    graph = new_graph()
    make = pyobjc.MPSGraphRandomOpDescriptor.descriptorWithDistribution_dataType_
    kind = make(pyobjc.MPSGraphRandomDistributionNormal, F32)
    kind.setMean_(100.0)
    free = [
        call(graph, "randomUniformTensorWithShape:name:", [40], None),
        call(graph, "randomUniformTensorWithShape:name:", [40], None),
        call(graph, "randomTensorWithShape:descriptor:name:", [40], kind, None),
    ]
    seeded = [
        call(graph, "randomUniformTensorWithShape:seed:name:", [40], 3, None),
        call(graph, "randomUniformTensorWithShape:seed:name:", [40], 3, None),
        call(graph, "randomUniformTensorWithShape:seed:name:", [40], 4, None),
        call(graph, "randomTensorWithShape:descriptor:seed:name:", [40], kind, 3, None),
    ]
    first, second = (run(graph, free + seeded) for _ in range(2))
    streams = [*first[:3], *second[:3], *first[4:6]]
    for k, one in enumerate(streams):
        assert all((one != other).any() for other in streams[:k])
    for once, twice in zip(first[3:], second[3:], strict=True):
        np.testing.assert_array_equal(once, twice)
    np.testing.assert_array_equal(first[3], first[4])
    for array in (first[2], first[6]):
        assert array.min() > 60 and array.max() < 140
    for array in (first[0], first[1], first[3], first[5]):
        assert array.min() >= 0 and array.max() < 1
    with pytest.raises(zs.OptionError, match="seed: expected at least 0, got -1"):
        call(graph, "randomUniformTensorWithShape:seed:name:", [40], -1, None)


@pytest.mark.parametrize("selector", ["dropoutTensor:rate:name:", "dropoutTensor:rateTensor:name:"])
def test_dropout_keeps_its_mask_for_the_gradient(selector: str) -> None:
    graph = new_graph()
    x = graph.variableWithData_shape_dataType_name_(
        np.full(2000, 3, np.float32).tobytes(), [2000], F32, "x"
    )
    rate = 0.25 if "Tensor:name" not in selector[8:] else constant(graph, np.float32(0.25))
    dropped = call(graph, selector, x, rate, "dropped")
    total = call(graph, "reductionSumWithTensor:axis:name:", dropped, 0, None)
    gradient = graph.gradientForPrimaryTensor_withTensors_name_(total, [x], None)[x]
    first, slope = run(graph, [dropped, gradient])
    kept = first != 0
    np.testing.assert_allclose(first[kept], 4)
    np.testing.assert_allclose(slope, np.where(kept, 1 / 0.75, 0), rtol=1e-6)
    assert abs(kept.mean() - 0.75) < 0.05
    assert ((run(graph, [dropped])[0] != 0) != kept).any()


@pytest.mark.parametrize("shape", [[-1, 3], [3, 3]])
def test_shapes_may_come_from_other_tensors(shape: list[int]) -> None:
    graph = new_graph()
    x = graph.placeholderWithShape_dataType_name_(shape, F32, "x")
    row = constant(graph, X[:1])
    sizes = call(graph, "shapeOfTensor:name:", x, None)
    wide = call(graph, "broadcastTensor:toShapeTensor:name:", row, sizes, None)
    flat = call(graph, "reshapeTensor:withShape:name:", x, [-1], None)
    back = call(graph, "reshapeTensor:withShapeTensor:name:", flat, sizes, "back")
    total = call(graph, "multiplicationWithPrimaryTensor:secondaryTensor:name:", wide, back, None)
    loss = call(graph, "reductionSumWithTensor:axes:name:", total, [0, 1], None)
    slope = graph.gradientForPrimaryTensor_withTensors_name_(loss, [x], None)[x]
    found = graph.runWithFeeds_targetTensors_targetOperations_({x: Z[:, :3]}, [total, slope], None)
    np.testing.assert_allclose(np.asarray(found[total]), X[:1] * Z[:, :3], rtol=1e-6)
    np.testing.assert_allclose(np.asarray(found[slope]), np.broadcast_to(X[:1], (3, 3)), rtol=1e-6)


def test_a_read_sees_the_assign() -> None:
    graph = new_graph()
    v = graph.variableWithData_shape_dataType_name_(
        np.zeros(2, np.float32).tobytes(), [2], F32, "v"
    )
    one = graph.constantWithScalar_dataType_(1.0, F32)
    total = call(graph, "additionWithPrimaryTensor:secondaryTensor:name:", v, one, None)
    assign = call(graph, "assignVariable:withValueOfTensor:name:", v, total, "step")
    assert "step" in repr(assign)
    after = call(graph, "readVariable:name:", v, None)
    assert run(graph, [after])[0].tolist() == [1, 1]
    assert run(graph, [v])[0].tolist() == [1, 1]


SCRIPT = """
from MetalPerformanceShadersGraph import *
import numpy as np

T, N, E, H, V = 6, 3, 4, 5, 7
rng = np.random.default_rng(2)
device = MTLCreateSystemDefaultDevice()
queue = device.newCommandQueue()
graph = MPSGraph.alloc().init()

def variable(name, *shape):
    value = (rng.normal(size=shape) / 2).astype(np.float32)
    data = NSData.dataWithBytes_length_(value.tobytes(), value.nbytes)
    return graph.variableWithData_shape_dataType_name_(data, list(shape), MPSDataTypeFloat32, name)

tokens = graph.placeholderWithShape_dataType_name_([T, N], MPSDataTypeInt32, "tokens")
targets = graph.placeholderWithShape_dataType_name_([T, N], MPSDataTypeInt32, "targets")
table, W, R, b = variable("table", V, E), variable("W", 4 * H, E), variable("R", 4 * H, H), variable("b", 4 * H)
P = variable("P", H, V)
x = graph.gatherWithUpdatesTensor_indicesTensor_axis_batchDimensions_name_(table, tokens, 0, 0, "x")
descriptor = MPSGraphLSTMDescriptor.descriptor()
(h,) = graph.LSTMWithSourceTensor_recurrentWeight_inputWeight_bias_initState_initCell_descriptor_name_(
    x, R, W, b, None, None, descriptor, "lstm")
logits = graph.matrixMultiplicationWithPrimaryTensor_secondaryTensor_name_(h, P, "logits")
labels = graph.oneHotWithIndicesTensor_depth_axis_dataType_name_(targets, V, -1, MPSDataTypeFloat32, None)
loss = graph.softMaxCrossEntropyWithSourceTensor_labelsTensor_axis_reductionType_name_(
    logits, labels, -1, MPSGraphLossReductionTypeMean, "loss")
parameters = [table, W, R, b, P]
gradients = graph.gradientForPrimaryTensor_withTensors_name_(loss, parameters, "gradients")
rate = graph.constantWithScalar_dataType_(3.0, MPSDataTypeFloat32)
updates = []
for parameter in parameters:
    value = graph.stochasticGradientDescentWithLearningRateTensor_valuesTensor_gradientTensor_name_(
        rate, parameter, gradients[parameter], None)
    updates.append(graph.assignVariable_withValueOfTensor_name_(parameter, value, None))

shaped = MPSGraphShapedType.alloc().initWithShape_dataType_([T, N], MPSDataTypeInt32)
program = graph.compileWithDevice_feeds_targetTensors_targetOperations_compilationDescriptor_(
    MPSGraphDevice.deviceWithMTLDevice_(device), {tokens: shaped, targets: shaped}, [loss], updates, None)
batch = rng.integers(0, V, (T + 1, N)).astype(np.int32)

def data(array):
    bytes_ = NSData.dataWithBytes_length_(array.tobytes(), array.nbytes)
    return MPSGraphTensorData.alloc().initWithDevice_data_shape_dataType_(
        MPSGraphDevice.deviceWithMTLDevice_(device), bytes_, array.shape, MPSDataTypeInt32)

inputs = {tokens: data(batch[:-1]), targets: data(batch[1:])}
losses = []
for step in range(100):
    (result,) = program.runWithMTLCommandQueue_inputsArray_resultsArray_executionDescriptor_(
        queue, [inputs[tensor] for tensor in program.feedTensors()], None, None)
    out = np.empty((), np.float32)
    result.mpsndarray().readBytes_strideBytes_(out, None)
    losses.append(float(out))
found = graph.runWithMTLCommandQueue_feeds_targetTensors_targetOperations_(queue, inputs, [loss], None)
"""


def test_a_model_trains_with_only_its_import_line_changed() -> None:
    space: dict[str, Any] = {}
    exec(SCRIPT.replace("MetalPerformanceShadersGraph", "zstate.pyobjc"), space)
    losses: list[float] = space["losses"]
    assert losses[0] == pytest.approx(np.log(7), rel=0.2)
    assert losses[-1] < 0.5 * losses[0]
    assert float(np.asarray(space["found"][space["loss"]])) < losses[-1]
    assert space["program"].targetTensors() == [space["loss"]]


def test_results_can_be_written_to_data_that_is_there() -> None:
    graph = new_graph()
    x = graph.placeholderWithShape_dataType_name_([2], F32, "x")
    y = graph.squareWithTensor_name_(x, None)
    shaped = pyobjc.MPSGraphShapedType.alloc().initWithShape_dataType_([2], F32)
    compiled = graph.compileWithDevice_feeds_targetTensors_targetOperations_compilationDescriptor_(
        None, {x: shaped}, [y], None, None
    )

    def data(*values: float) -> Any:
        raw = np.array(values, np.float32).tobytes()
        make = pyobjc.MPSGraphTensorData.alloc().initWithDevice_data_shape_dataType_
        return make(None, raw, [len(values)], F32)

    execute = compiled.runWithMTLCommandQueue_inputsArray_resultsArray_executionDescriptor_
    target = data(0, 0)
    assert execute(None, [data(2, 3)], [target], None) == [target]
    assert np.asarray(target).tolist() == [4, 9]
    with pytest.raises(
        zs.ShapeError, match=r"resultsArray: expected float32\[2\], got float32\[1\]"
    ):
        execute(None, [data(2, 3)], [data(0)], None)
    with pytest.raises(zs.GraphError, match="resultsArray: expected 1 results, got 0"):
        execute(None, [data(2, 3)], [], None)


REFUSALS: list[tuple[str, list[Any], str]] = [
    ("padTensor:withPaddingMode:leftPadding:rightPadding:constantValue:name:", [X, pyobjc.MPSGraphPaddingModePeriodic, [0, 0], [0, 0], 0.0], r"paddingMode: expected one of 0 \(constant\), .*4 \(zero\), got 5"),
    ("scatterWithUpdatesTensor:indicesTensor:shape:axis:mode:name:", [Z[:, :3], I, [5, 3], 0, 6], r"mode: expected one of 0 \(add\), got 6"),
    ("scatterWithUpdatesTensor:indicesTensor:shape:axis:mode:name:", [Z[:, :3], I, [5, 9], 0, 0], r"shape: expected \[5,3\], got \[5,9\]"),
    ("scatterWithUpdatesTensor:indicesTensor:shape:axis:mode:name:", [Z[:, :3], I, [5, 3], 2, 0], "axis: expected an axis of 2 dimensions, got 2"),
    ("gatherWithUpdatesTensor:indicesTensor:axis:batchDimensions:name:", [V, J, 1, 1], "batchDimensions: expected 0, got 1"),
    ("additionWithPrimaryTensor:secondaryTensor:name:", [X, None], "secondary: expected a Tensor of this graph, got None"),
    ("castTensor:toType:name:", [X, 3], "dataType: expected an MPSDataType constant, got 3"),
    ("randomTensorWithShape:descriptor:stateTensor:name:", [[2], None, X], "descriptor: expected an MPSGraphRandomOpDescriptor, got None"),
    ("concatTensors:dimension:interleave:name:", [[X, Y], 1, True], "interleave: expected False, got True"),
    ("reLUGradientWithIncomingGradient:sourceTensor:name:", [Z, X], r"\[reLUGradient\] gradient: expected \[2,3\], got \[3,4\]"),
    ("normalizationGradientWithIncomingGradientTensor:sourceTensor:meanTensor:varianceTensor:gammaTensor:gammaGradientTensor:betaGradientTensor:reductionAxes:epsilon:name:", [Z, *BATCH, None, None, None, [0], 0.1], r"\[normalizationGradient\] gradient: expected a shape that broadcasts"),
    ("reshapeTensor:withShapeTensor:name:", [X, I > 0], r"\[reshape\] shapeTensor: expected a constant \[rank\] of integers, or the result of shapeOf"),
    ("broadcastTensor:toShapeTensor:name:", [X, [5, 2, 3]], r"\[broadcast\] shapeTensor: expected a Tensor of this graph, got"),
    ("flatten2DTensor:axis:name:", [None, 1], r"\[flatten2DTensor:axis:name:\] tensor: expected a Tensor of this graph, got None"),
    ("sliceTensor:starts:ends:strides:startMask:endMask:squeezeMask:name:", [X, [0], [1, 1], [1, 1], 0, 0, 0], r"\[sliceTensor\] starts: expected one number for each of 2 dimensions, got \[0\]"),
    ("flatten2DTensor:axis:name:", [X, 3], r"\[flatten2D\] axis: expected an axis of 2 dimensions, got 3"),
    ("coordinateAlongAxis:withShape:name:", [0, [-1]], r"\[coordinate\] axis: expected an axis of a shape of known sizes"),
    ("dropoutTensor:rate:name:", [X, 1.0], r"\[dropout\] rate: expected at least 0 and below 1"),
]  # fmt: skip


@pytest.mark.parametrize(("selector", "arguments", "message"), REFUSALS)
def test_refusals(selector: str, arguments: list[Any], message: str) -> None:
    graph = new_graph()
    with pytest.raises(zs.ZStateError, match=message):
        call(graph, selector, *[constant(graph, value) for value in arguments], None)


def test_other_refusals() -> None:
    graph = new_graph()
    with pytest.raises(TypeError, match="tanhWithTensor_name_ takes 2 arguments, got 1"):
        graph.tanhWithTensor_name_(1)
    make = pyobjc.MPSGraphRandomOpDescriptor.descriptorWithDistribution_dataType_
    with pytest.raises(
        zs.OptionError, match=r"distribution: expected one of 0 \(uniform\), 1 \(nor"
    ):
        make(pyobjc.MPSGraphRandomDistributionTruncatedNormal, F32)
    x = constant(new_graph(), X)
    with pytest.raises(
        zs.GraphError, match="expected a Tensor of this graph, got .* of another gra"
    ):
        graph.tanhWithTensor_name_(x, None)
