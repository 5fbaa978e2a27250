"""Recurrent nodes of a graph as ONNX's RNN, LSTM and GRU; what these cannot express, as a Scan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..arrays import NUMPY
from ..convert.objects import CELLS
from ..convert.options import in_a_list
from ..convert.table import GRU, LSTM
from ..descriptors import AnyDescriptor
from ..errors import OptionError, ShapeError, refusal
from ..graph import Tensor
from ..graph.ops.recurrent import title_of
from ..graph.tensor import Node
from ..layout import brackets, gate_order
from .emitter import Emitter, Value
from .quantised import DOMAIN, KIND, small
from .recurrent import ROW
from .scan import scan

KINDS = {cell: kind for kind, cell in CELLS.items()}
_WORDS = {kind: word for word, kind in ROW.words.items()}  # of every activation


def recurrent(e: Emitter, node: Node) -> Sequence[Value | None]:
    """The values of a recurrent node's results; None for one that has no readers."""
    weight = node.inputs[node.attributes["names"].index("recurrent_weight")]
    if None in weight.shape:
        got = brackets(weight.shape)
        raise ShapeError(refusal(title_of(node), "recurrent_weight", "known sizes", got))
    for tensor in node.results:
        if tensor.name.endswith(":training_state") and _is_read(e, tensor):
            expected = "no readers, because only gradient operations use it"
            raise OptionError(refusal(node.op.name, "training_state", expected, "one"))
    words, ends = native_words(e, node), _last_cells(e, node)
    if e.int8 and (node.op.name != LSTM or words is None or ends is None):
        expected = f"an LSTM that {KIND} can express"
        raise OptionError(refusal(title_of(node), "weights", expected, "int8"))
    if words is None or ends is None:
        return scan(e, node)
    return _Layer(e, node).results(words, ends)


def native_words(e: Emitter, node: Node) -> list[str] | None:
    """The activations of ONNX's own node for one direction; None if it cannot express this one."""
    words = activations(node.op.name, node.attributes["descriptor"])
    return words if words is not None and _is_plain(e, node) else None


def _is_read(e: Emitter, tensor: Tensor) -> bool:
    return bool(e.readers.get(tensor)) or tensor in e.outputs.values()


def activations(cell: str, descriptor: AnyDescriptor) -> list[str] | None:
    """ONNX's words for one direction; None without such a cell, or where gates cannot share one."""
    words = []
    if cell not in ROW.activations:
        return None
    for names in ROW.activations[cell].values():
        kinds = {getattr(descriptor, name) for name in names}
        if len(kinds) > 1:
            return None
        words.append(_WORDS[kinds.pop()])
    return words


def _is_plain(e: Emitter, node: Node) -> bool:
    """Whether ONNX's own node computes the same."""
    names, descriptor = node.attributes["names"], node.attributes["descriptor"]
    if {"mask", "resets"} & {*names} or descriptor.heads != 1:
        return False
    if getattr(descriptor, "flip_z", False) != ROW.flip_z:
        return False
    if "peephole" not in names:
        return True
    value = e.value(node.inputs[names.index("peephole")])
    if not isinstance(value, np.ndarray):
        return False
    order = gate_order(descriptor)
    hidden = node.inputs[names.index("recurrent_weight")].shape[-1]
    whole = value.reshape(-1, len(order), hidden)
    # ONNX's cell gate has no peephole, and its output gate looks at c[t].
    zeros = "z" if descriptor.peephole_on_new_cell else "zo"
    return not any(np.any(whole[:, order.index(gate)]) for gate in zeros)


_Ends = list[tuple[Node, int, int, int]]


def _last_cells(e: Emitter, node: Node) -> _Ends | None:
    """The readers of an LSTM's cells if all of them read the last step of a direction, which is
    all that ONNX gives. Else None."""
    cells = [tensor for tensor in node.results if tensor.name.endswith(":cell")]
    if not cells:
        return []
    found = _ends(e, node, cells[0])
    is_all = cells[0] not in e.outputs.values() and len(found) == len(e.readers.get(cells[0], []))
    return found if is_all else None


def _ends(e: Emitter, node: Node, tensor: Tensor) -> _Ends:
    """The readers of a result that read the last step of a direction: (slice, direction, first and
    last feature)."""
    found: _Ends = []
    steps, _, width = tensor.shape
    assert width is not None
    hidden = width // 2 if node.attributes["descriptor"].bidirectional else width
    for reader in e.readers.get(tensor, []):
        if reader.op.name != "slice":
            continue
        a = reader.attributes
        first, last, _ = slice(a["starts"][2], a["ends"][2]).indices(width)
        direction = first // hidden
        window = (a["starts"][0], a["ends"][0])
        is_end = window in ((-1, None), (None if steps is None else steps - 1, steps))
        if direction == 1:
            is_end = window == (0, 1)
        whole = a["starts"][1] == 0 and a["ends"][1] is None and set(a["strides"]) == {1}
        if not is_end or not whole or last > (direction + 1) * hidden:
            continue
        found.append((reader, direction, first - direction * hidden, last - direction * hidden))
    return found


