"""The selectors of the operations around the recurrent ones, in one table.

A row is a selector and the method of :class:`zstate.Graph` that it calls, with a word for each of
the selector's labels, in their order. A word is the method's keyword; where Apple's argument has
another form than zstate's, ``_FORMS`` says how it becomes one. What is no method of the graph is a
function of the graph here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from ..errors import DTypeError, OptionError, ShapeError, refusal
from ..graph import Graph, Tensor
from ..graph.methods.core import whole_number
from ..layout import brackets, describe
from .constants import PADDING_MODES, REDUCTIONS, SCATTER_MODES, chosen, type_name
from .descriptors import MPSGraphRandomOpDescriptor
from .objects import sizes_of

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
    dtype, values = descriptor._dtype, descriptor._values
    if descriptor._kind == "uniform":
        low, high = values["min"], values["max"]
        return g.random_uniform(shape, state, minimum=low, maximum=high, dtype=dtype, name=name)
    mean, deviation = values["mean"], values["standardDeviation"]
    return g.random_normal(
        shape, state, mean=mean, standard_deviation=deviation, dtype=dtype, name=name
    )


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
            *("split_sizes", "left_padding", "right_padding"),
        )
    },
}

_UNARY = (
    *("absolute", "exponent", "logarithm", "squareRoot", "reciprocal", "square", "negative"),
    *("sign", "tanh", "sigmoid", "reLU"),
)
_BINARY = (
    *("addition", "subtraction", "multiplication", "division", "power", "minimum", "maximum"),
    *("equal", "notEqual", "lessThan", "lessThanOrEqualTo", "greaterThan"),
    *("greaterThanOrEqualTo", "matrixMultiplication"),
)
_ONE_HOT = {
    "": "",
    "axis:": "axis",
    "dataType:": "dataType",
    "axis:dataType:": "axis dataType",
    "dataType:onValue:offValue:": "dataType on_value off_value",
    "axis:dataType:onValue:offValue:": "axis dataType on_value off_value",
}
_BETAS = "beta1Tensor:beta2Tensor:epsilonTensor:"
_ADAM = "valuesTensor:momentumTensor:velocityTensor:maximumVelocityTensor:gradientTensor:name:"
_ADAM_WORDS = "values momentum velocity maximum_velocity gradient name"


def _snake(camel: str) -> str:
    if camel == "reLU":
        return "relu"
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in camel)


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
    "reductionSumWithTensor:axis:name:": ("reduction_sum", "tensor one_axis name"),
    "reductionSumWithTensor:axes:name:": ("reduction_sum", "tensor axes name"),
    "reductionMaximumWithTensor:axis:name:": ("reduction_maximum", "tensor one_axis name"),
    "reductionMaximumWithTensor:axes:name:": ("reduction_maximum", "tensor axes name"),
    "reductionArgMaximumWithTensor:axis:name:": ("reduction_arg_maximum", "tensor axis name"),
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
