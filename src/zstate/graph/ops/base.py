"""What a row of the op table is, and the shape rules that rows share.

A row has a shape rule (``infer``, run when a node is made, so that a wrong shape is refused then),
an evaluation (``prepare``, run when a program is bound to an array library: it gives the function
of arrays that the program calls), and a derivative (which builds new nodes). A size may be unknown
(None) when a node is made; a program knows them all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import DTypeError, OptionError, ShapeError, refusal
from ...layout import TensorInfo, brackets
from ...types import FLOAT_NAMES, PartialShape, float_dtype

if TYPE_CHECKING:
    from ...arrays import Namespace
    from ..graph import Graph
    from ..tensor import Node, Tensor

Attributes = Mapping[str, Any]
Infos = Sequence[TensorInfo]
Infer = Callable[[Infos, Attributes, str], dict[str, TensorInfo]]
# The namespace, the inputs' shapes and types, the attributes -> a function of the input arrays that
# returns an array, or a tuple of arrays for a row with several results.
Prepare = Callable[["Namespace", Infos, Attributes], Callable[..., Any]]
Gradients = list["Tensor | None"]
# The graph, the node, the gradient of each result (None: nothing depends on it), and which inputs
# need a gradient -> one gradient for every input, None where none is needed or there is none.
Derivative = Callable[["Graph", "Node", Gradients, list[bool]], Sequence["Tensor | None"]]
# Nodes of known shapes that compute the same, or None while a shape that matters is unknown.
Lower = Callable[["Graph", "Sequence[Tensor]", Attributes], "list[Tensor] | None"]


@dataclass(frozen=True, eq=False)
class Op:
    """One row of the op table.

    ``operands`` names the inputs for messages, the last one standing for all further ones;
    ``kinds`` gives the kind of each attribute, so that a file can be checked against it;
    ``view`` says that the result may share memory with the first input; ``passive`` lists inputs
    on whose values the results do not depend.
    """

    name: str
    infer: Infer
    prepare: Prepare | None = None
    derivative: Derivative | None = None
    lower: Lower | None = None
    operands: tuple[str, ...] = ("tensor",)
    kinds: Mapping[str, str] = field(default_factory=dict)
    view: bool = False
    passive: tuple[int, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        """By name, because rows compare by identity, even in a copied or pickled graph."""
        from . import row_named

        return row_named, (self.name,)

    def operand(self, node: Node, index: int) -> str:
        """The name of one input of a node, for messages."""
        names: tuple[str, ...] = node.attributes.get("names", self.operands)
        return names[min(index, len(names) - 1)]


def only(info: TensorInfo) -> dict[str, TensorInfo]:
    """The results of a row that has one."""
    return {"": info}


def single(gradients: Gradients) -> Tensor:
    """The gradient of the result of a row that has one."""
    (gradient,) = gradients
    assert gradient is not None
    return gradient


def require_float(label: str, name: str, info: TensorInfo) -> None:
    if info.dtype not in FLOAT_NAMES:
        one_of = "one of " + ", ".join(FLOAT_NAMES)
        raise DTypeError(refusal(label, name, one_of, info.dtype))


def require_integer(label: str, name: str, info: TensorInfo) -> None:
    if not info.dtype.startswith(("int", "uint")):
        raise DTypeError(refusal(label, name, "integers", info.dtype))


def require_same_type(label: str, names: Sequence[str], infos: Infos) -> None:
    for name, info in zip(names, infos, strict=True):
        if info.dtype != infos[0].dtype:
            expected = f"{infos[0].dtype} like {names[0]}"
            raise DTypeError(refusal(label, name, expected, info.dtype))


def require_number(label: str, name: str, info: TensorInfo) -> None:
    """For arithmetic on bools, which the array libraries lack or define differently."""
    if info.dtype == "bool":
        raise DTypeError(refusal(label, name, "numbers (graph.cast makes them)", "bool"))


def check_number(label: str, name: str, value: float, dtype: str) -> None:
    """A number that becomes an element of a tensor must be one of its type: a fraction is not
    rounded to an integer in silence, and a large number does not become infinity."""
    if dtype in FLOAT_NAMES:
        try:
            with np.errstate(over="ignore"):
                found = float(float_dtype(dtype).type(float(value)))
            fits = math.isfinite(found) or not math.isfinite(value)
        except OverflowError:
            fits = False
    elif not (isinstance(value, int) or (math.isfinite(value) and int(value) == value)):
        fits = False
    elif dtype == "bool":
        fits = value in (0, 1)
    else:
        fits = np.iinfo(dtype).min <= value <= np.iinfo(dtype).max
    if not fits:
        raise OptionError(refusal(label, name, f"a number of {dtype}", f"{value!r:.40}"))


_MOST_DIMENSIONS = 32  # what every version of NumPy has
_MOST_BYTES = 2**63 - 1


def check_size(label: str, info: TensorInfo) -> None:
    """A tensor that no machine can address is refused when it is made, not when it is run."""
    if len(info.shape) > _MOST_DIMENSIONS:
        expected = f"at most {_MOST_DIMENSIONS} dimensions"
        raise ShapeError(refusal(label, "shape", expected, str(len(info.shape))))
    # Counted as NumPy does: a size of 0 does not make up for the others.
    count = math.prod(size for size in info.shape if size)
    if count * float_dtype(info.dtype).itemsize > _MOST_BYTES:
        raise ShapeError(refusal(label, "shape", "fewer than 2^63 bytes", brackets(info.shape)))


def agree(first: PartialShape, second: PartialShape) -> bool:
    """Whether two shapes can be the same, as far as their sizes are known."""
    return len(first) == len(second) and all(
        None in (a, b) or a == b for a, b in zip(first, second, strict=True)
    )


def axis_of(label: str, name: str, axis: int, rank: int) -> int:
    """An axis counted from the front; negative ones count from the end."""
    if not -rank <= axis < rank:
        expected = f"an axis of {rank} dimensions" if rank else "a tensor with dimensions"
        raise ShapeError(refusal(label, name, expected, str(axis)))
    return axis % rank


def axes_of(label: str, axes: Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Axes counted from the front, sorted; None means all."""
    if axes is None:
        return tuple(range(rank))
    found = sorted(axis_of(label, "axes", axis, rank) for axis in axes)
    if len(set(found)) != len(found):
        raise ShapeError(refusal(label, "axes", "every axis once", brackets(axes)))
    return tuple(found)


