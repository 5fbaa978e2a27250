"""save: a compiled program as a Core ML package, for inference.

The package is built by coremltools in its language MIL. rnn, lstm and gru of MIL hold a layer's
weights in Core ML's own gate order (:mod:`zstate.convert`). What MIL cannot say is refused by node
before anything is written. Core ML computes on Apple's machines only; building needs none.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np

from . import convert
from .arrays import NUMPY
from .convert.table import LSTM, RNN
from .errors import DTypeError, GraphError, OptionError, ShapeError, ZStateError, refusal
from .graph import Executable, Tensor
from .graph.ops import CONSTANT, PLACEHOLDER, VARIABLE
from .graph.ops.base import axes_of, known
from .graph.ops.like import windows
from .graph.ops.recurrent import FORWARD
from .graph.tensor import Node
from .types import Array

LABEL = "coreml.save"
_MOST_DIMENSIONS = 5  # of a tensor of Core ML
# zstate's types, NumPy's for MIL, and MIL's own word. Core ML has no wider ones.
_TYPES = {
    "float32": (np.float32, "fp32"),
    "int32": (np.int32, "int32"),
    "int64": (np.int32, "int32"),
    "bool": (np.bool_, "bool"),
}
_FED = ("float32", "int32")
Var = Any  # a value of a MIL program
# What coremltools raises where it refuses.
_REFUSALS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError)


def save(program: Executable, path: str | PathLike[str]) -> None:
    """Write a compiled program as a Core ML package, with the values its variables have now.

    Args:
        program: from ``Graph.compile``: its feeds become the inputs, its targets the outputs. One
            that updates variables is refused.
        path: of the package, which ends in ``.mlpackage``; one that is there is replaced.

    What MIL cannot say is refused by node, and nothing is written.

    Example:
        >>> program = graph.compile({x: ((16, 1, 8), "float32")}, [scores])  # doctest: +SKIP
        >>> save(program, "Scorer.mlpackage")  # doctest: +SKIP
    """
    target = Path(path)
    if target.suffix != ".mlpackage":
        raise OptionError(refusal(LABEL, "path", "a name that ends in .mlpackage", fspath(path)))
    built = mil_program(program)
    ct = _coremltools()
    try:
        with _quiet():
            model = ct.convert(
                built,
                convert_to="mlprogram",
                compute_precision=ct.precision.FLOAT32,
                minimum_deployment_target=ct.target.iOS16,
                skip_model_load=True,
            )
    except (*_REFUSALS, RuntimeError) as error:
        raise OptionError(f"[{LABEL}] coremltools refuses the program: {error}") from error
    folder = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
    try:
        folder.mkdir()
        model.save(fspath(folder / target.name))
        _replace(folder / target.name, target, folder / "old")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _replace(new: Path, target: Path, old: Path) -> None:
    """Put a folder in the place of another, which comes back if that fails."""
    if target.exists():
        target.rename(old)
    try:
        new.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise


def mil_program(program: Executable) -> Any:
    """The program in MIL, as coremltools' ``Program``; its opset is that of iOS 16 and macOS 13."""
    ct = _coremltools()
    if program.updates:
        name = program.updates[0][0].name
        expected = "a program for inference, without operations"
        raise GraphError(refusal(LABEL, "program", expected, f"one that assigns to {name!r}"))
    from coremltools.converters.mil.mil import Builder, Function, Program

    writer = _Writer(Builder, program)
    for tensor in program.feeds:
        writer.check_feed(tensor)
    names = _unique([_identifier(t.name) for t in program.feeds])
    inputs = {
        name: Builder.placeholder(tensor.shape or (1,), _mil_type(tensor.dtype))
        for name, tensor in zip(names, program.feeds, strict=True)
    }
    with Function(inputs, opset_version=ct.target.iOS16) as function:
        for name, tensor in zip(names, program.feeds, strict=True):
            given = function.inputs[name]
            writer.values[tensor] = given if tensor.shape else Builder.squeeze(x=given, axes=[0])
        writer.write()
        outputs = _unique([*names, *map(_identifier, program.target_names)])[len(names) :]
        function.set_outputs(
            [
                Builder.identity(x=writer.output(tensor), name=name)
                for tensor, name in zip(program.targets, outputs, strict=True)
            ]
        )
    made = Program()
    made.add_function("main", function)
    return made