class _Layer:
    """A node while it becomes ONNX's; count is D, the number of its directions."""

    def __init__(self, e: Emitter, node: Node) -> None:
        self.e, self.node, self.cell = e, node, node.op.name
        self.descriptor = node.attributes["descriptor"]
        self.tensors = dict(zip(node.attributes["names"], node.inputs, strict=True))
        self.count = 2 if self.descriptor.bidirectional else 1
        hidden = self.tensors["recurrent_weight"].shape[-1]
        assert hidden is not None
        self.hidden = hidden
        self.ours, self.theirs = gate_order(self.descriptor), tuple(ROW.gates[self.cell])
        self.rows = len(self.ours) * hidden
        self.dtype = NUMPY.dtype(self.tensors["source"].dtype)

    def results(self, words: list[str], ends: _Ends) -> Sequence[Value | None]:
        """The values of the node's results; ``ends`` are the readers of its last cells."""
        e, node, count, hidden = self.e, self.node, self.count, self.hidden
        is_reverse = self.descriptor.reverse and count == 1
        source, inputs, kind = e.name(self.tensors["source"]), self._inputs(), KINDS[self.cell]
        attributes = node_attributes(self.cell, self.descriptor, words, hidden, count)
        if e.int8:
            kind, inputs, attributes["domain"] = KIND, _in_int8(e, inputs), DOMAIN
        while inputs and not inputs[-1]:
            inputs.pop()
        outputs = 3 if self.cell == LSTM else 2
        made = e.emit(kind, source, *inputs, count=outputs, **attributes)
        state = made[0]
        if isinstance(node, Node):  # what a loaded model reads is mostly what the node gives
            _name_whole(e, node.results[0], state, count, is_reverse)
            _name_ends(e, _ends(e, node, node.results[0]), made[1], count, hidden)
            _name_ends(e, ends, made[-1], count, hidden)
        if count == 1:
            state = e.emit("Squeeze", state, e.ints(1))
            state = e.flip(state, [0]) if is_reverse else state
        else:
            state = e.reshape(e.transpose(state, 0, 2, 1, 3), 0, 0, count * hidden)
        return [state, *[None] * (len(node.results) - 1)]

    def _inputs(self) -> list[Any]:
        """W, R, B, the empty place of the lengths, the initial states, P."""
        found = [self._weight(), self._matrix(), self._bias(), "", self._state("init_state")]
        return [*found, self._state("init_cell"), self._peephole()] if self.cell == LSTM else found

    def _gates(self, value: Value, *shape: int, order: tuple[str, ...] = ()) -> Value:
        """[D·G·H,…] as [D,G·H,…] with the gates in ONNX's order."""
        whole = self.e.reshape(value, self.count, self.rows, *shape)
        places = [self.ours.index(gate) for gate in order or self.theirs]
        index = np.arange(self.rows).reshape(-1, self.hidden)[places].ravel()
        return self.e.take(whole, index, 1)

    def _weight(self) -> Any:
        if "input_weight" not in self.tensors:  # the source is projected already
            width = self.count * self.rows
            return self.e.named(self._gates(np.eye(width, dtype=self.dtype), width), "identity")
        tensor = self.tensors["input_weight"]
        width = -1 if tensor.shape[1] is None else tensor.shape[1]
        return self.e.named(self._gates(self.e.value(tensor), width), tensor.name)

    def _matrix(self) -> Any:
        tensor = self.tensors["recurrent_weight"]
        return self.e.named(self._gates(self.e.value(tensor), self.hidden), tensor.name)

    def _bias(self) -> Any:
        """Both biases in one array; the second is the one that the reset gate multiplies."""
        e, tensors = self.e, self.tensors
        if not {"bias", "secondary_bias"} & {*tensors}:
            return ""
        zeros: Value = np.zeros((self.count, self.rows), self.dtype)
        first = self._gates(e.value(tensors["bias"])) if "bias" in tensors else zeros
        second = zeros
        if "secondary_bias" in tensors:
            inner = e.reshape(e.value(tensors["secondary_bias"]), self.count, self.hidden)
            place = self.theirs.index("o") * self.hidden
            second = e.concat([zeros[:, :place], inner, zeros[:, place + self.hidden :]], 1)
        name = tensors["bias"].name if "bias" in tensors else "bias"
        return self.e.named(e.concat([first, second], 1), name)

    def _state(self, name: str) -> Any:
        e, tensor = self.e, self.tensors.get(name)
        if tensor is None:
            return ""
        if (whole := _by_direction(tensor, self.count)) is not None:
            return e.name(whole)
        batch = 0 if tensor.shape[0] is None else tensor.shape[0]  # 0 keeps it when the model runs
        states = e.reshape(e.value(tensor), batch, self.count, self.hidden)
        return self.e.named(e.transpose(states, 1, 0, 2), tensor.name)

    def _peephole(self) -> Any:
        if "peephole" not in self.tensors:
            return ""
        tensor = self.tensors["peephole"]
        gates = self._gates(self.e.value(tensor), order=tuple(ROW.peephole))
        return self.e.named(gates, tensor.name)


