"""RNN, LSTM and GRU nodes as recurrent nodes of the graph.

Gate orders, biases and the meaning of attributes come from the ONNX row of ``zstate.convert``'s
table. A node becomes one recurrent node; where its directions differ in their activations, or
lengths are given, one for each direction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..convert import FRAMEWORKS
from ..convert.blocks import peephole_options
from ..convert.objects import CELLS
from ..convert.options import by_direction, options
from ..convert.table import LSTM
from ..descriptors import Activation, AnyDescriptor
from ..errors import OptionError, ShapeError, refusal
from ..graph import Graph, Tensor
from ..graph.ops.like import broadcast_like
from ..layout import DESCRIPTORS, brackets, gate_order
from ..types import Array
from .loading import Node
from .operators.indexing import steps_at, within_lengths, within_steps
from .sizes import expect_sizes

ROW = FRAMEWORKS["onnx"]
# The places of a node's inputs.
W, R, B, LENGTHS, H0, C0, P = range(1, 8)
_WEIGHTS = (W, R, B, P)
_NO_CLIP = float(np.finfo(np.float32).max)
_WORDS = {kind: word for word, kind in ROW.words.items()}


def activation_word(cell: str, kind: Activation) -> str:
    """ONNX's word for an activation."""
    if kind not in _WORDS:
        expected = f"one that ONNX is written with: {', '.join(_WORDS.values())}"
        raise OptionError(refusal(cell, "activation", expected, kind.name.lower()))
    return _WORDS[kind]


def gate_rows(theirs: Sequence[str], ours: Sequence[str], hidden: int) -> Array:
    """Which rows of a [G·H,…] array in one gate order make up the array in another."""
    blocks = [np.arange(hidden) + theirs.index(gate) * hidden for gate in ours]
    return np.concatenate(blocks)


def recurrent(node: Node) -> list[Tensor | None]:
    """Y [T,D,N,H], Y_h [D,N,H] and, of an LSTM, Y_c [D,N,H]; batch first with layout = 1."""
    g, cell = node.graph, CELLS[node.kind]
    attributes = {each.name: node.attribute(each.name) for each in node.proto.attribute}
    layout = int(attributes.pop("layout", 0))
    word = str(attributes.pop("direction", "forward")).lower()
    if word not in ("forward", "reverse", "bidirectional"):
        raise OptionError(refusal(node.kind, "direction", "one of ONNX's three", repr(word)))
    count = 2 if word == "bidirectional" else 1
    if attributes.get("clip", 0) >= _NO_CLIP:
        del attributes["clip"]
    told = [
        {**options(ROW, cell, each, count, True, None), "bidirectional": False}
        for each in by_direction(ROW, cell, attributes, count)
    ]
    if cell == LSTM and node.has(P):
        told = [each | peephole_options(ROW) for each in told]
    has_cell = cell == LSTM and node.wants(2)
    more: dict[str, Any] = {"produce_cell": True} if has_cell else {}
    descriptors = [DESCRIPTORS[cell](**each, **more) for each in told]
    source = node.tensor(0)
    if len(source.shape) != 3:
        raise ShapeError(refusal(node.kind, "X", "[T,N,I]", brackets(source.shape)))
    source = g.transpose(source, [1, 0, 2]) if layout else source
    hidden, shapes = _shapes(node, cell, count, attributes.get("hidden_size"))
    size = shapes[W][2]
    if size != -1 and source.shape[2] not in (None, size):
        raise ShapeError(refusal(node.kind, "X", f"[T,N,{size}]", brackets(source.shape)))
    tensors = _weights(node, cell, descriptors[0], count, hidden, shapes)
    tensors |= _states(node, layout, count)
    lengths = _lengths(node, source)
    if count == 2 and descriptors[0] == descriptors[1] and lengths is None:
        descriptor = replace(descriptors[0], bidirectional=True)
        found = _call(g, cell, source, tensors, descriptor, node.name)
        steps = g.split(found[0], [hidden, hidden], axis=2)
        ends = [  # where each direction ends
            [
                g.strided_slice(each, [-1, 0, 0], [None, None, hidden]),
                g.strided_slice(each, [0, 0, hidden], [1, None, 2 * hidden]),
            ]
            for each in found
        ]
    else:
        parts = [
            _one_direction(
                g,
                cell,
                source,
                _part(g, tensors, k, count, hidden),
                descriptor,
                is_backward=word == "reverse" or k == 1,
                lengths=lengths,
                name=node.name if count == 1 else f"{node.name}:{k}",
            )
            for k, descriptor in enumerate(descriptors)
        ]
        steps = [part[0] for part in parts]
        ends = [[part[1][k] for part in parts] for k in range(1 + has_cell)]
    axis = 2 if layout else 1
    if layout:
        steps = [g.transpose(each, [1, 0, 2]) for each in steps]
        ends = [[g.transpose(each, [1, 0, 2]) for each in pair] for pair in ends]
    state = g.stack(steps, axis=axis) if count == 2 else g.expand_dims(steps[0], axes=[axis])
    joined = [g.concat_tensors(pair, axis=axis - 1) if count == 2 else pair[0] for pair in ends]
    return [state, *joined]


