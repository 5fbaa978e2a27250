"""The six operations as operators of PyTorch: ``torch.ops.zstate.lstm`` and so on.

An operator takes the operation's tensors in its order (None where one is not passed), the
descriptor as text (descriptor_text.py) and the backend's name or None; it returns every result that
the operation can have, those not produced with no elements. Each has a fake kernel (for
torch.compile and torch.export), derivatives of any order, and a rule for torch.vmap.

``run`` is what the functional interface and the modules call. On plain tensors it leaves out the
dispatcher, whose Python side costs more than a short sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .. import pipeline
from ..cells import Cell
from ..cells.decorator import tell_of_cells
from ..descriptors import AnyDescriptor
from ..errors import OptionError, ZStateError, refusal
from ..extensions import in_the_table
from ..layout import Layout, TensorInfo, bind, check, check_descriptor
from ..operations import OPERATIONS, AnyResult, Operation, operations_of
from . import dispatch
from .autograd import Recorded, input_gradients, remember
from .checks import check_device, refuse_unusual
from .descriptor_text import decode, encode, learn, trained
from .dispatch import Results, Route, Tensors, cast, needs_gradient
from .gradient_pairs import pair_of
from .onnx_nodes import check_export
from .private import is_forward_mode, is_tracing
from .tensors import compute, run_known
from .vmap import batched_call

_LIBRARY = torch.library.Library("zstate", "DEF")
_OPERATORS: dict[str, Any] = {}


# For every result of a gradient operation, the place of the input that it is the gradient of.
_GRADIENT_OF: dict[str, tuple[int, ...]] = {}


def run(
    operation: Operation,
    tensors: Tensors,
    descriptor: AnyDescriptor | None,
    backend: str | None,
) -> AnyResult:
    """The functional interface on tensors: differentiable, with the results that were asked for.

    The training state is computed when the descriptor asks for it or a gradient may be needed.
    """
    descriptor = check_descriptor(operation, descriptor)
    if not torch.compiler.is_compiling() and (backend is None or type(backend) is str):
        known = run_known(operation, tensors, descriptor, backend)
        if known is not None:
            return known
    tensors = cast(tensors)
    route = dispatch.choose("gradients" if operation.is_gradient else "operation", tensors)
    try:
        if route is Route.ENGINE:
            return compute(operation, tensors, descriptor, backend)
        results = _by_route(route, operation, tensors, descriptor, backend)
    except RuntimeError:  # name the argument, where that was not possible
        refuse_unusual(operation.name, _passed(operation, tensors))
        raise
    wanted: list[Tensor | None]
    if operation.is_gradient:
        wanted = [
            None if tensors[place] is None else result
            for place, result in zip(_GRADIENT_OF[operation.key], results, strict=True)
        ]
    elif descriptor.training:
        return operation.result(*results)
    else:
        produced = operation.cell.produced(descriptor)
        wanted = [
            result if name in produced else None
            for name, result in zip(operation.result._fields, results, strict=True)
        ]
    return operation.result(*wanted)


def checked(
    operation: Operation, tensors: Tensors, descriptor: AnyDescriptor, heads: int
) -> tuple[Tensors, Layout]:
    """The tensors as run() computes with them, and what its checks say."""
    tensors = cast(tensors)
    try:
        return tensors, bind(operation, *in_the_table(operation, tensors, descriptor, heads))
    except ZStateError:
        raise
    except RuntimeError:  # name the argument, where that was not possible
        refuse_unusual(operation.name, _passed(operation, tensors))
        raise


def _by_route(
    route: Route,
    operation: Operation,
    tensors: Tensors,
    descriptor: AnyDescriptor,
    backend: str | None,
) -> Results:
    """Every result of an operation, produced or not."""
    if route is Route.DISPATCHED:
        return _dispatched(operation, tensors, descriptor, backend)
    if not operation.is_gradient and (route is Route.RECORDED or needs_gradient(tensors)):
        descriptor = trained(descriptor)
    step = OperationStep(operation, descriptor, backend)
    if route is Route.DIFFERENTIABLE:
        return step.differentiable(*tensors)
    if route is Route.TRANSFORMED:
        return _Transformed.apply(step, *tensors)  # type: ignore[no-any-return]
    if route is Route.RECORDED:
        return Recorded.apply(step, *tensors)  # type: ignore[no-any-return]
    return step.compute(tensors)[0]


def _dispatched(
    operation: Operation, tensors: Tensors, descriptor: AnyDescriptor, backend: str | None
) -> Results:
    """By torch's dispatcher, so that everybody sees the operator."""
    training = needs_gradient(tensors) and not operation.is_gradient
    check_export(operation)
    if is_tracing():
        training = False  # a trace may run with gradients or without
    return _OPERATORS[operation.key](*tensors, encode(descriptor, training), backend)  # type: ignore[no-any-return]


