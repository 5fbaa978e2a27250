"""What the selectors of operations call, from the table of what Apple publishes.

The recurrent ones have their tensors' names as labels. Any other selector calls the method of
:class:`zstate.Graph`, or the function of ``composed.py``, that has its Swift name in Python's
spelling; ``_OTHER_NAMES`` lists the exceptions. Each argument goes to the parameter that its label
names, or else to the one in its place. Where Apple's argument has another form than zstate's, its
Swift type says how it becomes one.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from ..graph import Graph
from ..graph.methods.core import truth, whole_number
from ..mpsgraph.published import Method, Parameter, methods_of
from ..operations import OPERATIONS
from . import composed
from .composed import Build
from .constants import PADDING_MODES, REDUCTIONS, SCATTER_MODES, chosen, type_name
from .ndarrays import sizes_of

# Methods of MPSGraph that are written out in graph.py.
_WRITTEN = ("applyStochasticGradientDescent", "assign", "gradients", "placeholder", "variable")

# Swift names, or selectors of overloads, whose function has another name. NaN wins in both of
# Apple's forms here.
_OTHER_NAMES = {
    "absoluteSquare": "square",
    "adamWithCurrentLearningRateTensor": "adam_at_rate",
    "broadcastTensor:toShapeTensor:name:": "broadcast_to",
    "concatTensor": "concat_two",
    "concatTensors:dimension:interleave:name:": "concat_interleaved",
    "flatten2D": "flatten",
    "maximumWithNaNPropagation": "maximum",
    "minimumWithNaNPropagation": "minimum",
    "normalize": "normalization",
    "not": "logical_not",
    "randomPhiloxStateTensor": "random_philox_state",
    "randomTensorWithShape:descriptor:stateTensor:name:": "random_with_state",
    "randomUniformTensorWithShape:stateTensor:name:": "random_uniform",
    "reductionMaximumPropagateNaN": "reduction_maximum",
    "reductionMinimumPropagateNaN": "reduction_minimum",
    "reshapeTensor:withShapeTensor:name:": "reshape_to",
    "reverseSquareRoot": "reciprocal_square_root",
    "sliceTensor:starts:ends:strides:name:": "strided_slice",
    "sliceTensor:starts:ends:strides:startMask:endMask:squeezeMask:name:": "masked_slice",
    "tileTensor": "tile",
}

_CONSTANTS = {
    "MPSGraphLossReductionType": ("reductionType", REDUCTIONS),
    "MPSGraphPaddingMode": ("paddingMode", PADDING_MODES),
    "MPSGraphScatterMode": ("mode", SCATTER_MODES),
}

Form = Callable[[str, Any], Any]  # an argument as the graph takes it, for a selector's messages


class Operation(NamedTuple):
    """A selector in PyObjC's spelling, what it calls, and the keyword and form of each argument."""

    selector: str
    target: str | Build
    arguments: dict[str, Form]


def snake(camel: str) -> str:
    """Apple's camel case with underscores: NaN and LU are one word."""
    plain = camel.replace("NaN", "Nan").replace("LU", "lu")
    return re.sub("(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", plain).lower()


def operations() -> Iterator[Operation]:
    """Every operation of the facade but the recurrent ones."""
    for row in methods_of("MPSGraph"):
        is_operation = row.kind == "offered" and row.selector.endswith(":name:")
        if is_operation and row.swift_name not in _WRITTEN and row.op not in OPERATIONS:
            target = _target(row)
            keywords = _keywords(row.selector, _parameters(target))
            pairs = zip(keywords, row.parameters, strict=True)
            arguments = {keyword: _form(keyword, parameter) for keyword, parameter in pairs}
            yield Operation(row.pyobjc, target, arguments)


def selectors() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(selector in PyObjC's spelling, operation, keywords after source) of all 20 methods."""
    for row in methods_of("MPSGraph"):
        if row.op in OPERATIONS:
            tensors = row.selector.split(":")[1:-3]  # before descriptor and name
            yield row.pyobjc, row.op, tuple(map(snake, tensors))


def operation_selectors() -> Iterator[tuple[str, str | Build, tuple[str, ...]]]:
    """(selector in PyObjC's spelling, what it calls, a keyword for each argument) of each."""
    for each in operations():
        yield each.selector, each.target, tuple(each.arguments)


def _target(row: Method) -> str | Build:
    """A function of composed.py, or the name of a method of the graph."""
    keys = (row.selector, row.selector.split(":")[0], row.swift_name)
    name = next((_OTHER_NAMES[key] for key in keys if key in _OTHER_NAMES), snake(row.swift_name))
    own = vars(composed).get(name)
    is_build = getattr(own, "__module__", "") == composed.__name__
    return own if own is not None and is_build else name


def _parameters(target: str | Build) -> list[str]:
    """The parameters by name between the graph and the name of the result."""
    function = getattr(Graph, target) if isinstance(target, str) else target
    _, *taken = inspect.signature(function).parameters.values()
    return [
        each.name for each in taken if each.kind is not each.VAR_KEYWORD and each.name != "name"
    ]


def _keywords(selector: str, taken: Sequence[str]) -> Iterator[str]:
    """The parameter that each part of a selector stands for."""
    first, *labels = selector[:-1].split(":")
    for place, label in enumerate([first.rpartition("Along")[2], *labels]):
        bare = snake(re.sub("^(with|to)(?=[A-Z])|Tensor$", "", label))
        named = {"data_type": "dtype", "reduction_type": "reduction"}.get(bare, bare)
        by_name = [name for name in (snake(label), named) if name in taken]
        there = taken[place : place + 1] if label != "name" else []
        yield [*by_name, *there, named][0]


def _form(keyword: str, parameter: Parameter) -> Form:
    """How an argument of a Swift type becomes the graph's."""
    kind = parameter.type
    if kind == "MPSDataType":
        return type_name
    if kind in _CONSTANTS:
        word, names = _CONSTANTS[kind]
        return lambda label, value: chosen(label, word, names, value)
    if kind == "Bool":
        return lambda label, value: truth(label, keyword, value)
    if kind == "Int" and keyword == "axes":
        return lambda label, value: [whole_number(label, "axis", value)]
    if kind in ("Int", "UInt32"):
        name = parameter.label if keyword == "split_sizes" else keyword  # numSplits: a number
        return lambda label, value: whole_number(label, name, value)
    if kind == "[NSNumber]":
        sizes = partial(sizes_of, name=keyword)
        nil = keyword == "axes" or parameter.optional
        return lambda label, value: None if nil and value is None else sizes(label, value)
    return lambda label, value: value