def _shapes(node: Node, cell: str, count: int, told: Any) -> tuple[int, dict[int, tuple[int, ...]]]:
    """H, and the shapes that the weights are to have; -1 is a size that is not known yet."""
    sizes = [_shape(node, index)[2:3] for index in (R, W)]
    hidden, size = (each[0] if each and each[0] is not None else -1 for each in sizes)
    if hidden == -1 and (told is None or told < 0):
        got = brackets(_shape(node, R))
        raise ShapeError(refusal(node.kind, "R", "[D,G·H,H] whose H is known", got))
    if hidden != -1 and told not in (None, hidden):
        raise ShapeError(refusal(node.kind, "R", f"hidden_size = {told}", str(hidden)))
    hidden = int(told) if hidden == -1 else hidden
    rows = len(ROW.gates[cell]) * hidden
    return hidden, {
        W: (count, rows, size),
        R: (count, rows, hidden),
        B: (count, 2 * rows),
        P: (count, 3 * hidden),
    }


_NAMES = {W: "W", R: "R", B: "B", P: "P"}


def _shape(node: Node, index: int) -> tuple[Any, ...]:
    name = node.inputs[index] if node.has(index) else ""
    if name in node.owner.arrays:
        return node.owner.arrays[name].shape
    return node.tensor(index).shape


def _weights(
    node: Node,
    cell: str,
    descriptor: AnyDescriptor,
    count: int,
    hidden: int,
    shapes: Mapping[int, Sequence[int]],
) -> dict[str, Tensor]:
    """The weights of all directions in zstate's layout.

    An initialiser that only nodes like this one read is turned now, into a variable in zstate's
    layout; anything else is turned by nodes of the graph.
    """
    owner = node.owner
    places = [index for index in _WEIGHTS if node.has(index) and (index != P or cell == LSTM)]
    names = {index: node.inputs[index] for index in places}
    key = (node.kind, count, *names.values(), getattr(descriptor, "reset_after", None))
    if key in owner.shared:
        return dict(owner.shared[key])

    def checked(tensor: Tensor, index: int) -> Tensor:
        return expect_sizes(tensor, shapes[index], f"{node.kind} {_NAMES[index]}")

    if not all(owner.is_own(name, node.proto, index) for index, name in names.items()):
        tensors = {index: checked(node.tensor(index), index) for index in places}
        return _turned(node.graph, tensors, cell, descriptor, count, hidden)
    scratch = Graph()
    arrays = {k: checked(scratch.constant(owner.arrays[name]), k) for k, name in names.items()}
    turned = _turned(scratch, arrays, cell, descriptor, count, hidden)
    values = scratch.run({}, turned.values())
    made = {}
    for role, tensor in turned.items():
        name = names[_ORIGINS[role]] + (":secondary_bias" if role == "secondary_bias" else "")
        made[role] = owner.parameters[name] = node.graph.variable(values[tensor], name=name)
    owner.shared[key] = made
    return dict(made)


_ORIGINS = {
    "input_weight": W,
    "recurrent_weight": R,
    "bias": B,
    "secondary_bias": B,
    "peephole": P,
}


def _turned(
    g: Graph,
    tensors: Mapping[int, Tensor],
    cell: str,
    descriptor: AnyDescriptor,
    count: int,
    hidden: int,
) -> dict[str, Tensor]:
    """ONNX's W, R, B, P [D,…] as the tensors of the functional call, by nodes of a graph."""
    theirs, ours = tuple(ROW.gates[cell]), gate_order(descriptor)
    rows = len(ours) * hidden
    weight = _ordered(g, tensors[W], theirs, ours)
    matrix = _ordered(g, tensors[R], theirs, ours)
    found = {
        "input_weight": g.reshape(weight, (count * rows, -1)),
        "recurrent_weight": matrix if count == 2 else g.reshape(matrix, (rows, hidden)),
    }
    if B in tensors:
        own, second = g.split(tensors[B], [rows, rows], axis=1)
        if getattr(descriptor, "reset_after", False):
            place = theirs.index("o")
            before, inner, after = g.split(
                second, [place * hidden, hidden, rows - (place + 1) * hidden], axis=1
            )
            found["secondary_bias"] = g.reshape(inner, (count * hidden,))
            second = g.concat_tensors([before, inner * 0.0, after], axis=1)
        bias = _ordered(g, own + second, theirs, ours)
        found["bias"] = g.reshape(bias, (count * rows,))
    if P in tensors:
        zeros = g.constant(0.0, shape=(count, hidden), dtype=tensors[P].dtype)
        whole = g.concat_tensors([tensors[P], zeros], axis=1)
        peephole = _ordered(g, whole, (*ROW.peephole, "z"), ours)
        found["peephole"] = peephole if count == 2 else g.reshape(peephole, (rows,))
    return found


