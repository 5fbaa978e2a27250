"""The values of a program's tensors in MIL, node by node."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..arrays import NUMPY
from ..errors import DTypeError, OptionError, ShapeError, ZStateError, refusal, within
from ..graph import Executable, Tensor
from ..graph.ops import CONSTANT, PLACEHOLDER, VARIABLE
from ..graph.ops.recurrent import FORWARD, MADE, title_of
from ..graph.tensor import Node
from ..types import Array
from .package import REFUSALS
from .recurrent import is_last_step, recurrent
from .rows import ROWS, TYPES, Var, slice_of

LABEL = "coreml.save"
_MOST_DIMENSIONS = 5  # of a tensor of Core ML
_FED = ("float32", "int32")


class Writer:
    """The values so far; ``write`` adds those of all nodes."""

    def __init__(self, builder: Any, program: Executable) -> None:
        self.mb = builder
        self.program = program
        self.values: dict[Tensor, Var] = {}
        self._readers: dict[Tensor, list[Node]] = {}
        for node in program.nodes:
            for tensor in node.inputs:
                self._readers.setdefault(tensor, []).append(node)
        for tensor in program.targets:  # as if the node itself read it
            self._readers.setdefault(tensor, []).append(tensor.node)

    def write(self) -> None:
        for node in self.program.nodes:
            if node.op is not PLACEHOLDER:
                with _naming(node):
                    self.values.update(zip(node.results, self._results(node), strict=False))

    def check_feed(self, tensor: Tensor) -> None:
        with _naming(tensor.node):
            if tensor.dtype not in _FED:
                one_of = "one of " + ", ".join(_FED)
                raise DTypeError(refusal("placeholder", "dtype", one_of, tensor.dtype))
            _check(tensor)

    def value(self, tensor: Tensor) -> Var:
        if tensor not in self.values:
            raise OptionError(f"MIL has no {tensor.name}: a package is for inference")
        return self.values[tensor]

    def output(self, tensor: Tensor) -> Var:
        """A target's value; one without dimensions as [1], since Core ML feeds and returns such."""
        with _naming(tensor.node):
            value = self.value(tensor)
            return value if tensor.shape else self.mb.expand_dims(x=value, axes=[0])

    def _results(self, node: Node) -> Sequence[Var]:
        for tensor in node.results:
            _check(tensor)
        if node.op in (CONSTANT, VARIABLE):
            return [self.mb.const(val=_stored(node), name=identifier(node.name))]
        values = [self.value(tensor) for tensor in node.inputs]
        if node.op.name in FORWARD and node.op.name != MADE:
            named = dict(zip(node.attributes["names"], values, strict=True))
            cells = [tensor for tensor in node.results if tensor.name.endswith(":cell")]
            readers = [reader for tensor in cells for reader in self._readers.get(tensor, ())]
            return recurrent(self.mb, node, named, readers)
        if node.op.name not in ROWS:
            raise OptionError(f"MIL has no {title_of(node)}")
        if node.op.name == "slice" and values[0].shape != node.inputs[0].shape:
            assert is_last_step(node)  # the only one that MIL's lstm gives
            return [slice_of(self.mb, node, values[0], [(0, 1, 1)])]
        found = ROWS[node.op.name](self.mb, node, *values)
        return list(found) if isinstance(found, list | tuple) else [found]


def _check(tensor: Tensor) -> None:
    """Whether Core ML has tensors of this type and rank."""
    if tensor.dtype not in TYPES:
        one_of = "one of " + ", ".join(TYPES)
        raise DTypeError(refusal(tensor.node.op.name, tensor.name, one_of, tensor.dtype))
    if len(tensor.shape) > _MOST_DIMENSIONS:
        expected, got = f"at most {_MOST_DIMENSIONS} dimensions", str(len(tensor.shape))
        raise ShapeError(refusal(tensor.node.op.name, tensor.name, expected, got))


def _stored(node: Node) -> Array:
    array = NUMPY.asarray(node.attributes["store"].value)
    narrow: Array = array.astype(TYPES[node.results[0].dtype][0])
    if not np.array_equal(narrow, array, equal_nan=array.dtype.kind == "f"):
        expected = "integers that fit int32, Core ML's widest type"
        raise OptionError(refusal(node.op.name, node.name, expected, "larger ones"))
    return narrow


def identifier(name: str) -> str:
    """A name as MIL allows them."""
    text = re.sub(r"\W", "_", name, flags=re.ASCII)
    return text if re.match(r"[A-Za-z_]", text) else f"_{text}"


@contextlib.contextmanager
def _naming(node: Node) -> Iterator[None]:
    """Whatever is refused becomes an error that names the node."""
    try:
        yield
    except ZStateError as error:
        raise within(f"[{LABEL}] node {node.name!r} ({node.op.name})", error) from error
    except REFUSALS as error:
        raise OptionError(
            f"[{LABEL}] node {node.name!r} ({node.op.name}): coremltools rejects it: {error}"
        ) from error