def _in_int8(e: Emitter, inputs: list[str]) -> list[str]:
    """The inputs of a DynamicQuantizeLSTM behind X, of those of an LSTM."""
    scales: list[str] = []
    found = [*inputs]
    for place, name in enumerate(inputs[:2]):
        integers, scale, zero = small(name, e.known(name))
        found[place] = e.named(integers, name)
        scales += [e.named(scale, f"{name}:scale"), e.named(zero, f"{name}:zero")]
    return [*found, *[""] * (7 - len(found)), *scales]


def _name_whole(e: Emitter, tensor: Tensor, name: str, count: int, is_reverse: bool) -> None:
    """Y [T,D,N,H] for the nodes that make it of the states [T,N,D·H]."""
    for reader in e.readers.get(tensor, []):
        if is_reverse and reader.op.name == "reverse" and reader.attributes["axes"] == (0,):
            _name_whole(e, reader.results[0], name, count, False)
        elif count == 1 and not is_reverse and reader.op.name == "expand_dims":
            if tuple(reader.attributes["axes"]) == (1,):
                e.names[reader.results[0]] = name
        elif count == 2 and reader.op.name == "split" and len(reader.results) == 2:
            for next_reader in e.readers.get(reader.results[0], []):
                if (
                    next_reader.op.name == "stack"
                    and next_reader.attributes["axis"] == 1
                    and list(next_reader.inputs) == reader.results
                ):
                    e.names[next_reader.results[0]] = name


def _name_ends(e: Emitter, ends: _Ends, name: str, count: int, hidden: int) -> None:
    """Y_h or Y_c [D,N,H], or parts of it, for the nodes that read the last steps."""
    for reader, direction, first, last in ends:
        (tensor,) = reader.results
        if (first, last) != (0, hidden) or count == 2:
            value = e.nth(name, direction, 1, 0)  # [1,N,H]
            e.names[tensor] = e.part(value, first, last, 2) if last - first < hidden else value
        else:
            e.names[tensor] = name
    pair = [each.results[0] for each, _, first, last in ends if last - first == hidden]
    for reader in e.readers.get(pair[0], []) if len(pair) == 2 == count else []:
        is_joined = reader.op.name == "concat_tensors" and list(reader.inputs) == pair
        if is_joined and reader.attributes["axis"] == 0:
            e.names[reader.results[0]] = name


def node_attributes(
    cell: str, descriptor: AnyDescriptor, words: list[str], hidden: int, count: int
) -> dict[str, Any]:
    """The attributes of ONNX's own node; ``words`` are the activations of one direction."""
    is_reverse = descriptor.reverse and count == 1
    attributes: dict[str, Any] = {
        "hidden_size": hidden,
        **in_a_list(words * count),
        "direction": "bidirectional" if count == 2 else "reverse" if is_reverse else "forward",
    }
    if cell == GRU:
        attributes[ROW.reset_fact] = int(getattr(descriptor, "reset_after", False))
    return attributes


def _by_direction(tensor: Any, count: int) -> Tensor | None:
    """The [D,N,H] that recurrent.py makes an initial state [N,D·H] of; None if it is another's."""
    if not isinstance(tensor, Tensor):
        return None
    joined = tensor.node
    is_joined = joined.op.name == "concat_tensors" and joined.attributes["axis"] == 1
    if count == 2 and not (is_joined and len(joined.inputs) == 2):
        return None
    nodes = [piece.node for piece in (joined.inputs if count == 2 else (tensor,))]
    if any(n.op.name != "squeeze" or tuple(n.attributes["axes"]) != (0,) for n in nodes):
        return None
    inner = [node.inputs[0] for node in nodes]
    if count == 1:
        return inner[0]
    split = inner[0].node
    is_whole = split.op.name == "split" and split.results == inner
    return split.inputs[0] if is_whole and split.attributes["axis"] == 0 else None
