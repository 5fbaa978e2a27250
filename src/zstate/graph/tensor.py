"""The two things a graph is made of: nodes, and the tensors they return."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ..arrays import NUMPY
from ..errors import DTypeError, ShapeError, refusal, visible
from ..hints import missing
from ..layout import TensorInfo, brackets, describe
from ..types import PartialShape

if TYPE_CHECKING:
    from .graph import Graph
    from .ops import Op


class Store:
    """Where a constant or a variable keeps its array; a program shares it with its graph.

    ``homes``: the memory of the variable on each device that a program of it lives on. The value
    is one of them, unless a run elsewhere or the caller has given it another since.
    """

    __slots__ = ("homes", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.homes: dict[Any, Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (NUMPY.asarray(self.value),)  # a copy looks up its home again


@dataclass(eq=False)
class Node:
    """One operation in a graph: its row of the op table, inputs, attributes and results."""

    graph: Graph = field(repr=False)
    op: Op
    name: str
    inputs: tuple[Tensor, ...]
    attributes: Mapping[str, Any]
    results: list[Tensor] = field(default_factory=list)

    def evaluated(self, arrays: Sequence[Any]) -> list[Any]:
        """The results from NumPy arrays of the inputs, whose shapes are all known."""
        assert self.op.prepare is not None
        infos = [tensor.info for tensor in self.inputs]
        found = self.op.prepare(NUMPY, infos, self.attributes)(*arrays)
        return [np.asarray(array) for array in (found if isinstance(found, tuple) else (found,))]


class Tensor:
    """A result of a node: a shape (None: known at run time), a type, no data.

    ``+ - * / ** @``, ``abs()``, unary minus and ``< <= > >=`` build nodes, with numbers as
    constants of the same type; so does indexing with integers, slices, ``...`` and None. ``==`` is
    identity, so that tensors can be keys of a dict: ``graph.equal`` compares values. Everything
    that needs values (``bool()``, ``float()``, iteration, NumPy's functions) raises an error.
    """

    __slots__ = ("dtype", "name", "node", "shape")

    def __init__(self, node: Node, name: str, info: TensorInfo) -> None:
        self.node = node
        self.name = name
        self.shape: PartialShape = info.shape
        self.dtype = info.dtype

    if not TYPE_CHECKING:  # a type checker would accept any attribute

        def __getattr__(self, name: str) -> Any:
            from .graph import Graph

            raise missing("Tensor", name, dir(Graph), "graph.")

    @property
    def graph(self) -> Graph:
        return self.node.graph

    @property
    def info(self) -> TensorInfo:
        return TensorInfo(self.shape, self.dtype)

    def __add__(self, other: Tensor | float) -> Tensor:
        return self.graph.addition(self, other)

    def __radd__(self, other: float) -> Tensor:
        return self.graph.addition(other, self)

    def __sub__(self, other: Tensor | float) -> Tensor:
        return self.graph.subtraction(self, other)

    def __rsub__(self, other: float) -> Tensor:
        return self.graph.subtraction(other, self)

    def __mul__(self, other: Tensor | float) -> Tensor:
        return self.graph.multiplication(self, other)

    def __rmul__(self, other: float) -> Tensor:
        return self.graph.multiplication(other, self)

    def __truediv__(self, other: Tensor | float) -> Tensor:
        return self.graph.division(self, other)

    def __rtruediv__(self, other: float) -> Tensor:
        return self.graph.division(other, self)

    def __pow__(self, other: Tensor | float) -> Tensor:
        return self.graph.power(self, other)

    def __rpow__(self, other: float) -> Tensor:
        return self.graph.power(other, self)

    def __neg__(self) -> Tensor:
        return self.graph.negative(self)

    def __abs__(self) -> Tensor:
        return self.graph.absolute(self)

    def __matmul__(self, other: Tensor) -> Tensor:
        return self.graph.matrix_multiplication(self, other)

    def __rmatmul__(self, other: Tensor) -> Tensor:
        return self.graph.matrix_multiplication(other, self)

    def __lt__(self, other: Tensor | float) -> Tensor:
        return self.graph.less_than(self, other)

    def __le__(self, other: Tensor | float) -> Tensor:
        return self.graph.less_than_or_equal_to(self, other)

    def __gt__(self, other: Tensor | float) -> Tensor:
        return self.graph.greater_than(self, other)

    def __ge__(self, other: Tensor | float) -> Tensor:
        return self.graph.greater_than_or_equal_to(self, other)

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int | float | np.generic | np.ndarray):
            self._refuse("==", "use graph.equal(tensor, other)")
        return self is other

    def __getitem__(self, key: object) -> Tensor:
        return _indexed(self, key if isinstance(key, tuple) else (key,))

    def __len__(self) -> int:
        size = self.shape[0] if self.shape else None
        if size is None:
            self._refuse("len()", "give the placeholder a size for its first axis")
        return size

    def __bool__(self) -> bool:
        self._refuse("bool()", "use graph.select, or the array that graph.run returns")

    def __float__(self) -> float:
        self._refuse("float()", _RUN)

    def __int__(self) -> int:
        self._refuse("int()", _RUN)

    def __iter__(self) -> NoReturn:
        self._refuse("iter()", "use tensor[k] or graph.split")

    def __contains__(self, item: object) -> NoReturn:
        self._refuse("in", "use graph.equal and graph.reduction_maximum")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("np.array", _RUN)

    def __array_function__(self, function: Any, *_: Any, **__: Any) -> NoReturn:
        self._refuse(f"np.{function.__name__}", _METHODS)

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **options: Any) -> Tensor:
        """Operators with a NumPy scalar on the left arrive here; nothing else of NumPy serves."""
        act = _OPERATORS.get(function.__name__)
        if act is None or method != "__call__" or options:
            name = function.__name__ if method == "__call__" else f"{function.__name__}.{method}"
            self._refuse(f"np.{name}", _METHODS)
        # NumPy turns a scalar that it compares into an array without dimensions.
        values = [
            v.item() if isinstance(v, np.generic | np.ndarray) and v.ndim == 0 else v
            for v in inputs
        ]
        if any(isinstance(value, np.ndarray) for value in values):
            self._refuse(f"np.{function.__name__}", "use graph.constant(array) for the array")
        found: Tensor = act(*values)
        return found

    def _refuse(self, label: str, advice: str) -> NoReturn:
        got = f"{self}, which has no values before a run; {advice}"
        raise DTypeError(refusal(label, "tensor", "values", got))

    def __repr__(self) -> str:
        return f"<Tensor {visible(self.name)} {self.dtype}{brackets(self.shape)}>"


def result_name(tensor: Tensor) -> str:
    """Which of its node's results a tensor is; "" for that of a node with one."""
    return tensor.name[len(tensor.node.name) + 1 :]


_RUN = "use the array that graph.run returns"
_METHODS = "use the graph's own methods, such as graph.reduction_sum"
_OPERATORS = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "power": operator.pow,
    "matmul": operator.matmul,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "equal": operator.eq,
    "not_equal": operator.ne,
}


