"""Frameworks that read Apple's pages in other ways, in PyObjC's spelling.

A stand-in computes with the PyTorch loop of tests/oracle.py and takes its gradients by autograd, so
that it shares nothing with the NumPy readings that it is compared with. What it does differently is
a :class:`Variation`: a change of the inputs, of a step or of the results. Data and descriptors are
those of zstate.pyobjc.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from tests import oracle
from zstate import pyobjc

SHORT = {"single_gate_rnn": "rnn", "lstm": "lstm", "gru": "gru"}
GATES = {"rnn": 1, "lstm": 4, "gru": 3}
OUTPUTS = {"state": "h", "cell": "c", "training_state": "z"}
ORDER = {
    "rnn": "source recurrent_weight input_weight bias init_state",
    "lstm": "source recurrent_weight input_weight bias peephole init_state init_cell",
    "gru": "source recurrent_weight input_weight bias init_state secondary_bias",
}
FLAGS = {
    "rnn": "reverse bidirectional training activation",
    "lstm": "reverse bidirectional training produce_cell forget_gate_last input_gate_activation "
    "forget_gate_activation cell_gate_activation output_gate_activation activation",
    "gru": "reverse bidirectional training reset_gate_first reset_after flip_z "
    "update_gate_activation reset_gate_activation output_gate_activation",
}
SELECTORS = {name: (operation, keywords) for name, operation, keywords in pyobjc.selectors()}

Options = dict[str, int]
Tensors = dict[str, Tensor]


def same(_cell: str, _options: Options, value: Any) -> Any:
    return value


def outputs(cell: str, options: Options) -> str:
    """The forward results, a letter each."""
    if cell != "lstm":
        return "hz" if options["training"] else "h"
    return "hcz" if options["training"] else "hc" if options["produce_cell"] else "h"


@dataclass(frozen=True)
class Variation:
    """What a stand-in does differently; each function gets the cell and its options first."""

    options: Callable[[str, Options, Any], Any] = same
    tensors: Callable[[str, Options, Any], Any] = same  # the inputs, before the computation
    mask: Callable[[str, Options, Any], Any] = same  # the same inputs, for the mask's sake
    forward: Callable[[str, Options, Any], Any] = same  # its oracle.Forward
    incoming: Callable[[str, Options, Any], Any] = same  # the incoming gradients
    gradients: Callable[[str, Options, Any], Any] = same  # by name, in order
    outputs: Callable[[str, Options], str] = outputs
    steps: Mapping[str, Any] = field(default_factory=dict)
    activations: Mapping[int, Any] = field(default_factory=dict)
    accepts: frozenset[str] = frozenset()  # what the others refuse
    descriptors: Mapping[str, Any] = field(default_factory=dict)


class RefusedError(Exception):
    """A call that the stand-in does not take."""


@dataclass(eq=False)
class Node:
    """A placeholder or one of an operation's results."""

    operation: Any = None
    key: Any = None


@dataclass(eq=False)
class Operation:
    """A recorded call."""

    cell: str
    options: Options
    arguments: dict[str, Node]
    gradient: bool


class Graph:
    """MPSGraph, so far as the probes use it."""

    variation = Variation()

    @classmethod
    def alloc(cls) -> Graph:
        return cls()

    def init(self) -> Graph:
        return self

    def placeholderWithShape_dataType_name_(self, shape: Any, kind: int, name: str) -> Node:
        return Node()

    def __getattr__(self, selector: str) -> Any:
        if selector not in SELECTORS:
            raise AttributeError(selector)
        return lambda *arguments: self._record(*SELECTORS[selector], arguments)

    def _record(self, operation: str, keywords: tuple[str, ...], arguments: Any) -> list[Node]:
        *tensors, descriptor, _ = arguments
        named = zip(("source", *keywords), tensors, strict=True)
        passed = {name: node for name, node in named if node is not None}
        gradient = operation.endswith("_gradients")
        cell = SHORT[operation.removesuffix("_gradients")]
        options = {name: int(getattr(descriptor, camel(name))()) for name in FLAGS[cell].split()}
        options["peephole_on_new_cell"] = 0  # zstate's own option: MPSGraph does not have it
        options = self.variation.options(cell, options, options)
        made = Operation(cell, options, passed, gradient)
        if not gradient:
            return [Node(made, letter) for letter in self.variation.outputs(cell, options)]
        present = {name: name for name in ORDER[cell].split() if name in passed}
        return [Node(made, n) for n in self.variation.gradients(cell, options, present)]

    def runWithFeeds_targetTensors_targetOperations_(
        self, feeds: Mapping[Node, Any], targets: list[Node], _: None
    ) -> dict[Node, Any]:
        arrays = {node: np.asarray(data) for node, data in feeds.items()}
        values: dict[Any, Any] = {}
        found = {}
        for node in targets:
            operation = node.operation
            if operation not in values:
                given = {n: arrays[a] for n, a in operation.arguments.items() if a in arrays}
                values[operation] = compute(self.variation, operation, given)
            dtype = next(iter(arrays.values())).dtype
            found[node] = data_of(np.asarray(values[operation][node.key]).astype(dtype))
        return found


