"""A layer as zstate computes it: the cell, its descriptor, the tensors of the functional call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..cells import MadeCell
from ..descriptors import AnyDescriptor
from ..errors import DTypeError, OptionError, refusal
from ..layout import (
    DESCRIPTORS,
    TensorInfo,
    check,
    check_descriptor,
    describe,
    dtype_name,
    is_plain_array,
)
from ..operations import OPERATIONS, Operation, operations_of
from ..types import Array


@dataclass(frozen=True, eq=False)
class Layer:
    """One recurrent layer: ``getattr(zstate, cell)(source, **tensors, descriptor=descriptor)``.

    Args:
        cell: "single_gate_rnn", "lstm" or "gru", or a cell from equations (``zstate.cells``).
        descriptor: the cell's descriptor; None means its default. A cell from equations uses
            ``zstate.cells.CellDescriptor``.
        tensors: keyword arguments of the functional call by name, all of one float type:
            recurrent_weight [G·H,H], input_weight [G·H,I], bias [G·H] and so on, with the shapes
            of two directions if ``bidirectional``.

    Example:
        >>> import numpy as np, zstate as zs
        >>> layer = Layer("lstm", zs.LSTMDescriptor(), {
        ...     "recurrent_weight": np.zeros((8, 2)), "input_weight": np.zeros((8, 3))})
        >>> zs.lstm(np.ones((5, 1, 3)), **layer.tensors, descriptor=layer.descriptor).state.shape
        (5, 1, 2)
    """

    cell: str | MadeCell
    descriptor: AnyDescriptor
    tensors: Mapping[str, Array]

    def __post_init__(self) -> None:
        if not isinstance(self.cell, MadeCell) and self.cell not in DESCRIPTORS:
            expected = " or ".join(map(repr, DESCRIPTORS)) + " or a cell of zstate.cells"
            raise OptionError(refusal("Layer", "cell", expected, repr(self.cell)))
        operation = self.operation
        descriptor = check_descriptor(operation, self.descriptor, "Layer")
        object.__setattr__(self, "descriptor", descriptor)
        for name in self.tensors:
            if name not in operation.inputs or name == "source":
                expected = f"tensors of {self.operation.name} other than source"
                raise OptionError(refusal("Layer", "tensors", expected, repr(name)))
        for each in operation.cell.own:
            if each.required and each.name not in self.tensors:
                raise OptionError(refusal("Layer", each.name, "a tensor", "none"))
        if "recurrent_weight" not in self.tensors:
            raise OptionError(refusal("Layer", "recurrent_weight", "a tensor", "none"))
        for name, array in self.tensors.items():
            if not is_plain_array(array):
                raise DTypeError(refusal("Layer", name, "a NumPy array", describe(array)))
        infos = {
            name: TensorInfo(array.shape, dtype_name(array.dtype))
            for name, array in self.tensors.items()
        }
        source = TensorInfo((None, None, None), infos["recurrent_weight"].dtype)
        check(operation, {"source": source, **infos}, descriptor, "Layer")

    @property
    def operation(self) -> Operation:
        """The forward operation of the cell."""
        if isinstance(self.cell, MadeCell):
            return operations_of(self.cell.definition)[0]
        return OPERATIONS[self.cell]

    @property
    def kind(self) -> str:
        """The cell's name, which is unique to its equations."""
        return self.operation.key

    @property
    def directions(self) -> int:
        """1, or 2 in a bidirectional layer."""
        return 2 if self.descriptor.bidirectional else 1

    @property
    def hidden(self) -> int:
        """H, the number of hidden units."""
        return int(self.tensors["recurrent_weight"].shape[-1]) * self.descriptor.heads

    @property
    def inputs(self) -> int:
        """I, the number of input features."""
        return int(self.tensors["input_weight"].shape[-1])

    def direction(self, name: str, index: int) -> Array | None:
        """One direction's part of a tensor, None if the layer has no such tensor.

        recurrent_weight [G·H,H], input_weight [G·H,I], bias and peephole [G·H],
        secondary_bias [H], init_state and init_cell [N,H].
        """
        array = self.tensors.get(name)
        if array is None or self.directions == 1:
            return array
        if name == "recurrent_weight" or (name == "peephole" and array.ndim == 2):
            part: Array = array[index]
            return part
        axis = -1 if name in ("init_state", "init_cell") else 0
        return np.split(array, 2, axis=axis)[index]


def joined(parts: list[dict[str, Array]]) -> dict[str, Array]:
    """The tensors of a layer from those of its one or two directions; inverse of ``direction``."""
    if len(parts) == 1:
        return parts[0]
    first, second = parts
    tensors = {}
    for name in first:
        pair = [first[name], second[name]]
        if name in ("recurrent_weight", "peephole"):
            tensors[name] = np.stack(pair)
        else:
            axis = -1 if name in ("init_state", "init_cell") else 0
            tensors[name] = np.concatenate(pair, axis=axis)
    return tensors
