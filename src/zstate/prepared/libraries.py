"""NumPy arrays and torch tensors in and out of prepared layers, over the same memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import DTypeError, GraphError, refusal
from ..layout import describe, is_torch_tensor
from ..types import Array


class Library:
    """The array library of a call."""

    def __init__(self, x: Any) -> None:
        self._torch = is_torch_tensor(x)
        if self._torch:
            refuse_hidden_values()

    def array(self, value: Any, name: str) -> Array:
        if isinstance(value, np.ndarray):
            return value
        found = _of_torch(value) if is_torch_tensor(value) else None
        if found is None:
            expected = "a NumPy array or a torch tensor on the CPU"
            raise DTypeError(refusal("prepare", name, expected, in_words(value)))
        return found

    def back(self, array: Array) -> Any:
        if not self._torch:
            return array
        import torch

        return torch.from_numpy(array)


def refuse_hidden_values() -> None:
    """Refuse torch's traces, exports and transforms: they would keep what their example gave."""
    from ..torch.dispatch import values_are_hidden  # where torch is there

    if values_are_hidden():
        expected = "a tensor with values: trace, export or transform the model unprepared"
        got = "one that stands for others"
        raise GraphError(refusal("prepare", "input", expected, got))


def _of_torch(value: Any) -> Array | None:
    """A tensor's numbers, if NumPy can have them: not of a sparse one or on another device."""
    if value.device.type != "cpu":
        return None
    try:
        array: Array = value.numpy(force=True)  # also of those that torch keeps as negated or zero
    except (RuntimeError, TypeError):
        return None
    return array


def in_words(value: Any) -> str:
    """What a value is, for a message: a tensor with its type, layout and device."""
    if not is_torch_tensor(value):
        return describe(value)
    layout = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
    return f"{str(value.dtype).removeprefix('torch.')}, {layout}, on {value.device}"


AS_NUMPY = Library(None)
