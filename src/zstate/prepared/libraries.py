"""NumPy arrays and torch tensors in and out of prepared layers, over the same memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import DTypeError, refusal
from ..layout import describe, is_torch_tensor
from ..types import Array


class Library:
    """The array library of a call."""

    def __init__(self, x: Any) -> None:
        self._torch = is_torch_tensor(x)

    def array(self, value: Any, name: str) -> Array:
        if isinstance(value, np.ndarray):
            return value
        if is_torch_tensor(value) and value.device.type == "cpu":
            array: Array = value.detach().numpy()
            return array
        expected = "a NumPy array or a torch tensor on the CPU"
        raise DTypeError(refusal("prepare", name, expected, describe(value)))

    def back(self, array: Array) -> Any:
        if not self._torch:
            return array
        import torch

        return torch.from_numpy(array)


AS_NUMPY = Library(None)
