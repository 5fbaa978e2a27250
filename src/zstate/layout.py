"""The one place that knows shapes: letters, the shape table, checks, gate orders, directions.

T time, N batch, I input features, H hidden units, G gates of the cell, D directions. ``bind``
checks a call against the table once, so that later code need not. The graph uses the same rules at
build time, when a dimension may still be unknown (None).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.ma  # NumPy would import it on first use, inside a call

from .cells import Cell
from .cells.decorator import tell_of_cells
from .descriptors import AnyDescriptor
from .errors import DTypeError, OptionError, ShapeError, refusal
from .operations import OPERATIONS, Operation, calls_of, check_saved, operations_of
from .types import FLOAT_NAMES, PartialShape, Shape, Value

# One row per tensor: its axes as products of letters. A lone D is dropped with one direction.
_COMMON = {
    "source": "T N I",
    "gates": "T N DGH",  # a source that is already projected, and what project() makes
    "recurrent_weight": "D GH H",
    "input_weight": "DGH I",
    "bias": "DGH",
    "mask": "T N DH",
    "resets": "T N 1D",  # as extensions.py prepares them
    "training_state": "T N DGH",
    "z_state": "T N DGH",
}


def tensor_forms(cell: Cell) -> dict[str, tuple[str, ...]]:
    """The table for one cell, with its states and parameters: every accepted form of a tensor.

    The first is the table's own; if there are several, the one whose rank fits counts.
    """
    found: dict[str, tuple[str, ...]] | None = cell.__dict__.get("_forms")
    if found is None:  # kept with the cell, where torch.compile finds it
        found = cell.__dict__.setdefault("_forms", _tensor_forms(cell))
    return found


def _tensor_forms(cell: Cell) -> dict[str, tuple[str, ...]]:
    forms: dict[str, tuple[str, ...]] = {name: (form,) for name, form in _COMMON.items()}
    for state in cell.states:
        forms |= dict.fromkeys((state.name, state.output, state.gradient), ("T N DH",))
        forms[state.initial] = ("N DH",)
        # A state without a gradient of its own for every step has both in one.
        every = ("T N DH",) if state.gradient == state.last_gradient else ()
        forms[state.last_gradient] = ("N DH", "1 N DH", *every)
    for parameter in cell.own:
        forms[parameter.name] = ("D GH", "DGH") if parameter.by_gate else ("DH",)
    beside = [name for name in cell.values if name not in cell.gates]  # as a caller passes them
    forms |= dict.fromkeys(beside, ("T N DH",))
    if beside:
        saved = f"T N D{len(cell.gates) + len(beside)}H"
        forms |= dict.fromkeys(("training_state", "z_state"), (saved,))
    return forms


def _learn_forms(cell: Cell) -> None:
    for operation in (*operations_of(cell), *calls_of(cell)):
        tensor_forms(operation.cell)


tell_of_cells(_learn_forms)  # not in a cell's first call, which torch.compile may be reading

_CELLS: dict[str, Cell] = {each.cell.name: each.cell for each in OPERATIONS.values()}


@lru_cache(maxsize=256)
def batch_axes(operation: Operation) -> dict[str, int]:
    """Where the batch axis is, for the inputs of a forward operation that have one."""
    forms = {name: tensor_forms(operation.cell)[name][0].split() for name in operation.inputs}
    return {name: form.index("N") for name, form in forms.items() if "N" in form}


# Per-step tensors that lie in the order of the input; all others lie in the order of the output.
_INPUT_ORDER = frozenset({"source", "gates", "mask", "resets"})

DESCRIPTORS = cast(
    dict[str, type[AnyDescriptor]], {name: cell.descriptor for name, cell in _CELLS.items()}
)


def cell_of(descriptor: AnyDescriptor) -> Cell:
    """The cell that a descriptor belongs to."""
    return next(cell for cell in _CELLS.values() if cell.descriptor is type(descriptor))


def gate_order(descriptor: AnyDescriptor) -> tuple[str, ...]:
    """The gates' names in their order along the G axis."""
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
    """The axes of one table entry, for a cell with this many gates."""
    dims = []
    for token in form.split():
        if token == "D" and directions == 1:
            continue
        factor = gates ** token.count("G") * directions ** token.count("D")
        digits = "".join([each for each in token if each.isdigit()])
        letter = token[-1] if token[-1] in "TNIH" else ""
        dims.append(Dim(factor * int(digits or 1), letter))
    return tuple(dims)


def accepted_forms(
    cell: Cell, name: str, has_weight: bool, directions: int, heads: int = 1
) -> list[tuple[Dim, ...]]:
    """The axes of a tensor in every accepted form, the table's own form first."""
    if name == "recurrent_weight" and heads > 1:  # one block per head of d units
        both = (Dim(2, ""),) if directions == 2 else ()
        return [(*both, Dim(heads, ""), Dim(len(cell.gates), "d"), Dim(1, "d"))]
    texts = tensor_forms(cell)["gates" if name == "source" and not has_weight else name]
    return list(dict.fromkeys(_dims(text, len(cell.gates), directions) for text in texts))


