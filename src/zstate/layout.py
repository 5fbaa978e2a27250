"""The one place that knows shapes: letters, the shape table, checks, gate orders, directions.

T time, N batch, I input features, H hidden units, G gates of the cell, D directions. ``bind``
checks a call against the table once, so that nothing behind it has to. The graph uses the same
rules at build time, where a dimension may still be unknown (None).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.ma  # NumPy would import it on first use, inside a call

from .cells import Cell
from .descriptors import AnyDescriptor
from .errors import DTypeError, OptionError, ShapeError, refusal
from .operations import OPERATIONS, Operation, check_saved
from .types import FLOAT_NAMES, PartialShape, Shape, Value

# One row a tensor: its axes as products of letters. A lone D is dropped with one direction.
SHAPES: dict[str, str] = {
    "source": "T N I",
    "gates": "T N DGH",  # a source that is already projected, and what project() makes
    "recurrent_weight": "D GH H",
    "input_weight": "DGH I",
    "bias": "DGH",
    "init_state": "N DH",
    "init_cell": "N DH",
    "peephole": "D GH",
    "secondary_bias": "DH",
    "mask": "T N DH",
    "state": "T N DH",
    "cell": "T N DH",
    "training_state": "T N DGH",
    "source_gradient": "T N DH",
    "z_state": "T N DGH",
    "cell_output_fwd": "T N DH",
    "output_fwd": "T N DH",
    "state_gradient": "N DH",
    "cell_gradient": "N DH",
}

# Where the batch lies in the inputs of the forward operations that have one.
BATCH_AXIS = {
    name: SHAPES[name].split().index("N") for name in ("source", "init_state", "init_cell", "mask")
}

# Further shapes that mean the same tensor: the first form that fits by rank counts.
_OTHER_FORMS: dict[str, tuple[str, ...]] = {
    "peephole": ("DGH",),
    "state_gradient": ("1 N DH",),
    "cell_gradient": ("1 N DH", "T N DH"),
}

# Per-step tensors that lie in the order of the input; all others lie in the order of the output.
_INPUT_ORDER = frozenset({"source", "gates", "mask"})

_CELLS: dict[str, Cell] = {each.cell.name: each.cell for each in OPERATIONS.values()}
DESCRIPTORS = cast(
    dict[str, type[AnyDescriptor]], {name: cell.descriptor for name, cell in _CELLS.items()}
)


def cell_of(descriptor: AnyDescriptor) -> Cell:
    """The cell that a descriptor belongs to."""
    return next(cell for cell in _CELLS.values() if cell.descriptor is type(descriptor))


def gate_order(descriptor: AnyDescriptor) -> tuple[str, ...]:
    """The gates' names in the order in which they lie along the G axis."""
    return cell_of(descriptor).gate_order(descriptor)


class Dim(NamedTuple):
    """One axis: ``factor`` times a letter, or a plain number when the letter is empty."""

    factor: int
    letter: str

    def __str__(self) -> str:
        if not self.letter:
            return str(self.factor)
        return self.letter if self.factor == 1 else f"{self.factor}{self.letter}"


def _dims(form: str, gates: int, directions: int) -> tuple[Dim, ...]:
    """The axes of one table entry for a cell of so many gates."""
    dims = []
    for token in form.split():
        if token == "D" and directions == 1:
            continue
        factor = gates ** token.count("G") * directions ** token.count("D")
        digits = re.sub(r"\D", "", token)
        dims.append(Dim(factor * int(digits or 1), re.sub(r"[^TNIH]", "", token)))
    return tuple(dims)


def accepted_forms(
    name: str, has_weight: bool, gates: int, directions: int
) -> list[tuple[Dim, ...]]:
    """The axes of a tensor, in every form that is accepted; the table's own form first."""
    form = "gates" if name == "source" and not has_weight else name
    texts = (SHAPES[form], *_OTHER_FORMS.get(name, ()))
    return list(dict.fromkeys(_dims(text, gates, directions) for text in texts))


