"""One layer as one call of its operation, both directions at once, and as one step for autograd.

T time, N batch, H hidden_size, D directions. A layer's tensors are its input, the mask of recurrent
dropout, the initial states [D,N,H], and its parameters (Recurrent.layer_parameters). It gives the
states of every step, the cells of every step or None, and the states after the last step [D,N,H].

Autograd records a layer on plain tensors as one step: joining the parameters and taking the last
states as steps of their own would cost a short sequence more than the operation itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from ..operations import OPERATIONS, Operation
from .dispatch import Tensors, are_plain, is_autocast, is_batched, is_watched, needs_gradient
from .routes import ROUTES, pulled
from .sequences import WHOLE, Sequences
from .tensors import compute

if TYPE_CHECKING:
    from .recurrent import Recurrent, Weights

Hidden: TypeAlias = tuple[Tensor | None, ...]  # h, or h and c

# The forward operations' inputs, as places in the order in which operation_inputs has them.
_INPUTS = (
    *("source", "recurrent_weight", "input_weight", "bias", "init_state", "init_cell"),
    *("mask", "peephole", "secondary_bias"),
)
_PLACES = {
    name: tuple(_INPUTS.index(each) for each in operation.inputs)
    for name, operation in OPERATIONS.items()
    if not operation.is_gradient
}


def operation_inputs(
    operation: Operation, source: Tensor, weights: Weights, initial: Hidden, mask: Tensor | None
) -> Tensors:
    """The tensors of a layer's operation in its order; ``initial`` [N,D·H] each."""
    recurrent, weight, bias, secondary, peephole, _ = weights
    first, last = initial[0], initial[-1]
    pool = (source, recurrent, weight, bias, first, last, mask, peephole, secondary)
    return tuple([pool[place] for place in _PLACES[operation.name]])


def run_joint(module: Recurrent, tensors: Tensors, sequences: Sequences) -> Tensors:
    """The states, the cells or None, and the states after the last step, h [D,N,H] or h and c."""
    if sequences is WHOLE and _is_short(tensors):
        if needs_gradient(tensors):
            return _Recorded.apply(module, *tensors)  # type: ignore[no-any-return]
        results = compute(module.operation, _inputs(module, tensors), module.descriptor, None)
        return _outputs(module, results, _initial(module, tensors), WHOLE, False)
    return _in_steps(module, tensors, sequences)


def _is_short(tensors: Tensors) -> bool:
    """Whether nobody but autograd has a say, there is a step, and the CPU computes it.

    A GPU computes while the host goes on to the next step of autograd: little would be gained.
    """
    if torch.compiler.is_compiling() or is_watched() or not are_plain(tensors):
        return False
    source = tensors[0]
    assert source is not None
    return source.is_cpu and source.shape[0] > 0 and not is_autocast("cpu")


def _in_steps(module: Recurrent, tensors: Tensors, sequences: Sequences) -> Tensors:
    """The same by operators that autograd, and whoever else is there, sees one by one."""
    inputs = _inputs(module, tensors)
    results = sequences.run(module.operation, inputs, module.descriptor)
    return _outputs(module, results, _initial(module, tensors), sequences, True)


def _initial(module: Recurrent, tensors: Tensors) -> Hidden:
    return tensors[2 : 2 + module.states]


def _inputs(module: Recurrent, tensors: Tensors, sums: bool = True) -> Tensors:
    """Those of the operation; without ``sums``, a bias that is right in shape alone."""
    source, mask = tensors[:2]
    assert source is not None
    weights = module.joined(tensors[2 + module.states :], sums)
    initial = tuple([_side_by_side(state) for state in _initial(module, tensors)])
    return operation_inputs(module.operation, source, weights, initial, mask)


def _side_by_side(state: Tensor | None) -> Tensor | None:
    """[N,D·H] from [D,N,H]."""
    if state is None:
        return None
    # Not state[0], whose derivative is a copy.
    return state.squeeze(0) if state.shape[0] == 1 else torch.cat([state[0], state[1]], 1)


def _outputs(
    module: Recurrent, results: Any, initial: Hidden, sequences: Sequences, recorded: bool
) -> Tensors:
    """What a layer gives; ``recorded``: somebody may keep the operation's results."""
    end = _ends_of_both if module.bidirectional else _end
    state = results[0]
    last = end(state, initial[0], sequences)
    if module.states == 1:
        return state, None, last
    cells = results[1]
    if module.returns_cells:
        return state, cells, last, end(cells, initial[1], sequences)
    # Cells that nobody else sees are their own last step when there is one step.
    if not recorded and not module.bidirectional and cells.shape[0] == 1:
        return state, None, last, cells
    return state, None, last, end(cells, initial[1], sequences)


def _end(steps: Tensor, first: Tensor | None, sequences: Sequences) -> Tensor:
    """The state after the last step of the one direction, [1,N,H]."""
    if sequences is not WHOLE or not steps.shape[0]:
        return sequences.last(steps, None if first is None else first[0]).unsqueeze(0)
    # A copy: whoever writes to h_n must not write to the output.
    return (steps if steps.shape[0] == 1 else steps[-1:]).clone()