class _Writer:
    """The values of a program's tensors in MIL, node by node."""

    def __init__(self, builder: Any, program: Executable) -> None:
        self.mb = builder
        self.program = program
        self.values: dict[Tensor, Var] = {}
        self.last_cells: dict[Tensor, Var] = {}  # of an LSTM: [N,H], all that MIL gives

    def write(self) -> None:
        for node in self.program.nodes:
            if node.op is PLACEHOLDER:
                continue
            with _naming(node):
                found = self._results(node)
            self.values.update(
                (tensor, value)
                for tensor, value in zip(node.results, found, strict=True)
                if value is not None
            )

    def check_feed(self, tensor: Tensor) -> None:
        with _naming(tensor.node):
            if tensor.dtype not in _FED:
                one_of = "one of " + ", ".join(_FED)
                raise DTypeError(refusal("placeholder", "dtype", one_of, tensor.dtype))
            _check(tensor)

    def value(self, tensor: Tensor) -> Var:
        if tensor not in self.values:
            expected = "a result that MIL has"
            raise OptionError(refusal(tensor.node.op.name, tensor.name, expected, "none"))
        return self.values[tensor]

    def output(self, tensor: Tensor) -> Var:
        """A target's value; one without dimensions as [1], since Core ML feeds and returns such."""
        with _naming(tensor.node):
            value = self.value(tensor)
            return value if tensor.shape else self.mb.expand_dims(x=value, axes=[0])

    def array(self, name: str, tensor: Tensor) -> Array:
        """The values of a weight, which MIL wants before the program runs."""
        found = self.value(tensor).val
        if found is None:
            expected = "a constant, a variable or what is computed from them"
            raise OptionError(refusal(tensor.node.op.name, name, expected, tensor.name))
        return np.asarray(found)

    def _results(self, node: Node) -> Sequence[Var | None]:
        for tensor in node.results:
            _check(tensor)
        if node.op in (CONSTANT, VARIABLE):
            return [self.mb.const(val=_stored(node), name=_identifier(node.name))]
        if node.op.name in FORWARD:
            return self._recurrent(node)
        if node.op.name not in _ROWS:
            expected = "an operation that MIL has"
            raise OptionError(refusal(node.op.name, "operation", expected, "one that it has not"))
        if node.inputs[0] in self.last_cells:
            return [self._last_cell(node)]
        found = _ROWS[node.op.name](self.mb, node, *map(self.value, node.inputs))
        return list(found) if isinstance(found, list | tuple) else [found]

    def _recurrent(self, node: Node) -> Sequence[Var | None]:
        """An rnn, lstm or gru for each direction that MIL does not run in one."""
        mb, descriptor = self.mb, node.attributes["descriptor"]
        tensors = dict(zip(node.attributes["names"], node.inputs, strict=True))
        source = self.value(tensors.pop("source"))
        states = [tensors.pop(name, None) for name in ("init_state", "init_cell")]
        if "mask" in tensors:
            raise OptionError(refusal(node.op.name, "mask", "none, as in MIL", "one"))
        layer = _layer(node, {name: self.array(name, t) for name, t in tensors.items()})
        initial = [
            np.zeros((source.shape[1], layer.directions * layer.hidden), np.float32)
            if tensor is None
            else self.value(tensor)
            for tensor in states
        ]
        if layer.directions == 2 and node.op.name != LSTM:
            width = layer.hidden
            halves = []
            for index in range(2):
                steps = mb.reverse(x=source, axes=[0]) if index else source
                state = initial[0]
                if isinstance(state, np.ndarray):
                    state = state[:, :width]
                else:
                    state = mb.split(x=state, num_splits=2, axis=1)[index]
                found = self._operation(node, _direction(layer, index), steps, [state])[0]
                halves.append(mb.reverse(x=found, axes=[0]) if index else found)
            return self._named(node, mb.concat(values=halves, axis=2), None)
        if descriptor.reverse and layer.directions == 1:
            # By hand: MIL's own reverse direction gives the outputs in the order of the input.
            source = mb.reverse(x=source, axes=[0])
        found = self._operation(node, layer, source, initial)
        return self._named(node, found[0], found[2] if len(found) == 3 else None)

    def _operation(self, node: Node, layer: Any, source: Var, initial: list[Var]) -> list[Var]:
        operation = {RNN: "rnn"}.get(node.op.name, node.op.name)
        begin = dict(zip(("initial_h", "initial_c"), initial, strict=False))
        if node.op.name != LSTM:
            begin.pop("initial_c", None)
        weights, facts = (act(layer, target="coreml") for act in (convert.save, convert.facts))
        build = getattr(self.mb, operation)
        return list(build(x=source, output_sequence=True, **begin, **weights, **facts))

    def _named(self, node: Node, state: Var, last_cell: Var | None) -> list[Var | None]:
        """The values of the node's results: of cells only the last step's is kept, for a slice."""
        found: list[Var | None] = [state]
        for tensor in node.results[1:]:
            name = tensor.name.rpartition(":")[2]
            if name == "cell" and not node.attributes["descriptor"].bidirectional:
                self.last_cells[tensor] = last_cell
            found.append(None)
        return found

    def _last_cell(self, node: Node) -> Var:
        """A slice of the last step of an LSTM's cells."""
        cells = node.inputs[0]
        if node.op.name == "slice":
            steps = range(cells.shape[0] or 0)[windows(node.attributes)[0]]
            if list(steps) == [len(range(cells.shape[0] or 0)) - 1]:
                whole = self.mb.expand_dims(x=self.last_cells[cells], axes=[0])
                return _slice(self.mb, node, whole, [(0, 1, 1)])
        expected = "a slice of the last step, the only one that MIL's lstm gives"
        raise OptionError(refusal(node.op.name, cells.name, expected, node.op.name))