def broadcast_shapes(
    label: str, names: Sequence[str], shapes: Sequence[PartialShape]
) -> PartialShape:
    """The shape that all broadcast to; an unknown size is taken to fit."""
    result = shapes[0] if shapes else ()
    for name, shape in zip(names[1:], shapes[1:], strict=True):
        rank = max(len(result), len(shape))
        left = (1,) * (rank - len(result)) + result
        right = (1,) * (rank - len(shape)) + shape
        sizes = []
        for a, b in zip(left, right, strict=True):
            if a is not None and b is not None and a != b and 1 not in (a, b):
                expected = f"a shape that broadcasts with {brackets(result)}"
                raise ShapeError(refusal(label, name, expected, brackets(shape)))
            sizes.append(b if a == 1 else a if b in (1, None) else b)
        result = tuple(sizes)
    return result


def known(shape: PartialShape) -> tuple[int, ...] | None:
    """The shape if every size is known."""
    sizes = tuple(size for size in shape if size is not None)
    return sizes if len(sizes) == len(shape) else None


def wide(xp: Namespace, dtype: str) -> Any:
    """The type of sums and products: float16 and bfloat16 are storage. None: as it is."""
    return xp.dtype("float32") if dtype in ("float16", "bfloat16") else None


def widened(xp: Namespace, dtype: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that computes in float32 or wider and returns the storage type."""
    target = wide(xp, dtype)
    if target is None:
        return function
    narrow, astype = xp.dtype(dtype), xp.astype

    def computed(*arrays: Any) -> Any:
        found = function(*[astype(array, target) for array in arrays])
        if isinstance(found, tuple):
            return tuple([astype(array, narrow) for array in found])
        return astype(found, narrow)

    return computed