def direction_part(cell: Cell, name: str, hidden: int) -> tuple[int | None, Shape]:
    """The axis of a tensor that holds both directions side by side; or None and one's own shape."""
    tokens = tensor_forms(cell)[name][0].split()
    if tokens[0] != "D":
        return next(k for k, token in enumerate(tokens) if "D" in token), ()
    gates = len(cell.gates)
    return None, tuple(gates * hidden if "G" in token else hidden for token in tokens[1:])


def brackets(items: Iterable[object]) -> str:
    """A shape as messages show it: [2,4H,H], with ? for unknown sizes."""
    return "[" + ",".join("?" if item is None else str(item) for item in items) + "]"


class TensorInfo(NamedTuple):
    """What a check needs to know about a tensor: its shape (None: unknown) and its type's name."""

    shape: PartialShape
    dtype: str


@dataclass(frozen=True, eq=False)
class Layout:
    """A checked call without its data: letters, float type, descriptor, and which inputs it has."""

    operation: Operation
    descriptor: AnyDescriptor
    dtype: str
    letters: Mapping[str, int | None]
    present: frozenset[str]
    device: str = "cpu"  # where the tensors are: "cpu", or "cuda" for torch tensors on a GPU

    @property
    def cell_kind(self) -> Cell:
        return self.operation.cell

    @property  # not a cached one, whose lock torch.compile cannot take
    def directions(self) -> int:
        return 2 if self.descriptor.bidirectional else 1

    @cached_property
    def slots(self) -> tuple[int, ...]:
        """The place of each canonical gate along the G axis."""
        order = self.cell_kind.gate_order(self.descriptor)
        return tuple(order.index(gate) for gate in self.cell_kind.gates)

    @property
    def peephole_on_new_cell(self) -> bool:
        """Whether the output gate of this call has a peephole that sees c[t]."""
        return "peephole" in self.present and getattr(
            self.descriptor, "peephole_on_new_cell", False
        )

    @cached_property
    def size(self) -> tuple[int, int, int, int]:
        """T, N, I, H of a call whose shapes are all known."""
        known = {letter: size for letter, size in self.letters.items() if size is not None}
        return known["T"], known["N"], known["I"], known["H"]

    def forms(self, name: str) -> list[tuple[Dim, ...]]:
        """The axes of a tensor of this call, in every accepted form."""
        has_weight = "input_weight" in self.present
        heads = self.descriptor.heads
        return accepted_forms(self.cell_kind, name, has_weight, self.directions, heads)

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
        produced = self.cell_kind.produced(self.descriptor)
        return tuple(name for name in names if name in produced)

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
        tokens = tensor_forms(self.cell_kind)[name][0].split()
        places = [k - len(tokens) for k, token in enumerate(tokens) if "D" in token]
        return None if tokens[0] == "D" else places[0]

    def is_backwards(self, name: str, index: int) -> bool:
        """Whether a direction reads the steps of a tensor from its end."""
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
    """Checks one call, tensor by tensor, and learns the letters along the way."""

    def __init__(
        self, operation: Operation, descriptor: AnyDescriptor, label: str, device: str
    ) -> None:
        self.operation, self.descriptor, self.label = operation, descriptor, label
        self.device = device
        self.letters: dict[str, int | None] = dict.fromkeys("TNIHd")  # d: units of one head
        self.gates = len(operation.cell.gates)
        self.directions = 2 if descriptor.bidirectional else 1

    def check(self, tensors: Mapping[str, TensorInfo]) -> Layout:
        dtype = self._check_types(tensors)
        self._check_meaning(tensors)
        # The recurrent weight says what H is and the source says T, N and I: all others are
        # measured against these two. Without a recurrent weight, what makes the gates says it.
        first = ["recurrent_weight", "source"]
        if "recurrent_weight" not in tensors:
            first = [name for name in ("source", "input_weight") if name in tensors]
        for name in first + [name for name in tensors if name not in first]:
            self._check_shape(name, tensors[name].shape, "input_weight" in tensors)
        if "input_weight" not in tensors:
            hidden = self.letters["H"]
            scale = self.gates * self.directions
            self.letters["I"] = None if hidden is None else hidden * scale
        letters, present = dict(self.letters), frozenset(tensors)
        return Layout(self.operation, self.descriptor, dtype, letters, present, self.device)

    def _check_types(self, tensors: Mapping[str, TensorInfo]) -> str:
        dtype = tensors["source"].dtype
        for name, tensor in tensors.items():
            check_type(self.label, name, tensor.dtype)
            if tensor.dtype != dtype:
                raise DTypeError(refusal(self.label, name, f"{dtype} like source", tensor.dtype))
        return dtype

    def _check_meaning(self, tensors: Mapping[str, TensorInfo]) -> None:
        for name, option, *_ in self.operation.cell.own:
            if name in tensors and option and not getattr(self.descriptor, option):
                why = f"{option}=True in the descriptor, without which it has no meaning"
                raise OptionError(refusal(self.label, name, why, "a tensor"))
        heads = self.descriptor.heads
        if heads != 1 and "recurrent_weight" not in tensors:
            raise OptionError(
                refusal(self.label, "heads", "1 without recurrent_weight", str(heads))
            )

    def _check_shape(self, name: str, shape: PartialShape, projected: bool) -> None:
        heads = self.descriptor.heads
        forms = accepted_forms(self.operation.cell, name, projected, self.directions, heads)
        if name == "recurrent_weight" and shape:
            self._learn_units(shape[-1])
        by_broadcast = name == "mask" or name in self.operation.cell.values
        if by_broadcast:
            fits = self._broadcasts(shape, forms[0])
        else:
            fits = any(self._fits(shape, dims) for dims in forms)
        if self.letters["H"] == 0:
            expected = f"{brackets(forms[0])} with H of at least 1"
            raise ShapeError(refusal(self.label, name, expected, brackets(shape)))
        if not fits:
            got = brackets(shape)
            if self._is_transposed(name, shape, forms[0]):
                got += ", its transpose"
            expected = " or ".join(self._expected(dims) for dims in forms)
            if by_broadcast:
                expected = f"a shape that broadcasts to {expected}"
            raise ShapeError(refusal(self.label, name, expected, got))

    def _is_transposed(self, name: str, shape: PartialShape, dims: tuple[Dim, ...]) -> bool:
        """Whether W or R has its last two axes exchanged; R's H is then the size of the other."""
        if name != "recurrent_weight" or len(shape) != len(dims):
            return name == "input_weight" and self._fits(shape[::-1], dims)
        *front, hidden, rows = shape
        self._learn_units(hidden)
        if self._fits((*front, rows, hidden), dims):
            return True
        self._learn_units(rows)
        return False

    def _learn_units(self, units: int | None) -> None:
        """From the last axis of R: the units per head."""
        self.letters["d"] = units
        self.letters["H"] = None if units is None else units * self.descriptor.heads

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


