"""The six operations as operators of PyTorch: ``torch.ops.zstate.lstm`` and so on.

An operator takes the tensors of the operation in its order (None where one is not passed), the
descriptor as text (see options.py) and the backend's name or None; it returns every result that
the operation can have, those that were not produced with no elements. Each has a fake kernel (for
torch.compile and torch.export), derivatives of any order, and a rule for torch.vmap.

``run`` is what the functional interface and the modules call. On plain tensors it leaves out the
dispatcher, whose Python side costs more than a short sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import pipeline
from ..descriptors import AnyDescriptor
from ..layout import DESCRIPTORS, TensorInfo, check, check_descriptor
from ..operations import OPERATIONS, AnyResult, Operation
from .batching import vmap_rule
from .dispatch import (
    Results,
    Tensors,
    cast,
    is_forward_derivative,
    is_plain,
    is_transformed,
    needs_gradient,
)
from .options import decode, encode, text_of
from .routes import ROUTES, pulled
from .tensors import compute, run_known

_LIBRARY = torch.library.Library("zstate", "DEF")
_OPERATORS: dict[str, Any] = {}
_DEFAULTS = {name: kind() for name, kind in DESCRIPTORS.items()}
# For every result of a gradient operation, the place of the input that it is the gradient of.
_OWN = {
    name: tuple(each.inputs.index(result) for result in each.result._fields)
    for name, each in OPERATIONS.items()
    if each.is_gradient
}


def run(
    operation: Operation,
    tensors: Tensors,
    descriptor: AnyDescriptor | None,
    backend: str | None,
) -> AnyResult:
    """The functional interface on tensors: differentiable, with the results that were asked for.

    The training state is computed when the descriptor asks for it or a gradient may be needed.
    """
    if descriptor is None:
        descriptor = _DEFAULTS[operation.cell.name]
    else:
        check_descriptor(operation, descriptor)
    compiling = torch.compiler.is_compiling()
    if not compiling and (backend is None or type(backend) is str):
        known = run_known(operation, tensors, descriptor, backend)
        if known is not None:
            return known
    tensors = cast(tensors)
    needs = needs_gradient(tensors)
    if not needs and not compiling and is_plain(tensors):
        return compute(operation, tensors, descriptor, backend)
    results = apply(operation, tensors, descriptor, needs, backend)
    wanted: list[Tensor | None]
    if operation.is_gradient:
        wanted = [
            None if tensors[place] is None else result
            for place, result in zip(_OWN[operation.name], results, strict=True)
        ]
    elif descriptor.training:
        return operation.result(*results)  # type: ignore[arg-type]
    else:
        wanted = [None] * len(results)
        wanted[0] = results[0]
        if getattr(descriptor, "produce_cell", False):
            wanted[1] = results[1]
    return operation.result(*wanted)  # type: ignore[arg-type]


def apply(
    operation: Operation,
    tensors: Tensors,
    descriptor: AnyDescriptor,
    needs: bool,
    backend: str | None,
) -> Results:
    """One operator call by the shortest way; every result, produced or not."""
    training = needs and not operation.is_gradient
    if torch.compiler.is_compiling():
        text = encode(descriptor, training)
        return _OPERATORS[operation.name](*tensors, text, backend)  # type: ignore[no-any-return]
    if is_forward_derivative():  # only plain operations have it
        return _composite(operation, tensors, descriptor)
    arguments = (*tensors, text_of(descriptor, training), backend)
    if is_transformed():
        return _Transformed.apply(operation, *arguments)  # type: ignore[no-any-return]
    if not is_plain(tensors):
        return _OPERATORS[operation.name](*arguments)  # type: ignore[no-any-return]
    if needs:
        return _Recorded.apply(operation, *arguments)  # type: ignore[no-any-return]
    return _kernel(operation, arguments)


def _kernel(operation: Operation, arguments: tuple[Any, ...]) -> Results:
    """The operator on real tensors."""
    *tensors, text, backend = arguments
    found: Any = compute(operation, tuple(tensors), decode(operation, text), backend)
    return complete(found)


def complete(found: Tensors) -> Results:
    """Every result of an operation; one that was not produced has no elements."""
    like = found[0]
    assert like is not None  # the state, or the gradient of the source
    return tuple([like.new_empty(0) if tensor is None else tensor for tensor in found])


def _composite(operation: Operation, tensors: Tensors, descriptor: AnyDescriptor) -> Results:
    """The same as plain torch operations, which can be differentiated as often as one likes."""
    return complete(pipeline.run(_layout(operation, tensors, descriptor), tensors))


def _given(operation: Operation, tensors: Tensors) -> dict[str, Tensor]:
    pairs = zip(operation.inputs, tensors, strict=True)
    return {name: tensor for name, tensor in pairs if tensor is not None}


def _layout(operation: Operation, tensors: Tensors, descriptor: AnyDescriptor) -> Any:
    """The checks of ``bind`` for tensors without data, whose sizes may be symbols."""
    infos = {
        name: TensorInfo(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        for name, tensor in _given(operation, tensors).items()
    }
    return check(operation, infos, descriptor)


def _fake(operation: Operation, arguments: tuple[Any, ...]) -> Results:
    """Shapes and types of the results."""
    *tensors, text, _ = arguments
    layout = _layout(operation, tuple(tensors), decode(operation, text))
    given = _given(operation, tuple(tensors))
    source = given["source"]
    shapes = {
        name: given[name].shape if operation.is_gradient else layout.shape(name)
        for name in layout.result_names()
    }
    return complete(
        tuple(
            source.new_empty(shapes[name]) if name in shapes else None
            for name in operation.result._fields
        )
    )


def _remember(operation: Operation, ctx: Any, arguments: tuple[Any, ...], results: Results) -> None:
    """What the derivative needs: the inputs, and of a forward operation the training state."""
    *tensors, text, backend = arguments
    ctx.operation, ctx.text, ctx.backend = operation, text, backend
    ctx.set_materialize_grads(False)
    if not operation.is_gradient and results[-1].numel():
        tensors += ROUTES[operation.name].kept(results)
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
    """The gradients of an operator's arguments."""
    operation: Operation = ctx.operation
    count = len(operation.inputs)
    saved = ctx.saved_tensors
    needed = ctx.needs_input_grad
    if all(gradient is None for gradient in incoming):
        return (None,) * (count + 2)
    mask = operation.inputs.index("mask")
    if operation.is_gradient or incoming[-1] is not None or needed[mask]:
        found = _plain_gradients(ctx, saved[:count], needed, incoming)
    else:
        found = _gradients(ctx, saved[:count], saved[count:], incoming)
    kept = [gradient if need else None for gradient, need in zip(found, needed, strict=False)]
    return (*kept, None, None)