def _ordered(g: Graph, tensor: Tensor, theirs: Sequence[str], ours: Sequence[str]) -> Tensor:
    """[D,G·H,…] with the gates in another order."""
    if tuple(theirs) == tuple(ours):
        return tensor
    blocks = dict(zip(theirs, g.split(tensor, len(theirs), axis=1), strict=True))
    return g.concat_tensors([blocks[gate] for gate in ours], axis=1)


def _states(node: Node, layout: int, count: int) -> dict[str, Tensor]:
    """The initial states [N,D·H]."""
    g = node.graph
    found = {}
    for index, name in ((H0, "init_state"), (C0, "init_cell")):
        if not node.has(index):
            continue
        shape, axis = _shape(node, index), 1 if layout else 0
        if len(shape) != 3 or shape[axis] not in (None, count):
            expected = f"[N,{count},H]" if layout else f"[{count},N,H]"
            raise ShapeError(refusal(node.kind, name, expected, brackets(shape)))
        given, owner = node.inputs[index], node.owner
        if owner.is_own(given, node.proto, index) and len(owner.readers[given]) == 1:
            array = np.moveaxis(owner.arrays[given], axis, 1).reshape(-1, count * shape[2])
            found[name] = owner.parameters[given] = g.variable(array, name=given)
            continue
        tensor = node.tensor(index)
        pieces = [tensor] if count == 1 else g.split(tensor, [1, 1], axis=axis)
        pieces = [g.squeeze(each, axes=[axis]) for each in pieces]
        found[name] = g.concat_tensors(pieces, axis=1) if count == 2 else pieces[0]
    return found


def _lengths(node: Node, source: Tensor) -> Tensor | None:
    """sequence_lens as int64 [N]; None if all of them are known to be T."""
    if not node.has(LENGTHS):
        return None
    name, steps = node.inputs[LENGTHS], source.shape[0]
    if name in node.owner.arrays and np.all(node.owner.arrays[name] == steps):
        return None
    tensor = node.tensor(LENGTHS)
    if len(tensor.shape) != 1 or not tensor.dtype.startswith("int"):
        got = f"{tensor.dtype}{brackets(tensor.shape)}"
        raise ShapeError(refusal(node.kind, "sequence_lens", "integers [N]", got))
    tensor = expect_sizes(tensor, [node.size(source, 1)], f"{node.kind} sequence_lens")
    return within_steps(node, tensor, source)


def _part(
    g: Graph, tensors: Mapping[str, Tensor], index: int, count: int, hidden: int
) -> dict[str, Tensor]:
    """One direction's tensors."""
    if count == 1:
        return dict(tensors)
    found = {}
    for name, tensor in tensors.items():
        if name in ("init_state", "init_cell"):
            piece = g.split(tensor, [hidden, hidden], axis=1)[index]
        else:
            piece = g.split(tensor, 2, axis=0)[index]
        if name in ("recurrent_weight", "peephole"):
            piece = g.squeeze(piece, axes=[0])
        found[name] = piece
    return found


def _call(
    g: Graph,
    cell: str,
    source: Tensor,
    tensors: Mapping[str, Tensor],
    descriptor: AnyDescriptor,
    name: str,
) -> list[Tensor]:
    found: list[Tensor] = getattr(g, cell)(
        source, **tensors, descriptor=descriptor, name=name or None
    )
    return found


def _one_direction(
    g: Graph,
    cell: str,
    source: Tensor,
    tensors: Mapping[str, Tensor],
    descriptor: AnyDescriptor,
    *,
    is_backward: bool,
    lengths: Tensor | None,
    name: str,
) -> tuple[Tensor, list[Tensor]]:
    """The states [T,N,H] in the order of the input, and the last state, and cell, [1,N,H]."""
    if lengths is None:
        descriptor = replace(descriptor, reverse=is_backward)
        found = _call(g, cell, source, tensors, descriptor, name)
        last = [g.slice_tensor(each, 0, -1, 1) for each in found]
        return g.reverse(found[0], axes=[0]) if is_backward else found[0], last
    inside, turned = within_lengths(g, source, lengths)
    if is_backward:
        source = steps_at(g, source, turned)
    found = _call(g, cell, source, tensors, descriptor, name)
    end = g.expand_dims(g.maximum(lengths - 1, 0), axes=[0, 2])  # [1,N,1]
    last = []
    for each in found:
        first = g.slice_tensor(each, 0, 0, 1)  # for its shape [1,N,H]
        taken = g.gather_along_axis(each, broadcast_like(g, end, first), 0)
        last.append(g.select(g.greater_than(g.expand_dims(lengths, axes=[0, 2]), 0), taken, 0.0))
    state = found[0]
    if is_backward:
        state = steps_at(g, state, turned)
    return g.select(g.expand_dims(inside, axes=[2]), state, 0.0), last
