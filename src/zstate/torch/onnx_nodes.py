"""Layers and cells inside torch.onnx.export: ONNX's own RNN, LSTM and GRU nodes.

torch.onnx.ops.symbolic_multi_out is torch's way for a model to name the nodes that it becomes. What
these nodes cannot express stays an operator of zstate, which needs a table of translations.

T time, N batch, I input_size, H hidden_size, D directions, G gates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..descriptors import AnyDescriptor
from ..errors import OptionError, refusal
from ..layout import gate_order
from ..operations import OPERATIONS, Operation
from .private import is_tracing

Hidden = tuple[Tensor | None, ...]  # h, or h and c
# Of one direction: the recurrent weight, the input weight, and the two biases or None.
Direction = tuple[Tensor, Tensor, Tensor | None, Tensor | None]


def is_exporting() -> bool:
    """Whether torch.onnx.export(dynamo=True) is reading the model."""
    return torch.compiler.is_compiling() and _is_onnx()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _is_onnx() -> bool:
    # Dynamo takes torch's own function for False.
    return bool(torch.onnx.is_in_onnx_export())


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _has_table(key: str) -> bool:
    from ..onnx.exporting import has_table

    return has_table(key)


def check_export(operation: Operation) -> None:
    """ONNX has no operators of zstate: without a table of translations an export fails, and the
    exporter would not say how to go on."""
    if is_tracing() and torch.onnx.is_in_onnx_export():
        way, given = "dynamo=True", "an operator that ONNX does not have"
    elif is_exporting() and not _has_table(operation.key):
        way = "custom_translation_table=zstate.onnx.torch_translations()"
        given = "options that ONNX's own nodes do not have"
    else:
        return
    expected = f"{way}, or a model of torch.nn's layers, which zstate.torch.restore(model) makes"
    if operation.key not in OPERATIONS:
        expected, given = f"{way}, called after the cell was defined", "a cell from equations"
    raise OptionError(refusal(operation.name, "torch.onnx.export", expected, given))


def words_of(cell: str, descriptor: AnyDescriptor) -> list[str] | None:
    """ONNX's activations for one direction; None if its nodes cannot express the layer, or this
    torch cannot name nodes."""
    from ..onnx.recurrent import ROW
    from ..onnx.writing import activations

    if not hasattr(torch.onnx, "ops") or descriptor.heads != 1:
        return None
    if getattr(descriptor, "flip_z", False) != ROW.flip_z:
        return None
    return activations(cell, descriptor)


def run_node(
    cell: str,
    descriptor: AnyDescriptor,
    words: list[str],
    source: Tensor,
    directions: Sequence[Direction],
    initial: Hidden,
    lengths: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The states [T,N,D·H] and the last ones, h or h and c, [D,N,H].

    ``initial`` [D,N,H] each, or None.
    """
    from ..onnx.writing import KINDS, node_attributes

    steps, batch, _ = source.shape
    count, hidden = len(directions), directions[0][0].shape[1]
    order = _order(cell, descriptor)
    inputs = [
        source,
        torch.stack([_ordered(each[1], order) for each in directions]),
        torch.stack([_ordered(each[0], order) for each in directions]),
        _biases(directions, order),
        None if lengths is None else lengths.to(torch.int32),
        *initial,
    ]
    while inputs[-1] is None:
        inputs.pop()
    shapes = [(steps, count, batch, hidden), *[(count, batch, hidden)] * len(initial)]
    state, *last = torch.onnx.ops.symbolic_multi_out(
        KINDS[cell],
        inputs,
        node_attributes(cell, descriptor, words, hidden, count),
        dtypes=[source.dtype] * len(shapes),
        shapes=shapes,
    )
    if lengths is not None:  # a sequence without steps: zeros in ONNX, its initial state here
        empty = (lengths == 0)[:, None]
        last = [
            end if first is None else torch.where(empty, first, end)
            for end, first in zip(last, initial, strict=True)
        ]
    if count == 1:
        return state.squeeze(1), tuple(last)
    return state.transpose(1, 2).flatten(2), tuple(last)


def _order(cell: str, descriptor: Any) -> list[int]:
    """The places of our gates in ONNX's order."""
    from ..onnx.recurrent import ROW

    return [gate_order(descriptor).index(gate) for gate in ROW.gates[cell]]


def _ordered(rows: Tensor, order: list[int]) -> Tensor:
    """[G·H,…] with the gates in another order."""
    size = rows.shape[0] // len(order)
    if order == sorted(order):
        return rows
    return torch.cat([rows[k * size : (k + 1) * size] for k in order])


def _biases(directions: Sequence[Direction], order: list[int]) -> Tensor | None:
    """[D,2·G·H], or None."""
    rows = []
    for _, _, first, second in directions:
        if first is None or second is None:
            return None
        rows.append(torch.cat([_ordered(first, order), _ordered(second, order)]))
    return torch.stack(rows)
