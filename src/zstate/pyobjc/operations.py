"""The selectors of the operations around the recurrent ones, in one table.

A row is a selector and the method of :class:`zstate.Graph` that it calls, with a word for each of
the selector's labels, in their order. A word is the method's keyword; where Apple's argument has
another form than zstate's, ``_FORMS`` says how it becomes one. What is no method of the graph is a
function of the graph here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..errors import DTypeError, OptionError, ShapeError, refusal
from ..graph import Graph, Tensor
from ..graph.methods.core import whole_number, whole_numbers
from ..layout import brackets, describe
from .constants import DISTRIBUTIONS, PADDING_MODES, REDUCTIONS, SCATTER_MODES, chosen, type_name
from .descriptors import MPSGraphRandomOpDescriptor
from .ndarrays import sizes_of

Build = Callable[..., Any]


def _concat_two(g: Graph, first: Tensor, second: Tensor, axis: int, name: str | None) -> Tensor:
    return g.concat_tensors([first, second], axis=axis, name=name)


def _gather(
    g: Graph, updates: Tensor, indices: Tensor, axis: int, batch_dimensions: int, name: str | None
) -> Tensor:
    if batch_dimensions != 0:
        raise OptionError(refusal("gather", "batchDimensions", "0", repr(batch_dimensions)))
    return g.gather(updates, indices, axis=axis, name=name)


def _scatter_along(
    g: Graph, axis: int, updates: Tensor, indices: Tensor, shape: Sequence[int], name: str | None
) -> Tensor:
    found = g.scatter_along_axis(updates, indices, _size(shape, axis), axis, name=name)
    return _of_shape("scatter_along_axis", found, shape)


def _scatter(
    g: Graph, updates: Tensor, indices: Tensor, shape: Sequence[int], axis: int, name: str | None
) -> Tensor:
    found = g.scatter(updates, indices, _size(shape, axis), axis, name=name)
    return _of_shape("scatter", found, shape)


def _size(shape: Sequence[int], axis: int) -> int:
    if not -len(shape) <= axis < len(shape):
        expected = f"an axis of {len(shape)} dimensions"
        raise ShapeError(refusal("scatter", "axis", expected, str(axis)))
    return shape[axis]


def _of_shape(label: str, tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """zstate infers the rest of the shape that Apple's interface asks for: they must agree."""
    if list(tensor.shape) != list(shape):
        raise ShapeError(refusal(label, "shape", brackets(tensor.shape), brackets(shape)))
    return tensor


def _adam_at_rate(g: Graph, **arguments: Any) -> list[Tensor]:
    """The rate has its correction for the first steps already."""
    return g.adam(**arguments, beta1_power=0.0, beta2_power=0.0)


def _random(
    g: Graph,
    shape: Sequence[int],
    descriptor: MPSGraphRandomOpDescriptor,
    state: Tensor,
    name: str | None,
) -> list[Tensor]:
    if not isinstance(descriptor, MPSGraphRandomOpDescriptor):
        expected = "an MPSGraphRandomOpDescriptor"
        raise DTypeError(refusal("random_tensor", "descriptor", expected, describe(descriptor)))
    dtype, values = type_name("random_tensor", descriptor._type), descriptor._values
    if DISTRIBUTIONS[descriptor._distribution] == "uniform":
        low, high = values["min"], values["max"]
        return g.random_uniform(shape, state, minimum=low, maximum=high, dtype=dtype, name=name)
    mean, deviation = values["mean"], values["standardDeviation"]
    return g.random_normal(
        shape, state, mean=mean, standard_deviation=deviation, dtype=dtype, name=name
    )


def _stream(g: Graph, seed: int | None) -> Tensor:
    """The state of a generator of its own, one draw further in every run that draws from it.

    Without a seed it is the number of nodes before it: a graph that is built again draws again.
    """
    first = len(g.nodes) if seed is None else whole_number("random", "seed", seed)
    state = g.random_philox_state(seed=first)
    # The last word counts the draws. As an input of the draw the assign is part of the run.
    return g.assign(state, g.addition(state, g.constant(np.array([0, 0, 0, 0, 0, 1], np.int64))))


def _uniform_anew(
    g: Graph, shape: Sequence[int], name: str | None, seed: int | None = None
) -> Tensor:
    return g.random_uniform(shape, _stream(g, seed), name=name)[0]