def brackets(items: Iterable[object]) -> str:
    """A shape as messages show it: [2,4H,H], with ? for what is not known."""
    return "[" + ",".join("?" if item is None else str(item) for item in items) + "]"


class TensorInfo(NamedTuple):
    """What a check needs to know of a tensor: its shape (None: unknown) and its type's name."""

    shape: PartialShape
    dtype: str


@dataclass(frozen=True, eq=False)
class Layout:
    """A checked call without its data: letters, float type, descriptor, which inputs are there."""

    operation: Operation
    descriptor: AnyDescriptor
    dtype: str
    letters: Mapping[str, int | None]
    present: frozenset[str]
    device: str = "cpu"  # where the tensors are: "cpu", or "cuda" for torch tensors on a GPU

    @property
    def cell_kind(self) -> Cell:
        return self.operation.cell

    @cached_property
    def directions(self) -> int:
        return 2 if self.descriptor.bidirectional else 1

    @cached_property
    def slots(self) -> tuple[int, ...]:
        """The place of each canonical gate along the G axis."""
        order = self.cell_kind.gate_order(self.descriptor)
        return tuple(order.index(gate) for gate in self.cell_kind.gates)

    @property
    def peephole_on_new_cell(self) -> bool:
        """Whether the output gate of this call has a peephole that looks at c[t]."""
        return "peephole" in self.present and getattr(
            self.descriptor, "peephole_on_new_cell", False
        )

    @cached_property
    def size(self) -> tuple[int, int, int, int]:
        """T, N, I, H of a call whose shapes are all known."""
        known = {letter: size for letter, size in self.letters.items() if size is not None}
        return known["T"], known["N"], known["I"], known["H"]

    def forms(self, name: str) -> list[tuple[Dim, ...]]:
        """The axes of a tensor of this call, in every form that is accepted."""
        has_weight = "input_weight" in self.present
        return accepted_forms(name, has_weight, len(self.cell_kind.gates), self.directions)

    def partial_shape(self, name: str) -> PartialShape:
        """The shape of a tensor of this call, None where it is not known yet."""
        return tuple(self.number(dim) for dim in self.forms(name)[0])

    def shape(self, name: str) -> Shape:
        """The shape of a tensor of a call whose shapes are all known."""
        sizes = self.partial_shape(name)
        shape = tuple(size for size in sizes if size is not None)
        assert len(shape) == len(sizes)
        return shape

    def result_names(self) -> tuple[str, ...]:
        """The results that this call produces, in the published order."""
        names = self.operation.result._fields
        if self.operation.is_gradient:
            return tuple(name for name in names if name in self.present)
        if self.descriptor.training:
            return names
        cell = self.cell_kind
        every = cell.keeps_states is not None and getattr(self.descriptor, cell.keeps_states)
        wanted = [state.name for state in (cell.states if every else cell.states[:1])]
        return tuple(name for name in names if name in wanted)

    def direction(self, name: str, value: Value, index: int) -> Value:
        """One direction of a tensor in the form of the table, or with a leading axis of steps.

        The steps keep the caller's order. A mask is expected as broadcast to its full shape.
        """
        if self.directions == 1:
            return value
        axis = self.direction_axis(name)
        if axis is None:
            return value[index]
        width = value.shape[axis] // 2
        window = slice(index * width, (index + 1) * width)
        return value[(..., window, *[slice(None)] * (-1 - axis))]

    def direction_axis(self, name: str) -> int | None:
        """The axis, from the end, with both directions side by side; None: they have their own."""
        tokens = SHAPES[name].split()
        places = [k - len(tokens) for k, token in enumerate(tokens) if "D" in token]
        return None if tokens[0] == "D" else places[0]

    def is_backwards(self, name: str, index: int) -> bool:
        """Whether the steps of a tensor lie against the order in which a direction reads them."""
        if self.directions == 2:
            return index == 1
        return self.descriptor.reverse and name in _INPUT_ORDER

    def number(self, dim: Dim) -> int | None:
        """The size of an axis, None where its letter is not known yet."""
        if not dim.letter:
            return dim.factor
        value = self.letters.get(dim.letter)
        return None if value is None else dim.factor * value