def _ends_of_both(steps: Tensor, initial: Tensor | None, sequences: Sequences) -> Tensor:
    """The states after each direction's last step, [2,N,H]."""
    if not steps.numel():
        zeros = steps.new_zeros(2, steps.shape[-2], steps.shape[-1] // 2)
        return zeros if initial is None else initial
    there, back = steps.chunk(2, -1)
    begin = back[0] if back.dim() == 3 else back[: sequences.size(steps)[1]]
    return torch.stack([sequences.last(there, None), begin])


class _Recorded(torch.autograd.Function):
    """A layer that autograd records."""

    @staticmethod
    def forward(ctx: Any, module: Recurrent, *tensors: Tensor | None) -> Tensors:
        inputs = _inputs(module, tensors)
        results: Any = compute(module.operation, inputs, module.trained, None)
        ctx.module = module
        ctx.set_materialize_grads(False)
        # Joined parameters are kept; with one direction there is nothing to join.
        joined = inputs if module.bidirectional else ()
        ctx.save_for_backward(*ROUTES[module.operation.name].kept(results), *tensors, *joined)
        return _outputs(module, results, _initial(module, tensors), WHOLE, True)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        module: Recurrent = ctx.module
        needed = ctx.needs_input_grad[1:]
        if all([gradient is None for gradient in incoming]):  # noqa: C419, faster
            return (None,) * (1 + len(needed))
        saved = ctx.saved_tensors  # once: a checkpoint computes them again
        results = saved[: len(module.operation.result._fields)]
        rest = saved[len(results) :]
        tensors, joined = rest[: len(needed)], rest[len(needed) :]
        # Somebody wants gradients of these gradients, several at once, or to watch.
        if torch.is_grad_enabled() or is_watched() or not are_plain(incoming) or _several(incoming):

            def layer(*moved: Tensor | None) -> Tensors:
                return _in_steps(module, moved, WHOLE)

            return None, *pulled(layer, tensors, needed, incoming)
        inputs = joined or _inputs(module, tensors, sums=False)
        found = _gradients(module, inputs, results, incoming)
        spread = _spread(module, tensors, found)
        return None, *[each if need else None for each, need in zip(spread, needed, strict=True)]


def _several(incoming: Tensors) -> bool:
    return any([is_batched(gradient) for gradient in incoming])  # noqa: C419, faster


def _gradients(module: Recurrent, inputs: Tensors, results: Tensors, incoming: Tensors) -> Any:
    """The gradient operation's results."""
    state, cells, *ends = incoming
    if state is None:
        source = inputs[0]
        assert source is not None
        none = source.new_zeros(1, 1, module.directions * module.hidden_size)
        state = none.expand(*source.shape[:2], -1)
    by_result: list[Tensor | None] = [None] * len(results)
    by_result[0] = state
    if module.states == 2:
        by_result[1] = _cell_gradient(cells, ends[1])
    route = ROUTES[module.operation.name]
    taken = route.inputs(inputs, results, tuple(by_result), _side_by_side(ends[0]))
    return compute(route.gradient, taken, module.descriptor, None)


def _cell_gradient(cells: Tensor | None, end: Tensor | None) -> Tensor | None:
    """From the gradients of all cells [T,N,D·H] and of the last ones [D,N,H], each or None."""
    if cells is None or end is None:
        return _side_by_side(end) if cells is None else cells
    joined = cells.clone()
    width = end.shape[2]
    joined[-1, :, :width] += end[0]
    if len(end) == 2:
        joined[0, :, width:] += end[1]
    return joined


def _spread(module: Recurrent, tensors: Tensors, found: Any) -> list[Tensor | None]:
    """The gradient operation's results in the order of the layer's tensors."""
    spread: list[Tensor | None] = [found.source, None]
    for name, state in zip(("init_state", "init_cell"), _initial(module, tensors), strict=False):
        spread.append(None if state is None else _by_direction(getattr(found, name), state))
    both = module.bidirectional
    for index in range(module.directions):
        bias, hidden = _bias_gradients(module, found, index)
        spread += (
            found.recurrent_weight[index] if both else found.recurrent_weight,
            _part(found.input_weight, index, both),
            bias,
            hidden,
            _part(getattr(found, "peephole", None), index, both),
            None,
        )
    return spread


def _part(gradient: Tensor | None, index: int, both: bool) -> Tensor | None:
    """One direction's part of what has the directions one above the other."""
    if gradient is None or not both:
        return gradient
    half = len(gradient) // 2
    return gradient.narrow(0, index * half, half)


def _by_direction(gradient: Tensor, state: Tensor) -> Tensor:
    """[D,N,H] from [N,D·H], as ``state`` is."""
    return gradient.unsqueeze(0) if len(state) == 1 else torch.stack(gradient.chunk(2, 1))


def _bias_gradients(
    module: Recurrent, found: Any, index: int
) -> tuple[Tensor | None, Tensor | None]:
    """Those of one direction's two biases, which are added; see parameters.one_bias."""
    bias = _part(found.bias, index, module.bidirectional)
    secondary = _part(getattr(found, "secondary_bias", None), index, module.bidirectional)
    if bias is None or secondary is None:
        return bias, bias
    return bias, torch.cat([bias[: -len(secondary)], secondary])