@dataclass(slots=True, eq=False)
class OperationStep:
    """An operation as a step of autograd."""

    operation: Operation
    descriptor: AnyDescriptor
    backend: str | None

    def compute(self, tensors: Tensors) -> tuple[Results, list[Tensor | None]]:
        results: Any = compute(self.operation, tensors, self.descriptor, self.backend)
        results = complete(results)
        return results, self.kept(results)

    def kept(self, results: Results) -> list[Tensor | None]:
        """What the gradient operation takes of the results; nothing without the training state."""
        if self.operation.is_gradient or not results[-1].numel():
            return []
        return pair_of(self.operation).kept(results)

    def serves(self, needed: Sequence[bool], incoming: Tensors) -> bool:
        """Double backward too: the gradient operation is an operator in its turn."""
        mask = self.operation.inputs.index("mask")
        return not (self.operation.is_gradient or incoming[-1] is not None or needed[mask])

    def gradients(self, tensors: Tensors, kept: Tensors, incoming: Tensors) -> list[Tensor | None]:
        """By the gradient operation."""
        if not kept:  # called without the training state: compute it now
            kept = self._again(self.operation, tensors, trained(self.descriptor))
        pair = pair_of(self.operation)
        inputs = pair.inputs(tensors, kept, incoming)
        return pair.by_input(self._again(pair.gradient, inputs, self.descriptor), len(tensors))

    def _again(self, operation: Operation, tensors: Tensors, descriptor: AnyDescriptor) -> Results:
        route = dispatch.choose("gradients" if operation.is_gradient else "operation", tensors)
        return _by_route(route, operation, tensors, descriptor, self.backend)

    def differentiable(self, *tensors: Tensor | None) -> Results:
        """By plain torch operations: slower, for what the engines do not give."""
        layout = _layout(self.operation, tensors, self.descriptor)
        return complete(pipeline.run(layout, tensors))


def complete(results: Tensors) -> Results:
    """Every result of an operation; one that was not produced has no elements."""
    like = results[0]
    assert like is not None  # the state, or the gradient of the source
    return tuple([like.new_empty(0) if tensor is None else tensor for tensor in results])


def _passed(operation: Operation, tensors: Tensors) -> dict[str, Tensor]:
    pairs = zip(operation.inputs, tensors, strict=True)
    return {name: tensor for name, tensor in pairs if tensor is not None}