def check_type(label: str, name: str, dtype: str) -> None:
    """Reject a tensor that does not have one of the four float types."""
    if dtype not in FLOAT_NAMES:
        one_of = "one of " + ", ".join(FLOAT_NAMES)
        raise DTypeError(refusal(label, name, one_of, dtype))


def check_descriptor(
    operation: Operation, descriptor: AnyDescriptor | None, label: str | None = None
) -> AnyDescriptor:
    """The descriptor, or the operation's default; rejects another cell's."""
    kind = cast(type[AnyDescriptor], operation.cell.descriptor)
    if descriptor is None:
        return cast(AnyDescriptor, operation.cell.usual)
    if type(descriptor) is not kind:
        got = type(descriptor).__name__
        if isinstance(descriptor, type):
            got = f"the class {descriptor.__name__}, not an instance of it"
        raise DTypeError(refusal(label or operation.name, "descriptor", kind.__name__, got))
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
    infos = {
        name: look(operation.name, name, tensor, source)
        for name, tensor in by_name(operation, tensors).items()
    }
    device = source.device.type if look is _torch_info else "cpu"
    return check(operation, infos, descriptor, device=device)


def by_name(operation: Operation, tensors: tuple[Any, ...]) -> dict[str, Any]:
    """A call's tensors without those left out; a required one stays None, to be rejected."""
    given = {}
    for name, tensor in zip(operation.inputs, tensors, strict=True):
        check_saved(operation, name, tensor)
        if tensor is not None or name in operation.required:
            given[name] = tensor
    return given


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
    """Whether it is a torch tensor: looks for torch among imported modules, never imports it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_jax_array(value: object) -> bool:
    """Whether it is a jax array or a tracer; JAX is never imported either."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def is_plain_array(value: object) -> bool:
    """Whether NumPy's arithmetic on it behaves as usual: not a masked array, not a matrix."""
    return isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray | np.matrix)


@lru_cache(maxsize=64)  # NumPy makes the name anew each time, which costs a microsecond
def dtype_name(dtype: np.dtype[Any]) -> str:
    """The type's name; a type in foreign byte order keeps its mark, so that it is rejected."""
    return dtype.name if dtype.isnative else dtype.str


def describe(value: object) -> str:
    """What a value is that is not an array, for a message."""
    if value is None:
        return "None"
    kind = type(value)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    if isinstance(value, bool | int | float | complex | str):
        name += f" {value!r:.40}"
    return name