def _indexed(tensor: Tensor, keys: tuple[object, ...]) -> Tensor:
    """tensor[keys]: a slice of every dimension, then without the axes of integers, then with new
    ones."""
    rank = len(tensor.shape)
    given = sum(key is not None and key is not Ellipsis for key in keys)
    rests = sum(key is Ellipsis for key in keys)
    if given > rank or rests > 1:
        expected = f"at most {rank} indices and one '...' for {brackets(tensor.shape)}"
        raise ShapeError(refusal("getitem", "index", expected, f"{given} and {rests}"))
    if not rests:
        keys = (*keys, Ellipsis)
    starts, strides = [0] * rank, [1] * rank
    ends: list[int | None] = [None] * rank
    dropped: list[int] = []
    added: list[int] = []
    axis = 0
    for key in keys:
        if key is Ellipsis:
            axis += rank - given
        elif key is None:
            added.append(axis - len(dropped) + len(added))
        else:
            starts[axis], ends[axis], strides[axis] = _window(key, axis, tensor.shape)
            if not isinstance(key, slice):
                dropped.append(axis)
            axis += 1
    g = tensor.graph
    if given:
        tensor = g.strided_slice(tensor, starts, ends, strides)
    if dropped:
        tensor = g.squeeze(tensor, axes=dropped)
    return g.expand_dims(tensor, axes=added) if added else tensor


def _window(key: object, axis: int, shape: PartialShape) -> tuple[int, int | None, int]:
    """The start, end and stride of one integer or slice."""
    if isinstance(key, slice):
        bounds = []
        for value, absent in ((key.start, 0), (key.stop, None), (key.step, 1)):
            if value is not None and not _is_integer(value):
                got = describe(value)
                raise DTypeError(refusal("getitem", "slice", "integers or None", got))
            bounds.append(absent if value is None else int(value))
        start, stop, step = bounds
        assert start is not None and step is not None
        if step < 1:
            expected = "a step of at least 1 (graph.reverse turns an axis around)"
            raise ShapeError(refusal("getitem", "slice", expected, str(step)))
        return start, stop, step
    if not _is_integer(key):
        expected = "integers, slices, ... or None (graph.gather takes indices that are a tensor)"
        raise DTypeError(refusal("getitem", "index", expected, describe(key)))
    place, size = operator.index(key), shape[axis]  # type: ignore[arg-type]
    if size is not None and not -size <= place < size:
        expected = f"an index of axis {axis} of {brackets(shape)}"
        raise ShapeError(refusal("getitem", "index", expected, str(place)))
    return place, place + 1 or None, 1


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