def data_of(array: Any) -> Any:
    """Results as a framework gives them."""
    types = {"float32": pyobjc.MPSDataTypeFloat32, "float16": pyobjc.MPSDataTypeFloat16}
    device = pyobjc.MPSGraphDevice.deviceWithMTLDevice_(pyobjc.MTLCreateSystemDefaultDevice())
    return pyobjc.MPSGraphTensorData.alloc().initWithDevice_data_shape_dataType_(
        device, array.tobytes(), list(array.shape), types[array.dtype.name]
    )


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def compute(variation: Variation, operation: Operation, given: dict[str, Any]) -> dict[str, Any]:
    """The results of a recorded operation by letter, or its gradients by name."""
    cell, options = operation.cell, operation.options
    given = accept(variation, given)
    refuse(variation, cell, options, given)
    wanted = [*ORDER[cell].split(), "mask"]
    widened = {n: torch.from_numpy(np.array(a, np.float64)) for n, a in given.items()}
    leaves = {n: a.requires_grad_(n != "mask") for n, a in widened.items() if n in wanted}
    with (
        mock.patch.dict(oracle.STEPS, variation.steps),
        mock.patch.dict(oracle.ACTIVATIONS, variation.activations),
    ):
        seen = variation.tensors(cell, options, dict(leaves))
        seen = variation.mask(cell, options, seen)
        result = variation.forward(cell, options, oracle.forward(cell, options, seen))
    if not operation.gradient:
        named = {letter: getattr(result, name) for name, letter in OUTPUTS.items()}
        return {k: v.detach().numpy() for k, v in named.items() if v is not None}
    cotangents = {n: a.detach() for n, a in widened.items() if n.endswith("_gradient")}
    cotangents = variation.incoming(cell, options, cotangents)
    total = oracle.objective(result, cotangents)
    names = [name for name in leaves if name != "mask"]
    total = total + sum(0 * leaves[name].sum() for name in names)
    found = torch.autograd.grad(total, [leaves[name] for name in names])
    # numpy() shares memory that autograd may use again.
    gradients = {n: g.numpy().copy() for n, g in zip(names, found, strict=True)}
    gradients["zeros"] = np.zeros(1)
    changed = variation.gradients(cell, options, {n: n for n in gradients})
    return {key: changed_value(value, gradients) for key, value in changed.items()}


def changed_value(value: Any, gradients: dict[str, Any]) -> Any:
    """A gradient by name, or with a function of it: (name, function)."""
    if isinstance(value, tuple):
        name, change = value
        return change(gradients[name])
    return gradients[value]


def accept(variation: Variation, given: dict[str, Any]) -> dict[str, Any]:
    """Transpose what the stand-in takes either way round."""
    batch = given["source"].shape[1]
    turned = dict(given)
    for name in variation.accepts & given.keys():
        shape = given[name].shape
        wrong = shape[0] != batch if name == "init_state" else shape[-2:-1] < shape[-1:]
        turned[name] = given[name].T if wrong else given[name]
    return turned


def refuse(variation: Variation, cell: str, options: Options, given: dict[str, Any]) -> None:
    """What zstate refuses as well."""
    if len({a.dtype for a in given.values()}) > 1 and "two types" not in variation.accepts:
        raise RefusedError("two float types")
    if (
        "secondary_bias" in given
        and not options["reset_after"]
        and "secondary_bias" not in variation.accepts
    ):
        raise RefusedError("secondaryBias without resetAfter")
    d = 2 if options["bidirectional"] else 1
    gates, width = GATES[cell], given["recurrent_weight"].shape[-1]
    batch, features = given["source"].shape[1:]
    shapes = {
        "recurrent_weight": ((2,) if d == 2 else ()) + (gates * width, width),
        "input_weight": (d * gates * width, features),
        "init_state": (batch, d * width),
    }
    for name, shape in shapes.items():
        if name in given and given[name].shape != shape:
            raise RefusedError(f"{name}: {given[name].shape}, not {shape}")


def module(variation: Variation | None = None, name: str = "stand_in") -> Any:
    """The stand-in as a module that can be handed in."""
    kind = type("MPSGraph", (Graph,), {"variation": variation or Variation()})
    names = [n for n in pyobjc.__all__ if n.startswith(("MPSDataType", "MTL", "NS"))]
    names += ["MPSGraphDevice", "MPSGraphTensorData", "MPSGraphSingleGateRNNDescriptor"]
    names += ["MPSGraphLSTMDescriptor", "MPSGraphGRUDescriptor"]
    parts = {n: getattr(pyobjc, n) for n in names}
    parts |= variation.descriptors if variation else {}
    return SimpleNamespace(__name__=name, MPSGraph=kind, **parts)
