"""Recurrent nodes as MIL's rnn, lstm and gru; what these cannot express, as a loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from .. import convert
from ..convert.table import LSTM, RNN
from ..errors import OptionError
from ..graph import Tensor
from ..graph.ops.like import windows
from ..graph.ops.recurrent import refuse_extensions
from ..graph.tensor import Node
from .loop import loop
from .rows import Var

_STATES = ("init_state", "init_cell")


def recurrent(mb: Any, node: Node, tensors: Mapping[str, Var], readers: list[Node]) -> list[Var]:
    """The states [T,N,D·H], and of an LSTM the cells: all of them, or, where ``readers`` read no
    more, that of the last step, [1,N,H]."""
    refuse_extensions(node, "Core ML")
    layer = _layer(node, tensors)
    if layer is None or not all(is_last_step(reader) for reader in readers):
        return loop(mb, node, tensors)
    source = tensors["source"]
    shape = (source.shape[1], layer.directions * layer.hidden)
    states = [tensors.get(name) for name in (_STATES if node.op.name == LSTM else _STATES[:1])]
    begin = [mb.const(val=np.zeros(shape, np.float32)) if s is None else s for s in states]
    if layer.directions == 2 and node.op.name != LSTM:
        first, second = mb.split(x=begin[0], num_splits=2, axis=1)
        forth = _operation(mb, _direction(layer, 0), source, [first])[0]
        turned = mb.reverse(x=source, axes=[0])
        back = _operation(mb, _direction(layer, 1), turned, [second])[0]
        return [mb.concat(values=[forth, mb.reverse(x=back, axes=[0])], axis=2)]
    if node.attributes["descriptor"].reverse and layer.directions == 1:
        # By hand, because the output order of MIL's own reverse direction is unclear.
        source = mb.reverse(x=source, axes=[0])
    found = _operation(mb, layer, source, begin)
    return [found[0], *(mb.expand_dims(x=cell, axes=[0]) for cell in found[2:])]


def is_last_step(node: Node) -> bool:
    """Whether a node is a slice that takes no more than the last step, of one direction."""
    cells: Tensor = node.inputs[0]
    if node.op.name != "slice" or cells.node.attributes["descriptor"].bidirectional:
        return False
    steps = range(cells.shape[0] or 0)
    return list(steps[windows(node.attributes)[0]]) == list(steps[-1:])


def _layer(node: Node, tensors: Mapping[str, Var]) -> convert.Layer | None:
    """The layer of a node as MIL's operations have it, None if they have no such layer."""
    arrays = {
        name: value.val for name, value in tensors.items() if name not in ("source", *_STATES)
    }
    if "mask" in arrays or any(array is None for array in arrays.values()):
        return None
    descriptor = node.attributes["descriptor"]
    changes: dict[str, Any] = {"training": False}
    if hasattr(descriptor, "produce_cell"):
        changes["produce_cell"] = False
    if not descriptor.bidirectional:
        changes["reverse"] = False
    if "input_weight" not in arrays:  # the source is projected already
        width = arrays["recurrent_weight"].shape[-2] * (2 if descriptor.bidirectional else 1)
        arrays["input_weight"] = np.eye(width, dtype=np.float32)
    layer = convert.Layer(node.op.name, replace(descriptor, **changes), arrays)
    try:
        convert.facts(layer if node.op.name == LSTM else _direction(layer, 0), target="coreml")
    except OptionError:
        return None
    return layer


def _direction(layer: convert.Layer, index: int) -> convert.Layer:
    """One direction of a layer, as a layer."""
    parts = {name: layer.direction(name, index) for name in layer.tensors}
    tensors = {name: part for name, part in parts.items() if part is not None}
    return convert.Layer(layer.cell, replace(layer.descriptor, bidirectional=False), tensors)


def _operation(mb: Any, layer: convert.Layer, source: Var, begin: list[Var]) -> list[Var]:
    build = getattr(mb, {RNN: "rnn"}.get(layer.kind, layer.kind))
    initial = dict(zip(("initial_h", "initial_c"), begin, strict=False))
    weights, facts = (act(layer, target="coreml") for act in (convert.save, convert.facts))
    return list(build(x=source, output_sequence=True, **initial, **weights, **facts))