def _random_anew(
    g: Graph, shape: Sequence[int], descriptor: Any, name: str | None, seed: int | None = None
) -> Tensor:
    return _random(g, shape, descriptor, _stream(g, seed), name)[0]


def _dropout(g: Graph, tensor: Tensor, rate: Tensor | float, name: str | None) -> Tensor:
    if not isinstance(rate, Tensor):
        return g.dropout(tensor, rate, _stream(g, None), name=name)[0]
    g.fit("dropout", {"tensor": tensor, "rate": rate})
    sizes = whole_numbers("dropout", "tensor with a known shape", tensor.shape)
    drawn, _ = g.random_uniform(sizes, _stream(g, None), dtype=tensor.dtype)
    kept = g.cast(g.greater_than_or_equal_to(drawn, rate), tensor.dtype)
    return g.multiplication(tensor, kept / (1.0 - rate), name=name)


def _pulled(
    g: Graph, source: Tensor, incoming: Tensor, function: Callable[[Tensor], Tensor], label: str
) -> Tensor:
    """The gradient of a function's source, given that of its result."""
    # A node of its own, so that nothing but the function depends on it.
    point = g.identity(source)
    result = function(point)
    if list(result.shape) != list(incoming.shape):
        expected, got = brackets(result.shape), brackets(incoming.shape)
        raise ShapeError(refusal(label, "gradient", expected, got))
    total = g.reduction_sum(result * incoming)
    return g.gradients(total, [point])[point]


def _relu_gradient(g: Graph, gradient: Tensor, source: Tensor, name: str | None) -> Tensor:
    return g.identity(_pulled(g, source, gradient, g.relu, "reLUGradient"), name=name)


def _sigmoid_gradient(g: Graph, gradient: Tensor, source: Tensor, name: str | None) -> Tensor:
    return g.identity(_pulled(g, source, gradient, g.sigmoid, "sigmoidGradient"), name=name)


def _soft_max_gradient(
    g: Graph, gradient: Tensor, source: Tensor, axis: int, name: str | None
) -> Tensor:
    found = _pulled(g, source, gradient, lambda x: g.soft_max(x, axis=axis), "softMaxGradient")
    return g.identity(found, name=name)


def _leaky_relu_gradient(
    g: Graph, gradient: Tensor, source: Tensor, alpha: Tensor, name: str | None
) -> Tensor:
    found = _pulled(g, source, gradient, lambda x: g.leaky_relu(x, alpha), "leakyReLUGradient")
    return g.identity(found, name=name)


def _cross_entropy_gradient(
    g: Graph,
    gradient: Tensor,
    source: Tensor,
    labels: Tensor,
    axis: int,
    reduction: str,
    name: str | None,
) -> Tensor:
    def loss(x: Tensor) -> Tensor:
        return g.soft_max_cross_entropy(x, labels, axis=axis, reduction=reduction)

    if reduction != "none" and gradient.shape == (1,):  # a scalar in Apple's form
        gradient = g.reshape(gradient, ())
    return g.identity(_pulled(g, source, gradient, loss, "softMaxCrossEntropyGradient"), name=name)


def _top_k_gradient(
    g: Graph, gradient: Tensor, source: Tensor, k: int, name: str | None, axis: int = -1
) -> Tensor:
    def values(x: Tensor) -> Tensor:
        return g.top_k(x, k, axis=axis)[0]

    return g.identity(_pulled(g, source, gradient, values, "topKGradient"), name=name)


def _hat(g: Graph, source: Tensor, mean: Tensor, variance: Tensor, epsilon: float) -> Tensor:
    return g.normalization(source, mean, variance, epsilon=epsilon)


def _gamma_gradient(
    g: Graph,
    gradient: Tensor,
    source: Tensor,
    mean: Tensor,
    variance: Tensor,
    axes: Sequence[int],
    epsilon: float,
    name: str | None,
) -> Tensor:
    g.fit("normalizationGammaGradient", {"source": source, "gradient": gradient})
    hat = _hat(g, source, mean, variance, epsilon)
    return g.reduction_sum(gradient * hat, axes=axes, name=name)


def _beta_gradient(
    g: Graph, gradient: Tensor, source: Tensor, axes: Sequence[int], name: str | None
) -> Tensor:
    g.fit("normalizationBetaGradient", {"source": source, "gradient": gradient})
    return g.reduction_sum(gradient, axes=axes, name=name)


