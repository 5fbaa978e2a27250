"""What all methods share: adding a node, and checking that a tensor belongs to this graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any, cast

import numpy as np

from ...errors import DTypeError, GraphError, OptionError, ShapeError, refusal
from ...layout import TensorInfo, brackets, describe, dtype_name, is_plain_array
from ...types import FLOAT_NAMES, Array, PartialShape, float_dtype
from ..ops import CONSTANT, OPS, PLACEHOLDER, VARIABLE, Op
from ..ops.base import check_number, check_size
from ..tensor import Node, Store, Tensor

DTYPES = (
    *FLOAT_NAMES,
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    "bool",
)


class Core:
    """Nodes, placeholders, constants and variables."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._numbers = count()
        self._assigned: dict[Node, Tensor] = {}  # a variable's node, and its latest assign
        self._twins: dict[Node, Node] = {}
        # Names that an imported model gives to unknown sizes, axis by axis.
        self.axis_names: dict[Tensor, tuple[str, ...]] = {}

    def placeholder(
        self, *, shape: Sequence[int | None], dtype: str = "float32", name: str | None = None
    ) -> Tensor:
        """A tensor fed at every run; a dimension may be None, known only at run time."""
        info = TensorInfo(checked_shape("placeholder", shape), checked_dtype("placeholder", dtype))
        return self.add_node(PLACEHOLDER, (), {"info": info}, name)[0]

    def constant(
        self,
        value: Array | float,
        *,
        shape: Sequence[int] | None = None,
        dtype: str | None = None,
        name: str | None = None,
    ) -> Tensor:
        """A tensor with fixed values: an array, or a number filled into ``shape`` as ``dtype``."""
        return self._stored(CONSTANT, value, shape, dtype, name)

    def variable(
        self,
        value: Array | float,
        *,
        shape: Sequence[int] | None = None,
        dtype: str | None = None,
        name: str | None = None,
    ) -> Tensor:
        """A tensor that keeps its value from run to run; ``value`` is the first.

        As an input of another node it has its value at the start of the run; :meth:`read` gives the
        value after the assigns added before it.
        """
        return self._stored(VARIABLE, value, shape, dtype, name)

    def add_node(
        self,
        op: Op,
        inputs: tuple[Tensor, ...],
        attributes: Mapping[str, Any],
        name: str | None = None,
    ) -> list[Tensor]:
        """Add a node for a row of the op table and check its shapes; the methods call this."""
        if name is not None and not isinstance(name, str):
            raise DTypeError(refusal(op.name, "name", "a string or None", describe(name)))
        label = label_of(op.name, name)
        results = op.infer([tensor.info for tensor in inputs], attributes, label)
        for info in results.values():
            check_size(label, info)
        # A counter rather than the number of nodes, because two threads may add nodes at once.
        number = next(self._numbers)
        node = Node(cast(Any, self), op, name or f"{op.name}_{number}", inputs, attributes)
        for result, info in results.items():
            full = f"{node.name}:{result}" if result else node.name
            node.results.append(Tensor(node, full, info))
        self.nodes.append(node)
        return list(node.results)

    def add_node_named(
        self, op: str, inputs: tuple[Tensor, ...], attributes: Mapping[str, Any]
    ) -> Tensor:
        """The one result of a named row; its lowered form if there is one."""
        row = OPS[op]
        if row.lower is not None:
            lowered = row.lower(cast(Any, self), inputs, attributes)
            if lowered is not None:
                return lowered[0]
        return self.add_node(row, inputs, attributes)[0]

    def own(self, label: str, name: str, tensor: object) -> Tensor:
        """The tensor, if it belongs to this graph."""
        if not isinstance(tensor, Tensor):
            got = describe(tensor)
            if isinstance(tensor, np.ndarray):
                got += "; graph.constant(array) makes a tensor of it"
            raise DTypeError(refusal(label, name, "a Tensor of this graph", got))
        if tensor.graph is not self:
            raise GraphError(
                refusal(label, name, "a Tensor of this graph", f"{tensor} of another graph")
            )
        return tensor

    def apply(
        self,
        op: str,
        tensors: Sequence[object],
        attributes: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> Tensor:
        """The one result of a row; numbers become constants of the tensors' type."""
        return self._add_checked(op, tensors, attributes, name)[0]

    def apply_many(
        self,
        op: str,
        tensors: Sequence[object],
        attributes: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> list[Tensor]:
        """Every result of a row."""
        return self._add_checked(op, tensors, attributes, name)

    def _add_checked(
        self,
        op: str,
        tensors: Sequence[object],
        attributes: Mapping[str, Any] | None,
        name: str | None,
    ) -> list[Tensor]:
        row, label = OPS[op], label_of(op, name)
        tensors = listed(label, row.operands[0], tensors)
        if not tensors:
            raise GraphError(refusal(label, row.operands[0], "at least one tensor", "none"))
        dtype = next(
            (t.dtype for t in tensors if isinstance(t, Tensor) and t.dtype != "bool"), "float32"
        )
        inputs = []
        for index, tensor in enumerate(tensors):
            operand = row.operands[min(index, len(row.operands) - 1)]
            if is_number(tensor):
                check_number(label, operand, cast(float, tensor), dtype)
                tensor = self.constant(cast(float, tensor), dtype=dtype)
            inputs.append(self.own(label, operand, tensor))
        return self.add_node(row, tuple(inputs), attributes or {}, name)

    def _stored(
        self,
        op: Op,
        value: Array | float,
        shape: Sequence[int] | None,
        dtype: str | None,
        name: str | None,
    ) -> Tensor:
        array = checked_value(label_of(op.name, name), value, shape, dtype)
        array.flags.writeable = False
        info = TensorInfo(array.shape, array.dtype.name)
        return self.add_node(op, (), {"info": info, "store": Store(array)}, name)[0]


def label_of(kind: str, name: object) -> str:
    """How messages name a node."""
    return f"{kind} {name!r}" if isinstance(name, str) and name else kind


def is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def listed(label: str, name: str, values: Iterable[Any]) -> list[Any]:
    """The tensors that a caller passed as a list; rejects a single tensor, which has no members."""
    if isinstance(values, Tensor | str) or not has_members(values):
        raise DTypeError(refusal(label, name, "a list of tensors", describe(values)))
    return list(values)


def has_members(value: object) -> bool:
    """Whether a value can be iterated; an array without dimensions only looks as if it could."""
    return isinstance(value, Iterable) and getattr(value, "ndim", 1) != 0


def whole_number(label: str, name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise DTypeError(refusal(label, name, "an integer", describe(value)))
    return int(value)


def truth(label: str, name: str, value: object) -> bool:
    """True or False, including NumPy's, 0 and 1; an array has no single truth value."""
    if isinstance(value, bool | np.bool_ | int | np.integer) and value in (0, 1):
        return bool(value)
    raise DTypeError(refusal(label, name, "True or False", describe(value)))


def whole_numbers(label: str, name: str, values: object) -> tuple[int, ...]:
    if not isinstance(values, list | tuple | range):
        raise DTypeError(refusal(label, name, "a sequence of integers", describe(values)))
    return tuple(whole_number(label, name, value) for value in values)


def real_number(label: str, name: str, value: object) -> float:
    if not is_number(value):
        raise DTypeError(refusal(label, name, "a number", describe(value)))
    try:
        return float(cast(float, value))
    except OverflowError:
        raise OptionError(
            refusal(label, name, "a number that fits float64", "a larger one")
        ) from None


def exact_number(label: str, name: str, value: object) -> float:
    """A number that becomes an element: an integer stays one, as float64 cannot hold them all."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    return real_number(label, name, value)


def checked_shape(label: str, shape: object) -> PartialShape:
    expected = "a sequence of sizes, with None for those known at run time"
    if not isinstance(shape, list | tuple):
        raise DTypeError(refusal(label, "shape", expected, describe(shape)))
    sizes: list[int | None] = []
    for size in shape:
        if isinstance(size, bool) or not isinstance(size, int | np.integer | None):
            raise DTypeError(refusal(label, "shape", expected, describe(size)))
        if size is not None and size < 0:
            raise ShapeError(refusal(label, "shape", expected, str(size)))
        sizes.append(None if size is None else int(size))
    return tuple(sizes)


def checked_dtype(label: str, dtype: object) -> str:
    try:
        if isinstance(dtype, str) and dtype == "bfloat16":
            return dtype_name(float_dtype("bfloat16"))
        if dtype is None:
            raise TypeError  # float64 to NumPy
        name = dtype_name(np.dtype(dtype))  # type: ignore[call-overload]
    except (TypeError, ValueError, SyntaxError):
        got = f"{dtype!r:.60}"
        raise DTypeError(refusal(label, "dtype", f"one of {', '.join(DTYPES)}", got)) from None
    if name not in DTYPES:
        raise DTypeError(refusal(label, "dtype", f"one of {', '.join(DTYPES)}", name))
    return name


def checked_value(
    label: str, value: object, shape: Sequence[int] | None, dtype: str | None
) -> Array:
    """The array behind a constant or a variable: always a copy."""
    if is_plain_array(value):
        if shape is not None or dtype is not None:
            raise OptionError(
                f"[{label}] shape and dtype are for a number; an array has its own: "
                "array.astype changes its type, array.reshape its shape"
            )
        assert isinstance(value, np.ndarray)
        checked_dtype(label, value.dtype)
        return np.array(value, order="C")
    if not is_number(value):
        raise DTypeError(refusal(label, "value", "a NumPy array or a number", describe(value)))
    sizes = checked_shape(label, () if shape is None else shape)
    if None in sizes:
        raise ShapeError(refusal(label, "shape", "known sizes", brackets(sizes)))
    known = tuple(size for size in sizes if size is not None)
    name = checked_dtype(label, "float32" if dtype is None else dtype)
    check_number(label, "value", cast(float, value), name)
    check_size(label, TensorInfo(known, name))
    return np.full(known, value, float_dtype(name))