def _layer(node: Node, tensors: dict[str, Array]) -> convert.Layer:
    """The layer of a recurrent node; a source that is projected already gets an identity."""
    descriptor = node.attributes["descriptor"]
    changes: dict[str, Any] = {"training": False}
    if hasattr(descriptor, "produce_cell"):
        changes["produce_cell"] = False
    if not descriptor.bidirectional:
        changes["reverse"] = False
    if "input_weight" not in tensors:
        width = tensors["recurrent_weight"].shape[-2] * (2 if descriptor.bidirectional else 1)
        tensors["input_weight"] = np.eye(width, dtype=np.float32)
    return convert.Layer(node.op.name, replace(descriptor, **changes), tensors)


def _direction(layer: convert.Layer, index: int) -> convert.Layer:
    """One direction of a bidirectional layer, as a layer."""
    parts = {name: layer.direction(name, index) for name in layer.tensors}
    tensors = {name: part for name, part in parts.items() if part is not None}
    return convert.Layer(layer.cell, replace(layer.descriptor, bidirectional=False), tensors)


# One row per op of the graph: (builder, node, values) -> value.


def _named(operation: str, *labels: str) -> Callable[..., Any]:
    def row(mb: Any, node: Node, *values: Var) -> Var:
        return getattr(mb, operation)(**dict(zip(labels, values, strict=True)))

    return row


def _axes(node: Node) -> list[int]:
    return list(axes_of(LABEL, node.attributes["axes"], len(node.inputs[0].shape)))


def _reduction(operation: str) -> Callable[..., Any]:
    def row(mb: Any, node: Node, x: Var) -> Var:
        axes = _axes(node)
        return getattr(mb, operation)(x=x, axes=axes, keep_dims=True) if axes else x

    return row


def _of_bools(operation: str) -> Callable[..., Any]:
    """A reduction of bools, which MIL reduces as whole numbers."""

    def row(mb: Any, node: Node, x: Var) -> Var:
        return mb.cast(x=_reduction(operation)(mb, node, mb.cast(x=x, dtype="int32")), dtype="bool")

    return row


def _logarithm(base: float) -> Callable[..., Any]:
    def row(mb: Any, node: Node, x: Var) -> Var:
        return mb.real_div(x=mb.log(x=x, epsilon=np.float32(0)), y=np.float32(np.log(base)))

    return row


def _axis(node: Node, more: int = 0) -> int:
    return int(node.attributes["axis"]) % (len(node.inputs[0].shape) + more)


def _broadcast(mb: Any, node: Node, x: Var) -> Var:
    shape = _shape(node.results[0])
    before = (1,) * (len(shape) - len(node.inputs[0].shape)) + _shape(node.inputs[0])
    if before != node.inputs[0].shape:
        x = mb.reshape(x=x, shape=before)
    reps = [a if b == 1 else 1 for a, b in zip(shape, before, strict=True)]
    return mb.tile(x=x, reps=reps) if shape else x


def _reshape(mb: Any, node: Node, x: Var) -> Var:
    """MIL reshapes nothing to or from a tensor without dimensions."""
    shape, rank = _shape(node.results[0]), len(node.inputs[0].shape)
    if not shape:
        return mb.squeeze(x=x, axes=list(range(rank))) if rank else x
    return mb.reshape(x=x, shape=shape) if rank else mb.expand_dims(x=x, axes=[*range(len(shape))])