class _Checker:
    """Checks one call, tensor by tensor, learning the letters on the way."""

    def __init__(
        self, operation: Operation, descriptor: AnyDescriptor, label: str, device: str
    ) -> None:
        self.operation, self.descriptor, self.label = operation, descriptor, label
        self.device = device
        self.letters: dict[str, int | None] = dict.fromkeys("TNIH")
        self.gates = len(operation.cell.gates)
        self.directions = 2 if descriptor.bidirectional else 1

    def check(self, tensors: Mapping[str, TensorInfo]) -> Layout:
        dtype = self._check_types(tensors)
        self._check_meaning(tensors)
        # The recurrent weight says what H is and the source says T, N and I: all others are
        # measured against these two.
        first = ["recurrent_weight", "source"]
        for name in first + [name for name in tensors if name not in first]:
            self._check_shape(name, tensors[name].shape, "input_weight" in tensors)
        if "input_weight" not in tensors:
            hidden = self.letters["H"]
            scale = self.gates * self.directions
            self.letters["I"] = None if hidden is None else hidden * scale
        return Layout(
            self.operation,
            self.descriptor,
            dtype,
            dict(self.letters),
            frozenset(tensors),
            self.device,
        )

    def _check_types(self, tensors: Mapping[str, TensorInfo]) -> str:
        dtype = tensors["source"].dtype
        for name, tensor in tensors.items():
            if tensor.dtype not in FLOAT_NAMES:
                one_of = "one of " + ", ".join(FLOAT_NAMES)
                raise DTypeError(refusal(self.label, name, one_of, tensor.dtype))
            if tensor.dtype != dtype:
                raise DTypeError(refusal(self.label, name, f"{dtype} like source", tensor.dtype))
        return dtype

    def _check_meaning(self, tensors: Mapping[str, TensorInfo]) -> None:
        for name, option in self.operation.cell.own:
            if name in tensors and option and not getattr(self.descriptor, option):
                why = f"none, as it has no meaning without {option}=True in the descriptor"
                raise OptionError(refusal(self.label, name, why, "a tensor"))

    def _check_shape(self, name: str, shape: PartialShape, projected: bool) -> None:
        forms = accepted_forms(name, projected, self.gates, self.directions)
        if name == "recurrent_weight" and shape:
            hidden = shape[-1]
            if hidden == 0:
                raise ShapeError(
                    refusal(
                        self.label,
                        name,
                        f"{brackets(forms[0])} with H of at least 1",
                        brackets(shape),
                    )
                )
            self.letters["H"] = hidden
        if name == "mask":
            fits = self._broadcasts(shape, forms[0])
        else:
            fits = any(self._fits(shape, dims) for dims in forms)
        if not fits:
            expected = " or ".join(self._expected(dims) for dims in forms)
            if name == "mask":
                expected = f"a shape that broadcasts to {expected}"
            raise ShapeError(refusal(self.label, name, expected, brackets(shape)))

    def _fits(self, shape: PartialShape, dims: tuple[Dim, ...]) -> bool:
        if len(shape) != len(dims):
            return False
        learnt = dict(self.letters)
        for size, dim in zip(shape, dims, strict=True):
            if size is None:
                continue
            known = learnt[dim.letter] if dim.letter else 1
            if known is None:
                known = learnt[dim.letter] = size // dim.factor
            if size != dim.factor * known:
                return False
        self.letters = learnt
        return True

    def _broadcasts(self, shape: PartialShape, dims: tuple[Dim, ...]) -> bool:
        if len(shape) > len(dims):
            return False
        for size, dim in zip(reversed(shape), reversed(dims), strict=False):
            known = self.letters[dim.letter]
            if size not in (None, 1) and known is not None and size != dim.factor * known:
                return False
        return True

    def _expected(self, dims: tuple[Dim, ...]) -> str:
        letters = brackets(dims)
        numbers = brackets(
            dim if dim.letter and self.letters[dim.letter] is None else self._value(dim)
            for dim in dims
        )
        return letters if letters == numbers else f"{letters} = {numbers}"

    def _value(self, dim: Dim) -> int:
        return dim.factor * ((self.letters[dim.letter] or 0) if dim.letter else 1)


