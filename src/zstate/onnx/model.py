"""A loaded ONNX model: a graph with named inputs, outputs and parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..arrays import NUMPY, is_array, namespace_of
from ..errors import DTypeError, GraphError, ShapeError, ZStateError, refusal
from ..graph import Executable, Graph, Tensor
from ..graph.methods.core import has_members
from ..graph.ops import PLACEHOLDER
from ..layout import describe
from ..types import FLOAT_NAMES, Array

_RUN = "onnx.Model.run"
_MOST_PROGRAMS = 32  # that run() keeps: a bound, not a policy


@dataclass(frozen=True, eq=False)
class Model:
    """An ONNX model as a graph.

    Args:
        graph: the graph; print it, compile it, differentiate it, add to it.
        inputs: its placeholders under the model's names, in the model's order.
        outputs: its results under the model's names, in the model's order.
        parameters: its variables, under the names of the initialisers they come from. The weights
            of a recurrent node are in zstate's gate order and layout.
    """

    graph: Graph
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    parameters: dict[str, Tensor]
    _names: dict[str, list[tuple[str, int]]] = field(default_factory=dict, repr=False)
    # By what was asked for and fed: a program, and whether all of it was plain NumPy arrays.
    _programs: dict[Any, tuple[Executable, bool]] = field(default_factory=dict, repr=False)

    def run(
        self, feeds: Mapping[str, Array], targets: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """{name: array} of the outputs, or of those named, from {name: array} of the inputs."""
        wanted = tuple(self.outputs) if targets is None else _listed(targets)
        try:  # the short way: a program that ran with such arrays before
            program, is_plain = self._programs[_key(wanted, feeds)]
        except (AttributeError, TypeError, KeyError):
            feeds = self._checked(wanted, feeds)
            program, is_plain = self._compiled(wanted, feeds)
        arrays = [*feeds.values()]
        found = program.run_checked(NUMPY, arrays) if is_plain else program.run(arrays)
        return dict(zip(wanted, found, strict=True))

    def prepare(self, weights: str = "float32") -> Model:
        """The same model for inference, with the weights of its recurrent layers packed once.

        ``weights``: "float32", "bfloat16" or "int8", as in :func:`zstate.prepare`. The returned
        model runs on the CPU, does not share this one's parameters, and cannot be saved or
        differentiated. A layer that cannot be prepared raises an error that names the node.
        """
        from .preparing import prepared

        return prepared(self, weights)

    def _checked(self, wanted: tuple[str, ...], feeds: Mapping[str, Any]) -> dict[str, Array]:
        """The feeds, lists and numbers among them as arrays of the type that the model declares."""
        if not isinstance(feeds, Mapping):
            expected = "{name of an input: array}"
            raise GraphError(refusal(_RUN, "feeds", expected, describe(feeds)))
        for name in wanted:
            if not isinstance(name, str) or name not in self.outputs:
                expected = f"outputs of the model: {', '.join(self.outputs)}"
                raise GraphError(refusal(_RUN, "targets", expected, repr(name)))
        found = {}
        for name, value in feeds.items():
            if name not in self.inputs:
                expected = f"inputs of the model: {', '.join(self.inputs)}"
                raise GraphError(refusal(_RUN, "feeds", expected, repr(name)))
            found[name] = as_array(_RUN, name, value, self.inputs[name].dtype)
        return found

    def _compiled(
        self, wanted: tuple[str, ...], feeds: Mapping[str, Array]
    ) -> tuple[Executable, bool]:
        """The program for these arrays, which is kept, and whether all of them are NumPy's."""
        key = _key(wanted, feeds)
        if key in self._programs:
            return self._programs[key]
        infos = {self.inputs[n]: namespace_of(value).info(value) for n, value in feeds.items()}
        self._check_names({name: infos[self.inputs[name]][0] for name in feeds})
        try:
            program = self.graph.compile(infos, [self.outputs[name] for name in wanted])
        except ZStateError as error:  # a feed was refused in the name of a call that is not theirs
            text = str(error).replace("[compile", f"[{_RUN}", 1)
            raise type(error)(text) from error
        is_plain = all(type(value) is np.ndarray for value in feeds.values())
        self._programs[key] = program, is_plain
        if len(self._programs) > _MOST_PROGRAMS:
            del self._programs[next(iter(self._programs))]
        return program, is_plain

    def _check_names(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Axes of one name have one size."""
        for name, axes in self._names.items():
            fed = [(n, axis) for n, axis in axes if n in shapes and axis < len(shapes[n])]
            if len({shapes[n][axis] for n, axis in fed}) > 1:
                expected = f"one size, which the model calls {name!r}"
                got = ", ".join(f"{shapes[n][axis]} for axis {axis} of {n!r}" for n, axis in fed)
                raise ShapeError(refusal(_RUN, "feeds", expected, got))


def _listed(targets: Sequence[str]) -> tuple[str, ...]:
    if isinstance(targets, str) or not has_members(targets):
        raise DTypeError(refusal(_RUN, "targets", "a list of names", describe(targets)))
    return tuple(targets)


def _key(wanted: tuple[str, ...], feeds: Mapping[str, Any]) -> tuple[Any, ...]:
    return (wanted, *[(name, a.shape, a.dtype, a.__class__) for name, a in feeds.items()])


def drop_unused(graph: Graph, outputs: Mapping[str, Tensor], parameters: dict[str, Tensor]) -> None:
    """Remove nodes that no output needs: loading has already used their values."""
    needed = {*graph.needed(outputs.values())}
    graph.nodes[:] = [node for node in graph.nodes if node in needed or node.op is PLACEHOLDER]
    for name, tensor in [*parameters.items()]:
        if tensor.node not in needed:
            del parameters[name]


def as_array(label: str, what: str, value: Any, dtype: str) -> Array:
    """An array as it is; numbers and lists of them as one of this type, if that holds them."""
    if is_array(value):
        array: Array = value
        return array
    try:
        with np.errstate(invalid="ignore", over="ignore"):
            found = np.asarray(value)
            is_real = found.dtype.kind in "biuf"  # a cast of complex numbers would warn
            array = found.astype(NUMPY.dtype(dtype)) if is_real else found
        holds = is_real and (dtype in FLOAT_NAMES or np.array_equal(found, array))
    except (TypeError, ValueError, OverflowError):
        holds = False
    if not holds:
        expected = f"an array, or numbers of {dtype}"
        raise DTypeError(refusal(label, what, expected, describe(value)))
    return array