def _normalization_gradient(
    g: Graph,
    gradient: Tensor,
    source: Tensor,
    mean: Tensor,
    variance: Tensor,
    gamma: Tensor | None,
    gamma_gradient: Tensor | None,
    beta_gradient: Tensor | None,
    axes: Sequence[int],
    epsilon: float,
    name: str | None,
) -> Tensor:
    """Through the mean and the variance too, which are the source's over the axes.

    Apple's gradients of gamma and beta, sums that it would use again, are computed here: a gamma
    that changes along the axes would make them others.
    """
    given = {"source": source, "gradient": gradient}
    g.fit("normalizationGradient", given | ({} if gamma is None else {"gammaTensor": gamma}))
    hat = _hat(g, source, mean, variance, epsilon)
    if gamma is not None:
        gradient = gradient * gamma
    rest = gradient - g.mean(gradient, axes=axes) - hat * g.mean(gradient * hat, axes=axes)
    return g.division(rest, g.square_root(variance + epsilon), name=name)


def _masked_slice(
    g: Graph,
    tensor: Tensor,
    starts: Sequence[int],
    ends: Sequence[int],
    strides: Sequence[int],
    start_mask: int,
    end_mask: int,
    squeeze_mask: int,
    name: str | None,
) -> Tensor:
    """Bit k of a mask: start or end of axis k is that of the tensor; axis k, of one entry, goes."""
    rank = range(len(tensor.shape))
    bits = {
        k: [mask >> axis & 1 for axis in rank]
        for k, mask in {"start": start_mask, "end": end_mask, "squeeze": squeeze_mask}.items()
    }
    lows = [0 if bit else low for bit, low in zip(bits["start"], starts, strict=True)]
    highs: list[int | None] = [
        None if bit else high for bit, high in zip(bits["end"], ends, strict=True)
    ]
    for axis in rank:
        if bits["squeeze"][axis]:
            highs[axis] = lows[axis] + 1 or None
    found = g.strided_slice(tensor, lows, highs, strides)
    squeezed = [axis for axis in rank if bits["squeeze"][axis]]
    return g.squeeze(found, axes=squeezed, name=name) if squeezed else g.identity(found, name=name)


def _concat_interleaved(
    g: Graph, tensors: Sequence[Tensor], axis: int, interleave: bool, name: str | None
) -> Tensor:
    if interleave:
        raise OptionError(refusal("concatTensors", "interleave", "False", "True"))
    return g.concat_tensors(tensors, axis=axis, name=name)


def _flatten(g: Graph, tensor: Tensor, axis: int, name: str | None) -> Tensor:
    """[the sizes before an axis multiplied, the rest multiplied]."""
    rank = len(tensor.shape)
    if not -rank <= axis <= rank:
        raise ShapeError(refusal("flatten2D", "axis", f"an axis of {rank} dimensions", str(axis)))
    place = axis + rank if axis < 0 else axis
    parts = tensor.shape[:place], tensor.shape[place:]
    sizes = [-1 if None in part else math.prod(size or 0 for size in part) for part in parts]
    return g.reshape(tensor, sizes, name=name)


def _coordinate(g: Graph, axis: int, shape: Sequence[int], name: str | None) -> Tensor:
    """The place of each element along an axis: int32."""
    place = axis + len(shape) if axis < 0 else axis
    if not 0 <= place < len(shape) or any(size < 0 for size in shape):
        expected = "an axis of a shape of known sizes"
        raise ShapeError(refusal("coordinate", "axis", expected, f"{axis} of {brackets(shape)}"))
    return g.identity(g.constant(np.indices(tuple(shape), np.int32)[place]), name=name)


# An argument of another form than the graph's: the keyword, and how its value is made.
_FORMS: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "dataType": ("dtype", type_name),
    "one_axis": ("axes", lambda label, value: [whole_number(label, "axis", value)]),
    "parts": ("split_sizes", lambda label, value: whole_number(label, "numSplits", value)),
    "reductionType": ("reduction", lambda label, v: chosen(label, "reductionType", REDUCTIONS, v)),
    "paddingMode": (
        "padding_mode",
        lambda label, v: chosen(label, "paddingMode", PADDING_MODES, v),
    ),
    "mode": ("", lambda label, v: chosen(label, "mode", SCATTER_MODES, v)),
    **{
        word: (word, partial(sizes_of, name=word))
        for word in (
            *("shape", "axes", "permutation", "starts", "ends", "strides"),
            *("split_sizes", "left_padding", "right_padding", "multiplier"),
        )
    },
}