def check(
    operation: Operation,
    tensors: Mapping[str, TensorInfo],
    descriptor: AnyDescriptor,
    label: str | None = None,
    device: str = "cpu",
) -> Layout:
    """Check shapes and types of a call; ``label`` names it in messages."""
    return _Checker(operation, descriptor, label or operation.name, device).check(tensors)


def check_descriptor(
    operation: Operation, descriptor: AnyDescriptor | None, label: str | None = None
) -> AnyDescriptor:
    """The descriptor, or the default one of the operation; another cell's is refused."""
    kind = DESCRIPTORS[operation.cell.name]
    if descriptor is None:
        return kind()
    if type(descriptor) is not kind:
        raise DTypeError(
            refusal(label or operation.name, "descriptor", kind.__name__, type(descriptor).__name__)
        )
    return descriptor


def bind(
    operation: Operation, tensors: tuple[Any, ...], descriptor: AnyDescriptor | None
) -> Layout:
    """Check a call of the functional interface; ``tensors`` in the order of the operation's inputs.

    They are NumPy arrays, or torch tensors on one device. Raises ShapeError, DTypeError or
    OptionError before anything is computed.
    """
    descriptor = check_descriptor(operation, descriptor)
    source = tensors[0]
    look = _torch_info if is_torch_tensor(source) else _numpy_info
    infos = {}
    for name, tensor in zip(operation.inputs, tensors, strict=True):
        check_saved(operation, name, tensor)
        if tensor is not None or name in operation.required:
            infos[name] = look(operation.name, name, tensor, source)
    device = source.device.type if look is _torch_info else "cpu"
    return check(operation, infos, descriptor, device=device)


def _numpy_info(operation: str, name: str, tensor: Any, source: Any) -> TensorInfo:
    if not is_plain_array(tensor):
        expected = "a NumPy array like source" if is_torch_tensor(tensor) else "a NumPy array"
        raise DTypeError(refusal(operation, name, expected, describe(tensor)))
    return TensorInfo(tensor.shape, dtype_name(tensor.dtype))


def _torch_info(operation: str, name: str, tensor: Any, source: Any) -> TensorInfo:
    if not is_torch_tensor(tensor):
        raise DTypeError(refusal(operation, name, "a torch tensor like source", describe(tensor)))
    layout = str(tensor.layout).removeprefix("torch.")
    if layout != "strided":
        raise DTypeError(refusal(operation, name, "a strided tensor", f"a {layout} one"))
    if tensor.device != source.device:
        expected = f"a tensor on {source.device} like source"
        raise DTypeError(refusal(operation, name, expected, f"one on {tensor.device}"))
    return TensorInfo(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def is_torch_tensor(value: object) -> bool:
    """Whether it is a torch tensor: torch is looked for among what is imported, never imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_jax_array(value: object) -> bool:
    """Whether it is a jax array or a tracer; JAX is never imported either."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def is_plain_array(value: object) -> bool:
    """Whether NumPy's arithmetic on it is what it says: not a masked array, not a matrix."""
    return isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray | np.matrix)


@lru_cache(maxsize=64)  # NumPy makes the name anew each time, which costs a microsecond
def dtype_name(dtype: np.dtype[Any]) -> str:
    """The type's name; a type in foreign byte order keeps its mark, so that it is refused."""
    return dtype.name if dtype.isnative else dtype.str


def describe(value: object) -> str:
    """What a value that is no array is, for a message."""
    if value is None:
        return "None"
    kind = type(value)
    name = (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    return (
        f"{name} {value!r:.40}" if isinstance(value, bool | int | float | complex | str) else name
    )