def _layout(operation: Operation, tensors: Tensors, descriptor: AnyDescriptor) -> Any:
    """The checks of ``bind`` for tensors without data, whose sizes may be symbols."""
    infos: dict[str, TensorInfo] = {}
    passed = _passed(operation, tensors)
    for name, tensor in passed.items():
        check_device(operation.name, name, tensor, passed["source"])
        infos[name] = TensorInfo(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
    return check(operation, infos, descriptor)


def _refuse_forward_mode(operation: Operation) -> None:
    """torch takes the forward derivative of an operator of ours to be zero."""
    if is_forward_mode():
        expected = "zstate's functions or layers, not compiled or exported"
        got = "a forward-mode derivative (torch.func.jvp) of the operator itself"
        raise OptionError(refusal(operation.name, "torch.ops.zstate", expected, got))


def _fake(operation: Operation, *arguments: Any) -> Results:
    """Shapes and types of the results."""
    _refuse_forward_mode(operation)
    *tensors, text, _ = arguments
    layout = _layout(operation, tuple(tensors), decode(operation, text))
    passed = _passed(operation, tuple(tensors))
    shapes = {
        name: passed[name].shape if operation.is_gradient else layout.shape(name)
        for name in layout.result_names()
    }
    return complete(
        tuple(
            passed["source"].new_empty(shapes[name]) if name in shapes else None
            for name in operation.result._fields
        )
    )


class _Transformed(torch.autograd.Function):
    """The step of an operation in the form that torch.func's transforms take."""

    @staticmethod
    def forward(step: OperationStep, *tensors: Tensor | None) -> Results:
        text = encode(step.descriptor, False)
        return _OPERATORS[step.operation.key](*tensors, text, step.backend)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
        step, *tensors = inputs
        remember(ctx, step, tuple(tensors), step.kept(output))

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, *input_gradients(ctx, ctx.needs_input_grad[1:], incoming)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], step: OperationStep, *tensors: Tensor | None
    ) -> Any:
        def operator(*inputs: Tensor | None) -> Results:
            return _Transformed.apply(step, *inputs)  # type: ignore[no-any-return]

        return batched_call(
            step.operation, step.descriptor, operator, info.batch_size, in_dims[1:], tensors
        )


def _ascii(name: str) -> str:
    """A name as a schema takes it; α becomes U3b1."""
    return "".join(each if each.isascii() else f"U{ord(each):x}" for each in name)


def define(operation: Operation) -> None:
    """Give PyTorch the schema, the kernels and the derivatives of one operation."""
    if operation.key in _OPERATORS:  # a cell of the same equations, defined before
        return
    learn(operation.cell.descriptor)
    if operation.is_gradient:
        places = (operation.inputs.index(result) for result in operation.result._fields)
        _GRADIENT_OF[operation.key] = tuple(places)
    arguments = [f"Tensor {_ascii(name)}" for name in operation.required]
    arguments += [f"Tensor? {_ascii(name)}" for name in operation.optional]
    results = ", ".join(["Tensor"] * len(operation.result._fields))
    schema = f"({', '.join(arguments)}, str descriptor, str? backend) -> ({results})"
    _LIBRARY.define(operation.key + schema)
    name = f"zstate::{operation.key}"
    operator = _OPERATORS[operation.key] = getattr(torch.ops.zstate, operation.key).default

    def step_of(arguments: Sequence[Any]) -> tuple[OperationStep, Tensors]:
        *tensors, text, backend = arguments
        return OperationStep(operation, decode(operation, text), backend), tuple(tensors)

    def kernel(*arguments: Any) -> Results:
        _refuse_forward_mode(operation)
        step, tensors = step_of(arguments)
        return step.compute(tensors)[0]

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
        step, tensors = step_of(inputs)
        remember(ctx, step, tensors, step.kept(output))

    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        return *input_gradients(ctx, ctx.needs_input_grad[: ctx.count], incoming), None, None

    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:
        step, tensors = step_of(arguments)

        def call(*inputs: Tensor | None) -> Results:
            return operator(*inputs, *arguments[-2:])  # type: ignore[no-any-return]

        axes = in_dims[: len(tensors)]
        return batched_call(operation, step.descriptor, call, info.batch_size, axes, tensors)

    _LIBRARY.impl(operation.key, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(name, partial(_fake, operation), lib=_LIBRARY)
    torch.library.register_autograd(name, backward, setup_context=setup_context, lib=_LIBRARY)
    torch.library.register_vmap(name, vmap, lib=_LIBRARY)


def _define_cell(cell: Cell) -> None:
    for operation in operations_of(cell):
        define(operation)


for _operation in OPERATIONS.values():
    define(_operation)
tell_of_cells(_define_cell)  # at once: no operator can be defined inside torch.compile
