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
from .recurrent import ROW, activation_word, gate_rows
from .scan import scan

KINDS = {cell: kind for kind, cell in CELLS.items()}


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
    return _node(e, node, words, ends)


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
        words.append(activation_word(cell, kinds.pop()))
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


def _node(e: Emitter, node: Node, words: list[str], ends: _Ends) -> Sequence[Value | None]:
    cell, descriptor = node.op.name, node.attributes["descriptor"]
    tensors = dict(zip(node.attributes["names"], node.inputs, strict=True))
    count = 2 if descriptor.bidirectional else 1
    hidden = tensors["recurrent_weight"].shape[-1]
    assert hidden is not None
    is_reverse = descriptor.reverse and count == 1
    source = e.name(tensors["source"])
    inputs = _weights(e, cell, descriptor, tensors, count, hidden)
    for name in ("init_state", "init_cell") if cell == LSTM else ("init_state",):
        state = ""
        if name in tensors and (whole := _by_direction(tensors[name], count)) is not None:
            state = e.name(whole)
        elif name in tensors:
            whole = e.reshape(e.value(tensors[name]), *_rows(tensors[name]), count, hidden)
            state = e.named(e.transpose(whole, 1, 0, 2), tensors[name].name)
        inputs.append(state)
    peephole = ""
    if "peephole" in tensors:
        value = e.reshape(e.value(tensors["peephole"]), count, 4 * hidden)
        order = gate_rows(gate_order(descriptor), tuple(ROW.peephole), hidden)
        peephole = e.named(e.take(value, order, 1), tensors["peephole"].name)
    if cell == LSTM:
        inputs.append(peephole)
    attributes = node_attributes(cell, descriptor, words, hidden, count)
    kind = KIND if e.int8 else KINDS[cell]
    if e.int8:
        inputs, attributes = _in_int8(e, inputs), {**attributes, "domain": DOMAIN}
    while inputs and not inputs[-1]:
        inputs.pop()
    outputs = 3 if cell == LSTM else 2
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
        state = e.emit("Transpose", state, perm=[0, 2, 1, 3])
        state = e.emit("Reshape", state, e.ints(0, 0, count * hidden))
    return [state, *[None] * (len(node.results) - 1)]


def _in_int8(e: Emitter, inputs: list[str]) -> list[str]:
    """The inputs of a DynamicQuantizeLSTM behind X, of those of an LSTM."""
    scales: list[str] = []
    found = [*inputs]
    for place, name in enumerate(inputs[:2]):
        integers, *others = small(name, e.known(name))
        found[place] = e.named(integers, name)
        scales += [
            e.named(each, f"{name}:{what}")
            for each, what in zip(others, ("scale", "zero"), strict=True)
        ]
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
    pieces = tensor.node.inputs if count == 2 else (tensor,)
    if count == 2 and (tensor.node.op.name, tensor.node.attributes.get("axis")) != (
        "concat_tensors",
        1,
    ):
        return None
    inner = [
        piece.node.inputs[0]
        for piece in pieces
        if piece.node.op.name == "squeeze" and tuple(piece.node.attributes["axes"]) == (0,)
    ]
    if len(inner) != count:
        return None
    if count == 1:
        return inner[0]
    split = inner[0].node
    is_whole = split.op.name == "split" and split.results == inner
    return split.inputs[0] if is_whole and split.attributes["axis"] == 0 else None


def _rows(tensor: Tensor) -> tuple[int, ...]:
    """N of an initial state for a reshape: a 0 keeps an axis as it is, when the model runs."""
    return (0 if tensor.shape[0] is None else tensor.shape[0],)


def _weights(
    e: Emitter,
    cell: str,
    descriptor: AnyDescriptor,
    tensors: dict[str, Tensor],
    count: int,
    hidden: int,
) -> list[str]:
    """W, R, B and the empty place of the lengths."""
    ours, theirs = gate_order(descriptor), tuple(ROW.gates[cell])
    rows, order = len(ours) * hidden, gate_rows(ours, theirs, hidden)
    dtype = NUMPY.dtype(tensors["source"].dtype)
    if "input_weight" in tensors:
        width = tensors["input_weight"].shape[1]
        assert width is not None
        weight: Value = e.value(tensors["input_weight"])
    else:  # the source is projected already
        width, weight = count * rows, np.eye(count * rows, dtype=dtype)
    weight = e.take(e.reshape(weight, count, rows, width), order, 1)
    matrix = e.reshape(e.value(tensors["recurrent_weight"]), count, rows, hidden)
    bias = ""
    if "bias" in tensors or "secondary_bias" in tensors:
        first: Value = np.zeros((count, rows), dtype)
        if "bias" in tensors:
            first = e.take(e.reshape(e.value(tensors["bias"]), count, rows), order, 1)
        second: Value = np.zeros((count, rows), dtype)
        if "secondary_bias" in tensors:
            inner = e.reshape(e.value(tensors["secondary_bias"]), count, hidden)
            place = theirs.index("o") * hidden
            before, after = np.zeros((count, place)), np.zeros((count, rows - hidden - place))
            pieces: list[Value] = [before.astype(dtype), inner, after.astype(dtype)]
            second = e.concat(pieces, 1)
        name = tensors["bias"].name if "bias" in tensors else "bias"
        bias = e.named(e.concat([first, second], 1), name)
    hint = tensors["input_weight"].name if "input_weight" in tensors else "identity"
    return [
        e.named(weight, hint),
        e.named(e.take(matrix, order, 1), tensors["recurrent_weight"].name),
        bias,
        "",
    ]