def _slice(mb: Any, node: Node, x: Var, first: Sequence[tuple[int, int, int]] | None = None) -> Var:
    """``first`` stands for the bounds of the first axes."""
    shape = _shape(node.inputs[0])
    bounds = [w.indices(size) for w, size in zip(windows(node.attributes), shape, strict=True)]
    if first is not None:
        bounds[: len(first)] = first
    if not bounds:
        return x
    begin, end, stride = ([bound[k] for bound in bounds] for k in range(3))
    return mb.slice_by_index(x=x, begin=begin, end=end, stride=stride)


def _pad(mb: Any, node: Node, x: Var) -> Var:
    a = node.attributes
    sizes = [size for pair in zip(a["left"], a["right"], strict=True) for size in pair]
    if not any(sizes):
        return x
    return mb.pad(x=x, pad=sizes, mode="constant", constant_val=np.float32(a["value"]))


def _one_hot(mb: Any, node: Node, indices: Var) -> Var:
    a = node.attributes
    kind = _TYPES[a["dtype"]][0]
    return mb.one_hot(
        indices=indices,
        one_hot_vector_size=a["depth"],
        axis=_axis(node, 1),
        on_value=kind(a["on_value"]),
        off_value=kind(a["off_value"]),
    )


def _split(mb: Any, node: Node, x: Var) -> Any:
    sizes, axis = list(node.attributes["sizes"]), _axis(node)
    return mb.split(x=x, split_sizes=sizes, axis=axis) if len(sizes) > 1 else [x]


_BINARY = {
    "addition": "add",
    "subtraction": "sub",
    "multiplication": "mul",
    "division": "real_div",
    "power": "pow",
    "maximum": "maximum",
    "minimum": "minimum",
    "equal": "equal",
    "not_equal": "not_equal",
    "less_than": "less",
    "less_than_or_equal_to": "less_equal",
    "greater_than": "greater",
    "greater_than_or_equal_to": "greater_equal",
    "logical_and": "logical_and",
    "logical_or": "logical_or",
    "logical_xor": "logical_xor",
    "matrix_multiplication": "matmul",
}
_UNARY = {
    "absolute": "abs",
    "sign": "sign",
    "square": "square",
    "exponent": "exp",
    "exponent_base2": "exp2",
    "square_root": "sqrt",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "relu": "relu",
    "identity": "identity",
    "logical_not": "logical_not",
    **{name: name for name in ("floor", "ceil", "sin", "cos", "tan", "sinh", "cosh")},
    **{name: name for name in ("asin", "acos", "atan", "atanh")},
}
_ROWS: dict[str, Callable[..., Any]] = {
    **{name: _named(operation, "x", "y") for name, operation in _BINARY.items()},
    **{name: _named(operation, "x") for name, operation in _UNARY.items()},
    "negative": lambda mb, node, x: mb.mul(x=x, y=_number(node, -1)),
    # MIL adds an epsilon by default, to which log and inverse would be sensitive.
    "logarithm": lambda mb, node, x: mb.log(x=x, epsilon=np.float32(0)),
    "logarithm_base2": _logarithm(2),
    "logarithm_base10": _logarithm(10),
    "truncate": lambda mb, node, x: mb.mul(x=mb.sign(x=x), y=mb.floor(x=mb.abs(x=x))),
    "floor_modulo": lambda mb, node, x, y: mb.sub(x=x, y=mb.mul(x=y, y=mb.floor_div(x=x, y=y))),
    "is_nan": lambda mb, node, x: mb.not_equal(x=x, y=x),
    "is_finite": lambda mb, node, x: mb.less(x=mb.abs(x=x), y=np.float32(np.inf)),
    "is_infinite": lambda mb, node, x: mb.equal(x=mb.abs(x=x), y=np.float32(np.inf)),
    "reciprocal": lambda mb, node, x: mb.real_div(x=np.float32(1), y=x),
    "select": _named("select", "cond", "a", "b"),
    "cast": lambda mb, node, x: mb.cast(x=x, dtype=_TYPES[node.attributes["dtype"]][1]),
    "reduction_sum": _reduction("reduce_sum"),
    "mean": _reduction("reduce_mean"),
    "reduction_maximum": _reduction("reduce_max"),
    "reduction_minimum": _reduction("reduce_min"),
    "reduction_product": _reduction("reduce_prod"),
    "reduction_and": _of_bools("reduce_min"),
    "reduction_or": _of_bools("reduce_max"),
    "reduction_arg_maximum": lambda mb, node, x: mb.reduce_argmax(
        x=x, axis=_axis(node), keep_dims=True
    ),
    "reduction_arg_minimum": lambda mb, node, x: mb.reduce_argmin(
        x=x, axis=_axis(node), keep_dims=True
    ),
    "arg_sort": lambda mb, node, x: mb.argsort(
        x=x, axis=_axis(node), ascending=not node.attributes["descending"]
    ),
    "cumulative_sum": lambda mb, node, x: mb.cumsum(x=x, axis=_axis(node)),
    "soft_max": lambda mb, node, x: mb.softmax(x=x, axis=_axis(node)),
    "one_hot": _one_hot,
    "gather": lambda mb, node, x, i: mb.gather(x=x, indices=i, axis=_axis(node)),
    "gather_along_axis": lambda mb, node, x, i: mb.gather_along_axis(
        x=x, indices=i, axis=_axis(node)
    ),
    "transpose": lambda mb, node, x: mb.transpose(x=x, perm=list(node.attributes["permutation"])),
    "reshape": _reshape,
    "broadcast": _broadcast,
    "expand_dims": _reshape,
    "squeeze": lambda mb, node, x: mb.squeeze(x=x, axes=_axes(node)) if _axes(node) else x,
    "concat_tensors": lambda mb, node, *x: mb.concat(values=x, axis=_axis(node)),
    "stack": lambda mb, node, *x: mb.stack(values=x, axis=_axis(node, 1)),
    "split": _split,
    "slice": _slice,
    "reverse": lambda mb, node, x: mb.reverse(x=x, axes=_axes(node)) if _axes(node) else x,
    "pad_tensor": _pad,
}


