"""The selectors of the operations around the recurrent ones, in one table.

A row is a selector and the method of :class:`zstate.Graph` that it calls, or with a + a function of
``composed.py``; then a word for each of the selector's labels, in their order, but for the name,
the last one of them all. A word is the method's keyword; where Apple's argument has another form
than zstate's, ``_FORMS`` says how it becomes one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ..graph.methods.core import truth, whole_number
from . import composed
from .composed import Build
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
            "shape axes permutation starts ends strides split_sizes left_padding right_padding "
            "multiplier"
        ).split()
    },
}

_NIL = frozenset({"axes", "shape_tensor"})  # what may be nil of these

_UNARY = (
    "absolute exponent logarithm squareRoot reciprocal square negative sign tanh sigmoid reLU "
    "identity floor ceil round rint truncate exponentBase2 exponentBase10 logarithmBase2 "
    "logarithmBase10 reciprocalSquareRoot isNaN isFinite isInfinite sin cos tan sinh cosh asin "
    "acos atan asinh acosh atanh"
).split()
_BINARY = (
    "addition subtraction multiplication division power minimum maximum equal notEqual lessThan "
    "lessThanOrEqualTo greaterThan greaterThanOrEqualTo matrixMultiplication modulo floorModulo "
    "divisionNoNaN logicalAND logicalOR logicalNAND logicalNOR logicalXOR logicalXNOR"
).split()
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
_ADAM = "valuesTensor:momentumTensor:velocityTensor:maximumVelocityTensor:gradientTensor:"
_ADAM_WORDS = "values momentum velocity maximum_velocity gradient"


def _snake(camel: str) -> str:
    """A word per capital; capitals in a row, and Apple's NaN and LU, are one word."""
    plain = camel.replace("NaN", "Nan").replace("reLU", "relu")
    return re.sub("[A-Z]+", lambda found: f"_{found[0].lower()}", plain)


