"""One layer as one call of its operation, both directions at once, and as one step for autograd.

T time, N batch, H hidden_size, D directions. A layer's tensors are its input, the mask of recurrent
dropout, the resets [T,N,D], the initial states [D,N,H], and its parameters
(Layers.layer_parameters).

Autograd records a layer on plain tensors as one step: joining the parameters and taking the last
states as steps of their own would cost a short sequence more than the operation itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import dropout

from ..operations import Operation
from . import dispatch
from .autograd import Recorded
from .base import Weights
from .dispatch import Route, Tensors, engine_gives_gradients
from .gradient_pairs import pair_of
from .private import is_tracing
from .sequences.whole import WHOLE, Sequences
from .step_values import run_operation
from .tensors import compute

if TYPE_CHECKING:
    from .base import Layers

Hidden: TypeAlias = tuple[Tensor | None, ...]  # one per state of the cell, h first


class LayerResult(NamedTuple):
    """What one layer gives."""

    state: Tensor  # [T,N,D·P]
    cell: Tensor | None  # [T,N,D·H]
    last: tuple[Tensor, ...]  # one per state: h [D,N,P], all others [D,N,H]


# What operation_inputs has beside the cell's own parameters and the initial states, in its order.
_COMMON = ("source", "recurrent_weight", "input_weight", "bias", "mask", "resets")


def _places(operation: Operation) -> tuple[int, ...]:
    """Where each of the operation's inputs is among these."""
    cell = operation.cell
    own = (each.name for each in cell.own)
    names = (*_COMMON, *own, *(state.initial for state in cell.states))
    return tuple(names.index(name) for name in operation.inputs)


_PLACES: dict[str, tuple[int, ...]] = {}  # not a cached function: torch.compile warns of those


def operation_inputs(
    operation: Operation,
    source: Tensor,
    weights: Weights,
    initial: Hidden,
    mask: Tensor | None,
    resets: Tensor | None,
) -> Tensors:
    """The tensors of a layer's operation in its order; ``initial`` [N,D·H], ``resets`` [T,N,D]."""
    recurrent, weight, bias, own, _ = weights
    pool = (source, recurrent, weight, bias, mask, resets, *own, *initial)
    if operation.key not in _PLACES:
        _PLACES[operation.key] = _places(operation)
    return tuple([pool[place] for place in _PLACES[operation.key]])


def recurrent_mask(
    module: Layers, like: Tensor, sequences: Sequences, directions: int
) -> Tensor | None:
    """Recurrent dropout: [1,N,D·H], one per sequence, or [T,N,D·H]."""
    if not module.training or not module.recurrent_dropout:
        return None
    steps, batch = sequences.size(like)
    rows = steps if module.recurrent_dropout_per_step else 1
    ones = like.new_ones(rows, batch, directions * module.hidden_size)
    return dropout(ones, module.recurrent_dropout)


def run_in_one_call(
    module: Layers, layer: int, source: Tensor, initial: Hidden, sequences: Sequences
) -> LayerResult:
    """A layer without projection; ``initial`` [D,N,H] each, or None."""
    mask = None
    if module.recurrent_dropout:
        mask = recurrent_mask(module, source, sequences, module.directions)
    tensors = (source, mask, sequences.resets, *initial, *module.layer_parameters(layer))
    # A GPU computes while the host goes on to the next step of autograd: little would be gained.
    as_one = source.is_cpu and module.is_plain and sequences.is_whole
    route = dispatch.choose("layer", tensors) if as_one else Route.DISPATCHED
    results: Any
    if route is Route.RECORDED:
        results = Recorded.apply(LayerStep(module), *tensors)
    elif route is Route.ENGINE:
        inputs = _inputs(module, tensors)
        computed = compute(module.operation, inputs, module.descriptor, None)
        results = _outputs(module, computed, initial, WHOLE, shared=False)
    else:
        results = _in_steps(module, tensors, sequences)
    return LayerResult(results[0], results[1], results[2:])


def _in_steps(module: Layers, tensors: Tensors, sequences: Sequences) -> Tensors:
    """The same by separate operators, which autograd and transforms can see."""
    results = run_operation(module, _inputs(module, tensors), module.descriptor, sequences)
    return _outputs(module, results, _initial(module, tensors), sequences)


@dataclass(slots=True, eq=False)
class LayerStep:
    """A layer as a step of autograd."""

    module: Layers

    def compute(self, tensors: Tensors) -> tuple[Tensors, list[Tensor | None]]:
        module = self.module
        inputs = _inputs(module, tensors)
        results: Any = compute(module.operation, inputs, module.trained, None)
        kept = pair_of(module.operation).kept(results)
        if module.bidirectional:
            kept += inputs  # the joined parameters; with one direction there is nothing to join
        return _outputs(module, results, _initial(module, tensors), WHOLE), kept

    def serves(self, needed: Sequence[bool], incoming: Tensors) -> bool:
        return engine_gives_gradients(incoming)

    def gradients(self, tensors: Tensors, kept: Tensors, incoming: Tensors) -> list[Tensor | None]:
        """By the gradient operation, spread over the layer's tensors."""
        module = self.module
        count = len(module.operation.result._fields)
        inputs = kept[count:] or _inputs(module, tensors, sums=False)
        gradients = _operation_gradients(module, inputs, kept[:count], incoming)
        return _by_tensor(module, tensors, gradients)

    def differentiable(self, *tensors: Tensor | None) -> Tensors:
        return _in_steps(self.module, tensors, WHOLE)


