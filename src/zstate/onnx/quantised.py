"""LSTM nodes with int8 weights, DynamicQuantizeLSTM of ONNX Runtime (com.microsoft), in and out.

Such a node has W [D,I,4H] and R [D,H,4H] in 8 bits, each with a scale [D] or [D,4H] and a zero
point of that shape, and is an LSTM in all else. Read, it becomes an LSTM whose weights are the
floats that the integers represent: ONNX Runtime rounds x and h to 8 bits too, so the two agree to
the accuracy of that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import GraphError, OptionError, ShapeError, refusal
from ..layout import brackets
from ..quantisation import quantise_weight
from ..types import Array
from .package import onnx_package

DOMAIN, KIND = "com.microsoft", "DynamicQuantizeLSTM"
_W, _R, _OF_AN_LSTM = 1, 2, 8  # the places of the weights; the inputs that an LSTM has too
_SCALES = {_W: (8, 9), _R: (10, 11)}  # the places of a weight's scale and zero point


def is_quantised(proto: Any) -> bool:
    """Whether it is such a node."""
    return (proto.domain, proto.op_type) == (DOMAIN, KIND)


def plain(owner: Any, proto: Any) -> Any:
    """The LSTM node for one of these; its weights become initialisers of the model."""
    inputs = [*proto.input, *[""] * (12 - len(proto.input))]
    names = list(inputs[:_OF_AN_LSTM])
    for place, beside in _SCALES.items():
        given = [inputs[place], *(inputs[each] for each in beside)]
        names[place] = "·".join(given)
        if names[place] not in owner.arrays:
            arrays = [_known(owner, name) for name in given]
            owner.arrays[names[place]] = _restored("W" if place == _W else "R", *arrays)
            owner.initialisers.add(names[place])
    while not names[-1]:
        names.pop()
    made = onnx_package().helper.make_node("LSTM", names, list(proto.output), proto.name)
    made.attribute.extend(proto.attribute)
    for name in names:
        others = [each for each in owner.readers.get(name, []) if each != proto]
        owner.readers[name] = [*others, made]
    return made


def _known(owner: Any, name: str) -> Array:
    if not name or name not in owner.arrays:
        expected = "weights, scales and zero points as initialisers"
        raise GraphError(refusal(KIND, name or "weights", expected, "none"))
    array: Array = owner.arrays[name]
    return array


def _restored(name: str, weight: Array, scale: Array, zero: Array) -> Array:
    """[D,4H,K] float32 of the integers [D,K,4H]."""
    if weight.ndim != 3 or weight.dtype.kind not in "iu":
        got = f"{weight.dtype}{brackets(weight.shape)}"
        raise ShapeError(refusal(KIND, name, "integers [D,K,4H]", got))
    count, _, rows = weight.shape
    for what, array in (("scale", scale), ("zero point", zero)):
        if array.shape not in ((count,), (count, rows)):
            expected = f"[{count}] or [{count},{rows}]"
            raise ShapeError(refusal(KIND, f"{name} {what}", expected, brackets(array.shape)))
    by_row = [each.reshape(count, 1, -1) for each in (scale, zero)]
    values = weight.astype(np.float64) - by_row[1].astype(np.float64)
    floats = (values * by_row[0].astype(np.float64)).astype(np.float32)
    return np.ascontiguousarray(floats.transpose(0, 2, 1))


def small(name: str, weight: Any) -> tuple[Array, Array, Array]:
    """A weight [D,4H,K] as such a node has it: integers [D,K,4H], scale and zero point [D,4H]."""
    if not isinstance(weight, np.ndarray) or weight.dtype != np.float32:
        got = str(weight.dtype) if isinstance(weight, np.ndarray) else "one that is computed"
        raise OptionError(refusal("onnx.save", name, "a known float32 weight for int8", got))
    found = quantise_weight("onnx.save", name, weight)
    integers = np.ascontiguousarray(found.values.transpose(0, 2, 1))
    return integers, found.scale, np.zeros(found.scale.shape, np.int8)