_ROWS: dict[str, str] = {
    **{f"{op}WithTensor:": f"{_snake(op)} tensor" for op in _UNARY},
    **{
        f"{op}WithPrimaryTensor:secondaryTensor:": f"{_snake(op)} primary secondary"
        for op in _BINARY
    },
    "selectWithPredicateTensor:truePredicateTensor:falsePredicateTensor:": (
        "select predicate true_tensor false_tensor"
    ),
    "castTensor:toType:": "cast tensor dataType",
    "transposeTensor:permutation:": "transpose tensor permutation",
    "transposeTensor:dimension:withDimension:": "transpose_tensor tensor dimension with_dimension",
    "reshapeTensor:withShape:": "reshape tensor shape",
    "reshapeTensor:withShapeTensor:": "+reshape_to tensor shape_tensor",
    "broadcastTensor:toShape:": "broadcast tensor shape",
    "broadcastTensor:toShapeTensor:": "+broadcast_to tensor shape_tensor",
    "expandDimsOfTensor:axis:": "expand_dims tensor one_axis",
    "expandDimsOfTensor:axes:": "expand_dims tensor axes",
    "squeezeTensor:": "squeeze tensor",
    "squeezeTensor:axis:": "squeeze tensor one_axis",
    "squeezeTensor:axes:": "squeeze tensor axes",
    "concatTensor:withTensor:dimension:": "+concat_two first second axis",
    "concatTensors:dimension:": "concat_tensors tensors axis",
    "stackTensors:axis:": "stack tensors axis",
    "splitTensor:splitSizes:axis:": "split tensor split_sizes axis",
    "splitTensor:numSplits:axis:": "split tensor parts axis",
    "sliceTensor:dimension:start:length:": "slice_tensor tensor dimension start length",
    "sliceTensor:starts:ends:strides:": "strided_slice tensor starts ends strides",
    "reverseTensor:": "reverse tensor",
    "reverseTensor:axes:": "reverse tensor axes",
    "padTensor:withPaddingMode:leftPadding:rightPadding:constantValue:": (
        "pad_tensor tensor paddingMode left_padding right_padding constant_value"
    ),
    **{
        f"reduction{kind}WithTensor:{label}:": f"{method} tensor {word}"
        for kind, method in _REDUCTIONS.items()
        for label, word in {"axis": "one_axis", "axes": "axes"}.items()
    },
    "reductionArgMaximumWithTensor:axis:": "reduction_arg_maximum tensor axis",
    "reductionArgMinimumWithTensor:axis:": "reduction_arg_minimum tensor axis",
    "varianceOfTensor:axes:": "variance tensor axes",
    "varianceOfTensor:meanTensor:axes:": "variance tensor mean axes",
    f"normalizationWithTensor:{_MOMENTS}gammaTensor:betaTensor:epsilon:": (
        "normalization tensor mean variance gamma beta epsilon"
    ),
    f"normalizationGammaGradientWith{_INCOMING}{_MOMENTS}reductionAxes:epsilon:": (
        "+gamma_gradient gradient source mean variance axes epsilon"
    ),
    f"normalizationBetaGradientWith{_INCOMING}reductionAxes:": (
        "+beta_gradient gradient source axes"
    ),
    f"normalizationGradientWith{_INCOMING}{_MOMENTS}gammaTensor:gammaGradientTensor:"
    "betaGradientTensor:reductionAxes:epsilon:": (
        "+normalization_gradient gradient source mean variance gamma "
        "gamma_gradient beta_gradient axes epsilon"
    ),
    "notWithTensor:": "logical_not tensor",
    "absoluteSquareWithTensor:": "square tensor",
    "reverseSquareRootWithTensor:": "reciprocal_square_root tensor",
    **{
        f"{op}WithNaNPropagationWithPrimaryTensor:secondaryTensor:": f"{op} primary secondary"
        for op in ("minimum", "maximum")
    },
    "clampWithTensor:minValueTensor:maxValueTensor:": "clamp tensor minimum maximum",
    "leakyReLUWithTensor:alpha:": "leaky_relu tensor alpha",
    "leakyReLUWithTensor:alphaTensor:": "leaky_relu tensor alpha",
    "reLUGradientWithIncomingGradient:sourceTensor:": "+relu_gradient gradient source",
    "sigmoidGradientWithIncomingGradient:sourceTensor:": "+sigmoid_gradient gradient source",
    "softMaxGradientWithIncomingGradient:sourceTensor:axis:": (
        "+soft_max_gradient gradient source axis"
    ),
    "leakyReLUGradientWithIncomingGradient:sourceTensor:alphaTensor:": (
        "+leaky_relu_gradient gradient source alpha"
    ),
    f"softMaxCrossEntropyGradientWith{_INCOMING}labelsTensor:axis:reductionType:": (
        "+soft_max_cross_entropy_gradient gradient source labels axis reductionType"
    ),
    "topKWithSourceTensor:k:": "top_k tensor k",
    "topKWithSourceTensor:axis:k:": "top_k tensor axis k",
    "bottomKWithSourceTensor:axis:k:": "bottom_k tensor axis k",
    "topKWithGradientTensor:source:k:": "+top_k_gradient gradient source k",
    "topKWithGradientTensor:source:axis:k:": "+top_k_gradient gradient source axis k",
    "sortWithTensor:axis:": "sort tensor axis",
    "sortWithTensor:axis:descending:": "sort tensor axis descending",
    "argSortWithTensor:axis:": "arg_sort tensor axis",
    "argSortWithTensor:axis:descending:": "arg_sort tensor axis descending",
    "cumulativeSumWithTensor:axis:": "cumulative_sum tensor axis",
    "cumulativeSumWithTensor:axis:exclusive:reverse:": (
        "cumulative_sum tensor axis exclusive reverse"
    ),
    "tileTensor:withMultiplier:": "tile tensor multiplier",
    "shapeOfTensor:": "shape_of tensor",
    "flatten2DTensor:axis:": "+flatten tensor axis",
    "coordinateAlongAxis:withShape:": "+coordinate axis shape",
    "concatTensors:dimension:interleave:": "+concat_interleaved tensors axis interleave",
    "sliceTensor:starts:ends:strides:startMask:endMask:squeezeMask:": (
        "+masked_slice tensor starts ends strides start_mask end_mask squeeze_mask"
    ),
    "meanOfTensor:axes:": "mean tensor axes",
    "softMaxWithTensor:axis:": "soft_max tensor axis",
    "softMaxCrossEntropyWithSourceTensor:labelsTensor:axis:reductionType:": (
        "soft_max_cross_entropy source labels axis reductionType"
    ),
    **{
        f"oneHotWithIndicesTensor:depth:{labels}": f"one_hot indices depth {words}"
        for labels, words in _ONE_HOT.items()
    },
    "gatherWithUpdatesTensor:indicesTensor:axis:batchDimensions:": (
        "+gather updates indices axis batch_dimensions"
    ),
    "gatherAlongAxis:withUpdatesTensor:indicesTensor:": "gather_along_axis axis updates indices",
    "scatterWithUpdatesTensor:indicesTensor:shape:axis:mode:": (
        "+scatter updates indices shape axis mode"
    ),
    "scatterAlongAxis:withUpdatesTensor:indicesTensor:shape:mode:": (
        "+scatter_along axis updates indices shape mode"
    ),
    "randomPhiloxStateTensorWithSeed:": "random_philox_state seed",
    "randomUniformTensorWithShape:stateTensor:": "random_uniform shape state",
    "randomTensorWithShape:descriptor:stateTensor:": "+random shape descriptor state",
    "randomUniformTensorWithShape:": "+uniform_anew shape",
    "randomUniformTensorWithShape:seed:": "+uniform_anew shape seed",
    "randomTensorWithShape:descriptor:": "+random_anew shape descriptor",
    "randomTensorWithShape:descriptor:seed:": "+random_anew shape descriptor seed",
    "dropoutTensor:rate:": "+dropout tensor rate",
    "dropoutTensor:rateTensor:": "+dropout tensor rate",
    "stochasticGradientDescentWithLearningRateTensor:valuesTensor:gradientTensor:": (
        "stochastic_gradient_descent learning_rate values gradient"
    ),
    f"adamWithLearningRateTensor:{_BETAS}beta1PowerTensor:beta2PowerTensor:{_ADAM}": (
        f"adam learning_rate beta1 beta2 epsilon beta1_power beta2_power {_ADAM_WORDS}"
    ),
    f"adamWithCurrentLearningRateTensor:{_BETAS}{_ADAM}": (
        f"+adam_at_rate learning_rate beta1 beta2 epsilon {_ADAM_WORDS}"
    ),
    "readVariable:": "read variable",
}


# Words of tensors, which a function of composed.py may look at before the graph does.
TENSORS = ("tensor", "gradient", "source", "mean", "variance", "labels")


def operation_selectors() -> Iterator[tuple[str, str | Build, tuple[str, ...]]]:
    """(selector in PyObjC's spelling, what it calls, a word for each argument) of every row."""
    for selector, text in _ROWS.items():
        name, *words = text.split()
        target = getattr(composed, name[1:]) if name.startswith("+") else name
        yield f"{selector}name_".replace(":", "_"), target, (*words, "name")


def keyword_of(label: str, word: str, value: Any) -> tuple[str, Any]:
    """An argument as the graph's method takes it; an empty keyword is only checked."""
    keyword, form = _FORMS.get(word, (word, None))
    if form is None or (value is None and word in _NIL):
        return keyword, value
    return keyword, form(label, value)