def _number(node: Node, value: float) -> Any:
    return _TYPES[node.inputs[0].dtype][0](value)


def _shape(tensor: Tensor) -> tuple[int, ...]:
    shape = known(tensor.shape)
    assert shape is not None  # a program knows them all
    return shape


def _check(tensor: Tensor) -> None:
    """Whether Core ML has tensors of this type and rank."""
    if tensor.dtype not in _TYPES:
        one_of = "one of " + ", ".join(_TYPES)
        raise DTypeError(refusal(tensor.node.op.name, tensor.name, one_of, tensor.dtype))
    if len(tensor.shape) > _MOST_DIMENSIONS:
        expected, got = f"at most {_MOST_DIMENSIONS} dimensions", str(len(tensor.shape))
        raise ShapeError(refusal(tensor.node.op.name, tensor.name, expected, got))


def _stored(node: Node) -> Array:
    array = NUMPY.asarray(node.attributes["store"].value)
    narrow: Array = array.astype(_TYPES[node.results[0].dtype][0])
    if not np.array_equal(narrow, array, equal_nan=array.dtype.kind == "f"):
        expected = "whole numbers of int32, the widest of Core ML"
        raise OptionError(refusal(node.op.name, node.name, expected, "larger ones"))
    return narrow


def _mil_type(dtype: str) -> Any:
    from coremltools.converters.mil.mil import types

    return {"float32": types.fp32, "int32": types.int32}[dtype]


def _identifier(name: str) -> str:
    """A name as MIL allows them."""
    text = re.sub(r"\W", "_", name, flags=re.ASCII)
    return text if re.match(r"[A-Za-z_]", text) else f"_{text}"


def _unique(names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        number, other = 1, name
        while other in found:
            number, other = number + 1, f"{name}_{number + 1}"
        found.append(other)
    return found


@contextlib.contextmanager
def _naming(node: Node) -> Iterator[None]:
    """Whatever is refused becomes an error that names the node."""
    try:
        yield
    except ZStateError as error:
        raise type(error)(f"[{LABEL}] node {node.name!r} ({node.op.name}): {error}") from error
    except _REFUSALS as error:
        raise OptionError(
            f"[{LABEL}] node {node.name!r} ({node.op.name}): coremltools refuses it: {error}"
        ) from error


def _coremltools() -> Any:
    """The package coremltools, imported when it is needed."""
    try:
        with _quiet():
            import coremltools
    except ImportError as error:
        raise ImportError(
            "zstate.coreml needs the package coremltools: pip install coremltools"
        ) from error
    return coremltools


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without progress bars, nor the news that this is no Mac or that torch is a newer one."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(level)
