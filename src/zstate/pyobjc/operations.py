"""The selectors of the operations around the recurrent ones, in one table.

A row is a selector and the method of :class:`zstate.Graph` that it calls, with a word for each of
the selector's labels, in their order. A word is the method's keyword; where Apple's argument has
another form than zstate's, ``_FORMS`` says how it becomes one. What is no method of the graph is a
function of ``composed.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ..graph import Graph
from ..graph.methods.core import truth, whole_number
from .composed import (
    Build,
    adam_at_rate,
    beta_gradient,
    broadcast_to,
    concat_interleaved,
    concat_two,
    coordinate,
    dropout,
    flatten,
    gamma_gradient,
    gather,
    gradient_of,
    masked_slice,
    normalization_gradient,
    random,
    random_anew,
    reshape_to,
    scatter,
    scatter_along,
    uniform_anew,
)
from .constants import PADDING_MODES, REDUCTIONS, SCATTER_MODES, chosen, type_name
from .ndarrays import sizes_of


def _in_order(check: Callable[[str, str, object], Any], word: str, label: str, value: Any) -> Any:
    return check(label, word, value)


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
    "shape_tensor": ("shape", lambda label, value: value),
    **{
        word: (word, partial(_in_order, truth, word))
        for word in ("descending", "interleave", "exclusive", "reverse")
    },
    **{
        word: (word, partial(_in_order, whole_number, word))
        for word in ("axis", "start_mask", "end_mask", "squeeze_mask", "batch_dimensions")
    },
    "mode": ("", lambda label, v: chosen(label, "mode", SCATTER_MODES, v)),
    **{
        word: (word, partial(sizes_of, name=word))
        for word in (
            *("shape", "axes", "permutation", "starts", "ends", "strides"),
            *("split_sizes", "left_padding", "right_padding", "multiplier"),
        )
    },
}

_NIL = frozenset({"axes", "shape_tensor"})  # what may be nil of these

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
_TOP_K_GRADIENT = gradient_of("topKGradient", lambda g, x, **options: g.top_k(x, **options)[0])
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
    "reshapeTensor:withShapeTensor:name:": (reshape_to, "tensor shape_tensor name"),
    "broadcastTensor:toShape:name:": ("broadcast", "tensor shape name"),
    "broadcastTensor:toShapeTensor:name:": (broadcast_to, "tensor shape_tensor name"),
    "expandDimsOfTensor:axis:name:": ("expand_dims", "tensor one_axis name"),
    "expandDimsOfTensor:axes:name:": ("expand_dims", "tensor axes name"),
    "squeezeTensor:name:": ("squeeze", "tensor name"),
    "squeezeTensor:axis:name:": ("squeeze", "tensor one_axis name"),
    "squeezeTensor:axes:name:": ("squeeze", "tensor axes name"),
    "concatTensor:withTensor:dimension:name:": (concat_two, "first second axis name"),
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
        gamma_gradient,
        "gradient source mean variance axes epsilon name",
    ),
    f"normalizationBetaGradientWith{_INCOMING}reductionAxes:name:": (
        beta_gradient,
        "gradient source axes name",
    ),
    f"normalizationGradientWith{_INCOMING}{_MOMENTS}gammaTensor:gammaGradientTensor:"
    "betaGradientTensor:reductionAxes:epsilon:name:": (
        normalization_gradient,
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
        gradient_of("reLUGradient", Graph.relu),
        "gradient source name",
    ),
    "sigmoidGradientWithIncomingGradient:sourceTensor:name:": (
        gradient_of("sigmoidGradient", Graph.sigmoid),
        "gradient source name",
    ),
    "softMaxGradientWithIncomingGradient:sourceTensor:axis:name:": (
        gradient_of("softMaxGradient", Graph.soft_max),
        "gradient source axis name",
    ),
    "leakyReLUGradientWithIncomingGradient:sourceTensor:alphaTensor:name:": (
        gradient_of("leakyReLUGradient", Graph.leaky_relu),
        "gradient source alpha name",
    ),
    f"softMaxCrossEntropyGradientWith{_INCOMING}labelsTensor:axis:reductionType:name:": (
        gradient_of("softMaxCrossEntropyGradient", Graph.soft_max_cross_entropy),
        "gradient source labels axis reductionType name",
    ),
    "topKWithSourceTensor:k:name:": ("top_k", "tensor k name"),
    "topKWithSourceTensor:axis:k:name:": ("top_k", "tensor axis k name"),
    "bottomKWithSourceTensor:axis:k:name:": ("bottom_k", "tensor axis k name"),
    "topKWithGradientTensor:source:k:name:": (_TOP_K_GRADIENT, "gradient source k name"),
    "topKWithGradientTensor:source:axis:k:name:": (
        _TOP_K_GRADIENT,
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
    "flatten2DTensor:axis:name:": (flatten, "tensor axis name"),
    "coordinateAlongAxis:withShape:name:": (coordinate, "axis shape name"),
    "concatTensors:dimension:interleave:name:": (
        concat_interleaved,
        "tensors axis interleave name",
    ),
    "sliceTensor:starts:ends:strides:startMask:endMask:squeezeMask:name:": (
        masked_slice,
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
        gather,
        "updates indices axis batch_dimensions name",
    ),
    "gatherAlongAxis:withUpdatesTensor:indicesTensor:name:": (
        "gather_along_axis",
        "axis updates indices name",
    ),
    "scatterWithUpdatesTensor:indicesTensor:shape:axis:mode:name:": (
        scatter,
        "updates indices shape axis mode name",
    ),
    "scatterAlongAxis:withUpdatesTensor:indicesTensor:shape:mode:name:": (
        scatter_along,
        "axis updates indices shape mode name",
    ),
    "randomPhiloxStateTensorWithSeed:name:": ("random_philox_state", "seed name"),
    "randomUniformTensorWithShape:stateTensor:name:": ("random_uniform", "shape state name"),
    "randomTensorWithShape:descriptor:stateTensor:name:": (random, "shape descriptor state name"),
    "randomUniformTensorWithShape:name:": (uniform_anew, "shape name"),
    "randomUniformTensorWithShape:seed:name:": (uniform_anew, "shape seed name"),
    "randomTensorWithShape:descriptor:name:": (random_anew, "shape descriptor name"),
    "randomTensorWithShape:descriptor:seed:name:": (random_anew, "shape descriptor seed name"),
    "dropoutTensor:rate:name:": (dropout, "tensor rate name"),
    "dropoutTensor:rateTensor:name:": (dropout, "tensor rate name"),
    "stochasticGradientDescentWithLearningRateTensor:valuesTensor:gradientTensor:name:": (
        "stochastic_gradient_descent",
        "learning_rate values gradient name",
    ),
    f"adamWithLearningRateTensor:{_BETAS}beta1PowerTensor:beta2PowerTensor:{_ADAM}": (
        "adam",
        f"learning_rate beta1 beta2 epsilon beta1_power beta2_power {_ADAM_WORDS}",
    ),
    f"adamWithCurrentLearningRateTensor:{_BETAS}{_ADAM}": (
        adam_at_rate,
        f"learning_rate beta1 beta2 epsilon {_ADAM_WORDS}",
    ),
    "readVariable:name:": ("read", "variable name"),
}


# Words of tensors, which a function of composed.py may look at before the graph does.
TENSORS = ("tensor", "gradient", "source", "mean", "variance", "labels")


def operation_selectors() -> Iterator[tuple[str, str | Build, tuple[str, ...]]]:
    """(selector in PyObjC's spelling, what it calls, a word for each argument) of every row."""
    for selector, (target, words) in _ROWS.items():
        yield selector.replace(":", "_"), target, tuple(words.split())


def keyword_of(label: str, word: str, value: Any) -> tuple[str, Any]:
    """An argument as the graph's method takes it; an empty keyword is only checked."""
    keyword, form = _FORMS.get(word, (word, None))
    if form is None or (value is None and word in _NIL):
        return keyword, value
    return keyword, form(label, value)
