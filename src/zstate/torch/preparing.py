"""prepare(model): swap recurrent modules for layers with packed weights, for inference.

T time, N batch, I input features, H hidden units, D directions, L layers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from .. import convert
from ..cells.decorator import CellDescriptor
from ..convert.layer import Layer
from ..errors import DTypeError, GraphError, OptionError, ShapeError, ZStateError, refusal
from ..layout import brackets, describe
from ..prepared import model as prepared
from ..prepared.libraries import Library, in_words, refuse_hidden_values
from .any_cell import Recurrent
from .base import Layers
from .checks import as_lengths, check_tensor, checked_resets
from .layers import GRU, LSTM, RNN
from .private import has_hooks
from .replacing import BOTH, Report, exchange, subclass_of
from .segments import Segments

_KINDS: tuple[type[torch.nn.Module], ...] = (
    *(torch.nn.RNN, torch.nn.LSTM, torch.nn.GRU, RNN, LSTM, GRU, Recurrent),
    *(ours for theirs, ours in BOTH.items() if not theirs.__name__.endswith("Cell")),
)


def prepare(model: torch.nn.Module, weights: str = "float32") -> tuple[torch.nn.Module, Report]:
    """Swap every recurrent module of a model for one with packed weights, in place.

    Args:
        model: any module; submodules that cannot be prepared stay, and the report says why.
        weights: "float32", "bfloat16" or "int8", as in :func:`zstate.prepare`.

    Returns the model (a new module if it is itself recurrent) and a report.

    Example:
        >>> import torch
        >>> model, report = prepare(torch.nn.Sequential(torch.nn.LSTM(4, 8)), "int8")
        >>> print(report)
        0: torch.nn.LSTM -> PreparedLayers
        >>> output, (h, c) = model(torch.randn(5, 3, 4))
        >>> output.shape, h.shape
        (torch.Size([5, 3, 8]), torch.Size([1, 3, 8]))
    """

    def made(module: torch.nn.Module) -> torch.nn.Module:
        return PreparedLayers(module, prepared.prepare(_layers_of(module), weights))

    if isinstance(model, torch.nn.Module):
        prepared.check_weights(weights)
    return exchange("prepare", model, _KINDS, _why_not, made)


class PreparedLayers(torch.nn.Module):
    """Recurrent layers with packed weights, called like the module they replace.

    It has no parameters, and its outputs have no gradients.
    """

    def __init__(self, module: Any, model: prepared.Prepared) -> None:
        super().__init__()
        self.model = model
        self.batch_first = bool(module.batch_first)
        self.input_size, self.hidden_size = int(module.input_size), int(module.hidden_size)
        self.num_layers, self.bidirectional = int(module.num_layers), bool(module.bidirectional)
        self._directions = 2 if self.bidirectional else 1

    # It computes at once: torch.compile breaks its graph there.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: Any = None,
        lengths: Any = None,
        resets: Tensor | None = None,
        *,
        states: Any = None,
    ) -> tuple[Any, Any]:
        """output [T,N,D·H] and the states [D·L,N,H] after each row's last step.

        Args:
            input: [T,N,I], [N,T,I] with batch_first, [T,I] for one sequence, or packed.
            hx: states [D·L,N,H], as the replaced module takes them; None means its initial ones.
            lengths: [N], a tensor or a list: how many steps of each sequence count.
            resets: [T,N], or [N,T] with batch_first: true where step t starts a new sequence.
            states: another name of hx, the one that zt.Recurrent has.
        """
        refuse_hidden_values()
        if states is not None:
            if hx is not None:
                raise OptionError(refusal("prepare", "states", "none beside hx", describe(states)))
            hx = states
        if resets is not None:
            check_tensor(self, "resets", resets)
        if not isinstance(input, PackedSequence):
            return self._padded(input, hx, lengths, resets)
        if lengths is not None:
            raise DTypeError(refusal("prepare", "lengths", "none with a packed sequence", "some"))
        padded, sizes = pad_packed_sequence(input, batch_first=self.batch_first)
        output, states = self._padded(padded, hx, sizes, resets)
        order = input.sorted_indices
        if order is not None:
            output = output.index_select(0 if self.batch_first else 1, order)
            sizes = sizes[order]
        data = pack_padded_sequence(output, sizes, batch_first=self.batch_first).data
        packed = PackedSequence(data, input.batch_sizes, order, input.unsorted_indices)
        return packed, states

    def _padded(
        self, input: Tensor, hx: Any, lengths: Any, resets: Tensor | None
    ) -> tuple[Tensor, Any]:
        if not isinstance(input, Tensor) or input.dim() not in (2, 3):
            got = brackets(input.shape) if isinstance(input, Tensor) else describe(input)
            expected = f"[T,N,{self.input_size}] or [T,{self.input_size}]"
            raise ShapeError(refusal("prepare", "input", expected, got))
        if input.layout is not torch.strided:
            raise DTypeError(refusal("prepare", "input", "a strided tensor", in_words(input)))
        if torch.is_grad_enabled() and input.requires_grad:
            expected = "a tensor without gradients: prepared layers have none"
            raise GraphError(refusal("prepare", "input", expected, "requires_grad=True"))
        alone, turned = input.dim() == 2, self.batch_first and input.dim() == 3
        x = input.unsqueeze(1) if alone else input.transpose(0, 1) if turned else input
        states = None if hx is None else self._by_layer(hx, alone)
        if alone and lengths is not None:
            lengths = as_lengths(self, lengths)
            lengths = lengths if lengths.dim() else lengths.reshape(1)
        if resets is None:
            output, ends = self.model(x.contiguous(), states, lengths)
        else:
            turned_resets = resets.unsqueeze(-1) if alone else resets.T if turned else resets
            own = checked_resets(self, turned_resets, (x.shape[0], x.shape[1]), x)
            output, ends = self._with_resets(x, states, lengths, own)
        output = output[:, 0] if alone else output.transpose(0, 1) if turned else output
        return output, self._joined(ends, alone)

    def _with_resets(
        self, x: Tensor, states: Any, lengths: Any, resets: Tensor
    ) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        """What a call of the model returns."""
        _, initial, counts = self.model.checked(Library(x), x, states, lengths)
        lengths = torch.tensor(counts or [x.shape[0]] * x.shape[1], dtype=torch.int64)
        if not lengths.any():
            return self.model(x.contiguous(), states, counts)
        segments, count = Segments(resets, lengths), self._directions
        before = [[torch.from_numpy(state) for state in layer] for layer in initial]
        first = [
            tuple(
                segments.first_states(state, start, count)
                for state, start in zip(*layer, strict=True)
            )
            for layer in zip(before, self.model.state_starts, strict=True)
        ]
        output, ends = self.model(segments.split(x), first, segments.lengths)
        last = [
            tuple(
                segments.last_states(end, state, count) for end, state in zip(*layer, strict=True)
            )
            for layer in zip(ends, before, strict=True)
        ]
        return segments.joined(output), last

    def _by_layer(self, hx: Any, alone: bool) -> list[tuple[Tensor | None, ...]]:
        """States [D·L,N,H] as one tuple of [N,D·H] for each layer."""
        count = len(self.model.state_names[0])
        given = (hx,) if count == 1 else hx
        if not isinstance(given, tuple | list) or len(given) != count:
            expected = f"a tuple of {', '.join(self.model.state_names[0])}"
            raise DTypeError(refusal("prepare", "hx", expected, describe(hx)))
        own = [self._of_layers(each, alone) for each in given]
        return list(zip(*own, strict=True))

    def _of_layers(self, state: Any, alone: bool) -> list[Tensor | None]:
        if state is None:
            return [None] * self.num_layers
        whole = state.unsqueeze(1) if alone and isinstance(state, Tensor) else state
        rows = self._directions * self.num_layers
        if not isinstance(whole, Tensor) or whole.dim() != 3 or len(whole) != rows:
            got = brackets(state.shape) if isinstance(state, Tensor) else describe(state)
            expected = f"[{rows},N,{self.hidden_size}]"
            raise ShapeError(refusal("prepare", "hx", expected, got))
        halves = whole.detach().unbind(0)
        step = self._directions
        return [torch.cat(halves[k : k + step], dim=-1) for k in range(0, rows, step)]

    def _joined(self, ends: list[tuple[Tensor, ...]], alone: bool) -> Any:
        found = [
            torch.stack([half for end in states for half in end.chunk(self._directions, dim=-1)])
            for states in zip(*ends, strict=True)
        ]
        found = [each[:, 0] for each in found] if alone else found
        return found[0] if len(found) == 1 else tuple(found)

    def extra_repr(self) -> str:
        return repr(self.model)


def _layers_of(module: Any) -> list[Layer]:
    if not isinstance(module, Recurrent):
        found = convert.load(module, source="torch")
        return found if isinstance(found, list) else [found]
    descriptor: Any = CellDescriptor(bidirectional=module.bidirectional, heads=module.heads)
    layers = []
    for number in range(module.num_layers):
        weights = module.joined(module.layer_parameters(number))
        names = ("recurrent_weight", "input_weight", "bias")
        tensors = dict(zip(names, weights[:3], strict=True))
        tensors |= {
            each.name: own for each, own in zip(module.operation.cell.own, weights.own, strict=True)
        }
        arrays = {k: v.detach().cpu().numpy() for k, v in tensors.items() if v is not None}
        layers.append(Layer(module.cell, descriptor, arrays))
    return layers


def _why_not(module: torch.nn.Module) -> str | None:
    """What a prepared layer would lack, or compute differently."""
    subclass = subclass_of(module, _KINDS)
    if subclass is not None:
        return subclass
    if torch.nn.utils.parametrize.is_parametrized(module):
        return "its parameters are parametrized"
    if has_hooks(module):
        return "it has hooks, which would be lost"
    types = {each.dtype for each in module.parameters()}
    if types - {torch.float32}:
        return f"its parameters are {', '.join(sorted(map(str, types)))}, not torch.float32"
    if isinstance(module, Layers) and getattr(module, "changes", None) is not None:
        return "it has zoneout or clip"
    if getattr(module, "return_cells", False):
        return "it returns the cell of every step"
    try:
        _layers_of(module)
    except ZStateError as error:
        return str(error)
    return None