def _gradients(
    ctx: Any, tensors: Tensors, results: Tensors, incoming: Tensors
) -> list[Tensor | None]:
    """By the gradient operation, which is an operator and can be differentiated in its turn."""
    forward: Operation = ctx.operation
    descriptor = decode(forward, ctx.text)
    if not results:  # called without the training state: compute it now
        results = apply(forward, tensors, descriptor, True, ctx.backend)
    route = ROUTES[forward.name]
    inputs = route.inputs(tensors, results, incoming)
    found = apply(route.gradient, inputs, descriptor, needs_gradient(inputs), ctx.backend)
    return route.by_input(found, len(tensors))


def _plain_gradients(
    ctx: Any, tensors: Tensors, needed: tuple[bool, ...], incoming: tuple[Tensor | None, ...]
) -> list[Tensor | None]:
    """By plain operations: slower, for what the engines do not give."""
    descriptor = decode(ctx.operation, ctx.text)
    return pulled(
        lambda *moved: _composite(ctx.operation, moved, descriptor), tensors, needed, incoming
    )


class _Recorded(torch.autograd.Function):
    """An operator on plain tensors that autograd records."""

    @staticmethod
    def forward(ctx: Any, operation: Operation, *arguments: Any) -> Results:
        results = _kernel(operation, arguments)
        _remember(operation, ctx, arguments, results)
        return results

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        return (None, *_backward(_Shifted(ctx), *incoming))


class _Transformed(torch.autograd.Function):
    """An operator under torch.func's transforms, which want the same in another form."""

    @staticmethod
    def forward(operation: Operation, *arguments: Any) -> Results:
        return _OPERATORS[operation.name](*arguments)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
        operation, *arguments = inputs
        _remember(operation, ctx, tuple(arguments), output)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        return (None, *_backward(_Shifted(ctx), *incoming))

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], operation: Operation, *arguments: Any
    ) -> Any:
        def operator(*inputs: Any) -> Results:
            return _Transformed.apply(operation, *inputs)  # type: ignore[no-any-return]

        return vmap_rule(operation, operator)(info, in_dims[1:], *arguments)


class _Shifted:
    """A context as one sees it without the first argument."""

    def __init__(self, ctx: Any) -> None:
        self.operation, self.text, self.backend = ctx.operation, ctx.text, ctx.backend
        self.saved_tensors = ctx.saved_tensors
        self.needs_input_grad = ctx.needs_input_grad[1:]


def _define(operation: Operation) -> None:
    """Give PyTorch the schema, the kernels and the derivatives of one operation."""
    arguments = [f"Tensor {name}" for name in operation.required]
    arguments += [f"Tensor? {name}" for name in operation.optional]
    results = ", ".join(["Tensor"] * len(operation.result._fields))
    schema = f"({', '.join(arguments)}, str descriptor, str? backend) -> ({results})"
    _LIBRARY.define(operation.name + schema)
    name = f"zstate::{operation.name}"
    _OPERATORS[operation.name] = getattr(torch.ops.zstate, operation.name).default

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
        _remember(operation, ctx, inputs, output)

    _LIBRARY.impl(operation.name, _bound(operation, _kernel), "CompositeExplicitAutograd")
    torch.library.register_fake(name, _bound(operation, _fake), lib=_LIBRARY)
    torch.library.register_autograd(name, _backward, setup_context=setup_context, lib=_LIBRARY)
    torch.library.register_vmap(
        name, vmap_rule(operation, _OPERATORS[operation.name]), lib=_LIBRARY
    )


def _bound(
    operation: Operation, function: Callable[[Operation, tuple[Any, ...]], Results]
) -> Callable[..., Results]:
    def bound(*arguments: Any) -> Results:
        return function(operation, arguments)

    return bound


for _operation in OPERATIONS.values():
    _define(_operation)
