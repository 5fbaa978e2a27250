"""RNN, LSTM and GRU nodes as recurrent nodes of the graph.

Gate orders, biases and the meaning of attributes come from the ONNX row of ``zstate.convert``'s
table. A node becomes one recurrent node; where its directions differ in their activations, or
lengths are given, one for each direction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..convert import FRAMEWORKS
from ..convert.blocks import peephole_options
from ..convert.objects import CELLS
from ..convert.options import by_direction, options
from ..convert.table import LSTM
from ..descriptors import AnyDescriptor
from ..errors import OptionError, ShapeError, refusal
from ..graph import Graph, Tensor
from ..graph.ops.like import broadcast_like
from ..layout import DESCRIPTORS, brackets, gate_order
from .node import Node
from .operators.indexing import steps_at, within_lengths, within_steps
from .sizes import expect_sizes

ROW = FRAMEWORKS["onnx"]
# The places of a node's inputs.
W, R, B, LENGTHS, H0, C0, P = range(1, 8)
_WEIGHTS = {W: "W", R: "R", B: "B", P: "P"}
_ORIGINS = {"input_weight": W, "recurrent_weight": R, "bias": B, "secondary_bias": B, "peephole": P}
_NO_CLIP = float(np.finfo(np.float32).max)


def recurrent(node: Node) -> list[Tensor | None]:
    """Y [T,D,N,H], Y_h [D,N,H] and, of an LSTM, Y_c [D,N,H]; batch first with layout = 1."""
    return _Layer(node).results()


class _Layer:
    """A node while it is read; count is D, the number of its directions."""

    def __init__(self, node: Node) -> None:
        self.node, self.g, self.cell = node, node.graph, CELLS[node.kind]
        attributes = {each.name: node.attribute(each.name) for each in node.proto.attribute}
        self.batch_first = bool(attributes.pop("layout", 0))
        self.word = str(attributes.pop("direction", "forward")).lower()
        if self.word not in ("forward", "reverse", "bidirectional"):
            got = repr(self.word)
            raise OptionError(refusal(node.kind, "direction", "one of ONNX's three", got))
        self.count = 2 if self.word == "bidirectional" else 1
        if attributes.get("clip", 0) >= _NO_CLIP:
            del attributes["clip"]
        self.descriptors = self._described(attributes)
        source = node.tensor(0)
        if len(source.shape) != 3:
            raise ShapeError(refusal(node.kind, "X", "[T,N,I]", brackets(source.shape)))
        self.source = self._turned_around([source])[0]
        self.hidden, self.shapes = self._shapes(attributes.get("hidden_size"))
        size = self.shapes[W][2]
        if size != -1 and self.source.shape[2] not in (None, size):
            got = brackets(self.source.shape)
            raise ShapeError(refusal(node.kind, "X", f"[T,N,{size}]", got))

    def results(self) -> list[Tensor | None]:
        """Y, Y_h and Y_c."""
        g, axis, first = self.g, 2 if self.batch_first else 1, self.descriptors[0]
        tensors, lengths = self._weights() | self._states(), self._lengths()
        if self.count == 2 and first == self.descriptors[1] and lengths is None:
            steps, ends = self._together(tensors)
        else:
            parts = [self._one_direction(k, tensors, lengths) for k in range(self.count)]
            steps = [part[0] for part in parts]
            ends = [[*pair] for pair in zip(*(part[1] for part in parts), strict=True)]
        steps, ends = self._turned_around(steps), [self._turned_around(pair) for pair in ends]
        if self.count == 1:
            return [g.expand_dims(steps[0], axes=[axis]), *(end for (end,) in ends)]
        return [g.stack(steps, axis=axis), *(g.concat_tensors(e, axis=axis - 1) for e in ends)]

    def _described(self, attributes: dict[str, Any]) -> list[AnyDescriptor]:
        """The descriptor of each direction."""
        more: dict[str, Any] = {"bidirectional": False}
        if self.cell == LSTM and self.node.has(P):
            more |= peephole_options(ROW)
        if self.cell == LSTM and self.node.wants(2):
            more["produce_cell"] = True
        return [
            DESCRIPTORS[self.cell](**options(ROW, self.cell, each, self.count, True, None) | more)
            for each in by_direction(ROW, self.cell, attributes, self.count)
        ]

    def _turned_around(self, tensors: list[Tensor]) -> list[Tensor]:
        """From the layout of the node to time first, and back."""
        turn = partial(self.g.transpose, permutation=[1, 0, 2])
        return [*map(turn, tensors)] if self.batch_first else tensors

    def _shapes(self, told: Any) -> tuple[int, dict[int, tuple[int, ...]]]:
        """H, and the shapes that the weights are to have; -1 is a size that is not known yet."""
        kind, count = self.node.kind, self.count
        sizes = [self._shape(index)[2:3] for index in (R, W)]
        hidden, size = (each[0] if each and each[0] is not None else -1 for each in sizes)
        if hidden == -1 and (told is None or told < 0):
            got = brackets(self._shape(R))
            raise ShapeError(refusal(kind, "R", "[D,G·H,H] whose H is known", got))
        if hidden != -1 and told not in (None, hidden):
            raise ShapeError(refusal(kind, "R", f"hidden_size = {told}", str(hidden)))
        hidden = int(told) if hidden == -1 else hidden
        rows = len(ROW.gates[self.cell]) * hidden
        return hidden, {
            W: (count, rows, size),
            R: (count, rows, hidden),
            B: (count, 2 * rows),
            P: (count, 3 * hidden),
        }

    def _shape(self, index: int) -> tuple[Any, ...]:
        node = self.node
        name = node.inputs[index] if node.has(index) else ""
        if name in node.owner.arrays:
            return node.owner.arrays[name].shape
        return node.tensor(index).shape

    def _weights(self) -> dict[str, Tensor]:
        """The weights of all directions in zstate's layout.

        An initialiser that only nodes like this one read is turned now, into a variable in zstate's
        layout; anything else is turned by nodes of the graph.
        """
        node, owner = self.node, self.node.owner
        places = [k for k in _WEIGHTS if node.has(k) and (k != P or self.cell == LSTM)]
        names = {index: node.inputs[index] for index in places}
        reset_after = getattr(self.descriptors[0], "reset_after", None)
        key = (node.kind, self.count, *names.values(), reset_after)
        if key in owner.shared:
            return dict(owner.shared[key])

        def checked(tensor: Tensor, index: int) -> Tensor:
            return expect_sizes(tensor, self.shapes[index], f"{node.kind} {_WEIGHTS[index]}")

        if not all(owner.is_own(name, node.proto, index) for index, name in names.items()):
            tensors = {index: checked(node.tensor(index), index) for index in places}
            return self._turned(self.g, tensors)
        scratch = Graph()
        arrays = {k: checked(scratch.constant(owner.arrays[name]), k) for k, name in names.items()}
        turned = self._turned(scratch, arrays)
        values = scratch.run({}, turned.values())
        made = {}
        for role, tensor in turned.items():
            name = names[_ORIGINS[role]] + (":secondary_bias" if role == "secondary_bias" else "")
            made[role] = owner.parameters[name] = self.g.variable(values[tensor], name=name)
        owner.shared[key] = made
        return dict(made)

    def _turned(self, g: Graph, tensors: Mapping[int, Tensor]) -> dict[str, Tensor]:
        """ONNX's W, R, B, P [D,…] as the tensors of the functional call, by nodes of a graph."""
        count, hidden, descriptor = self.count, self.hidden, self.descriptors[0]
        theirs, ours = tuple(ROW.gates[self.cell]), gate_order(descriptor)
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
                place = theirs.index("o") * hidden
                sizes = [place, hidden, rows - place - hidden]
                before, inner, after = g.split(second, sizes, axis=1)
                found["secondary_bias"] = g.reshape(inner, (count * hidden,))
                second = g.concat_tensors([before, inner * 0.0, after], axis=1)
            bias = _ordered(g, own + second, theirs, ours)
            found["bias"] = g.reshape(bias, (count * rows,))
        if P in tensors:
            whole = g.pad_tensor(tensors[P], [0, 0], [0, hidden])
            peephole = _ordered(g, whole, (*ROW.peephole, "z"), ours)
            found["peephole"] = peephole if count == 2 else g.reshape(peephole, (rows,))
        return found

    def _states(self) -> dict[str, Tensor]:
        """The initial states [N,D·H]."""
        node, owner, g, count = self.node, self.node.owner, self.g, self.count
        found = {}
        for index, name in ((H0, "init_state"), (C0, "init_cell")):
            if not node.has(index):
                continue
            shape, axis = self._shape(index), 1 if self.batch_first else 0
            if len(shape) != 3 or shape[axis] not in (None, count):
                expected = f"[N,{count},H]" if self.batch_first else f"[{count},N,H]"
                raise ShapeError(refusal(node.kind, name, expected, brackets(shape)))
            given = node.inputs[index]
            if owner.is_own(given, node.proto, index) and len(owner.readers[given]) == 1:
                array = np.moveaxis(owner.arrays[given], axis, 1).reshape(-1, count * shape[2])
                found[name] = owner.parameters[given] = g.variable(array, name=given)
                continue
            tensor = node.tensor(index)
            pieces = [tensor] if count == 1 else g.split(tensor, [1, 1], axis=axis)
            pieces = [g.squeeze(each, axes=[axis]) for each in pieces]
            found[name] = g.concat_tensors(pieces, axis=1) if count == 2 else pieces[0]
        return found

    def _lengths(self) -> Tensor | None:
        """sequence_lens as int64 [N]; None if all of them are known to be T."""
        node, source = self.node, self.source
        if not node.has(LENGTHS):
            return None
        name = node.inputs[LENGTHS]
        if name in node.owner.arrays and np.all(node.owner.arrays[name] == source.shape[0]):
            return None
        tensor = node.tensor(LENGTHS)
        if len(tensor.shape) != 1 or not tensor.dtype.startswith("int"):
            got = f"{tensor.dtype}{brackets(tensor.shape)}"
            raise ShapeError(refusal(node.kind, "sequence_lens", "integers [N]", got))
        tensor = expect_sizes(tensor, [node.size(source, 1)], f"{node.kind} sequence_lens")
        return within_steps(node, tensor, source)

    def _part(self, tensors: Mapping[str, Tensor], index: int) -> dict[str, Tensor]:
        """One direction's tensors."""
        if self.count == 1:
            return dict(tensors)
        found = {}
        for name, tensor in tensors.items():
            if name in ("init_state", "init_cell"):
                piece = self.g.split(tensor, [self.hidden] * 2, axis=1)[index]
            else:
                piece = self.g.split(tensor, 2, axis=0)[index]
            if name in ("recurrent_weight", "peephole"):
                piece = self.g.squeeze(piece, axes=[0])
            found[name] = piece
        return found

    def _call(
        self, source: Tensor, tensors: Mapping[str, Tensor], descriptor: AnyDescriptor, mark: str
    ) -> list[Tensor]:
        name = f"{self.node.name}{mark}" or None
        build = getattr(self.g, self.cell)
        found: list[Tensor] = build(source, **tensors, descriptor=descriptor, name=name)
        return found

    def _together(self, tensors: Mapping[str, Tensor]) -> tuple[list[Tensor], list[list[Tensor]]]:
        """Two directions as one node: the states of each, and where each ends."""
        g, hidden = self.g, self.hidden
        both = replace(self.descriptors[0], bidirectional=True)
        found = self._call(self.source, tensors, both, "")
        ends = [
            [
                g.strided_slice(each, [-1, 0, 0], [None, None, hidden]),
                g.strided_slice(each, [0, 0, hidden], [1, None, 2 * hidden]),
            ]
            for each in found
        ]
        return g.split(found[0], [hidden, hidden], axis=2), ends

    def _one_direction(
        self, index: int, every: Mapping[str, Tensor], lengths: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        """The states [T,N,H] in the order of the input, and the last state, and cell, [1,N,H]."""
        g, source, tensors = self.g, self.source, self._part(every, index)
        descriptor, mark = self.descriptors[index], "" if self.count == 1 else f":{index}"
        is_backward = self.word == "reverse" or index == 1
        if lengths is None:
            descriptor = replace(descriptor, reverse=is_backward)
            found = self._call(source, tensors, descriptor, mark)
            last = [g.slice_tensor(each, 0, -1, 1) for each in found]
            return g.reverse(found[0], axes=[0]) if is_backward else found[0], last
        inside, turned = within_lengths(g, source, lengths)
        if is_backward:
            source = steps_at(g, source, turned)
        found = self._call(source, tensors, descriptor, mark)
        end = g.expand_dims(g.maximum(lengths - 1, 0), axes=[0, 2])  # [1,N,1]
        has_steps = g.greater_than(g.expand_dims(lengths, axes=[0, 2]), 0)
        last = []
        for each in found:
            first = g.slice_tensor(each, 0, 0, 1)  # for its shape [1,N,H]
            taken = g.gather_along_axis(each, broadcast_like(g, end, first), 0)
            last.append(g.select(has_steps, taken, 0.0))
        state = steps_at(g, found[0], turned) if is_backward else found[0]
        return g.select(g.expand_dims(inside, axes=[2]), state, 0.0), last


def _ordered(g: Graph, tensor: Tensor, theirs: Sequence[str], ours: Sequence[str]) -> Tensor:
    """[D,G·H,…] with the gates in another order."""
    if tuple(theirs) == tuple(ours):
        return tensor
    blocks = dict(zip(theirs, g.split(tensor, len(theirs), axis=1), strict=True))
    return g.concat_tensors([blocks[gate] for gate in ours], axis=1)