def _initial(module: Layers, tensors: Tensors) -> Hidden:
    return tensors[3 : 3 + module.states]


def _inputs(module: Layers, tensors: Tensors, sums: bool = True) -> Tensors:
    """Those of the operation; without ``sums``, a bias that is right in shape alone."""
    source, mask, resets = tensors[:3]
    assert source is not None
    weights = module.joined(tensors[3 + module.states :], sums)
    initial = tuple([_side_by_side(state) for state in _initial(module, tensors)])
    return operation_inputs(module.operation, source, weights, initial, mask, resets)


def _side_by_side(state: Tensor | None) -> Tensor | None:
    """[N,D·H] from [D,N,H]."""
    if state is None:
        return None
    # Not state[0], whose derivative is a copy.
    return state.squeeze(0) if state.shape[0] == 1 else torch.cat([state[0], state[1]], 1)


def _outputs(
    module: Layers, results: Any, initial: Hidden, sequences: Sequences, shared: bool = True
) -> Tensors:
    """h of every step, the cells or None, and the last of every state [D,N,H].

    ``shared``: the operation's results may be kept for the gradients.
    """
    end = _ends_of_both if module.bidirectional else _end
    state, *others = results
    last = end(state, initial[0], sequences)
    if module.states == 1:
        return state, None, last
    if module.returns_cells:
        return state, others[0], last, end(others[0], initial[1], sequences)
    others = others[: module.states - 1]  # without the training state
    # With a single step, states that nothing else sees are their own last step.
    if not shared and not module.bidirectional and state.shape[0] == 1:
        return state, None, last, *others
    ends = [end(steps, first, sequences) for steps, first in zip(others, initial[1:], strict=True)]
    return state, None, last, *ends


def _end(steps: Tensor, first: Tensor | None, sequences: Sequences) -> Tensor:
    """The state after the last step of the one direction, [1,N,H]."""
    if not sequences.is_whole or not steps.shape[0]:
        return sequences.last(steps, None if first is None else first[0]).unsqueeze(0)
    if steps.shape[0] != 1 or is_tracing():  # a trace may run with more steps
        steps = steps[-1:]
    return steps.clone()  # writing to h_n must not change the output


def _ends_of_both(steps: Tensor, initial: Tensor | None, sequences: Sequences) -> Tensor:
    """The states after each direction's last step, [2,N,H]."""
    if not steps.shape[0]:
        zeros = steps.new_zeros(2, steps.shape[-2], steps.shape[-1] // 2)
        return zeros if initial is None else initial.clone()
    there, back = steps.chunk(2, -1)
    begin = back[0] if back.dim() == 3 else back[: sequences.size(steps)[1]]
    return torch.stack([sequences.last(there, None), begin])


def _operation_gradients(
    module: Layers, inputs: Tensors, results: Tensors, incoming: Tensors
) -> Any:
    """The gradient operation's results."""
    state, cells, *ends = incoming
    if state is None:
        source = inputs[0]
        assert source is not None
        none = source.new_zeros(1, 1, module.directions * module.hidden_size)
        state = none.expand(*source.shape[:2], -1)
    by_result: list[Tensor | None] = [None] * len(results)
    by_result[0] = state
    for place in range(1, module.states):
        by_result[place] = _state_gradient(cells if place == 1 else None, ends[place])
    pair = pair_of(module.operation)
    taken = pair.inputs(inputs, results, tuple(by_result), _side_by_side(ends[0]))
    return compute(pair.gradient, taken, module.descriptor, None)


def _state_gradient(steps: Tensor | None, end: Tensor | None) -> Tensor | None:
    """From the gradients of a state at every step [T,N,D·H] and at the last [D,N,H], or None."""
    if steps is None or end is None:
        return _side_by_side(end) if steps is None else steps
    joined = steps.clone()
    width = end.shape[2]
    joined[-1, :, :width] += end[0]
    if len(end) == 2:
        joined[0, :, width:] += end[1]
    return joined


def _by_tensor(module: Layers, tensors: Tensors, gradients: Any) -> list[Tensor | None]:
    """The gradient operation's results in the order of the layer's tensors."""
    ordered: list[Tensor | None] = [gradients.source, None, None]
    cell = module.operation.cell
    for each, state in zip(cell.states, _initial(module, tensors), strict=True):
        gradient = getattr(gradients, each.initial)
        ordered.append(None if state is None else _by_direction(gradient, state))
    own = tuple([getattr(gradients, each.name) for each in cell.own])
    recurrent, weight, bias = gradients.recurrent_weight, gradients.input_weight, gradients.bias
    return ordered + module.spread(Weights(recurrent, weight, bias, own))


def _by_direction(gradient: Tensor, state: Tensor) -> Tensor:
    """[D,N,H] from [N,D·H], as ``state`` is."""
    return gradient.unsqueeze(0) if len(state) == 1 else torch.stack(gradient.chunk(2, 1))
