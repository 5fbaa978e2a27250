"""The lines of a program in C, node by node: what it stores, what it keeps, what a step does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...arrays import NUMPY
from ...errors import ZStateError, within
from ...quantisation import quantise_weight
from ...types import Array
from ..executable import Executable
from ..ops import CONSTANT, PLACEHOLDER, VARIABLE
from ..ops.recurrent import FORWARD
from ..tensor import Node, Tensor
from . import rows
from .helpers import HELPERS
from .matrices import Matrix
from .recurrent import write as write_recurrent
from .rows import size_of
from .words import LABEL, Names, Place, array, loop, number, refuse, type_of

_OWN = ("state", "reset", "step")  # names of the file itself, after the prefix
_SCRATCH = {"gates": "float32", "work": "float32", "small": "int8"}  # shared by nodes


class Field(NamedTuple):
    """An array in the struct; ``kept`` from step to step, or only while one runs."""

    dtype: str
    name: str
    size: int
    kept: bool


class Writer:
    """The text of a program so far; :meth:`write` adds all of its nodes."""

    def __init__(
        self, program: Executable, prefix: str, weights: str, taken: Sequence[str]
    ) -> None:
        self.program, self.prefix, self.weights = program, prefix, weights
        self.lines: list[str] = []  # of a step
        self.resets: list[str] = []
        self.functions: list[str] = []
        self.arrays: list[str] = []
        self.flash = 0
        self.helpers: set[str] = set()
        self.fields: list[Field] = []
        self.known: dict[Tensor, Array] = {}  # what is the same on every step
        self._pointers: dict[Tensor, Place] = {}
        self._names = Names((*_OWN, *HELPERS, *taken))
        self._field_names = Names(_SCRATCH)
        self._shared: dict[str, int] = {}  # scratch that nodes use one after the other
        self.used = {tensor for node in program.nodes for tensor in node.inputs}
        self.used |= {*program.targets, *(tensor for _, tensor in program.updates)}
        self.updated = dict.fromkeys(node for node, _ in program.updates)

    def write(self, inputs: dict[Tensor, Place]) -> None:
        self._pointers.update(inputs)
        for node in self.updated:
            self._variable(node)
        for node in self.program.nodes:
            if node.op is PLACEHOLDER or node in self.updated:
                continue
            try:
                self._node(node)
            except ZStateError as error:
                raise within(f"[{LABEL}] node {node.name!r}", error) from error

    def _node(self, node: Node) -> None:
        if node.op in (CONSTANT, VARIABLE):
            self.known[node.results[0]] = NUMPY.asarray(node.attributes["store"].value)
        elif node.op.name not in FORWARD and rows.is_static(node, self.known):
            found = node.evaluated([self.known[each] for each in node.inputs])
            self.known.update(zip(node.results, found, strict=True))
        elif node.op.name in FORWARD:
            write_recurrent(self, node)
        else:
            rows.write(self, node)

    def _variable(self, node: Node) -> None:
        (tensor,) = node.results
        value = NUMPY.asarray(node.attributes["store"].value)
        self._pointers[tensor] = self.keep(node.name, tensor.dtype, value)

    # what the caller's memory holds

    def keep(self, name: str, dtype: str, first: Array) -> Place:
        """A pointer to values kept from step to step, which begin with these."""
        pointer = self.field(name, dtype, first.size, kept=True)
        flat = first.reshape(-1)
        if flat.size and (flat == flat[0]).all():
            value = number(flat[0], dtype)
        else:
            value = f"{self.array(f'{name} first', first)}[i]"
        self.resets += loop(flat.size, f"{pointer['i']} = {value};")
        return pointer

    def field(self, name: str, dtype: str, size: int, kept: bool = False) -> Place:
        type_of(LABEL, name, dtype)
        if size == 0:
            raise refuse(LABEL, name, "at least one value", "none")
        taken = self._field_names.take(name)
        self.fields.append(Field(dtype, taken, size, kept))
        return Place(f"s->{taken}")

    def shared(self, name: str, size: int) -> Place:
        """A pointer to scratch that the next node may overwrite."""
        self._shared[name] = max(self._shared.get(name, 0), size)
        return Place(f"s->{name}")

    def scratch(self) -> list[Field]:
        return [Field(_SCRATCH[name], name, size, False) for name, size in self._shared.items()]

    # values of tensors

    def pointer(self, tensor: Tensor) -> Place:
        if tensor not in self._pointers:
            assert tensor in self.known, tensor.name
            self._pointers[tensor] = Place(self.array(tensor.name, self.known[tensor]))
        return self._pointers[tensor]

    def alias(self, tensor: Tensor, pointer: Place) -> None:
        self._pointers[tensor] = pointer

    def room(self, tensor: Tensor) -> Place:
        """New memory for a tensor."""
        pointer = self.field(f"value {tensor.name}", tensor.dtype, size_of(tensor))
        self._pointers[tensor] = pointer
        return pointer

    def fill(self, tensor: Tensor, value: str) -> None:
        target = self.room(tensor)
        self.lines += loop(size_of(tensor), f"{target['i']} = {value};")

    def type_of(self, tensor: Tensor) -> str:
        return type_of(LABEL, tensor.name, tensor.dtype)

    # what is stored

    def name(self, name: str) -> str:
        """The name of an array or a function."""
        return f"{self.prefix}_{self._names.take(name)}"

    def array(self, name: str, values: Array) -> str:
        type_of(LABEL, name, values.dtype.name)
        if values.size == 0:
            raise refuse(LABEL, name, "at least one value", "none")
        taken = self.name(name)
        self.arrays.append(array(taken, values))
        self.flash += values.nbytes
        return taken

    def matrix(self, name: str, tensor: str, weight: Array) -> Matrix:
        """A stored weight [rows,columns], in the type that was asked for."""
        columns = weight.shape[1]
        if self.weights == "float32":
            self.helpers.add("multiply")
            return Matrix(self.prefix, self.array(name, weight), columns)
        self.helpers.add("multiply_int8")
        small = quantise_weight(LABEL, tensor, weight)
        stored, scale = self.array(name, small.values), self.array(f"{name} scale", small.scale)
        return Matrix(self.prefix, stored, columns, scale, self.shared("small", columns))

    def table(self, name: str, tensor: Tensor, count: int, width: int) -> str:
        """How value j of a row is read."""
        place = f"row * {width} + j"
        value = self.known.get(tensor)
        if value is None or self.weights == "float32" or tensor.dtype != "float32":
            return self.pointer(tensor)[place]
        small = quantise_weight(LABEL, tensor.name, value.reshape(count, width))
        stored = self.array(f"{tensor.name} table", small.values)
        scale = self.array(f"{tensor.name} scale", small.scale)
        return f"(float){stored}[{place}] * {scale}[row]"


def bytes_of(fields: Sequence[Field]) -> int:
    sizes = {"int8": 1, "bool": 1, "int64": 8}
    return sum(sizes.get(each.dtype, 4) * each.size for each in fields)