_UNARY = (
    *("absolute", "exponent", "logarithm", "squareRoot", "reciprocal", "square", "negative"),
    *("sign", "tanh", "sigmoid", "reLU", "identity", "floor", "ceil", "round", "rint", "truncate"),
    *("exponentBase2", "exponentBase10", "logarithmBase2", "logarithmBase10"),
    *("reciprocalSquareRoot", "isNaN", "isFinite", "isInfinite"),
    *("sin", "cos", "tan", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh"),
)
_BINARY = (
    *("addition", "subtraction", "multiplication", "division", "power", "minimum", "maximum"),
    *("equal", "notEqual", "lessThan", "lessThanOrEqualTo", "greaterThan"),
    *("greaterThanOrEqualTo", "matrixMultiplication", "modulo", "floorModulo", "divisionNoNaN"),
    *("logicalAND", "logicalOR", "logicalNAND", "logicalNOR", "logicalXOR", "logicalXNOR"),
)
# NaN wins in both of Apple's forms here.
_REDUCTIONS = {
    "Sum": "reduction_sum",
    "Product": "reduction_product",
    "Maximum": "reduction_maximum",
    "Minimum": "reduction_minimum",
    "MaximumPropagateNaN": "reduction_maximum",
    "MinimumPropagateNaN": "reduction_minimum",
    "And": "reduction_and",
    "Or": "reduction_or",
}
_ONE_HOT = {
    "": "",
    "axis:": "axis",
    "dataType:": "dataType",
    "axis:dataType:": "axis dataType",
    "dataType:onValue:offValue:": "dataType on_value off_value",
    "axis:dataType:onValue:offValue:": "axis dataType on_value off_value",
}
_INCOMING = "IncomingGradientTensor:sourceTensor:"
_MOMENTS = "meanTensor:varianceTensor:"
_BETAS = "beta1Tensor:beta2Tensor:epsilonTensor:"
_ADAM = "valuesTensor:momentumTensor:velocityTensor:maximumVelocityTensor:gradientTensor:name:"
_ADAM_WORDS = "values momentum velocity maximum_velocity gradient name"


def _snake(camel: str) -> str:
    """A word per capital; capitals in a row, and Apple's NaN and LU, are one word."""
    plain = camel.replace("NaN", "Nan").replace("reLU", "relu")
    return re.sub("[A-Z]+", lambda found: f"_{found[0].lower()}", plain)


_ROWS: dict[str, tuple[str | Build, str]] = {
    **{f"{op}WithTensor:name:": (_snake(op), "tensor name") for op in _UNARY},
    **{
        f"{op}WithPrimaryTensor:secondaryTensor:name:": (_snake(op), "primary secondary name")
        for op in _BINARY
    },
    "selectWithPredicateTensor:truePredicateTensor:falsePredicateTensor:name:": (
        "select",
        "predicate true_tensor false_tensor name",
    ),
    "castTensor:toType:name:": ("cast", "tensor dataType name"),
    "transposeTensor:permutation:name:": ("transpose", "tensor permutation name"),
    "transposeTensor:dimension:withDimension:name:": (
        "transpose_tensor",
        "tensor dimension with_dimension name",
    ),
    "reshapeTensor:withShape:name:": ("reshape", "tensor shape name"),
    "broadcastTensor:toShape:name:": ("broadcast", "tensor shape name"),
    "expandDimsOfTensor:axis:name:": ("expand_dims", "tensor one_axis name"),
    "expandDimsOfTensor:axes:name:": ("expand_dims", "tensor axes name"),
    "squeezeTensor:name:": ("squeeze", "tensor name"),
    "squeezeTensor:axis:name:": ("squeeze", "tensor one_axis name"),
    "squeezeTensor:axes:name:": ("squeeze", "tensor axes name"),
    "concatTensor:withTensor:dimension:name:": (_concat_two, "first second axis name"),
    "concatTensors:dimension:name:": ("concat_tensors", "tensors axis name"),
    "stackTensors:axis:name:": ("stack", "tensors axis name"),
    "splitTensor:splitSizes:axis:name:": ("split", "tensor split_sizes axis name"),
    "splitTensor:numSplits:axis:name:": ("split", "tensor parts axis name"),
    "sliceTensor:dimension:start:length:name:": (
        "slice_tensor",
        "tensor dimension start length name",
    ),
    "sliceTensor:starts:ends:strides:name:": ("strided_slice", "tensor starts ends strides name"),
    "reverseTensor:name:": ("reverse", "tensor name"),
    "reverseTensor:axes:name:": ("reverse", "tensor axes name"),
    "padTensor:withPaddingMode:leftPadding:rightPadding:constantValue:name:": (
        "pad_tensor",
        "tensor paddingMode left_padding right_padding constant_value name",
    ),
    **{
        f"reduction{kind}WithTensor:{label}:name:": (method, f"tensor {word} name")
        for kind, method in _REDUCTIONS.items()
        for label, word in {"axis": "one_axis", "axes": "axes"}.items()
    },
    "reductionArgMaximumWithTensor:axis:name:": ("reduction_arg_maximum", "tensor axis name"),
    "reductionArgMinimumWithTensor:axis:name:": ("reduction_arg_minimum", "tensor axis name"),
    "varianceOfTensor:axes:name:": ("variance", "tensor axes name"),
    "varianceOfTensor:meanTensor:axes:name:": ("variance", "tensor mean axes name"),
    f"normalizationWithTensor:{_MOMENTS}gammaTensor:betaTensor:epsilon:name:": (
        "normalization",
        "tensor mean variance gamma beta epsilon name",
    ),
    f"normalizationGammaGradientWith{_INCOMING}{_MOMENTS}reductionAxes:epsilon:name:": (
        _gamma_gradient,
        "gradient source mean variance axes epsilon name",
    ),
    f"normalizationBetaGradientWith{_INCOMING}reductionAxes:name:": (
        _beta_gradient,
        "gradient source axes name",
    ),
    f"normalizationGradientWith{_INCOMING}{_MOMENTS}gammaTensor:gammaGradientTensor:"
    "betaGradientTensor:reductionAxes:epsilon:name:": (
        _normalization_gradient,
        "gradient source mean variance gamma gamma_gradient beta_gradient axes epsilon name",
    ),
    "notWithTensor:name:": ("logical_not", "tensor name"),
    "absoluteSquareWithTensor:name:": ("square", "tensor name"),
    "reverseSquareRootWithTensor:name:": ("reciprocal_square_root", "tensor name"),
    **{
        f"{op}WithNaNPropagationWithPrimaryTensor:secondaryTensor:name:": (
            op,
            "primary secondary name",
        )
        for op in ("minimum", "maximum")
    },
    "clampWithTensor:minValueTensor:maxValueTensor:name:": (
        "clamp",
        "tensor minimum maximum name",
    ),
    "leakyReLUWithTensor:alpha:name:": ("leaky_relu", "tensor alpha name"),
    "leakyReLUWithTensor:alphaTensor:name:": ("leaky_relu", "tensor alpha name"),
    "reLUGradientWithIncomingGradient:sourceTensor:name:": (
        _relu_gradient,
        "gradient source name",
    ),
    "sigmoidGradientWithIncomingGradient:sourceTensor:name:": (
        _sigmoid_gradient,
        "gradient source name",
    ),
    "softMaxGradientWithIncomingGradient:sourceTensor:axis:name:": (
        _soft_max_gradient,
        "gradient source axis name",
    ),
    "leakyReLUGradientWithIncomingGradient:sourceTensor:alphaTensor:name:": (
        _leaky_relu_gradient,
        "gradient source alpha name",
    ),
    f"softMaxCrossEntropyGradientWith{_INCOMING}labelsTensor:axis:reductionType:name:": (
        _cross_entropy_gradient,
        "gradient source labels axis reductionType name",
    ),
    "topKWithSourceTensor:k:name:": ("top_k", "tensor k name"),
    "topKWithSourceTensor:axis:k:name:": ("top_k", "tensor axis k name"),
    "bottomKWithSourceTensor:axis:k:name:": ("bottom_k", "tensor axis k name"),
    "topKWithGradientTensor:source:k:name:": (_top_k_gradient, "gradient source k name"),
    "topKWithGradientTensor:source:axis:k:name:": (
        _top_k_gradient,
        "gradient source axis k name",
    ),
    "sortWithTensor:axis:name:": ("sort", "tensor axis name"),
    "sortWithTensor:axis:descending:name:": ("sort", "tensor axis descending name"),
    "argSortWithTensor:axis:name:": ("arg_sort", "tensor axis name"),
    "argSortWithTensor:axis:descending:name:": ("arg_sort", "tensor axis descending name"),
    "cumulativeSumWithTensor:axis:name:": ("cumulative_sum", "tensor axis name"),
    "cumulativeSumWithTensor:axis:exclusive:reverse:name:": (
        "cumulative_sum",
        "tensor axis exclusive reverse name",
    ),
    "tileTensor:withMultiplier:name:": ("tile", "tensor multiplier name"),
    "shapeOfTensor:name:": ("shape_of", "tensor name"),
    "flatten2DTensor:axis:name:": (_flatten, "tensor axis name"),
    "coordinateAlongAxis:withShape:name:": (_coordinate, "axis shape name"),
    "concatTensors:dimension:interleave:name:": (
        _concat_interleaved,
        "tensors axis interleave name",
    ),
    "sliceTensor:starts:ends:strides:startMask:endMask:squeezeMask:name:": (
        _masked_slice,
        "tensor starts ends strides start_mask end_mask squeeze_mask name",
    ),
    "meanOfTensor:axes:name:": ("mean", "tensor axes name"),
    "softMaxWithTensor:axis:name:": ("soft_max", "tensor axis name"),
    "softMaxCrossEntropyWithSourceTensor:labelsTensor:axis:reductionType:name:": (
        "soft_max_cross_entropy",
        "source labels axis reductionType name",
    ),
    **{
        f"oneHotWithIndicesTensor:depth:{labels}name:": ("one_hot", f"indices depth {words} name")
        for labels, words in _ONE_HOT.items()
    },
    "gatherWithUpdatesTensor:indicesTensor:axis:batchDimensions:name:": (
        _gather,
        "updates indices axis batch_dimensions name",
    ),
    "gatherAlongAxis:withUpdatesTensor:indicesTensor:name:": (
        "gather_along_axis",
        "axis updates indices name",
    ),
    "scatterWithUpdatesTensor:indicesTensor:shape:axis:mode:name:": (
        _scatter,
        "updates indices shape axis mode name",
    ),
    "scatterAlongAxis:withUpdatesTensor:indicesTensor:shape:mode:name:": (
        _scatter_along,
        "axis updates indices shape mode name",
    ),
    "randomPhiloxStateTensorWithSeed:name:": ("random_philox_state", "seed name"),
    "randomUniformTensorWithShape:stateTensor:name:": ("random_uniform", "shape state name"),
    "randomTensorWithShape:descriptor:stateTensor:name:": (_random, "shape descriptor state name"),
    "randomUniformTensorWithShape:name:": (_uniform_anew, "shape name"),
    "randomUniformTensorWithShape:seed:name:": (_uniform_anew, "shape seed name"),
    "randomTensorWithShape:descriptor:name:": (_random_anew, "shape descriptor name"),
    "randomTensorWithShape:descriptor:seed:name:": (_random_anew, "shape descriptor seed name"),
    "dropoutTensor:rate:name:": (_dropout, "tensor rate name"),
    "dropoutTensor:rateTensor:name:": (_dropout, "tensor rate name"),
    "stochasticGradientDescentWithLearningRateTensor:valuesTensor:gradientTensor:name:": (
        "stochastic_gradient_descent",
        "learning_rate values gradient name",
    ),
    f"adamWithLearningRateTensor:{_BETAS}beta1PowerTensor:beta2PowerTensor:{_ADAM}": (
        "adam",
        f"learning_rate beta1 beta2 epsilon beta1_power beta2_power {_ADAM_WORDS}",
    ),
    f"adamWithCurrentLearningRateTensor:{_BETAS}{_ADAM}": (
        _adam_at_rate,
        f"learning_rate beta1 beta2 epsilon {_ADAM_WORDS}",
    ),
    "readVariable:name:": ("read", "variable name"),
}


def operation_selectors() -> Iterator[tuple[str, str | Build, tuple[str, ...]]]:
    """(selector in PyObjC's spelling, what it calls, a word for each argument) of every row."""
    for selector, (target, words) in _ROWS.items():
        yield selector.replace(":", "_"), target, tuple(words.split())


def keyword_of(label: str, word: str, value: Any) -> tuple[str, Any]:
    """An argument as the graph's method takes it; an empty keyword is only checked."""
    keyword, form = _FORMS.get(word, (word, None))
    return keyword, value if form is None or value is None else form(label, value)
