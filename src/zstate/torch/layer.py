"""One layer as one call of its operation, both directions at once, and as one step for autograd.

T time, N batch, H hidden_size, D directions. A layer's tensors are its input, the mask of recurrent
dropout, the initial states [D,N,H], and its parameters (Recurrent.layer_parameters).

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

from ..operations import OPERATIONS, Operation
from .autograd import Recorded
from .dispatch import Route, Tensors, choose, engine_gives_gradients
from .gradient_pairs import PAIRS
from .private import is_tracing
from .sequences.whole import WHOLE, Sequences
from .tensors import compute

if TYPE_CHECKING:
    from .recurrent import Recurrent, Weights

Hidden: TypeAlias = tuple[Tensor | None, ...]  # h, or h and c


class LayerResult(NamedTuple):
    """What one layer gives."""

    state: Tensor  # [T,N,D·P]
    cell: Tensor | None  # [T,N,D·H]
    last: tuple[Tensor, ...]  # h [D,N,P], or h and c [D,N,H]


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


def recurrent_mask(
    module: Recurrent, like: Tensor, sequences: Sequences, directions: int
) -> Tensor | None:
    """Recurrent dropout: [1,N,D·H], one per sequence, or [T,N,D·H]."""
    if not module.training or not module.recurrent_dropout:
        return None
    steps, batch = sequences.size(like)
    rows = steps if module.recurrent_dropout_per_step else 1
    ones = like.new_ones(rows, batch, directions * module.hidden_size)
    return dropout(ones, module.recurrent_dropout)


def run_in_one_call(
    module: Recurrent, layer: int, source: Tensor, initial: Hidden, sequences: Sequences
) -> LayerResult:
    """A layer without projection; ``initial`` [D,N,H] each, or None."""
    mask = None
    if module.recurrent_dropout:
        mask = recurrent_mask(module, source, sequences, module.directions)
    tensors = (source, mask, *initial, *module.layer_parameters(layer))
    route = choose("layer", tensors) if sequences is WHOLE else Route.DISPATCHED
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


def _in_steps(module: Recurrent, tensors: Tensors, sequences: Sequences) -> Tensors:
    """The same by operators that autograd, and whoever else is there, sees one by one."""
    results = sequences.run(module.operation, _inputs(module, tensors), module.descriptor)
    return _outputs(module, results, _initial(module, tensors), sequences)


@dataclass(slots=True, eq=False)
class LayerStep:
    """A layer as a step of autograd."""

    module: Recurrent

    def compute(self, tensors: Tensors) -> tuple[Tensors, list[Tensor | None]]:
        module = self.module
        inputs = _inputs(module, tensors)
        results: Any = compute(module.operation, inputs, module.trained, None)
        kept = PAIRS[module.operation.name].kept(results)
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
    module: Recurrent, results: Any, initial: Hidden, sequences: Sequences, shared: bool = True
) -> Tensors:
    """The states, the cells or None, and the last states h [D,N,H] or h and c.

    ``shared``: the operation's results may be kept for the gradients.
    """
    end = _ends_of_both if module.bidirectional else _end
    state = results[0]
    last = end(state, initial[0], sequences)
    if module.states == 1:
        return state, None, last
    cells = results[1]
    if module.returns_cells:
        return state, cells, last, end(cells, initial[1], sequences)
    # Cells that nobody else sees are their own last step when there is one step.
    if not shared and not module.bidirectional and cells.shape[0] == 1:
        return state, None, last, cells
    return state, None, last, end(cells, initial[1], sequences)


def _end(steps: Tensor, first: Tensor | None, sequences: Sequences) -> Tensor:
    """The state after the last step of the one direction, [1,N,H]."""
    if sequences is not WHOLE or not steps.shape[0]:
        return sequences.last(steps, None if first is None else first[0]).unsqueeze(0)
    if steps.shape[0] != 1 or is_tracing():  # a trace may run with more steps
        steps = steps[-1:]
    return steps.clone()  # writing to h_n must not change the output


def _ends_of_both(steps: Tensor, initial: Tensor | None, sequences: Sequences) -> Tensor:
    """The states after each direction's last step, [2,N,H]."""
    if not steps.numel():
        zeros = steps.new_zeros(2, steps.shape[-2], steps.shape[-1] // 2)
        return zeros if initial is None else initial
    there, back = steps.chunk(2, -1)
    begin = back[0] if back.dim() == 3 else back[: sequences.size(steps)[1]]
    return torch.stack([sequences.last(there, None), begin])


def _operation_gradients(
    module: Recurrent, inputs: Tensors, results: Tensors, incoming: Tensors
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
    if module.states == 2:
        by_result[1] = _cell_gradient(cells, ends[1])
    pair = PAIRS[module.operation.name]
    taken = pair.inputs(inputs, results, tuple(by_result), _side_by_side(ends[0]))
    return compute(pair.gradient, taken, module.descriptor, None)


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


def _by_tensor(module: Recurrent, tensors: Tensors, gradients: Any) -> list[Tensor | None]:
    """The gradient operation's results in the order of the layer's tensors."""
    ordered: list[Tensor | None] = [gradients.source, None]
    for name, state in zip(("init_state", "init_cell"), _initial(module, tensors), strict=False):
        ordered.append(None if state is None else _by_direction(getattr(gradients, name), state))
    both = module.bidirectional
    for index in range(module.directions):
        bias, hidden = _bias_gradients(module, gradients, index)
        ordered += (
            gradients.recurrent_weight[index] if both else gradients.recurrent_weight,
            _part(gradients.input_weight, index, both),
            bias,
            hidden,
            _part(getattr(gradients, "peephole", None), index, both),
            None,
        )
    return ordered


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
    module: Recurrent, gradients: Any, index: int
) -> tuple[Tensor | None, Tensor | None]:
    """Those of one direction's two biases, which are added; see parameters.one_bias."""
    bias = _part(gradients.bias, index, module.bidirectional)
    secondary = _part(getattr(gradients, "secondary_bias", None), index, module.bidirectional)
    if bias is None or secondary is None:
        return bias, bias
    return bias, torch.cat([bias[: -len(secondary)], secondary])
